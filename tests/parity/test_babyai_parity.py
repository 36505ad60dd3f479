"""BabyAI against minigrid 3.2.0: episodes of every level, taken over and played step for step."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.text import MISSIONS
from tests.parity.babyai_minigrid import build, record


SEEDS = 100

IDS = [id for id in envs_jax.ids("BabyAI-") if not id.startswith("BabyAI-Text/")]

FAST = (
    "BabyAI-GoToRedBallGrey-v0",
    "BabyAI-GoToLocalS6N3-v0",
    "BabyAI-PickupLoc-v0",
    "BabyAI-PutNextLocalS5N3-v0",
    "BabyAI-MixedTrainLocal-v0",
    "BabyAI-MixedTestLocal-v0",
    "BabyAI-PickUpSeqPickUpLocal-v0",
    "BabyAI-Unlock-v0",
    "BabyAI-KeyInBox-v0",
    "BabyAI-KeyCorridorS3R2-v0",
    "BabyAI-OpenDoorsOrderN4Debug-v0",
    "BabyAI-PickupDistDebug-v0",
    "BabyAI-PutNextS5N2Carrying-v0",
    "BabyAI-MoveTwoAcrossS5N2-v0",
    "BabyAI-MiniBossLevel-v0",
    "BabyAI-BossLevel-v0",
)
"""One of each kind of world, for the ordinary run."""

QUIRKY = (
    "BabyAI-Unlock-v0",
    "BabyAI-GoToImpUnlock-v0",
    "BabyAI-OpenDoorsOrderN2Debug-v0",
    "BabyAI-OpenDoorsOrderN4Debug-v0",
)
"""Levels in which what happens after the start differs from minigrid by default: more objects than the correct worlds
have, and sequences that fail as they succeed."""


def spelled(id):
    return f"{id}?compat=minigrid" if id in QUIRKY else id


def cap(env):
    """Steps of an episode that are compared; longer than the limit of most levels of one room."""
    return 80 if env.level.rooms.rows * env.level.rooms.columns == 1 else 160


@functools.cache
def player(id):
    """Plays recorded actions from imported states; compiled once for all levels of the same shape and kinds."""
    env, params = envs_jax.make(spelled(id))

    @jax.jit
    def play(states, actions):
        def one(state, actions):
            def step(state, action):
                obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
                return state, (obs["image"], obs["direction"], reward, terminated, truncated, info["success"])

            key = jax.random.key(0)
            return jax.lax.scan(step, state, actions)[1]

        return jax.vmap(one)(states, actions)

    return play


_SHAPES: dict = {}


def compiled(id, env):
    level = env.level
    shape = (level.rooms.width, level.rooms.height, level.num_objects, level.kinds, level.clauses, env.compat)
    return player(_SHAPES.setdefault(shape, id))


@pytest.mark.parametrize("id", [id if id in FAST else pytest.param(id, marks=pytest.mark.slow) for id in IDS])
def test_minigrid_plays_the_same(id):
    env, params = envs_jax.make(spelled(id))
    limit = cap(env)
    sources = build(id)
    obs, states, episodes = [], [], []
    for seed in range(SEEDS):
        source = sources[seed % len(sources)]
        (first, state), episode = record(source, seed, limit, lambda s: envs_jax.babyai.import_state(s, env, params))
        obs.append(jax.device_get(first))
        states.append(jax.device_get(state))
        episodes.append(episode)

    actions = np.zeros((SEEDS, limit), np.int32)
    for i, episode in enumerate(episodes):
        actions[i, : len(episode.actions)] = episode.actions
    stacked = jax.tree.map(lambda *x: np.stack(x), *states)
    images, directions, rewards, terminated, truncated, success = jax.device_get(compiled(id, env)(stacked, actions))

    for i, episode in enumerate(episodes):
        n = len(episode.actions)
        assert MISSIONS.render(obs[i]["mission"]) == episode.mission
        np.testing.assert_array_equal(obs[i]["image"], episode.first[0], err_msg=f"seed {i}, at the import")
        assert obs[i]["direction"] == episode.first[1]
        for name, ours, theirs in (
            ("image", images[i, :n], episode.images),
            ("direction", directions[i, :n], episode.directions),
            ("reward", rewards[i, :n], episode.rewards.astype(np.float32)),
            ("terminated", terminated[i, :n], episode.terminated),
            ("truncated", truncated[i, :n], episode.truncated),
            ("success", success[i, :n], episode.rewards > 0),
        ):
            wrong = np.flatnonzero((ours != theirs).reshape(n, -1).any(1))
            assert not wrong.size, f"{id}, seed {i}: {name} differs at step {wrong[0]} of {n}: {episode.mission}"

    ended = [e.terminated[-1] for e in episodes]
    assert any(ended[1::2]), "no goal-seeking episode succeeded, so nothing was compared at a success"
    assert sum(len(e.actions) for e in episodes) > 2 * SEEDS
