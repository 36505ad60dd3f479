"""DQN: targets and loss by hand, its memory against a plain loop, each hyper-parameter by its effect, bad input."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control.debug import DebugParams, Match
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.kernels import flat_tree
from llmrl_jax.rl.dqn import DQNConfig, dqn_loss, make_dqn, q_targets
from llmrl_jax.rl.networks import NetworkQPolicy
from llmrl_jax.rl.policy import Policy, epsilon_greedy
from llmrl_jax.rl.replay import Priorities, Replay


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


class Table(Policy):
    """Values are a table of the observation, a one-hot symbol."""

    def __init__(self, n):
        self.n = n

    def init(self, key, obs):
        return {"q": 0.01 * jax.random.normal(key, (obs.shape[-1], self.n))}, ()

    def q(self, params, frozen, obs):
        return obs @ params["q"]


# --- targets, loss, acting --------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="double")
def loss_of(params, target, batch, discount, **options):
    """With a network whose values are the columns of a table."""
    return dqn_loss(params, (), target, batch, Table(params["q"].shape[1]), discount, **options)


def test_targets_by_hand():
    reward, end, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([False, True, False]), jnp.array([5.0, 9.0, -1.0])
    np.testing.assert_allclose(q_targets(reward, end, value, 0.9), [1 + 0.9 * 5, 2.0, 3 - 0.9], rtol=1e-6)
    several = q_targets(reward, end, value, jnp.array([0.5, 0.25, 0.125]))
    np.testing.assert_allclose(several, [3.5, 2.0, 2.875], rtol=1e-6)


def two_steps():
    """Two remembered steps, the first the end of its episode; each leads to the other's observation."""
    eye = jnp.eye(2)
    params = {"q": jnp.array([[0.5, 7.0], [2.0, -2.0]])}
    target = {"q": jnp.array([[4.0, 3.0], [1.0, 2.0]])}
    flags = jnp.array([True, False])
    batch = Transitions(eye, jnp.array([0, 1]), jnp.array([1.0, 0.0]), eye[::-1], flags)
    return params, target, batch


def test_loss_by_hand():
    """Errors 0.5, squared, and one beyond Huber's corner; targets get no gradient."""
    params, target, batch = two_steps()
    # row 0: wanted 1, has 0.5. row 1: wanted 0 + 0.5 * max(4, 3) = 2, has -2
    loss, (metrics, errors) = loss_of(params, target, batch, 0.5)
    np.testing.assert_allclose(errors, [0.5, 4.0], rtol=1e-6)
    np.testing.assert_allclose(loss, (0.5 * 0.5**2 + (4 - 0.5)) / 2, rtol=1e-6)
    np.testing.assert_allclose([metrics["q_mean"], metrics["target_mean"]], [-0.75, 1.5], rtol=1e-6)
    # with one network the second row wants 0.5 * max(0.5, 7) = 3.5, which -2 misses by 5.5
    one, _ = loss_of(params, params, batch, 0.5)
    np.testing.assert_allclose(one, (0.125 + 5.0) / 2, rtol=1e-6)
    grads = jax.jit(jax.grad(lambda p: loss_of(p, p, batch, 0.5)[0]))(params)["q"]
    np.testing.assert_allclose(grads, [[-0.25, 0.0], [0.0, -0.5]], rtol=1e-6)  # row 0, action 1 is behind a target only


def test_double_wider_and_weighted_losses_by_hand():
    params, target, batch = two_steps()
    # the network that learns prefers action 1 there (7 > 0.5), which the target network values at 3: wanted 1.5
    double, (_, errors) = loss_of(params, target, batch, 0.5, double=True)
    np.testing.assert_allclose(errors, [0.5, 3.5], rtol=1e-6)
    np.testing.assert_allclose(double, (0.125 + 3.0) / 2, rtol=1e-6)
    weight = jnp.array([1.0, 0.5])
    weighted, _ = loss_of(params, target, batch, 0.5, double=True, weight=weight)
    np.testing.assert_allclose(weighted, (0.125 + 1.5) / 2, rtol=1e-6)
    wide, _ = loss_of(params, target, batch, 0.5, double=True, delta=2.0)
    np.testing.assert_allclose(wide, (0.125 + 2.0 * (3.5 - 1.0)) / 2, rtol=1e-6)  # 0.5 * 2^2 + 2 * (3.5 - 2)


