"""Starting several processes, each with its own devices, as one jax program."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: Sequence[int] | None = None,
    timeout: int = 300,
) -> str:
    """Join this process to the others; call it before anything else touches a device.

    With all of `coordinator`, `num_processes` and `process_id`, those are used. With none, a SLURM job with several
    tasks (or another launcher that jax knows) is detected; outside of one, nothing is done. On CPUs the processes
    speak through gloo.

    **Arguments:** `coordinator`, `host:port` of process 0; `num_processes`; `process_id`, from 0; `local_device_ids`,
    which of the node's devices this process owns: give them where there is one process per node, since jax then takes
    SLURM to mean one process per GPU (jax_llm reference, section 5); `timeout`, seconds to wait for the others.
    **Returns:** a line per process and device, to print.
    **Raises:** `ValueError` where only some of the three are given.
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise ValueError(f"{', '.join(missing)} missing: give all of {', '.join(given)}, or none")
    several = int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ
    if not missing or several:
        if "cpu" in (getattr(jax.config, "jax_platforms", None) or ""):
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator, num_processes, process_id, local_device_ids=local_device_ids, initialization_timeout=timeout
        )
    return "\n".join(
        f"process {d.process_index} of {jax.process_count()}: {d.platform} {d.id} ({d.device_kind})"
        for d in jax.devices()
    )
