"""Two processes with two simulated devices each, as one program: by arguments, and as a launcher's environment says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path


PROGRAM = """
import sys
from llmrl_jax.parallel import batch_sharding, initialize, make_mesh
from llmrl_jax.parallel.hosts import gather, put
table = initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[1]))
import flax, jax, numpy as np
from llmrl_jax.core.learner import Exchange
from llmrl_jax.run.exchange import Exchanges, NoAnswer
mesh = make_mesh("data=2,fsdp=2")
rows = np.arange(8.0).reshape(4, 2)
x = jax.make_array_from_callback(rows.shape, batch_sharding(mesh, size=4), lambda index: rows[index])
total = jax.jit(lambda a: (a**2).sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))(x)
try:
    make_mesh("data=2")
except ValueError as error:
    print(error)
key = put(jax.random.key(3), jax.NamedSharding(mesh, jax.P()))
drawn = jax.jit(jax.random.normal, out_shardings=jax.NamedSharding(mesh, jax.P()))(key)
alike = float(drawn) == float(jax.random.normal(jax.random.key(3)))
print("gathered:", (gather({"x": x})["x"] == rows).all(), "key:", alike)
class State(flax.struct.PyTreeNode):
    rows: jax.Array
    frozen: tuple = ()
def sums(request):
    assert jax.process_index() == 0, "one process asks"
    return {"sum": request["rows"].sum(1)}
def refuses(request):
    raise RuntimeError("the server is down")
def exchanged(answer):
    add = lambda state, found: state.replace(rows=state.rows + found["sum"][:, None])
    state = State(rows=x + 0)
    exchanges = Exchanges(Exchange(2, lambda state: {"rows": state.rows}, answer, add), state, 9)
    return exchanges.make(state, 2, lambda: False).rows
print("exchanged:", (gather({"x": exchanged(sums)})["x"] == rows + rows.sum(1)[:, None]).all())
try:
    exchanged(refuses)
except NoAnswer as error:
    print("no answer:", error)
print(table)
print(len(x.addressable_shards), float(total))
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def both(commands, environments=({}, {})) -> list[str]:
    """Run a command in each of two processes; what each printed, without Gloo's lines, which come at any time."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**env, **own},
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for command, own in zip(commands, environments, strict=True)
    ]
    ended = [(process.communicate(timeout=120), process.returncode) for process in started]
    for (_, err), code in ended:
        assert code == 0, err
    return [re.sub(r"\[Gloo\][^\n]*\n", "", out) for (out, _), _ in ended]


TABLE = re.compile(r"process +host +devices +kind\n0 +(\S+) +0,1 +2 x cpu \(cpu\)\n1 +\1 +0,1 +2 x cpu \(cpu\)\n")


def test_two_processes_are_one_program():
    port = free_port()
    for said in both([[sys.executable, "-c", PROGRAM, str(i), port] for i in range(2)]):  # gloo prints there too
        assert "data=2 needs 2 devices" in said
        assert f"2 {float(sum(i * i for i in range(8)))}" in said
        assert TABLE.search(said) and "gathered: True key: True" in said
        assert "exchanged: True" in said and "no answer: RuntimeError: the server is down" in said


def test_a_command_joins_the_processes_of_its_launcher():
    command = [sys.executable, "-m", "llmrl_jax.cli.main", "envs", "show", "Debug-Catch-v0"]
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "JAX_COORDINATOR_PORT": free_port()}
    ranks = [{**mpi, **{f"OMPI_COMM_WORLD_{name}": str(i) for name in ("RANK", "LOCAL_RANK")}} for i in range(2)]
    first, second = both([command, command], ranks)
    assert TABLE.search(first) and "Debug-Catch-v0" in first
    assert not TABLE.search(second) and "Debug-Catch-v0" in second
