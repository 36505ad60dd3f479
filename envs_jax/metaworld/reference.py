"""Import of the state of a live environment of the package metaworld, also in mid-episode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.metaworld import poses
from envs_jax.metaworld.env import MetaWorld
from envs_jax.metaworld.state import Start, State
from envs_jax.metaworld.tasks import COMPOSITES


def import_state(metaworld_env: Any, env: Any, params: Any) -> tuple[jax.Array, State]:
    """The pair that `reset` or `step` would return, for the current state of an environment of metaworld 3.1.1.

    **Arguments:** `metaworld_env`, of a task, its goal observed or not, reset at least once; `env`, the same task from
    `envs_jax.make`, possibly wrapped; `params`, its parameters.
    **Returns:** `(obs, state)` of the innermost `env`; the observation shows the goal.
    **Raises:** `TypeError` for another environment or task; `ValueError` before its first reset.
    """
    world, inner = env.unwrapped, metaworld_env.unwrapped
    if not isinstance(world, MetaWorld) or world.name in COMPOSITES:
        raise TypeError(f"import_state is for the tasks of the package metaworld, and {env.id} is none of them")
    _check_task(world, inner)
    if inner._target_pos is None or not hasattr(inner, "init_tcp"):
        raise ValueError("the environment of metaworld has no state yet; call its reset first")
    model, data, task = inner.model, inner.data, world.task
    mocap = np.array(world.model.body_pos[world.model.body_mocapid >= 0])
    mocap[world.starts.hand] = data.mocap_pos[0]
    if task.base:
        mocap[world.starts.base] = model.body(task.base[0]).pos
    numbers = np.concatenate([data.qpos, data.qvel, data.act, data.qacc_warmstart, mocap.ravel()])
    places = (
        inner._target_pos,
        inner.obj_init_pos,
        inner.init_tcp,
        getattr(inner, "window_handle_pos_init", np.zeros(3)),
    )
    target, item, tcp, handle = (jnp.asarray(np.float32(x)) for x in places)
    frame = np.array(inner._prev_obs)
    time, goal = inner.curr_path_length, np.array(inner._target_pos)
    if time:
        last_obs, goal = np.array(inner._last_stable_obs), np.clip(goal, *np.array(task.goal))
        obs = np.concatenate([last_obs[:-3], goal])
    else:
        obs = poses.stacked(np, frame, frame, goal)
    if world.obs == "entities":
        wall = np.zeros(7)
        if world.reader.wall:
            wall = np.concatenate([data.body("wall").xpos, data.body("wall").xquat])
        obs = poses.entities(np, task, obs[: poses.FRAME], goal, wall)
    state = State(
        physics=jnp.asarray(world.physics.encode(numbers)),
        frame=jnp.asarray(frame, jnp.float32),
        start=Start(targets=target[None], object=item, tcp=tcp, handle=handle),
        stage=jnp.int32(0),
        step_count=jnp.int32(time),
    )
    return jnp.asarray(obs, jnp.float32), state


def _check_task(world: MetaWorld, inner: Any) -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    if not isinstance(inner, ALL_V3_ENVIRONMENTS[f"{world.name}-v3"]):
        raise TypeError(f"{type(inner).__name__} is not the task {world.name!r} of metaworld")
