"""`llmrl rl train --data FILE`: an offline algorithm on recorded steps, evaluated in their environment if named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax import spaces
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.data.columns import parse_names
from llmrl_jax.data.reading import read_data
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_transitions
from llmrl_jax.rl.networks import with_one_hots
from llmrl_jax.rl.offline import make_offline
from llmrl_jax.rl.offline_data import actions_of, check_same_form
from llmrl_jax.rl.registry import algorithm


def make_parts(config: Any) -> tuple[Any, Any, Any, Any]:
    """The environment, its parameters, the policy and the learner of a run; no environment if none is named.

    **Arguments:** `config`, a `llmrl_jax.workflows.rl_training.OfflineRun`.
    **Raises:** `ValueError` for options that offline learners do not read, or a run without data; `DataError` for data
    that cannot be learned from, or that are not of the environment; what `read_data` raises.
    """
    network = [f"network.{f.name}" for f in fields(config.network)]
    reader = f"the offline algorithm {config.algo}"
    refuse_unread(config, ["mesh"], reader)
    refuse_unread(
        config, network, reader, remedy=f"its own are --{config.algo.replace('_', '-')}.hidden and .activation"
    )
    if not config.data:
        raise ValueError(f"{config.algo} learns from recorded steps: name them with --data FILE")
    if config.run.eval_every and not config.env:
        raise ValueError(f"run.eval_every is {config.run.eval_every}, but there is no world to evaluate in: name --env")
    env, env_params, space, features = None, None, None, None
    if config.env:
        env, env_params = envs_jax.make(config.env)
        env, space = EpisodeStatistics(env), env.action_space(env_params)
        features = with_one_hots(env.observation_space(env_params))
    with doing("reading the data"):
        names = parse_names(config.data_names)
        data = read_steps(config.data, names)
        imagined = read_steps(config.imagined, names) if config.imagined else None
    if env is not None:
        check_world(data, env.observation_space(env_params), config.env)
    if imagined is not None:
        check_same_form(data, imagined, "the imagined data")
    actions = actions_of(data, space, config.env)
    entry = algorithm(config.algo)
    method = entry.make(config.hyper, actions)
    learner = make_offline(method, config.hyper, data, actions, imagined=imagined, features=features)
    return env, env_params, learner.policy, learner


def read_steps(path: str, names: Mapping[str, str]) -> Transitions:
    """The steps of a file, without their texts and goals. **Arguments** and **Raises:** see `read_data`."""
    data = read_data(path, names)
    steps = to_transitions(data) if isinstance(data, Trajectories) else data
    return steps.replace(text=(), goal=())


def check_world(data: Transitions, space: spaces.Space, env: str) -> None:
    """**Raises** `DataError` unless the observations have the parts, shapes and bounds of an environment's; the size of
    numbers may differ, as float16 for float32."""
    expected, recorded = _parts(space), _named(data.obs)
    for name in sorted(expected.keys() | recorded.keys()):
        a, b = expected.get(name), recorded.get(name)
        actual = "missing" if b is None else f"{b.dtype}{list(b.shape[1:])}"
        if a is None or b is None or b.shape[1:] != a.shape or _kind(b.dtype) != _kind(a.dtype):
            needs = "missing" if a is None else f"{np.dtype(a.dtype)}{list(a.shape)}"
            raise DataError(f"{name} of the data is {actual}, but {needs} in {env}: the data are of another world")
        low, high = (0, a.n - 1) if isinstance(a, spaces.Discrete) else (a.low, a.high)
        slack = 1e-4 * (1 + jnp.maximum(jnp.abs(jnp.float32(low)), jnp.abs(jnp.float32(high))))
        wrong = (b < low - slack) | (b > high + slack)
        if bool(jnp.any(wrong)):
            row = np.argwhere(np.asarray(wrong))[0]
            raise DataError(
                f"{name} of step {row[0]} of the data is {np.asarray(b)[tuple(row)]:g}, beyond what {env} has: "
                "the data are of another world"
            )


def _kind(dtype: Any) -> str:
    kind = np.dtype(dtype).kind
    return "i" if kind == "u" else kind


def _parts(space: Any, name: str = "obs") -> dict[str, Any]:
    """The boxes and numbers of a space by their dotted names."""
    if not isinstance(space, spaces.Dict):
        return {name: space}
    return {k: part for key, inner in space.spaces.items() for k, part in _parts(inner, f"{name}.{key}").items()}


def _named(obs: Any) -> dict[str, jax.Array]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path({"obs": obs})
    }
