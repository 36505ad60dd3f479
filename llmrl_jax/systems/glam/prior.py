"""A prior by imitation: the stand-in for pre-training in runs that download nothing.

GLAM relies on the knowledge of a pre-trained language model; a randomly initialised model has none. Imitating a noisy
expert in the text environment gives it a prior of adjustable strength, which RL then improves. Every summary states
that it is a stand-in. Imitation of recorded demonstrations is `llmrl_jax.systems.glam.cloning`.
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

from llmrl_jax import lm
from llmrl_jax.agents.expert import NoisyExpert
from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.core.checks import Checked, Fraction, PositiveFloat, PositiveInt, PositiveOrInf
from llmrl_jax.core.learner import Learner
from llmrl_jax.tuning.sft import SFTConfig, learning_rates


if TYPE_CHECKING:
    from llmrl_jax.systems.glam.build import Glam


@dataclass(frozen=True)
class PriorConfig(Checked):
    """Settings of the prior."""

    updates: PositiveInt = 60
    """Number of gradient steps."""
    batch_size: PositiveInt = 512
    """Demonstrated steps per gradient step, one from each of as many environments."""
    stride: PositiveInt = 4
    """Environment steps between two gradient steps, so that batches differ."""
    noise: Fraction = 0.5
    """Probability that the expert acts uniformly at random (the prior imitates that too)."""
    seen_only: bool = False
    """Whether the expert searches for a goal out of view by turning left (true) or knows its position (false). Actions
    that depend on information absent from the text cannot be learnt."""
    learning_rate: PositiveFloat = 3e-3
    """Adam's learning rate, with 10% warm-up and cosine decay to zero at the last update."""
    max_grad_norm: PositiveOrInf = 1.0
    """Maximum global gradient norm; inf: none."""


@struct.dataclass
class PriorState:
    """State of imitation learning between updates."""

    params: Any
    frozen: Any
    opt_state: Any
    env_state: Any
    obs: Any
    key: jax.Array
    update: jax.Array


def step_sizes(config: PriorConfig) -> optax.Schedule:
    """The step size of each update: above 0 at the first, the whole one after the warm-up, 0 at the last."""
    how = SFTConfig(learning_rate=config.learning_rate, schedule="cosine", warmup=0.1, final_fraction=0.0)
    return learning_rates(how, config.updates)


def make_prior(config: PriorConfig, env: Any, env_params: Any, policy: ScoringPolicy, base: Any = None) -> Learner:
    """A learner whose update is one gradient step on a batch of demonstrations.

    **Arguments:** `env`, wrapped as for RL, not batched; `policy`, with every weight tuned (no adapters); `base`,
    initial weights of the model, None: random. The loss is the negative log-probability of the demonstrated action's
    tokens after the prompt, as in supervised fine-tuning, so the model learns to generate actions, not only to rank
    them. It is the expectation over the noisy expert's choice instead of a sample of it: the same gradient on average,
    with far less variance. `agreement` is the rate at which the model's most likely action is the expert's own
    (noise-free) one.
    """
    expert = NoisyExpert(env, env_params, config.batch_size, config.noise, config.seen_only)
    schedule = step_sizes(config)
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule))

    def init(key: jax.Array) -> PriorState:
        env_key, model_key, run_key = jax.random.split(key, 3)
        obs, env_state = expert.reset(env_key)
        drawn, frozen = policy.init(model_key, obs)
        params = drawn if base is None else {**drawn, "params": jax.tree.map(jnp.copy, base)}
        return PriorState(params, frozen, optimizer.init(params), env_state, obs, run_key, jnp.int32(0))

    def loss_fn(params, frozen, obs, best):
        scores = policy.scores(params, frozen, obs).sum
        chosen = jnp.take_along_axis(scores, best[:, None], axis=1)[:, 0]
        expected = (1 - config.noise) * chosen + config.noise * jnp.mean(scores, axis=1)
        return -jnp.mean(expected), jnp.mean(jnp.argmax(scores, axis=-1) == best)

    def update(state: PriorState) -> tuple[PriorState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.update)
        keys = jax.vmap(lambda t: jax.random.fold_in(key, t))(jnp.arange(config.stride + 1))
        obs, env_state = expert.play(keys[:-1], keys[-1], state.obs, state.env_state)
        best = expert.best(env_state)
        (loss, agreement), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, state.frozen, obs, best)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        state = state.replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            env_state=env_state,
            obs=obs,
            update=state.update + 1,
        )
        return state, {"loss": loss, "agreement": agreement, "grad_norm": optax.tree.norm(grads)}

    return Learner(init=init, update=update, steps_per_update=config.batch_size * config.stride)


def save_prior(folder: str | Path, glam: Glam, params: Any, end_tokens: Sequence[int] = ()) -> Path:
    """Write base weights as an ordinary model folder with tokenizer, for `--model FOLDER`.

    **Arguments:** `folder`, which must not exist; `glam`, the trained program; `params`, the base; `end_tokens`, see
    `lm.save_hf`.
    """
    path = lm.save_hf(folder, glam.policy.model.config, params, end_tokens=end_tokens)
    glam.tokenizer.save(path)  # type: ignore[attr-defined]
    return path
