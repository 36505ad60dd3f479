"""Housekeep with closed-form goals: to pick up what lies where it should not, and to put it where it should be stored.

Goals about a state (ellm reference, 4.4): with an empty hand, "pick up the X" for every object X in view that lies on a
place where, as the suggester says, it should not be; with X in hand, "put the X in/on the Y" for every place Y seen in
this episode where it should be. To pick an object up is a goal once in an episode, and nothing is a goal about an
object that was stored in it.

The caption of a transition says what was picked up or put down, so a caption and the goals of its state are either all
about picks, or all about places of the same object: the similarities of all possible pairs are two tables, `[N, N]` and
`[N, R, R]`, instead of one over all `N + N * R` captions, and the reward is exact for every threshold.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import spaces
from envs_jax.actions import MASK
from envs_jax.env import Environment, Wrapper
from llmrl_jax.systems.ellm.facts import ClosedFacts
from llmrl_jax.systems.ellm.goals import packed, unpacked
from llmrl_jax.systems.ellm.suggesters import CATEGORIES


SUGGEST = 0x5E66
"""Folded into a step's key for the suggester's draws."""
GOOD, BAD = CATEGORIES.index("good"), CATEGORIES.index("bad")
"""Categories of a closed-form goal: the oracle has it too, or not."""


@struct.dataclass
class PlacingParams:
    """The parameters of the world, and what goals are and pay. `N` objects, `R` places."""

    env: Any
    """The world's own parameters; its penalties count for goals too."""
    pick: Bool[Array, "N R"]
    """Whether to pick an object up is a goal where it lies on a place."""
    store: Bool[Array, "N R"]
    """Whether to put an object in or on a place is a goal."""
    pick_similarity: Float[Array, "N N"]
    """Cosine between "pick up the X" and "pick up the Z"."""
    store_similarity: Float[Array, "N R R"]
    """Cosine between "put the X in/on the Y" and "put the X in/on the Z"."""
    threshold: Float[Array, ""] | float
    """Similarity above which a caption reaches a goal."""
    intrinsic: Float[Array, ""] | float
    """Weight of the reward for goals, and of the penalties that belong to it."""
    extrinsic: Float[Array, ""] | float
    """Weight of the world's own reward, which is added."""


@struct.dataclass
class PlacingState:
    """One episode; `O` slots of objects."""

    env: Any
    goals: Bool[Array, " O+R"]
    """Goals about the current observation: to pick up the object of a slot; to put what is held in or on a place."""
    picked: Bool[Array, " O"]
    """Objects that were picked up in this episode: to pick one up again is no goal, so that nothing is to be had from
    putting away what lay right."""
    stored: Bool[Array, " O"]
    """Objects whose placement was paid in this episode."""
    earned: Float[Array, ""]
    """Sum of the rewards for goals."""
    penalty: Float[Array, ""]
    """Sum of the penalties: for failed grabs, and for picks and placements that are no goals."""
    tally: Int[Array, "2 4"]
    """Suggestions, and rewards, of each category so far."""


