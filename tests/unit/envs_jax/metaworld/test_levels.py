"""KALM's levels of Meta-World: instructions, labels of entity observations, and the world that plays a level."""

from __future__ import annotations

import importlib.util
import itertools
import re
from typing import Any, NamedTuple

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
needs_scenes = pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="its scenes need the package metaworld"
)


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
    with pytest.raises(ValueError, match="'reel'.*'real'"):
        metaworld.level("reel")


def test_no_frame_of_a_level_is_one_of_another():
    """As templates: case, punctuation and what is put in do not count."""

    def bare(frame):
        return " ".join(re.findall(r"[a-z']+|\{\}", re.sub(r"\{\w+\}", "{}", frame.lower())))

    assert bare("Your task: {done}!") == bare("your task {do}") == "your task {}"
    frames = {name: {bare(frame) for frame in level[1]} for name, level in metaworld.LEVELS.items()}
    assert [len(found) for found in frames.values()] == [20] * 4
    for one, other in itertools.combinations(frames, 2):
        assert not frames[one] & frames[other], (one, other)


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


def reached(distance: float, margin: float) -> float:
    """The reward of reaching: 10 `long_tail`, which is 0.1 at the margin, beyond the radius of 5 cm."""
    return 10 / (9 * (max(distance - 0.05, 0) / margin) ** 2 + 1)


def test_labels_of_an_episode_by_hand():
    """Reaching: what a step reaches, less what the one before reached; 10 at success; nothing before the first."""
    goal = np.array([NAMES.index("reach")])
    states, actions = np.zeros((4, 91), np.float32), np.zeros((3, 4), np.float32)
    states[:, :3], states[:, 4:7] = (0, 0.6, 0.2), (0.05, 0.85, 0.15)
    states[2, :3], states[3, :3] = (0, 0.7, 0.2), states[3, 4:7] - labels.TCP
    margin = np.linalg.norm(states[0, :3] - states[0, 4:7])
    near, nearer = (reached(np.linalg.norm(x[:3] + labels.TCP - x[4:7]), margin) for x in states[1:3])
    reward, success = metaworld.label(goal, states, actions)
    assert success.tolist() == [False, False, True] and reward.dtype == np.float32
    np.testing.assert_allclose(reward, [near, nearer - near, 10 - nearer], atol=1e-4)
    device, there = jax.jit(metaworld.label)(*map(jnp.asarray, (goal, states, actions)))
    assert there.tolist() == success.tolist() and device.dtype == np.float32
    np.testing.assert_allclose(device, reward, atol=1e-5)
    batch, _ = metaworld.label(goal[None], np.stack([states, states]), np.stack([actions, actions]))
    np.testing.assert_array_equal(batch, [reward, reward])
    assert not metaworld.holds(goal, states[0]) and metaworld.holds(goal, states[3])
    states[3] = np.nan
    assert not metaworld.label(goal, states, actions)[1].any()


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


@needs_scenes
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


class Played(NamedTuple):
    """Episodes of the expert at a level: leaves `[B, ...]`, and `[B, T, ...]` from `obs` on."""

    keys: Any
    first: Any
    obs: Any
    states: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    success: Any


def play(level, names, limits, steps):
    """An episode of each task, truncated after `limits` steps, 0 for the default. All go on after their ends."""
    env, params = envs_jax.make(f"MetaWorld-v3?level={level}")
    numbers = jnp.array([20 * env.level.tasks.index(name) + 5 for name in names])
    limits = jnp.array([limit or params.max_steps for limit in limits], jnp.int32)
    keys = jax.random.split(jax.random.key(3), len(names))

    def episode(number, key, limit):
        obs, state = env.begin(number, key)

        def body(state, _):
            action = metaworld.expert_action(env, state)
            obs, state, *rest, info = env.step(key, state, action, params.replace(max_steps=limit))
            return state, (obs, state, action, *rest, info["success"])

        return obs, jax.lax.scan(body, state, None, length=steps)[1]

    first, steps = jax.device_get(jax.jit(jax.vmap(episode))(numbers, keys, limits))
    return Played(keys, first, *steps)


@pytest.fixture(scope="module")
def hard():
    """Each task of level hard; make-coffee a second time, with a limit of three steps."""
    return play("hard", ["hammer", "soccer", *COMPOSITES, "make-coffee"], [0, 0, 0, 0, 3], 230)


def ends_as_it_should(played, limits):
    """Rewards up to a success sum up to 10, and never to more; success terminates an episode, and time truncates it."""
    assert played.success.any(1).all() and not played.success[:, 0].any()
    worth = played.reward.cumsum(1)
    np.testing.assert_allclose(worth[played.success], 10, atol=1e-4)
    assert worth.max() < 10 + 1e-4
    np.testing.assert_array_equal(played.terminated, played.success)
    number = 1 + np.arange(played.reward.shape[1])
    np.testing.assert_array_equal(played.truncated, number >= np.array(limits)[:, None])


