"""DRRN: its recurrences, sizes, targets and loss by hand; its memory against a plain loop; its state is everything."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control.debug import DebugParams, Match
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.layers import GRU
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.drrn import (
    DRRNConfig,
    QNetwork,
    Transition,
    drrn_loss,
    make_drrn,
    q_targets,
)
from llmrl_jax.systems.glam.presets import DRRN


def sizes(tree):
    return {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in tree.items()}


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


# --- the network ------------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_by_hand(params, x):
    """PyTorch's equations, one position at a time."""
    w, b, u, c = (
        np.asarray(params[name], np.float64) for name in ("input_kernel", "input_bias", "state_kernel", "state_bias")
    )
    h = np.zeros(u.shape[0])
    n = len(h)
    for row in np.asarray(x, np.float64):
        given, own = row @ w + b, h @ u + c
        r, z = sigmoid(given[:n] + own[:n]), sigmoid(given[n : 2 * n] + own[n : 2 * n])
        h = (1 - z) * np.tanh(given[2 * n :] + r * own[2 * n :]) + z * h
    return h


def test_gru_by_hand_and_padding_says_nothing():
    x = jax.random.normal(jax.random.key(0), (3, 5, 4))
    lengths = jnp.array([5, 2, 0])
    module = GRU(6)
    params = module.init(jax.random.key(1), x, lengths)["params"]
    found = module.apply({"params": params}, x, lengths)
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(found[row], gru_by_hand(params, x[row, : int(n)]), atol=1e-6)
    other = module.apply({"params": params}, x.at[1, 2:].set(9.0), lengths)
    np.testing.assert_array_equal(other, found)
    assert max(float(jnp.abs(p).max()) for p in jax.tree.leaves(params)) <= 1 / math.sqrt(6)


@pytest.mark.slow
def test_gru_is_torchs():
    torch = pytest.importorskip("torch")
    x = jax.random.normal(jax.random.key(0), (3, 5, 4))
    lengths = jnp.array([5, 2, 4])
    params = GRU(6).init(jax.random.key(1), x, lengths)["params"]
    theirs = torch.nn.GRU(4, 6, batch_first=True)
    names = {"weight_ih_l0": "input_kernel", "weight_hh_l0": "state_kernel"}
    names |= {"bias_ih_l0": "input_bias", "bias_hh_l0": "state_bias"}
    theirs.load_state_dict({name: torch.tensor(np.array(params[ours]).T) for name, ours in names.items()})
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(np.array(x)), torch.tensor(np.array(lengths)), batch_first=True, enforce_sorted=False
    )
    expected = theirs(packed)[1][0].detach().numpy()
    np.testing.assert_allclose(GRU(6).apply({"params": params}, x, lengths), expected, atol=1e-6)


def test_the_published_sizes():
    """Glam reference, section 4.1: about 1.26M parameters."""
    network = QNetwork(8000, DRRN.drrn.embedding_dim, DRRN.drrn.hidden_dim)
    tokens, one = jnp.zeros((2, 7), jnp.int32), jnp.ones(2, jnp.int32)
    shapes = jax.eval_shape(network.init, jax.random.key(0), tokens, one, tokens[:, :3], one)["params"]
    gru = 3 * 128 * (128 + 128) + 2 * 3 * 128
    expected = {"embed": 8000 * 128, "state": gru, "action": gru, "hidden": 256 * 128 + 128, "q": 128 + 1}
    assert sizes(shapes) == expected
    assert sum(expected.values()) == 1_255_169 and round(sum(expected.values()) / 1e6, 2) == 1.26


def test_the_published_values():
    """Glam reference, section 4.1."""
    config = DRRN.drrn
    assert (config.num_envs * config.num_steps, config.gradient_steps, config.batch_size) == (128, 1, 64)
    assert (config.gamma, config.learning_rate, config.max_grad_norm, config.target_every) == (0.9, 1e-4, 5.0, 0)
    assert (DRRN.agent, DRRN.history, DRRN.reward_scale) == ("drrn", 3, 20.0)


