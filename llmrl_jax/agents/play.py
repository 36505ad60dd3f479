"""Episodes in progress, one per row: the step shared by evaluation, demonstrations and recordings.

Two keys define an episode. The first resets the environment. The second is the key of its steps: step `t` uses only
`fold_in(key, t)`. So an episode depends only on its keys and on the policy's parameters: not on the number of rows, nor
on other rows. Callers schedule the rows: `llmrl_jax.agents.evaluate` refills them, `llmrl_jax.agents.population`
gathers the unfinished ones, `llmrl_jax.agents.demonstrations` refills them from the host, and
`llmrl_jax.agents.recording` has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from envs_jax import tracing
from envs_jax.env import Environment
from envs_jax.resets import select
from llmrl_jax.agents.contract import Player


@struct.dataclass
class Rows:
    """`B` episodes in progress."""

    key: Key[Array, " B"]
    """The key of each episode's steps."""
    t: Int[Array, " B"]
    """Steps taken so far."""
    obs: Any
    """The current observations, leaves `[B, ...]`."""
    state: Any
    """The environment's states, leaves `[B, ...]`."""
    carry: Any
    """The actor's memory, leaves `[B, ...]`."""
    over: Bool[Array, " B"]
    """Episodes that have ended. If `advance` holds them, `t`, `obs` and `state` stay at their final values."""


@struct.dataclass
class Step:
    """The results of one step of every row; undefined for rows that were over."""

    action: Any
    thought: Any
    """The actor's additional output, leaves `[B, ...]`."""
    reward: jax.Array
    """float32 `[B]`."""
    terminated: jax.Array
    truncated: jax.Array
    """bool `[B]`, from the environment."""
    info: Any
    ended: jax.Array
    """bool `[B]`, episodes that this step ended, by the environment or by `max_steps`."""


@dataclass(frozen=True)
class Actor:
    """A function that acts in all rows at once."""

    act: Callable[[Any, Any, Bool[Array, " B"], Any], tuple[Any, Any, Any]]
    """`(obs, carry, first, keys) -> (action, carry, thought)`; `first`, rows at the start of an episode."""
    initial_carry: Callable[[int], Any] = lambda rows: ()
    """The memory before an episode, for a number of rows."""
    draws: bool = True
    """Whether acting is random. If so, the key of each step is split into `keys`, one per row, and the environment's;
    if not, `keys` is None and the environment uses the key unsplit."""


def policy_actor(policy: Player, params: Any, frozen: Any, greedy: Any) -> Actor:
    """The actor of a policy; its `thought` is `(distribution, value)`.

    **Arguments:** `policy`, `params`, `frozen`, see `llmrl_jax.rl.policy.Policy`; `greedy`, bool `[]`, possibly traced:
    the mode of the distribution instead of a sample.
    """

    def act(obs, carry, first, keys):
        distribution, value, carry = policy.step(params, frozen, obs, carry, first)
        noise = jax.vmap(lambda one, key: one.noise(key))(distribution, keys)
        action = jnp.where(greedy, distribution.mode(), distribution.choose(noise))
        return action, carry, (distribution, value)

    return Actor(act, policy.initial_carry)


@tracing.default_types
def begin(
    env: Environment, env_params: Any, actor: Actor, reset_keys: Key[Array, " B"], step_keys: Key[Array, " B"]
) -> Rows:
    """Start `B` episodes. **Arguments:** `env`, not batched; the two keys of each episode."""
    count = reset_keys.shape[0]
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(reset_keys, env_params)
    blank = jnp.zeros(count, jnp.int32)
    return Rows(step_keys, blank, obs, state, actor.initial_carry(count), jnp.zeros(count, bool))


@tracing.default_types
def advance(
    env: Environment, env_params: Any, actor: Actor, rows: Rows, max_steps: int | None = None, *, hold: bool = True
) -> tuple[Rows, Step]:
    """Take one step in every row.

    **Arguments:** `max_steps`, steps after which an episode always ends; None: only the environment ends it; `hold`,
    whether finished rows keep their state. If nothing reads them, False saves copying every state.
    """
    keys = jax.vmap(jax.random.fold_in)(rows.key, rows.t)
    act_keys, step_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0) if actor.draws else (None, keys)
    action, carry, thought = actor.act(rows.obs, rows.carry, rows.t == 0, act_keys)
    step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    obs, state, reward, terminated, truncated, info = step_all(step_keys, rows.state, action, env_params)
    t = rows.t + 1
    ended = terminated | truncated
    if max_steps is not None:
        ended = ended | (t >= max_steps)
    step = Step(action, thought, reward, terminated, truncated, info, ended & ~rows.over)
    if hold:  # also because physics simulated after a fall gives huge numbers, which are slow to compute
        t, obs, state, carry = select(rows.over, (rows.t, rows.obs, rows.state, rows.carry), (t, obs, state, carry))
    return Rows(rows.key, t, obs, state, carry, rows.over | ended), step


@tracing.default_types
def watch(
    env: Environment,
    env_params: Any,
    actor: Actor,
    rows: Rows,
    see: Callable[[Rows, Step], dict[str, Any]],
    *,
    steps: int,
    max_steps: int | None = None,
    hold: bool = True,
) -> tuple[Rows, dict[str, Any]]:
    """Take `steps` steps and record the result of `see` for each, given the rows before it and the step; see `advance`.

    **Returns:** the rows after the last step, and the recorded leaves `[steps, B, ...]`; `live`, bool `[steps, B]`,
    marks the rows that were not over before a step.
    """

    def one(rows, _):
        after, step = advance(env, env_params, actor, rows, max_steps, hold=hold)
        return after, {"live": ~rows.over, **see(rows, step)}

    return tracing.scan(one, rows, None, steps)
