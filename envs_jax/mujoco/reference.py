"""Import of the state of a live MuJoCo environment of Gymnasium, also in mid-episode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.mujoco.env import MujocoEnv, MujocoState
from envs_jax.physics.interface import require


PHYSICAL = ("actuator_", "body_", "dof_", "eq_", "geom_", "jnt_", "site_", "tendon_", "qpos")
"""Prefixes of a model's arrays that decide its motion."""
OF_PICTURES = ("rgba", "matid", "group", "user")


def _different(a: Any, b: Any) -> list[str]:
    """Names of the physical arrays and options in which two compiled models differ."""
    arrays = [n for n in dir(a) if n.startswith(PHYSICAL) and not n.endswith(OF_PICTURES)]
    pairs = [(n, getattr(a, n), getattr(b, n)) for n in arrays]
    pairs += [(f"opt.{n}", getattr(a.opt, n), getattr(b.opt, n)) for n in dir(a.opt) if not n.startswith("_")]
    values = (int, float, np.ndarray)
    return [n for n, x, y in pairs if isinstance(x, values) and not np.array_equal(x, y)]


def import_state(gymnasium_env: Any, env: Any, params: Any) -> tuple[jax.Array, MujocoState]:
    """The pair that `reset` would return, for the current state of one of Gymnasium's v5 environments.

    **Arguments:** `gymnasium_env`, made by `gymnasium.make`, reset at least once; `env`, the same task from
    `envs_jax.make`, possibly wrapped; `params`, its parameters.
    **Returns:** `(obs, state)` of the innermost `env`.
    **Raises:** `TypeError` for another environment; `ValueError` before its first reset, or if the two differ in their
    model, their `frame_skip`, or the size of their observations.
    """
    env, inner = env.unwrapped, gymnasium_env.unwrapped
    if not isinstance(env, MujocoEnv) or type(inner).__name__ != f"{type(env).__name__}Env":
        raise TypeError(f"{type(inner).__name__} is not what {type(env).__name__} re-implements")
    counted = gymnasium_env.has_wrapper_attr("_elapsed_steps")
    time = gymnasium_env.get_wrapper_attr("_elapsed_steps") if counted else 0
    if time is None:
        raise ValueError("the Gymnasium environment has no state yet; call its reset first")
    sizes = [(m.nq, m.nv, m.nu, m.nbody, m.opt.timestep) for m in (inner.model, env.model)]
    if sizes[0] != sizes[1] or inner.frame_skip != env.frame_skip:
        raise ValueError(
            f"the models differ: nq, nv, nu, nbody, time step and frame_skip are {(*sizes[0], inner.frame_skip)} in "
            f"Gymnasium and {(*sizes[1], env.frame_skip)} here; make both of one xml_file and frame_skip"
        )
    if names := _different(inner.model, env.model):
        raise ValueError(f"the models differ in {', '.join(names)}: make both of one xml_file")
    physics, size = env.physics, env.observation_space(params).shape
    if inner.observation_space.shape != size:
        raise ValueError(
            f"Gymnasium observes {inner.observation_space.shape}, this world {size}: give both the same "
            "exclude_current_positions_from_observation"
        )
    numbers = np.zeros(physics.size)
    require("mujoco").mj_getState(inner.model, inner.data, numbers, physics.spec)
    now = physics.moment(numbers, {name: np.array(getattr(inner.data, name)) for name in physics.read})
    obs, _, terminated, _ = env.look(np, now, now, np.zeros(env.model.nu), params)
    obs, terminated = jnp.asarray(obs, jnp.float32), jnp.asarray(terminated, bool)
    truncated = jnp.asarray(time >= params.max_steps)
    return obs, MujocoState(jnp.asarray(physics.encode(numbers)), obs, jnp.int32(time), terminated, truncated)
