"""Start of several processes, each with its own devices, as one jax program."""

from __future__ import annotations

import os
import re
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from llmrl_jax.core.activity import say
from llmrl_jax.core.checks import at_least, option


Mode = Literal["auto", "per-gpu", "per-node"]
"""The GPUs of a process: `per-gpu`, one each; `per-node`, all of its node; `auto`, an equal share of its node's."""

GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU of the node, where NVIDIA's driver is loaded."""

_LABEL_BYTES = 256


@dataclass(frozen=True)
class HostsConfig:
    """The processes of one program. Under SLURM's srun and Open MPI's mpirun no option is needed."""

    coordinator: str | None = None
    """HOST:PORT of process 0, which every process must be able to reach."""
    num_processes: int | None = None
    """Number of processes."""
    process_id: int | None = None
    """Index of this process, from 0."""
    local_device_ids: tuple[int, ...] | None = None
    """Indices, from 0, of the visible GPUs that this process uses; by default as in `mode`."""
    mode: Literal["auto", "per-gpu", "per-node", "off"] = "auto"
    """One process per GPU, or one per node with all its GPUs; `auto`: an equal share of the node's GPUs per
    process. `off`: do not join, also if a launcher started several processes."""
    timeout: int = 300
    """Seconds to wait for the others."""


@dataclass(frozen=True)
class Place:
    """The position of a process among those that a launcher started."""

    launcher: str
    num_processes: int
    process_id: int
    local_processes: int
    """Processes on this node."""
    local_id: int
    """Index of this process on its node, from 0."""
    coordinator: str | None
    """None if the launcher does not give the first process' host."""


