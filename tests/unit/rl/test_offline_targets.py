"""Whole steps of AWAC with continuous actions, COMBO and PRDC against NumPy: targets, losses and their gradients.

Random numbers are drawn from the keys that the methods use; everything else is computed in float64.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.awac import AWAC, AWACConfig
from llmrl_jax.rl.combo import COMBO, COMBOConfig
from llmrl_jax.rl.gradient import traced_floats
from llmrl_jax.rl.offline import Context, Frozen
from llmrl_jax.rl.prdc import PRDC, PRDCConfig
from tests.unit.rl.test_offline_methods import (
    CONTINUOUS,
    ROWS,
    N,
    batch,
    close,
    critics,
    followed,
    log_normal,
    net,
    small,
    targets,
)


def first(kind, config):
    """A method, its networks with targets of their own, a batch, and the context of a step without data."""
    method, rows, hparams = kind(config, CONTINUOUS), batch(CONTINUOUS).replace(num_features=N), traced_floats(config)
    trained = jax.jit(method.init)(jax.random.key(0), rows, hparams)
    trained = trained.replace(target=jax.tree.map(lambda x: 1.5 * x + 0.2, trained.target))
    frozen = Frozen((), (), jnp.zeros(N), jnp.ones(N))
    return method, trained, rows, Context(jax.random.key(1), hparams, jnp.int32(0), frozen)


def steps(x, action):
    """Data as a method reads it, of which only states and actions matter."""
    obs, flags = {"vector": jnp.asarray(x, jnp.float32)}, jnp.zeros(len(x), bool)
    return Transitions(obs, jnp.asarray(action, jnp.float32), jnp.zeros(len(x)), obs, flags, flags)


def normal(key, shape):
    return np.asarray(jax.random.normal(key, shape), np.float64)


def gradient(after, before, name):
    """The gradient that a step of Adam saw, from its first moment before and after."""
    new, old = after.opt_state[name].mu, before.opt_state[name].mu
    return jax.tree.map(lambda a, b: (np.asarray(a, np.float64) - 0.9 * np.asarray(b)) / 0.1, new, old)


def check_gradient(loss, params, found, step=1e-5):
    """The gradient `found` is that of `loss(params)`, a function in float64, by central differences in every number."""
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: np.array(x, np.float64), params))
    for leaf, grad in zip(leaves, jax.tree.leaves(found), strict=True):
        flat = leaf.reshape(-1)
        slopes = []
        for i in range(flat.size):
            kept, ends = flat[i], []
            for move in (step, -step):
                flat[i] = kept + move
                ends.append(loss(jax.tree.unflatten(tree, leaves)))
            flat[i] = kept
            slopes.append((ends[0] - ends[1]) / (2 * step))
        np.testing.assert_allclose(np.asarray(grad).reshape(-1), slopes, rtol=1e-3, atol=2e-5)
    assert max(np.abs(grad).max() for grad in jax.tree.leaves(found)) > 1e-3


# --- AWAC -------------------------------------------------------------------------------------------------------------


STD = np.exp(-3.0)
"""AWAC's first deviation: its log is in the middle of -6 and 0."""


def test_awac_by_hand_with_continuous_actions():
    """The target has one action of the policy, V the mean over `action_samples`; all are clipped to [-1, 1]. Weights
    read the critics after their step, and are constants to the actor."""
    method, trained, rows, context = first(AWAC, small(AWACConfig, temperature=0.05, action_samples=3))
    layers = trained.params["actor"]["mean"]
    high = layers[-1] | {"bias": layers[-1]["bias"] + jnp.array([2.5, 0.0])}  # means close to 1
    actor = trained.params["actor"] | {"mean": [*layers[:-1], high]}
    trained = trained.replace(params=trained.params | {"actor": actor})
    after, metrics = jax.jit(method.step)(trained, rows, context)
    p, t, now = trained.params, trained.target, after.params["critic"]
    target_key, weight_key = jax.random.split(context.key)

    def value(critic, x, key, samples):
        noise = np.stack([normal(one, (ROWS, 2)) for one in jax.random.split(key, samples)], 1)
        action = np.tanh(net(p["actor"]["mean"], x))[:, None] + STD * noise
        assert action.max() > 1
        action = np.clip(action, -1, 1)
        many = np.broadcast_to(np.asarray(x)[:, None], (ROWS, samples, N))
        return critics(critic, many, action).min(0).mean(1)

    wanted = targets(rows, value(t["critic"], rows.next_obs, target_key, 1))
    close(metrics["target_mean"], wanted.mean())

    def critic_loss(critic):
        return ((critics(critic, rows.obs, rows.action) - wanted) ** 2).mean(1).sum()

    close(metrics["critic_loss"], critic_loss(p["critic"]))
    check_gradient(critic_loss, p["critic"], gradient(after, trained, "critic"))

    advantage = critics(now, rows.obs, rows.action).min(0) - value(now, rows.obs, weight_key, 3)
    exponent = np.exp(advantage / 0.05)
    weight = ROWS * exponent / exponent.sum()
    assert weight.max() > 1.3 and weight.min() < 0.7, "rows count differently"
    fresh = trained.replace(params={**p, "critic": now})
    close(jax.jit(method.weights)(fresh, rows, weight_key, context.hparams["temperature"]), weight)
    close(metrics["weight_max"], weight.max())

    def actor_loss(actor):
        log_std = -6 + 6 / (1 + np.exp(-np.asarray(actor["log_std"], np.float64)))
        return -np.mean(
            weight * log_normal(np.asarray(rows.action, np.float64), np.tanh(net(actor["mean"], rows.obs)), log_std)
        )

    close(metrics["actor_loss"], actor_loss(p["actor"]))
    check_gradient(actor_loss, p["actor"], gradient(after, trained, "actor"))
    followed(trained, after, "critic")


