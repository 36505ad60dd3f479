"""The published tasks and further ones, as data: environment, policy, prompt values, and published results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import envs_jax
from llmrl_jax.core.checks import nearest
from llmrl_jax.systems.props.policies import Policy, make_policy


@dataclass(frozen=True)
class TaskSettings:
    """Settings of one of the two methods, ProPS or ProPS+, on a task (2511.21928)."""

    optimum: float | None
    """The optimum stated in the prompt; None if none is published, then omitted."""
    warmup: int = 20
    """Number of random policies before the first proposal."""
    iterations: int = 400
    """Number of proposals."""
    episodes: int = 20
    """Episodes per evaluation."""
    max_steps: int | None = None
    """Maximum episode length, if it differs from the task's."""


@dataclass(frozen=True)
class Task:
    """An environment with its policy class."""

    name: str
    """Name in commands."""
    title: str
    """Name in tables."""
    env: str
    """Environment id, for `envs_jax.make`."""
    num_params: int
    """Number of parameters of the policy: a table for discrete states, else linear with bias."""
    props: TaskSettings
    plus: TaskSettings
    step: float | None = 1.0
    """Exploration step size suggested in the prompt, of parameters between -6 and 6; None for a table."""
    max_steps: int | None = None
    """Maximum episode length; None: the environment's own limit."""
    bound: float | None = None
    """Upper bound of the mean return of any policy, if known, to the digits given."""
    published: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    """Method -> mean and spread over 10 seeds on the project's page: the two best baselines, ProPS and ProPS+ with
    gpt-4o. The page calls the spread a standard error in one place and a standard
    deviation in another."""

    def make(self, settings: TaskSettings | None = None, **policy: Any) -> tuple[envs_jax.Environment, Any, Policy]:
        """The environment, its parameters with the time limit applied, and the policy.

        **Arguments:** `settings`, `props` or `plus` to apply its own time limit; `policy`, fields of `Policy` that
        differ from `make_policy`'s.
        """
        env, params = envs_jax.make(self.env)
        limit = (settings.max_steps if settings else None) or self.max_steps
        if limit is not None:
            params = params.replace(max_steps=limit)
        return env, params, make_policy(env, params, **policy)

    def step_in(self, policy: Policy) -> float:
        """The exploration step size for a policy: `step`, and in another box than the published one the same part of
        it, to two digits."""
        share = 1.0 if policy.kind == "table" else (policy.high - policy.low) / (Policy.high - Policy.low)
        return float(f"{(self.step or 1.0) * share:.2g}")


def _results(**figures: tuple[float, float]) -> Mapping[str, tuple[float, float]]:
    """Published results by method; `props` and `plus` under the methods' names, baselines under their own."""
    return MappingProxyType({{"props": "ProPS", "plus": "ProPS+"}.get(k, k): v for k, v in figures.items()})


def _pair(
    optimum: float | None, plus_warmup: int = 20, plus_iterations: int = 400
) -> tuple[TaskSettings, TaskSettings]:
    """The settings of both methods, with the same optimum."""
    return TaskSettings(optimum), TaskSettings(optimum, plus_warmup, plus_iterations)


