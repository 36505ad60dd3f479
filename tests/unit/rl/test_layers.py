"""Layers: against PyTorch's equations by hand, and against torch."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.kernels.products import convolution_reference
from llmrl_jax.rl.layers import GRU, Conv
from tests.gru import gru_by_hand


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


def test_a_layer_of_convolutions_has_its_bias_and_any_batch():
    x = jax.random.normal(jax.random.key(0), (3, 2, 4, 4, 1))
    module = Conv(5, 3)
    params = module.init(jax.random.key(1), x)["params"]
    out = module.apply({"params": params}, x)
    assert out.shape == (3, 2, 4, 4, 5) and float(jnp.abs(params["kernel"]).max()) <= 1 / 3
    np.testing.assert_allclose(
        out[1, 1], convolution_reference(x[1, 1:2], params["kernel"])[0] + params["bias"], atol=1e-5
    )


def test_it_reads_the_parameters_of_flaxs_layer():
    """Networks that were trained with flax's convolutions give the same numbers."""
    x = jax.random.normal(jax.random.key(0), (2, 5, 4, 3))
    theirs = nn.Conv(6, (3, 3), bias_init=nn.initializers.normal())
    variables = theirs.init(jax.random.key(1), x)
    np.testing.assert_allclose(Conv(6, 3).apply(variables, x), theirs.apply(variables, x), atol=1e-5)