@needs_scenes
def test_success_pays_ten_once_and_terminates(hard):
    """The tasks of level hard, of one and of two stages, and reaching, which is one of level real."""
    ends_as_it_should(hard, [100, 100, 100, 100, 3])
    first = hard.success.argmax(1)
    assert first[[0, 1, 2]].max() < 100 < first[3]  # locked-door-open takes longer than an episode
    assert hard.reward.cumsum(1)[~hard.success].max() < 9.9  # so success itself pays; in reaching it is 10 anyway
    ends_as_it_should(play("real", ["reach", "reach"], [0, 3], 70), [100, 3])


@needs_scenes
def test_padded_states_play_one_stage_and_two(hard):
    """Hammering and making coffee beside their own worlds, to success; coffee goes on to its second stage."""
    inner, end = hard.states.inner, hard.success.argmax(1) + 1
    targets = inner.start.targets
    assert targets.shape[2:] == (2, 3) and not targets[:2, :, 1].any() and targets[2:, :, 1].any(-1).all()
    for i in (0, 2):
        name = NAMES[hard.first["goal"][i, 0]]
        one, _ = envs_jax.make(f"MetaWorld/{name}-v3", backend="c", obs="entities")

        def body(state, action, world=one):
            obs, state, *rest = world.advance(state, action)
            return state, (obs, state.stage, *rest)

        obs, state = one.begin(one.draw(hard.keys[i]))
        np.testing.assert_allclose(hard.first["state"][i], obs, atol=1e-6)
        actions = hard.action[i, : end[i]]
        _, (seen, stage, reward, success) = jax.jit(jax.lax.scan, static_argnums=0)(body, state, actions)
        np.testing.assert_allclose(hard.obs["state"][i, : end[i]], seen, atol=1e-5)
        np.testing.assert_array_equal(inner.stage[i, : end[i]], stage)
        np.testing.assert_array_equal(hard.success[i, : end[i]], success)
        np.testing.assert_allclose(hard.reward[i, : end[i]].cumsum(), jnp.where(success, 10, reward), rtol=0, atol=1e-4)
        assert not inner.physics[i, :, one.physics.size :].any()
    for i in (2, 3):
        stage, change = inner.stage[i], int(inner.stage[i].argmax())
        np.testing.assert_array_equal(stage, np.arange(len(stage)) >= change)
        assert 0 < change < end[i] - 1
        np.testing.assert_allclose(hard.obs["state"][i, :, 4:7], targets[i, np.arange(len(stage)), stage], atol=1e-6)
        worth = hard.reward[i].cumsum()
        assert worth[: change + 1].max() <= 5 + 1e-4 and worth[change + 1 :].min() >= 5 - 1e-4


@needs_scenes
def test_labels_of_noisy_play_are_the_worlds_rewards():
    """Rewards read the action too, so that of the step before has its own: judged under the next action, steps would
    be paid with a mean error of 0.04."""
    env, params = envs_jax.make("MetaWorld-v3?level=real")
    numbers, steps = jnp.arange(10) * 20, 60

    def episode(number, key):
        obs, state = env.begin(number, key)

        def body(state, key):
            action = metaworld.expert_action(env, state) + 0.5 * jax.random.normal(key, (4,))
            action = jnp.clip(action, -1, 1)
            obs, state, reward, _, _, info = env.step(key, state, action, params)
            return state, (obs["state"], action, reward, info["success"])

        return obs, jax.lax.scan(body, state, jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(5), 10)
    first, (seen, action, paid, done) = jax.device_get(jax.jit(jax.vmap(episode))(numbers, keys))
    states = np.concatenate([first["state"][:, None], seen], axis=1)
    reward, success = metaworld.label(first["goal"], states, action)
    inside = np.cumsum(done, axis=1) - done == 0
    assert (success == done)[inside].mean() > 0.99
    assert np.abs(reward - paid)[inside].mean() < 0.015


@needs_scenes
def test_labels_of_an_expert_in_composite_tasks(hard):
    """Success is the world's, and so is nearly what rewards sum up to, but for one step: where the stage changes, the
    state shows the second target, and the label counts the second stage a step before the world does."""
    errors, sums = [], []
    for i in (2, 3):
        change, end = int(hard.states.inner.stage[i].argmax()), int(hard.success[i].argmax()) + 1
        states = np.concatenate([hard.first["state"][i][None], hard.obs["state"][i, :end]])
        goal, action = hard.first["goal"][i], hard.action[i, :end]
        reward, success = metaworld.label(goal, states, action)
        np.testing.assert_array_equal(success, hard.success[i, :end])
        assert reward.sum() == pytest.approx(10, abs=1e-3)
        error = reward - hard.reward[i, :end]
        errors.append(np.abs(error))
        sums.append(np.abs(np.delete(error.cumsum(), change)).mean())
    assert np.concatenate(errors).mean() < 0.07  # as docs/environments/metaworld.md says
    assert max(sums) < 0.07
