"""Policy evaluations in a search over linear policies, compared with Gymnasium and gymnax."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, run_peer, seconds, speedup
from benchmarks.processes import peer_rows
from benchmarks.python_peers import vector_policies, vector_populations
from llmrl_jax.agents.population import episode_keys, make_population_evaluator
from llmrl_jax.systems.props import tasks


TITLE = "ProPS: policy evaluations, 64 policies x 20 episodes, compared with Gymnasium and gymnax"

POLICIES, EPISODES = 64, 20
SYNC, NUMPY = "Gymnasium SyncVectorEnv", "Gymnasium CartPoleVectorEnv"
FEATURES = {"cartpole": 4, "mountain_car": 2}
BAR = 40
"""Target speed-up over SyncVectorEnv."""

BALANCED = (-0.05, 0.05, -0.25, 0.25, -2, 2, -2.5, 2.5, 0.05, 0.06)
"""CartPole's published parameters, whose episodes last until the time limit (`make_videos.py` of ProPS)."""


def populations(count: int) -> dict[str, tuple[str, np.ndarray]]:
    """Case -> task, and float32 `[count, n]`: initial candidates, with short episodes if poles fall, and good ones,
    with long episodes."""
    first = {task: tasks.get(task).make()[2].sample(jax.random.key(0), count) for task in ("cartpole", "mountain_car")}
    good = np.tile(np.float32(BALANCED), (count, 1))
    return {
        "CartPole-v1, first candidates": ("cartpole", np.asarray(first["cartpole"])),
        "CartPole-v1, candidates that balance": ("cartpole", good),
        "MountainCar-v0, first candidates": ("mountain_car", np.asarray(first["mountain_car"])),
    }


def ours(task: str, params: np.ndarray, episodes: int) -> tuple[list[float], float]:
    """Samples of evaluations per second, and compile seconds; every repetition plays different episodes."""
    evaluate = make_population_evaluator(*tasks.get(task).make())
    keys = [episode_keys(jax.random.key(i), episodes) for i in range(REPEATS + 2)]
    program, compile_seconds = compiled(lambda params, keys: evaluate(params, keys).returns, params, keys[0])
    turn = iter(keys * 2)
    return rates(len(params), seconds(lambda: program(params, next(turn)), warmup=2)), compile_seconds


def split(params: np.ndarray, features: int) -> tuple[np.ndarray, np.ndarray]:
    """W `[P, S, A]` and b `[P, 1, A]` of linear policies."""
    actions = params.shape[1] // (features + 1)
    return params[:, : features * actions].reshape(-1, features, actions), params[:, None, features * actions :]


def run(quick: bool) -> Result:
    """Policy evaluations per second: ours, Gymnasium's two vector environments, gymnax's rollouts."""
    count, episodes = (8, 5) if quick else (POLICIES, EPISODES)
    rows, bars = [], []
    for case, (task, params) in populations(count).items():
        id = tasks.get(task).env
        samples, compile_seconds = ours(task, params, episodes)
        mine = Row(case, OURS, "evaluations/s", samples, compile_seconds)
        parts, unit = split(params, FEATURES[task]), "evaluations/s"
        window, note = 0.2 if quick else 2.0, "one policy after the other"
        how: dict[str, Any] = {"vectorization_mode": "sync"}
        peers = peer_rows(case, SYNC, unit, vector_policies, (id, how, episodes, *parts), window=window, note=note)
        if task == "cartpole":
            how, note = {"vectorization_mode": "vector_entry_point"}, "vectorised NumPy, all policies at once"
            args = (id, how, episodes, *parts)
            peers += peer_rows(case, NUMPY, unit, vector_populations, args, window=window, note=note)
        if not quick:
            with tempfile.TemporaryDirectory() as folder:
                np.save(Path(folder) / "params.npy", params)
                result = run_peer("peer_props.py", id, f"{folder}/params.npy", str(episodes), str(REPEATS))
            note = "every episode to the time limit"
            peers.append(Row(case, "gymnax 0.0.9", "evaluations/s", result["samples"], result["compile_seconds"], note))
        rows += [mine, *peers]
        for who in dict.fromkeys(peer.who for peer in peers):
            theirs = [peer for peer in peers if peer.who == who]
            ratio, best = speedup([mine], theirs), fastest(theirs).note
            bars.append(f"{case}: {ratio:.1f} times {who} ({best}) {aim(ratio, BAR if who == SYNC else 1)}")
    notes = [
        f"{count} linear policies of the published classes, {episodes} episodes each; an evaluation is all episodes of "
        "one policy. Every repetition starts its episodes from fresh resets; all stop with the last episode, except "
        "gymnax, whose rollout always takes as many steps as the time limit.",
        "gymnax: RolloutWrapper.population_rollout with the same parameters, returns only, so that XLA drops the rest.",
    ]
    return Result(rows, bars, notes)
