"""MuJoCo tasks: evaluations of linear policies, compared with Gymnasium's vector environments, and with the raw
physics of `mujoco.rollout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, seconds, speedup, threads
from benchmarks.mujoco_rollout import rollout_samples
from benchmarks.processes import peer_rows, together
from benchmarks.props_evaluate import split
from benchmarks.python_peers import vector_policies
from llmrl_jax.agents.population import episode_keys, make_population_evaluator
from llmrl_jax.systems.props.policies import make_policy


TITLE = "MuJoCo tasks: policy evaluations, 64 policies x 20 episodes, compared with Gymnasium and mujoco.rollout"

IDS = (
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "HalfCheetah-v5",
)
POLICIES, EPISODES, STEPS = 64, 20, 100
GYM = "Gymnasium"
DIFFERENT = 8
"""Number of distinct policies; Gymnasium, which plays them in sequence, plays each once per repetition."""
BAR = 2
"""Target speed-up over the fastest of Gymnasium's rows."""

ROLLOUT_CALLS = (
    "One call of `mujoco.rollout` computes one number of steps for all of its rows. So it is called once for each "
    "length that an episode has (dozens where policies fall), and every call waits for its slowest thread: where "
    "lengths differ, its figure is below what one call for all rows can reach, and our part of it above."
)

BALANCED = (0.4, 6.0, 0.6, 2.5, 0.0)
"""InvertedPendulum's published parameters, whose episodes last until the time limit (`make_videos.py` of ProPS)."""


class Ours(NamedTuple):
    """Our evaluations of a case."""

    evaluations: list[float]
    """Samples of evaluations per second."""
    physics_steps: list[float]
    """Samples of MuJoCo's time steps per second, in the same repetitions."""
    compile_seconds: float
    threads: int


def ours(env: Any, env_params: Any, params: np.ndarray, keys: Sequence[jax.Array]) -> Ours:
    """Evaluate all policies once for each of `keys`, after the first; every repetition plays different episodes."""
    evaluate = make_population_evaluator(env, env_params, make_policy(env, env_params))

    def returns_and_steps(params: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        played = evaluate(params, keys)
        return played.returns, played.lengths.sum()

    program, compile_seconds = compiled(returns_and_steps, params, keys[0])
    turn, steps = iter(keys), []

    def once() -> Any:
        result = program(params, next(turn))
        steps.append(int(result[1]) * env.frame_skip)
        return result

    times = seconds(once, repeats=len(keys) - 1)
    physics = [count / took for count, took in zip(steps[1:], times)]
    return Ours(rates(len(params), times), physics, compile_seconds, env.physics.threads)


def gymnasium_rows(case: str, id: str, params: np.ndarray, episodes: int, steps: int, window: float) -> list[Row]:
    """Gymnasium's evaluations per second: a SyncVectorEnv with an environment for each episode, in one process and in
    as many as there are cores, each with policies of its own; and an AsyncVectorEnv, a process for each episode."""
    env, env_params = envs_jax.make(id)
    parts = split(params, env.observation_space(env_params).shape[0])  # type: ignore[attr-defined]
    unit, sync = "evaluations/s", {"vectorization_mode": "sync", "max_episode_steps": steps}
    rows = peer_rows(case, f"{GYM} SyncVectorEnv", unit, vector_policies, (id, sync, episodes, *parts), window=window)
    # forked from a server without devices: XLA's threads do not survive a fork
    apart = sync | {"vectorization_mode": "async", "vector_kwargs": {"context": "forkserver"}}
    samples = together(vector_policies, (id, apart, episodes, *parts), 1, window, warmup=window / 2)
    return [*rows, Row(case, f"{GYM} AsyncVectorEnv", unit, samples, None, f"{episodes} processes of 1 thread")]


def run(quick: bool) -> Result:
    """Policy evaluations per second: ours, and Gymnasium's in three ways; and physics steps per second."""
    policies, different, steps = (16, 2, 20) if quick else (POLICIES, DIFFERENT, STEPS)
    rows, bars = [], []
    cases = {f"{id}, first candidates": id for id in IDS} | {f"{IDS[0]}, candidates that balance": IDS[0]}
    for case, id in list(cases.items())[-1:] if quick else cases.items():
        env, env_params = envs_jax.make(id)
        env_params = env_params.replace(max_steps=steps)
        params = np.asarray(make_policy(env, env_params).sample(jax.random.key(0), different))
        if case.endswith("balance"):
            params = np.tile(np.float32(BALANCED), (different, 1))
        all_params = np.tile(params, (policies // different, 1))
        keys = [
            jax.vmap(lambda key: episode_keys(key, EPISODES))(jax.random.split(jax.random.key(i), policies))
            for i in range(REPEATS + 1)
        ]
        mine = ours(env, env_params, all_params, keys)
        note = f"C MuJoCo, {threads(mine.threads)}"
        rows.append(Row(case, OURS, "evaluations/s", mine.evaluations, mine.compile_seconds, note))
        theirs = gymnasium_rows(case, id, params, EPISODES, steps, 0.2 if quick else 2.0)
        ratio, best = speedup(rows[-1:], theirs), fastest(theirs)
        rows += theirs
        bars.append(f"{case}: {ratio:.1f} times {best.who} ({best.note}) {aim(ratio, BAR)}")
        physics = f"{case}: physics steps"
        raw = rollout_samples(env, env_params, all_params, keys[-1], steps)
        rows += [
            Row(physics, OURS, "physics steps/s", mine.physics_steps, None, f"in the evaluations above; {note}"),
            Row(physics, "mujoco.rollout", "physics steps/s", raw, None, f"open loop; {threads(mine.threads)}"),
        ]
        part = speedup(rows[-2:-1], rows[-1:]).value
        bars.append(f"{case}: our evaluations reach {part:.0%} of the physics steps per second of mujoco.rollout")
    notes = [
        f"Linear policies of the published class, {EPISODES} episodes each, of {steps} steps at most; an evaluation is "
        f"all episodes of one policy, up to the last one's end. Ours: {policies} policies at once, in one program, "
        f"{different} different ones, each {policies // different} times. Gymnasium: those {different}, one after the "
        f"other, in a vector environment of {EPISODES}; a sample is whole rounds of them, for two seconds.",
        "All compute the same float64 physics in C MuJoCo: what differs is what is done around it, how many threads do "
        "it, and which rows are still computed after their episode's end.",
        "`mujoco.rollout` is the C library's own batch of open-loop rollouts. It repeats the physics of one of our "
        "repetitions, from the same states with the recorded actions and as many time steps, without policies, "
        "observations, rewards, terminations or stored states; that it ends in the same states, to the bit, is checked "
        "first. Ours counts the same time steps, over the whole duration of an evaluation, resets included.",
        ROLLOUT_CALLS,
    ]
    return Result(rows, bars, notes)
