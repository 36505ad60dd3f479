"""Our Crafter beside the package crafter 1.8.3."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.crafter import constants as c
from envs_jax.crafter.env import Crafter
from envs_jax.crafter.reference import import_state
from envs_jax.crafter.state import objects as objects_of


crafter = pytest.importorskip("crafter")
from tests.parity import crafter_puppet as puppet  # noqa: E402


SLOTS = 160
ENV = Crafter(image=None, slots=SLOTS)
PARAMS = ENV.default_params.replace(dying=False)
STEP = jax.jit(jax.vmap(ENV.step, in_axes=(0, 0, 0, None)))


def fields(env):
    """A crafter.Env as plain values, comparable with those of our state."""
    player, world = env._player, env._world
    things = []
    for thing in world.objects:
        if thing is not player:
            kind = type(thing).__name__.lower()
            counter = {"zombie": "cooldown", "skeleton": "reload", "plant": "grown"}.get(kind)
            value = getattr(thing, counter) if counter else 0
            if kind == "arrow":
                value = c.DIRECTIONS.index(tuple(int(x) for x in thing.facing))
            things.append((kind, tuple(int(x) for x in thing.pos), int(thing.health), int(value)))
    return {
        "objects": things,
        "position": tuple(int(x) for x in player.pos),
        "facing": c.DIRECTIONS.index(tuple(int(x) for x in player.facing)),
        "inventory": {name: int(n) for name, n in player.inventory.items()},
        "achievements": {name: n for name, n in player.achievements.items() if n},
        "needs": (2 * player._hunger, 2 * player._thirst, player._fatigue, 2 * player._recover),
        "sleeping": bool(player.sleeping),
        "last_health": int(player._last_health),
        "chunks": {left // c.CHUNK * c.CHUNKS + top // c.CHUNK for left, _, top, _ in world.chunks},
    }


def our_fields(state):
    touched = [i for i in range(36) if int(state.touched[i // 32]) >> i % 32 & 1]
    return {
        "objects": [(o["kind"], o["position"], o["health"], o["counter"]) for o in objects_of(state)],
        "position": tuple(int(x) for x in state.position),
        "facing": int(state.facing),
        "inventory": dict(zip(c.ITEMS, np.asarray(state.inventory).tolist())),
        "achievements": {name: n for name, n in zip(c.ACHIEVEMENTS, np.asarray(state.achievements).tolist()) if n},
        "needs": tuple(int(x) for x in (state.hunger, state.thirst, state.fatigue, state.recover)),
        "sleeping": bool(state.sleeping),
        "last_health": int(state.last_health),
        "chunks": set(touched),
    }


def world(seed, night=False, rich=False, map_=None):
    """A crafter.Env that draws from a puppet; `map_`, a map without any object instead of a generated world."""
    env = crafter.Env(seed=seed)
    env._obs = lambda: None
    if map_ is not None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(crafter.worldgen, "generate_world", lambda *_: None)
            env.reset()
        env._world._mat_map[:] = map_
    else:
        env.reset()
    env._world.random = puppet.Puppet()
    for thing in env._world.objects:
        thing.random = env._world.random
    if night:
        env._step = 170
    if rich:
        for name in c.ITEMS[4:]:
            env._player.inventory[name] = 5
    return env


def compare(envs, steps, actions, seed=0):
    """Run the package and ours side by side, and compare everything after every step."""
    states = [import_state(env, ENV, PARAMS)[1] for env in envs]
    state = jax.tree.map(lambda *x: jnp.stack(x), *states)
    keys = jax.random.split(jax.random.key(seed), (steps, len(envs)))
    drawn = puppet.draws(keys, SLOTS)
    before = [env._player.health for env in envs]
    for t in range(steps):
        obs, state, reward, terminated, truncated, info = STEP(keys[t], state, jnp.asarray(actions[t]), PARAMS)
        host = jax.tree.map(np.asarray, state)
        material = host.material.reshape(-1, c.AREA, c.AREA)
        for i, env in enumerate(envs):
            unlocked = {name for name, n in env._player.achievements.items() if n}
            puppet.step(env, int(actions[t, i]), puppet.Draws(*(x[t, i] for x in drawn)))
            one = jax.tree.map(lambda x, i=i: x[i], host)
            assert our_fields(one) == fields(env), (t, i, c.ACTIONS[actions[t, i]])
            np.testing.assert_array_equal(material[i], env._world._mat_map, err_msg=f"{t} {i}")
            new = {name for name, n in env._player.achievements.items() if n} - unlocked
            wanted = (env._player.health - before[i]) / 10 + bool(new)
            before[i] = env._player.health
            assert float(reward[i]) == pytest.approx(wanted)
            assert {c.ACHIEVEMENTS[k] for k in np.flatnonzero(info["unlocked"][i])} == new
    assert not np.any(host.lost)
    return host


def walk(rng, steps, rows):
    """Random play that keeps a direction for a while, so that it gets somewhere."""
    actions = rng.integers(0, 17, (steps, rows))
    for t in range(1, steps):
        stay = rng.random(rows) < 0.5
        actions[t] = np.where(stay, actions[t - 1], actions[t])
    return actions


@pytest.mark.slow
def test_whole_worlds_agree_step_by_step():
    rng = np.random.default_rng(0)
    envs = [world(seed, night=seed % 2 == 1, rich=seed < 2) for seed in range(3)]
    host = compare(envs, 300, walk(rng, 300, 3))
    assert len({k for row in host.achievements for k in np.flatnonzero(row)}) > 5


def arena(seed, position):
    """A small crowded world: every material, many creatures, arrows, plants and tables around the player."""
    rng = np.random.default_rng(seed)
    weights = {
        c.GRASS: 6,
        c.PATH: 8,
        c.SAND: 2,
        c.TABLE: 1.5,
        c.FURNACE: 1,
        c.WATER: 1,
        c.LAVA: 0.3,
        c.TREE: 0.5,
        c.STONE: 1,
    }
    for material in (c.COAL, c.IRON, c.DIAMOND):
        weights[material] = 0.3
    p = np.array([weights[m] for m in sorted(weights)])
    env = world(seed, night=seed % 2 == 0, rich=True, map_=rng.choice(sorted(weights), (c.AREA, c.AREA), p=p / p.sum()))
    player, things = env._player, crafter.objects
    if tuple(position) != tuple(player.pos):
        env._world.move(player, np.array(position))
    for _ in range(28):
        cell = np.array(position) + rng.integers(-8, 9, 2)
        if not np.all((cell >= 0) & (cell < c.AREA)) or env._world[cell][1]:
            continue
        kind = rng.choice(5, p=[0.2, 0.35, 0.1, 0.15, 0.2])
        if kind < 2:
            thing = (things.Zombie, things.Skeleton)[kind](env._world, cell, player)
        elif kind == 3:
            thing = things.Arrow(env._world, cell, c.DIRECTIONS[rng.integers(4)])
        else:
            thing = (things.Cow, things.Plant)[kind // 4](env._world, cell)
        thing.grown = int(rng.integers(290, 320))
        env._world.add(thing)
    return env


def test_crowded_arenas_agree_step_by_step():
    """Everything happens at once: conflicts over cells, arrows that hit, tables that break, plants that are
    eaten, mobs that die, at the borders of the world too."""
    rng = np.random.default_rng(1)
    places = [(32, 32), (0, 5), (63, 63), (20, 0), (11, 12), (45, 36)]
    for half in (0, 1):  # as many rows as above: the same program
        envs = [arena(seed, places[seed]) for seed in range(3 * half, 3 * half + 3)]
        compare(envs, 100, walk(rng, 100, len(envs)), seed=1 + half)
