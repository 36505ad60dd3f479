"""First contact in a child process: what it admits, what it cannot do, and replies that are not trusted."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from llmrl_jax.advice.sandbox import Limits, Program, SandboxError, admit, admit_many, process, trace
from llmrl_jax.advice.sandbox.jail import MACHINES, NUMBERS
from llmrl_jax.advice.sandbox.stablehlo import lower
from tests.unit.advice.sandbox_programs import body, value
from tests.unit.advice.sandbox_valid import VALID
from tests.unit.advice.test_sandbox import OBSERVATION, SPEC, VERSION


JAIL = Path(process.__file__).with_name("jail.py")
SOURCE = VALID["constants and a helper"]
NAN = body("far = obs['image'][0, 0, 0] - 5\nreturn jnp.log(far), {'far': far}")


@pytest.fixture(scope="module")
def admitted():
    """Three texts, of which two reach a child; no text is compiled in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "compiled", lambda tree: pytest.fail("the trusted side compiled a text"))
        return admit_many([SOURCE, value("obs.__class__"), NAN], OBSERVATION)


def test_a_program_is_admitted(admitted):
    program = admitted[0]
    assert isinstance(program, Program)
    assert program.components == ("near", "turns") and program.window == 5
    assert program.source == SOURCE
    assert {p.name for p in program.spec.parts} == {"direction", "image"}  # no mission
    assert program.report["windows"] == 128 and program.report["highest"] > program.report["lowest"]
    assert {"RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE"} <= set(program.report["protections"])


def test_the_childs_module_is_that_of_its_text(admitted):
    """The same program computed without the sandbox."""
    rng = np.random.default_rng(1)
    image, past = rng.integers(0, 9, (6, 7, 7, 3), np.uint8), rng.integers(0, 9, (6, 5, 7, 7, 3), np.uint8)
    actions = rng.integers(0, 7, (6, 5), np.int32)
    zero = np.zeros(6, np.int32)
    got, parts = jax.jit(jax.vmap(admitted[0]))(
        {"image": image, "direction": zero}, {"image": past, "direction": np.zeros((6, 5), np.int32)}, actions
    )
    rows, columns = np.mgrid[:7, :7]
    steps = np.abs(rows - 3) + np.abs(columns - 6)
    balls = (image[..., 0] == 6) & (image[..., 1] == 0)
    near = 1 - np.where(balls, steps, 14).min((1, 2)) / 14
    turns = (actions <= 1).mean(1)
    np.testing.assert_allclose(got, near - 0.5 * turns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts["near"], near, rtol=1e-5, atol=1e-6)


def test_refusals_come_back(admitted):
    assert isinstance(admitted[1], SandboxError) and "__class__" in str(admitted[1]) and admitted[1].line == 2
    assert isinstance(admitted[2], SandboxError)
    assert str(admitted[2]).startswith("the potential is NaN on ") and "guard divisions" in str(admitted[2])


def test_memory_is_limited():
    """One megabyte is too little for any program."""
    with pytest.raises(SandboxError, match="memory|ended.*process"):
        admit(SOURCE, OBSERVATION, limits=Limits(memory=1 << 20))


def test_time_is_limited():
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="within 0.4"):
        admit(SOURCE, OBSERVATION, limits=Limits(seconds=0.4))
    assert time.monotonic() - started < 5


@pytest.mark.slow
@pytest.mark.parametrize("name", VALID)
def test_valid_programs_in_children(name):
    assert isinstance(admit(VALID[name], OBSERVATION), Program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("return past_actions[0] * 1e4, {}", "potential.*[0-9.e+]+.*1000"),
        ("return 1.0, {'a': past_actions[0]}", "potential.*1.*128"),
        ("return past_actions[0] / past_actions[1], {}", "potential.*(NaN|infinite)"),
        ("return past_actions[0], {'a': jnp.sqrt(past_actions[1] - 3)}", "component 'a'.*NaN"),
    ],
)
def test_what_children_refuse(text, why):
    with pytest.raises(SandboxError, match=why):
        admit(body(text), OBSERVATION)


# --- the options of admit ---------------------------------------------------------------------------------------------


