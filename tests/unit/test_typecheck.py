"""The tests check annotations at run time: of shapes, of plain types, and nothing that cannot be read."""

from __future__ import annotations

import jax.numpy as jnp
import jaxtyping
import pytest
import typecheck
from jaxtyping import Array, Float


def check(function):
    return jaxtyping.jaxtyped(function, typechecker=typecheck.check)


@check
def product(a: Float[Array, "n m"], b: Float[Array, "m k"]) -> Float[Array, "n k"]:
    return a @ b if a.shape[0] > 1 else b


@check
def plain(count: int, *names: str, scale: float = 1) -> list[int]:
    return [count] if count else names


@check
def unreadable(a: Nowhere, b: int) -> int:  # noqa: F821
    return b


def test_shapes_are_checked_together():
    assert product(jnp.ones((2, 3)), jnp.ones((3, 4))).shape == (2, 4)
    with pytest.raises(jaxtyping.TypeCheckError, match="Type-check.*parameters"):
        product(jnp.ones((2, 3)), jnp.ones((2, 4)))
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        product(jnp.ones((1, 3)), jnp.ones((3, 4)))


def test_plain_types_are_checked_without_the_bookkeeping_of_shapes():
    assert typecheck.has_shapes(product.__wrapped__) and not typecheck.has_shapes(plain.__wrapped__)
    assert plain(1, "a", scale=2) == [1] and plain.__annotations__["count"] == "int"
    for wrong in (lambda: plain("a"), lambda: plain(1, 2), lambda: plain(1, scale="a"), lambda: plain(0)):
        with pytest.raises(jaxtyping.TypeCheckError, match="plain"):
            wrong()


def test_a_hint_that_cannot_be_read_is_left_out_and_the_others_are_checked():
    assert unreadable("anything", 1) == 1
    with pytest.raises(jaxtyping.TypeCheckError, match="unreadable"):
        unreadable(1, "a")
