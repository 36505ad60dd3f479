"""Algorithms by name, used by `llmrl rl train`, the documentation and the conformance tests.

To add one: a module in this folder that defines `ALGORITHM = Algorithm(...)`, and a line in `ALGORITHMS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmrl_jax.core.checks import nearest


@dataclass(frozen=True)
class Algorithm:
    """The parts needed to run an algorithm in an environment with ordinary array observations."""

    config: type
    """Its hyper-parameters: a frozen dataclass with usable defaults."""
    make: Callable[..., Any]
    """`(config, env, env_params, policy, mesh) -> Learner`; see `llmrl_jax.rl.learner`. The environment is not batched,
    and wrapped in `EpisodeStatistics`; `mesh` may be None."""
    policy: Callable[..., Any]
    """`(env, env_params, network, config) -> policy`, a small network for an environment; `network` is a
    `llmrl_jax.rl.networks.NetworkConfig`. It raises `ValueError` for environments and options that it cannot use."""


ALGORITHMS: dict[str, str] = {
    "dqn": "llmrl_jax.rl.dqn",
    "ppo": "llmrl_jax.rl.ppo",
}
"""Algorithm -> the module that defines its `ALGORITHM`."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. **Raises** `KeyError`, with the nearest name, if there is none."""
    if name not in ALGORITHMS:
        known = sorted(ALGORITHMS)
        raise KeyError(f"there is no algorithm {name!r}{nearest(name, known)} (there are {', '.join(known)})")
    return importlib.import_module(ALGORITHMS[name]).ALGORITHM
