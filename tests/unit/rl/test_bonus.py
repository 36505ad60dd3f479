"""Bonuses: random network distillation by hand, and bonuses in PPO, alone and on eight devices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.bonus import Moments, Stream, one_reward, stream_advantages
from llmrl_jax.rl.dqn import DQNConfig, make_dqn
from llmrl_jax.rl.networks import NetworkPolicy, NetworkQPolicy
from llmrl_jax.rl.novelty import RND, RNDConfig, masked_mean
from llmrl_jax.rl.ppo import PPOConfig, make_ppo, normalized
from llmrl_jax.rl.shaping import OfObservation, Shaping
from llmrl_jax.run.checkpoint import Checkpoints


def steps(reward, obs=None, next_obs=None, terminated=False, truncated=False):
    """Steps `[T, N]` from nested lists."""
    reward = np.asarray(reward, np.float32)
    obs, next_obs = (np.zeros(reward.shape, np.float32) if x is None else np.float32(x) for x in (obs, next_obs))
    ends = [np.broadcast_to(np.asarray(x, bool), reward.shape) for x in (terminated, truncated)]
    return jax.tree.map(jnp.asarray, Transitions(obs, np.zeros(reward.shape, np.int32), reward, next_obs, *ends))


# --- moments ----------------------------------------------------------------------------------------------------------


def test_moments_are_those_of_all_samples():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, (n, 4, 2)).astype(np.float32) for n in (1, 30, 7)]
    moments, update = Moments.start((2,)), jax.jit(Moments.update)
    for part in parts:
        moments = update(moments, part)
    everything = np.concatenate(parts).reshape(-1, 2)
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.var, everything.var(0), rtol=1e-4)
    assert float(moments.count) == pytest.approx(len(everything), rel=1e-5)


def test_normalised_by_hand():
    moments = Moments(jnp.float32(2), jnp.float32(4), jnp.float32(1))
    np.testing.assert_allclose(moments.normalize(jnp.array([2.0, 4.0, 100.0, -100.0]), 5.0), [0, 1, 5, -5], rtol=1e-5)


# --- a stream of its own ----------------------------------------------------------------------------------------------


class Known:
    """A bonus whose value of an observation is the observation, for advantages by hand."""

    name = "known"

    def value(self, state, obs, batch_dims):
        return obs


def test_advantages_of_a_stream_by_hand():
    """Two steps, the first ends an episode at 3; the next starts at 10. gamma 0.5, lambda 1."""
    played = steps([[1], [2]], [[1], [10]], [[3], [20]], [[True], [False]])
    for episodic, expected in (
        (True, [1 - 1, 2 + 0.5 * 20 - 10]),  # nothing follows the end
        (False, [(1 + 0.5 * 10 - 1) + 0.5 * 2, 2 + 0.5 * 20 - 10]),  # the next episode does
    ):
        stream = Stream(jnp.float32(0.5), jnp.float32(1), jnp.float32(2), episodic)
        found, returns = stream_advantages(Known(), None, stream, played, played.reward, jnp.array([20.0]), 1.0)
        np.testing.assert_allclose(found[:, 0], expected)
        np.testing.assert_allclose(returns[:, 0], np.array(expected) + [1, 10])
    # cut by a time-out, an episodic stream goes on from what was reached, not from the next episode
    cut = replace_ends(played)
    stream = Stream(jnp.float32(0.5), jnp.float32(1), jnp.float32(2), True)
    found, _ = stream_advantages(Known(), None, stream, cut, cut.reward, jnp.array([20.0]), 1.0)
    np.testing.assert_allclose(found[:, 0], [1 + 0.5 * 3 - 1, 2 + 0.5 * 20 - 10])


def replace_ends(played):
    return played.replace(terminated=jnp.zeros_like(played.terminated), truncated=played.terminated)


@pytest.mark.parametrize(
    ("advantage", "floor", "expected"),
    [
        ([3.0, 1.0], 0.1, [1, -1]),  # a deviation of 1
        ([0.03, 0.01], 0.1, [0.1, -0.1]),  # of 0.01, less than the floor: divided by 0.1
        ([0.03, 0.01], 0.0, [1, -1]),  # without a bonus
        ([0.0, 0.0], 0.0, [0, 0]),
    ],
)
def test_advantages_are_not_scaled_up_beyond_a_floor(advantage, floor, expected):
    np.testing.assert_allclose(normalized(jnp.array(advantage), floor), expected, rtol=1e-5)


# --- random network distillation --------------------------------------------------------------------------------------

SMALL = RNDConfig(outputs=16, hidden=32, critic_hidden=(5,), update_proportion=0.5, learning_rate=0.01)


@cache
def small():
    rnd = RND(SMALL)
    return rnd, jax.jit(rnd.init)(jax.random.key(0), jnp.zeros((2, 3)))


@cache
def one_step():
    """The predictor's step alone, as in a learner without returns of novelty."""
    return jax.jit(small()[0].update)


