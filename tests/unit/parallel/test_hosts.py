"""What launchers say of a process, which GPUs it owns, and what is told where it cannot join."""

from __future__ import annotations

import socket

import pytest

from llmrl_jax.cli import main as cli
from llmrl_jax.parallel import hosts


# two nodes of four tasks each, as srun sets them in the sixth
SLURM = {
    "SLURM_JOB_ID": "9000",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[007,012-015],other1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in (*SLURM, *MPI, "PMIX_NAMESPACE", "CUDA_VISIBLE_DEVICES", "JAX_COORDINATOR_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_slurm():
    place = hosts.launched(SLURM)
    assert place == hosts.Place("SLURM", 8, 5, 4, 1, f"gpu007:{61440 + 9002 % 4096}")
    assert hosts.launched({**SLURM, "JAX_COORDINATOR_PORT": "1234"}).coordinator == "gpu007:1234"
    # a batch script of a job with eight tasks, a shell in it, and a step of one: alone
    assert hosts.launched({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}) is None
    assert hosts.launched({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    assert hosts.launched({}) is None
    with pytest.raises(ValueError, match="SLURM_LOCALID.*None"):
        hosts.launched({name: value for name, value in SLURM.items() if name != "SLURM_LOCALID"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("n[001-015],m2", "n001"),
        ("n[3,7]", "n3"),
        ("rack1-n[04-05]-ib", "rack1-n04-ib"),
    ],
)
def test_first_host(nodes, first):
    assert hosts.launched({**SLURM, "SLURM_STEP_NODELIST": nodes}).coordinator.startswith(f"{first}:")


@pytest.mark.parametrize(("tasks", "node", "here"), [("4(x2)", 1, 4), ("4(x2),3", 2, 3), ("2,6", 1, 6), ("8", 0, 8)])
def test_tasks_of_this_node(tasks, node, here):
    environ = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)}
    assert hosts.launched(environ).local_processes == here


def test_open_mpi():
    place = hosts.launched(MPI)
    assert (place.num_processes, place.process_id, place.local_processes, place.local_id) == (4, 3, 2, 1)
    assert place.coordinator.startswith("10.96.0.1:")
    six = {**MPI, "OMPI_MCA_orte_hnp_uri": "1.0;tcp6://[fe80::b9b,2620::2]:43370"}
    assert hosts.launched(six).coordinator.startswith("fe80::b9b:")
    # version 5 names no address: enough on one node, where all derive one port from the job's name
    five = {name: value for name, value in MPI.items() if name != "OMPI_MCA_orte_hnp_uri"}
    assert hosts.launched(five).coordinator is None
    near = {**five, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-17@1"}
    assert hosts.launched(near).coordinator == hosts.launched({**near, "OMPI_COMM_WORLD_RANK": "0"}).coordinator
    assert hosts.launched(near).coordinator.startswith("127.0.0.1:6")


@pytest.mark.parametrize(
    ("local", "visible", "mode", "own"),
    [
        ((4, 1), None, "auto", [1]),
        ((4, 1), "0,1,2,3", "per-gpu", [1]),
        ((4, 1), "4,5,6,7", "auto", [1]),  # a partial node: places in the list, not the list's numbers
        ((4, 1), "5", "per-gpu", [0]),  # bound by --gpus-per-task
        ((2, 1), "0,1,2,3", "auto", [2, 3]),
        ((1, 0), "0,1,2,3", "auto", None),
        ((1, 0), "0,1,2,3", "per-node", None),
    ],
)
def test_own_devices(local, visible, mode, own, tmp_path):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    place = hosts.Place("SLURM", 8, 5, *local, "n:1")
    assert hosts.own_devices(place, mode, environ, tmp_path / "none") == own


@pytest.mark.parametrize(
    ("local", "visible", "mode", "message"),
    [
        ((4, 1), "0,1,2,3", "per-node", "started 4 on"),
        ((4, 1), "0,1", "auto", "4 processes.*2 GPUs"),
        ((2, 1), "0,1,2,3", "per-gpu", "start 4"),
        ((2, 1), "0,1,2", "auto", "start 3"),
    ],
)
def test_gpus_that_cannot_be_dealt_out(local, visible, mode, message):
    place = hosts.Place("SLURM", 8, 5, *local, "n:1")
    with pytest.raises(ValueError, match=message):
        hosts.own_devices(place, mode, {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("local", "mode", "own"),
    [((2, 1), "auto", [2, 3]), ((4, 1), "auto", [1]), ((1, 0), "auto", None), ((2, 1), "per-gpu", [1])],
)
def test_gpus_that_nothing_lists_are_counted(local, mode, own, tmp_path):
    for i in range(4):
        (tmp_path / f"0000:{i:02x}:00.0").mkdir()
    place = hosts.Place("SLURM", 8, 5, *local, "n:1")
    assert hosts.own_devices(place, mode, {}, tmp_path) == own
    with pytest.raises(ValueError, match="3 processes.*4 GPUs"):
        hosts.own_devices(hosts.Place("SLURM", 6, 5, 3, 1, "n:1"), "auto", {}, tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("h:1", None, 0), "--hosts.num-processes missing.*--hosts.coordinator"),
        (("h", 2, 0), r"^--hosts\.coordinator.*'h'.*HOST:PORT"),
        (("h:1", 2, 2), "^--hosts.process-id.*2.*2.*0.*1"),
        (("h:1", 2, 5), "^--hosts.process-id.*5.*2.*0.*1"),
        (("h:1", 0, 0), "^--hosts.num-processes.*0.*1"),
    ],
)
def test_what_cannot_be_joined(given, message):
    with pytest.raises(ValueError, match=message):
        hosts.initialize(*given)


def test_no_coordinator_in_time():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"  # bound, but nobody listens
        with pytest.raises(ConnectionError, match=f"1 of 2.*{address}"):
            hosts.initialize(address, 2, 1, timeout=0)


def test_flags(capsys, monkeypatch):
    monkeypatch.setenv("LLMRL_COMPILATION_CACHE", "off")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
    asked = []
    monkeypatch.setattr(hosts, "initialize", lambda **options: asked.append(options) or "the table")
    line = ["envs", "show", "Debug-Catch-v0"]
    assert cli.main(line) == 0 and not asked
    flags = ["--hosts.coordinator", "n:1", "--hosts.process-id=0", "--hosts.num-processes", "2"]
    assert cli.main([*flags, *line, "--hosts.mode", "per-gpu"]) == 0
    assert asked == [
        {
            "coordinator": "n:1",
            "num_processes": 2,
            "process_id": 0,
            "local_device_ids": None,
            "mode": "per-gpu",
            "timeout": 300,
        }
    ]
    first, _, second = capsys.readouterr().out.partition("the table\n")
    assert first == second and "Debug-Catch-v0" in first
    # under a launcher nothing needs to be given, and `off` leaves a process alone
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert cli.main([*line, "--hosts.mode", "off"]) == 0 and len(asked) == 1
    assert cli.main(line) == 0 and len(asked) == 2
    assert cli.main([*line, "--hosts.cordinator", "n:1"]) == 2
    assert "'--hosts.cordinator'" in capsys.readouterr().err