@pytest.mark.parametrize("action", [-1, 3])
def test_a_number_that_is_no_action_has_no_loss(action):
    """Python would read -1 as the last action, and XLA 3 as well."""
    batch = Transitions(jnp.eye(3)[:2], jnp.array([0, action]), jnp.ones(2), jnp.eye(3)[:2], jnp.zeros(2, bool))
    params = {"q": jnp.zeros((3, 3))}
    assert math.isnan(float(loss_of(params, params, batch, 0.9)[0]))


def test_epsilon_greedy_by_hand():
    @jax.jit
    def acting(q, obs, epsilon):
        found = epsilon_greedy(q, obs, epsilon)
        return found.probs, found.mode(), found.entropy()

    q = jnp.array([[1.0, 3.0, 2.0], [9.0, 3.0, 2.0]])
    np.testing.assert_allclose(acting(q, q, 0.3)[0], [[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]], atol=1e-6)
    mask = jnp.array([[True, True, True], [False, True, True]])
    offered, best, _ = acting(q, {"action_mask": mask}, 0.3)
    np.testing.assert_allclose(offered, [[0.1, 0.8, 0.1], [0, 0.85, 0.15]], atol=1e-6)
    np.testing.assert_array_equal(best, [1, 1])
    sure, _, entropy = acting(q, q, 0.0)
    np.testing.assert_allclose(sure, [[0, 1, 0], [1, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(entropy, 0.0, atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_network_by_hand(dueling):
    policy = NetworkQPolicy(3, hidden=(4,), dueling=dueling, epsilon=0.25)
    obs = jax.random.normal(jax.random.key(0), (5, 2))
    params, frozen = policy.init(jax.random.key(1), obs)
    x = np.maximum(np.asarray(obs) @ np.asarray(params["hidden_0"]["kernel"]) + params["hidden_0"]["bias"], 0)
    heads = {name: x @ np.asarray(p["kernel"]) + p["bias"] for name, p in params.items() if name != "hidden_0"}
    advantage = heads.get("advantage", np.zeros(1))
    wanted = heads["value"] + advantage - advantage.mean(-1, keepdims=True) if dueling else heads["q"]
    soft = NetworkQPolicy(3, hidden=(4,), dueling=dueling, epsilon=None, temperature=2.0)

    @jax.jit
    def acting(params, obs):
        chosen, value, _ = policy.step(params, frozen, obs, (), jnp.ones(5, bool))
        drawn = soft.step(params, frozen, obs, (), jnp.ones(5, bool))[0]
        return policy.q(params, frozen, obs), value, chosen.probs, drawn.probs

    q, value, chosen, drawn = (np.asarray(x) for x in acting(params, obs))
    np.testing.assert_allclose(q, wanted, atol=1e-5)
    np.testing.assert_array_equal(value, q.max(axis=-1))
    np.testing.assert_allclose(chosen.max(axis=-1), 0.75 + 0.25 / 3, atol=1e-6)
    np.testing.assert_allclose(drawn, np.exp(q / 2) / np.exp(q / 2).sum(axis=-1, keepdims=True), atol=1e-6)


# --- the learner ------------------------------------------------------------------------------------------------------

ENV = EpisodeStatistics(Match(3))
PARAMS = DebugParams(length=3)
TINY = DQNConfig(
    num_envs=4,
    num_steps=5,
    gradient_steps=2,
    batch_size=8,
    replay_size=48,
    gamma=0.5,
    double=False,
    target_every=0,
    learning_rate=0.05,
    max_grad_norm=5.0,
    huber_delta=1.0,
    acting="softmax",
    pool_size=8,
)
FULL = replace(
    TINY,
    double=True,
    target_every=1,
    target_tau=0.5,
    n_step=2,
    acting="epsilon",
    epsilon_steps=40,
    replay="prioritized",
)
"""Everything that TINY leaves out."""


def learner_of(config):
    return make_dqn(config, ENV, PARAMS, Table(3))


@functools.cache
def begun(config):
    """The learner's first state and its compiled update. States of the same shapes are made once."""
    first = replace(config, gradient_steps=1, batch_size=8, double=False, bootstrap_truncation=True, learning_starts=0)
    learner = learner_of(config)
    state = learner.init(jax.random.key(0)) if first == config else begun(first)[0]
    return state, jax.jit(learner.update)


@pytest.fixture(scope="module")
def tiny():
    return begun(TINY)


@pytest.fixture(scope="module")
def full():
    """A state after two updates, so that its target network and priorities differ from the first ones."""
    state, update = begun(FULL)
    return update(update(state)[0])[0], update


def test_metrics_are_complete_and_named_as_ppos(tiny):
    state, update = tiny
    after, metrics = update(state)
    assert all(x.dtype == jnp.float32 and x.shape == () for x in metrics.values())
    names = {"loss", "grad_norm", "entropy", "value_mean", "nonfinite", "episodes", "episode_return", "episode_length"}
    assert names <= set(metrics) and "epsilon" not in metrics
    assert float(metrics["episodes"]) == 4 and float(metrics["episode_length"]) == 3
    assert float(metrics["replay_size"]) == 20 and int(after.update) == 1
    learner = learner_of(TINY)
    assert learner.steps_per_update == 20 and set(learner.bounds) <= set(metrics)
    for _ in range(2):
        after, metrics = update(after)
    assert float(metrics["replay_size"]) == 48 and int(after.replay.next) == 3  # 15 of 12 steps in each environment


def test_what_is_remembered_is_what_happened(tiny):
    """Against a plain loop: the observation reached is that before the reset, and a time-out is not an end."""
    state, update = tiny
    after, _ = update(state)
    closed, _ = begun(replace(TINY, bootstrap_truncation=False))[1](state)
    after, closed = jax.tree.map(np.asarray, (after.replace(key=()), closed.replace(key=())))
    pool_key, play_key, _ = jax.random.split(jax.random.fold_in(state.key, 0), 3)
    vector = envs_jax.VectorEnv(ENV, 4, policy="pool", pool_size=8)
    obs, env_state = state.runner.obs, vector.refresh(pool_key, state.runner.env_state, PARAMS)

    @jax.jit
    def play(obs, env_state, t):
        act, go = jax.random.split(jax.random.fold_in(play_key, t))
        action = Table(3).step(state.params, (), obs, (), jnp.ones(4, bool))[0].sample(act)
        return action, vector.step(go, env_state, action, PARAMS)

    ends = []
    for t in range(5):
        action, (reached, env_state, reward, terminated, truncated, info) = play(obs, env_state, t)
        held = jax.tree.map(lambda x, t=t: x[t], after.replay.items)
        np.testing.assert_array_equal(held.obs, obs)
        np.testing.assert_array_equal(held.action, action)
        np.testing.assert_array_equal(held.reward, reward)
        np.testing.assert_array_equal(held.next_obs, info["final_observation"])
        assert not np.any(held.terminated) and held.truncated == ()
        np.testing.assert_array_equal(closed.replay.items.terminated[t], truncated)
        ends.append(bool(truncated.any()))
        obs = reached
    assert ends == [False, False, True, False, False]
    np.testing.assert_array_equal(after.runner.obs, obs)


def test_flattening_changes_speed_only(tiny, monkeypatch):
    state, update = tiny
    monkeypatch.setattr(flat_tree, "FLATTEN_BELOW", 0)
    (one, _), (other, _) = update(state), jax.jit(learner_of(TINY).update)(state)
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-4, atol=1e-6)
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_the_target_network_is_a_copy_from_time_to_time(tiny):
    state, update = tiny
    first, step = begun(replace(TINY, target_every=2, gradient_steps=1))
    one, _ = step(first)
    two, _ = step(one)
    assert state.target == () and update(state)[0].target == ()
    np.testing.assert_array_equal(flat(first.target), flat(first.params))
    np.testing.assert_array_equal(flat(one.target), flat(first.params))
    np.testing.assert_array_equal(flat(two.target), flat(two.params))
    # the second step of one network differs from that of two: the weights behind the targets do
    _, alone = begun(replace(TINY, gradient_steps=1))
    np.testing.assert_array_equal(flat(alone(state)[0].params), flat(one.params))
    assert np.abs(flat(alone(alone(state)[0])[0].params) - flat(two.params)).max() > 1e-5


def test_or_follows_slowly(full):
    state, update = full
    after, _ = update(state)
    np.testing.assert_allclose(flat(after.target), 0.5 * flat(after.params) + 0.5 * flat(state.target), rtol=1e-6)


def test_epsilon_falls_to_its_end(full):
    """40 steps are two updates: 1, 0.525, 0.05, 0.05; the entropy of three actions follows."""
    (state, update), found = begun(FULL), []
    for _ in range(4):
        state, metrics = update(state)
        found.append((float(metrics["epsilon"]), float(metrics["entropy"])))
    best = [1 - e + e / 3 for e in (1, 0.525, 0.05, 0.05)]
    wanted = [-p * math.log(p) - (1 - p) * math.log((1 - p) / 2) for p in best]
    np.testing.assert_allclose(found, list(zip((1, 0.525, 0.05, 0.05), wanted)), rtol=1e-4)


def test_learning_starts_when_there_is_enough_and_priorities_are_the_errors():
    """Steps that were in the batch have (|error| + 1e-6) ** alpha of the first parameters, the others the first, 1."""
    config = replace(FULL, gradient_steps=1, learning_starts=40)
    state, update = begun(config)
    one, metrics = update(state)
    np.testing.assert_array_equal(flat(one.params), flat(state.params))
    assert float(metrics["loss"]) == 0 == float(metrics["nonfinite"]) and int(one.opt_state.count) == 0
    two, metrics = update(one)
    assert float(metrics["loss"]) > 0 and int(two.opt_state.count) == 1

    @jax.jit
    def errors_of(state, replay):
        memory = Replay(config.capacity, rows=4, prioritized=True)
        fresh = memory.prioritize(replay.replace(priorities=Priorities(48).init()), jnp.arange(40), jnp.ones(40))
        _, _, key = jax.random.split(jax.random.fold_in(state.key, 1), 3)
        drawn = memory.draw_prioritized(fresh, jax.random.split(key, 1)[0], 8)
        batch, discount = memory.n_step(fresh, drawn.index, 2, 0.5)
        return drawn.index, dqn_loss(state.params, (), state.target, batch, Table(3), discount, double=True)[1][1]

    index, errors = (np.asarray(x) for x in errors_of(state.replace(runner=()), two.replay))
    wanted = np.concatenate([np.ones(40), np.zeros(8)])
    wanted[index] = 0
    np.maximum.at(wanted, index, (errors + 1e-6) ** 0.6)
    found = np.asarray(two.replay.priorities.levels[0]).reshape(-1)[:48]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert np.sum(found[:40] != 1) >= 5


FLOATS = {
    "gamma": 0.9,
    "target_tau": 0.25,
    "huber_delta": 0.1,
    "learning_rate": 0.01,
    "max_grad_norm": 0.01,
    "adam_b1": 0.5,
    "adam_b2": 0.5,
    "adam_eps": 0.1,
    "epsilon_start": 0.5,
    "epsilon_end": 0.9,
    "priority_alpha": 0.1,
    "priority_beta": 1.0,
    "temperature": 9.0,
}


@pytest.mark.parametrize("name", FLOATS)
def test_float_hyper_parameter_is_traced_and_changes_the_result(tiny, full, name):
    state, update = tiny if name == "temperature" else full
    assert set(state.hparams) == set(FLOATS)
    if name == "epsilon_start":  # of which nothing is left after two updates
        state = state.replace(update=jnp.int32(0))
    base, _ = update(update(state)[0])
    other, _ = update(update(state.replace(hparams=state.hparams | {name: jnp.float32(FLOATS[name])}))[0])
    assert np.abs(flat(base.params) - flat(other.params)).max() > 1e-6


STATIC = {"gradient_steps": 1, "batch_size": 4, "n_step": 3, "double": True, "replay": "prioritized", "reset": "always"}
EXACT = {"batch_size", "n_step", "replay"}  # what the priorities above, computed another way, show too


@functools.cache
def trained(**options):
    """The parameters after an update. Two networks that differ, or double learning has nothing to change."""
    state, update = begun(replace(TINY, **{"target_every": 2, "gradient_steps": 2} | options))
    return flat(update(state)[0].params)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in EXACT)) for n in STATIC])
