"""Algorithms by name, used by `llmrl rl train`, the documentation and the conformance tests.

To add one: a module in this folder that defines `ALGORITHM = Algorithm(...)`, and a line in `ALGORITHMS`; of an offline
one `ALGORITHM = OfflineAlgorithm(...)`, and a line in `OFFLINE`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmrl_jax.core.checks import nearest


@dataclass(frozen=True)
class Algorithm:
    """Parts needed to run an algorithm in an environment with ordinary array observations."""

    config: type
    """Its hyper-parameters: a frozen dataclass with usable defaults."""
    make: Callable[..., Any]
    """`(config, env, env_params, policy, mesh) -> Learner`; see `core.learner`. The environment is not batched, and
    wrapped in `EpisodeStatistics`; `mesh` may be None."""
    policy: Callable[..., Any]
    """`(env, env_params, network, config) -> policy`, a small network for an environment; `network` is a
    `llmrl_jax.rl.networks.NetworkConfig`. It raises `ValueError` for environments and options that it cannot use."""


@dataclass(frozen=True)
class OfflineAlgorithm:
    """Parts needed to run an algorithm on recorded steps."""

    config: type
    """Its hyper-parameters: a frozen subclass of `llmrl_jax.rl.offline.OfflineConfig` with usable defaults."""
    make: Callable[..., Any]
    """`(config, actions) -> OfflineMethod`, see `llmrl_jax.rl.offline`; `actions` is a
    `llmrl_jax.rl.offline_data.ActionKind`. It raises `ValueError` for actions and options that it cannot use."""


ALGORITHMS: dict[str, str] = {
    "dqn": "llmrl_jax.rl.dqn",
    "ppo": "llmrl_jax.rl.ppo",
    "sac": "llmrl_jax.rl.sac",
}
"""Algorithm -> the module that defines its `ALGORITHM`."""

OFFLINE: dict[str, str] = {
    "awac": "llmrl_jax.rl.awac",
    "bc": "llmrl_jax.rl.bc",
    "bcq": "llmrl_jax.rl.bcq",
    "combo": "llmrl_jax.rl.combo",
    "cql": "llmrl_jax.rl.cql",
    "discrete_bcq": "llmrl_jax.rl.discrete_bcq",
    "discrete_cql": "llmrl_jax.rl.discrete_cql",
    "iql": "llmrl_jax.rl.iql",
    "prdc": "llmrl_jax.rl.prdc",
    "td3_bc": "llmrl_jax.rl.td3_bc",
}
"""Offline algorithm -> the module that defines its `ALGORITHM`."""


def spelled(name: str) -> str:
    """The name of an algorithm as the tables have it: `td3_bc` for `td3+bc` and `td3-bc`, as papers write it."""
    return name.replace("+", "_").replace("-", "_")


def algorithm(name: str) -> Any:
    """`Algorithm` or `OfflineAlgorithm` of that name. **Raises** `KeyError`, with the nearest name, if there is
    none.

    An `Algorithm` makes a learner that plays (`ppo`, `dqn`, `sac`), an `OfflineAlgorithm` the method of `make_offline`.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.rl.algorithm("td3+bc").config.__name__, sorted(lr.rl.ALGORITHMS)
    ('TD3BCConfig', ['dqn', 'ppo', 'sac'])
    ```
    """
    modules = {**ALGORITHMS, **OFFLINE}
    if spelled(name) not in modules:
        names = [*sorted(ALGORITHMS), *sorted(OFFLINE)]
        raise KeyError(f"there is no algorithm {name!r}{nearest(name, names)} (there are {', '.join(names)})")
    return importlib.import_module(modules[spelled(name)]).ALGORITHM
