"""DRRN: its sizes and values are the published ones; it reads prompts and actions, and remembers captions."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from llmrl_jax.agents.drrn import DRRNConfig, DRRNNetwork
from llmrl_jax.core.config import completed, differences, from_json, identity, load_config, to_json
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.config import DRRN, GlamConfig, TrainConfig
from tests.gru import gru_by_hand
from tests.paths import ROOT


def sizes(tree):
    return {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in tree.items()}


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


def test_the_published_sizes():
    """`agents/drrn` of GLAM: about 1.26M parameters."""
    network = DRRNNetwork(8000, DRRN.drrn.embedding_dim, DRRN.drrn.hidden_dim)
    tokens, one = jnp.zeros((2, 7), jnp.int32), jnp.ones(2, jnp.int32)
    shapes = jax.eval_shape(network.init, jax.random.key(0), tokens, one, tokens[:, :3], one)["params"]
    gru = 3 * 128 * (128 + 128) + 2 * 3 * 128
    expected = {"embed": 8000 * 128, "state": gru, "action": gru, "hidden": 256 * 128 + 128, "q": 128 + 1}
    assert sizes(shapes) == expected
    assert sum(expected.values()) == 1_255_169 and round(sum(expected.values()) / 1e6, 2) == 1.26


def test_the_published_values():
    """`agents/drrn` of GLAM."""
    config = DRRN.dqn
    assert (config.num_envs * config.num_steps, config.gradient_steps, config.batch_size) == (128, 1, 64)
    assert (config.gamma, config.learning_rate, config.max_grad_norm, config.target_every) == (0.9, 1e-4, 5.0, 0)
    assert (config.acting, config.double, config.n_step, config.huber_delta) == ("softmax", False, 1, 1.0)
    assert (DRRN.agent, DRRN.history, DRRN.reward_scale) == ("drrn", 3, 20.0)


def before(config):
    """The JSON of a configuration in which the learner's settings stood beside the sizes of the network."""
    old = to_json(config)
    learner = ("num_envs", "num_steps", "gradient_steps", "batch_size", "replay_size", "gamma", "learning_rate")
    learner += ("max_grad_norm", "adam_b1", "adam_b2", "adam_eps", "target_every", "bootstrap_truncation", "reset")
    moved = old.pop("dqn")
    old["drrn"] |= {name: moved[name] for name in (*learner, "pool_size")}
    return old


CHANGED = replace(DRRN, history=2, drrn=DRRNConfig(embedding_dim=16), dqn=replace(DRRN.dqn, gamma=0.8))


def test_an_old_configuration_is_read():
    assert from_json(GlamConfig, before(CHANGED)) == CHANGED == from_json(GlamConfig, to_json(CHANGED))
    kept = load_config(TrainConfig, ROOT / "experiments/results/mixed/drrn-0/config.json")
    # as it was made, when no number of widths meant the device's
    assert kept.glam == replace(DRRN, env=kept.glam.env, score_widths=1)


@pytest.mark.parametrize("config", [CHANGED, GlamConfig()])
def test_an_old_checkpoint_has_the_same_identity(config):
    """Runs of the language model keep theirs too; they had DRRN's settings at their defaults."""
    now = TrainConfig(glam=config)
    old = {name: x for name, x in identity(now).items() if not name.startswith(("glam.drrn", "glam.dqn"))}
    old |= {f"glam.drrn.{name}": x for name, x in before(config)["drrn"].items()}
    assert completed(old, now) == identity(now)
    other = TrainConfig(glam=replace(config, dqn=replace(config.dqn, gamma=0.7)))
    assert differences(completed(old, other), identity(other)) == [f"glam.dqn.gamma: {config.dqn.gamma} -> 0.7"]


# --- in BabyAI-Text ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text():
    small = replace(
        DRRN.dqn,
        num_envs=3,
        num_steps=5,
        gradient_steps=2,
        batch_size=8,
        replay_size=48,
        learning_rate=0.05,
        pool_size=8,
    )
    world = {"env": "BabyAI-Text/GoToObjS4-v0", "history": 2, "list_actions": False}
    return make_agent(replace(DRRN, **world, dqn=small, drrn=DRRNConfig(8, 8)))


@pytest.mark.slow
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
    held = jax.tree.map(lambda x: np.asarray(x[0, 0]), after.replay.items.obs)
    jax.tree.map(np.testing.assert_array_equal, held, jax.tree.map(lambda x: np.asarray(x[0]), state.runner.obs))
    row = jax.tree.map(lambda x: x[0, 0], after.replay.items)
    assert int(row.next_obs["count"]) == 2 and int(row.next_obs["actions"][0]) == int(row.action)
    assert np.abs(flat(after.params) - flat(state.params)).max() > 0


def test_it_acts_as_it_was_trained():
    """In evaluations and tests too: with the temperature or the epsilon of its learner."""
    q = jnp.array([[1.0, 1.2, 0.7], [0.0, -1.0, 2.0]])
    for options, expected in (
        ({}, jax.nn.softmax(q)),
        ({"temperature": 0.05}, jax.nn.softmax(q / 0.05)),
        ({"acting": "epsilon", "epsilon_end": 0.3}, jnp.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])),
    ):
        env = "BabyAI-Text/GoToObjS4-v0"
        policy = make_agent(replace(DRRN, env=env, dqn=replace(DRRN.dqn, **options))).policy
        policy.q = lambda params, frozen, obs: q
        distribution, value, _ = policy.step(None, (), {}, (), jnp.zeros(2, bool))
        np.testing.assert_allclose(jax.nn.softmax(distribution.logits), expected, atol=1e-6)
        np.testing.assert_allclose(value, [1.2, 2.0])
