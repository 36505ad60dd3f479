"""NovelD and APT by hand, and in DQN."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.control.debug import DebugParams, Match
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.dqn import DQNConfig, make_dqn
from llmrl_jax.rl.networks import NetworkQPolicy
from llmrl_jax.rl.novelty import APT, APTConfig, NovelD, NovelDConfig, neighbour_distance


SIZES = NovelDConfig(outputs=8, hidden=16, alpha=0.5)
APT_SIZES = APTConfig(outputs=6, hidden=16, neighbours=3, others=8, learning_rate=1e-2)


def steps(seed=0, shape=(5, 2), reward=0.0):
    rng = np.random.default_rng(seed)
    obs, after = (jnp.asarray(rng.normal(size=(*shape, 3)), jnp.float32) for _ in range(2))
    no = jnp.zeros(shape, bool)
    return Transitions(obs, jnp.asarray(rng.integers(0, 4, shape), jnp.int32), jnp.full(shape, reward), after, no, no)


@cache
def apt():
    bonus = APT(4, APT_SIZES)
    return bonus, bonus.init(jax.random.key(0), jnp.zeros((2, 3)))


def test_noveld_by_hand():
    bonus = NovelD(SIZES)
    state = bonus.init(jax.random.key(0), jnp.zeros((2, 3)))
    played = steps()
    after, reward, metrics = jax.jit(bonus.reward)(state, played, 0.9)
    # the moments of observations are updated first, the errors are those of RND
    before = bonus.errors(after, state.whole["params"], played.obs, 2)
    reached = bonus.errors(after, state.whole["params"], played.next_obs, 2)
    gained = np.maximum(np.asarray(reached) - 0.5 * np.asarray(before), 0)
    assert (gained == 0).any() and (gained > 0).any()
    total, totals = np.zeros(2), []
    for row in gained:
        total = 0.99 * total + row
        totals.append(total)
    np.testing.assert_allclose(reward, gained / np.std(totals), rtol=1e-3)
    np.testing.assert_allclose(after.rows, total, rtol=1e-4)
    assert float(metrics["noveld_error"]) == pytest.approx(float(reached.mean()), rel=1e-4)
    assert float(bonus.stream(state).coef) == 1


def test_an_update_has_as_many_steps_as_neighbours():
    bonus, state = apt()
    few = jax.tree.map(lambda x: x[:1, :1], steps())
    with pytest.raises(ValueError, match=f"1 steps.*apt.neighbours {APT_SIZES.neighbours}"):
        bonus.reward(state, few, 0.9)


def test_nearest_neighbours_by_hand():
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    found = neighbour_distance(jnp.asarray(x), jnp.asarray(x[2:]), 3)
    every = np.sort(np.linalg.norm(x[:, None] - x[None, 2:], axis=-1), axis=1)
    np.testing.assert_allclose(found, every[:, :3], rtol=1e-5)
    assert (found[2:, 0] == 0).all(), "rows that are equal have no distance"
    assert neighbour_distance(jnp.asarray(x), jnp.asarray(x[:2]), 3).shape == (6, 2)


def test_apt_by_hand():
    """Two rollouts: the last 8 of 10 steps are the neighbours, distances are divided by the mean of all so far."""
    bonus, state = apt()
    reward, seen = jax.jit(bonus.reward), []
    for seed in (0, 1):
        played = steps(seed)
        z = np.asarray(bonus.encoded(state.whole["params"], played.next_obs, 2)).reshape(10, 6)
        distance = np.sort(np.linalg.norm(z[:, None] - z[None, -8:], axis=-1), axis=1)[:, :3]
        seen.append(distance.mean())
        state, found, metrics = reward(state, played, 0.9)
        excess = np.maximum(distance / np.mean(seen) - 1e-4, 0)
        np.testing.assert_allclose(found.reshape(-1), np.log1p(excess.mean(axis=1)), atol=1e-5)
        assert float(metrics["apt_distance"]) == pytest.approx(distance.mean(), abs=1e-3)
    assert bonus.stream(state) is None


def test_apt_learns_effects():
    """The action is what is added to the observation: it becomes predictable, and the reward never reads it."""
    bonus, state = apt()
    rng = np.random.default_rng(0)
    x, action = jnp.asarray(rng.normal(size=(64, 3)), jnp.float32), jnp.asarray(rng.integers(0, 4, 64), jnp.int32)
    y = x + jnp.asarray([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]], jnp.float32)[action]
    no = jnp.zeros(64, bool)
    batch = Transitions(x, action, jnp.zeros(64), y, no, no)
    train = jax.jit(lambda s: jax.lax.scan(lambda s, _: bonus.update(s, batch, jax.random.key(0)), s, None, 300))
    _, metrics = train(state)
    losses = np.asarray(metrics["apt_backward_loss"])
    assert losses[0] > 1 and losses[-1] < 0.2
    forward = np.asarray(metrics["apt_forward_loss"])
    assert forward[-1] < forward[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noveld", "apt"])
def test_in_dqn(kind):
    """Stored rewards are the bonus's, and its networks learn with every gradient step."""
    bonus = NovelD(SIZES) if kind == "noveld" else APT(3, APT_SIZES)
    config = DQNConfig(num_envs=4, num_steps=3, gradient_steps=1, batch_size=8, replay_size=80, pool_size=8)
    env, params = EpisodeStatistics(Match(3)), DebugParams(length=np.int32(6))
    learner = make_dqn(config, env, params, NetworkQPolicy(3, hidden=(8,)), bonus=bonus)
    state = learner.init(jax.random.key(0))
    after, metrics = jax.jit(learner.update)(state)
    assert float(metrics["nonfinite"]) == 0 and f"{kind}_reward" in metrics
    stored = np.asarray(after.replay.items.reward)[:3]
    assert (stored >= 0).all() and np.ptp(stored) > 0.1  # few observations differ, so that most distances may be 0
    old, new = (jax.tree.leaves(s.bonus.whole["params"]) for s in (state, after))
    assert any(np.abs(np.asarray(a) - np.asarray(b)).max() > 0 for a, b in zip(old, new))


def test_bad_options():
    with pytest.raises(ValueError, match="noveld.alpha.*-1"):
        NovelDConfig(alpha=-1.0)
    with pytest.raises(ValueError, match="noveld.hidden.*0"):
        NovelDConfig(hidden=0)
    with pytest.raises(ValueError, match="apt.others.*4"):
        APTConfig(others=4)
