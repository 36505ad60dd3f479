"""The package crafter with our random numbers: both draw the same, so that whole worlds can be compared exactly.

The package draws in sequence, ours draws an array per step. `Puppet` stands in for a world's random generator: before
an object acts, it is given the bits that ours gave to this object, and answers the package's calls from them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from crafter import constants, objects

from envs_jax.crafter import constants as c
from envs_jax.crafter.balance import ALL_CHUNKS, RULES
from envs_jax.crafter.wishes import NEAR_SLOTS, WORDS


CLASSES = (objects.Zombie, objects.Skeleton, objects.Cow)


class Puppet:
    """Answers `uniform` and `randint` from a list of numbers."""

    def __init__(self):
        self.uniforms, self.integers = [], []

    def say(self, uniforms=(), integers=()):
        self.uniforms, self.integers = list(uniforms), list(integers)

    def uniform(self, *_):
        return self.uniforms.pop(0)

    def randint(self, low, high):
        value = self.integers.pop(0)
        assert low <= value < high
        return value


def _part(bits, low, width):
    return float((int(bits) >> low) & ((1 << width) - 1)) * 2.0**-width


def of_object(thing, player, bits):
    """The package's draws for an object with our two words."""
    chance, axis, other = _part(bits[0], 10, 22), _part(bits[1], 0, 16), _part(bits[1], 16, 16)
    dice = int(bits[0]) & 3
    distance = thing.distance(player)
    if isinstance(thing, objects.Cow):
        return [chance], [dice]
    if isinstance(thing, objects.Zombie):
        return ([chance, axis] if distance <= 8 else []), [dice]
    if isinstance(thing, objects.Skeleton):
        # ours decides between shooting, coming and wandering with one number: give the package its conditional ones
        draws, left = [], chance
        if distance <= 3:
            draws.append(axis)
        for reach, p in ((5, 0.5), (8, 0.3), (99, 0.2)):
            if distance <= reach:
                hit = left < p
                draws.append(0.0 if hit else 1.0)
                if hit:
                    break
                left = (left - p) / (1 - p)
        if distance <= 8:
            draws.append(other)  # read only if it comes closer
        return draws, [dice]
    return [], []


class Draws(NamedTuple):
    """The random numbers of our steps, as arrays on the host."""

    chance: np.ndarray
    """Whether grass gives a sapling: float32 `[...]`."""
    objects: np.ndarray
    """Words of the near objects: uint32 `[..., 2, K]`."""
    balance: np.ndarray
    """Words of a balance: uint32 `[..., draws]`."""


def draws(keys, slots):
    """Random numbers of our step for each of the keys `[T, N]`; `slots`, of objects."""

    def one(key):
        turn_key, creature_key, balance_key = jax.random.split(key, 3)
        return Draws(
            jax.random.uniform(turn_key, dtype=np.float32),
            jax.random.bits(creature_key, (WORDS, NEAR_SLOTS), np.uint32),
            jax.random.bits(balance_key, (len(RULES) * 3 * ALL_CHUNKS + slots,), np.uint32),
        )

    return Draws(*map(np.asarray, jax.jit(jax.vmap(jax.vmap(one)))(keys)))


def step(env, action, drawn):
    """A step of a `crafter.Env` with the random numbers of our step.

    **Arguments:** `env`, whose `world.random` is a `Puppet`; `action`, a number; `drawn`, the `Draws` of one step."""
    puppet, world, player = env._world.random, env._world, env._player
    env._step += 1
    env._update_time()
    player.action = constants.actions[action]
    puppet.say([float(drawn.chance)])
    everything = world.objects
    player.update()
    near = 0
    for thing in everything[1:]:
        distance = player.distance(thing)
        if distance <= c.ACTIVE_DISTANCE:
            if distance < c.ACTIVE_DISTANCE:
                puppet.say(*of_object(thing, player, drawn.objects[:, near]))
                thing.update()
            near += 1
    if env._step % 10 == 0:
        balance(env, drawn.balance)


def balance(env, bits):
    """`Env._balance_chunk` for every chunk, with our random numbers: kind by kind, in the order of the chunks' numbers.

    What happens in one chunk does not depend on the others; the order decides only which object is older."""
    world, puppet = env._world, env._world.random
    slots = [thing for thing in world.objects if thing is not env._player]
    order = {id(thing): i for i, thing in enumerate(slots)}
    draws = 3 * ALL_CHUNKS
    priority = bits[len(RULES) * draws :]
    chunks = sorted(world.chunks.items(), key=lambda item: (item[0][0], item[0][2]))
    original = env._balance_object
    for i in range(len(RULES)):
        dice = bits[i * draws : (i + 1) * draws].reshape(3, ALL_CHUNKS)

        def only(chunk, things, cls, material, span, despan, spawn, despawn, ctor, target, i=i, dice=dice):
            if cls is not CLASSES[i]:
                return
            number = chunk[0] // c.CHUNK * c.CHUNKS + chunk[2] // c.CHUNK
            chance, fraction = (float(int(x) >> 8) * 2.0**-24 for x in dice[:2, number])
            creatures_ = [thing for thing in things if isinstance(thing, cls)]
            space = int(world.mask(*chunk, material).sum())
            if len(creatures_) < int(target(len(creatures_), space)[0]):
                integers = [min(int(np.float32(fraction) * space), space - 1)]
            elif creatures_:
                tickets = [(int(priority[order[id(t)]]) & ~255) | order[id(t)] + 1 for t in creatures_]
                integers = [int(np.argmax(tickets))]
            else:
                integers = []
            puppet.say([chance], integers)
            original(chunk, things, cls, material, span, despan, spawn, despawn, ctor, target)

        env._balance_object = only
        for chunk, things in chunks:
            env._balance_chunk(chunk, things)
    env._balance_object = original
