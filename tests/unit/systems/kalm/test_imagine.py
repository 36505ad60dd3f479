"""Where imagined episodes begin, and what the rules pay for them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.clevr import goals as clevr_goals
from envs_jax.metaworld.instructions import NAMES
from envs_jax.metaworld.labels import ENTITIES, block
from llmrl_jax.data.parquet import write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.systems.kalm.collect import EPISODES, METADATA
from llmrl_jax.systems.kalm.imagine import Imagined, as_episodes, check_source, chosen_goals, starts
from llmrl_jax.systems.kalm.train import imagined_of
from llmrl_jax.systems.kalm.worlds import IMAGINED, LEVELS, clevr, metaworld


needs_scenes = pytest.mark.skipif(importlib.util.find_spec("metaworld") is None, reason="scenes need metaworld")


BEHIND, RIGHT = 0, 3


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
    with pytest.raises(ValueError, match="first states"):
        starts(always, "rephrase", numbers, first_states(recorded), rng)


def test_parts_of_another_source_are_refused(tmp_path):
    weights, first = {"w": jnp.ones((2, 3), jnp.bfloat16)}, np.zeros((4, 10), np.float32)
    check_source(tmp_path / "parts", weights, first)
    (tmp_path / "parts" / "0-4.npz").touch()
    check_source(tmp_path / "parts", weights, first)
    for other in ({"w": weights["w"].at[0, 0].set(2)}, first), (weights, first + 1):
        with pytest.raises(ValueError, match="parts"):
            check_source(tmp_path / "parts", *other)
    (tmp_path / "parts" / "source.json").unlink()  # as of a version before
    with pytest.raises(ValueError, match="parts"):
        check_source(tmp_path / "parts", weights, first)


def test_goals_are_equally_frequent_in_random_wordings():
    world = clevr()
    numbers = chosen_goals(world, "easy", 45, np.random.default_rng(0))
    assert np.isin(numbers, world.instructions.sentence_ids("easy")).all()
    counts = np.bincount(world.instructions.configuration[numbers], minlength=20)
    assert counts.min() == 2 and counts.max() == 3 and len(np.unique(numbers)) > 20


@pytest.mark.parametrize("level", LEVELS)
def test_imagined_steps_are_paid_as_the_level_pays(level):
    world = clevr()
    env = world.make(level)
    obs, state = env.reset(jax.random.key(0), env.default_params)
    after, _, reward, *_ = env.step(jax.random.key(1), state, 3, env.default_params)
    states = np.stack([obs["state"], after["state"]])
    found, _ = world.rules(level)(np.asarray(obs["goal"]), states, np.array([3]))
    np.testing.assert_allclose(found, [reward], atol=1e-5)
    goal = world.instructions.goals[world.instructions.first[level]]
    paid = dataclasses.replace(env.default_params.weights).success
    assert paid == (1 if level == "easy" else 100) and goal.shape == (10,)


def written(folder, level: str, data: Trajectories) -> str:
    """The folder of imagined episodes."""
    folder.mkdir()
    write_parquet(folder / EPISODES, data)
    (folder / METADATA).write_text(json.dumps({"world": "clevr", "level": level, "imagined": True}))
    return str(folder)


@pytest.mark.slow
def test_a_task_of_one_step_is_over_after_it_and_others_are_cut_off(tmp_path):
    """Blue is to go to the right, which actions 8, 12 and 14 do; red behind blue, which holds after two steps."""
    world = clevr()
    push = np.asarray(clevr_goals.goal(clevr_goals.PUSH, [(1, RIGHT, -1)]))
    number = world.instructions.first["easy"] + int(
        np.flatnonzero((world.instructions.goals[list(world.instructions.sentence_ids("easy"))] == push).all(1))[0]
    )
    apart = np.array([-0.4, -0.2, 0.4, 0.4, 0, 0, 0.3, -0.2, -0.4, 0.4], np.float32)
    actions = np.array([[8], [9], [14], [0]], np.int32)
    rewards = np.array([[1], [0], [1], [0]], np.float32)
    right = rewards[:, 0] > 0
    made = Imagined(np.tile(apart, (4, 2, 1)), actions, rewards, np.ones(4, np.int32), right)
    easy = as_episodes(made, np.tile(push, (4, 1)), np.full(4, number))
    assert easy.terminated.all() and not easy.truncated.any()
    folder = written(tmp_path / "easy", "easy", easy)
    assert np.asarray(imagined_of(folder, world, successes=True).action)[:, 0].tolist() == [8, 14]
    assert len(imagined_of(folder, world, successes=False)) == 4

    relation = np.asarray(clevr_goals.goal(clevr_goals.RELATIONS, [(0, BEHIND, 1)]))
    number = world.instructions.first["rephrase"]
    states = np.tile(apart, (2, 4, 1))
    states[0, 2:, :2] = 0.4, 0.7  # holds from the second step on
    states[1, 3, :2] = 0.4, 0.7  # in a step after the end of an episode of two
    lengths = np.array([2, 2], np.int32)
    made = Imagined(states, np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32), lengths, np.array([True, False]))
    rephrased = as_episodes(made, np.tile(relation, (2, 1)), np.full(2, number))
    assert rephrased.terminated.tolist() == [[False, True, False], [False] * 3]
    assert rephrased.truncated.tolist() == [[False] * 3, [False, True, False]]
    folder = written(tmp_path / "rephrase", "rephrase", rephrased)
    kept = imagined_of(folder, world, successes=True)
    assert kept.length.tolist() == [2] and kept.terminated[0, 1]
    none = written(tmp_path / "none", "rephrase", jax.tree.map(lambda x: x[1:], rephrased))
    with pytest.raises(DataError, match="1.*--successes"):
        imagined_of(none, world, successes=True)


@needs_scenes
def test_episodes_in_metaworld_begin_with_the_objects_of_their_own_task():
    world = metaworld()

    def shown(states: np.ndarray) -> list[set[str]]:
        return [{name for name in ENTITIES if np.abs(block(state, name)).sum() > 0.01} for state in states]

    none = first_states(np.zeros((1, 91), np.float32))
    for level in IMAGINED:
        env = world.make(level)
        said = world.instructions.sentence_ids(level)
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
def test_imagined_rewards_in_metaworld_are_those_of_the_world():
    """Each with its own action: the first has nothing before it, the second has the first."""
    world = metaworld()
    env = world.make("real")
    actions = np.array([[0.3, -0.2, 0.1, 0.5], [-0.6, 0.4, 0.2, -1.0]], np.float32)
    keys = jax.random.split(jax.random.key(3), 16)
    obs, state = jax.vmap(env.reset, (0, None))(keys, env.default_params)
    goal, states, paid = np.asarray(obs["goal"]), [obs["state"]], []
    for action in actions:
        obs, state, reward, *_ = jax.vmap(env.step, (0, 0, None, None))(keys, state, action, env.default_params)
        states.append(obs["state"])
        paid.append(reward)
    found, _ = world.rules("real")(goal, np.stack(states, axis=1), np.tile(actions, (16, 1, 1)))
    # what a state does not show is taken as usual, so that single steps are paid a little differently
    assert np.abs(found - np.stack(paid, axis=1)).mean(axis=0).max() < 0.1
    assert np.abs(paid[0]).mean() > 0.3, "the state after the first step is worth something"
