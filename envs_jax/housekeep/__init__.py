"""Housekeep: a grid apartment in which misplaced objects are to be put where they belong.

Kant et al. (2205.10712), as used by ELLM (Du et al., 2302.06692).
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.housekeep.annotations import convert_annotations
    from envs_jax.housekeep.env import Housekeep
    from envs_jax.housekeep.expert import expert_action, macro_expert_action
    from envs_jax.housekeep.macro import MacroHousekeep
    from envs_jax.housekeep.preferences import Preferences, load


__all__ = [
    "Housekeep",
    "MacroHousekeep",
    "Preferences",
    "convert_annotations",
    "expert_action",
    "load",
    "macro_expert_action",
]
__getattr__ = attach(
    __name__,
    {
        "annotations": ["convert_annotations"],
        "env": ["Housekeep"],
        "expert": ["expert_action", "macro_expert_action"],
        "macro": ["MacroHousekeep"],
        "preferences": ["Preferences", "load"],
    },
)

_TASK = "tidy up an apartment of five rooms"
for _prefix, _entry, _suffix in (
    ("Housekeep", "envs_jax.housekeep.env:Housekeep", ""),
    ("Housekeep-Macro", "envs_jax.housekeep.macro:MacroHousekeep", ", by walking to a receptacle in one action"),
):
    register(f"{_prefix}-v0", _entry, about=f"{_TASK}{_suffix}; random episodes")
    for _number in range(1, 5):
        _description = f"{_TASK}{_suffix}; fixed episode {_number}"
        register(f"{_prefix}-Task{_number}-v0", _entry, about=_description, task=_number)