# --- targets and loss -------------------------------------------------------------------------------------------------


def test_targets_by_hand():
    next_q = jnp.array([[0.0, 5.0], [9.0, 9.0], [-1.0, -2.0]])
    found = q_targets(jnp.array([1.0, 2.0, 3.0]), jnp.array([False, True, False]), next_q, 0.9)
    np.testing.assert_allclose(found, [1 + 0.9 * 5, 2.0, 3 - 0.9], rtol=1e-6)


class Table:
    """Values are a table of the observation, a one-hot symbol or a whole number."""

    recurrent = False

    def __init__(self, n):
        self.n = n

    def init(self, key, obs):
        return {"q": 0.01 * jax.random.normal(key, (obs.shape[-1], self.n))}, ()

    def initial_carry(self, batch_size):
        return ()

    def q(self, params, obs):
        return obs @ params["q"]

    def step(self, params, frozen, obs, carry, first):
        q = self.q(params, obs)
        return Categorical(q), q.max(axis=-1), carry


def test_loss_by_hand():
    """Two remembered steps: errors 0.5, squared, and 3, beyond Huber's corner; targets get no gradient."""
    params = {"q": jnp.array([[0.5, 7.0], [2.0, -2.0]])}
    target = {"q": jnp.array([[0.0, 0.0], [1.0, 2.0]])}
    eye = jnp.eye(2)
    batch = Transition(
        obs=eye,
        action=jnp.array([0, 1]),
        reward=jnp.array([1.0, 0.0]),
        next_obs=eye[::-1],
        terminated=jnp.array([True, False]),
    )
    # row 0: wanted 1, has 0.5. row 1: wanted 0 + 0.5 * max(0, 0), has -2
    loss, metrics = drrn_loss(params, target, batch, Table(2), 0.5)
    np.testing.assert_allclose(loss, (0.5 * 0.5**2 + (2 - 0.5)) / 2, rtol=1e-6)
    np.testing.assert_allclose([metrics["q_mean"], metrics["target_mean"]], [-0.75, 0.5], rtol=1e-6)
    # with one network the second row wants 0.5 * max(0.5, 7) = 3.5, which -2 misses by 5.5
    one, _ = drrn_loss(params, params, batch, Table(2), 0.5)
    np.testing.assert_allclose(one, (0.125 + 5.0) / 2, rtol=1e-6)
    grads = jax.grad(lambda p: drrn_loss(p, p, batch, Table(2), 0.5)[0])(params)["q"]
    np.testing.assert_allclose(grads, [[-0.25, 0.0], [0.0, -0.5]], rtol=1e-6)  # row 0, action 1 is behind a target only


# --- the learner ------------------------------------------------------------------------------------------------------

ENV = EpisodeStatistics(Match(3))
PARAMS = DebugParams(length=3)
TINY = DRRNConfig(
    num_envs=4, num_steps=5, gradient_steps=2, batch_size=8, replay_size=48, gamma=0.5, learning_rate=0.05, pool_size=8
)


def learner_of(config):
    return make_drrn(config, ENV, PARAMS, Table(3))


@pytest.fixture(scope="module")
def tiny():
    learner = learner_of(TINY)
    return learner.init(jax.random.key(0)), jax.jit(learner.update)


def test_metrics_are_complete_and_named_as_ppos(tiny):
    state, update = tiny
    after, metrics = update(state)
    assert all(x.dtype == jnp.float32 and x.shape == () for x in metrics.values())
    names = {"loss", "grad_norm", "entropy", "value_mean", "nonfinite", "episodes", "episode_return", "episode_length"}
    assert names <= set(metrics)
    assert float(metrics["episodes"]) == 4 and float(metrics["episode_length"]) == 3
    assert float(metrics["replay_size"]) == 20 and int(after.update) == 1
    learner = learner_of(TINY)
    assert learner.steps_per_update == 20 and set(learner.bounds) <= set(metrics)
    for _ in range(2):
        after, metrics = update(after)
    assert float(metrics["replay_size"]) == 48 and int(after.replay.next) == 12