# --- COMBO ------------------------------------------------------------------------------------------------------------


def combo_config():
    options = {
        "batch_size": 2 * ROWS, "normalize": False, "members": 2, "elites": 1, "model_hidden": (4,), "model_steps": 1,
        "rollouts": 2, "horizon": 1, "kept": 3, "action_samples": 2, "initial_temperature": 0.5,
        "conservative_weight": 3.0, "temperature_learning_rate": 0.02, "rollout_every": 100,
    }  # fmt: skip
    return replace(small(COMBOConfig), **options)


def model_rows(real):
    """Other rows, as of a model."""
    rng = np.random.default_rng(7)
    x, y = (jnp.asarray(rng.normal(1, 2, (ROWS, N)), jnp.float32) for _ in range(2))
    action = jnp.asarray(rng.uniform(-1, 1, (ROWS, 2)), jnp.float32)
    end = jnp.array([False, False, True, True])
    return real.replace(obs=x, action=action, reward=jnp.array([7.0, -3.0, 5.0, 4.0]), next_obs=y, terminated=end)


def squashed(actor, x, noise):
    """Actions of a squashed Gaussian, and their log-densities by the change of variables."""
    mean, log_std = np.split(net(actor, x), 2, -1)
    mean, log_std = (np.broadcast_to(part, noise.shape) for part in (mean, log_std))
    action = np.tanh(mean + np.exp(log_std) * noise)
    return action, log_normal(mean + np.exp(log_std) * noise, mean, log_std) - np.log(1 - action**2).sum(-1)


def test_combo_by_hand():
    """Targets and the soft maximum are over recorded and imagined rows; what is raised are values of recorded ones."""
    method, trained, real, context = first(COMBO, combo_config())
    imagined = model_rows(real)
    after, metrics = jax.jit(method.policy_step)(trained, real, imagined, context, context.key)
    p, t, keys = trained.params, trained.target, jax.random.split(context.key, 3)
    x, y, action, reward, terminated = (
        np.concatenate([np.asarray(getattr(real, name)), np.asarray(getattr(imagined, name))])
        for name in ("obs", "next_obs", "action", "reward", "terminated")
    )
    count = 2 * ROWS
    next_action, _ = squashed(p["actor"], y, normal(keys[0], (count, 2)))
    bootstrapped = 0.9 * critics(t["critic"], y, next_action).min(0)  # without the entropy
    wanted = reward + np.where(terminated, 0, bootstrapped)
    close(metrics["target_mean"], wanted.mean())
    assert terminated[:ROWS].any() and terminated[ROWS:].any() and np.abs(bootstrapped).mean() > 0.1

    here, there, uniform = jax.random.split(keys[1], 3)
    pairs = [
        squashed(p["actor"], states, normal(one, (count, 2)))
        for states, key in ((x, here), (y, there))
        for one in jax.random.split(key, 2)
    ]
    drawn = np.asarray(jax.random.uniform(uniform, (count, 2, 2), minval=-1.0, maxval=1.0), np.float64)
    proposals = np.concatenate([np.stack([action for action, _ in pairs], 1), drawn], 1)
    density = np.concatenate([np.stack([log for _, log in pairs], 1), np.full((count, 2), -2 * np.log(2))], 1)
    many = np.broadcast_to(x[:, None], (count, 6, N))

    def gaps(critic):
        soft = np.log(np.exp(critics(critic, many, proposals) - density).sum(-1)).mean(1)
        return soft - critics(critic, x[:ROWS], action[:ROWS]).mean(1)

    def critic_loss(critic):
        return ((critics(critic, x, action) - wanted) ** 2).mean(1).sum() + 3 * gaps(critic).sum()

    close(metrics["gap"], gaps(p["critic"]).mean())
    close(metrics["critic_loss"], critic_loss(p["critic"]))
    check_gradient(critic_loss, p["critic"], gradient(after, trained, "critic"))
    data = critics(p["critic"], x, action)
    assert np.abs(data[:, :ROWS].mean(1) - data.mean(1)).min() > 1e-2, "the mean over all rows is another"

    noise, now = normal(keys[2], (count, 2)), after.params["critic"]
    _, log_prob = squashed(p["actor"], x, noise)
    temperature = np.exp(np.log(0.5) + 0.02 * np.sign(log_prob.mean() - 2))  # the wanted entropy is -2
    close(metrics["temperature"], temperature)
    close(metrics["entropy"], -log_prob.mean())

    def actor_loss(actor):
        chosen, log_prob = squashed(actor, x, noise)
        return np.mean(temperature * log_prob - critics(now, x, chosen).min(0))

    close(metrics["actor_loss"], actor_loss(p["actor"]))
    check_gradient(actor_loss, p["actor"], gradient(after, trained, "actor"))
    followed(trained, after, "critic")


