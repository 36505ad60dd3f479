"""Meta-World: a robot arm at a table, twenty of its tasks and KALM's two composites.

Yu et al. (1910.10897), as used by KALM (Pang et al., 2404.09248). MuJoCo is imported, and the scene converted from the
package metaworld, when a task is first reset; MJX when it is first used.
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.metaworld.env import MetaWorld, expert_action
    from envs_jax.metaworld.instructions import LEVELS, NAMES, Instruction, Level, level
    from envs_jax.metaworld.labels import holds, implausible, label
    from envs_jax.metaworld.levels import MetaWorldLevel
    from envs_jax.metaworld.reference import import_state


__all__ = [
    "LEVELS",
    "NAMES",
    "Instruction",
    "Level",
    "MetaWorld",
    "MetaWorldLevel",
    "expert_action",
    "holds",
    "implausible",
    "import_state",
    "label",
    "level",
]
__getattr__ = attach(
    __name__,
    {
        "env": ["MetaWorld", "expert_action"],
        "instructions": ["LEVELS", "NAMES", "Instruction", "Level", "level"],
        "labels": ["holds", "implausible", "label"],
        "levels": ["MetaWorldLevel"],
        "reference": ["import_state"],
    },
)

_TASKS = {
    "reach": "move the gripper to a place",
    "push": "push a puck to a place on the table",
    "pick-place": "lift a puck to a place",
    "button-press": "press a button",
    "door-unlock": "turn the lock of a door open",
    "door-open": "pull a door open",
    "window-open": "slide a window open",
    "faucet-open": "turn a faucet open",
    "coffee-push": "push a mug under a coffee machine",
    "coffee-button": "press the button of a coffee machine",
    "reach-wall": "move the gripper to a place behind a wall",
    "push-wall": "push a puck round a wall",
    "pick-place-wall": "lift a puck over a wall",
    "button-press-wall": "press a button behind a wall",
    "door-lock": "turn the lock of a door closed",
    "door-close": "push a door closed",
    "window-close": "slide a window closed",
    "faucet-close": "turn a faucet closed",
    "hammer": "drive a nail into a block with a hammer",
    "soccer": "push a ball into a goal",
    "make-coffee": "push a mug under a coffee machine, then press its button",
    "locked-door-open": "unlock a door, then pull it open",
}
for _task, _summary in _TASKS.items():
    register(f"MetaWorld/{_task}-v3", "envs_jax.metaworld.env:MetaWorld", task=_task, about=f"robot arm: {_summary}")
register(
    "MetaWorld-v3",
    "envs_jax.metaworld.levels:MetaWorldLevel",
    about="robot arm: do what an instruction says; levels real, rephrase, easy, hard",
)
