"""REINFORCE (Williams, 1992) with a value baseline: a whole algorithm in one file, for `test_additions.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax.resets import VectorEnv
from llmrl_jax.core.checks import Fraction, NonNegativeFloat, PositiveInt, PositiveOrInf
from llmrl_jax.core.learner import Learner
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.gradient import AdamConfig, apply_gradients, clipped_adam, traced_floats
from llmrl_jax.rl.networks import network_policy
from llmrl_jax.rl.registry import Algorithm
from llmrl_jax.rl.rollout import Runner, collect, episode_metrics, gae, shard_runner, start, task_names, with_pool


@dataclass(frozen=True)
class ReinforceConfig(AdamConfig):
    """Hyper-parameters of REINFORCE."""

    PREFIX: ClassVar[str] = "reinforce."

    num_envs: PositiveInt = 16
    """Environments played at once."""
    num_steps: PositiveInt = 8
    """Steps per environment and update."""
    gamma: Fraction = 0.9
    """Discount per step."""
    learning_rate: NonNegativeFloat = 0.02
    max_grad_norm: PositiveOrInf = 1.0
    adam_eps: NonNegativeFloat = 1e-8


@struct.dataclass
class ReinforceState:
    """Everything that REINFORCE carries from update to update."""

    params: Any
    frozen: Any
    opt_state: Any
    runner: Runner
    hparams: dict[str, jax.Array]
    key: jax.Array
    update: jax.Array


def make_reinforce(config: ReinforceConfig, env: Any, env_params: Any, policy: Any, mesh: Any = None) -> Learner:
    """Build REINFORCE as a `Learner`."""
    vector = VectorEnv(env, config.num_envs, policy="pool", pool_size=config.num_envs)
    placement = Placement(mesh)

    def init(key: jax.Array) -> ReinforceState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(vector, env_params, policy, env_key)
        params, frozen = policy.init(policy_key, runner.obs)
        hparams = traced_floats(config)
        opt_state = clipped_adam(hparams).init(params)
        return ReinforceState(
            params, frozen, opt_state, shard_runner(runner, placement), hparams, run_key, jnp.int32(0)
        )

    def loss_fn(params: Any, state: ReinforceState, rollout: Any) -> jax.Array:
        seen = (params, state.frozen, rollout.obs, rollout.carry, rollout.first)
        distribution, value = policy.unroll(*seen)
        ends = (rollout.next_value, rollout.terminated, rollout.truncated)
        advantage, returns = gae(rollout.reward, rollout.value, *ends, state.hparams["gamma"], 1.0)
        return jnp.mean((value - returns) ** 2) - jnp.mean(distribution.log_prob(rollout.action) * advantage)

    def update(state: ReinforceState) -> tuple[ReinforceState, dict[str, jax.Array]]:
        pool_key, key = jax.random.split(jax.random.fold_in(state.key, state.update))
        started = with_pool(vector, state.runner, pool_key, state.update, 1)  # new episodes
        seen = (state.params, state.frozen, started, key)
        runner, rollout = collect(vector, policy, *seen, config.num_steps)
        loss, grads = jax.value_and_grad(loss_fn)(state.params, state, rollout)
        optimizer, rate = clipped_adam(state.hparams), state.hparams["learning_rate"]
        params, opt_state, norm = apply_gradients(optimizer, state.params, grads, state.opt_state, rate)
        done = rollout.terminated | rollout.truncated
        metrics = {"loss": loss, "grad_norm": norm, **episode_metrics(rollout.info, done, task_names(env))}
        state = state.replace(params=params, opt_state=opt_state, runner=runner, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    return Learner(init, update, config.num_envs * config.num_steps)


ALGORITHM = Algorithm(ReinforceConfig, make_reinforce, network_policy)
