"""Crafter with the rules of the package crafter 1.8.3, its images and text; the variants of ELLM and SmartPlay.

Hafner (2109.06780); ELLM (Du et al., 2302.06692); SmartPlay (Wu et al., 2310.01557), as in BK-RL (2407.03964).
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.crafter.env import Crafter
    from envs_jax.crafter.reference import import_state
    from envs_jax.crafter.state import Params, State, objects
    from envs_jax.crafter.tasks import TASKS, Task


__all__ = ["TASKS", "Crafter", "Params", "State", "Task", "import_state", "objects"]
__getattr__ = attach(
    __name__,
    {
        "env": ["Crafter"],
        "reference": ["import_state"],
        "state": ["Params", "State", "objects"],
        "tasks": ["TASKS", "Task"],
    },
)

_ENTRY = "envs_jax.crafter.env:Crafter"
register("CrafterReward-v1", _ENTRY, about="survive and craft: 22 achievements, pictures of 64 x 64 pixels")
register(
    "CrafterNoReward-v1",
    _ENTRY,
    about="the same without rewards",
    variant={"unlock_reward": 0.0, "health_reward": 0.0},
)
register(
    "CrafterText-v1",
    _ENTRY,
    about="ELLM's Crafter: 139 actions in words, captions, 400 steps",
    actions=139,
    view=True,
    image="none",
    text="ellm",
    slots=96,
    variant={"length": 400, "damage": 5, "table_wood": 1, "health_reward": 0.0, "counts_full": False},
)
_SMARTPLAY = {"actions": 20, "text": "smartplay", "variant": {"damage": 5}}
register("Crafter-Text-Reward", _ENTRY, about="SmartPlay's Crafter: 20 actions, captions", **_SMARTPLAY)
for _name, _task in {
    "PlaceCraftingTable": "place_table",
    "MakeWoodPickAxe": "make_wood_pickaxe",
    "CollectDrink": "collect_drink",
    "EatCow": "eat_cow",
}.items():
    register(
        f"Crafter-Text-{_name}",
        _ENTRY,
        about=f"SmartPlay's Crafter, only to {_task.replace('_', ' ')}",
        task=_task,
        **_SMARTPLAY,
    )
