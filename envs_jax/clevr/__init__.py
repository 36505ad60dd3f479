"""CLEVR-Robot: five balls to push about a table, by instructions in words.

The environment of KALM (Pang et al., 2404.09248), a fork of clevr_robot_env (1906.07343). MuJoCo is imported when the
environment is made; MJX when it is first used.
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.clevr.env import ClevrRobot, state_from_layout
    from envs_jax.clevr.expert import expert_action
    from envs_jax.clevr.goals import from_published, goal, to_published
    from envs_jax.clevr.instructions import LEVELS, Instruction, Level, level
    from envs_jax.clevr.plausible import implausible
    from envs_jax.clevr.rules import Weights, holds, label, succeeds


__all__ = [
    "LEVELS",
    "ClevrRobot",
    "Instruction",
    "Level",
    "Weights",
    "expert_action",
    "from_published",
    "goal",
    "holds",
    "implausible",
    "label",
    "level",
    "state_from_layout",
    "succeeds",
    "to_published",
]
__getattr__ = attach(
    __name__,
    {
        "env": ["ClevrRobot", "state_from_layout"],
        "expert": ["expert_action"],
        "goals": ["from_published", "goal", "to_published"],
        "instructions": ["LEVELS", "Instruction", "Level", "level"],
        "plausible": ["implausible"],
        "rules": ["Weights", "holds", "label", "succeeds"],
    },
)

register(
    "CLEVR-Robot-v0",
    "envs_jax.clevr.env:ClevrRobot",
    about="push five balls about a table, as an instruction says; levels real, rephrase, easy, hard",
)
