"""Networks with branches, computed again with NumPy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.rl.branches import (
    BranchConfig,
    Branches,
    BranchPolicy,
    BranchQPolicy,
    Picture,
    Pooled,
    l2_normalized,
)


TABLE = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
CONFIG = BranchConfig(width=8, head_hidden=(4,))
INPUTS = ("symbols", "text", "goals")


def observations(n=3):
    rng = np.random.default_rng(1)
    return {
        "symbols": jnp.asarray(rng.normal(size=(n, 7)), jnp.float32),
        "text": jnp.asarray(rng.normal(size=(n, 6)), jnp.float32),
        "goals": jnp.asarray(rng.random((n, 5)) < 0.5),
    }


def layer(params, x):
    return x @ np.asarray(params["kernel"]) + np.asarray(params["bias"])


def relu(x):
    return np.maximum(x, 0)


def test_values_by_hand():
    policy = BranchQPolicy(3, CONFIG, lambda obs: obs, TABLE)
    obs = observations()
    params, frozen = policy.init(jax.random.key(0), obs)
    e = params["encoder"]
    members = np.asarray(obs["goals"], np.float32)
    pooled = members @ TABLE / np.maximum(members.sum(1, keepdims=True), 1)
    parts = [relu(layer(e["symbols"], np.asarray(obs["symbols"]))), layer(e["text"], np.asarray(obs["text"]))]
    x = relu(layer(e["fusion"], np.concatenate([*parts, layer(e["goals"], pooled)], axis=-1)))
    heads = {name: layer(params[name]["out"], relu(layer(params[name]["hidden_0"], x))) for name in policy.heads}
    wanted = heads["value"] + heads["advantage"] - heads["advantage"].mean(1, keepdims=True)
    np.testing.assert_allclose(policy.q(params, frozen, obs), wanted, atol=1e-5)
    np.testing.assert_array_equal(frozen["goals"], TABLE)
    assert set(params) == {"encoder", *policy.heads}


@pytest.mark.parametrize("kind", [BranchQPolicy, BranchPolicy])
def test_pointing_has_no_effect_without_goals(kind):
    plain, points = (kind(3, replace(CONFIG, pointing=on), lambda obs: obs) for on in (False, True))
    obs = {name: x for name, x in observations().items() if name != "goals"}
    jax.tree.map(np.testing.assert_array_equal, *(policy.init(jax.random.key(0), obs) for policy in (plain, points)))
    assert getattr(plain, "heads", ()) == getattr(points, "heads", ())


def test_pointing_adds_one_number_to_the_actions_that_are_goals():
    """The goals are rows of a table of five, of which the first three are the actions."""
    plain, points = (BranchQPolicy(3, replace(CONFIG, pointing=on), lambda obs: obs, TABLE) for on in (False, True))
    obs = observations()
    params, frozen = points.init(jax.random.key(0), obs)
    assert set(params) == {"encoder", *points.heads} == {"encoder", *plain.heads, "pointing"}
    x = Branches(CONFIG).apply({"params": params["encoder"]}, obs, jnp.asarray(TABLE))
    bonus = layer(params["pointing"]["out"], x) * np.asarray(obs["goals"], np.float32)[:, :3]
    rest = {name: params[name] for name in params if name != "pointing"}
    wanted = plain.q(rest, frozen, obs) + bonus - bonus.mean(1, keepdims=True)
    np.testing.assert_allclose(points.q(params, frozen, obs), wanted, atol=1e-5)
    assert np.abs(bonus).max() > 0.01


def test_pooling_by_hand():
    members = jnp.array([[True, False, True, False, False], [False] * 5])
    mean = Pooled("mean").apply({}, members, jnp.asarray(TABLE))
    np.testing.assert_allclose(mean, [(TABLE[0] + TABLE[2]) / 2, np.zeros(6)], atol=1e-6)
    query = np.arange(6, dtype=np.float32) / 3
    learned = Pooled("learned").apply({"params": {"query": jnp.asarray(query)}}, members, jnp.asarray(TABLE))
    weights = np.exp(TABLE[[0, 2]] @ query)
    np.testing.assert_allclose(learned[0], weights @ TABLE[[0, 2]] / weights.sum(), atol=1e-5)
    np.testing.assert_allclose(learned[1], 0, atol=1e-6)


def test_pictures_have_the_published_sizes():
    """84 x 84 pixels give 3,136 features of norm 1 before the linear layer."""
    image = jnp.asarray(np.random.default_rng(2).integers(0, 256, (2, 84, 84, 4)), jnp.uint8)
    params = jax.eval_shape(Picture(512).init, jax.random.key(0), image)["params"]
    assert params["out"]["kernel"].shape == (3136, 512)
    sizes = [params[f"Conv_{i}"]["kernel"].shape for i in range(3)]
    assert sizes == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    np.testing.assert_allclose(np.linalg.norm(l2_normalized(jnp.array([[3.0, 4.0], [0.0, 0.0]])), axis=1), [1, 0])


def test_several_parameters_share_the_inputs():
    """Of the same observations the inputs are made once, and actions that are not offered have no value."""
    made = []
    policy = BranchQPolicy(
        3, CONFIG, lambda obs: made.append(0) or {k: v for k, v in obs.items() if k in INPUTS}, TABLE
    )
    obs = observations() | {"action_mask": jnp.array([[True, True, False]] * 3)}
    params, frozen = policy.init(jax.random.key(0), obs)
    other = jax.tree.map(lambda x: 2 * x, params)
    wanted = [policy.q(one, frozen, obs) for one in (params, other)]
    made.clear()
    found = policy.q_values_of([params, other], frozen, obs)
    assert len(made) == 1
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert np.isneginf(found[0][:, 2]).all() and np.isfinite(found[0][:, :2]).all()


def test_acting_and_learning_agree():
    policy = BranchPolicy(3, CONFIG, lambda obs: obs, TABLE)
    obs = observations(6)
    params, frozen = policy.init(jax.random.key(0), obs)
    one, value, _ = policy.step(params, frozen, obs, (), jnp.ones(6, bool))
    steps = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), obs)
    many, values = policy.unroll(params, frozen, steps, (), jnp.ones((2, 3), bool))
    np.testing.assert_allclose(many.probs.reshape(6, 3), one.probs, rtol=1e-5)
    np.testing.assert_allclose(values.reshape(6), value, rtol=1e-5)


def test_bad_sizes():
    with pytest.raises(ValueError, match="network.width.*0"):
        BranchConfig(width=0)
    with pytest.raises(ValueError, match="network.pooling.*'max'"):
        BranchConfig(pooling="max")  # type: ignore[arg-type]
