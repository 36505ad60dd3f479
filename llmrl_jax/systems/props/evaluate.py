"""The returns of many policies over many episodes, as one program."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from envs_jax.env import Environment
from envs_jax.resets import select
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

FEWEST = 64
"""Rows below which gathering what still plays saves nothing."""

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


def make_evaluator(
    env: Environment, env_params: Any, policy: Policy, *, max_steps: int | None = None, gathers: int | None = None
) -> Evaluator:
    """Build `evaluate(params, keys) -> Evaluation`, pure and compiled.

    Every episode begins with a fresh reset and counts until it first ends; nothing is reset within. All play at once,
    until the last has ended; where a quarter still plays, it is gathered and goes on by itself. What a policy earns in
    an episode depends on its parameters and that episode's key alone, to the bit: not on how many others are evaluated
    beside it.

    **Arguments:** `env`, not batched, and its `env_params`; `policy`; `max_steps`, steps after which an episode is
    over whatever the world says, needed where `env_params` has no `max_steps`, or none in earnest; `gathers`, how
    many times what still plays is gathered at most. Each compiles the world's step once more. None: twice on a
    CPU, where a step costs what its rows cost, and never on an accelerator, where the length of the loop counts.

    `evaluate` takes `params`, float32 `[P, n]`, and typed `keys`: `[E]` for common random numbers (every policy plays
    the same episodes, which ranks them with less noise), or `[P, E]`.
    **Raises:** `ValueError` for a world that has no end, or for parameters or keys of the wrong shape.
    """
    limit = getattr(env_params, "max_steps", None) if max_steps is None else max_steps
    if limit is None or limit > LONGEST:
        raise ValueError(f"{env.id} has no time limit, so an episode might never end; pass max_steps")
    if limit < 1:
        raise ValueError(f"max_steps is {limit}; at least 1 is needed")

    if gathers is None:
        gathers = 2 if jax.default_backend() == "cpu" else 0
    if gathers < 0:
        raise ValueError(f"gathers is {gathers}; at least 0 is needed")
    episodes = jax.vmap(functools.partial(proceed, env, env_params, policy), in_axes=(0, 0, None, 0, 0))

    def play(params, keys, loop, gathers):
        """`(returns [B], lengths [B])` of `B` episodes; `loop` is where they are: `(t, obs, state, over, returns,
        lengths)`."""
        rows = len(keys)
        left = -(-rows // 4) if gathers and rows >= FEWEST else 0

        def step(loop):
            t, *before, over, returns, lengths = loop
            *after, reward, ended = episodes(params, keys, t, *before)
            # what has ended stands still: physics that runs on after a fall comes to huge numbers, slow to compute with
            obs, state = select(over, before, after)
            returns = jnp.where(over, returns, returns + reward)
            lengths = jnp.where(over, lengths, t + 1)
            return t + 1, obs, state, over | ended | (t + 1 >= limit), returns, lengths

        t, *loop = jax.lax.while_loop(lambda loop: jnp.sum(~loop[3]) > left, step, loop)
        *_, over, returns, lengths = loop
        if left:
            chosen = jnp.argsort(over)[:left]  # stable: what still plays comes first
            params, keys, loop = jax.tree.map(lambda x: x[chosen], (params, keys, loop))
            more = play(params, keys, (t, *loop), gathers - 1)
            returns, lengths = returns.at[chosen].set(more[0]), lengths.at[chosen].set(more[1])
        return returns, lengths

    @jax.jit
    def evaluate(params: Float[Array, "..."], keys: Key[Array, "..."]) -> Evaluation:
        if params.ndim != 2 or params.shape[1] != policy.num_params:
            raise ValueError(
                f"params are {list(params.shape)}; this {policy.kind} policy needs [P, {policy.num_params}]"
            )
        count, common = params.shape[0], keys.ndim == 1
        if keys.ndim not in (1, 2) or keys.shape[:-1] not in ((), (count,)):
            raise ValueError(f"keys are {list(keys.shape)}; they must be [E] or [P, E] with P = {count}")
        shape = (count, keys.shape[-1])
        start = jax.vmap(functools.partial(begin, env, env_params))(keys.reshape(-1))  # (obs, state)
        if common:
            keys, start = jax.tree.map(lambda x: jnp.tile(x, (count, *[1] * (x.ndim - 1))), (keys, start))
        keys, rows = keys.reshape(-1), math.prod(shape)
        blank = (jnp.zeros(rows, bool), jnp.zeros(rows, jnp.float32), jnp.zeros(rows, jnp.int32))
        loop = (jnp.int32(0), *start, *blank)
        returns, lengths = play(jnp.repeat(params, shape[1], axis=0), keys, loop, gathers)
        return Evaluation(returns.reshape(shape), lengths.reshape(shape))

    return evaluate
