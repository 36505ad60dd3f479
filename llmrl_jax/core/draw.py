"""Random parameters of Flax modules, compiled once for modules that are equal."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from flax import linen as nn


def draw(module: nn.Module, key: jax.Array, *args: Any, collection: str = "params", out_shardings: Any = None) -> Any:
    """A collection of the variables that `module.init(key, *args)` draws; what draws others is not compiled.

    One program serves all seeds, and all modules with the same fields. Shardings, and fields without a hash, need a
    program for each call.
    """
    try:
        hash(module)
    except TypeError:
        shared = False
    else:
        shared = out_shardings is None
    if shared:
        return _drawn(module, collection, key, *args)
    program = jax.jit(lambda key, *args: module.init(key, *args)[collection], out_shardings=out_shardings)
    return program(key, *args)


@partial(jax.jit, static_argnums=(0, 1))
def _drawn(module: nn.Module, collection: str, key: jax.Array, *args: Any) -> Any:
    return module.init(key, *args)[collection]
