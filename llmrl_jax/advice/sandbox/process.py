"""The child process that checks a program: the parent starts it, sets a deadline, and does not trust its reply."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from llmrl_jax.advice.sandbox.spec import Limits, SandboxError, Spec
from llmrl_jax.advice.sandbox.stablehlo import lower
from llmrl_jax.advice.sandbox.trace import check_behaviour, trace


_SCRIPT = Path(__file__).with_name("jail.py")
_TEXT = 1 << 20
"""Bytes of the reply without the module, and of standard error."""
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # the same program is the same bytes
    "LLMRL_COMPILATION_CACHE": "off",
    "MALLOC_ARENA_MAX": "2",
    "NPROC": "2",  # threads of XLA
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
"""The child's environment, complete."""


@dataclass(frozen=True)
class Reply:
    """A child's reply about a program that it admits; its types are checked, and nothing else."""

    module: bytes
    version: int
    components: tuple[str, ...]
    report: dict[str, Any]


def contact(
    source: str, spec: Spec, drawn: Sequence[np.ndarray], sampled: Sequence[np.ndarray], limits: Limits, deadline: float
) -> Reply:
    """Have a child process check a program.

    **Arguments:** `drawn`, `sampled`, windows as flat inputs, `sampled` may be empty; `deadline`, of `time.monotonic`.
    **Raises:** `SandboxError` if the child refuses the program, ends, or takes until the deadline; `RuntimeError` if
    the child could not start, which is not the program's fault.
    """
    payload: list[bytes] = []
    request = {
        "path": [str(Path(entry).absolute()) for entry in sys.path if entry],
        "source": source,
        "spec": spec.to_json(),
        "limits": dataclasses.asdict(limits),
        "drawn": _described(drawn, payload),
        "sampled": _described(sampled, payload),
    }
    body = json.dumps(request).encode()
    with tempfile.TemporaryDirectory(prefix="llmrl-sandbox-") as folder, tempfile.TemporaryFile() as stdin:
        stdin.write(struct.pack("<Q", len(body)) + body + b"".join(payload))
        stdin.seek(0)
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", str(_SCRIPT)],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeError(f"the process that checks programs could not start: {error}") from None
        try:
            output, errors, late = _read(child, _TEXT + limits.module, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # before its end is collected, while the number is its own
            child.wait()
    return _outcome(output, errors, late, child.returncode, source, limits)


def _described(arrays: Sequence[np.ndarray], payload: list[bytes]) -> list[dict[str, Any]]:
    described = []
    for x in arrays:
        start = sum(map(len, payload))
        payload.append(np.ascontiguousarray(x).tobytes())
        end = start + len(payload[-1])
        described.append({"dtype": x.dtype.str, "shape": list(x.shape), "start": start, "end": end})
    return described


def _read(child: subprocess.Popen[bytes], limit: int, deadline: float) -> tuple[bytes, bytes, bool]:
    """Standard output and error until both are closed or one is too long, and whether the deadline passed before."""
    read: dict[IO[bytes], bytearray] = {}
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdout, child.stderr):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ)
            read[stream] = bytearray()
        late = False
        while selector.get_map():
            left = deadline - time.monotonic()
            if late := left <= 0:
                break
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                read[key.fileobj] += chunk  # type: ignore[index]
                if not chunk:
                    selector.unregister(key.fileobj)
            if max(map(len, read.values())) > limit:  # more than any honest child sends
                break
        for stream in read:
            stream.close()
    if not late:
        _let_end(child, min(time.monotonic() + 1.0, deadline))
    output, errors = read.values()
    return bytes(output), bytes(errors), late


def _let_end(child: subprocess.Popen[bytes], until: float) -> None:
    """Let a child that has closed its output end by itself, so that its own status is reported. The status is not
    collected: then its number could become another process's, and the signal that follows would reach that one."""
    state = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, child.pid, state) is None and time.monotonic() < until:
        time.sleep(0.002)