def test_static_hyper_parameter_changes_the_result(name):
    pool = {"pool_size": 256} if name == "reset" else {}  # which only a pool reads
    assert np.abs(trained() - trained(**{name: STATIC[name]}, **pool)).max() > 1e-7


def test_every_option_is_tried():
    elsewhere = {"num_envs", "num_steps", "replay_size", "learning_starts", "target_every", "acting", "epsilon_steps"}
    elsewhere |= {"bootstrap_truncation", "pool_size", "reset_ratio"}  # the last two are VectorEnv's
    elsewhere |= {"target_steps", "share_encoder", "reward_clip", "epsilon_after_reward", "guide_fraction"}
    elsewhere |= {"pool_every", "learn_after_reward"}  # these seven are tried in test_exploration.py
    assert {*FLOATS, *STATIC, *elsewhere} == {f.name for f in dataclasses.fields(DQNConfig)}


def test_nonfinite_is_reported(tiny):
    state, update = tiny
    broken = jax.tree.map(lambda x: x.at[...].set(jnp.nan), state.params)
    assert float(update(state.replace(params=broken))[1]["nonfinite"]) == 1


def test_values_come_to_their_fixed_point():
    """Naming the symbol pays 1 and time-outs bootstrap: 1 / (1 - gamma) for the right action, one less for others."""
    learner = learner_of(replace(TINY, gradient_steps=8, batch_size=32, replay_size=400))
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=150))
    state, metrics = run(learner.init(jax.random.key(1)))
    np.testing.assert_allclose(state.params["q"], 1.0 + np.eye(3), atol=0.05)
    assert float(metrics["loss"][-1]) < 0.01 < float(metrics["loss"][0])


