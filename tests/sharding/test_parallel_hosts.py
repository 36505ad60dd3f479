"""Two processes with two simulated devices each, as one program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


PROGRAM = """
import sys
from llmrl_jax.parallel import batch_sharding, initialize, make_mesh
table = initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[1]))
import jax, numpy as np
mesh = make_mesh("data=2,fsdp=2")
rows = np.arange(8.0).reshape(4, 2)
x = jax.make_array_from_callback(rows.shape, batch_sharding(mesh, size=4), lambda index: rows[index])
total = jax.jit(lambda a: (a**2).sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))(x)
try:
    make_mesh("data=2")
except ValueError as error:
    print(error)
print(len(table.splitlines()), len(x.addressable_shards), float(total))
"""


def test_two_processes_are_one_program():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM]
    both = [
        subprocess.Popen(
            [*command, str(i), str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=root
        )
        for i in range(2)
    ]
    ended = [(process.communicate(timeout=120), process.returncode) for process in both]
    for (out, err), code in ended:
        assert code == 0, err.decode()
        said = out.decode()  # gloo prints there too
        assert "data=2 needs 2 devices; with several processes it must use all 4" in said
        assert f"4 2 {float(sum(i * i for i in range(8)))}" in said
