"""The expert: it succeeds, its ways to go are the shortest, and it always answers."""

from __future__ import annotations

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.bot.expert import expert_action
from envs_jax.babyai.constants import DX, DY, EMPTY, LEFT
from envs_jax.babyai.state import color_of, type_of


@functools.cache
def player(id, steps):
    env, params = envs_jax.make(id)

    def one(key, noise):
        _, first = env.reset(key, params)

        def step(carry, key):
            state, done, total, length = carry
            act, random, world = jax.random.split(key, 3)
            other = jax.random.randint(random, (), 0, 6)
            action = jnp.where(jax.random.uniform(act) < noise, other, expert_action(state, env))
            _, after, reward, terminated, truncated, _ = env.step(world, state, action, params)
            after = jax.tree.map(lambda a, b: jnp.where(done, a, b), state, after)
            return (after, done | terminated | truncated, total + reward * ~done, length + ~done), None

        carry = (first, jnp.bool_(False), jnp.float32(0), jnp.int32(0))
        (_, _, total, length), _ = jax.lax.scan(step, carry, jax.random.split(key, steps))
        return first, total, length

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


def episodes(id, n, steps, noise=0.0):
    """First states, returns and lengths of `n` episodes of the expert, a share `noise` of its actions random."""
    return jax.device_get(player(id, steps)(jax.random.split(jax.random.key(0), n), noise))


def shortest(state):
    """Actions from a state to a pose that faces the mission's object, by search forwards over poses."""
    free = type_of(state.grid.astype(int)) == EMPTY
    height = free.shape[1]
    goals = {(int(c) // height, int(c) % height) for i, c in enumerate(state.cell) if int(state.mover[0, 0]) >> i & 1}
    start = (*state.position.tolist(), int(state.direction))
    queue, found = collections.deque([start]), {start: 0}
    while queue:
        x, y, d = pose = queue.popleft()
        ahead = (x + DX[d], y + DY[d])
        if ahead in goals:
            return found[pose]
        following = [(x, y, (d + 1) % 4), (x, y, (d - 1) % 4)] + ([(*ahead, d)] if free[ahead] else [])
        for after in following:
            if after not in found:
                found[after] = found[pose] + 1
                queue.append(after)
    raise AssertionError("unreachable")


@pytest.mark.slow
def test_its_ways_are_the_shortest():
    first, total, length = episodes("BabyAI-GoToLocal-v0", 128, 64)
    assert (total > 0).all()
    expected = [shortest(jax.tree.map(lambda x: x[i], first)) for i in range(128)]  # noqa: B023
    np.testing.assert_array_equal(length, expected)


@pytest.mark.slow
def test_it_masters_every_kind_of_clause_and_recovers_from_chance():
    env, _ = envs_jax.make("BabyAI-MixedTrainLocal-v0")
    first, total, length = episodes("BabyAI-MixedTrainLocal-v0", 256, 128)
    assert (total > 0).all(), first.task[total == 0]
    assert set(first.task) == set(range(len(env.task_names)))
    assert length.mean() < 12  # minigrid's bot needs about as many
    _, total, _ = episodes("BabyAI-MixedTrainLocal-v0", 256, 128, noise=0.25)
    assert (total > 0).mean() > 0.95  # a random toggle may destroy what was asked for


def test_it_looks_for_what_it_cannot_see():
    """Left while the image shows nothing of the goal's kind and colour, else what the all-seeing expert does."""
    env, params = envs_jax.make("BabyAI-GoToLocal-v0")
    keys = jax.random.split(jax.random.key(5), 200)
    obs, states = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    looking, knowing = (
        jax.jit(jax.vmap(functools.partial(lambda seen, state: expert_action(state, env, seen), seen)))(states)
        for seen in (True, False)
    )
    first = states.mover[:, 0, 0]
    which = np.array([(word & -word).bit_length() - 1 for word in first.tolist()])
    thing = np.asarray(states.object)[np.arange(200), which].astype(int)
    image = np.asarray(obs["image"])
    kind, color = np.asarray(type_of(thing)), np.asarray(color_of(thing))
    shown = (image[..., 0] == kind[:, None, None]) & (image[..., 1] == color[:, None, None])
    visible = shown.any((1, 2))
    assert 20 < visible.sum() < 180
    assert (np.asarray(looking)[~visible] == LEFT).all()
    np.testing.assert_array_equal(np.asarray(looking)[visible], np.asarray(knowing)[visible])


def test_it_answers_where_nothing_can_be_done():
    env, params = envs_jax.make("BabyAI-GoToLocalS5N2-v0")
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    lost = state.replace(mover=jnp.zeros((4, 1), jnp.uint32))
    action = jax.jit(lambda state: expert_action(state, env))(lost)
    assert action.dtype == jnp.int32 and env.action_space(params).contains(np.asarray(action))
