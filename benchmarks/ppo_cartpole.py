"""PPO on CartPole-v1 with purejaxrl's settings, 500,000 steps, compared with rejax."""

from __future__ import annotations

import dataclasses
import statistics

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import OURS, REPEATS, Figure, Result, Row, aim, compiled, rates, run_peer, seconds, speedup
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo


TITLE = "PPO: CartPole-v1, 500,000 steps in 4 environments, compared with rejax"

CASE = "PPO CartPole-v1, 4 environments x 128 steps"
STEPS = 500_000
BAR_RETURN = 495


def ours(steps: int, repeats: int) -> tuple[list[float], float, list[float]]:
    """Samples of steps per second, compile seconds, and the mean return of each run's last episodes."""
    updates = steps // 512
    env, params = envs_jax.make("CartPole-v1")
    config = PPOConfig(
        num_envs=4,
        num_steps=128,
        unroll=4,
        epochs=4,
        minibatches=4,
        learning_rate=2.5e-4,
    )
    learner = make_ppo(config, EpisodeStatistics(env), params, NetworkPolicy(env.action_space(params)))
    state = learner.init(jax.random.key(0))

    def train(key):
        def one(state, _):
            state, metrics = learner.update(state)
            return state, (metrics["episodes"], metrics["episode_return"])

        _, (count, mean) = jax.lax.scan(one, state.replace(key=key), None, length=updates)
        last = jnp.arange(updates) >= updates - 50
        return jnp.sum(jnp.where(last & (count > 0), count * mean, 0)) / jnp.sum(jnp.where(last, count, 0))

    program, compile_seconds = compiled(train, jax.random.key(0))
    returns: list[float] = []

    def once():
        returns.append(float(program(jax.random.key(len(returns)))))
        return returns[-1]

    times = seconds(once, repeats=repeats)
    return rates(updates * 512, times), compile_seconds, returns[1:]


def run(quick: bool) -> Result:
    """Steps per second of training, and the final return; ours is measured between two halves of rejax's runs."""
    steps = 51_200 if quick else STEPS
    half = (REPEATS + 1) // 2
    before = run_peer("peer_ppo_cartpole.py", str(steps), str(half))
    samples, compile_seconds, returns = ours(steps, 2 * half)
    after = run_peer("peer_ppo_cartpole.py", str(steps), str(half))
    theirs = before["samples"] + after["samples"]
    their_returns = before["returns"] + after["returns"]
    rows = [
        Row(CASE, OURS, "steps/s", samples, compile_seconds, f"return {statistics.mean(returns):.0f}"),
        Row(
            CASE,
            "rejax 0.1.3",
            "steps/s",
            theirs,
            before["compile_seconds"],
            f"return {statistics.mean(their_returns):.0f}",
        ),
    ]
    ratio, spread = speedup(rows[:1], rows[1:]), Figure.of(returns)
    reached = dataclasses.replace(spread, value=statistics.mean(returns))
    bars = [
        f"{ratio:.2f} times rejax's steps per second {aim(ratio, 1)}",
        f"mean return {reached:.1f} of at most 500, over {len(returns)} seeds {aim(reached, BAR_RETURN)}",
    ]
    notes = [
        "Both: 4 environments x 128 steps, 4 epochs, 4 minibatches, learning rate 2.5e-4, two tanh layers of 64; "
        "every seed is one call of one compiled program; rejax runs half before ours and half after. "
        "Our rollout's loop is unrolled four times (`unroll`).",
        "Ours resets from a pool of 256 episodes, renewed in every update; rejax makes a reset for every row and step.",
        "Returns: ours of the episodes that ended in the last 50 updates, rejax's of its own 128 evaluation episodes.",
    ]
    return Result(rows, bars, notes)
