"""MJX: what jit needs on a CPU, by the version of jaxlib, and full precision on accelerators."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from envs_jax.physics.mjx import PhysicsMjx, compiler_options
from tests.rounding import BITS, is_exact, products, rounded


@pytest.mark.parametrize(("version", "there"), [("0.10.2", True), ("0.11.0", False), ("0.12.0.1", False)])
def test_the_option_is_given_where_jaxlib_has_it(monkeypatch, version, there):
    monkeypatch.setattr(jaxlib, "__version__", version)
    assert compiler_options() == ({"xla_cpu_use_fusion_emitters": False} if there else {})
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler_options() == {}


def test_this_jaxlib_takes_what_is_given():
    f = jax.jit(lambda x: jnp.tanh(x) + 1, compiler_options=compiler_options())
    assert float(f(jnp.float32(0))) == 1


PENDULUM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="1 1 .1"/>
    <body pos="0 0 .5">
      <joint name="one" type="hinge" axis="0 1 0"/>
      <geom type="sphere" size=".1" pos=".3 0 0"/>
      <body pos=".3 0 0">
        <joint type="hinge" axis="1 0 0"/>
        <geom type="sphere" size=".1" pos="0 .3 0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="one"/></actuator>
</mujoco>
"""
"""Two arms, which reach the ground."""


@pytest.fixture(scope="module")
def pendulum():
    """Functions that begin and advance it, and their arguments."""
    mujoco = pytest.importorskip("mujoco")
    pytest.importorskip("mujoco.mjx")
    physics = PhysicsMjx(mujoco.MjModel.from_xml_string(PENDULUM), 20, ("xpos",))
    places, speeds = jnp.array([0.9, 0.4]), jnp.array([3.0, -2.0])

    def look(xp, before, after):
        return after.read["xpos"]

    def begin(places, speeds):
        return physics.begin(places, speeds, look)

    def advance(state, ctrl):
        return physics.advance(state, ctrl, jnp.bool(True), look)

    state, _ = jax.jit(begin, compiler_options=compiler_options())(places, speeds)
    return begin, (places, speeds), advance, (state, jnp.ones(1))


def test_products_have_full_precision(pendulum):
    begin, first, advance, then = pendulum
    for function, args in ((begin, first), (advance, then)):
        found = list(products(jax.make_jaxpr(function)(*args).jaxpr))
        assert found and all(map(is_exact, found))


@pytest.mark.slow
@pytest.mark.parametrize("kind", BITS)
def test_rounded_factors_change_nothing(pendulum, kind):
    *_, advance, args = pendulum
    state, place = jax.jit(advance, compiler_options=compiler_options())(*args)
    other, there = jax.jit(rounded(advance, kind), compiler_options=compiler_options())(*args)
    np.testing.assert_allclose(other, state, atol=1e-5)
    np.testing.assert_allclose(there, place, atol=1e-5)