def goal_reward(
    similarity: Float[Array, " G"], goals: Bool[Array, " G"], threshold: float | jax.Array
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The reward of a transition (ellm reference, 3.1): the largest similarity to a goal, if it is above the threshold.

    **Arguments:** `similarity`, of the transition's caption to every goal; `goals`, those of the state.
    **Returns:** the reward, and the goal that was reached; -1: none.
    """
    scores = jnp.where(goals, similarity, -jnp.inf)
    best = jnp.argmax(scores)
    paid = scores[best] > threshold
    return jnp.where(paid, scores[best], 0.0).astype(jnp.float32), jnp.where(paid, best, -1)


class Placing(Wrapper):
    """Housekeep with goals about objects and places.

    Observation: the parts named by `keep`, the image as `cells` (it is no picture), the action mask of macro worlds,
    and `goals`, uint8: the mask of goals, packed (`goals.unpacked`): a bit for every slot of objects, then one for
    every place. `info` has the sums of the episode as `episode_*`, which learners report: `earned`, `penalty`, the
    world's measures, and `suggested/<category>` and `paid/<category>`.
    """

    def __init__(
        self,
        env: Environment,
        facts: ClosedFacts,
        start: PlacingParams,
        *,
        keep: tuple[str, ...],
        once: bool = True,
        draws: int = 0,
    ):
        """**Arguments:** `env`, with `EpisodeStatistics`, not batched; `facts`; `start`, the parameters at the start,
        without `env`; `keep`, parts of the observation; `once`, whether a goal is paid once in an episode only;
        `draws`, if not 0, the number of goals that are drawn from those of a state in every step, with replacement."""
        super().__init__(env)
        self.facts, self.keep, self.once, self.draws, self._start = facts, keep, once, draws, start
        whole: Any = env.observation_space(env.default_params)
        self.slots = whole.spaces["places"].shape[0]
        keep = tuple(name for name in whole.spaces if name in keep or name == MASK)
        self._small = {name: _small(whole.spaces[name]) for name in keep}

    @property
    def default_params(self):
        return self._start.replace(env=self.env.default_params)

    @property
    def num_goals(self) -> int:
        """Goals of a state: `O + R`."""
        return self.slots + len(self.facts.places)

    def _goals(self, obs, picked, stored, params, key) -> tuple[jax.Array, jax.Array]:
        """The goals of a state, and those that the oracle would have: masks `[O + R]`."""
        kinds, places, held = (jnp.asarray(obs[name], jnp.int32) for name in ("categories", "places", "held"))
        in_hand, kind = held >= 0, kinds[jnp.maximum(held, 0)]
        visible = ~in_hand & (places >= 0)
        at = jnp.maximum(kinds, 0), jnp.maximum(places, 0)
        done = picked | stored if self.once else jnp.zeros_like(stored)
        seen = in_hand & obs["seen_receptacles"]
        if self.once:
            seen &= ~stored[jnp.maximum(held, 0)]
        correct = jnp.asarray(self.facts.correct)
        goals = jnp.concatenate([visible & params.pick[at] & ~done, seen & params.store[kind]])
        good = jnp.concatenate([visible & ~correct[at], seen & correct[kind]])
        if self.draws:
            goals &= self._drawn(in_hand, key)
        return goals, good

    def _drawn(self, in_hand: jax.Array, key: jax.Array) -> jax.Array:
        """`draws` of the slots, or of the places, at random: a mask `[O + R]`."""
        first, count = jnp.where(in_hand, self.slots, 0), jnp.where(in_hand, len(self.facts.places), self.slots)
        drawn = first + jax.random.randint(key, (self.draws,), 0, count)
        return jnp.zeros(self.num_goals, bool).at[drawn].set(True)

    def _look(self, obs, picked, stored, params, key) -> tuple[dict[str, Any], jax.Array, jax.Array]:
        """The observation of an agent, the goals, and how many of each category."""
        goals, good = self._goals(obs, picked, stored, params, jax.random.fold_in(key, SUGGEST))
        seen = {_NEW.get(name, name): obs[name].astype(space.dtype) for name, space in self._small.items()}
        return seen | {"goals": packed(goals)}, goals, _counted(goals, good)

    def reset(self, key, params):
        obs, env = self.env.reset(key, params.env)
        nothing = jnp.zeros(self.slots, bool)
        seen, goals, counts = self._look(obs, nothing, nothing, params, key)
        zero, tally = jnp.float32(0), jnp.zeros((2, len(CATEGORIES)), jnp.int32).at[0].add(counts)
        return seen, PlacingState(env, goals, nothing, nothing, zero, zero, tally)

    def step(self, key, state, action, params):
        obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params.env)
        earned, penalty, picked, stored, paid = self._pay(state, info, params, self._kinds(state, obs))
        seen, goals, counts = self._look(obs, picked, stored, params, key)
        tally = state.tally.at[1].add(paid)
        total, fines = state.earned + earned, state.penalty + penalty
        info = {**info, **self._report(info, tally, total, fines), "earned": earned}
        info["achievements"] = jnp.zeros(0, jnp.int32)
        after = PlacingState(env, goals, picked, stored, total, fines, tally.at[0].add(counts))
        reward = params.intrinsic * (earned + penalty) + params.extrinsic * reward
        return seen, after, reward, terminated, truncated, info

    @staticmethod
    def _kinds(state, obs) -> jax.Array:
        """The category of each slot. An object that is a goal was seen, and what was seen stays so."""
        return jnp.maximum(obs["categories"].astype(jnp.int32), 0)

    def _pay(self, state, info, params, kinds):
        """The reward for goals and the penalty of a transition, what it changes, and its category as a histogram."""
        kind, place = jnp.maximum(info["category"], 0), jnp.maximum(info["receptacle"], 0)
        slot = info["object"]
        similar = jnp.concatenate([params.pick_similarity[kind, kinds], params.store_similarity[kind, place]])
        of_kind = jnp.concatenate(
            [
                jnp.broadcast_to(info["picked"], (self.slots,)),
                jnp.broadcast_to(info["placed"], (len(self.facts.places),)),
            ]
        )
        earned, goal = goal_reward(similar, state.goals & of_kind, params.threshold)
        paid = goal >= 0
        slots = np.arange(self.slots)
        picked = state.picked | ((slots == slot) & info["picked"])
        stored = state.stored | ((slots == slot) & paid & info["placed"])
        again = params.pick[kind, place] & ~jnp.any((slots == slot) & state.stored)
        own = params.env
        wrong = jnp.where(info["picked"] & ~again, own.wrong_pick_reward, 0.0)
        wrong = jnp.where(info["placed"], own.wrong_place_reward, wrong)
        penalty = jnp.where(paid, 0.0, jnp.where(info["failed"], own.fail_reward, wrong)).astype(jnp.float32)
        correct = jnp.asarray(self.facts.correct)[kind, place]
        kind_of_goal = jnp.where(correct == info["placed"], GOOD, BAD)
        count = (np.arange(len(CATEGORIES)) == kind_of_goal) & paid
        return earned, penalty, picked, stored, count.astype(jnp.int32)

    def _report(self, info, tally, earned, penalty) -> dict[str, jax.Array]:
        kinds = {
            f"episode_{what}/{kind}": tally[row, i]
            for row, what in enumerate(("suggested", "paid"))
            for i, kind in enumerate(CATEGORIES)
        }
        measures = {f"episode_{name}": info[name] for name in self.facts.measures}
        sums = {"episode_earned": earned, "episode_penalty": penalty, "episode_unknown": jnp.float32(0)}
        return {name: jnp.asarray(x).astype(jnp.float32) for name, x in (sums | measures | kinds).items()}

    def as_captions(self, categories: Int[Array, "B O"], goals: Bool[Array, "B G"]) -> Bool[Array, "B A"]:
        """Goals by slot and place as a mask of the facts' captions, by object and place."""
        slots, places = goals[:, : self.slots], goals[:, self.slots :]
        objects = jnp.any(slots[..., None] & (categories[..., None] == np.arange(len(self.facts.items))), axis=1)
        return jnp.concatenate([objects, places], axis=-1)

    def observation_space(self, params):
        parts = {_NEW.get(name, name): space for name, space in self._small.items()}
        return spaces.Dict({**parts, "goals": spaces.Box(0, 255, ((self.num_goals + 7) // 8,), np.uint8)})

    def action_space(self, params):
        return self.env.action_space(params.env)

    @property
    def captions(self):
        """The world's captions that the agent sees."""
        return {name: book for name, book in self.env.captions.items() if name in self.keep}

    @property
    def episode_captions(self):
        return tuple(name for name in self.env.episode_captions if name in self.keep)

    def render(self, state):
        return self.env.render(state.env)

    def letters(self, state):
        return self.env.letters(state.env)

    def describe(self, obs):
        """The captions and the goals that the agent sees."""
        texts = {name: book.render(obs[name]) for name, book in self.captions.items()}
        bits = np.asarray(unpacked(jnp.asarray(obs["goals"]), self.num_goals))
        picks = sorted({self._item(obs, slot) for slot in np.flatnonzero(bits[: self.slots]).tolist()})
        puts = [f"put it in/on the {self.facts.places[i]}" for i in np.flatnonzero(bits[self.slots :])]
        return texts | {"goals": ", ".join([*(f"pick up the {name}" for name in picks), *puts])}

    def _item(self, obs, slot: int) -> str:
        """The name of the object of a slot that was seen."""
        return self.facts.items[int(obs["categories"][slot])] if "categories" in obs else f"object {slot}"


_NEW = {"image": "cells"}
"""Parts of the observation that have another name here: networks take `image` for a picture."""


def _small(space: Any) -> spaces.Box:
    """The space of a part as a replay memory holds it: in bytes if its numbers fit."""
    low, high = (np.min(space.low), np.max(space.high)) if isinstance(space, spaces.Box) else (0, space.n - 1)
    dtype = np.dtype(space.dtype) if isinstance(space, spaces.Box) else np.dtype(np.int32)
    if dtype != np.bool_:
        dtype = next((np.dtype(x) for x in (np.uint8, np.int8, np.int16) if _fits(low, high, x)), dtype)
    return spaces.Box(low, high, space.shape if isinstance(space, spaces.Box) else (), dtype)


def _fits(low: Any, high: Any, dtype: Any) -> bool:
    return bool(np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)


def _counted(goals: Bool[Array, " G"], good: Bool[Array, " G"]) -> Int[Array, "4"]:
    """How many goals have each category."""
    counts = {GOOD: jnp.sum(goals & good), BAD: jnp.sum(goals & ~good)}
    return jnp.stack([jnp.int32(counts.get(i, 0)) for i in range(len(CATEGORIES))])
