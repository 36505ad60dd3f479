"""Size of the memory, for refusing what cannot fit before it is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from envs_jax import tracing


LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The files with a container's limit, in bytes, of versions 2 and 1 of Linux' control groups."""


def available(copies: int = 1, limits: Sequence[Path] = LIMITS) -> int | None:
    """Bytes for arrays of which `copies` devices hold equal parts, on this machine; None if that is unknown.

    A device that reports no limit, as a CPU, has the memory of the machine, which simulated devices share, or of the
    container, if one of the files `limits` sets a lower limit. What is in use is not subtracted: a container counts
    cached files too, which give way.
    """
    of_devices = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    finite = [limit for limit in of_devices if limit]
    if finite and len(finite) == len(of_devices):
        return min(finite) * min(copies, len(finite))
    if tracing.platform() != "cpu" or "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    texts = [file.read_text().strip() for file in limits if file.is_file()]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(text) for text in texts if text.isdecimal())])  # "max": no limit


def nbytes(tree: Any) -> int:
    """Bytes of all leaves, arrays or `jax.ShapeDtypeStruct`s, without typed keys."""
    leaves = [x for x in jax.tree.leaves(tree) if not jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(x.size * x.dtype.itemsize for x in leaves)
