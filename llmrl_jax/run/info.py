"""The conditions of a measurement: versions, machine, load, memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
from typing import Any


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that affect numerical results."""
    result = {"python": platform.python_version()}
    for name in ("llmrl-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def device() -> str:
    """The kind of the accelerator, or of the processor if there is none: what programs are compiled for. Starts the JAX
    backend."""
    import jax

    first = jax.devices()[0]
    return f"cpu ({_cpu()})" if first.platform == "cpu" else first.device_kind


def machine() -> dict[str, Any]:
    """Processor, usable cores, accelerators, and the load average of the last minute. Starts the JAX backend."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = jax.devices()
    return {
        "cpu": _cpu(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
        "load_average": round(os.getloadavg()[0], 2),
    }


def peak_memory_bytes() -> int:
    """The peak resident set size of this process."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
