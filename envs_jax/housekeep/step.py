"""The effects of actions, rewards and metrics (ELLM, 2302.06692)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.housekeep.apartment import RECEPTACLES
from envs_jax.housekeep.constants import DOWN, FORWARD, GRAB, HIGH, IN_HAND, LEFT, RIGHT, SLOTS, UP
from envs_jax.housekeep.preferences import Preferences
from envs_jax.housekeep.state import Params, State
from envs_jax.housekeep.tables import Tables


@struct.dataclass
class Event:
    """The effect of a grab or a release; scalars."""

    picked: jax.Array
    placed: jax.Array
    failed: jax.Array
    object: jax.Array
    """int32: the slot of the object that was picked or placed, -1 for none."""
    category: jax.Array
    """int32: its category, -1 for none."""
    receptacle: jax.Array
    """int32: where it lay, or lies now; -1 for none."""
    first: jax.Array
    """bool: the first pick of this object, or its first placement in a correct place."""


class Rules:
    """The dynamics over the tables of one apartment and one set of preferences."""

    def __init__(self, tables: Tables, preferences: Preferences):
        """**Arguments:** `preferences`, with the apartment's receptacles as places."""
        self.tables = tables
        self.num_spots, self.num_objects = len(tables.spots), len(preferences.objects)
        self.correct = preferences.correct.T.reshape(-1)
        """bool `[N * R]`."""
        self.correct_spot = preferences.correct.T[:, tables.spots.receptacle].reshape(-1)
        """bool `[N * S]`."""

    def pose(self, state: State) -> jax.Array:
        """int32 `[]`: where the agent stands and where it faces, `cell * 4 + heading`."""
        return state.cell * 4 + state.heading

    def aim(self, state: State) -> tuple[jax.Array, jax.Array]:
        """The receptacle and the spot that the crosshair hits, int32 `[]`, -1 for none."""
        index = self.pose(state) * 3 + state.pitch
        receptacle, spot = (look(table, index) for table in (self.tables.hit_receptacle, self.tables.hit_spot))
        return receptacle.astype(jnp.int32), spot.astype(jnp.int32)

    def in_place(self, state: State) -> jax.Array:
        """Objects in a correct place: bool `[O]`."""
        lies = (state.spot >= 0) & (state.category >= 0)
        index = state.category.astype(jnp.int32) * self.num_spots + state.spot
        return lies & look(self.correct_spot, index)

    def visible(self, state: State) -> jax.Array:
        """Objects in view: bool `[O]`; not the one in hand."""
        index = self.pose(state) * self.num_spots + state.spot
        return (state.spot >= 0) & look(self.tables.sees_spot.reshape(-1), index)

    def receptacle_of(self, state: State) -> jax.Array:
        """The receptacle of each object: int32 `[O]`, -1 for those that lie nowhere."""
        return jnp.where(state.spot >= 0, look(self.tables.spots.receptacle, state.spot), -1).astype(jnp.int32)

    def look_around(self, state: State) -> State:
        """The state with what the agent sees now added to what it has seen."""
        words = jnp.take(self.tables.sees_receptacle, self.pose(state), axis=0, mode="clip")
        return state.replace(
            seen_objects=state.seen_objects | self.visible(state), seen_receptacles=state.seen_receptacles | words
        )

    def move(self, state: State, action: jax.Array) -> State:
        """The effect of the five actions that move the agent or its head."""
        cell = jnp.where(action == FORWARD, look(self.tables.ahead, self.pose(state)), state.cell)
        turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
        nod = (action == UP).astype(jnp.int32) - (action == DOWN).astype(jnp.int32)
        pitch = jnp.clip(state.pitch + nod, 0, HIGH)
        return state.replace(cell=cell.astype(jnp.int32), heading=state.heading + turn & 3, pitch=pitch)

    def grab(self, state: State, grabs: jax.Array, params: Params) -> tuple[State, Event, jax.Array]:
        """A grab with an empty hand, or a release with a full one, where the crosshair points.

        **Arguments:** `grabs`, bool `[]`, whether the agent does so at all.
        **Returns:** the state, what happened, and the reward.
        """
        receptacle, spot = self.aim(state)
        lies = (state.spot == spot) & (spot >= 0)
        occupied, holding = jnp.any(lies), state.held >= 0
        picked = grabs & ~holding & occupied
        placed = grabs & holding & (spot >= 0) & ~occupied
        is_object = jnp.where(picked, lies, placed & (np.arange(SLOTS) == state.held))
        happened = picked | placed
        slot = jnp.where(happened, jnp.argmax(is_object), -1).astype(jnp.int32)
        category = jnp.sum(jnp.where(is_object, state.category, 0), dtype=jnp.int32)
        index = category * len(RECEPTACLES) + receptacle
        right = look(self.correct, index)
        event = Event(
            picked=picked,
            placed=placed,
            failed=grabs & ~happened,
            object=slot,
            category=jnp.where(happened, category, -1),
            receptacle=jnp.where(happened, receptacle, -1),
            first=jnp.where(
                picked, ~jnp.any(is_object & state.picked), placed & right & ~jnp.any(is_object & state.placed)
            ),
        )
        advised = jnp.take(jnp.asarray(params.suggestions).reshape(-1), index, mode="clip")
        stored = jnp.where(params.suggesting, advised, right)
        reward = self._reward(state, event, is_object, stored, params)
        new_spot = jnp.where(picked, IN_HAND, spot).astype(jnp.int16)
        state = state.replace(
            spot=jnp.where(is_object, new_spot, state.spot),
            held=jnp.where(picked, slot, jnp.where(placed, -1, state.held)),
            picked=state.picked | is_object & picked,
            placed=state.placed | is_object & placed & right,
            rewarded=state.rewarded | is_object & placed & stored,
        )
        return state, event, reward

    def _reward(self, state: State, event: Event, is_object: jax.Array, stored: jax.Array, params: Params) -> jax.Array:
        """The reward of an event. `stored`: the rewarding table has the object on this receptacle."""
        picked_before, stored_before = jnp.any(is_object & state.picked), jnp.any(is_object & state.rewarded)
        # who suggests does not repeat goals about an object that has been stored
        goal = jnp.where(params.suggesting, ~stored_before, True)
        pickup = jnp.where(~stored & goal, jnp.where(picked_before, 0.0, params.pick_reward), params.wrong_pick_reward)
        counts = jnp.any(is_object & state.misplaced) & ~stored_before
        placement = jnp.where(
            params.suggesting,
            jnp.where(stored & ~stored_before, params.place_reward, params.wrong_place_reward),
            jnp.where(stored, jnp.where(counts, params.place_reward, 0.0), params.wrong_place_reward),
        )
        reward = jnp.where(event.picked, pickup, jnp.where(event.placed, placement, 0.0))
        reward = jnp.where(event.failed, params.fail_reward, reward).astype(jnp.float32)
        return jnp.where(params.clip_reward, jnp.clip(reward, -1.0, 1.0), reward).astype(jnp.float32)

    def act(self, state: State, action: jax.Array, params: Params) -> tuple[State, Event, jax.Array]:
        """One low-level action; the clock not included."""
        moved = self.move(state, action)
        return self.grab(moved, action == GRAB, params)

    def measure(self, state: State, event: Event, params: Params) -> tuple[State, jax.Array, dict[str, Any]]:
        """The state with what the agent sees after an action, whether the task is done, and `info`."""
        state = self.look_around(state)
        present, right = state.category >= 0, self.in_place(state)
        count, correct = jnp.sum(present, dtype=jnp.int32), jnp.sum(right, dtype=jnp.int32)
        state = state.replace(best=jnp.maximum(state.best, correct))
        relevant = present & (state.misplaced | state.picked)
        done = (state.held < 0) & ~jnp.any(relevant & ~right)
        places = self.receptacle_of(state)
        index = state.category.astype(jnp.int32) * len(RECEPTACLES) + places
        stored = (places >= 0) & present & jnp.take(jnp.asarray(params.suggestions).reshape(-1), index, mode="clip")
        wrong = jnp.sum(state.misplaced, dtype=jnp.int32)

        def fraction(part, total):
            return (part / jnp.maximum(total, 1)).astype(jnp.float32)

        info = {
            "picked": event.picked,
            "placed": event.placed,
            "failed": event.failed,
            "object": event.object,
            "category": event.category,
            "receptacle": event.receptacle,
            "first": event.first,
            "success": done,
            "rearrange_success": fraction(correct, count),
            "best_rearrange_success": fraction(state.best, count),
            "initial_success": fraction(state.initial, count),
            "suggested_success": fraction(jnp.sum(stored, dtype=jnp.int32), count),
            "misplaced_success": jnp.sum(right & state.misplaced, dtype=jnp.int32),
            "pick_success": fraction(jnp.sum(state.picked & state.misplaced, dtype=jnp.int32), wrong),
            "place_success": fraction(jnp.sum(state.placed & state.misplaced, dtype=jnp.int32), wrong),
        }
        return state, done, info


def look(table: np.ndarray, index: jax.Array) -> jax.Array:
    """The entries of a constant table `[n]`; an index outside of it gives its nearest entry."""
    return jnp.take(jnp.asarray(table), index, mode="clip")
