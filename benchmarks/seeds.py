"""Eight seeds in one program beside one: an update of the demo's language model, and of small networks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

import envs_jax
from benchmarks.harness import OURS, REPEATS, Figure, Result, Row, aim, rates, seconds, updating
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.core.learner import Learner
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.registry import algorithm
from llmrl_jax.rl.seeds import vmap_learners
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import DEMO, TrainConfig
from llmrl_jax.systems.glam.train import make
from llmrl_jax.workflows.curriculum import save_prior


TITLE = "Seeds: eight in one program, compared with one"

SEEDS = 8
GLAM = "GLAM's demo, 64 environments x 32 steps"
BAR = 5.0
"""Times the cost of one seed."""
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {}),
    "dqn": ("CartPole-v1", {"replay_size": 50_000, "learning_starts": 500}),
    "sac": ("Pendulum-v1", {"replay_size": 50_000, "learning_starts": 500}),
}


@contextmanager
def demo(quick: bool) -> Iterator[tuple[Learner, Learner]]:
    """The learners of one and of `SEEDS` seeds that `llmrl glam train` makes, with a prior of random weights: the
    speed does not depend on them."""
    glam = DEMO
    if quick:
        sizes = replace(glam.embedded, hidden_size=16, intermediate_size=16, layers=1)
        ppo = replace(glam.ppo, num_envs=8, num_steps=4, minibatches=2, microbatches=1, pool_size=8)
        glam = replace(glam, embedded=sizes, ppo=ppo, score_rows=0)
    with tempfile.TemporaryDirectory() as folder:
        blank = build(replace(glam, tune="full"))
        save_prior(Path(folder) / "prior", blank, blank.policy.init(jax.random.key(0), None)[0]["params"])
        config = TrainConfig(glam=replace(glam, model=str(Path(folder) / "prior")))
        yield make(config).learner, make(replace(config, seeds=SEEDS)).learner


def small(name: str) -> tuple[Learner, Learner]:
    """The learners of one and of `SEEDS` seeds of an algorithm with its defaults but for the memory."""
    entry, (env_id, options) = algorithm(name), SMALL[name]
    config = entry.config(**options)
    env, params = envs_jax.make(env_id)
    env = EpisodeStatistics(env)
    learner = entry.make(config, env, params, entry.policy(env, params, NetworkConfig(), config), None)
    return learner, vmap_learners(learner, SEEDS)


def compare(case: str, one: Learner, many: Learner, updates: int, warmup: int) -> tuple[list[Row], Figure]:
    """Environment steps per second of all seeds, whose samples alternate, and how many times the seconds of one seed
    they take. **Arguments:** `updates`, per sample; `warmup`, updates before."""
    calls = []
    for learner in (one, many):
        call, took = updating(learner, learner.init(jax.random.key(0)))
        for _ in range(warmup):
            call()
        calls.append((call, took))
    times: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for i, (call, _) in enumerate(calls):
            times[i].append(statistics.median(seconds(lambda call=call: [call() for _ in range(updates)])))  # type: ignore[misc]
    rows = [
        Row(case, OURS, "steps/s", rates(n * updates * one.steps_per_update, each), took, f"{n} seed{'s' * (n > 1)}")
        for n, each, (_, took) in zip((1, SEEDS), times, calls, strict=True)
    ]
    return rows, Figure.of(times[1]) / Figure.of(times[0])


def run(quick: bool) -> Result:
    """Each learner with one and with eight seeds."""
    with demo(quick) as learners:
        rows, ratio = compare(GLAM, *learners, updates=1, warmup=1)
    bars = [f"{GLAM}: {SEEDS} seeds take {ratio:.2f} times as long as one {aim(ratio, BAR, below=True)}"]
    for name, (env_id, _) in SMALL.items():
        case = f"{name.upper()}, {env_id}"
        more, ratio = compare(case, *small(name), updates=2 if quick else 50, warmup=2 if quick else 100)
        rows += more
        bars.append(f"{case}: {SEEDS} seeds take {ratio:.2f} times as long as one {aim(ratio, BAR, below=True)}")
    notes = [
        "The programs of a run; samples of both alternate, and steps are those of all seeds together. The seeds of a "
        "language model share its base; on a CPU they are computed one by one, those of small networks at once."
    ]
    return Result(rows, bars, notes)
