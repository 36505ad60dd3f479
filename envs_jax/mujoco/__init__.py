"""Gymnasium's MuJoCo tasks, v5, on C MuJoCo or MJX.

MuJoCo, and Gymnasium for its models, are imported when a task is made; MJX when it
is first used.
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.mujoco.reference import import_state


__all__ = ["import_state"]
__getattr__ = attach(__name__, {"reference": ["import_state"]})

_TASKS = {
    "InvertedPendulum": "balance a pole on a cart by a force",
    "InvertedDoublePendulum": "balance two poles, one on the other, on a cart",
    "Reacher": "move the tip of a two-link arm to a target",
    "Swimmer": "swim forward with three links",
    "Hopper": "hop forward on one leg",
    "Walker2d": "walk forward on two legs",
    "HalfCheetah": "run forward, in the plane",
}
for _task, _summary in _TASKS.items():
    register(f"{_task}-v5", f"envs_jax.mujoco.tasks:{_task}", about=_summary)
