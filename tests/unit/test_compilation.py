"""The tests' flags of XLA fit the installed jaxlib."""

from __future__ import annotations

import os
import re
from importlib import metadata

import pytest

from tests.compilation import DEVICES, xla_flags
from tests.paths import ROOT


@pytest.mark.parametrize("jaxlib, old", [("0.10.2", True), ("0.11.0", False), ("0.12.0.1", False), ("1.0.0", False)])
def test_emitters_are_named_only_where_jaxlib_knows_them(jaxlib, old):
    """jaxlib from 0.11 on aborts the process at a flag that it does not know."""
    assert ("--xla_cpu_use_fusion_emitters=false" in xla_flags(True, jaxlib).split()) == old
    assert "--xla_backend_optimization_level=0" in xla_flags(True, jaxlib).split()
    assert xla_flags(False, jaxlib) == DEVICES


def test_this_process_has_them():
    """The version is the installed one's, and jax read the flags: there are eight devices."""
    import jax

    version = metadata.version("jaxlib")
    assert re.match(r"\d+\.\d+\.", version)
    flags = os.environ["XLA_FLAGS"].split()
    quick = os.environ.get("LLMRL_QUICK_COMPILE") == "1"
    assert xla_flags(quick) == xla_flags(quick, version) and set(xla_flags(quick).split()) <= set(flags)
    assert jax.device_count() == 8


def test_what_make_check_leaves_out_is_there(request):
    """A name that leads nowhere would let a moved file into `make check`."""
    heavy = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).HEAVY
    assert [name for name in heavy if not (ROOT / "tests" / "unit" / name).exists()] == []
    assert not request.node.get_closest_marker("heavy")
