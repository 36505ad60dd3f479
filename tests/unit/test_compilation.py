"""The tests' flags of XLA fit the installed jaxlib."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compilation import DEVICES, remembered, reused, xla_flags
from tests.paths import ROOT


@pytest.mark.parametrize("jaxlib, old", [("0.10.2", True), ("0.11.0", False), ("0.12.0.1", False), ("1.0.0", False)])
def test_emitters_are_named_only_where_jaxlib_knows_them(jaxlib, old):
    """jaxlib from 0.11 on aborts the process at a flag that it does not know."""
    assert ("--xla_cpu_use_fusion_emitters=false" in xla_flags(True, jaxlib).split()) == old
    assert "--xla_backend_optimization_level=0" in xla_flags(True, jaxlib).split()
    assert xla_flags(False, jaxlib) == DEVICES


def test_this_process_has_them():
    """The version is the installed one's, and jax read the flags: there are eight devices."""
    version = metadata.version("jaxlib")
    assert re.match(r"\d+\.\d+\.", version)
    flags = os.environ["XLA_FLAGS"].split()
    quick = os.environ.get("LLMRL_QUICK_COMPILE") == "1"
    assert xla_flags(quick) == xla_flags(quick, version) and set(xla_flags(quick).split()) <= set(flags)
    assert jax.device_count() == 8


def test_results_are_reused_by_their_thread_alone():
    results = iter(range(9))
    create = reused(lambda: next(results), times=3)
    assert [create() for _ in range(4)] == [0, 0, 0, 1]
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(create).result() == 2
    assert [create() for _ in range(3)] == [1, 1, 3]


def test_a_program_does_not_depend_on_what_its_context_was_used_for():
    """In `make test` a context of MLIR serves several programs."""

    def program(scale):
        return jax.jit(lambda x: jnp.sort(x) * scale).lower(jnp.ones(3)).as_text()

    first = program(2.0)
    assert program(3.0) != first and program(2.0) == first


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled from now on, of programs that are remembered."""
    compiler = pytest.importorskip("jax._src.compiler")
    if remembered(compiler.backend_compile_and_load, size=1) is compiler.backend_compile_and_load:
        pytest.skip("this version of jax compiles in another way")
    names: list[str] = []

    def counted(backend, module, executable_devices, options, host_callbacks):
        names.append(str(module.operation.attributes["sym_name"]))
        return compile_and_load(backend, module, executable_devices, options, host_callbacks)

    compile_and_load = compiler.backend_compile_and_load
    monkeypatch.setattr(compiler, "backend_compile_and_load", remembered(counted, size=2))
    return names


def scaled(scale):
    def scaled_sum(x):
        return (x * scale).sum()

    return jax.jit(scaled_sum)


def test_a_program_is_remembered_by_what_it_computes(compiled):
    x = jnp.arange(4.0)
    compiled.clear()
    assert [float(scaled(s)(x)) for s in (2, 2, 3, 2)] == [12, 12, 18, 12]
    assert compiled == 2 * ['"jit_scaled_sum"']
    assert float(scaled(4)(x)) == 24 and float(scaled(3)(x)) == 18, "the oldest is forgotten"
    assert len(compiled) == 4


def test_a_program_is_remembered_by_its_devices_and_donated_buffers(compiled):
    x = jax.device_put(jnp.arange(8.0), jax.devices()[0])
    y = jax.device_put(x, jax.devices()[3])
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    compiled.clear()
    results = [scaled(2)(value) for value in (x, y, spread)]
    assert [float(value) for value in results] == [56] * 3 and len(compiled) == 3
    assert results[1].devices() == y.devices() and len(results[2].devices()) == 8

    def doubled(value, **options):
        return jax.jit(lambda v: v * 2, **options)(value)

    assert float(doubled(x)[1]) == float(doubled(x, donate_argnums=0)[1]) == 2 and x.is_deleted()
    assert float(doubled(y)[1]) == 2 and not y.is_deleted()


def test_programs_that_call_the_host_are_compiled_each_time(compiled):
    calls: list[str] = []

    def calling(name):
        def call(x):
            calls.append(name)
            return np.asarray(x)

        return jax.jit(lambda x: jax.pure_callback(call, jax.ShapeDtypeStruct((3,), jnp.float32), x))

    for name in "ab":
        np.testing.assert_array_equal(calling(name)(jnp.ones(3)), np.ones(3))
    assert calls == ["a", "b"]


def test_what_make_check_leaves_out_is_there(request):
    """A name that leads nowhere would let a moved file into `make check`."""
    heavy = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).HEAVY
    assert [name for name in heavy if not (ROOT / "tests" / "unit" / name).exists()] == []
    assert not request.node.get_closest_marker("heavy")
