"""`llmrl rl train`: a registered algorithm in a registered environment, with a small network, or on recorded steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import jax
import numpy as np
import tyro

import envs_jax
from envs_jax.env import Environment
from envs_jax.toytext.tables import NO_LIMIT, TabularEnvironment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import Episodes, make_evaluator, play_random
from llmrl_jax.core.checks import Checked, PositiveInt, Steps, refuse_unread
from llmrl_jax.core.config import FREE
from llmrl_jax.core.statistics import estimate_of, mean_interval, wilson
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.policy import drawable
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE, algorithm, spelled
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, several_seeds


RANDOM = "random"
"""Random actions, among the ways of acting."""

ALGO_HELP = f"Algorithm: {', '.join(sorted(ALGORITHMS))}; on recorded steps: {', '.join(sorted(OFFLINE))}."


@dataclass(frozen=True)
class RLRun(Checked):
    """A run of an algorithm in an environment, with a small network. `settings_class(algo)` adds the algorithm's
    options, under its name."""

    KIND: ClassVar[str] = "rl train"
    SHARES_PROGRAM: ClassVar[bool] = True
    """Whether a sweep may compute runs as rows of one program (`llmrl_jax.workflows.group`)."""

    algo: Annotated[str, tyro.conf.arg(help=ALGO_HELP)] = "ppo"
    """Algorithm, a name in `llmrl_jax.rl.registry`."""
    env: str = "CartPole-v1"
    """Environment, one of `llmrl envs list`."""
    steps: Steps = field(default=1_000_000, metadata=FREE)
    """Environment steps over all environments, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=100, metadata=FREE)
    """Held-out episodes per evaluation, for each way of acting: at the end, and every `run.eval_every` updates."""
    seeds: PositiveInt = 1
    """Seeds that learn in one program: `run.seed`, `run.seed` + 1, ... Results are means with intervals over them, and
    metrics with the number of a run as prefix, `0/loss`, its own. Steps are those of each."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4`: environments are split over `data` and `fsdp`. Empty: one device."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=10, checkpoint_every=200))

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "algo", spelled(self.algo))

    @property
    def hyper(self) -> Any:
        """The algorithm's configuration."""
        return getattr(self, self.algo)

    def experiment(self) -> Experiment:
        """Training and evaluation of the run."""
        return make(self)


@dataclass(frozen=True)
class OfflineRun(RLRun):
    """A run of an offline algorithm on recorded steps; see `RLRun`."""

    env: str = ""
    """Environment of the recorded steps, one of `llmrl envs list`, in which the policy is evaluated. Empty: none."""
    steps: Steps = field(default=1_000_000, metadata=FREE)
    """Gradient steps, rounded up to whole updates."""
    data: str = field(default="", metadata=FREE)
    """Recorded steps: a .parquet, .npz or .hdf5 file, or a folder of .npy files, with columns named as llmrl_jax writes
    them or as D4RL does; Minari's, robomimic's and d3rlpy's .hdf5. A run is continued with the same ones."""
    data_names: str = field(default="", metadata=FREE)
    """Names of columns in the files of `data` and `imagined` that are neither ours nor D4RL's, as OURS=THEIRS with
    commas: obs=observation.state,reward=next.reward."""
    imagined: str = field(default="", metadata=FREE)
    """More such steps, as a model imagined them, of which half of every batch is then made."""


@functools.cache
def settings_class(algo: str) -> type[RLRun]:
    """`RLRun` with the options of an algorithm, as `algo` and as a field of that name.

    **Raises:** `KeyError`, naming the nearest, for an unknown algorithm.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> config = lr.settings_class("iql")(data="steps.npz", steps=1_000, seeds=2)
    >>> config.iql.expectile, config.KIND
    (0.7, 'rl train')
    ```
    """
    if algo != spelled(algo):
        return settings_class(spelled(algo))
    config, base = algorithm(algo).config, OfflineRun if algo in OFFLINE else RLRun
    name = Annotated[str, tyro.conf.arg(help=ALGO_HELP)]
    return make_dataclass(
        base.__name__,
        [("algo", name, field(default=algo)), (algo, config, field(default_factory=config))],
        bases=(base,),
        frozen=True,
        namespace={"__doc__": base.__doc__, "__module__": __name__},
    )


