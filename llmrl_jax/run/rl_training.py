"""`llmrl rl train`: any registered algorithm in any registered world, with a small network, or on recorded steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
import tyro

import envs_jax
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import Episodes, make_evaluator, play_random
from llmrl_jax.agents.random import drawable
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import Checked, PositiveInt, Steps
from llmrl_jax.core.config import FREE
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE, algorithm, spelled
from llmrl_jax.rl.rollout import step_info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.run.report.statistics import mean_interval, wilson


RANDOM = "random"
"""Random actions, among the ways of acting."""

ALGO_HELP = f"Algorithm: {', '.join(sorted(ALGORITHMS))}; on recorded steps: {', '.join(sorted(OFFLINE))}."


@dataclass(frozen=True)
class RLRun(Checked):
    """A run of an algorithm in a world, with a small network. `settings_class(algo)` adds the algorithm's options,
    under its name."""

    KIND: ClassVar[str] = "rl train"

    algo: Annotated[str, tyro.conf.arg(help=ALGO_HELP)] = "ppo"
    """Algorithm, a name in `llmrl_jax.rl.registry`."""
    env: str = "CartPole-v1"
    """World, one of `llmrl envs list`."""
    steps: Steps = field(default=1_000_000, metadata=FREE)
    """Environment steps over all environments, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=100, metadata=FREE)
    """Held-out episodes per evaluation, for each way of acting: at the end, and every `run.eval_every` updates."""
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


@dataclass(frozen=True)
class OfflineRun(RLRun):
    """A run of an offline algorithm on recorded steps; see `RLRun`."""

    env: str = ""
    """World of the recorded steps, one of `llmrl envs list`, in which the policy is evaluated. Empty: no evaluation."""
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


@dataclass(frozen=True)
class Made:
    """The objects that a run's settings describe."""

    env: Environment | None
    """None: an offline run without a world."""
    env_params: Any
    policy: Any
    learner: Learner


def make(config: RLRun) -> Made:
    """The world, the policy and the learner of a run.

    **Raises:** `KeyError` for unknown names; `ValueError` or `TypeError` for a world that the algorithm cannot play, or
    options that do not fit together; what `llmrl_jax.run.offline_training.make_parts` raises.
    """
    if isinstance(config, OfflineRun):
        from llmrl_jax.run.offline_training import make_parts

        return Made(*make_parts(config))
    env, env_params = envs_jax.make(config.env)
    env, entry = EpisodeStatistics(env), algorithm(config.algo)
    policy = entry.policy(env, env_params, config.network, config.hyper)
    mesh = make_mesh(config.mesh) if config.mesh else None
    return Made(env, env_params, policy, entry.make(config.hyper, env, env_params, policy, mesh))


def evaluation(made: Made, episodes: int) -> Callable[[Any, jax.Array], dict[str, float]]:
    """`(state, key) -> summary` of held-out episodes, greedy and sampled, by one compiled program.

    Return, length and success (if the world reports it) have the bounds of their 95% intervals.
    """
    assert made.env is not None
    play = make_evaluator(made.env, made.env_params, made.policy, episodes=episodes)
    succeeds = _succeeds(made)

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, greedy in (("sampled", False), ("greedy", True)):
            metrics |= _summary(name, play(state.params, state.frozen, key, greedy=greedy), succeeds)
        return metrics

    return evaluate


def random_evaluation(made: Made, episodes: int, key: jax.Array) -> dict[str, float]:
    """The summary of random actions in the episodes that `evaluation` plays with the same key, named as its summary is;
    empty where actions have no uniform distribution."""
    assert made.env is not None
    if not drawable(made.env.action_space(made.env_params)):
        return {}
    return _summary(RANDOM, play_random(made.env, made.env_params, key, episodes=episodes), _succeeds(made))


def _succeeds(made: Made) -> bool:
    return "success" in step_info(made.env, made.env_params)  # type: ignore[arg-type]


def _summary(way: str, episodes: Episodes, succeeds: bool) -> dict[str, float]:
    known = {
        "episode_return": mean_interval(episodes.episode_return),
        "episode_length": mean_interval(episodes.episode_length),
    }
    if succeeds:
        known["success"] = wilson(int(np.sum(episodes.success)), int(np.size(episodes.success)))
    ends = (("", "mean"), ("_low", "low"), ("_high", "high"))
    return {f"{way}/{name}{end}": float(getattr(x, part)) for name, x in known.items() for end, part in ends}


def train(config: RLRun) -> RunResult:
    """Train, evaluate greedy and sampled actions beside random ones, and write the run to its folder, with
    `eval-UPDATE.json`. An offline run without a world is not evaluated.

    **Arguments:** `config`, an instance of `settings_class(algo)`.
    **Returns:** how it ended. **Raises:** what `make` and `llmrl_jax.run.loop.train` raise.
    """
    made = make(config)
    evaluate = None if made.env is None else evaluation(made, config.eval_episodes)
    where = config.env or Path(getattr(config, "data", "")).stem
    with opened(config.run, f"{config.algo}-{where}".replace("/", "-")) as folder:
        result = run_training(
            made.learner,
            config.run,
            num_updates=-(-config.steps // made.learner.steps_per_update),
            evaluate=evaluate if config.run.eval_every else None,
            full_config=config,
            folder=folder,
            title=f"{config.algo} {where}",
        )
        values: dict[str, Any] = {"steps": result.steps, **result.facts()}
        if evaluate is not None and not result.stopped:
            key = jax.random.fold_in(jax.random.key(config.run.seed), 0x4E1D)  # held-out episodes
            metrics = evaluate(result.state, key) | random_evaluation(made, config.eval_episodes, key)
            values |= metrics
            about = {"update": result.update, "env": config.env, "episodes": config.eval_episodes}
            configs.save_config({**about, **metrics}, folder / f"eval-{result.update}.json")
            print(table(metrics, config.eval_episodes))
        write_summary(folder, values)
    unit = "gradient steps" if isinstance(config, OfflineRun) else "steps"
    print(f"{result.steps} {unit} at {result.steps_per_second:.0f} {unit}/s; everything is in {result.folder}")
    return result


def table(found: dict[str, float], episodes: int) -> str:
    """The results of `evaluation` and `random_evaluation` as a table, with a line for each way of acting."""
    lines = [f"{episodes} held-out episodes each, with 95% intervals:"]
    for way in ("sampled", "greedy", *([RANDOM] if f"{RANDOM}/episode_return" in found else [])):
        cells = [f"{way:<8}"]
        for name, label in (("episode_return", "return"), ("episode_length", "length"), ("success", "success")):
            if f"{way}/{name}" in found:
                mean, low, high = (found[f"{way}/{name}{end}"] for end in ("", "_low", "_high"))
                interval = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else ""  # none of a single episode
                cells.append(f"{label} {mean:.2f}{interval}")
        lines.append("  ".join(cells))
    return "\n".join(lines)
