"""A compilation cache for tests that start the same run again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@contextmanager
def cached_in(folder: Path) -> Iterator[None]:
    """Use `folder` as the persistent compilation cache, unless the environment names one."""
    assert folder.is_dir(), f"{folder} is no folder: does a test's fixture hide the one that makes it?"
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        yield
        return
    new = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.3,
    }
    before = {name: getattr(jax.config, name) for name in new}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))  # so that no command changes these settings
        for settings in (new, before):
            compilation_cache.reset_cache()
            for name, value in settings.items():
                jax.config.update(name, value)
            if settings is new:
                yield
    compilation_cache.reset_cache()
