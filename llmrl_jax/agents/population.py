"""The returns of many parameter vectors over many episodes, in one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from envs_jax import tracing
from envs_jax.env import Environment
from llmrl_jax.agents.play import Actor, EpisodeBatch, advance, begin
from llmrl_jax.core.checks import at_least


class VectorPolicy(Protocol):
    """Policy whose parameters are one vector; it is deterministic and has no memory."""

    @property
    def kind(self) -> str:
        """Name in messages."""
        ...

    @property
    def num_params(self) -> int:
        """`n`, the length of the vector."""
        ...

    def act(self, params: Float[Array, " n"], obs: Any) -> Any:
        """Action for one observation."""


@struct.dataclass
class Evaluation:
    """Results of `P` policies in `E` episodes each."""

    returns: Float[Array, "P E"]
    """Undiscounted sums of rewards."""
    lengths: Int[Array, "P E"]
    """Episode lengths in steps."""

    @property
    def mean(self) -> Float[Array, " P"]:
        """Mean return of each policy, passed to the optimizer."""
        return jnp.mean(self.returns, axis=1)


Evaluator = Callable[[Float[Array, "P n"], Key[Array, "..."]], Evaluation]
"""`evaluate(params[P, n], keys)`, see `make_population_evaluator`."""

FEWEST = 64
"""Number of rows below which gathering unfinished episodes saves nothing."""

LONGEST = 1_000_000
"""Larger time limits count as none: a device program that waits for the end of an episode cannot be stopped."""


def episode_keys(key: jax.Array, episodes: int) -> Key[Array, " E"]:
    """One key per episode; that of episode `i` depends only on `key` and `i`."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))


def vector_actor(policy: VectorPolicy, params: Float[Array, "B n"]) -> Actor:
    """The actor whose row `i` uses the parameters `params[i]`. It is deterministic."""
    return Actor(lambda obs, carry, first, keys: (jax.vmap(policy.act)(params, obs), carry, ()), draws=False)


def step_limit(env: Environment, env_params: Any, max_steps: int | None = None) -> int:
    """Steps after which an episode ends: `max_steps`, or the environment's own limit if that is None.

    **Raises:** `ValueError` if there is no limit, or it is below 1.
    """
    limit = getattr(env_params, "max_steps", None) if max_steps is None else max_steps
    if limit is None or limit > LONGEST:
        raise ValueError(f"{env.id} has no time limit, so an episode might never end; pass max_steps")
    at_least("max_steps", limit, 1)
    return int(limit)


def make_population_evaluator(
    env: Environment,
    env_params: Any,
    policy: VectorPolicy,
    *,
    max_steps: int | None = None,
    gathers: int | None = None,
) -> Evaluator:
    """Build `evaluate(params, keys) -> Evaluation`, pure and compiled.

    Every episode starts with a reset and counts until it first ends, without automatic resets. All are played at once
    until the last has ended; when a quarter is unfinished, those rows are gathered and continue alone. A policy's
    return in an episode depends only on its parameters and the episode's key, bit-identically for any number of others
    evaluated with it.

    **Arguments:** `env`, not batched, and its `env_params`; `policy`; `max_steps`, steps after which an episode always
    ends, needed if `env_params` has no `max_steps`, or one above `LONGEST`; `gathers`, the maximum number of gathers of
    unfinished episodes. Each compiles the environment's step once more. None: two on a CPU, where the cost of a step is
    proportional to its rows, and none on an accelerator, where the length of the loop dominates.

    `evaluate` takes `params`, float32 `[P, n]`, and typed `keys`: `[E]` for common random numbers (every policy plays
    the same episodes, which ranks them with less noise), or `[P, E]`.
    **Raises:** `ValueError` for an environment without a time limit, or for parameters or keys of the wrong shape.
    """
    limit = step_limit(env, env_params, max_steps)
    if gathers is None:
        gathers = 2 if tracing.platform() == "cpu" else 0
    at_least("gathers", gathers, 0)

    def play(params: jax.Array, rows: EpisodeBatch, returns: jax.Array, gathers: int) -> tuple[jax.Array, jax.Array]:
        """`(returns [B], lengths [B])` of the episodes in `rows`, with `returns` so far."""
        count = params.shape[0]
        left = -(-count // 4) if gathers and count >= FEWEST else 0
        actor = vector_actor(policy, params)

        def step(loop):
            before, returns = loop
            rows, step = advance(env, env_params, actor, before, limit)
            return rows, jnp.where(before.done, returns, returns + step.reward)

        rows, returns = tracing.while_loop(lambda loop: jnp.sum(~loop[0].done) > left, step, (rows, returns))
        lengths = rows.t
        if left:
            chosen = jnp.argsort(rows.done)[:left]  # stable: unfinished rows come first
            params, rows, earned = jax.tree.map(lambda x: x[chosen], (params, rows, returns))
            later, ends = play(params, rows, earned, gathers - 1)
            returns, lengths = returns.at[chosen].set(later), lengths.at[chosen].set(ends)
        return returns, lengths

    @jax.jit
    @tracing.default_types
    def evaluate(params: Float[Array, "..."], keys: Key[Array, "..."]) -> Evaluation:
        if params.ndim != 2 or params.shape[1] != policy.num_params:
            raise ValueError(
                f"params are {list(params.shape)}; this {policy.kind} policy needs [P, {policy.num_params}]"
            )
        count, common = params.shape[0], keys.ndim == 1
        if keys.ndim not in (1, 2) or keys.shape[:-1] not in ((), (count,)):
            raise ValueError(f"keys are {list(keys.shape)}; they must be [E] or [P, E] with P = {count}")
        shape = (count, keys.shape[-1])
        pairs = jax.vmap(jax.random.split)(keys.reshape(-1))
        rows = begin(env, env_params, vector_actor(policy, params), pairs[:, 0], pairs[:, 1])
        if common:  # one reset serves every policy
            rows = jax.tree.map(lambda x: jnp.tile(x, (count, *[1] * (x.ndim - 1))), rows)
        params = jnp.repeat(params, shape[1], axis=0)
        returns, lengths = play(params, rows, jnp.zeros(params.shape[0], jnp.float32), gathers)
        return Evaluation(returns.reshape(shape), lengths.reshape(shape))

    return evaluate
