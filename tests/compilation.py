"""XLA's flags in the tests: eight simulated devices, and programs that compile quickly."""

from __future__ import annotations

from importlib import metadata


DEVICES = "--xla_force_host_platform_device_count=8"
QUICK = "--xla_backend_optimization_level=0"
OLD_EMITTERS = "--xla_cpu_use_fusion_emitters=false"


def xla_flags(quick: bool, jaxlib: str | None = None) -> str:
    """The value of `XLA_FLAGS` for the tests.

    Most of the time of `make test` is compilation. With LLVM optimising nothing it takes a quarter less, and another
    tenth less without XLA's fusion emitters. jaxlib from 0.11 on has no others: it aborts the process at that flag.

    **Arguments:** `quick`: compile quickly, in place of what users run. `jaxlib`: its version, the installed one if
    None; read without importing jax, which reads the flags only once.
    """
    if not quick:
        return DEVICES
    major, minor = (int(part) for part in (jaxlib or metadata.version("jaxlib")).split(".")[:2])
    return " ".join([DEVICES, QUICK] + ([OLD_EMITTERS] if (major, minor) < (0, 11) else []))
