"""KALM's levels of Meta-World: instructions, labels of entity observations, and the world that plays a level."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import metaworld
from envs_jax.metaworld import labels, poses
from envs_jax.metaworld.instructions import NAMES
from envs_jax.metaworld.tasks import COMPOSITES, TASKS
from tests.paths import DATA


RECORDED = np.load(DATA / "metaworld.npz")
SINGLE = [name for name in NAMES if name not in COMPOSITES]
COUNTS = {"real": 10, "rephrase": 10, "easy": 8, "hard": 4}
MEAN_ERROR = {"hammer": 0.3, "soccer": 0.6, "push": 0.3, "push-wall": 0.3}
"""The largest mean error of a labelled reward, of 10, for tasks whose rewards need more than a state shows."""


def goal_of(name):
    return np.array([[NAMES.index(name)]])


def entities_of(name):
    """The recorded observations as entity observations."""
    obs = RECORDED[f"{name}/obs"]
    return poses.entities(np, TASKS[name], obs[:, :18], obs[:, -3:], np.zeros((len(obs), 7)))


def test_twenty_wordings_of_each_task_and_none_at_two_levels():
    levels = {name: metaworld.level(name) for name in metaworld.LEVELS}
    texts = [one.text for level in levels.values() for one in level.instructions]
    assert {name: len(level.tasks) for name, level in levels.items()} == COUNTS
    assert len(texts) == len(set(texts)) == 640 and not any("{" in text for text in texts)
    for name, level in levels.items():
        assert len(level.instructions) == 20 * COUNTS[name] == len(level.book)
        assert [NAMES[goal] for goal in level.goals[:, 0]] == [one.task for one in level.instructions]
        np.testing.assert_array_equal(level.configurations, np.repeat(np.arange(COUNTS[name]), 20))
    assert levels["real"].tasks == levels["rephrase"].tasks
    assert set(COMPOSITES) | {"hammer", "soccer"} == set(levels["hard"].tasks)
    with pytest.raises(ValueError, match="unknown level 'reel'; did you mean 'real'"):
        metaworld.level("reel")


@pytest.mark.parametrize("name", SINGLE)
def test_success_and_rewards_of_recorded_observations(name):
    """A state shows success, and nearly the package's reward."""
    states, action = entities_of(name), np.float32(RECORDED[f"{name}/action"])
    reward, success = labels.judged(goal_of(name), states, action)
    # the tips are estimated: only within a centimetre of the border may an arm that reaches be misjudged
    sure = np.ones(len(states), bool)
    if name.startswith("reach"):
        away = np.linalg.norm(RECORDED[f"{name}/tcp"] - RECORDED[f"{name}/target"], axis=1)
        sure = np.abs(away - 0.05) > 0.01
    np.testing.assert_array_equal(success[sure], RECORDED[f"{name}/success"][sure])
    assert np.abs(reward - RECORDED[f"{name}/reward"]).mean() < MEAN_ERROR.get(name, 0.1)
    others = [labels.holds(goal_of(other), states).any() for other in SINGLE if TASKS[other].parts != TASKS[name].parts]
    assert np.mean(others) < 0.5  # other goals do not hold by accident


def test_labels_of_steps_by_hand():
    """Reaching: 10 for being there, less what the state before was worth."""
    goal = np.array([NAMES.index("reach")])
    state = np.zeros(91, np.float32)
    state[:3], state[4:7] = (0, 0.6, 0.2), (0.05, 0.85, 0.15)
    after = state.copy()
    after[:3] = state[4:7] - labels.TCP
    action = np.zeros(4, np.float32)
    away = np.linalg.norm(state[:3] + labels.TCP - state[4:7])
    margin = np.linalg.norm(state[:3] - state[4:7])
    worth = 10 / (9 * ((away - 0.05) / margin) ** 2 + 1)
    reward, success = metaworld.label(goal, state, after, action)
    assert success and reward == pytest.approx(10 - worth, abs=1e-4) and reward.dtype == np.float32
    device, there = jax.jit(metaworld.label)(*map(jnp.asarray, (goal, state, after, action)))
    assert there and device == pytest.approx(reward, abs=1e-5) and device.dtype == np.float32
    assert not metaworld.holds(goal, state) and metaworld.holds(goal, after)
    assert not metaworld.label(goal, state, np.full(91, np.nan, np.float32), action)[1]