class HalfTable(Table):
    """A table in bfloat16."""

    def init(self, key, obs):
        params, frozen = super().init(key, obs)
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), frozen

    def q(self, params, frozen, obs):
        return obs @ params["q"].astype(jnp.float32)


def test_bfloat16_parameters_keep_their_dtype():
    learner = make_dqn(FULL, ENV, PARAMS, HalfTable(3))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    after, _ = jax.eval_shape(learner.update, state)
    assert after.params["q"].dtype == after.target["q"].dtype == jnp.bfloat16
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "dqn.num_envs.*0.*1"),
        ({"target_every": -1}, "dqn.target_every.*-1.*0"),
        ({"learning_rate": -1.0}, "dqn.learning_rate.*-1.0"),
        ({"gamma": 1.5}, "dqn.gamma.*1.5.*0.*1"),
        ({"gamma": math.nan}, "dqn.gamma.*nan"),
        ({"learning_rate": math.inf}, "dqn.learning_rate.*inf"),
        ({"temperature": 0.0}, "dqn.temperature.*0.0.*0"),
        ({"reset": "none"}, r"dqn\.reset.*'none'.*pool, always, optimistic"),
        ({"replay": "prioritised"}, r"dqn\.replay.*'prioritised'.*uniform, prioritized"),
        ({"acting": "greedy"}, "dqn.acting.*'greedy'"),
        ({"max_grad_norm": -math.inf}, "dqn.max_grad_norm.*-inf"),
        ({"replay_size": 10}, "4 x num_steps 5 = 20.*dqn.replay_size.*10"),
        ({"n_step": 13}, "dqn.n_step.*13.*12.*dqn.replay_size"),
        ({"temperature": 2.0, "acting": "epsilon"}, "dqn.temperature.*2.0.*dqn.acting"),
        ({"epsilon_end": 0.1, "epsilon_steps": 9}, "dqn.epsilon_end.*0.1, dqn.epsilon_steps.*9.*dqn.act"),
        ({"priority_beta": 1.0}, "dqn.priority_beta.*1.0.*dqn.replay"),
        ({"target_tau": 0.5}, "--dqn.target-tau.*0.5.*--dqn.target-every 0"),
        ({"reset": "always"}, "dqn.pool_size.*8.*dqn.reset"),
        ({"reset_ratio": 4}, "dqn.reset_ratio.*4.*dqn.reset"),
        ({"learning_starts": 49}, "dqn.learning_starts.*49.*48"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **options)


def test_a_world_must_report_its_episodes():
    with pytest.raises(ValueError, match="EpisodeStatistics"):
        make_dqn(TINY, Match(3), PARAMS, Table(3))
