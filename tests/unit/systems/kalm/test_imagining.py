"""Where imagined episodes begin, and what the rules pay for them."""

from __future__ import annotations

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.metaworld.instructions import NAMES
from envs_jax.metaworld.labels import ENTITIES, block
from llmrl_jax.data.transitions import Trajectories
from llmrl_jax.systems.kalm.imagining import chosen_goals, starts
from llmrl_jax.systems.kalm.worlds import IMAGINED, LEVELS, clevr, metaworld


needs_scenes = pytest.mark.skipif(importlib.util.find_spec("metaworld") is None, reason="scenes need metaworld")


def first_states(states: np.ndarray) -> Trajectories:
    """Episodes of one step that begin in these states."""
    obs = {"state": jnp.asarray(states)[:, None]}
    zero = jnp.zeros((len(states), 1))
    flags = zero.astype(bool)
    return Trajectories(obs, zero, zero, obs, flags, flags, jnp.ones(len(states), jnp.int32))


def test_a_goal_does_not_hold_where_its_episode_begins():
    world, rng = clevr(), np.random.default_rng(0)
    recorded = rng.uniform(-0.4, 0.4, (200, 10)).astype(np.float32)
    numbers = chosen_goals(world, "rephrase", 160, rng)
    goals = world.instructions.goals[numbers]
    assert np.asarray(world.holds(goals, recorded[:160])).any(), "some states are no beginning of some goals"
    found = starts(world, "rephrase", numbers, first_states(recorded), rng)
    assert not np.asarray(world.holds(goals, found)).any()
    assert {tuple(x) for x in found.tolist()} <= {tuple(x) for x in recorded.tolist()}
    always = dataclasses.replace(world, holds=lambda goal, state: np.ones(len(goal), bool))
    with pytest.raises(ValueError, match="hold in nearly all first states of the data: collect more episodes"):
        starts(always, "rephrase", numbers, first_states(recorded), rng)


def test_goals_are_equally_frequent_in_random_wordings():
    world = clevr()
    numbers = chosen_goals(world, "easy", 45, np.random.default_rng(0))
    assert np.isin(numbers, world.instructions.of("easy")).all()
    counts = np.bincount(world.instructions.configuration[numbers], minlength=20)
    assert counts.min() == 2 and counts.max() == 3 and len(np.unique(numbers)) > 20


@pytest.mark.parametrize("level", LEVELS)
def test_imagined_steps_are_paid_as_the_level_pays(level):
    world = clevr()
    env = world.make(level)
    obs, state = env.reset(jax.random.key(0), env.default_params)
    after, _, reward, *_ = env.step(jax.random.key(1), state, 3, env.default_params)
    found, _ = world.rules(level)(*(np.asarray(x) for x in (obs["goal"], obs["state"], after["state"], 3)))
    np.testing.assert_allclose(found, reward, atol=1e-5)
    goal = world.instructions.goals[world.instructions.first[level]]
    paid = dataclasses.replace(env.default_params.weights).success
    assert paid == (1 if level == "easy" else 100) and goal.shape == (10,)


@needs_scenes
def test_episodes_in_metaworld_begin_with_the_objects_of_their_own_task():
    world = metaworld()

    def shown(states: np.ndarray) -> list[set[str]]:
        return [{name for name in ENTITIES if np.abs(block(state, name)).sum() > 0.01} for state in states]

    none = first_states(np.zeros((1, 91), np.float32))
    for level in IMAGINED:
        env = world.make(level)
        said = world.instructions.of(level)
        tasks = np.array([NAMES[goal[0]] for goal in world.instructions.goals[said.start : said.stop]])
        other = "window-close" if level == "easy" else tasks[-1]  # whose first observation shows its goal
        numbers = said.start + np.array([0, np.flatnonzero(tasks == other)[0]], np.int32)
        found = starts(world, level, numbers, none, np.random.default_rng(0))
        assert found.shape == (2, 91) and np.isfinite(found).all()
        own = []
        for number in numbers:  # what the world itself shows of this task
            obs, _ = env.unwrapped.begin(jnp.int32(number - world.instructions.first[level]), jax.random.key(5))
            own.append(np.asarray(obs["state"]))
        assert shown(found) == shown(np.stack(own)) and all(shown(found))
        assert not np.asarray(world.holds(world.instructions.goals[numbers], found)).any()


@needs_scenes
def test_the_first_imagined_reward_in_metaworld_is_that_of_the_world():
    world = metaworld()
    env = world.make("real")
    params = env.default_params
    action = np.array([0.3, -0.2, 0.1, 0.5], np.float32)
    keys = jax.random.split(jax.random.key(3), 16)
    obs, state = jax.vmap(env.reset, (0, None))(keys, params)
    after, state, first, *_ = jax.vmap(env.step, (0, 0, None, None))(keys, state, action, params)
    last, _, second, *_ = jax.vmap(env.step, (0, 0, None, None))(keys, state, action, params)
    goal, before, then, end = (np.asarray(x) for x in (obs["goal"], obs["state"], after["state"], last["state"]))
    actions, rules = np.broadcast_to(action, (16, 4)), world.rules("real")
    opening = world.opening(goal, before, actions)
    assert opening.max() > 1, "the state before the first step can be worth something"
    paid, later = rules(goal, before, then, actions)[0] + opening, rules(goal, then, end, actions)[0]
    # what a state does not show is taken as usual, so that single steps are paid a little differently
    assert np.abs(paid - first).mean() < 0.1 < np.abs(paid - opening - first).mean()
    assert np.abs(later - second).mean() < 0.1
