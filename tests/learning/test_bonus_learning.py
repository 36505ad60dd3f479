"""Novelty finds a reward that PPO alone never sees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.rl.ppo_config import PPOConfig
from llmrl_jax.rl.rnd import RND, RNDConfig


PPO = PPOConfig(num_envs=16, num_steps=64, learning_rate=1e-3, pool_size=1)
NOVELTY = RNDConfig(outputs=32, hidden=32, learning_rate=1e-3)


def explore(seeds, coefs, updates):
    """Whether the world's reward was reached, and its mean over the last 10 updates, by seed and by the weight of
    novelty: one program for all. Without weight PPO's update is what it is without a bonus (tests/unit/rl)."""
    env, params = envs_jax.make("Debug-Corridor-v0")
    policy = NetworkPolicy(env.action_space(params), hidden=(64,))
    ppo = make_ppo(PPO, EpisodeStatistics(env), params, policy, bonus=RND(NOVELTY))

    def weighted(state, coef):
        whole = state.bonus.whole
        whole = whole | {"hparams": whole["hparams"] | {"coef": coef}}
        return state.replace(bonus=state.bonus.replace(whole=whole))

    runs = [(seed, coef) for seed in seeds for coef in coefs]
    first = {seed: ppo.init(jax.random.key(seed)) for seed in seeds}
    states = [weighted(first[seed], jnp.float32(coef)) for seed, coef in runs]
    states = jax.tree.map(lambda *x: jnp.stack(x), *states)
    train = jax.jit(lambda s: jax.lax.scan(lambda s, _: jax.vmap(ppo.update)(s), s, None, length=updates))
    success = np.nan_to_num(np.asarray(train(states)[1]["success"]))  # nan where no episode ended
    return {run: (success[:, i].max(), success[-10:, i].mean()) for i, run in enumerate(runs)}


def test_novelty_solves_a_corridor_where_ppo_alone_never_sees_a_reward():
    found = explore(seeds=(0,), coefs=(1.0, 0.0), updates=50)
    assert found[0, 0.0] == (0, 0)
    assert found[0, 1.0][1] > 0.9  # the optimum is 1