def test_wrong_options_are_named():
    windows = ({"image": np.zeros((3, 7, 7, 3), np.uint8)}, {}, np.zeros((3, 5), np.int32))
    for options, why in (
        ({"actions": 0}, "actions.*0"),
        ({"window": 0}, "window.*0.*1.*64"),
        ({"parts": ["color"]}, "'color'"),
        ({"windows": windows}, "'direction'"),
    ):
        with pytest.raises(ValueError, match=why):
            admit(SOURCE, OBSERVATION, **options)


# --- children that lie ------------------------------------------------------------------------------------------------


def scripted(monkeypatch, tmp_path, code: str) -> None:
    """Put another script in the place of the child's."""
    script = tmp_path / "child.py"
    script.write_text("import json, os, sys, time, signal\nsay = lambda **w: print(json.dumps(w), flush=True)\n" + code)
    monkeypatch.setattr(process, "_SCRIPT", script)


STAGE = "say(stage='being traced', protections=['all'])\n"
TEXT = "\nprint('text', end='')"


@pytest.mark.parametrize(
    ("code", "error", "why"),
    [
        ("sys.exit(3)", RuntimeError, r"start \(code 3\)"),
        ("raise ImportError('no jax')", RuntimeError, "no jax"),
        (STAGE + "sys.exit(3)", SandboxError, "code 3.*traced"),
        (STAGE + "os.kill(os.getpid(), signal.SIGSEGV)", SandboxError, "SIGSEGV"),
        (STAGE + "sys.exit('std::bad_alloc')", SandboxError, "1,024 MB"),
        (STAGE + "os.kill(os.getpid(), signal.SIGXCPU)", SandboxError, r"\b30 s\b"),
        (STAGE + "say(error='x' * 10**5, line='7')", SandboxError, "^x{600}$"),
        (STAGE + "say(error='a\\x1b[2Jb', line=2)", SandboxError, r"^line 2 .*\[2Jb$"),
        (STAGE + "say(error=['x'])", SandboxError, "ended.*process"),
        (STAGE + "print('[' * 10**5)", SandboxError, "ended.*process"),
        (STAGE + "print('null')", SandboxError, "ended.*process"),
        (STAGE + "say(components=[], report={}, version='x', bytes=0)", SandboxError, "ended.*process"),
        (STAGE + "say(components=['a', 'a'], report={}, version=9, bytes=0)", SandboxError, "ended.*process"),
        (STAGE + "say(components=[], report={}, version=9, bytes=10)", SandboxError, "ended.*process"),
        (STAGE + "say(components=[], report={}, version=9, bytes=1e999)", SandboxError, "ended.*process"),
        (STAGE + "say(components=[], report={'a': 10**400}, version=9, bytes=0)", SandboxError, "ended.*process"),
        (STAGE + "say(error='x', line=-1000)", SandboxError, "^x$"),
        (STAGE + f"say(components=[], report={{}}, version={VERSION}, bytes=4){TEXT}", SandboxError, "version"),
        (STAGE + f"say(components=[], report={{}}, version=99, bytes=4){TEXT}", SandboxError, "convention.*99"),
        (STAGE + "while True: sys.stdout.write('x' * 65536)", SandboxError, "ended.*process"),
    ],
)  # fmt: skip
def test_replies_are_not_believed(code, error, why, monkeypatch, tmp_path):
    scripted(monkeypatch, tmp_path, code)
    started = time.monotonic()
    with pytest.raises(error, match=why):
        admit(SOURCE, OBSERVATION)
    assert time.monotonic() - started < 20


def test_no_child_is_no_refusal(monkeypatch):
    """A machine's fault must not be sent to a model as the program's."""
    monkeypatch.setattr(sys, "executable", "/nothing/python")
    with pytest.raises(RuntimeError, match="/nothing/python"):
        admit(SOURCE, OBSERVATION)


def test_a_childs_module_is_checked_again(monkeypatch, tmp_path):
    """A child that says two components, of a module that has none."""
    module = lower(trace.trace(value("obs['direction'] * 1.0"), SPEC))
    (tmp_path / "module").write_bytes(module)
    send = f"sys.stdout.buffer.write(open({str(tmp_path / 'module')!r}, 'rb').read())\n"
    for names in ([], ["a", "b"]):
        said = f"say(components={names}, report={{'windows': 9}}, version={VERSION}, bytes={len(module)})\n"
        scripted(monkeypatch, tmp_path, STAGE + said + send)
        if names:
            with pytest.raises(SandboxError, match="description"):
                admit(SOURCE, OBSERVATION)
        else:
            assert admit(SOURCE, OBSERVATION).report == {"windows": 9.0, "protections": ["all"]}


