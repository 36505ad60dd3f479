"""Credit of replies beside loops over turns and tokens in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.multiturn.credit import (
    anchored,
    episode_returns,
    token_advantages,
    turn_advantages,
)
from llmrl_jax.multiturn.group import GroupConfig, GroupLearner
from llmrl_jax.multiturn.record import REPLY, WORLD, Record
from llmrl_jax.multiturn.rollout import Steps
from tests.unit.multiturn.conversations import drawn_record


GAMMA, LAMBDA = 0.9, 0.8


def turns_of(record, row):
    """The turns of a row in order: the places where they are decided and act, and what follows. None: not known yet."""
    turns, places = [], np.arange(record.token.shape[1])
    for decided in places[np.asarray(record.decides[row])]:
        acting = places[(places > decided) & np.asarray(record.acts[row])]
        following = places[(places > decided) & np.asarray(record.decides[row])]
        act = acting[0] if len(acting) and (not len(following) or acting[0] < following[0]) else None
        turns.append([decided, act])
    out = []
    for i, (decided, act) in enumerate(turns):
        if act is None:
            out.append((decided, None, None))
            continue
        if record.terminated[row, act]:
            out.append((decided, act, "end"))
            continue
        until = turns[i + 1][0] if i + 1 < len(turns) else record.token.shape[1]
        last = [p for p in places[np.asarray(record.bootstraps[row])] if act < p <= until]
        if last:
            out.append((decided, act, ("timeout", last[0])))
        elif i + 1 < len(turns):
            out.append((decided, act, ("next", turns[i + 1][0])))
        else:
            out.append((decided, act, None))
    return out


@pytest.mark.parametrize("seed", range(4))
def test_turns_are_credited_as_a_loop_over_turns_does(seed):
    record, reward = drawn_record(np.random.default_rng(seed))
    credit = turn_advantages(record, jnp.asarray(reward, jnp.float32), GAMMA, LAMBDA)
    counted = 0
    for row in range(len(reward)):
        advantage, known = 0.0, {}
        for decided, act, after in reversed(turns_of(record, row)):
            if after is None or act is None:
                assert not credit.turn[row, decided] and not credit.resolved[row, decided]
                advantage = 0.0
                continue
            later = 0.0 if after == "end" else float(record.value[row, after[1]])
            continued = advantage if after != "end" and after[0] == "next" else 0.0
            delta = reward[row, act] + GAMMA * later - float(record.value[row, decided])
            advantage = delta + GAMMA * LAMBDA * continued
            known[decided] = advantage
            assert credit.turn[row, decided]
            np.testing.assert_allclose(credit.returns[row, decided], advantage + record.value[row, decided], rtol=2e-5,
                                       atol=1e-5)  # fmt: skip
            said = np.arange(decided + 1, act + 1)
            assert np.asarray(credit.learn[row, said]).all()
            np.testing.assert_allclose(credit.advantage[row, said], advantage, rtol=2e-5, atol=1e-5)
            counted += len(said)
        assert set(np.flatnonzero(credit.turn[row])) == set(known)
    assert counted == int(credit.learn.sum()) > 20


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["as drawn", "ends with an observation", "forced tokens"])
def test_tokens_are_credited_as_a_loop_over_tokens_does(seed, kind):
    record, reward = drawn_record(np.random.default_rng(10 + seed))
    if kind == "forced tokens":
        record = record.replace(free=record.free & (jnp.arange(record.token.shape[1]) % 2 == 0))
    if kind == "ends with an observation":  # the value that follows its first row's last turn is the record's last
        length = 1 + int(np.flatnonzero(record.decides[0])[-1])
        record, reward = jax.tree.map(lambda x: x[:, :length], (record, reward))
    credit, said = token_advantages(record, jnp.asarray(reward, jnp.float32), GAMMA, LAMBDA), []
    passed = 0
    for row in range(len(reward)):
        advantage = 0.0
        for decided, act, after in reversed(turns_of(record, row)):
            if after is None or act is None:
                advantage = 0.0
                continue
            later = 0.0 if after == "end" else float(record.value[row, after[1]])
            advantage = advantage if after != "end" and after[0] == "next" else 0.0
            for place in range(act, decided, -1):
                discount = GAMMA if place == act else 1.0
                given = reward[row, act] if place == act else 0.0
                before = float(record.value[row, place - 1])
                if not record.free[row, place] and place > decided + 1:  # it is passed over
                    later, advantage = given + discount * later, discount * advantage
                    assert not credit.fits[row, place - 1] and not credit.advantage[row, place]
                    passed += 1
                    continue
                advantage = given + discount * later - before + discount * LAMBDA * advantage
                later = before
                np.testing.assert_allclose(credit.advantage[row, place], advantage, rtol=3e-5, atol=2e-5)
                np.testing.assert_allclose(credit.returns[row, place - 1], advantage + before, rtol=3e-5, atol=2e-5)
                assert credit.fits[row, place - 1]
                said.append((row, place))
    assert int(credit.fits.sum()) == len(said) > 15 and (passed > 5) == (kind == "forced tokens")
    assert int(credit.learn.sum()) == sum(bool(record.free[x]) for x in said)


def test_values_that_are_read_are_fitted():
    """Two turns of two tokens that are read and three that are written, of which the second alone had alternatives.
    Values before it, and where observations end, are read; the third is passed over. At the end there is a reward of 1.
    """
    record = Record.empty(1, 10)

    def at(*places):
        return jnp.zeros((1, 10), bool).at[0, jnp.array(places)].set(True)

    record = record.replace(
        role=jnp.array([[WORLD] * 2 + [REPLY] * 3 + [WORLD] * 2 + [REPLY] * 3], jnp.int8),
        free=at(3, 8),
        decides=at(1, 6),
        acts=at(4, 9),
        terminated=at(9),
        value=jnp.full((1, 10), 0.5),
    )
    credit = token_advantages(record, jnp.zeros((1, 10)).at[0, 9].set(1.0), 0.9, 1.0)
    assert np.flatnonzero(credit.fits[0]).tolist() == [1, 2, 6, 7]
    assert np.flatnonzero(credit.learn[0]).tolist() == [3, 8]
    np.testing.assert_allclose(credit.returns[0, jnp.array([1, 2, 6, 7])], [0.9, 0.9, 1.0, 1.0], rtol=1e-6)
    other = record.replace(value=record.value.at[0, jnp.array([0, 3, 4, 5, 8, 9])].set(7.0))  # which are never fitted
    again = token_advantages(other, jnp.zeros((1, 10)).at[0, 9].set(1.0), 0.9, 0.5)
    same = token_advantages(record, jnp.zeros((1, 10)).at[0, 9].set(1.0), 0.9, 0.5)
    np.testing.assert_array_equal(again.advantage, same.advantage)


def test_a_turn_is_learned_from_once():
    record, reward = drawn_record(np.random.default_rng(3))
    first = turn_advantages(record, jnp.asarray(reward, jnp.float32), GAMMA, LAMBDA)
    again = turn_advantages(record.replace(learned=first.turn), jnp.asarray(reward, jnp.float32), GAMMA, LAMBDA)
    assert first.turn.any() and not again.turn.any() and not again.learn.any()
    np.testing.assert_array_equal(first.resolved, again.resolved)


def test_forced_tokens_are_not_learned_from():
    record, reward = drawn_record(np.random.default_rng(4))
    forced = record.replace(free=record.free & (jnp.arange(record.token.shape[1]) % 2 == 0))
    credit = turn_advantages(forced, jnp.asarray(reward, jnp.float32), GAMMA, LAMBDA)
    assert credit.learn.any() and not np.asarray(credit.learn)[:, 1::2].any()


def test_turns_in_equal_states_are_compared_within_their_group():
    rng = np.random.default_rng(0)
    returns, state = rng.normal(size=(6, 5)).astype(np.float32), rng.integers(0, 3, (6, 5))
    decides = rng.random((6, 5)) < 0.7
    for kind in ("centred", "grpo"):
        ours = anchored(jnp.asarray(returns), jnp.asarray(decides), jnp.asarray(state, jnp.int32), 3, kind)
        for group in (slice(0, 3), slice(3, 6)):
            for value in range(3):
                same = decides[group] & (state[group] == value)
                centred = returns[group] - returns[group][same].mean() if same.any() else returns[group]
                if kind == "grpo" and same.any():
                    centred = centred / (returns[group][same].std() + 1e-4)
                np.testing.assert_allclose(np.asarray(ours)[group][same], centred[same], rtol=1e-4, atol=1e-5)
        assert not np.asarray(ours)[~decides].any()


def test_returns_of_episodes_are_discounted_by_turns():
    record, reward = drawn_record(np.random.default_rng(6))
    ours = episode_returns(record, jnp.asarray(reward, jnp.float32), GAMMA)
    for row in range(len(reward)):
        total = 0.0
        for decided, act, after in reversed(turns_of(record, row)):
            if act is None:
                continue
            total = 0.0 if after == "end" or (after and after[0] == "timeout") else total
            total = reward[row, act] + GAMMA * total
            np.testing.assert_allclose(ours[row, decided], total, rtol=2e-5, atol=1e-5)
    assert (np.asarray(record.role) == REPLY).any()


def test_groups_of_equal_returns_are_idle():
    """Five groups of five whose deviation is that of rounding, beside one that differs by 0.1 in a return."""
    returns = np.repeat(np.float32([0.9, 0.964, 0.9, 0.964, 0.9, 0.5]), 5)
    returns[-1] = 0.6
    assert (np.asarray(jnp.std(jnp.asarray(returns).reshape(6, 5), axis=1)) > 0).all()
    record = Record.empty(30, 2).replace(
        role=jnp.full((30, 2), REPLY, jnp.int8),
        decides=jnp.zeros((30, 2), bool).at[:, 0].set(True),
        acts=jnp.zeros((30, 2), bool).at[:, 1].set(True),
        free=jnp.ones((30, 2), bool),
        reward=jnp.zeros((30, 2)).at[:, 1].set(returns),
    )
    learner = GroupLearner.__new__(GroupLearner)  # whose credit needs no world
    learner.config = GroupConfig(num_envs=30, minibatches=1, group=5, keep="top_p")
    steps = Steps({}, record.terminated, record.terminated, (), jnp.int32(0))
    credit, report = jax.jit(lambda x: learner.credit(x, steps, {"keep_groups": jnp.float32(1)}))(record)
    np.testing.assert_allclose(report["idle_groups"], 5 / 6, rtol=1e-6)
    np.testing.assert_allclose(report["kept_groups"], 1 / 6, rtol=1e-6)
    np.testing.assert_allclose(report["reward_std"], 0.04 / 6, rtol=1e-5)
    assert not credit.learn[:25].any() and credit.learn[25:].all()
