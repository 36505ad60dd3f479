"""PPO on CartPole-v1: steps of training per second, by the program of `benchmarks.ppo_cartpole`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from benchmarks.accelerator.record import Case, Measured, Settings
from benchmarks.harness import REPEATS
from benchmarks.ppo_cartpole import CASE, STEPS, ours


def measure(steps: int) -> Measured:
    """Whole runs of training, each with its own seed."""
    samples, took, returns = ours(steps, REPEATS)
    amount = steps // 512 * 512
    times = [amount / rate for rate in samples]
    return Measured(times, took, amount, "environment steps", facts={"mean_return": statistics.mean(returns)})


def cases(settings: Settings) -> Iterator[Case]:
    """One case."""
    steps = 2048 if settings.tiny else STEPS
    yield Case(CASE, {"envs": 4, "steps_per_update": 512, "steps": steps}, partial(measure, steps))