def sixty_four(seed=0):
    obs = jnp.asarray(np.random.default_rng(seed).normal(size=(64, 3)), jnp.float32)
    zeros, no = jnp.zeros(64), jnp.zeros(64, bool)
    return Transitions(obs, zeros, zeros, obs, no, no)


def mlp(params, x):
    """Dense layers with ReLU between them, by numpy."""
    for i in range(len(params)):
        layer = params[f"Dense_{i}"]
        x = x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
        x = np.maximum(x, 0) if i < len(params) - 1 else x
    return x


def test_novelty_by_hand():
    """Two rollouts of two environments: moments, clipping, errors, the discounted sum and its deviation, by numpy."""
    rnd, state = small()
    rng = np.random.default_rng(1)
    rollouts = [rng.normal(5, 3, (4, 2, 3)).astype(np.float32) for _ in range(2)]
    rollouts[1][0, 0] = 1000.0  # clipped
    total, totals, seen = np.zeros(2), [], []
    reward = jax.jit(rnd.reward)
    whole = jax.tree.map(np.asarray, state.whole)
    for next_obs in rollouts:
        played = steps(np.zeros((4, 2)), np.zeros((4, 2, 3)), next_obs)
        state, found, metrics = reward(state, played, 0.9)
        seen.append(next_obs.reshape(-1, 3))
        x = np.concatenate(seen).astype(np.float64)
        normal = np.clip((next_obs - x.mean(0)) / np.sqrt(x.var(0)), -5, 5)
        error = ((mlp(whole["random"], normal) - mlp(whole["params"]["predictor"], normal)) ** 2).mean(-1)
        for row in error:
            total = 0.99 * total + row
            totals.append(total)
        np.testing.assert_allclose(found, error / np.std(totals), rtol=2e-3, atol=1e-5)
        np.testing.assert_allclose(state.rows, total, rtol=2e-3)
    assert float(metrics["rnd_reward_max"]) == pytest.approx(float(found.max()))
    stream = rnd.stream(state)
    assert (float(stream.coef), float(stream.extrinsic_coef), stream.episodic) == (1, 2, False)
    played = steps(np.ones((4, 2)), np.zeros((4, 2, 3)), rollouts[0])
    _, both, _ = jax.jit(lambda state: one_reward(rnd, state, played, 0.9))(small()[1])
    _, alone, _ = reward(small()[1], played, 0.9)
    np.testing.assert_allclose(both, 2 + alone, rtol=1e-6)


def test_the_predictor_learns_what_it_sees_and_the_random_network_stays():
    rnd, state = small()
    batch = sixty_four().replace(returns=jnp.ones(64))
    seen = batch.obs
    mean_error = jax.jit(lambda state, x: jnp.mean(rnd.errors(state, state.whole["params"], x, 1)))
    train = jax.jit(lambda s, keys: jax.lax.scan(lambda s, key: rnd.update(s, batch, key), s, keys))
    after, metrics = train(state, jax.random.split(jax.random.key(0), 300))
    assert mean_error(after, seen) < 0.1 * min(mean_error(state, seen), mean_error(after, seen + 3))
    assert float(metrics["rnd_value_loss"][-1]) < 0.05  # the returns were 1
    for a, b in zip(jax.tree.leaves(state.whole["random"]), jax.tree.leaves(after.whole["random"])):
        np.testing.assert_array_equal(a, b)
    # a learner without returns of novelty, such as DQN, trains the predictor alone
    alone, metrics = one_step()(state, batch.replace(returns=()), jax.random.key(0))
    assert set(metrics) == {"rnd_loss"}
    for a, b in zip(jax.tree.leaves(state.whole["params"]["critic"]), jax.tree.leaves(alone.whole["params"]["critic"])):
        np.testing.assert_array_equal(a, b)


