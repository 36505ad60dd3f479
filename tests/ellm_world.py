"""A world of five cells with the interface of Crafter with text, for tests of ELLM.

A tree at the left end, water at the right end. Chopping gives wood, wood makes a table at the place of the player. Nine
actions, of which "eat table" and "mine tree" never have an effect.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.env import Environment, Stack
from envs_jax.text import Phrasebook
from llmrl_jax.systems.ellm.open_goals import OpenGoalSpec


CELLS = 5
NAMES = (
    *("do nothing", "move left", "move right", "chop tree", "drink water", "place table", "build table"),
    *("eat table", "mine tree"),
)
NOOP, LEFT, RIGHT, CHOP, DRINK, PLACE, BUILD, EAT, MINE = range(len(NAMES))
ACHIEVEMENTS = ("collect_wood", "collect_drink", "place_table")
PIXELS = 36
WORDS = Phrasebook([f"you see cell {i}" for i in range(CELLS)] + ["you have wood"])


@struct.dataclass
class Params:
    length: Any = 12


@struct.dataclass
class State:
    cell: jax.Array
    wood: jax.Array
    counts: jax.Array
    time: jax.Array
    film: Any = ()


class Yard(Environment[State, Params]):
    id = "Yard-v0"

    def __init__(self, task: str = "", image: str = "none", frames: int = 1):
        """**Arguments:** `task`, the only achievement that is rewarded; empty: all; `image`, `none`, or `gray` for a
        stack of pictures; `frames`, its length."""
        self.frames = frames if image == "gray" else 0
        self.rewarded = np.array([not task or name.endswith(task) for name in ACHIEVEMENTS])

    @property
    def default_params(self):
        return Params(length=np.int32(12))

    @property
    def stacked(self):
        return {"image": Stack(self.frames, "first")} if self.frames else {}

    def _picture(self, state):
        """A white column at the player's place, and a row as bright as the time is late: `[PIXELS, PIXELS]`."""
        here = jnp.arange(PIXELS) // (PIXELS // CELLS) == state.cell
        columns = jnp.broadcast_to(jnp.where(here, 255, 0).astype(jnp.uint8), (PIXELS, PIXELS))
        return columns.at[state.time].set((20 * state.time).astype(jnp.uint8))

    def _obs(self, state):
        pictures = {"image": state.film} if self.frames else {}
        key = state.cell.astype(jnp.uint32) | (jnp.uint32(state.wood > 0) << 3)
        view = jnp.zeros((CELLS, 1, 1), jnp.uint8).at[state.cell].set(1)
        text = jnp.stack([state.cell, jnp.where(state.wood > 0, CELLS, -1)]).astype(jnp.int16)
        seen = {"view": view, "inventory": jnp.stack([state.wood, state.time * 0]), "key": key, "text": text}
        return seen | pictures

    def reset(self, key, params):
        cell = jax.random.randint(key, (), 1, CELLS - 1, jnp.int32)
        state = State(cell, jnp.int32(0), jnp.zeros(3, jnp.int32), jnp.int32(0))
        if self.frames:
            state = state.replace(film=jnp.broadcast_to(self._picture(state)[..., None], (PIXELS, PIXELS, self.frames)))
        return self._obs(state), state

    def step(self, key, state, action, params):
        left, right = action == LEFT, action == RIGHT
        cell = jnp.clip(state.cell + right - left, 0, CELLS - 1)
        chop, drink = (action == CHOP) & (state.cell == 0), (action == DRINK) & (state.cell == CELLS - 1)
        place = ((action == PLACE) | (action == BUILD)) & (state.wood > 0)
        counts = state.counts + jnp.stack([chop, drink, place])
        new = jnp.any((counts > 0) & (state.counts == 0) & self.rewarded)
        wood = jnp.minimum(state.wood + chop, 9) - place
        after = State(cell, wood, counts, state.time + 1)
        if self.frames:
            after = after.replace(film=jnp.concatenate([state.film[..., 1:], self._picture(after)[..., None]], axis=-1))
        effect = chop | drink | place | ((cell != state.cell) | (action == NOOP))
        info = {
            "achievements": counts,
            "eval_success": effect,
            "action_success": effect | ((action == MINE) & (state.cell == 0)),
            "effective_action": jnp.int32(action),
        }
        ended = after.time >= params.length
        return self._obs(after), after, new.astype(jnp.float32), jnp.bool_(False), ended, info

    def observation_space(self, params):
        pictures = {"image": spaces.Box(0, 255, (PIXELS, PIXELS, self.frames), np.uint8)} if self.frames else {}
        return spaces.Dict(
            pictures
            | {
                "view": spaces.Box(0, 1, (CELLS, 1, 1), np.uint8),
                "inventory": spaces.Box(0, 9, (2,), np.int32),
                "key": spaces.Box(0, 15, (), np.uint32),
                "text": WORDS.space(2) if hasattr(WORDS, "space") else spaces.Box(-1, CELLS, (2,), np.int16),
            }
        )

    def action_space(self, params):
        return spaces.Discrete(len(NAMES))

    @property
    def action_names(self):
        return NAMES

    def render(self, state):
        picture = np.zeros((4, 4 * CELLS, 3), np.uint8)
        picture[:, 4 * int(state.cell) : 4 * int(state.cell) + 4] = 255
        return picture

    @property
    def captions(self):
        return {"text": WORDS}

    def goal_spec(self):
        def feasible(obs):
            can = {CHOP: obs["view"][0, 0, 0] > 0, DRINK: obs["view"][-1, 0, 0] > 0}
            can |= {PLACE: obs["inventory"][0] > 0, BUILD: obs["inventory"][0] > 0}
            return jnp.stack([jnp.bool_(can.get(i, False)) for i in range(len(NAMES))])

        return OpenGoalSpec(
            captions=NAMES,
            valid=np.arange(len(NAMES)) < EAT,
            feasible=feasible,
            rules={"chop tree": ({}, ("cell 0",)), "drink water": ({}, ("cell 4",)), "place table": ({"wood": 1}, ())},
            synonyms=(("place table", "build table"),),
            achievements=ACHIEVEMENTS,
            describe=describe,
            verbs=("chop", "drink", "place"),
            tasks={"wood": ("chop tree",), "table": ("chop tree", "place table"), "live": ()},
        )


def describe(key: int) -> str:
    held = "You have in your inventory wood." if key & 8 else ""
    return f"You see cell {key & 7}. {held}".strip()