def test_raised_limits_are_those_of_the_second_check_too(monkeypatch, tmp_path):
    limits, source = Limits(elements=400_000, work=1 << 26), value("jnp.sum(jnp.arange(400_000)) * past_actions[0]")
    module = lower(trace.trace(source, SPEC, limits))
    (tmp_path / "module").write_bytes(module)
    send = f"sys.stdout.buffer.write(open({str(tmp_path / 'module')!r}, 'rb').read())\n"
    reply = f"say(components=[], report={{}}, version={VERSION}, bytes={len(module)})\n"
    scripted(monkeypatch, tmp_path, STAGE + reply + send)
    assert admit(source, OBSERVATION, limits=limits).module == module


def test_the_deadline_ends_a_child_and_what_it_started(monkeypatch, tmp_path):
    note = tmp_path / "ids"
    code = f"""
child = os.fork()
open({str(note)!r}, 'a').write(f'{{os.getpid()}} ')
{STAGE}
while True: pass
"""
    scripted(monkeypatch, tmp_path, code)
    started = time.monotonic()
    with pytest.raises(SandboxError, match=r"\b3 s\b"):
        admit(SOURCE, OBSERVATION, limits=Limits(seconds=3))
    assert time.monotonic() - started < 10
    ids = [int(number) for number in note.read_text().split()]
    assert len(ids) == 2
    until = time.monotonic() + 5
    while any(running(number) for number in ids) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(running(number) for number in ids)


def test_a_child_is_killed_before_its_number_is_free(monkeypatch, tmp_path):
    """Once its end is collected, another process may have its number, which a late signal would reach."""
    found, kill = [], os.killpg

    def killpg(number, what):
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it was collected
        found.append(number)
        kill(number, what)

    monkeypatch.setattr(os, "killpg", killpg)
    scripted(monkeypatch, tmp_path, STAGE + "sys.exit(3)")
    with pytest.raises(SandboxError, match=r"checked.*\(code 3\)"):  # and its own end is what is reported
        admit(SOURCE, OBSERVATION)
    assert len(found) == 1


def running(number: int) -> bool:
    """Return whether a process runs; one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_sees_no_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    scripted(
        monkeypatch, tmp_path, STAGE + "say(error=f'{sorted(os.environ)} {os.getcwd()} {os.listdir()}', line=None)"
    )
    with pytest.raises(SandboxError) as caught:
        admit(SOURCE, OBSERVATION)
    said = str(caught.value)
    assert "OPENAI_API_KEY" not in said and "HOME" not in said and "JAX_PLATFORMS" in said
    assert "llmrl-sandbox-" in said and said.endswith("[]")


# --- the limits of the child, without JAX -----------------------------------------------------------------------------


TRIED = """
import ctypes, fcntl, importlib.util, json, os, resource, socket, struct, subprocess, sys, threading
spec = importlib.util.spec_from_file_location("jail", sys.argv[1])
jail = importlib.util.module_from_spec(spec)
spec.loader.exec_module(jail)
granted = jail.isolate()
found = {}

def attempt(name, function):
    try:
        function()
        found[name] = "done"
    except BaseException as error:
        found[name] = type(error).__name__

attempt("connect", lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 2))
granted += jail.confine(1 << 28, 5)
attempt("socket", socket.socket)
attempt("write", lambda: open(sys.argv[3], "w"))
attempt("remove", lambda: os.unlink(sys.argv[4]))
attempt("fork", os.fork)
attempt("start", lambda: subprocess.run(["true"]))
attempt("replace", lambda: os.execv("/bin/true", ["true"]))
attempt("signal", lambda: os.kill(os.getppid(), 0))
call = ctypes.CDLL(None, use_errno=True).syscall

def signalled(name, *arguments):
    # by the number of the call, as only kill() has a function in Python
    if call(numbers[name], *arguments) != 0:
        raise OSError(ctypes.get_errno(), "")

