"""Episodes of minigrid 3.2.0, taken over at their start or in their middle and played here step for step."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import numpy as np

import envs_jax
from envs_jax.babyai import bot_action, initial_memory
from envs_jax.babyai.text.english import MISSIONS
from tests.parity.babyai_minigrid import Bot, build, record


IDS = [id for id in envs_jax.ids("BabyAI-") if not id.startswith("BabyAI-Text/")]

QUIRKY = (
    "BabyAI-Unlock-v0",
    "BabyAI-GoToImpUnlock-v0",
    "BabyAI-OpenDoorsOrderN2Debug-v0",
    "BabyAI-OpenDoorsOrderN4Debug-v0",
    "BabyAI-PickupDist-v0",
    "BabyAI-PickupDistDebug-v0",
)
"""Levels that differ from minigrid by default: more objects than the correct worlds have, sequences that fail as they
succeed, and walls that count as grey objects."""


UNSOLVED = ("BabyAI-KeyInBox-v0",)
"""Levels on which minigrid's bot never succeeds (it does not look into boxes); our own bot seeks their goals."""


_own_action = jax.jit(bot_action)


class OwnBot:
    """Our bot, playing in minigrid: its world is imported anew for every action."""

    def __init__(self, source, id):
        self.source = source
        self.env, self.params = envs_jax.make(spelled(id))
        self.memory = initial_memory(self.env)

    def replan(self, action_taken=None):
        _, state = envs_jax.babyai.import_state(self.source, self.env, self.params)
        action, self.memory = _own_action(state, self.memory)
        return int(action)


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


@dataclass(frozen=True)
class Comparison:
    """Differences found by playing a level beside minigrid."""

    id: str
    episodes: int
    steps: int
    successes: int
    failures: int
    """Episodes that ended in failure before their limit: strict missions only."""
    sought: int
    """Successes of episodes that sought the goal, rather than act at random."""
    difference: str
    """The first one, empty for none."""


def compare(id: str, seeds: int) -> Comparison:
    """Record `seeds` episodes of minigrid, random ones and goal-seeking ones in turn, and play them here.

    Everything that a step returns is compared: image, direction, mission, reward, both flags, and the success that
    minigrid's reward stands for.
    """
    env, params = envs_jax.make(spelled(id))
    limit = cap(env)
    sources = build(id)
    obs, states, episodes = [], [], []
    for seed in range(seeds):
        source = sources[seed % len(sources)]
        bot = functools.partial(OwnBot, id=id) if id in UNSOLVED else Bot
        (first, state), episode = record(
            source, seed, limit, lambda s: envs_jax.babyai.import_state(s, env, params), bot
        )
        obs.append(jax.device_get(first))
        states.append(jax.device_get(state))
        episodes.append(episode)

    actions = np.zeros((seeds, limit), np.int32)
    for i, episode in enumerate(episodes):
        actions[i, : len(episode.actions)] = episode.actions
    stacked = jax.tree.map(lambda *x: np.stack(x), *states)
    images, directions, rewards, terminated, truncated, success = jax.device_get(compiled(id, env)(stacked, actions))

    def difference() -> str:
        for i, episode in enumerate(episodes):
            n, where = len(episode.actions), f"{id}, seed {i}, {episode.mission!r}"
            if MISSIONS.render(obs[i]["mission"]) != episode.mission:
                return f"{where}: the mission here is {MISSIONS.render(obs[i]['mission'])!r}"
            if (obs[i]["image"] != episode.first[0]).any() or obs[i]["direction"] != episode.first[1]:
                return f"{where}: the view at the import"
            for name, ours, theirs in (
                ("image", images[i, :n], episode.images),
                ("direction", directions[i, :n], episode.directions),
                ("reward", rewards[i, :n], episode.rewards.astype(np.float32)),
                ("terminated", terminated[i, :n], episode.terminated),
                ("truncated", truncated[i, :n], episode.truncated),
                ("success", success[i, :n], episode.rewards > 0),
            ):
                wrong = np.flatnonzero((ours != theirs).reshape(n, -1).any(1))
                if wrong.size:
                    return f"{where}: {name} at step {wrong[0]} of {n}"
        return ""

    won = [bool(e.rewards[-1] > 0) for e in episodes]
    return Comparison(
        id=id,
        episodes=seeds,
        steps=sum(len(e.actions) for e in episodes),
        successes=sum(won),
        failures=sum(bool(e.terminated[-1]) and not w for e, w in zip(episodes, won)),
        sought=sum(won[1::2]),
        difference=difference(),
    )
