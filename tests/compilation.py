"""XLA's flags in the tests: eight simulated devices, and programs that compile quickly."""

from __future__ import annotations

from importlib import metadata


DEVICES = "--xla_force_host_platform_device_count=8"
QUICK = ("--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1")
OLD_EMITTERS = "--xla_cpu_use_fusion_emitters=false"


def xla_flags(quick: bool, jaxlib: str | None = None) -> str:
    """The value of `XLA_FLAGS` for the tests.

    Most of the time of `make test` is compilation. It is shorter where LLVM optimises nothing and takes a program in
    one piece, and on a CPU by half without XLA's fusion emitters. jaxlib from 0.11 on has no other emitters: it aborts
    the process at that flag, as at any that it does not know.

    **Arguments:** `quick`: compile quickly, in place of what users run. `jaxlib`: its version, the installed one if
    None; read without importing jax, which reads the flags only once.
    """
    if not quick:
        return DEVICES
    major, minor = (int(part) for part in (jaxlib or metadata.version("jaxlib")).split(".")[:2])
    return " ".join([DEVICES, *QUICK] + ([OLD_EMITTERS] if (major, minor) < (0, 11) else []))
