"""A linear policy, learned by PPO: a whole policy in one file, for `test_additions.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.policy import Policy, masked_categorical
from llmrl_jax.rl.ppo import PPOConfig, make_ppo


class Linear(Policy):
    """Logits and a value that are linear in the observation."""

    def __init__(self, actions: int):
        self.actions = actions

    def init(self, key, obs):
        return {"logits": jnp.zeros((obs.shape[-1], self.actions)), "value": jnp.zeros(obs.shape[-1])}, ()

    def unroll(self, params, frozen, obs, carry, first):
        return masked_categorical(obs @ params["logits"], obs), obs @ params["value"]

    def step(self, params, frozen, obs, carry, first):
        return *self.unroll(params, frozen, obs, carry, first), carry


def learned_return() -> float:
    """The mean return of the episodes of the last of 20 updates."""
    env, env_params = envs_jax.make("TwoDoors-v0")
    config = PPOConfig(num_envs=16, num_steps=16, learning_rate=0.05)
    learner = make_ppo(config, EpisodeStatistics(env), env_params, Linear(2))
    state, update = learner.init(jax.random.key(0)), jax.jit(learner.update)
    for _ in range(20):
        state, metrics = update(state)
    return float(metrics["episode_return"])