numbers = {name: jail.NUMBERS[name][jail.MACHINES.get(os.uname().machine, (0,))[0]] for name in jail.NUMBERS}
held, other = ctypes.create_string_buffer(128), os.getppid()
attempt("signal a thread", lambda: signalled("tgkill", other, other, 0))
attempt("queue a signal", lambda: signalled("rt_sigqueueinfo", other, 0, held))
attempt("queue for a thread", lambda: signalled("rt_tgsigqueueinfo", other, other, 0, held))
attempt("signal by a file", lambda: signalled("pidfd_send_signal", os.open(f"/proc/{other}", os.O_RDONLY), 0, None, 0))
attempt("signal itself", lambda: signalled("tgkill", os.getpid(), threading.get_native_id(), 0))
with open(sys.argv[4]) as file:
    for command, argument in ((8, other), (10, 9), (15, struct.pack("ii", 1, other))):  # F_SETOWN, F_SETSIG, ..._EX
        attempt(f"fcntl {command}", lambda: fcntl.fcntl(file, command, argument))
    for command in (0x40086602, 0x401C5820):  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
        attempt(f"ioctl {command:x}", lambda: fcntl.ioctl(file, command, held))
    attempt("other fcntl", lambda: fcntl.fcntl(file, fcntl.F_GETFD))
path = sys.argv[4].encode()
attempt("mode", lambda: signalled("fchmodat2", -100, path, 0o777, 0))
attempt("times", lambda: os.utime(path, (1, 1)))
attempt("attribute", lambda: os.setxattr(path, b"user.a", b"x"))
for name in sys.argv[5:]:
    if numbers[name]:
        attempt(name, lambda: signalled(name, None, None, None, None))
attempt("session", os.setsid)
attempt("memory", lambda: bytearray(1 << 30))
attempt("raise", lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)))
attempt("read", lambda: open(sys.argv[4]).close())
attempt("files", lambda: [open(sys.argv[4]) for _ in range(2000)])
print(json.dumps([granted, found]))
"""


CHANGES = """
utime utimes futimesat utimensat lsetxattr fsetxattr removexattr lremovexattr fremovexattr setxattrat removexattrat
file_setattr
""".split()
"""Calls that change a file's times and attributes."""


def test_what_a_confined_process_cannot_do(tmp_path):
    """Each protection that is reported holds; and on Linux, limits are always among them."""
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_text("text")
    before = kept.stat()
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = [str(JAIL), str(server.getsockname()[1]), str(new), str(kept), *CHANGES]
        done = subprocess.run(
            [sys.executable, "-I", "-c", TRIED, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
    granted, found = json.loads(done.stdout)
    wanted = {"memory": "MemoryError", "raise": "ValueError", "files": "OSError"}
    if "network namespace" in granted:
        wanted["connect"] = "OSError"
    if "seccomp" in granted:
        names = ("socket", "write", "remove", "fork", "start", "replace", "signal", "session")
        names += ("signal a thread", "queue a signal", "queue for a thread", "signal by a file")
        names += ("fcntl 8", "fcntl 10", "fcntl 15", "ioctl 40086602", "ioctl 401c5820", "mode", "times", "attribute")
        names += tuple(set(CHANGES) & found.keys())
        wanted |= dict.fromkeys(names, "PermissionError") | {"signal itself": "done", "other fcntl": "done"}
        assert (kept.stat().st_mode, kept.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert {name: found[name] for name in wanted} == wanted
    assert found["read"] == "done"  # modules are read late
    assert kept.read_text() == "text" and not new.exists()
    assert {f"RLIMIT_{name}" for name in ("AS", "CPU", "FSIZE", "CORE", "NPROC", "NOFILE")} <= set(granted)


@pytest.mark.parametrize(
    "machine, header", [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")]
)
def test_call_numbers_are_those_of_the_kernel(machine, header):
    """Of calls whose number the C library's headers name, if they are installed."""
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip("no headers of the kernel")
    text = path.read_text().replace("__NR3264_", "__NR_")
    column = MACHINES[machine][0]
    wrong = [
        name
        for name, numbers in NUMBERS.items()
        if f"#define __NR_{name} " in text and f"#define __NR_{name} {numbers[column]}\n" not in text
    ]
    assert not wrong
