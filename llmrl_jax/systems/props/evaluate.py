"""The returns of many policies over many episodes, as one program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs_jax.env import Environment
from llmrl_jax.systems.props.policies import Policy


@struct.dataclass
class Evaluation:
    """What `P` policies earned in `E` episodes each."""

    returns: Float[Array, "P E"]
    """Undiscounted sums of rewards."""
    lengths: Int[Array, "P E"]
    """Steps."""

    @property
    def mean(self) -> Float[Array, " P"]:
        """The mean return of each policy: what is told to an optimizer."""
        return jnp.mean(self.returns, axis=1)


Evaluator = Callable[[Float[Array, "P n"], Key[Array, "..."]], Evaluation]
"""`evaluate(params[P, n], keys)`, see `make_evaluator`."""

LONGEST = 1_000_000
"""Time limits above it are taken for none: nothing can stop a program on a device that waits for an episode's end."""


def episode_keys(key: jax.Array, episodes: int) -> Key[Array, " E"]:
    """A key for each of `episodes` episodes; that of episode `i` depends on `key` and `i` alone."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))


def begin(env: Environment, env_params: Any, key: jax.Array) -> tuple[Any, Any]:
    """The first observation and state of the episode with that key."""
    return env.reset(jax.random.split(key)[0], env_params)


def proceed(
    env: Environment, env_params: Any, policy: Policy, params: Any, key: jax.Array, t: Any, obs: Any, state: Any
) -> tuple[Any, Any, jax.Array, jax.Array]:
    """Step `t`, from 0 on, of the episode with that key. **Returns:** `(obs, state, reward, ended)`."""
    step_key = jax.random.fold_in(jax.random.split(key)[1], t)
    obs, state, reward, terminated, truncated, _ = env.step(step_key, state, policy.act(params, obs), env_params)
    return obs, state, reward, terminated | truncated


def _spread(mask: Bool[Array, "P E"], ndim: int) -> Bool[Array, "P E ..."]:
    return mask.reshape(mask.shape + (1,) * (ndim - 2))


def make_evaluator(env: Environment, env_params: Any, policy: Policy, *, max_steps: int | None = None) -> Evaluator:
    """Build `evaluate(params, keys) -> Evaluation`, pure and compiled.

    Every episode begins with a fresh reset and counts until it first ends; nothing is reset within. All play at once,
    until the last has ended. What a policy earns in an episode depends on its parameters and that episode's key
    alone, to the bit: not on how many others are evaluated beside it.

    **Arguments:** `env`, not batched, and its `env_params`; `policy`; `max_steps`, steps after which an episode is
    over whatever the world says, needed where `env_params` has no `max_steps`, or none in earnest.

    `evaluate` takes `params`, float32 `[P, n]`, and typed `keys`: `[E]` for common random numbers (every policy plays
    the same episodes, which ranks them with less noise), or `[P, E]`.
    **Raises:** `ValueError` for a world that has no end, or for parameters or keys of the wrong shape.
    """
    limit = getattr(env_params, "max_steps", None) if max_steps is None else max_steps
    if limit is None or limit > LONGEST:
        raise ValueError(f"{env.id} has no time limit, so an episode might never end; pass max_steps")
    if limit < 1:
        raise ValueError(f"max_steps is {limit}; at least 1 is needed")

    @jax.jit
    def evaluate(params: Float[Array, "..."], keys: Key[Array, "..."]) -> Evaluation:
        if params.ndim != 2 or params.shape[1] != policy.num_params:
            raise ValueError(
                f"params are {list(params.shape)}; this {policy.kind} policy needs [P, {policy.num_params}]"
            )
        count, common = params.shape[0], keys.ndim == 1
        if keys.ndim not in (1, 2) or keys.shape[:-1] not in ((), (count,)):
            raise ValueError(f"keys are {list(keys.shape)}; they must be [E] or [P, E] with P = {count}")
        resets = jax.vmap(functools.partial(begin, env, env_params))
        obs, start = resets(keys) if common else jax.vmap(resets)(keys)
        if common:
            obs, start = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), (obs, start))
        episodes = jax.vmap(functools.partial(proceed, env, env_params, policy), in_axes=(None, 0, None, 0, 0))
        every = jax.vmap(episodes, in_axes=(0, None if common else 0, None, 0, 0))

        def step(loop):
            t, *before, over, returns, lengths = loop
            *after, reward, ended = every(params, keys, t, *before)
            # what has ended stands still: physics that runs on after a fall comes to huge numbers, slow to compute with
            obs, state = jax.tree.map(lambda old, new: jnp.where(_spread(over, old.ndim), old, new), before, after)
            returns = jnp.where(over, returns, returns + reward)
            lengths = jnp.where(over, lengths, t + 1)
            return t + 1, obs, state, over | ended | (t + 1 >= limit), returns, lengths

        shape = (count, keys.shape[-1])
        blank = (jnp.zeros(shape, bool), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))
        loop = (jnp.int32(0), obs, start, *blank)
        *_, returns, lengths = jax.lax.while_loop(lambda loop: ~jnp.all(loop[3]), step, loop)
        return Evaluation(returns, lengths)

    return evaluate
