"""Behaviour cloning of demonstrations: the stand-in for pre-training in runs that download nothing.

A language model brings to GLAM what it read; a model drawn at random has read nothing. Cloning the text
demonstrations of a noisy expert gives it a prior of a chosen strength, which RL then improves. It is a stand-in, and
every summary calls it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from envs_jax.babyai.bot.expert import expert_action
from envs_jax.env import innermost
from envs_jax.resets import VectorEnv
from llmrl_jax import lm
from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.rl.learner import Learner


if TYPE_CHECKING:
    from llmrl_jax.systems.glam.build import Glam


@dataclass(frozen=True)
class CloneConfig:
    """How the prior is made."""

    updates: int = 60
    """Gradient steps."""
    batch_size: int = 512
    """Demonstrated steps per gradient step: one from each of so many environments."""
    stride: int = 4
    """Environment steps between two gradient steps, so that batches differ."""
    noise: float = 0.5
    """Probability with which the expert acts uniformly at random instead (the clone imitates that too)."""
    seen_only: bool = False
    """Whether the expert looks for a goal that is out of view, turning left, or knows where it is. What an expert
    does for reasons that the text does not show cannot be learnt from it."""
    learning_rate: float = 3e-3
    """Adam, after 10% of warm-up, decayed by a cosine to zero."""
    max_grad_norm: float = 1.0
    """Global norm to which gradients are clipped."""


@struct.dataclass
class CloneState:
    """Everything that cloning carries from update to update."""

    params: Any
    frozen: Any
    opt_state: Any
    env_state: Any
    obs: Any
    key: jax.Array
    update: jax.Array


def make_clone(
    config: CloneConfig,
    env: Any,
    env_params: Any,
    policy: ScoringPolicy,
    base: Any = None,
) -> Learner:
    """A learner whose update imitates one batch of demonstrations.

    **Arguments:** `env`, wrapped as for RL, not batched; `policy`, with every weight tuned (no adapters); `base`,
    weights of the model to begin with, None: at random.
    The loss is the negative log-probability of the demonstrated action's tokens after the prompt, as in supervised
    fine-tuning, so the model learns to write actions, not merely to rank them. It is the expectation over the noisy
    expert's choice rather than one draw of it: the same gradient on average, with far less variance.
    `clone_agreement` is how often the clone's likeliest action is the expert's own.
    """
    num_actions = env.action_space(env_params).n
    batch = VectorEnv(env, config.batch_size, policy="pool", pool_size=config.batch_size)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, max(1, config.updates // 10), max(2, config.updates)
    )
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule))

    def expert(env_state: Any) -> jax.Array:
        best = jax.vmap(lambda state: expert_action(state, env, config.seen_only))(innermost(env_state.env))
        return jnp.minimum(best, num_actions - 1).astype(jnp.int32)

    def init(key: jax.Array) -> CloneState:
        env_key, model_key, run_key = jax.random.split(key, 3)
        obs, env_state = jax.jit(batch.reset)(env_key, env_params)
        fresh, frozen = policy.init(model_key, obs)
        begin = fresh if base is None else {**fresh, "params": jax.tree.map(jnp.copy, base)}
        return CloneState(begin, frozen, optimizer.init(begin), env_state, obs, run_key, jnp.int32(0))

    def loss_fn(params, frozen, obs, best):
        scores = policy.scores(params, frozen, obs).sum
        chosen = jnp.take_along_axis(scores, best[:, None], axis=1)[:, 0]
        expected = (1 - config.noise) * chosen + config.noise * jnp.mean(scores, axis=1)
        return -jnp.mean(expected), jnp.mean(jnp.argmax(scores, axis=-1) == best)

    def update(state: CloneState) -> tuple[CloneState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.update)

        def play(carry, t):
            obs, env_state = carry
            noise_key, pick_key, step_key = jax.random.split(jax.random.fold_in(key, t), 3)
            best = expert(env_state)
            random = jax.random.randint(pick_key, best.shape, 0, num_actions)
            action = jnp.where(jax.random.bernoulli(noise_key, config.noise, best.shape), random, best)
            obs, env_state, *_ = batch.step(step_key, env_state, action, env_params)
            return (obs, env_state), None

        (obs, env_state), _ = jax.lax.scan(play, (state.obs, state.env_state), jnp.arange(config.stride))
        env_state = batch.refresh(jax.random.fold_in(key, config.stride), env_state, env_params)
        best = expert(env_state)
        (loss, agreement), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, state.frozen, obs, best)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        state = state.replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            env_state=env_state,
            obs=obs,
            update=state.update + 1,
        )
        return state, {"clone_loss": loss, "clone_agreement": agreement, "grad_norm": optax.tree.norm(grads)}

    return Learner(init=init, update=update, steps_per_update=config.batch_size * config.stride)


def save_prior(folder: str | Path, glam: Glam, params: Any, end_tokens: Sequence[int] = ()) -> Path:
    """Write what was cloned as an ordinary model folder, tokenizer included, for `--model FOLDER`.

    **Arguments:** `folder`, which does not exist yet; `glam`, the program that was cloned; `params`, the base;
    `end_tokens`, see `lm.save_hf`.
    """
    path = lm.save_hf(folder, glam.policy.model.config, params, end_tokens=end_tokens)
    glam.tokenizer.save(path)  # type: ignore[attr-defined]
    return path
