"""DQN's further options: guides, epsilon that waits for a reward, clipped rewards, targets by steps, shared
encoders."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.control.debug import DebugParams, Match
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.dqn import NOT_YET, DQNConfig, FirstReward, crosses_multiple, decayed, make_dqn, mixed_exploration
from llmrl_jax.rl.policy import Policy


ENV, PARAMS = EpisodeStatistics(Match(3)), DebugParams(length=np.int32(6))
TINY = DQNConfig(
    num_envs=4, num_steps=5, gradient_steps=1, batch_size=8, replay_size=80, learning_rate=0.05, pool_size=8,
    epsilon_steps=40,
)  # fmt: skip


class Heads(Policy):
    """Values from an encoder and a head: `obs @ encoder @ head`."""

    heads = ("head",)

    def init(self, key, obs):
        a, b = jax.random.split(key)
        return {"encoder": jax.random.normal(a, (3, 3)), "head": jax.random.normal(b, (3, 3))}, ()

    def q(self, params, frozen, obs):
        return obs @ params["encoder"] @ params["head"]


class Knows(Policy):
    """A guide that names the symbol."""

    def init(self, key, obs):
        return {"scale": jnp.float32(5)}, ()

    def q(self, params, frozen, obs):
        return params["scale"] * obs


def updated(config, policy=None, guide=None, updates=1):
    learner = make_dqn(config, ENV, PARAMS, policy or Heads(), guide=guide)
    state, update = learner.init(jax.random.key(0)), jax.jit(learner.update)
    out = [state]
    metrics = {}
    for _ in range(updates):
        state, metrics = update(state)
        out.append(state)
    return out, metrics


def test_guided_actions_by_hand():
    q, guide = jnp.array([[1.0, 3.0, 2.0]] * 2), jnp.array([[0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])
    probs = jax.jit(lambda e, f: mixed_exploration(q, guide, q, e, f).probs)
    # 0.4 random, half of them the guide's: 0.6 best + 0.2 uniform + 0.2 guide
    third = 0.2 / 3
    np.testing.assert_allclose(
        probs(0.4, 0.5), [[third, 0.6 + third, 0.2 + third], [0.2 + third, 0.6 + third, third]], atol=1e-6
    )
    np.testing.assert_allclose(probs(1.0, 1.0), [[0, 0, 1], [1, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(probs(0.0, 0.5), [[0, 1, 0], [0, 1, 0]], atol=1e-6)
    mask = jnp.array([[True, True, False], [True, True, True]])
    offered = mixed_exploration(q, guide, {"action_mask": mask}, 1.0, 1.0).probs
    np.testing.assert_allclose(offered[0], [1, 0, 0], atol=1e-6)  # the guide's best is not offered


def test_a_guide_plays_the_random_actions():
    """It knows the answer: the return of random play alone is a third of the length."""
    config = replace(TINY, epsilon_start=1.0, epsilon_end=1.0, guide_fraction=1.0, num_steps=6)
    states, metrics = updated(config, guide=Knows())
    assert float(metrics["episode_return"]) == 6
    assert float(states[0].frozen["guide"][0]["scale"]) == 5
    assert "guide_fraction" in states[0].hparams and "reward_clip" not in states[0].hparams
    with pytest.raises(ValueError, match=r"dqn\.acting.*softmax.*epsilon"):
        make_dqn(replace(TINY, acting="softmax", epsilon_steps=50_000), ENV, PARAMS, Heads(), guide=Knows())
    with pytest.raises(ValueError, match=r"dqn\.guide-fraction is 1\.0"):
        make_dqn(config, ENV, PARAMS, Heads())


def test_epsilon_waits_for_the_first_reward():
    first = FirstReward.start()
    seen = []
    for update, reward in enumerate([0.0, 0.6, 0.6, 5.0, 0.0]):
        epsilon = decayed(jnp.int32(update), 2.0, 1.0, 0.2, first)
        seen.append((float(epsilon), int(first.update)))
        first = first.after(jnp.array([reward]), jnp.int32(update + 1))
    # the sum passes 1 in update 2, so update 3 is the first that counts
    np.testing.assert_allclose(seen, [(1, NOT_YET), (1, NOT_YET), (1, NOT_YET), (1, 3), (0.6, 3)], atol=1e-6)
    costs = jnp.array([1.0, -0.25, -5.0])  # of Housekeep's actions
    assert int(FirstReward.start().after(costs, jnp.int32(4)).update) == 4
    states, metrics = updated(replace(TINY, epsilon_after_reward=True), updates=3)
    assert int(states[1].first_reward.update) == 1  # random play names some symbols
    assert float(metrics["epsilon"]) == pytest.approx(1 - 0.95 * 1 / 2)
    _, metrics = updated(replace(TINY, epsilon_after_reward=True), updates=1)
    assert float(metrics["epsilon"]) == 1  # that with which it played, though the update had the first reward
    assert updated(TINY)[0][0].first_reward == ()


@pytest.mark.slow
def test_gradient_steps_wait_for_the_first_reward():
    waits = replace(TINY, learn_after_reward=True)
    states, metrics = updated(waits)
    assert int(states[1].first_reward.update) == 1 and float(metrics["loss"]) > 0
    unpaid, metrics = updated(replace(waits, reward_clip=1e-6), updates=3)
    assert int(unpaid[-1].first_reward.update) == NOT_YET and float(metrics["loss"]) == 0
    for before, after in zip(jax.tree.leaves(unpaid[0].params), jax.tree.leaves(unpaid[-1].params), strict=True):
        np.testing.assert_array_equal(before, after)
    assert int(unpaid[-1].replay.size) == 60
    assert float(metrics["epsilon"]) < float(TINY.epsilon_start)  # which does not wait


def test_clipped_rewards_are_stored():
    states, metrics = updated(replace(TINY, reward_clip=0.25))
    stored = np.asarray(states[1].replay.items.reward)[:5]
    assert set(np.unique(stored)) == {0.0, 0.25}
    assert float(metrics["episode_return"]) != float(metrics["episode_return"]) or float(metrics["episode_return"]) >= 1


@pytest.mark.slow
def test_targets_change_every_so_many_steps():
    large = [2**31 - 1, 2**31 - 2, *range(1_999_990, 2_000_010), *range(65_530, 65_540)]
    for every, steps in ((8000, 256), (50, 20), (20, 20), (7, 20), (2_000_000, 1999), (2**31 - 1, 2**31 - 2)):
        updates = [*range(300), *large]
        found = crosses_multiple(jnp.array(updates, jnp.int32), steps, every).tolist()
        assert found == [(u + 1) * steps // every > u * steps // every for u in updates]
    states, _ = updated(replace(TINY, target_steps=50), updates=3)
    first, one, two, three = (np.asarray(s.target["head"]) for s in states)
    np.testing.assert_array_equal(first, one)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(three, np.asarray(states[3].params["head"]))  # 60 steps


@pytest.mark.slow
def test_the_pool_is_renewed_now_and_then():
    states, _ = updated(replace(TINY, pool_every=2), updates=3)
    pools = [np.asarray(s.runner.env_state.pool[0]) for s in states]
    assert np.any(pools[0] != pools[1]) and np.any(pools[2] != pools[3])
    np.testing.assert_array_equal(pools[1], pools[2])


@pytest.mark.slow
def test_a_shared_encoder_is_the_online_one():
    """A spoilt encoder of the target network changes nothing if it is shared."""
    moved = {}
    for share in (True, False):
        learner = make_dqn(replace(TINY, share_encoder=share, target_every=100), ENV, PARAMS, Heads())
        state, update = learner.init(jax.random.key(0)), jax.jit(learner.update)
        spoilt = state.replace(target={**state.target, "encoder": state.target["encoder"] * 7})
        found = [np.asarray(update(s)[0].params["head"]) for s in (state, spoilt)]
        moved[share] = np.abs(found[0] - found[1]).max()
    assert moved[True] == 0 < 1e-4 < moved[False]


def test_bad_options():
    class Plain(Heads):
        heads = ()

    with pytest.raises(ValueError, match=r"dqn\.share_encoder.*True"):
        make_dqn(replace(TINY, share_encoder=True), ENV, PARAMS, Plain())
    with pytest.raises(ValueError, match="target_every.*3.*dqn.target_steps 100"):
        DQNConfig(target_steps=100, target_every=3)
    with pytest.raises(ValueError, match="share-encoder.*True.*--dqn.target-every 0"):
        DQNConfig(target_every=0, share_encoder=True)
    with pytest.raises(ValueError, match="reward_clip.*0"):
        DQNConfig(reward_clip=0.0)