def make(config: RLRun) -> Experiment:
    """The environment, the policy and the learner of a run, and its evaluation, if there is an environment.

    **Raises:** `KeyError` for unknown names; `ValueError` or `TypeError` for an environment that the algorithm cannot
    play, or options that do not fit together; what `llmrl_jax.workflows.offline_training.make_parts` raises.
    """
    source = config.env.rpartition(":")[2] or Path(getattr(config, "data", "")).stem
    labels: dict[str, Any] = {"title": f"{config.algo} {source}", "about": {"env": config.env}}
    if isinstance(config, OfflineRun):
        from llmrl_jax.workflows.offline_training import make_parts

        env, env_params, policy, learner = make_parts(config)
        x = Experiment(config, learner, policy, env, env_params, unit="gradient steps", **labels)
        return several_seeds(x if env is None else evaluated(x))
    env, env_params = envs_jax.make(config.env)
    env, entry = EpisodeStatistics(env), algorithm(config.algo)
    policy = entry.policy(env, env_params, config.network, config.hyper)
    mesh = make_mesh(config.mesh) if config.mesh else None
    learner = entry.make(config.hyper, env, env_params, policy, mesh)
    return several_seeds(evaluated(Experiment(config, learner, policy, env, env_params, **labels)), config.mesh)


def check_ends(env: Environment, env_params: Any) -> None:
    """**Raises** `ValueError` for an environment in which a policy that walks to and fro would be evaluated without
    end."""
    world = env.unwrapped
    if isinstance(world, TabularEnvironment) and not world.ends and env_params.max_steps >= NO_LIMIT:
        joint = "&" if "?" in env.id else "?"
        raise ValueError(
            f"{env.id} has no time limit, and a policy may never end an episode: take {env.id}{joint}max_steps=200"
        )


def evaluated(x: Experiment) -> Experiment:
    """An experiment with the evaluation of an environment without text: return, length and success.

    **Raises:** what `check_ends` raises."""
    check_ends(cast(Environment, x.env), x.env_params)
    players = functools.cache(functools.partial(evaluation, x))  # compiled once for each number of episodes

    def evaluate(state: Any, key: jax.Array, episodes: int) -> dict[str, float]:
        return players(episodes)(state, key)

    def baseline(state: Any, key: jax.Array, episodes: int) -> dict[str, float]:
        return random_evaluation(x, episodes, key)

    def during(state: Any, key: jax.Array) -> dict[str, float]:
        return players(x.config.eval_episodes)(state, key)

    return replace(x, evaluate=evaluate, baseline=baseline, during=during, report=table)


def evaluation(x: Experiment, episodes: int) -> Callable[[Any, jax.Array], dict[str, float]]:
    """`(state, key) -> summary` of held-out episodes, greedy and sampled, by one compiled program.

    Return, length and success (if the environment reports it) have the bounds of their 95% intervals.
    """
    assert x.env is not None
    play = make_evaluator(x.env, x.env_params, x.policy, episodes=episodes)

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, greedy in (("sampled", False), ("greedy", True)):
            metrics |= _summary(name, play(state.params, state.frozen, key, greedy=greedy))
        return metrics

    return evaluate


def random_evaluation(x: Experiment, episodes: int, key: jax.Array) -> dict[str, float]:
    """The summary of random actions in the episodes that `evaluation` plays with the same key, named as its summary is;
    empty where actions have no uniform distribution."""
    assert x.env is not None
    if not drawable(x.env.action_space(x.env_params)):
        return {}
    return _summary(RANDOM, play_random(x.env, x.env_params, key, episodes=episodes))


def _summary(prefix: str, episodes: Episodes) -> dict[str, float]:
    intervals = {
        "episode_return": mean_interval(episodes.episode_return),
        "episode_length": mean_interval(episodes.episode_length),
    }
    if episodes.success is not None:
        intervals["success"] = wilson(int(np.sum(episodes.success)), int(np.size(episodes.success)))
    return {key: value for name, x in intervals.items() for key, value in x.results(f"{prefix}/{name}").items()}


def train(config: RLRun) -> RunResult:
    """Train, evaluate greedy and sampled actions beside random ones, and write the run to its folder, with
    `eval-UPDATE.json`. An offline run without an environment is not evaluated.

    **Arguments:** `config`, an instance of `settings_class(algo)`.
    **Returns:** how it ended. **Raises:** what `make` and `llmrl_jax.run.loop.train` raise.
    """
    if isinstance(config, OfflineRun) and not (config.env or config.run.resume):
        refuse_unread(config, ("eval_episodes",), "a run without --env")
    x = make(config)
    with opened(config.run, x.title.replace(" ", "-").replace("/", "-")) as folder:
        return experiments.train(x, folder)


def table(results: dict[str, float], episodes: int) -> str:
    """The results of `evaluation` and `random_evaluation` as a table, with a line for each way of acting."""
    lines = [f"{episodes} held-out episodes each, with 95% intervals:"]
    for prefix in ("sampled", "greedy", *([RANDOM] if f"{RANDOM}/episode_return" in results else [])):
        cells = [f"{prefix:<8}"]
        for name, label in (("episode_return", "return"), ("episode_length", "length"), ("success", "success")):
            if f"{prefix}/{name}" in results:
                cells.append(f"{label} {estimate_of(results, f'{prefix}/{name}'):.2f}")
        lines.append("  ".join(cells))
    return "\n".join(lines)
