"""Learners, compatibility, pretrained agents and presets, built for a world of five cells."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core.config import to_json
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.lm.encoder import summed
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig, dqn_loss
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.systems.ellm.build import build, gate_of, ppo_settings
from llmrl_jax.systems.ellm.collect import recorder
from llmrl_jax.systems.ellm.config import PRESETS, ChatGoals, EllmConfig, preset
from llmrl_jax.systems.ellm.eval import category_shares, crafter_score
from llmrl_jax.systems.ellm.open_goals import NO_KEY
from llmrl_jax.systems.ellm.train import Pretrained
from tests.ellm_world import NAMES, Yard


SMALL = EllmConfig(
    encoder="hashed",
    network=BranchConfig(width=8, head_hidden=(4,)),
    dqn=DQNConfig(num_envs=8, num_steps=3, gradient_steps=1, batch_size=8, replay_size=80, n_step=2, pool_size=4),
    ppo=PPOConfig(num_envs=8, num_steps=4, epochs=1, minibatches=2, pool_size=4),
)
CHAT = replace(SMALL, suggester="chat", goals=ChatGoals(max_states=32, max_goals=16, per_state=4, at_once=8))


@cache
def made(config):
    return build(config, Yard())


def one_update(config, mesh=None):
    ellm = replace(made(config), mesh=mesh)
    learner = ellm.learner()
    state = learner.init(jax.random.key(0))
    return state, *jax.jit(learner.update)(state)


@pytest.mark.slow
def test_ppo_is_the_second_learner():
    """It collects states to ask about as DQN does, and its first ratio is 1."""
    state, after, metrics = one_update(replace(CHAT, learner="ppo"))
    assert float(metrics["first_ratio_error"]) < 1e-5
    assert np.any(np.asarray(after.bonus.whole["keys"]) != NO_KEY) and float(metrics["states_to_ask"]) > 0
    old, new = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(s.params)]) for s in (state, after))
    assert np.abs(old - new).max() > 0


@pytest.mark.slow
def test_eight_devices_collect_the_same():
    """Environments are split over two devices; the table of suggestions is on both."""
    alone, shared = (one_update(CHAT, mesh)[1] for mesh in (None, make_mesh("data=2")))
    np.testing.assert_array_equal(alone.bonus.whole["keys"], shared.bonus.whole["keys"])
    np.testing.assert_array_equal(alone.runner.obs["goals"], shared.runner.obs["goals"])
    assert shared.runner.obs["goals"].sharding.spec[0] and not any(shared.bonus.whole["keys"].sharding.spec)
    assert not any(shared.runner.env_params.answers.keys.sharding.spec)


@pytest.mark.slow
def test_the_published_quirks():
    config = replace(SMALL, compat="paper")
    env = made(config).env
    assert env.rules.gate == "lenient" and made(SMALL).env.rules.gate == "effect"
    _, after, _ = one_update(config)
    items = after.replay.items
    np.testing.assert_array_equal(items.terminated, items.truncated)  # time-outs are stored as ends
    assert gate_of(replace(config, suggester="novelty")) == "none"
    assert [gate_of(replace(config, gate=gate)) for gate in ("none", "lenient")] == ["none", "lenient"]
    assert not ppo_settings(config).bootstrap_truncation and ppo_settings(SMALL).bootstrap_truncation


def test_texts_and_symbols_reach_the_network():
    seen = made(replace(SMALL, observe="symbols+text"))
    obs, _ = jax.jit(seen.env.reset)(jax.random.key(0), seen.env_params)
    inputs = seen.inputs(jax.tree.map(lambda x: x[None], obs))
    cell = int(np.argmax(obs["view"][:, 0, 0]))
    vector = inputs["symbols"].vector()
    assert vector.shape == (1, 2 * 5 + 2) and inputs["goals"].shape == (1, len(NAMES))
    np.testing.assert_array_equal(vector[0, : 2 * 5].reshape(5, 2).argmax(1), np.arange(5) == cell)
    wanted = seen.encoder.encode_texts([f"you see cell {cell}"])
    np.testing.assert_allclose(inputs["text"], wanted, atol=1e-6)
    with pytest.raises(ValueError, match="observe.*text.*Yard-v0"):
        yard = Yard()
        yard.__class__ = type("Mute", (Yard,), {"captions": {}})
        build(replace(SMALL, observe="text"), yard)


def test_a_network_sees_only_what_its_agent_observes():
    """An agent that reads captions plays where steps are recorded, whose observations have all parts."""
    reads = made(replace(SMALL, observe="text"))
    world = recorder(reads)
    obs, _ = world.reset(jax.random.key(0), reads.env_params)
    assert {"view", "inventory", "text"} <= set(obs)
    assert set(reads.inputs(jax.tree.map(lambda x: x[None], obs))) == {"text", "goals"}


@pytest.mark.parametrize(
    "tune", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("all", "critic")), "linear"]
)
def test_finetuning_in_parts(tune):
    """What is trained, what is kept, and that both together give the values of the pretrained agent."""
    ellm = made(SMALL)
    obs, _ = ellm.env.reset(jax.random.key(0), ellm.env_params)
    obs = jax.tree.map(lambda x: x[None], obs)
    params, frozen = ellm.policy.init(jax.random.key(1), obs)
    policy = Pretrained(ellm.policy, params, frozen, tune, value="keep")
    trained, rest = policy.init(jax.random.key(2), obs)
    np.testing.assert_allclose(policy.q(trained, rest, obs), ellm.policy.q(params, frozen, obs), rtol=1e-6)
    count = len(jax.tree.leaves(trained))
    heads = len(jax.tree.leaves({name: params[name] for name in policy.heads}))
    assert count == {"all": len(jax.tree.leaves(params)), "critic": heads, "linear": 4}[tune]
    assert count + len(jax.tree.leaves(rest["rest"])) == len(jax.tree.leaves(params))
    new, kept = Pretrained(ellm.policy, params, frozen, tune, reinit=True).init(jax.random.key(2), obs)
    moved = jnp.abs(new["value"]["out"]["kernel"] - params["value"]["out"]["kernel"]).max()
    assert float(moved) > 0
    encoder = (new if tune == "all" else kept["rest"])["encoder"]["fusion"]["kernel"]
    np.testing.assert_array_equal(encoder, params["encoder"]["fusion"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("value", ["zero", "keep"])
def test_the_first_success_of_a_task(value):
    """A pretrained state is worth 4 achievements, and the task pays 1 and ends: a gradient step on its success makes
    the action that earned it better than the others only if values start at zero."""
    ellm = made(SMALL)
    obs, _ = ellm.env.reset(jax.random.key(0), ellm.env_params)
    obs = jax.tree.map(lambda x: x[None], obs)
    given, frozen = ellm.policy.init(jax.random.key(1), obs)
    given["value"]["out"]["bias"] += 4.0
    policy = Pretrained(ellm.policy, given, frozen, value=value)
    params, rest = policy.init(jax.random.key(2), obs)
    q, whole = policy.q(params, rest, obs), ellm.policy.q(given, frozen, obs)
    start = whole if value == "keep" else whole - jnp.mean(whole, axis=-1, keepdims=True)
    np.testing.assert_allclose(q, start, atol=1e-5)  # 1511.06581, eq. 9: the advantages have the mean 0
    best = jnp.argmax(q, axis=-1)
    success = Transitions(obs, best, jnp.ones(1), obs, jnp.ones(1, bool))
    loss = lambda x: dqn_loss(x, rest, x, success, policy, 0.99)[0]  # noqa: E731
    after = policy.q(jax.tree.map(lambda x, g: x - 0.01 * g, params, jax.grad(loss)(params)), rest, obs)
    ahead = [float(x[0, best[0]] - jnp.mean(x)) for x in (q, after)]
    assert (ahead[1] > ahead[0]) == (value == "zero")


def test_presets():
    assert all(to_json(preset(name)) for name in PRESETS)
    with pytest.raises(KeyError, match="'embeded'.*'embedded'"):
        preset("embeded")


def test_scores_by_hand():
    assert crafter_score(np.zeros(22)) == 0 and crafter_score(np.ones(22)) == pytest.approx(100)
    assert crafter_score(np.array([0.5, 0.0])) == pytest.approx(np.sqrt(51) - 1)
    shares = category_shares(np.array([[3, 1, 0, 0], [0, 0, 0, 0]]))
    assert shares["suggested"] == 4 and shares["suggested/good"] == 0.75 and np.isnan(shares["paid/bad"])


def test_a_text_is_the_sum_of_its_phrases_embeddings():
    table = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 8.0]], np.float32)
    captions = np.array([[2, 1, 1, -1], [-1, -1, -1, -1], [0, 2, -1, 0]], np.int16)
    np.testing.assert_array_equal(summed(table, captions), [[4, 12], [0, 0], [6, 8]])


def test_an_agent_without_goals_does_not_point():
    network = BranchConfig(width=8, head_hidden=(8,), pointing=True)
    blind = EllmConfig(network=network, suggester="none", extrinsic=1.0)
    for config, points in ((blind, False), (EllmConfig(network=network), True)):
        assert build(config, Yard()).policy.network.config.pointing == points
