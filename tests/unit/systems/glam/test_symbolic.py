"""Symbolic-PPO: its words, layers and initial values by hand; acting and learning by the same numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.text.english import MISSIONS
from llmrl_jax.rl.networks import LSTM, Conv
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.config import SYMBOLIC
from llmrl_jax.systems.glam.symbolic import (
    MissionWords,
    SymbolicConfig,
    SymbolicNetwork,
    SymbolicView,
    halved,
    mission_words,
)


TINY = replace(
    SYMBOLIC,
    env="BabyAI-GoToObjS4-v0",
    symbolic=SymbolicConfig(image_dim=16, instr_dim=4, memory_dim=6, recurrence=3),
    ppo=replace(SYMBOLIC.ppo, num_envs=4, num_steps=6, minibatches=2, epochs=1, pool_size=8),
)


@pytest.fixture(scope="module")
def tiny():
    return make_agent(TINY)


@pytest.fixture(scope="module")
def played(tiny):
    """Six steps of four environments, as good as any: observations `[T, B, ...]` and which begin an episode."""
    reset = jax.jit(jax.vmap(lambda key: tiny.env.reset(key, tiny.env_params)[0]))
    obs = jax.tree.map(lambda x: x.reshape(6, 4, *x.shape[1:]), reset(jax.random.split(jax.random.key(5), 24)))
    return obs, jnp.zeros((6, 4), bool).at[0].set(True).at[3, 1].set(True)


@pytest.fixture(scope="module")
def drawn(tiny, played):
    return tiny.policy.init(jax.random.key(0), jax.tree.map(lambda x: x[0], played[0]))[0]


@pytest.fixture(scope="module")
def step(tiny):
    return jax.jit(tiny.policy.step)


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level",
    ["PutNextLocal", *(pytest.param(x, marks=pytest.mark.slow) for x in ("GoToLocal", "MixedTrainLocal", "PickupLoc"))],
)
def test_missions_are_read_word_by_word(level):
    """Against the published preprocessing of the rendered mission, and with one id for each word wherever it is."""
    env, params = envs_jax.make(f"BabyAI-{level}-v0")
    words = MissionWords()
    read = mission_words(env, words)
    obs, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(0), 24), params)
    tokens, lengths = jax.jit(jax.vmap(read))(obs["mission"])
    for mission, row, n in zip(obs["mission"], np.asarray(tokens), lengths):
        said = re.findall("[a-z]+", MISSIONS.render(mission).lower())
        assert [words.words[i - 1] for i in row[: int(n)]] == said
    assert tokens.shape[1] == {"GoToLocal": 5, "PutNextLocal": 9}.get(level, tokens.shape[1])


def test_the_vocabulary_is_closed_and_small():
    words = MissionWords()
    assert {"go", "to", "the", "a", "red", "grey", "ball", "door", "then", "after", "left"} <= set(words.words)
    assert words.vocab_size - 1 == len(words.words) < 100  # the published vocabulary's cap
    assert words.encode("Go to the red ball, then") == words.encode("go to the red ball then")


# --- layers -----------------------------------------------------------------------------------------------------------


def lstm_by_hand(params, x, carry, first):
    w, b, u, c = (np.asarray(params[n]) for n in ("input_kernel", "input_bias", "state_kernel", "state_bias"))
    (h, cell), out = (np.asarray(part) for part in carry), []
    for row, begins in zip(np.asarray(x), np.asarray(first)):
        h, cell = (np.where(begins[:, None], 0.0, part) for part in (h, cell))
        i, f, g, o = np.split(row @ w + b + h @ u + c, 4, axis=-1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        cell = f * cell + i * np.tanh(g)
        h = o * np.tanh(cell)
        out.append(h)
    return np.stack(out), (h, cell)


def test_lstm_by_hand_and_gradients_are_truncated():
    x = jax.random.normal(jax.random.key(0), (7, 2, 3))
    carry = tuple(jax.random.normal(k, (2, 5)) for k in jax.random.split(jax.random.key(1)))
    first = jnp.zeros((7, 2), bool).at[4, 1].set(True)
    params = LSTM(5, 3).init(jax.random.key(2), x, carry, first)["params"]

    @partial(jax.jit, static_argnames="truncate")
    def run(x, truncate=3):
        return LSTM(5, truncate).apply({"params": params}, x, carry, first)

    after, found = run(x)
    expected, last = lstm_by_hand(params, x, carry, first)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after, last)
    np.testing.assert_array_equal(run(x, truncate=100)[1], found)  # the forward pass does not know of it
    # of the state behind step 5, row 0: what came since step 3 counts, what came before does not
    reach = jax.grad(lambda x: run(x)[1][5, 0].sum())(x)
    assert [bool(jnp.any(reach[t, 0] != 0)) for t in range(7)] == [False] * 3 + [True] * 3 + [False]
    whole = jax.grad(lambda x: run(x, truncate=100)[1][5, 0].sum())(x)
    assert np.any(np.asarray(whole[0, 0]) != 0)
    # row 1 began anew at step 4
    reach = jax.grad(lambda x: run(x, truncate=100)[1][5, 1].sum())(x)
    assert [bool(jnp.any(reach[t, 1] != 0)) for t in range(7)] == [False] * 4 + [True] * 2 + [False]


@pytest.mark.slow
def test_lstm_is_torchs():
    torch = pytest.importorskip("torch")
    x = jax.random.normal(jax.random.key(0), (4, 2, 3))
    carry = (jnp.zeros((2, 5)), jnp.zeros((2, 5)))
    first = jnp.zeros((4, 2), bool)
    params = LSTM(5, 2).init(jax.random.key(2), x, carry, first)["params"]
    theirs = torch.nn.LSTM(3, 5)
    names = {"weight_ih_l0": "input_kernel", "weight_hh_l0": "state_kernel"}
    names |= {"bias_ih_l0": "input_bias", "bias_hh_l0": "state_bias"}
    theirs.load_state_dict({name: torch.tensor(np.array(params[ours]).T) for name, ours in names.items()})
    expected = theirs(torch.tensor(np.array(x)))[0].detach().numpy()
    np.testing.assert_allclose(LSTM(5, 2).apply({"params": params}, x, carry, first)[1], expected, atol=1e-6)


def test_halving_is_max_pooling():
    x = jax.random.normal(jax.random.key(0), (2, 8, 4, 3))
    np.testing.assert_array_equal(halved(x), nn.max_pool(x, (2, 2), strides=(2, 2)))


def test_the_published_sizes_and_initial_values():
    """`train_symbolic_ppo.py`; the words are those there are, not the hundred there might be."""
    words = 40
    network = SymbolicNetwork(6, words, SymbolicConfig())
    empty = jnp.zeros((1, 128))
    zeros = jnp.zeros((1, 1, 5), jnp.int32)
    inputs = (jnp.zeros((1, 1, 7, 7, 3)), zeros, zeros[..., 0], (empty, empty), jnp.zeros((1, 1), bool))
    params = jax.jit(network.init)(jax.random.key(0), *inputs)["params"]
    conv, dense, norm = 128 * 128 * 9 + 128, 128 * 128 + 128, 2 * 128
    film = 2 * conv + 2 * dense + 2 * norm
    expected = {
        "words": words * 128,
        "mission": 3 * 128 * 256 + 6 * 128,
        "conv_1": 3 * 2 * 2 * 128 + 128,
        "norm_1": norm,
        "conv_2": conv,
        "norm_2": norm,
        "film_1": film,
        "film_2": film,
        "memory": 4 * 128 * 256 + 8 * 128,
        "actor_1": 128 * 64 + 64,
        "actor_2": 64 * 6 + 6,
        "critic_1": 128 * 64 + 64,
        "critic_2": 64 + 1,
    }
    assert {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in params.items()} == expected
    for layer in (params["actor_1"], params["critic_2"], params["film_2"]["scale"]):
        np.testing.assert_allclose(jnp.linalg.norm(layer["kernel"], axis=0), 1.0, rtol=1e-5)
        assert not np.any(np.asarray(layer["bias"]))
    for layer, fan_in in ((params["conv_1"], 12), (params["film_1"]["conv_2"], 1152)):
        top = max(float(jnp.abs(x).max()) for x in layer.values())
        assert 0.9 / np.sqrt(fan_in) < top <= 1 / np.sqrt(fan_in)


# --- the policy -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unroll_is_step_by_step(tiny, played, drawn, step):
    obs, first = played
    carry = jax.tree.map(lambda x: x + 0.3, tiny.policy.initial_carry(4))
    distribution, value = jax.jit(tiny.policy.unroll)(drawn, (), obs, carry, first)
    for t in range(6):
        one, v, carry = step(drawn, (), jax.tree.map(lambda x, t=t: x[t], obs), carry, first[t])
        np.testing.assert_allclose(one.logits, distribution.logits[t], atol=1e-5)
        np.testing.assert_allclose(v, value[t], atol=1e-5)
    assert distribution.logits.shape == (6, 4, 6)


def test_memory_is_emptied_where_an_episode_begins(tiny, played, drawn, step):
    obs, first = played
    carries = [jax.tree.map(lambda x, c=c: x + c, tiny.policy.initial_carry(4)) for c in (0.0, 0.7)]
    now = jax.tree.map(lambda x: x[3], obs)
    (a, _, _), (b, _, _) = (step(drawn, (), now, carry, first[3]) for carry in carries)
    np.testing.assert_array_equal(a.logits[1], b.logits[1])
    assert np.abs(np.asarray(a.logits[0] - b.logits[0])).max() > 1e-4


def test_rows_do_not_see_one_another(tiny, played, drawn, step):
    """As they would through batch norm: with other rows beside it, a row gets the same."""
    obs, first = played
    now, other = (jax.tree.map(lambda x, t=t: x[t], obs) for t in (0, 1))
    mixed = jax.tree.map(lambda a, b: jnp.concatenate([b[:2], a[2:]]), now, other)
    carry = tiny.policy.initial_carry(4)
    (a, v, _), (b, w, _) = (step(drawn, (), rows, carry, first[0]) for rows in (now, mixed))
    np.testing.assert_allclose(a.logits[2:], b.logits[2:], atol=1e-6)
    np.testing.assert_allclose(v[2:], w[2:], atol=1e-6)
    assert np.abs(np.asarray(a.logits[:2] - b.logits[:2])).max() > 1e-4


def test_the_mission_and_the_view_count(tiny, played, drawn, step):
    obs, first = (jax.tree.map(lambda x: x[0], part) for part in played)
    carry = tiny.policy.initial_carry(4)
    base = step(drawn, (), obs, carry, first)[0].logits
    for name in ("mission", "image"):
        other = {**obs, name: jnp.roll(obs[name], 1, axis=0)}
        changed = step(drawn, (), other, carry, first)[0].logits
        rows = np.any(np.asarray(other[name] != obs[name]).reshape(4, -1), axis=1)
        assert rows.any() and np.abs(np.asarray(base - changed)).max(axis=1)[rows].min() > 1e-6, name


@pytest.mark.slow  # and so with LLVM's optimisations: without them XLA 0.10.2 makes nan of this gradient
def test_ppo_learns_by_what_it_acted_by(tiny):
    learner = tiny.learner()
    state = learner.init(jax.random.key(0))
    update = jax.jit(learner.update)
    after, metrics = update(state)
    after, again = update(after)  # begun with a memory that is not empty
    for found in (metrics, again):
        assert float(found["first_ratio_error"]) <= 1e-5 and float(found["nonfinite"]) == 0
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.params, state.params)
    assert moved["words"]["embedding"] > 0 and moved["memory"]["state_kernel"] > 0 and moved["conv_1"]["kernel"] > 0


@pytest.mark.slow
def test_a_mesh_plays_the_same_worlds(tiny):
    """Environments over two devices: the same trajectories, and the same update within rounding."""
    found = []
    for agent in (tiny, make_agent(replace(TINY, mesh="data=2"))):
        learner = agent.learner()
        found.append(jax.device_get(jax.jit(learner.update)(learner.init(jax.random.key(0)))))
    (one, metrics), (two, spread) = found
    jax.tree.map(np.testing.assert_array_equal, one.runner.obs, two.runner.obs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), one.params, two.params)
    assert float(spread["first_ratio_error"]) <= 1e-5
    assert float(metrics["loss"]) == pytest.approx(float(spread["loss"]), abs=1e-4)


def test_the_published_values():
    """`train_symbolic_ppo.py` of GLAM."""
    ppo = SYMBOLIC.ppo
    assert (ppo.num_envs, ppo.num_steps, ppo.num_envs * ppo.num_steps // ppo.minibatches) == (64, 40, 1280)
    assert (ppo.learning_rate, ppo.epochs, ppo.gamma, ppo.gae_lambda) == (1e-4, 4, 0.99, 0.99)
    assert (ppo.entropy_coef, ppo.value_loss_coef, ppo.max_grad_norm, ppo.clip_eps) == (0.01, 0.5, 0.5, 0.2)
    assert (ppo.adam_b1, ppo.adam_b2, ppo.adam_eps, ppo.normalize_advantages) == (0.9, 0.999, 1e-5, False)
    sizes = SYMBOLIC.symbolic
    assert (sizes.image_dim, sizes.instr_dim, sizes.memory_dim, sizes.recurrence) == (128, 128, 128, 20)
    assert SYMBOLIC.reward_scale == 20.0 and PPOConfig().learning_rate != ppo.learning_rate


def test_what_the_baseline_sees():
    env, params = envs_jax.make("BabyAI-Text/GoToObjS4-v0")
    view = SymbolicView(env)
    obs, _ = jax.jit(view.reset)(jax.random.key(0), params)
    assert set(obs) == {"image", "mission"} == set(view.observation_space(params).spaces)
    assert view.observation_space(params).contains(jax.tree.map(np.asarray, obs))
    assert view.describe(obs)["mission"].startswith("go to ")
    cartpole, _ = envs_jax.make("CartPole-v1")
    with pytest.raises(TypeError, match="'CartPole-v1'.*BabyAI"):
        SymbolicView(cartpole)


def test_bad_sizes():
    with pytest.raises(ValueError, match="symbolic.image_dim.*12.*16"):
        SymbolicConfig(image_dim=12)
    with pytest.raises(ValueError, match="symbolic.recurrence.*0.*1"):
        SymbolicConfig(recurrence=0)


@pytest.mark.parametrize("size", [2, 3])
def test_the_convolution_is_the_library_s(size):
    x = jax.random.normal(jax.random.key(0), (2, 5, 4, 3))
    ours, theirs = Conv(7, size), nn.Conv(7, (size, size), padding=1)
    variables = ours.init(jax.random.key(1), x)
    assert variables["params"]["kernel"].shape == (size, size, 3, 7)
    np.testing.assert_allclose(ours.apply(variables, x), theirs.apply(variables, x), atol=1e-5)
