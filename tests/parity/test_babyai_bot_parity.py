"""The bot on minigrid's own worlds, beside minigrid's bot: as often successful, and about as quick."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.bot.bot import Memory, bot_action
from envs_jax.babyai.mission import GO_TO, OPEN_DOOR, PICK_UP, PUT_NEXT
from envs_jax.babyai.state import WALL_CELL
from envs_jax.babyai.step import act
from envs_jax.babyai.text.english import MISSION_LENGTH
from envs_jax.babyai.verify import verify
from tests.parity.babyai_compare import spelled
from tests.parity.babyai_minigrid import build, quietly


EPISODES, OBJECTS, SIDE = 32, 48, 22

RECORDED = {
    "GoToLocal": (4.3, 25),
    "PutNextLocal": (11.7, 25),
    "PickupLoc": (6.0, 25),
    "GoTo": (57.7, 25),
    "UnlockPickup": (19.3, 25),
    "UnlockPickupDist": (28.6, 25),
    "MiniBossLevel": (37.8, 15),
    "BossLevel": (88.7, 15),
}
"""Mean length and number of the episodes of minigrid's bot, all successful (`minigrid.utils.baby_ai_bot`)."""

UNSOLVED = ("KeyInBox", "PutNextS5N2Carrying", "UnlockToUnlock")
"""Levels where minigrid's bot fails, or hangs in a quarter of the episodes."""

STEPS = {
    "GoToLocal": 144,
    "PutNextLocal": 375,
    "PickupLoc": 200,
    "GoTo": 1518,
    "UnlockPickup": 604,
    "UnlockPickupDist": 738,
    "MiniBossLevel": 1008,
    "BossLevel": 2299,
    "KeyInBox": 630,
    "PutNextS5N2Carrying": 161,
    "UnlockToUnlock": 1265,
}
"""Steps of all episodes together, recorded when each world was searched by a loop of its own: what makes the searches
faster must leave the actions as they are."""

UNSOLVABLE = {"Unlock": 0.85, "GoToImpUnlock": 0.8}
"""Levels where a key may lie behind its own door, and the least share that must succeed."""


def worlds(id):
    """States of minigrid at the start of episodes 0, 1, ..., all as large as the largest level's, and what is outside
    of their grids as cells that have been seen: one compiled program plays every level."""
    env, params = envs_jax.make(spelled(id))
    sources, states = build(id), []
    width, height = env.level.rooms.width, env.level.rooms.height
    for seed in range(EPISODES):
        source = sources[seed % len(sources)]
        quietly(source.reset, seed=seed)
        _, state = envs_jax.babyai.import_state(source, env, params)
        state = jax.tree.map(np.asarray, state)
        grid = np.full((SIDE, SIDE), WALL_CELL, np.int16)
        grid[:width, :height] = state.grid
        missing = OBJECTS - len(state.cell)

        def moved(cell, height=height, missing=missing):
            cell = np.where(cell < 0, -1, cell // height * SIDE + cell % height)
            return np.pad(cell, (0, missing), constant_values=-1).astype(np.int16)

        states.append(
            state.replace(
                grid=grid,
                object=np.pad(state.object, (0, missing)),
                content=np.pad(state.content, (0, missing)),
                cell=moved(state.cell),
                tracked=moved(state.tracked),
                mover=wider(state.mover),
                fixed=wider(state.fixed),
                mission_caption=np.zeros(MISSION_LENGTH, np.int16),
                task=np.int32(0),
            )
        )
    outside = np.full(SIDE, (1 << SIDE) - 1, np.uint32)
    outside[1 : width - 1] &= ~np.uint32((1 << height - 1) - 2)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states), outside


def wider(sets):
    """Sets of objects with room for `OBJECTS`."""
    return np.pad(sets, ((0, 0), (0, -(-OBJECTS // 32) - sets.shape[1])))


@functools.cache
def player():
    def one(first, outside):
        def step(carry):
            state, memory, _, _ = carry
            action, memory = bot_action(state, memory)
            state, front, thing = act(state, action)
            kinds = frozenset({GO_TO, OPEN_DOOR, PICK_UP, PUT_NEXT})
            state, success, failure = verify(state, action, front, thing, (0, 1, 2, 3), kinds)
            return state, memory, success, success | failure | (state.step_count >= state.max_steps)

        carry = (first, Memory(seen=outside), jnp.bool_(False), jnp.bool_(False))
        state, _, success, _ = jax.lax.while_loop(lambda carry: ~carry[3], step, carry)
        return success, state.step_count

    return jax.jit(jax.vmap(one, (0, None)))


def episodes(level, version="v0"):
    """Success and length of episodes: `[EPISODES]` each; they end by minigrid's own limit."""
    return jax.device_get(player()(*worlds(f"BabyAI-{level}-{version}")))


QUICK = ("GoToLocal", "PickupLoc", "UnlockPickup", "MiniBossLevel", "KeyInBox")


def levels(names):
    """Parameters of a test: levels of which most are slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("level", levels(RECORDED))
def test_it_succeeds_as_often_and_about_as_quickly(level):
    success, length = episodes(level)
    assert success.all(), np.flatnonzero(~success)
    assert length.sum() == STEPS[level]
    mean, count = RECORDED[level]
    # two standard errors of the difference, the spread of their lengths taken to be that of ours
    assert length.mean() < mean + 2 * length.std() * (1 / count + 1 / EPISODES) ** 0.5


@pytest.mark.parametrize("level", levels(UNSOLVED))
def test_it_masters_what_the_other_does_not(level):
    success, length = episodes(level)
    assert success.all(), np.flatnonzero(~success)
    assert length.sum() == STEPS[level]


def others():
    ids = (re.fullmatch(r"BabyAI-(\w+)-(v\d)", id) for id in envs_jax.ids())
    return [found.groups() for found in ids if found and found[1] not in (*RECORDED, *UNSOLVED)]


@pytest.mark.slow
@pytest.mark.parametrize("level, version", others())
def test_it_masters_every_level(level, version):
    success, _ = episodes(level, version)
    assert success.mean() >= UNSOLVABLE.get(level, 1.0), np.flatnonzero(~success)
