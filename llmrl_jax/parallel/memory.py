"""Size of the memory, for refusing what cannot fit before it is allocated."""

from __future__ import annotations

import os
from typing import Any

import jax

from envs_jax import tracing


def available(copies: int = 1) -> int | None:
    """Bytes for arrays of which `copies` devices hold equal parts, on this machine; None if that is unknown.

    A device that reports no limit, as a CPU, has the memory of the machine, which simulated devices share.
    """
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    finite = [limit for limit in limits if limit]
    if finite and len(finite) == len(limits):
        return min(finite) * min(copies, len(finite))
    if tracing.platform() != "cpu" or "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def nbytes(tree: Any) -> int:
    """Bytes of all leaves, arrays or `jax.ShapeDtypeStruct`s, without typed keys."""
    leaves = [x for x in jax.tree.leaves(tree) if not jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(x.size * x.dtype.itemsize for x in leaves)