def test_the_target_tells_the_stage_of_a_composite_task():
    goal, action = goal_of("make-coffee"), np.zeros((1, 4), np.float32)
    state = np.zeros((1, 91), np.float32)
    state[:, :3] = 0, 0.6, 0.3
    state[:, 4:7] = 0, 0.72, 0  # the mug's place
    mug, button = (7 + 7 * labels.ENTITIES.index(name) for name in ("coffee", "coffee-button"))
    state[:, mug : mug + 3], state[:, button : button + 3] = (0, 0.72, 0), (0, 0.74, 0.3)
    first, done = labels.judged(goal, state, action)
    assert first <= 5 and not done  # the mug is there, which is but the first stage
    state[:, 4:7] = 0, 0.75, 0.3
    second, done = labels.judged(goal, state, action)
    assert second >= 5 and done  # the button is within 2 cm


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({9: 0.3}, "floating"),
        ({0: 0.9}, "out_of_table"),
        ({3: 1.4}, "pose"),
        ({10: 0.5}, "pose"),
        ({7: 0.2}, "dynamics"),
        ({1: 0.66}, "dynamics"),
    ],
)
def test_impossible_steps_are_named(change, kind):
    state = np.zeros(91, np.float32)
    state[:4], state[7:14] = (0, 0.6, 0.2, 0.5), (0.1, 0.6, 0.02, 0, 0, 0, 1)
    after = state.copy()
    assert not any(labels.implausible(state, after).values())
    for index, value in change.items():
        after[index] = value
    wrong = labels.implausible(state, after)
    assert wrong[kind] and all(labels.implausible(state, np.full(91, np.nan, np.float32)).values())


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is None, reason="its scenes need the package metaworld")
def test_a_level_plays_the_task_of_each_instruction():
    """Every task of level easy beside its own world: the same observations, successes and, summed up, rewards."""
    env, params = envs_jax.make("MetaWorld-v3?level=easy")
    numbers, steps = jnp.arange(8) * 20 + 7, 12
    keys = jax.random.split(jax.random.key(3), 8)

    def episode(number, key):
        obs, state = env.begin(number, key)

        def body(state, _):
            action = metaworld.expert_action(env, state)
            obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
            return state, (obs["state"], action, reward, info["success"], terminated)

        return obs, jax.lax.scan(body, state, None, length=steps)[1]

    first, (seen, actions, reward, success, terminated) = jax.device_get(jax.jit(jax.vmap(episode))(numbers, keys))
    assert [NAMES[goal] for goal in first["goal"][:, 0]] == list(env.level.tasks)
    np.testing.assert_array_equal(first["instruction"][:, 0], numbers)
    said = env.describe(jax.tree.map(lambda x: x[2], first))["instruction"]
    assert said == env.level.instructions[47].text
    assert env.level.book.phrases[int(numbers[0])] == env.level.instructions[7].text
    np.testing.assert_array_equal(success, terminated)
    for i in (0, 4):  # a puck, and a lock that each start settles
        one, _ = envs_jax.make(f"MetaWorld/{env.level.tasks[i]}-v3", backend="c", obs="entities")
        obs, state = one.begin(one.draw(keys[i]))
        np.testing.assert_allclose(first["state"][i], obs, atol=1e-6)
        step = jax.jit(one.advance)
        for time in range(steps):
            obs, state, worth, done = step(state, actions[i, time])
            np.testing.assert_allclose(seen[i, time], obs, atol=1e-5)
            np.testing.assert_allclose(reward[i, : time + 1].sum(), worth, atol=1e-4)
            assert not done and not success[i, time]
