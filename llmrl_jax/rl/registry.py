"""Algorithms by name: what `llmrl rl train`, the documentation and the conformance tests go through.

To add one: a module in this folder that ends in `ALGORITHM = Algorithm(...)`, and a line in `ALGORITHMS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmrl_jax.core.checks import nearest


@dataclass(frozen=True)
class Algorithm:
    """What it takes to run an algorithm in an ordinary world."""

    config: type
    """Its hyper-parameters: a frozen dataclass whose defaults make sense."""
    make: Callable[..., Any]
    """`(config, env, env_params, policy, mesh) -> Learner`; see `llmrl_jax.rl.learner`. The world comes one at a time,
    wrapped in `EpisodeStatistics`; `mesh` may be None."""
    policy: Callable[..., Any]
    """`(env, env_params, network, config) -> policy`, a small network for a world; `network` is a
    `llmrl_jax.rl.networks.NetworkConfig`. It raises `ValueError` for worlds and options that it cannot use."""


ALGORITHMS: dict[str, str] = {
    "dqn": "llmrl_jax.rl.dqn",
    "ppo": "llmrl_jax.rl.ppo",
}
"""Algorithm -> the module that defines its `ALGORITHM`."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. **Raises** `KeyError`, naming the nearest, where there is none."""
    if name not in ALGORITHMS:
        known = sorted(ALGORITHMS)
        raise KeyError(f"there is no algorithm {name!r}{nearest(name, known)} (there are {', '.join(known)})")
    return importlib.import_module(ALGORITHMS[name]).ALGORITHM
