"""Parameters are those of `init`, and equal modules need one program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from llmrl_jax.core.draw import draw


class Scaled(nn.Module):
    """A dense layer, and a table of another collection. Every trace is noted in `TRACES`."""

    width: int

    @nn.compact
    def __call__(self, x):
        TRACES.append(self.width)
        table = self.variable("lora", "table", lambda: jax.random.normal(self.make_rng("params"), (self.width,)))
        return nn.Dense(self.width)(x) * table.value


TRACES: list[int] = []


def test_equal_modules_draw_what_init_draws_by_one_program():
    key, x = jax.random.key(3), jnp.zeros((2, 5))
    want = Scaled(7).init(key, x)
    TRACES.clear()
    for _ in range(2):
        found = draw(Scaled(7), key, x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, want["params"])
    assert TRACES == [7], "the second is another module with the same fields"
    np.testing.assert_allclose(draw(Scaled(7), key, x, collection="lora")["table"], want["lora"]["table"], rtol=1e-6)
    assert draw(Scaled(4), key, x)["Dense_0"]["kernel"].shape == (5, 4)


class Field(nn.Module):
    """A module with a field that may have no hash."""

    sizes: Any

    @nn.compact
    def __call__(self, x):
        return nn.Dense(len(self.sizes))(x)


def test_shardings_and_fields_without_a_hash_are_accepted():
    key, x = jax.random.key(3), jnp.zeros((2, 8))
    want = draw(Field((1,) * 8), key, x)["Dense_0"]["kernel"]
    split = jax.NamedSharding(jax.make_mesh((8,), ("rows",)), jax.P("rows"))
    for sizes in ((1,) * 8, [1] * 8):
        for out_shardings in (None, split):
            found = draw(Field(sizes), key, x, out_shardings=out_shardings)["Dense_0"]["kernel"]
            np.testing.assert_array_equal(found, want)
            assert out_shardings is None or found.sharding == split
