"""Compilation in the tests: eight simulated devices, and programs that compile quickly, and once."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib import metadata
from typing import Any


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


def reused(create: Callable[[], Any], times: int) -> Callable[[], Any]:
    """A function in place of `create`, which returns one result `times` times before it creates the next. Each thread
    has its own. What a result collects is released with it: constants of programs, in a context of MLIR."""
    local = threading.local()

    def result() -> Any:
        if getattr(local, "left", 0) == 0:
            local.result, local.left = create(), times
        local.left -= 1
        return local.result

    return result


def remembered(compile_and_load: Callable[..., Any], size: int) -> Callable[..., Any]:
    """jax's `compile_and_load` with the last `size` programs in memory: many tests make the same learner, each with
    programs of its own. A program is its module, options and devices; one that calls the host is compiled each time.

    It is `compile_and_load` itself where another version of jax gives it other arguments."""
    arguments = ["backend", "module", "executable_devices", "options", "host_callbacks"]
    if list(inspect.signature(compile_and_load).parameters) != arguments:
        return compile_and_load
    programs: OrderedDict[Any, Any] = OrderedDict()
    lock = threading.Lock()

    def backend_compile_and_load(
        backend: Any, module: Any, executable_devices: Any, options: Any, host_callbacks: Any
    ) -> Any:
        if host_callbacks:
            return compile_and_load(backend, module, executable_devices, options, host_callbacks)
        text = io.BytesIO()
        module.operation.write_bytecode(file=text)
        key = backend, hashlib.sha256(text.getbuffer()).digest(), options.SerializeAsString(), executable_devices
        with lock:
            if key in programs:
                programs.move_to_end(key)
                return programs[key]
        program = compile_and_load(backend, module, executable_devices, options, host_callbacks)
        with lock:
            programs[key] = program
            if len(programs) > size:
                programs.popitem(last=False)
        return program

    return backend_compile_and_load


def compile_less() -> None:
    """Have this process compile a program once, and load MLIR's dialects for 32 programs at once: a quarter of the time
    of a small one."""
    compiler = importlib.import_module("jax._src.compiler")
    compiler.backend_compile_and_load = remembered(compiler.backend_compile_and_load, size=256)
    mlir = importlib.import_module("jax._src.interpreters.mlir")
    if hasattr(mlir, "make_ir_context"):
        mlir.make_ir_context = reused(mlir.make_ir_context, times=32)
