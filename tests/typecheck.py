"""How the tests check annotations at run time: beartype, with the leeway that numeric code takes."""

from __future__ import annotations

import jax
import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from beartype.roar import BeartypeDecorHintException


_CHECK = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,  # an int is a float
        hint_overrides=FrozenDict({jax.Array: jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct}),
    )
)


def check(function):
    """The function with its annotations checked; itself, where they cannot be (a protocol that is static only).

    Nor are a dataclass's own fields: a pytree is rebuilt with whatever a `jax.tree.map` makes of its leaves (shapes,
    shardings, names)."""
    if getattr(function, "__qualname__", "").endswith(".__init__"):
        return function
    try:
        return _CHECK(function)
    except BeartypeDecorHintException:
        return function
