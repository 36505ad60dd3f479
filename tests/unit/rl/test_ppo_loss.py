"""PPO's loss by hand."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.policy import Policy
from llmrl_jax.rl.ppo import Batch, ppo_loss


class Table(Policy):
    """A policy whose outputs are its parameters."""

    def unroll(self, params, frozen, obs, carry, first):
        return Categorical(params["logits"]), params["value"]


loss_of = jax.jit(
    lambda p, batch, hparams, *broadcast: ppo_loss(p, (), batch, Table(), hparams, *broadcast), static_argnums=3
)
gradient_of = jax.jit(jax.grad(lambda p, batch, hparams: ppo_loss(p, (), batch, Table(), hparams)[0]))
HPARAMS = {"clip_eps": 0.2, "value_clip": 0.2, "value_loss_coef": 0.5, "entropy_coef": 0.1}


def hand_batch():
    """Two steps: probabilities now (0.75, 0.25) of the actions taken, ratios 1.5 and 0.5, values 0 and 2."""
    params = {"logits": jnp.log(jnp.array([[[0.75, 0.25], [0.75, 0.25]]])), "value": jnp.array([[0.0, 2.0]])}
    batch = Batch(
        obs=jnp.zeros((1, 2)),
        action=jnp.array([[0, 1]]),
        log_prob=jnp.log(jnp.array([[0.5, 0.5]])),
        value=jnp.array([[0.5, 2.0]]),
        advantage=jnp.array([[1.0, -1.0]]),
        returns=jnp.array([[0.0, 3.0]]),
        first=jnp.zeros((1, 2), bool),
        carry=(),
    )
    return params, batch


def test_loss_by_hand():
    params, batch = hand_batch()
    loss, metrics = loss_of(params, batch, HPARAMS)
    # policy: min(1.5, 1.2) = 1.2 and min(-0.5, -0.8) = -0.8.  value: max(0, 0.3^2) and max(1, 1)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    expected = {
        "policy_loss": -0.2,
        "value_loss": 0.545,
        "entropy": entropy,
        "approx_kl": ((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2,
        "clip_fraction": 1.0,
        "ratio_error": 1.0,  # of the ratio 0.5: max(r, 1 / r) - 1
        "loss": -0.2 + 0.5 * 0.545 - 0.1 * entropy,
    }
    assert set(metrics) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)


def test_clipped_steps_push_the_policy_no_further():
    params, batch = hand_batch()
    free = HPARAMS | {"entropy_coef": 0.0, "value_loss_coef": 0.0}
    grads = gradient_of(params, batch, free)
    np.testing.assert_array_equal(grads["logits"], 0.0)
    wide = gradient_of(params, batch, free | {"clip_eps": 0.6})
    assert np.all(np.asarray(wide["logits"]) != 0)


def test_glams_broadcast_compares_every_value_with_every_return():
    params, batch = hand_batch()
    loss = loss_of(params, batch, HPARAMS, "glam")[1]["value_loss"]
    # rows V = 0, 2; columns (old, R) = (0.5, 0), (2, 3): max(0, .3^2), max(9, 1.2^2), max(4, .7^2), max(1, 1)
    np.testing.assert_allclose(loss, (0.09 + 9 + 4 + 1) / 4, rtol=1e-5)