def launched(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place of this process according to SLURM (srun) or Open MPI (mpirun); None outside of them, or for a single
    process.

    Under SLURM the *step* counts: a script of sbatch, or a shell of salloc, is one process for any number of tasks of
    the job.

    **Raises:** `ValueError` if a variable of the launcher is missing or not a number.
    """
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        process = _slurm(environ)
    elif "OMPI_COMM_WORLD_SIZE" in environ:
        process = _open_mpi(environ)
    else:
        return None
    return process if process.num_processes > 1 else None


def expected() -> bool:
    """Return whether a launcher or the environment names other processes to join."""
    return launched() is not None or "JAX_COORDINATOR_ADDRESS" in os.environ


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise ValueError(f"the environment's {name} is {text!r}; the launcher should have set it to a number")
    return int(text)


def _port(environ: Mapping[str, str], seed: int) -> int:
    """The same port for all processes of a job, from the upper end of the ephemeral range, chosen as jax does."""
    return _number(environ, "JAX_COORDINATOR_PORT", 61440 + seed % 4096)


def _first_host(nodes: str) -> str:
    """The first of SLURM's list of nodes: `n1`, `n1,m2`, `n[001-015],m2`, `n[3,7]-ib`."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes)
    if not match:
        raise ValueError(f"SLURM's list of nodes is {nodes!r}, which is not understood; give --hosts.coordinator")
    return f"{match[1]}{match[2] or ''}{match[3]}"


def _tasks_here(text: str, node: int) -> int:
    """The tasks of a node in SLURM's list: `4(x2),3` is 4, 4, 3."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not match:
            raise ValueError(f"SLURM's tasks per node are {text!r}, which is not understood")
        counts += [int(match[1])] * int(match[2] or 1)
    if node >= len(counts):
        raise ValueError(f"SLURM's tasks per node are {text!r}, but this is node {node}")
    return counts[node]


def _slurm(environ: Mapping[str, str]) -> Place:
    size = _number(environ, "SLURM_STEP_NUM_TASKS")
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    seed = _number(environ, "SLURM_JOB_ID", 0) + _number(environ, "SLURM_STEP_ID", 0)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or str(size)
    return Place(
        launcher="SLURM",
        num_processes=size,
        process_id=_number(environ, "SLURM_PROCID"),
        local_processes=_tasks_here(tasks, _number(environ, "SLURM_NODEID", 0)),
        local_id=_number(environ, "SLURM_LOCALID"),
        coordinator=f"{_first_host(nodes)}:{_port(environ, seed)}" if nodes else None,
    )


def _open_mpi(environ: Mapping[str, str]) -> Place:
    size, local_size = (_number(environ, f"OMPI_COMM_WORLD_{name}") for name in ("SIZE", "LOCAL_SIZE"))
    # Open MPI 4 gives the launcher's address; 5 does not, but a single node does not need it
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    match = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", uri)
    host = "127.0.0.1" if size == local_size else next(filter(None, match.groups()), None) if match else None
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or uri
    return Place(
        launcher="Open MPI",
        num_processes=size,
        process_id=_number(environ, "OMPI_COMM_WORLD_RANK"),
        local_processes=local_size,
        local_id=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        coordinator=f"{host}:{_port(environ, zlib.crc32(job.encode()))}" if host else None,
    )


def own_devices(
    place: Place, mode: Mode = "auto", environ: Mapping[str, str] = os.environ, gpus: Path = GPUS
) -> list[int] | None:
    """Indices of the visible GPUs that a process uses; None: all.

    `CUDA_VISIBLE_DEVICES` (or ROCm's), which launchers set, gives the visible GPUs. A process with a single visible GPU
    and others on its node is bound to it already (`--gpus-per-task`). Without a list all GPUs of the node are visible,
    and counted in the folder `gpus`; where there is none, or with `per-gpu`, a process takes one.

    **Raises:** `ValueError` if the GPUs cannot be divided as in `mode`.
    """
    count, rank = place.local_processes, place.local_id
    if mode == "per-node" and count > 1:
        raise ValueError(
            f"--hosts.mode per-node is one process per node, but {place.launcher} started {count} on this one: start "
            "one (--ntasks-per-node=1), or choose --hosts.mode per-gpu"
        )
    if mode == "per-node" or mode == "auto" and count == 1:
        return None
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    listed = next((environ[name] for name in names if environ.get(name)), None)
    if listed is None:
        number = len(list(gpus.iterdir())) if mode == "auto" and gpus.is_dir() else 0
        if not number:
            return [rank]
        listed = ",".join(map(str, range(number)))
    elif "," not in listed:
        return [0]
    visible = len(listed.split(","))
    share = visible // count
    if visible % count or mode == "per-gpu" and share > 1:
        requirement = "one each (--hosts.mode per-gpu)" if mode == "per-gpu" else "equal shares"
        raise ValueError(
            f"{place.launcher} started {count} processes on this node, which sees {visible} GPUs ({listed}); for "
            f"{requirement} start {visible} (--ntasks-per-node={visible}), or ask for {count} GPUs"
        )
    return list(range(rank * share, (rank + 1) * share))


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: Sequence[int] | None = None,
    mode: Mode = "auto",
    timeout: int = 300,
) -> str:
    """Join this process to the others; call it before jax initializes its devices.

    Missing arguments are taken from the launcher, SLURM's srun or Open MPI's mpirun, else from the environment
    (`JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`). Without arguments and launcher it does nothing.
    On CPUs the processes communicate through gloo.

    **Arguments:** `coordinator`, `host:port` of process 0; `num_processes`; `process_id`, from 0; `local_device_ids`,
    indices of the visible GPUs that this process uses (None: as in `mode`); `mode`, see `Mode`; `timeout`, seconds to
    wait for the others.
    **Returns:** a table to print: each process, its host, its devices.
    **Raises:** `ValueError` if only some of the first three are known, or one is out of range; `ConnectionError` if
    the processes cannot connect.
    """
    process = launched()
    coordinator, num_processes, process_id = _process_arguments(process, coordinator, num_processes, process_id)
    if coordinator is not None:
        assert num_processes is not None and process_id is not None
        platforms = getattr(jax.config, "jax_platforms", None) or ""
        if local_device_ids is None and process is not None and platforms != "cpu":
            local_device_ids = own_devices(process, mode)
        _reach(coordinator, process_id, num_processes, timeout)
        if "cpu" in platforms:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            local_device_ids=local_device_ids,
            cluster_detection_method="deactivate",
            initialization_timeout=timeout,
        )
    return device_table()


def _process_arguments(
    process: Place | None, coordinator: str | None, num_processes: int | None, process_id: int | None
) -> tuple[str | None, int | None, int | None]:
    """The three values, from the arguments, the launcher and the environment; all None if there are none."""
    environ = os.environ
    if coordinator is None:
        coordinator = environ.get("JAX_COORDINATOR_ADDRESS") or (process.coordinator if process else None)
    if num_processes is None:
        number = process.num_processes if process else _number(environ, "JAX_NUM_PROCESSES", -1)
        num_processes = None if number < 0 else number
    if process_id is None:
        number = process.process_id if process else _number(environ, "JAX_PROCESS_ID", -1)
        process_id = None if number < 0 else number
    arguments = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [option(f"hosts.{name}") for name, value in arguments.items() if value is None]
    if len(missing) == len(arguments):
        return None, None, None
    if missing:
        source = f" ({process.launcher} does not tell)" if process else ""
        flags = ", ".join(option(f"hosts.{name}") for name in arguments)
        raise ValueError(f"{', '.join(missing)} missing{source}: give all of {flags}, or none")
    assert coordinator is not None and num_processes is not None and process_id is not None
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"--hosts.coordinator is {coordinator!r}; HOST:PORT is needed, as in 10.0.0.1:1234")
    at_least("--hosts.num-processes", num_processes, 1)
    if not 0 <= process_id < num_processes:
        last = num_processes - 1
        raise ValueError(f"--hosts.process-id is {process_id}; of {num_processes} processes it is from 0 to {last}")
    return coordinator, num_processes, process_id


def put(x: Any, sharding: Sharding) -> jax.Array:
    """`jax.device_put` of a value that all processes have; also of typed keys, which `jax.device_put` refuses."""
    if not isinstance(x, jax.Array) or not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.device_put(x, sharding)
    return jax.random.wrap_key_data(jax.device_put(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))


def gather(tree: Any) -> Any:
    """A tree whose arrays every process can read in full: those sharded over several processes are gathered to the
    host. A collective operation of all processes."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    def full(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(full, tree)


def _reach(coordinator: str, process_id: int, num_processes: int, timeout: int) -> None:
    """Wait until the coordinator accepts connections: otherwise jax would abort the process without an exception."""
    if process_id == 0:
        count = num_processes - 1
        say(f"process 0 of {num_processes} waits at {coordinator} for {count} more")
        return
    host, _, port = coordinator.rpartition(":")
    limit = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > limit:
                raise ConnectionError(
                    f"process {process_id} of {num_processes} found no coordinator at {coordinator} in {timeout} s "
                    f"({error}); is process 0 running, and can this host reach it?"
                ) from error
        time.sleep(0.2)


def device_table() -> str:
    """A table of each process, its host, and its devices as the host numbers them. A collective operation of all
    processes."""
    ids = ",".join(str(i if d.local_hardware_id is None else d.local_hardware_id) for i, d in enumerate(_local()))
    label = f"{socket.gethostname()[:64]}\t{ids}".encode()[:_LABEL_BYTES]
    labels = np.frombuffer(label.ljust(_LABEL_BYTES, b"\0"), np.uint8)[None]
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        labels = np.asarray(multihost_utils.process_allgather(labels[0]))
    rows = [("process", "host", "devices", "kind")]
    for process, raw in enumerate(labels):
        host, _, ids = raw.tobytes().rstrip(b"\0").decode(errors="replace").partition("\t")
        of_process = [d for d in jax.devices() if d.process_index == process]
        kind = f"{len(of_process)} x {of_process[0].device_kind} ({of_process[0].platform})" if of_process else "none"
        rows.append((str(process), host, ids, kind))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[-1]]) for row in rows)


def _local() -> list[jax.Device]:
    return [d for d in jax.devices() if d.process_index == jax.process_index()]