def test_what_is_remembered_is_what_happened(tiny):
    """Against a plain loop: the observation reached is that before the reset, and a time-out is not an end."""
    state, update = tiny
    after, _ = update(state)
    closed, _ = jax.jit(learner_of(replace(TINY, bootstrap_truncation=False)).update)(state)
    pool_key, play_key, _ = jax.random.split(jax.random.fold_in(state.key, 0), 3)
    vector = envs_jax.VectorEnv(ENV, 4, policy="pool", pool_size=8)
    obs, env_state = state.runner.obs, vector.refresh(pool_key, state.runner.env_state, PARAMS)
    step, policy = jax.jit(vector.step), Table(3)
    ends = []
    for t in range(5):
        act, go = jax.random.split(jax.random.fold_in(play_key, t))
        action = policy.step(state.params, (), obs, (), None)[0].sample(act)
        reached, env_state, reward, terminated, truncated, info = step(go, env_state, action, PARAMS)
        rows = slice(4 * t, 4 * t + 4)
        held = jax.tree.map(lambda x, rows=rows: x[rows], after.replay.items)
        np.testing.assert_array_equal(held.obs, obs)
        np.testing.assert_array_equal(held.action, action)
        np.testing.assert_array_equal(held.reward, reward)
        np.testing.assert_array_equal(held.next_obs, info["final_observation"])
        assert not np.any(held.terminated)
        np.testing.assert_array_equal(closed.replay.items.terminated[rows], truncated)
        ends.append(bool(truncated.any()))
        obs = reached
    assert ends == [False, False, True, False, False]
    np.testing.assert_array_equal(after.runner.obs, obs)


def test_values_come_to_their_fixed_point():
    """Naming the symbol pays 1 and time-outs bootstrap: 1 / (1 - gamma) for the right action, one less for others."""
    learner = learner_of(replace(TINY, gradient_steps=8, batch_size=32, replay_size=400))
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=150))
    state, metrics = run(learner.init(jax.random.key(1)))
    np.testing.assert_allclose(state.params["q"], 1.0 + np.eye(3), atol=0.05)
    assert float(metrics["loss"][-1]) < 0.01 < float(metrics["loss"][0])


def test_the_target_network_is_a_copy_from_time_to_time(tiny):
    state, update = tiny
    learner = learner_of(replace(TINY, target_every=2, gradient_steps=1))
    begun = learner.init(jax.random.key(0))
    step = jax.jit(learner.update)
    one, _ = step(begun)
    two, _ = step(one)
    assert state.target == () and update(state)[0].target == ()
    np.testing.assert_array_equal(flat(begun.target), flat(begun.params))
    np.testing.assert_array_equal(flat(one.target), flat(begun.params))
    np.testing.assert_array_equal(flat(two.target), flat(two.params))
    # the second step of one network differs from that of two: the weights behind the targets do
    alone = jax.jit(learner_of(replace(TINY, gradient_steps=1)).update)
    np.testing.assert_array_equal(flat(alone(state)[0].params), flat(one.params))
    assert np.abs(flat(alone(alone(state)[0])[0].params) - flat(two.params)).max() > 1e-5


FLOATS = {
    "gamma": 0.9,
    "learning_rate": 0.01,
    "max_grad_norm": 0.01,
    "adam_b1": 0.5,
    "adam_b2": 0.5,
    "adam_eps": 0.1,
}


@pytest.mark.parametrize("name", FLOATS)
def test_float_hyper_parameter_is_traced_and_changes_the_result(tiny, name):
    state, update = tiny
    assert set(state.hparams) == set(FLOATS)
    base, _ = update(state)
    other, _ = update(state.replace(hparams=state.hparams | {name: jnp.float32(FLOATS[name])}))
    assert np.abs(flat(base.params) - flat(other.params)).max() > 1e-6