PUBLISHED: tuple[Task, ...] = (
    Task(
        "mountain_car_continuous", "Mountain Car (continuous)", "MountainCarContinuous-v0", 3, *_pair(100, 0),
        published=_results(SAC=(86.65, 0.84), PPO=(78.16, 5.32), props=(87.21, 29.28), plus=(89.16, 29.72)),
    ),
    Task(
        "inverted_pendulum", "Inverted Pendulum", "InvertedPendulum-v5", 5, *_pair(1000), bound=1000,
        published=_results(TRPO=(571.31, 358.88), PPO=(218.65, 129.31), props=(1000.0, 0.0), plus=(1000.0, 0.0)),
    ),
    Task(
        "inverted_double_pendulum", "Inverted Double Pendulum", "InvertedDoublePendulum-v5", 10, *_pair(10000),
        step=0.1,
        published=_results(TRPO=(3609.37, 4000.04), PPO=(108.60, 4.12), props=(128.17, 24.52), plus=(148.39, 48.65)),
    ),
    Task(
        "reacher", "Reacher", "Reacher-v5", 22, *_pair(-5, 100), step=0.1,
        published=_results(PPO=(-7.32, 0.38), TRPO=(-8.93, 1.39), props=(-11.32, 1.37), plus=(-18.15, 22.06)),
    ),
    Task(
        "swimmer", "Swimmer", "Swimmer-v5", 18, *_pair(250, 100, 395), step=0.1,
        published=_results(TRPO=(52.96, 18.86), PPO=(39.40, 6.54), props=(218.83, 58.45), plus=(227.30, 56.23)),
    ),
    Task(
        "hopper", "Hopper", "Hopper-v5", 36, *_pair(1000, 100, 395), step=0.1,
        published=_results(TRPO=(716.90, 385.20), PPO=(351.75, 157.71), props=(284.16, 165.62), plus=(356.22, 292.35)),
    ),
    Task(
        "walker", "Walker", "Walker2d-v5", 108, *_pair(7000), step=0.1,
        published=_results(TRPO=(519.38, 73.15), PPO=(469.78, 159.17), props=(147.17, 81.20), plus=(126.75, 136.44)),
    ),
    Task(
        "frozen_lake", "Frozen Lake", "FrozenLake-v1", 16, *_pair(1.0, 0, 100), step=None, max_steps=100, bound=0.744,
        published=_results(TRPO=(0.22, 0.05), PPO=(0.16, 0.02), props=(0.57, 0.17), plus=(0.19, 0.05)),
    ),
    Task(
        "cliff_walking", "Cliff Walking", "CliffWalkingSlippery-v1", 48, TaskSettings(-15), TaskSettings(-50, 0, 100),
        step=None, max_steps=100, bound=-63.0,
        published=_results(TRPO=(-66.60, 13.61), PPO=(-94.35, 3.96), props=(-100.0, 0.0), plus=(-96.40, 22.90)),
    ),
    Task(
        "maze", "Maze", "maze-sample-3x3-v0", 9, TaskSettings(1.0), TaskSettings(0.9, 0, episodes=1, max_steps=20),
        step=None, bound=1 - 0.1 / 3,
        published=_results(A2C=(0.97, 0.0), TRPO=(0.97, 0.0), props=(0.55, 0.0), plus=(0.97, 0.0)),
    ),
    Task(  # every move takes a stick or ends the game: at most ten moves
        "nim", "Nim", "Nim-v0", 11, *_pair(1.0, 0), step=None, max_steps=10, bound=1.0,
        published=_results(A2C=(0.58, 0.10), TRPO=(0.50, 0.10), props=(0.33, 0.29), plus=(0.97, 0.09)),
    ),
    Task(
        "mountain_car", "Mountain Car (discrete)", "MountainCar-v0", 9, *_pair(-120, 0, 100),
        published=_results(DQN=(-194.36, 1.47), A2C=(-200.0, 0.0), props=(-126.11, 21.67), plus=(-116.71, 15.20)),
    ),
    Task(
        "navigation", "Navigation", "NavigationTrack-v0", 18, TaskSettings(2500), TaskSettings(4000, iterations=100),
        published=_results(
            TRPO=(4223.51, 19.70), PPO=(4127.43, 24.29), props=(2587.30, 707.55), plus=(2779.55, 270.65)
        ),
    ),
    Task(
        "pong", "Pong", "Pong-v0", 18, *_pair(3),
        published=_results(PPO=(2.29, 0.91), TRPO=(1.36, 1.05), props=(2.80, 0.26), plus=(2.99, 0.03)),
    ),
    Task(
        "cartpole", "Cart Pole", "CartPole-v1", 10, *_pair(500), bound=500,
        published=_results(TRPO=(465.34, 62.32), PPO=(365.86, 73.38), props=(478.27, 65.17), plus=(500.0, 0.0)),
    ),
)  # fmt: skip
"""The 15 tasks of the paper's table, in its order."""

UNPUBLISHED: tuple[Task, ...] = (
    Task("pendulum", "Pendulum", "Pendulum-v1", 4, *_pair(None)),
    Task("acrobot", "Acrobot", "Acrobot-v1", 21, *_pair(-100)),
    Task("half_cheetah", "Half Cheetah", "HalfCheetah-v5", 108, *_pair(4800), step=0.1),
    Task("taxi", "Taxi", "Taxi-v3", 500, *_pair(8), step=None),
    Task("cliff_walking_dry", "Cliff Walking, not slippery", "CliffWalking-v1", 48, *_pair(-13), step=None,
         max_steps=100, bound=-13),
    Task("blackjack", "Blackjack", "Blackjack-v1", 8, *_pair(None), max_steps=21),  # a 22nd card is bust
)  # fmt: skip
"""Tasks without published results. Optima are Gymnasium's reward thresholds, and the exact one for Cliff Walking."""

TASKS: dict[str, Task] = {task.name: task for task in PUBLISHED + UNPUBLISHED}
"""All of them, by name."""


def get(name: str) -> Task:
    """The task of that name or environment id; options of the environment may follow a question mark. With options,
    `bound` and `published` are unknown; the values in prompts do not change.

    **Raises:** `KeyError`, with the nearest name, for an unknown one."""
    name, _, query = name.partition("?")
    by_env = {task.env: task for task in TASKS.values()}
    if name not in TASKS and name not in by_env:
        hint = nearest(name, [*TASKS, *by_env])
        raise KeyError(f"there is no task {name!r}{hint} (there are {', '.join(TASKS)})")
    task = TASKS.get(name) or by_env[name]
    if not query:
        return task
    return replace(
        task,
        name=f"{task.name}?{query}",
        title=f"{task.title} ({query})",
        env=f"{task.env}?{query}",
        bound=None,
        published=MappingProxyType({}),
    )
