"""What jit needs for MJX on a CPU, by the version of jaxlib."""

import jax
import jax.numpy as jnp
import jaxlib
import pytest

from envs_jax.physics.mjx import compiler_options


@pytest.mark.parametrize(("version", "there"), [("0.10.2", True), ("0.11.0", False), ("0.12.0.1", False)])
def test_the_option_is_given_where_jaxlib_has_it(monkeypatch, version, there):
    monkeypatch.setattr(jaxlib, "__version__", version)
    assert compiler_options() == ({"xla_cpu_use_fusion_emitters": False} if there else {})
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler_options() == {}


def test_this_jaxlib_takes_what_is_given():
    f = jax.jit(lambda x: jnp.tanh(x) + 1, compiler_options=compiler_options())
    assert float(f(jnp.float32(0))) == 1
