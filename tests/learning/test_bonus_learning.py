"""Novelty finds a reward that PPO alone never sees, and does no harm when nothing is new."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control.debug import Corridor, DebugParams
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.novelty import RND, NovelD, NovelDConfig, RNDConfig
from llmrl_jax.rl.ppo import PPOConfig, make_ppo


PPO = PPOConfig(num_envs=16, num_steps=64, learning_rate=1e-3, pool_size=1)
NOVELTY = RNDConfig(outputs=32, hidden=32, learning_rate=1e-3)


def explore(seeds, coefs, updates):
    """Return whether the world's reward was reached, and its mean over the last 10 updates, by seed and by the weight
    of novelty: one program for all. Without weight PPO's update is what it is without a bonus (tests/unit/rl)."""
    env, params = envs_jax.make("Debug-Corridor-v0")
    policy = NetworkPolicy(env.action_space(params), hidden=(64,))
    ppo = make_ppo(PPO, EpisodeStatistics(env), params, policy, bonus=RND(NOVELTY))

    def weighted(state, coef):
        whole = state.bonus.whole
        whole = whole | {"hparams": whole["hparams"] | {"coef": coef}}
        return state.replace(bonus=state.bonus.replace(whole=whole))

    runs = [(seed, coef) for seed in seeds for coef in coefs]
    init = jax.jit(ppo.init)
    first = {seed: init(jax.random.key(seed)) for seed in seeds}
    states = [weighted(first[seed], jnp.float32(coef)) for seed, coef in runs]
    states = jax.tree.map(lambda *x: jnp.stack(x), *states)
    train = jax.jit(lambda s: jax.lax.scan(lambda s, _: jax.vmap(ppo.update)(s), s, None, length=updates))
    success = np.nan_to_num(np.asarray(train(states)[1]["success"]))  # nan where no episode ended
    return {run: (success[:, i].max(), success[-10:, i].mean()) for i, run in enumerate(runs)}


@pytest.mark.slow
def test_novelty_solves_a_corridor_where_ppo_alone_never_sees_a_reward():
    found = explore(seeds=(0,), coefs=(1.0, 0.0), updates=50)
    assert found[0, 0.0] == (0, 0)
    assert found[0, 1.0][1] > 0.9  # the optimum is 1


def farthest(forward, steps):
    """The expected farthest cell of an episode, exactly. **Arguments:** `forward`, the probability of a step forward in
    each cell, of which the last ends the episode."""
    n = len(forward)
    at = np.zeros((n, n))  # probability of a cell and of the farthest one so far
    at[0, 0] = 1
    for _ in range(steps):
        before, at = at, np.zeros((n, n))
        at[-1] = before[-1]
        for cell, far in zip(*np.nonzero(before[:-1])):
            at[cell + 1, max(far, cell + 1)] += before[cell, far] * forward[cell]
            at[max(cell - 1, 0), far] += before[cell, far] * (1 - forward[cell])
    return at.sum(axis=0) @ np.arange(n)


def test_farthest_by_hand():
    assert farthest(np.ones(4), 3) == 3 and farthest(np.zeros(4), 3) == 0
    assert farthest(np.full(4, 0.5), 2) == pytest.approx(0.25 * 0 + 0.5 * 1 + 0.25 * 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rnd", "noveld"])
def test_agents_stay_as_curious_as_random_play_when_nothing_is_new(kind):
    """Twelve cells are soon known. Advantages are then noise; normalised to a deviation of 1, it made agents stay at
    the start, at most 1 cell from it, where random play reaches 6.7."""
    cells, length = 12, 40
    env, params = Corridor(cells), DebugParams(length=np.int32(length))
    policy = NetworkPolicy(env.action_space(params), hidden=(64,))
    sizes = {"outputs": 32, "hidden": 32, "learning_rate": 1e-3, "extrinsic_coef": 0.0}
    bonus = RND(RNDConfig(**sizes)) if kind == "rnd" else NovelD(NovelDConfig(**sizes))
    ppo = make_ppo(PPO, EpisodeStatistics(env), params, policy, bonus=bonus)
    train = jax.jit(lambda s: jax.lax.scan(lambda s, _: jax.vmap(ppo.update)(s), s, None, length=120)[0])
    states = train(jax.jit(jax.vmap(ppo.init))(jax.random.split(jax.random.key(0), 4)))

    def zeroth(state):
        first = jnp.zeros(cells, bool)
        return jnp.exp(policy.step(state.params, state.frozen, jnp.eye(cells), (), first)[0].log_prob(first + 0))

    zero = np.asarray(jax.jit(jax.vmap(zeroth))(states))  # the probability of action 0
    random = farthest(np.full(cells, 0.5), length)
    assert random == pytest.approx(6.7, abs=0.1)
    reached = [farthest(np.where(env.onward == 0, p, 1 - p), length) for p in zero]
    assert min(reached) > 0.7 * random