def test_nonfinite_is_reported(tiny):
    state, update = tiny
    broken = jax.tree.map(lambda x: x.at[...].set(jnp.nan), state.params)
    assert float(update(state.replace(params=broken))[1]["nonfinite"]) == 1


def test_a_resumed_run_gives_the_same_bits(tmp_path):
    """Four updates at once, or two and, from the files, two more: the memory and the worlds included."""

    def run(name, updates, resume=False):
        config = RunConfig(name=name, out=str(tmp_path), progress="off", resume=resume)
        return train(learner_of(TINY), config, num_updates=updates).state

    whole = run("whole", 4)
    run("cut", 2)
    resumed = run("cut", 4, resume=True)

    def bits(x):
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    assert int(resumed.update) == 4 and int(resumed.replay.size) == 48
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), whole, resumed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "drrn num_envs is 0; at least 1"),
        ({"target_every": -1}, "drrn target_every is -1; at least 0"),
        ({"learning_rate": -1.0}, "drrn learning_rate is -1.0"),
        ({"gamma": 1.5}, "drrn gamma is 1.5; at most 1"),
        ({"gamma": math.nan}, "drrn gamma is nan"),
        ({"learning_rate": math.inf}, "drrn learning_rate is inf"),
        ({"replay_size": 10}, r"4 x num_steps 5 = 20 steps in an update, but replay_size is 10"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **options)


# --- in BabyAI-Text ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text():
    small = replace(TINY, num_envs=3, embedding_dim=8, hidden_dim=8)
    return make_agent(replace(DRRN, env="BabyAI-Text/GoToObjS4-v0", history=2, list_actions=False, drrn=small))


def test_it_reads_the_prompt_and_the_actions(text):
    """Values by hand: two GRUs over what the tokenizer makes of the words, and an MLP on each pair."""
    batch = envs_jax.VectorEnv(text.env, 2, policy="none")
    obs, _ = jax.jit(batch.reset)(jax.random.key(3), text.env_params)
    params, frozen = text.policy.init(jax.random.key(0), obs)
    found, value, _ = jax.jit(text.policy.step)(params, frozen, obs, (), jnp.ones(2, bool))
    assert found.logits.shape == (2, 6)
    np.testing.assert_array_equal(value, found.logits.max(axis=-1))

    tokens, lengths = text.policy.prompts(obs)
    table = np.asarray(params["embed"]["embedding"])
    states = [gru_by_hand(params["state"], table[np.asarray(row[: int(n)])]) for row, n in zip(tokens, lengths)]
    words = text.policy.actions
    actions = [gru_by_hand(params["action"], table[row[:n]]) for row, n in zip(words.tokens, words.lengths)]
    for b, a in ((0, 0), (1, 4)):
        hidden, q = params["hidden"], params["q"]
        x = np.maximum(np.concatenate([states[b], actions[a]]) @ np.asarray(hidden["kernel"]) + hidden["bias"], 0)
        np.testing.assert_allclose(found.logits[b, a], (x @ np.asarray(q["kernel"]) + q["bias"])[0], atol=1e-5)
    assert len({tuple(row[:n]) for row, n in zip(words.tokens.tolist(), words.lengths)}) == 6


@pytest.mark.slow
def test_an_update_in_text_remembers_captions_and_not_tokens(text):
    learner = text.learner()
    state = learner.init(jax.random.key(0))
    after, metrics = jax.jit(learner.update)(state)
    assert float(metrics["nonfinite"]) == 0 and float(metrics["replay_size"]) == 15
    assert after.replay.items.obs["text"].dtype == jnp.int16
    held = jax.tree.map(lambda x: np.asarray(x[0]), after.replay.items.obs)
    jax.tree.map(np.testing.assert_array_equal, held, jax.tree.map(lambda x: np.asarray(x[0]), state.runner.obs))
    row = jax.tree.map(lambda x: x[0], after.replay.items)
    assert int(row.next_obs["count"]) == 2 and int(row.next_obs["actions"][0]) == int(row.action)
    assert np.abs(flat(after.params) - flat(state.params)).max() > 0
