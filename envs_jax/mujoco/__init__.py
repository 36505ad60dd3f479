"""Gymnasium's MuJoCo tasks, v5, on C MuJoCo or MJX (props reference, section 5).

MuJoCo, and Gymnasium for its models, are looked for when a task is made; MJX when it is first used.
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.mujoco.reference import import_state


__all__ = ["import_state"]
__getattr__ = attach(__name__, {"reference": ["import_state"]})

for _task in ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Swimmer", "Hopper", "Walker2d", "HalfCheetah"):
    register(f"{_task}-v5", f"envs_jax.mujoco.tasks:{_task}")
