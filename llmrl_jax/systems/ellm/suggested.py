"""The world with suggested goals: they are part of the observation, and reaching one is the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import spaces
from envs_jax.env import Environment, Wrapper
from llmrl_jax.systems.ellm.facts import Facts, caption_of
from llmrl_jax.systems.ellm.goals import Goals, packed
from llmrl_jax.systems.ellm.suggesters import CATEGORIES, Suggester, categories


Gate = Literal["effect", "lenient", "none"]
_FLAGS: Mapping[str, str] = {"effect": "eval_success", "lenient": "action_success"}

SUGGEST = 0x5E66
"""Folded into a step's key for the suggester's draws."""


@struct.dataclass
class SuggestedParams:
    """The parameters of the world, and what exchanges with the host change."""

    env: Any
    """The world's own parameters."""
    goals: Goals
    answers: Any
    """The `Answers` of a chat model; `()` without one."""
    fixed: Int[Array, " F"]
    """Ids of the goals of the suggester `fixed`; -1 in unused places."""
    threshold: Float[Array, ""] | float
    """Similarity above which a caption reaches a goal."""
    intrinsic: Float[Array, ""] | float
    """Weight of the reward for goals."""
    extrinsic: Float[Array, ""] | float
    """Weight of the world's own reward, which is added."""


@struct.dataclass
class SuggestedState:
    """One episode."""

    env: Any
    goals: Int[Array, " K"]
    """Goals for the current observation that this episode has not reached; -1 in unused places."""
    kinds: Int[Array, " K"]
    """Their `categories`."""
    reached: Bool[Array, " G"]
    """Goals that this episode has reached."""
    earned: Float[Array, ""]
    """Sum of the rewards for goals."""
    tally: Int[Array, "2 4"]
    """Suggestions, and rewards, of each category so far."""
    unknown: Int[Array, ""]
    """Steps in states that had not been answered."""


@dataclass(frozen=True)
class Rules:
    """How goals are paid."""

    gate: Gate = "effect"
    """`effect`: the action had its true effect; `lenient`: the published flag; `none`: always."""
    once: bool = True
    """Whether a goal is paid once in an episode only (the novelty filter)."""
    keys: bool = False
    """Whether observations keep the state's key, and whether it is known."""