def _outcome(output: bytes, errors: bytes, late: bool, code: int, source: str, limits: Limits) -> Reply:
    stage, protections = "", list[str]()
    while (end := output.find(b"\n")) >= 0 and end < _TEXT:
        line, output = output[:end], output[end + 1 :]
        try:
            word = json.loads(line)
            if "stage" in word:
                stage, protections = str(word["stage"])[:80], word.get("protections", protections)
                continue
            if "error" in word:
                number = word["line"] if isinstance(word["line"], int) and word["line"] > 0 else None
                raise SandboxError(_printable(word["error"], 600), number, source)
            report = {str(k): float(v) for k, v in word["report"].items()} | {
                "protections": [_printable(p, 60) for p in protections]
            }
            components = tuple(_printable(name, 64) for name in word["components"])
            module = output[: limits.module + 1]
            if (
                int(word["bytes"]) != len(module)
                or len(set(components)) != len(components)
                or len(components) > limits.components
            ):
                break
            return Reply(module, int(word["version"]), components, report)
        except SandboxError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            break
    tail = errors.decode(errors="replace")
    if late or -code == signal.SIGXCPU:
        if not stage:  # the text was not read yet
            raise RuntimeError(
                f"the process that checks programs did not start within {limits.seconds:g} s: the machine is too busy; "
                "try again, or raise limits.seconds"
            )
        raise SandboxError(f"it took longer than {limits.seconds:g} s, while it was {stage}")
    if not stage:
        raise RuntimeError(f"the process that checks programs could not start (code {code}): {tail.strip()[-600:]}")
    if any(word in tail for word in ("bad_alloc", "MemoryError", "RESOURCE_EXHAUSTED", "llocat", "out of memory")):
        raise SandboxError(f"it needs more than {limits.memory >> 20:,} MB of memory, while it was {stage}")
    status = signal.Signals(-code).name if code < 0 else f"code {code}"
    raise SandboxError(f"it ended the process that checked it ({status}), while it was {stage}")


def _printable(text: Any, length: int) -> str:
    return "".join(c if c.isprintable() else " " for c in str(text)[:length])


# --- the child's side -------------------------------------------------------------------------------------------------


def check_program(
    request: dict[str, Any],
    payload: bytes,
    reply: BinaryIO,
    granted: list[str],
    confine: Callable[[int, float], list[str]],
) -> None:
    """Check one program and write the reply: a line of JSON for each stage, one for the outcome, and the module.

    **Arguments:** `request`, of `contact`; `payload`, the bytes of its arrays; `granted`, protections that are
    active already; `confine`, which sets the others.
    """
    limits = Limits(**request["limits"])
    spec = Spec.from_json(request["spec"])
    drawn, sampled = _arrays(request["drawn"], payload), _arrays(request["sampled"], payload)
    np.asarray(jax.jit(lambda x: x + 1)(jnp.zeros(3)))  # the compiler's threads start before they are limited
    granted = [*granted, *confine(limits.memory, limits.seconds)]

    def say(**fields: Any) -> None:
        reply.write(json.dumps(fields).encode() + b"\n")
        reply.flush()

    started = time.monotonic()
    say(stage="being traced", protections=granted)
    try:
        traced = trace(request["source"], spec, limits)
        say(stage="being exported")
        module = lower(traced)
        say(stage="being compiled and evaluated")
        measured = _behaviour(traced, drawn, sampled, limits)
    except SandboxError as error:
        say(error=error.reason, line=error.line)
        return
    say(
        components=traced.components,
        report=measured | {"operations": traced.equations, "work": traced.work, "seconds": time.monotonic() - started},
        version=export.maximum_supported_calling_convention_version,
        bytes=len(module),
    )
    reply.write(module)
    reply.flush()


def _behaviour(traced: Any, drawn: list[np.ndarray], sampled: list[np.ndarray], limits: Limits) -> dict[str, Any]:
    try:
        return check_behaviour(traced, drawn, sampled or None, limits)
    except SandboxError:
        raise
    except Exception as error:  # noqa: BLE001 - of the compiler
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "allocat" in str(error):
            raise SandboxError("it needs more memory than a program may have; use smaller arrays") from None
        first = str(error).strip().split("\n")[0][:200]
        raise SandboxError(f"it cannot be compiled or evaluated: {type(error).__name__}: {first}") from None


def _arrays(described: list[dict[str, Any]], payload: bytes) -> list[np.ndarray]:
    return [np.frombuffer(payload[x["start"] : x["end"]], x["dtype"]).reshape(x["shape"]) for x in described]
