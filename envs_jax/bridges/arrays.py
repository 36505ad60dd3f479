"""Array conversions shared by the bridges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def narrow(tree: Any) -> Any:
    """Arrays with dtypes of at most 32 bits, none weakly typed: environments do not depend on `jax_enable_x64`."""

    def convert(x):
        x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        small = {"float64": jnp.float32, "int64": jnp.int32, "uint64": jnp.uint32}.get(x.dtype.name, x.dtype)
        return jax.lax.convert_element_type(x, small)

    return jax.tree.map(convert, tree)
