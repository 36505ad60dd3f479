"""MuJoCo tasks: evaluations of linear policies on two cores, compared with Gymnasium's two vector environments."""

from __future__ import annotations

import functools
import time

import jax
import numpy as np

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, compiled, rates, seconds
from benchmarks.props_evaluate import split
from llmrl_jax.agents.population import episode_keys, make_population_evaluator
from llmrl_jax.systems.props.policies import make_policy


TITLE = "MuJoCo tasks: policy evaluations, 64 policies x 20 episodes, compared with Gymnasium"

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
DIFFERENT = 8
"""Number of distinct policies; Gymnasium, which plays them in sequence, plays each once per repetition."""
BAR = 2
"""Target speed-up over either vector environment."""

BALANCED = (0.4, 6.0, 0.6, 2.5, 0.0)
"""InvertedPendulum's published parameters, whose episodes last until the time limit (props reference, section 8)."""


def ours(id: str, params: np.ndarray, episodes: int, steps: int) -> tuple[list[float], float]:
    """Samples of evaluations per second, and compile seconds; every repetition plays different episodes."""
    env, env_params = envs_jax.make(id)
    evaluate = make_population_evaluator(env, env_params.replace(max_steps=steps), make_policy(env, env_params))
    keys = [
        jax.vmap(lambda key: episode_keys(key, episodes))(jax.random.split(jax.random.key(i), len(params)))
        for i in range(REPEATS + 1)
    ]
    program, compile_seconds = compiled(lambda params, keys: evaluate(params, keys).returns, params, keys[0])
    turn = iter(keys)
    return rates(len(params), seconds(lambda: program(params, next(turn)))), compile_seconds


def gymnasium_vector(kind: str, id: str, params: np.ndarray, episodes: int, steps: int) -> list[float]:
    """One policy after the other in a vector environment with one environment per episode, until the last one ends.
    `kind`: `"SyncVectorEnv"`, in this process, or `"AsyncVectorEnv"`, each in a process of its own."""
    import gymnasium

    # forked from a server without devices: XLA's threads do not survive a fork
    context = {"context": "forkserver"} if kind == "AsyncVectorEnv" else {}
    make = functools.partial(gymnasium.make, id, max_episode_steps=steps)
    envs = getattr(gymnasium.vector, kind)([make] * episodes, **context)
    weights, bias = split(params, envs.single_observation_space.shape[0])
    samples = []
    for repeat in range(REPEATS + 1):
        started = time.perf_counter()
        for i in range(len(params)):
            obs, _ = envs.reset(seed=1000 * repeat + i)
            over = np.zeros(episodes, bool)
            while not over.all():
                obs, _, terminated, truncated, _ = envs.step((obs @ weights[i] + bias[i]).astype(np.float32))
                over |= terminated | truncated
        samples.append(len(params) / (time.perf_counter() - started))
    envs.close()
    return samples[1:]


def run(quick: bool) -> Result:
    """Policy evaluations per second: ours, SyncVectorEnv's, AsyncVectorEnv's."""
    policies, different, steps = (16, 2, 20) if quick else (POLICIES, DIFFERENT, STEPS)
    rows, bars = [], []
    cases = {f"{id}, first candidates": id for id in IDS} | {f"{IDS[0]}, candidates that balance": IDS[0]}
    for case, id in cases.items():
        policy = make_policy(*envs_jax.make(id))
        params = np.asarray(policy.sample(jax.random.key(0), different))
        if case.endswith("balance"):
            params = np.tile(np.float32(BALANCED), (different, 1))
        samples, compile_seconds = ours(id, np.tile(params, (policies // different, 1)), EPISODES, steps)
        rows.append(Row(case, OURS, "evaluations/s", samples, compile_seconds, "C MuJoCo"))
        mine = rows[-1].median
        for kind in ("SyncVectorEnv", "AsyncVectorEnv"):
            who = f"Gymnasium {kind}"
            rows.append(Row(case, who, "evaluations/s", gymnasium_vector(kind, id, params, EPISODES, steps)))
            ratio = mine / rows[-1].median
            bars.append(f"{case}: {ratio:.1f} times {who} (aim: {BAR}, {'met' if ratio >= BAR else 'missed'})")
    notes = [
        f"Linear policies of the published class, {EPISODES} episodes each, of {steps} steps at most; an evaluation is "
        f"all episodes of one policy, up to the last one's end. Ours: {policies} policies at once, in one program, "
        f"{different} different ones, each {policies // different} times. Gymnasium: those {different}, one after the "
        f"other, in a vector environment of {EPISODES}.",
        "All compute the same float64 physics in C MuJoCo: what differs is what is done around it, and which rows are "
        "still computed after their episode's end.",
    ]
    return Result(rows, bars, notes)