class Shown(COMBO):
    """COMBO whose policy step says what it was given."""

    def policy_step(self, trained, real, imagined, context, key):
        shown = {"of_data": jnp.sum(real.reward), "data_rows": jnp.float32(len(real.reward))}
        shown |= {"of_model": jnp.sum(imagined.reward), "model_rows": jnp.float32(len(imagined.reward))}
        return trained, shown


@pytest.mark.slow
def test_half_of_combos_batch_is_recorded_and_half_is_of_its_memory():
    method, trained, rows, context = first(Shown, combo_config())
    memory = method.memory.add(trained.extra["ring"], model_rows(rows).replace(reward=jnp.full(ROWS, 10.0)))
    assert int(memory.size) == ROWS < len(memory.items.reward), "places that are never drawn"
    trained = trained.replace(extra=trained.extra | {"ring": memory})
    wide = jax.tree.map(lambda x: jnp.concatenate([x, x]), rows)
    wide = wide.replace(reward=2.0 ** jnp.arange(2 * ROWS))  # a sum says of which rows it is
    frozen = context.frozen.replace(given=(steps(wide.obs, wide.action),), sizes=(jnp.int32(2 * ROWS),))
    step = jax.jit(method.step)
    _, found = step(trained, wide, context.replace(count=jnp.int32(2), frozen=frozen))  # no round of rollouts is due
    assert float(found["of_data"]) == 1 + 4 + 16 + 64 and float(found["data_rows"]) == ROWS
    assert float(found["of_model"]) == 10 * ROWS and float(found["model_rows"]) == ROWS
    _, found = step(trained, wide, context.replace(frozen=frozen))  # a step of the model
    assert float(found["data_rows"]) == 0 and float(found["model_loss"]) != 0


# --- PRDC -------------------------------------------------------------------------------------------------------------


def test_prdc_by_hand():
    """The actor's loss with the first critic after its step; neighbours and the value's size are constants to it."""
    config = small(PRDCConfig, alpha=1.5, beta=0.6, block=3, policy_noise=1e6, noise_clip=0.3)
    method, trained, rows, context = first(PRDC, config)
    p, t, rng = trained.params, trained.target, np.random.default_rng(5)
    x, action = np.asarray(rows.obs, np.float64), np.tanh(net(p["actor"], rows.obs))
    sets = [(rng.normal(size=(n, N)), rng.uniform(-1, 1, (n, 2))) for n in (7, 5)]
    sets[1][0][4], sets[1][1][4] = x[0], action[0]  # padding, which would be the nearest

    given = tuple(steps(*one) for one in sets)
    frozen = Frozen(given, (), jnp.zeros(N), jnp.ones(N), (jnp.int32(7), jnp.int32(4)))
    context = context.replace(count=jnp.int32(1), frozen=frozen)
    after, metrics = jax.jit(method.step)(trained, rows, context)

    noise = 0.3 * np.sign(normal(context.key, (ROWS, 2)))
    chosen = np.clip(np.tanh(net(t["actor"], rows.next_obs)) + noise, -1, 1)
    wanted = targets(rows, critics(t["critic"], rows.next_obs, chosen).min(0))
    close(metrics["target_mean"], wanted.mean())

    def critic_loss(critic):
        return ((critics(critic, x, rows.action) - wanted) ** 2).mean(1).sum()

    close(metrics["critic_loss"], critic_loss(p["critic"]))
    check_gradient(critic_loss, p["critic"], gradient(after, trained, "critic"))

    states, known = (np.concatenate([one[i] for one in sets])[:11] for i in range(2))
    distance = 0.6**2 * ((x[:, None] - states) ** 2).sum(-1) + ((action[:, None] - known) ** 2).sum(-1)
    nearest = distance.argmin(1)
    assert (nearest < 7).any() and (nearest >= 7).any(), "some neighbours are in either set"
    now = after.params["critic"]
    weight = 1.5 / np.abs(critics(now, x, action)[0]).mean()

    def parts(actor):
        action = np.tanh(net(actor, x))
        return np.mean((action - known[nearest]) ** 2), weight * critics(now, x, action)[0].mean()

    imitation, value = parts(p["actor"])
    close(metrics["bc_loss"], imitation)
    close(metrics["actor_loss"], imitation - value)
    assert abs(value) > 1e-2
    check_gradient(lambda actor: np.subtract(*parts(actor)), p["actor"], gradient(after, trained, "actor"))
    followed(trained, after, "actor")
    followed(trained, after, "critic")
