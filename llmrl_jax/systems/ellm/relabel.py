"""Recorded episodes whose goals and rewards are computed again, for another suggester, threshold or gate.

A recorded episode is a world in which only what was recorded can happen (`Tape`). It is wrapped by `Suggested` as a
world is, so goals, the novelty filter and rewards are computed by the code that pays them in play.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from envs_jax import tracing
from envs_jax.env import Wrapper
from llmrl_jax.data.transitions import FIELDS, Trajectories, Transitions
from llmrl_jax.systems.ellm.suggested import Suggested


class Tape(Wrapper):
    """The world of one recorded episode, its parameters: `Transitions`, whose `text` has what rewards depend on:
    `caption` int32 (the caption of the transition), `eval_success` and `action_success` bool. The state is the number
    of the step. Actions have no effect."""

    def reset(self, key, params):
        return params.take(jnp.int32(0)).obs, jnp.int32(0)

    def step(self, key, state, action, params):
        now = params.take(state)
        info = {
            "effective_action": now.text["caption"],
            "eval_success": now.text["eval_success"],
            "action_success": now.text["action_success"],
            "achievements": jnp.zeros(0, jnp.int32),
            "episode_length": jnp.float32(1),
        }
        return now.next_obs, state + 1, now.reward, now.terminated, now.truncated, info


def on_tape(world: Suggested) -> Suggested:
    """A world whose recorded episodes are its parameters, with the same goals and rewards."""
    facts = replace(world.facts, achievements=())  # which are not recorded, and reported only
    return Suggested(Tape(world.env), facts, world.suggester, world.rules, keep=world.keep, start=None)


def relabelled(
    world: Suggested, params: Any, episodes: Trajectories, key: Key[Array, ""], first: Int[Array, ""] | int = 0
) -> tuple[Any, Any, Float[Array, "E T"], Float[Array, "E T"]]:
    """The observations of an agent, and the rewards, of recorded episodes under the goals of a world.

    **Arguments:** `world`, that agents are trained in, and its `params`; `episodes`, see `Tape`; `key`, of suggesters
    that draw; `first`, the number of the first episode, so that parts give what the whole gives.
    **Returns:** the observations before and after each step, leaves `[E, T, ...]`; the rewards, `intrinsic` times that
    for goals plus `extrinsic` times the recorded one; and those for goals alone. After an episode they are undefined.
    """
    tape, count = on_tape(world), episodes.reward.shape[1]
    recorded = Transitions(**{name: getattr(episodes, name) for name in FIELDS})

    def one(number, episode):
        own, episode_key = params.replace(env=episode), jax.random.fold_in(key, number)
        obs, state = tape.reset(jax.random.fold_in(episode_key, count), own)

        def step(carry, t):
            obs, state = carry
            after, state, reward, _, _, info = tape.step(
                jax.random.fold_in(episode_key, t), state, episode.action[t], own
            )
            return (after, state), (obs, after, reward, info["earned"])

        return tracing.scan(step, (obs, state), jnp.arange(count))[1]

    return jax.vmap(one)(first + jnp.arange(len(episodes)), recorded)
