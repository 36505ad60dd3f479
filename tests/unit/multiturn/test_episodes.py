"""Episodes of which fewer are played at a time than there are: the same ones, none left out, and in the order of a
queue."""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.multiturn import rollout
from llmrl_jax.multiturn.episodes import Episodes
from llmrl_jax.multiturn.evaluate import Evaluator
from llmrl_jax.multiturn.group import GroupConfig, GroupLearner, make_group_learner
from tests.unit.multiturn.conversations import GROUP, agent
from tests.unit.multiturn.test_starts import learner_of


def test_a_row_that_ends_begins_the_next_episode():
    """Beside a queue of each group, with episodes of drawn lengths: who ends first begins the next one."""
    rng, groups, rows, each = np.random.default_rng(0), 3, 4, 11
    lengths = rng.integers(1, 9, (groups, each))
    start = jnp.arange(groups * each)
    episodes = Episodes.first(start, {"x": start[:, None]}, groups, rows)
    following = jax.jit(Episodes.next)
    left, live = lengths[:, :rows].copy(), np.ones((groups, rows), bool)
    begun, step = {(g, i): 0 for g in range(groups) for i in range(rows)}, 0
    while live.any():
        step, left = step + 1, left - live
        ended = live & (left == 0)
        begins, episodes = following(episodes, jnp.asarray(ended.reshape(-1)))
        begins, number = np.asarray(begins).reshape(groups, rows), np.asarray(episodes.number)
        obs, env = episodes.beginning()
        np.testing.assert_array_equal(obs, episodes.index)
        np.testing.assert_array_equal(env["x"][:, 0], obs)
        for g, r in np.argwhere(begins):
            assert (g, number[g, r]) not in begun
            begun[g, number[g, r]], left[g, r] = step, lengths[g, number[g, r]]
        live = live & (begins | ~ended)
    assert len(begun) == groups * each
    for g in range(groups):
        busy = [0] * rows
        for i in range(each):
            free = heapq.heappop(busy)
            assert begun[g, i] == free
            heapq.heappush(busy, free + lengths[g, i])


def test_what_rows_have_is_their_episodes():
    number = jnp.array([[2, 0], [1, 3]])
    episodes = Episodes(jnp.arange(8), jnp.arange(8), number)
    np.testing.assert_array_equal(episodes.at_rows(jnp.arange(8) * 10), [20, 0, 50, 70])
    spread, plays = episodes.by_episode(jnp.array([20, 0, 50, 70]))
    np.testing.assert_array_equal(plays, [1, 0, 1, 0, 0, 1, 0, 1])
    np.testing.assert_array_equal(spread[plays], [0, 20, 50, 70])


@cache
def played(memory: str, at_once: int, mesh: str = ""):
    """The record of 16 episodes, of which the longest ones have more tokens than they may."""
    program = agent(memory=memory, mesh=mesh)
    size = 40 if memory == "reprompt" else 48
    config = replace(GROUP, num_envs=16, at_once=at_once, episode_tokens=size, anchor_coef=1.0)
    learner = GroupLearner(config, program.policy, program.env, program.env_params, program.mesh)
    state = learner.init(jax.random.key(0))

    @jax.jit
    def play(state):
        begun = learner.begin(state, jax.random.key(1))
        return learner.conversation.play(state.params, state.frozen, begun, jax.random.key(2), learner.steps)[1:]

    return jax.device_get(play(state))


@pytest.mark.parametrize("memory", ["reprompt", pytest.param("append", marks=pytest.mark.slow)])
@pytest.mark.parametrize("at_once", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_episodes_do_not_depend_on_how_many_are_played_at_once(memory, at_once):
    """What is sampled included; the world's own draws would differ."""
    (expected, steps), (record, others) = played(memory, 0), played(memory, at_once)
    if memory == "reprompt":
        length = (record.role != 0).sum(1)
        assert (length == 40).any() and (length < 40).any()
    np.testing.assert_allclose(record.log_prob, expected.log_prob, atol=2e-6)
    same = lambda record: record.replace(log_prob=0)  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, same(record), same(expected))
    for name in ("done", "cut"):
        np.testing.assert_array_equal(getattr(others, name), getattr(steps, name))
    for name in steps.info:
        np.testing.assert_array_equal(others.info[name][record.acts], steps.info[name][record.acts])
    np.testing.assert_array_equal(others.anchor[record.decides], steps.anchor[record.decides])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 1], ids=["a group over devices", "a group on each device"])
def test_a_mesh_changes_no_episode(rows, monkeypatch):
    monkeypatch.setattr(rollout, "GROUP", {"cpu": rows, "other": rows})
    (record, _), (expected, _) = played.__wrapped__("reprompt", 8, "data=8"), played.__wrapped__("reprompt", 0)
    for name in ("token", "role", "begins", "acts", "reward"):
        np.testing.assert_array_equal(getattr(record, name), getattr(expected, name), name)


@pytest.mark.slow
def test_a_mesh_changes_no_evaluation():
    def tokens(mesh):
        program = agent(memory="reprompt", mesh=mesh)
        params, frozen = program.policy.init(jax.random.key(1))
        evaluator = Evaluator(program.policy, program.env, program.env_params, 12, chunk=24, at_once=8)
        return evaluator(params, frozen, jax.random.key(2)).tokens

    jax.tree.map(np.testing.assert_array_equal, tokens("data=2,fsdp=2,tensor=2"), tokens(""))


@pytest.mark.slow
def test_few_rows_wait_for_the_longest_episode():
    """In a game that ends by chance of the policy: of all tokens that are computed, more are of use."""

    def utilisation(at_once):
        program = agent(env="FrozenLake-v1?text=grid", memory="reprompt", reply_tokens=5)
        config = replace(GROUP, num_envs=64, at_once=at_once, episode_tokens=2048, minibatches=8, epochs=1)
        learner = make_group_learner(config, program.policy, program.env, program.env_params)
        _, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
        assert float(metrics["episodes"]) == 64
        return float(metrics["utilisation"])

    assert utilisation(16) > 1.3 * utilisation(0)


def test_stored_starts_are_those_of_all_episodes():
    def updated(at_once):
        learner = learner_of()
        config = replace(learner.config, at_once=at_once)
        learner = GroupLearner(config, learner.policy, learner.env, learner.env_params, None)
        state = learner.init(jax.random.key(0))
        starts = state.starts.replace(success=jnp.full(16, 0.5))  # its copies are played again
        state = state.replace(starts=starts)

        @jax.jit
        def update(state):
            begun = learner.begin(state, jax.random.key(1))
            play = learner.conversation.play(state.params, state.frozen, begun, jax.random.key(2), learner.steps)
            return learner.keep_starts(state, jax.random.key(1), begun, *play[1:])

        starts, metrics = update(state)
        assert (starts.success != 0.5).any() and metrics["success_stored"] >= 0
        return starts, metrics

    jax.tree.map(np.testing.assert_array_equal, updated(16), updated(0))


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"num_envs 64 .*at_once 12"):
        GroupConfig(at_once=12)
    program = agent(memory="reprompt", mesh="data=8")
    with pytest.raises(ValueError, match=r"at_once.*4"):
        config = replace(GROUP, num_envs=16, at_once=4)
        make_group_learner(config, program.policy, program.env, program.env_params, program.mesh)