def test_the_share_of_steps_that_the_predictor_learns_from():
    rnd, state = small()
    batch = sixty_four()
    key = jax.random.key(5)
    chosen = np.asarray(jax.random.uniform(key, (64,))) < 0.5
    assert 20 < chosen.sum() < 44
    errors = np.asarray(jax.jit(lambda state: rnd.errors(state, state.whole["params"], batch.obs, 1))(state))
    loss = one_step()(state, batch, key)[1]["rnd_loss"]
    assert float(loss) == pytest.approx(errors[chosen].mean(), rel=1e-5)
    assert masked_mean(jnp.ones(3), jnp.zeros(3, bool)) == 0


def test_bad_settings():
    with pytest.raises(ValueError, match="rnd.update_proportion.*0.0.*0.*1"):
        RNDConfig(update_proportion=0.0)
    with pytest.raises(ValueError, match="rnd.gamma.*1.5.*0.*1"):
        RNDConfig(gamma=1.5)
    with pytest.raises(ValueError, match="rnd.outputs.*0.*1"):
        RNDConfig(outputs=0)
    with pytest.raises(ValueError, match="rnd.max_grad_norm.*-1.*0"):
        RNDConfig(max_grad_norm=-1)
    with pytest.raises(ValueError, match="rnd.critic_hidden"):
        RNDConfig(critic_hidden=())


# --- in PPO -----------------------------------------------------------------------------------------------------------

CONFIG = PPOConfig(num_envs=16, num_steps=6, epochs=2, minibatches=2, pool_size=8)


def learner(bonus, mesh=None, memory=0):
    env, params = envs_jax.make("Debug-Catch-v0")
    policy = NetworkPolicy(env.action_space(params), hidden=(8,), memory=memory)
    return make_ppo(CONFIG, EpisodeStatistics(env), params, policy, mesh, bonus=bonus)


def equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(*(jax.random.key_data(z) if z.dtype == a.key.dtype else z for z in (x, y)))


@cache
def begun():
    """The first state of the learner with novelty."""
    return jax.jit(learner(RND(SMALL)).init)(jax.random.key(0))


@cache
def trained():
    update = jax.jit(learner(RND(SMALL)).update)
    first, metrics = update(begun())
    return update, first, metrics, update(first)[0]


def test_ppo_learns_with_novelty():
    _, state, metrics, after = trained()
    wanted = {"rnd_loss", "rnd_value_loss", "rnd_error", "rnd_reward", "rnd_reward_max"}
    assert wanted <= set(metrics) and all(np.isfinite(float(metrics[name])) for name in wanted)
    assert float(metrics["nonfinite"]) == 0 and float(metrics["first_ratio_error"]) <= 1e-5
    novelty = state.bonus.whole["novelty"]
    assert float(novelty.count) == pytest.approx(16 * 6, rel=1e-4)
    moved = [np.any(x != y) for x, y in zip(jax.tree.leaves(state.bonus), jax.tree.leaves(after.bonus))]
    assert sum(moved) > 10


def test_a_checkpoint_holds_the_bonus(tmp_path):
    """What is saved after an update is read back bit for bit."""
    _, first, *_ = trained()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, first)
        checkpoints.wait()
        read, _ = checkpoints.restore(jax.eval_shape(lambda s: s, first))
    equal(read, first)


