"""CLEVR-Robot: five balls to push about a table, by instructions in words.

See the kalm reference, section 2. MuJoCo is imported when the world is made; MJX when it is first used.
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.clevr.env import ClevrRobot, state_from_layout
    from envs_jax.clevr.goals import goal
    from envs_jax.clevr.instructions import LEVELS, Instruction, Level, level
    from envs_jax.clevr.rules import Weights, holds, label, succeeds


__all__ = [
    "LEVELS",
    "ClevrRobot",
    "Instruction",
    "Level",
    "Weights",
    "goal",
    "holds",
    "label",
    "level",
    "state_from_layout",
    "succeeds",
]
__getattr__ = attach(
    __name__,
    {
        "env": ["ClevrRobot", "state_from_layout"],
        "goals": ["goal"],
        "instructions": ["LEVELS", "Instruction", "Level", "level"],
        "rules": ["Weights", "holds", "label", "succeeds"],
    },
)

register(
    "CLEVR-Robot-v0",
    "envs_jax.clevr.env:ClevrRobot",
    about="push five balls about a table, as an instruction says; levels real, rephrase, easy, hard",
)
