"""Arrays of the frozen part come back to their own fields, whatever the order in which a dataclass names them."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from llmrl_jax.run.checkpoint import Checkpoints, restore_state


@struct.dataclass
class Rows:
    tokens: jnp.ndarray
    learn: jnp.ndarray


@struct.dataclass
class State:
    weights: jnp.ndarray
    bias: jnp.ndarray
    frozen: Rows


def test_frozen_arrays_come_back_to_their_own_fields(tmp_path):
    state = State(jnp.zeros(2), jnp.ones(2), Rows(jnp.full(3, 7), jnp.full(3, 5)))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
    found, _ = restore_state(tmp_path, state)
    assert found.frozen.tokens.tolist() == [7, 7, 7] and found.frozen.learn.tolist() == [5, 5, 5]
    assert found.weights.tolist() == [0, 0] and found.bias.tolist() == [1, 1]