def reached_goal(
    similarity: Float[Array, " G"], goals: Int[Array, " K"], threshold: float | jax.Array, success: Bool[Array, ""]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The reward of a transition (ellm reference, 3.1): `max_i S_i if S_i > T else 0`, and 0 without success.

    **Arguments:** `similarity`, of the transition's caption to every goal; `goals`, the suggestions, -1 in unused
    places; `threshold`, `T`; `success`.
    **Returns:** the reward, and the place in `goals` of the goal that was reached; -1: none.
    """
    scores = jnp.where(goals >= 0, similarity[jnp.maximum(goals, 0)], -jnp.inf)
    best = jnp.argmax(scores)
    paid = (scores[best] > threshold) & success
    return jnp.where(paid, scores[best], 0.0).astype(jnp.float32), jnp.where(paid, best, -1)


def shown(goals: Goals, ids: Int[Array, " K"], threshold: float | jax.Array) -> Bool[Array, " A"]:
    """Goals as the agent sees them, a mask of captions: the caption that earns most under each goal, if any earns. A
    goal that no transition can reach is not shown."""
    goal = jnp.maximum(ids, 0)
    best, count = goals.nearest[goal], goals.similarity.shape[0]
    earns = (ids >= 0) & (goals.similarity[best, goal] > threshold)
    return jnp.zeros(count, bool).at[jnp.where(earns, best, count)].set(True, mode="drop")


class Suggested(Wrapper):
    """A world whose observations have goals and whose reward is that of reaching them.

    Observation: the parts named by `keep`, and `goals`, uint8 `[ceil(A / 8)]`: the captions that are goals now, packed
    (`goals.unpacked`); with `rules.keys` also `key`, uint32 `[]`, and `known`, bool `[]`. `info` has the sums of the
    episode as `episode_*`, which learners report: `earned`, `unknown` (a share of steps), `achievements` (how many
    different ones), `unlocked/<name>`, and `suggested/<category>` and `paid/<category>`.
    """

    def __init__(
        self, env: Environment, facts: Facts, suggester: Suggester, rules: Rules, *, keep: tuple[str, ...], start: Any
    ):
        """**Arguments:** `env`, with `EpisodeStatistics`, not batched; `facts`; `suggester`; `rules`; `keep`, parts of
        the observation; `start`, the `SuggestedParams` at the start, without `env`."""
        super().__init__(env)
        self.facts, self.suggester, self.rules, self.keep, self._start = facts, suggester, rules, keep, start

    @property
    def default_params(self):
        return self._start.replace(env=self.env.default_params)

    def _look(self, obs, reached, params, key) -> tuple[dict[str, Any], dict[str, Any]]:
        """The observation of an agent, and the parts of the state that belong to it."""
        ids, known = self.suggester(obs, params, key)
        ids = jnp.where((ids >= 0) & ~reached[jnp.maximum(ids, 0)], ids, -1).astype(jnp.int32)
        seen = {name: self._compact(obs[name]) for name in self.keep}
        seen["goals"] = packed(shown(params.goals, ids, params.threshold))
        if self.rules.keys:
            seen |= {"key": obs["key"], "known": known}
        return seen, {"goals": ids, "kinds": categories(self.facts, obs, ids), "known": known}

    @staticmethod
    def _compact(x: jax.Array) -> jax.Array:
        """Counts, which are small, as bytes: a replay memory holds many of them."""
        return x.astype(jnp.uint8) if x.dtype == jnp.int32 else x

    def reset(self, key, params):
        obs, env = self.env.reset(key, params.env)
        reached = jnp.zeros(params.goals.twin.shape[0], bool)
        seen, now = self._look(obs, reached, params, jax.random.fold_in(key, SUGGEST))
        tally = jnp.zeros((2, len(CATEGORIES)), jnp.int32).at[0].add(_histogram(now["kinds"]))
        unknown = (~now.pop("known")).astype(jnp.int32)
        state = SuggestedState(env=env, reached=reached, earned=jnp.float32(0), tally=tally, unknown=unknown, **now)
        return seen, state

    def step(self, key, state, action, params):
        obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params.env)
        success = jnp.bool_(True) if self.rules.gate == "none" else info[_FLAGS[self.rules.gate]]
        caption = caption_of(self.facts, action, info)
        earned, place = reached_goal(params.goals.similarity[caption], state.goals, params.threshold, success)
        goal = jnp.where(place >= 0, state.goals[place], -1)
        reached = state.reached
        if self.rules.once:
            twin = jnp.where(goal >= 0, params.goals.twin[goal], -1)
            both = jnp.stack([goal, twin])
            reached = reached.at[jnp.where(both >= 0, both, reached.shape[0])].set(True, mode="drop")
        seen, now = self._look(obs, reached, params, jax.random.fold_in(key, SUGGEST))
        paid = _histogram(jnp.where(place >= 0, state.kinds[place], -1)[None])
        tally = state.tally.at[1].add(paid)
        total = state.earned + earned
        info = {**info, **self._report(info, tally, total, state.unknown), "earned": earned, "reached": goal}
        unknown = state.unknown + ~now.pop("known")
        tally = tally.at[0].add(_histogram(now["kinds"]))
        after = SuggestedState(env=env, reached=reached, earned=total, tally=tally, unknown=unknown, **now)
        reward = params.intrinsic * earned + params.extrinsic * reward
        return seen, after, reward, terminated, truncated, info

    def _report(self, info, tally, earned, unknown) -> dict[str, jax.Array]:
        unlocked = info["achievements"] > 0
        names = {f"episode_unlocked/{name}": unlocked[i] for i, name in enumerate(self.facts.achievements)}
        kinds = {
            f"episode_{what}/{kind}": tally[row, i]
            for row, what in enumerate(("suggested", "paid"))
            for i, kind in enumerate(CATEGORIES)
        }
        share = unknown / jnp.maximum(info["episode_length"], 1)
        sums = {"episode_earned": earned, "episode_unknown": share, "episode_achievements": jnp.sum(unlocked)}
        return {name: x.astype(jnp.float32) for name, x in (sums | names | kinds).items()}

    def observation_space(self, params):
        whole: Any = self.env.observation_space(params.env)
        parts = {name: self._compact_space(whole.spaces[name]) for name in self.keep}
        count = (len(self.facts.captions) + 7) // 8
        parts["goals"] = spaces.Box(0, 255, (count,), np.uint8)
        if self.rules.keys:
            parts |= {"key": whole.spaces["key"], "known": spaces.Box(False, True, (), np.bool_)}
        return spaces.Dict(parts)

    @staticmethod
    def _compact_space(space: spaces.Space) -> spaces.Space:
        if isinstance(space, spaces.Box) and np.dtype(space.dtype) == np.int32:
            return spaces.Box(space.low, space.high, space.shape, np.uint8)
        return space

    def action_space(self, params):
        return self.env.action_space(params.env)

    @property
    def captions(self):
        """The world's captions that the agent sees."""
        return {name: book for name, book in self.env.captions.items() if name in self.keep}

    @property
    def episode_captions(self):
        return tuple(name for name in self.env.episode_captions if name in self.keep)

    @property
    def stacked(self):
        """The world's stacks of frames that the agent sees."""
        return {name: stack for name, stack in self.env.stacked.items() if name in self.keep}

    def render(self, state):
        return self.env.render(state.env)

    def letters(self, state):
        return self.env.letters(state.env)

    def describe(self, obs):
        """The captions and the goals that the agent sees."""
        bits = np.unpackbits(np.asarray(obs["goals"]), count=len(self.facts.captions)).astype(bool)
        texts = {name: book.render(obs[name]) for name, book in self.captions.items()}
        return texts | {"goals": ", ".join(name for name, bit in zip(self.facts.captions, bits) if bit)}


def _histogram(kinds: Int[Array, " K"]) -> Int[Array, "4"]:
    """How many goals have each category."""
    return jnp.sum(kinds[:, None] == jnp.arange(len(CATEGORIES)), axis=0, dtype=jnp.int32)