@pytest.mark.slow
def test_without_weight_a_bonus_changes_nothing():
    """A potential of zero and novelty without weight leave the world's rewards and advantages as they are."""
    with_novelty, zero = trained()[0], begun()
    hparams = zero.bonus.whole["hparams"] | {"coef": jnp.float32(0), "extrinsic_coef": jnp.float32(1)}
    zero = with_novelty(zero.replace(bonus=zero.bonus.replace(whole=zero.bonus.whole | {"hparams": hparams})))[0]
    zeros = Shaping(OfObservation(lambda obs: jnp.zeros(obs.shape[0])))
    plain, shaped = learner(None), learner(zeros)
    first = jax.jit(plain.init)(jax.random.key(0))
    equal(first, begun().replace(bonus=()))
    bonus = zeros.init(jax.random.key(0), first.runner.obs)
    shaped = jax.jit(shaped.update)(first.replace(bonus=bonus))[0]
    for a, b in zip(jax.tree.leaves(zero.params), jax.tree.leaves(shaped.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    plain = jax.jit(plain.update)(first)[0]
    assert plain.bonus == ()
    for a, b in zip(jax.tree.leaves(plain.params), jax.tree.leaves(shaped.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_array_equal(zero.runner.obs, shaped.runner.obs)
    np.testing.assert_array_equal(plain.runner.obs, shaped.runner.obs)


@pytest.mark.slow
def test_a_policy_with_a_memory():
    """Minibatches of whole environments: the bonus sees their steps all the same."""
    ppo = learner(RND(SMALL), memory=4)
    state, metrics = jax.eval_shape(lambda key: ppo.update(ppo.init(key)), jax.random.key(0))
    assert "rnd_loss" in metrics and state.bonus.rows.shape == (16,)


@pytest.mark.slow
def test_eight_devices():
    mesh = jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3)
    there = learner(RND(SMALL), mesh)
    eight, metrics_8 = jax.jit(there.update)(there.init(jax.random.key(0)))
    _, one, metrics, _ = trained()
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    assert eight.bonus.rows.sharding.is_equivalent_to(rows, 1)
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(eight.bonus.whole))
    for name in ("rnd_error", "rnd_reward", "rnd_loss", "rnd_value_loss", "loss"):
        np.testing.assert_allclose(metrics[name], metrics_8[name], rtol=2e-3, atol=1e-5, err_msg=name)
    for x, y in zip(jax.tree.leaves((one.params, one.bonus)), jax.tree.leaves((eight.params, eight.bonus))):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=5e-4)


# --- in DQN -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dqn_remembers_changed_rewards():
    """What is remembered of the first update are the world's steps with novelty's rewards, and the predictor learns
    once there is enough to learn from."""
    env, params = envs_jax.make("Debug-Catch-v0")
    config = DQNConfig(num_envs=4, num_steps=6, batch_size=8, replay_size=48, learning_starts=30, pool_size=4)
    policy = NetworkQPolicy(env.action_space(params).n, hidden=(8,))
    with pytest.raises(ValueError, match=r"--rnd.critic-hidden.*\(5,\)"):
        make_dqn(config, EpisodeStatistics(env), params, policy, bonus=RND(SMALL))
    rnd = RND(replace(SMALL, critic_hidden=(64, 64)))
    dqn = make_dqn(config, EpisodeStatistics(env), params, policy, bonus=rnd)
    before, update = jax.jit(dqn.init)(jax.random.key(0)), jax.jit(dqn.update)
    after, metrics = update(before)
    kept = jax.tree.map(lambda x: np.asarray(x)[:6], after.replay.items)
    seen = Transitions(kept.obs, kept.action, kept.reward, kept.next_obs, kept.terminated, kept.terminated)
    novelty = jax.jit(rnd.reward)(before.bonus, seen, 0.99)[1]
    world = (kept.reward - novelty) / 2  # the world's rewards count twice
    np.testing.assert_allclose(np.abs(world), kept.terminated, atol=1e-4)  # 1 or -1 at the end, else 0
    assert int(kept.terminated.sum()) > 0
    assert float(metrics["rnd_loss"]) == 0 and float(metrics["rnd_reward"]) > 0  # 24 steps: it waits for 30

    def predictor(state):
        return jax.tree.leaves(state.bonus.whole["params"]["predictor"])

    assert all(np.array_equal(x, y) for x, y in zip(predictor(before), predictor(after)))
    later, metrics = update(after)
    assert float(metrics["rnd_loss"]) > 0
    assert any(np.any(x != y) for x, y in zip(predictor(after), predictor(later)))

    # a predictor that breaks down within the update, after the rewards, leaves the loss of the values finite
    assert float(metrics["nonfinite"]) == 0
    hparams = after.bonus.whole["hparams"] | {"learning_rate": jnp.float32(jnp.inf)}
    broken = after.replace(bonus=after.bonus.replace(whole=after.bonus.whole | {"hparams": hparams}))
    metrics = update(broken)[1]
    assert np.isfinite(float(metrics["loss"])) and not np.isfinite(float(metrics["rnd_loss"]))
    assert float(metrics["nonfinite"]) == 1
