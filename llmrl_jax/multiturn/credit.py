"""Credit of replies: advantages over turns and over tokens, in groups of episodes, and among equal states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from llmrl_jax.multiturn.record import REPLY, Record


@struct.dataclass
class Credit:
    """Advantages and targets of the tokens of a record; leaves `[N, L]`."""

    advantage: Float[Array, "N L"]
    """Of each reply's token."""
    learn: Bool[Array, "N L"]
    """Tokens of replies that are learned from: those that had alternatives, of turns whose outcome is known, and was
    not before."""
    turn: Bool[Array, "N L"]
    """Where such a turn begins (`Record.decides`)."""
    returns: Float[Array, "N L"]
    """The target of the critic, where `fits`."""
    fits: Bool[Array, "N L"]
    """Where the critic is fitted."""
    resolved: Bool[Array, "N L"]
    """Where a turn begins whose outcome is known: it need not be kept."""


def _backward(step: Any, carry: Any, xs: Any) -> Any:
    """A scan over the tokens of rows from the last to the first; leaves `[N, L]`."""
    xs = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), xs)
    out = tracing.scan(step, carry, xs, reverse=True, unroll=min(8, len(jax.tree.leaves(xs)[0])))[1]
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), out)


def of_turn(record: Record, x: Array) -> Array:
    """A value at the beginning of each turn (`decides`), at the tokens of its reply; `[N, L]`. What stands at replies
    whose turn began before the record is of no use."""
    places = jnp.arange(record.token.shape[1])
    begin = jax.lax.cummax(jnp.where(record.decides, places, -1), axis=1)
    # a reply's token stands behind the place at which it was decided
    before = jnp.pad(begin[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return jnp.where(before >= 0, jnp.take_along_axis(x, jnp.maximum(before, 0), axis=1), jnp.zeros((), x.dtype))


def turn_advantages(record: Record, reward: Float[Array, "N L"], gamma: Any, gae_lambda: Any) -> Credit:
    """Generalised advantage estimation (1506.02438, eq. 16) with a turn as the action: one advantage for all tokens of
    a reply, the critic's value where an observation ends.

    `delta = reward + gamma * value of the next observation - value`: 0 for the next one where the environment ended,
    the value of the last observation at a time-out. A turn's outcome is known when the next observation has been read,
    or the episode has ended; a turn whose outcome is not known yet is left to the next record.

    **Arguments:** `reward`, where replies end; `gamma`, per turn; `gae_lambda`.
    """
    zeros, no = jnp.zeros(len(reward)), jnp.zeros(len(reward), bool)

    def step(carry, x):
        next_value, next_advantage, resolved, acted, reward = carry
        value, given, decides, bootstraps, acts, terminated = x
        # the observation that a time-out ended with
        next_value = jnp.where(bootstraps, value, jnp.where(acts & terminated, 0.0, next_value))
        next_advantage = jnp.where(bootstraps | (acts & terminated), 0.0, next_advantage)
        resolved = resolved | bootstraps | (acts & terminated)
        acted, reward = acted | acts, jnp.where(acts, given, reward)
        complete = decides & acted & resolved
        advantage = jnp.where(complete, reward + gamma * next_value - value + gamma * gae_lambda * next_advantage, 0.0)
        next_value = jnp.where(decides, value, next_value)
        next_advantage = jnp.where(decides, advantage, next_advantage)
        return (next_value, next_advantage, resolved | decides, acted & ~decides, reward), (advantage, complete)

    xs = (record.value, reward, record.decides, record.bootstraps, record.acts, record.terminated)
    advantage, complete = _backward(step, (zeros, zeros, no, no, zeros), xs)
    turn = complete & ~record.learned
    return Credit(
        advantage=of_turn(record, advantage),
        learn=(record.role == REPLY) & record.free & of_turn(record, turn),
        turn=turn,
        returns=advantage + record.value,
        fits=turn,
        resolved=complete | (record.decides & record.learned),
    )


def token_advantages(record: Record, reward: Float[Array, "N L"], gamma: Any, gae_lambda: Any) -> Credit:
    """Generalised advantage estimation with a token as the action: the critic's value before each token of a reply.

    Within a reply there is no discount and no reward but at its end, so that `gamma` is per turn, as `turn_advantages`
    has it; `gae_lambda` is per token that is a choice. A token that decoding forces is none: advantages pass over it.
    The critic is fitted, and read, before choices and where observations end, from which a time-out bootstraps."""
    turns = turn_advantages(record, reward, gamma, gae_lambda)
    zeros = jnp.zeros(len(reward))
    reply = record.role == REPLY
    first = jnp.pad(record.decides[:, :-1], ((0, 0), (1, 0)))
    chosen = reply & (record.free | first)
    # the value before a token stands at the token before it
    before = jnp.pad(record.value[:, :-1], ((0, 0), (1, 0)))

    def step(carry, x):
        next_value, next_advantage = carry
        value, before, given, bootstraps, acts, terminated, reply, chosen, decides, complete = x
        next_value = jnp.where(bootstraps, value, jnp.where(acts & terminated, 0.0, next_value))
        next_advantage = jnp.where(bootstraps | (acts & terminated), 0.0, next_advantage)
        discount = jnp.where(acts, gamma, 1.0)
        ahead = jnp.where(acts, given, 0.0) + discount * next_value
        advantage = jnp.where(chosen, ahead - before + discount * gae_lambda * next_advantage, 0.0)
        # a record may end with an observation, whose value no reply's token has before it
        next_value = jnp.where(reply, jnp.where(chosen, before, ahead), jnp.where(decides, value, next_value))
        passed = jnp.where(reply, discount * next_advantage, next_advantage)
        next_advantage = jnp.where(chosen, advantage, passed)
        # behind a turn whose outcome is not known there is a value, but no advantage
        next_advantage = jnp.where(decides & ~complete, 0.0, next_advantage)
        return (next_value, next_advantage), advantage

    xs = (record.value, before, reward, record.bootstraps, record.acts, record.terminated, reply, chosen)
    advantage = _backward(step, (zeros, zeros), (*xs, record.decides, turns.resolved))
    target = jnp.pad((advantage + before)[:, 1:], ((0, 0), (0, 1)))
    fits = jnp.pad((chosen & of_turn(record, turns.turn))[:, 1:], ((0, 0), (0, 1)))
    return turns.replace(advantage=advantage, returns=target, fits=fits)


def episode_returns(record: Record, reward: Float[Array, "N L"], gamma: Any = 1.0) -> Float[Array, "N L"]:
    """The discounted sum of rewards from each turn on to the end of its episode, where it begins (`decides`)."""

    def step(total, x):
        given, decides, acts, terminated, bootstraps = x
        total = jnp.where(bootstraps | (acts & terminated), 0.0, total)
        total = jnp.where(acts, given + gamma * total, total)
        return total, jnp.where(decides, total, 0.0)

    xs = (reward, record.decides, record.acts, record.terminated, record.bootstraps)
    return _backward(step, jnp.zeros(len(reward)), xs)


def largest_groups(deviation: Float[Array, " G"], rule: str, share: Any) -> Bool[Array, " G"]:
    """The groups with the largest deviations of returns.

    **Arguments:** `rule`: `share`, a share of the groups, at least one (StarPO-S, 2504.20073); `top_p`, the fewest
    whose deviations are a share of the sum, none of them 0 (RAGEN-2, 2604.06268); `share`, that share."""
    order = jnp.argsort(-deviation, stable=True)
    rank = jnp.argsort(order, stable=True)
    if rule == "share":
        return rank < jnp.maximum(1, jnp.round(share * len(deviation)))
    ordered = deviation[order]
    sums = jnp.cumsum(ordered)
    before = jnp.pad(sums[:-1], (1, 0))
    return ((before < share * sums[-1]) & (ordered > 0))[rank]


def anchored(
    returns: Float[Array, "N L"], decides: Bool[Array, "N L"], state: Int[Array, "N L"], group: int, kind: str
) -> Float[Array, "N L"]:
    """GiGPO's advantage of a step (2505.10978, eq. 7): a turn's return relative to those of its group's turns in the
    same state, where it begins; 0 for a state that no other turn of the group was in.

    **Arguments:** `returns`, from each turn on; `decides`, where turns begin; `state`, a number of the environment's
    state there, equal for equal states; `kind`, `centred` or `grpo`, see `llmrl_jax.rl.rollout.group_advantages`.
    """
    count = decides.shape[1]
    shape = (-1, group * count)
    values, present, states = (x.reshape(shape) for x in (returns, decides, state))

    def one(values, present, states):
        # equal states in succession, absent turns last
        order = jnp.lexsort((states, ~present))
        values, present, states = values[order], present[order], states[order]
        new = jnp.concatenate([jnp.ones(1, bool), (states[1:] != states[:-1]) | (present[1:] != present[:-1])])
        number = jnp.cumsum(new) - 1
        total = len(values)

        def sums(x):
            return jax.ops.segment_sum(jnp.where(present, x, 0.0), number, total)[number]

        members = jnp.maximum(sums(jnp.ones(total)), 1.0)
        centred = values - sums(values) / members
        if kind == "grpo":
            centred = centred / (jnp.sqrt(sums(centred**2) / members) + 1e-4)
        return jnp.zeros(total).at[order].set(jnp.where(present, centred, 0.0))

    return jax.vmap(one)(values, present, states).reshape(decides.shape)
