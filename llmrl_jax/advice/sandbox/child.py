"""What the child process does with a program, between `jail`'s limits and its reply."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.limits import Limits
from llmrl_jax.advice.sandbox.spec import Spec
from llmrl_jax.advice.sandbox.stablehlo import lower
from llmrl_jax.advice.sandbox.trace import trace
from llmrl_jax.advice.sandbox.windows import check_behaviour


def run(
    request: dict[str, Any],
    payload: bytes,
    reply: BinaryIO,
    granted: list[str],
    confine: Callable[[int, float], list[str]],
) -> None:
    """Check one program and write the reply: a line of JSON for each stage, one for the outcome, and the module.

    **Arguments:** `request`, of `process.contact`; `payload`, the bytes of its arrays; `granted`, protections that are
    active already; `confine`, which sets the others.
    """
    limits = Limits(**request["limits"])
    spec = Spec.from_json(request["spec"])
    drawn, given = _arrays(request["drawn"], payload), _arrays(request["given"], payload)
    np.asarray(jax.jit(lambda x: x + 1)(jnp.zeros(3)))  # the compiler's threads start before they are limited
    granted = [*granted, *confine(limits.memory, limits.seconds)]

    def say(**what: Any) -> None:
        reply.write(json.dumps(what).encode() + b"\n")
        reply.flush()

    started = time.monotonic()
    say(stage="being traced", protections=granted)
    try:
        traced = trace(request["source"], spec, limits)
        say(stage="being exported")
        module = lower(traced)
        say(stage="being compiled and evaluated")
        found = _behaves(traced, drawn, given, limits)
    except SandboxError as error:
        say(error=error.reason, line=error.line)
        return
    say(
        components=traced.components,
        report=found | {"operations": traced.equations, "work": traced.work, "seconds": time.monotonic() - started},
        version=export.maximum_supported_calling_convention_version,
        bytes=len(module),
    )
    reply.write(module)
    reply.flush()


def _behaves(traced: Any, drawn: list[np.ndarray], given: list[np.ndarray], limits: Limits) -> dict[str, Any]:
    try:
        return check_behaviour(traced, drawn, given or None, limits)
    except SandboxError:
        raise
    except Exception as error:  # noqa: BLE001 - of the compiler
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "allocat" in str(error):
            raise SandboxError("it needs more memory than a program may have; use smaller arrays") from None
        first = str(error).strip().split("\n")[0][:200]
        raise SandboxError(f"it cannot be compiled or evaluated: {type(error).__name__}: {first}") from None


def _arrays(described: list[dict[str, Any]], payload: bytes) -> list[np.ndarray]:
    found = []
    for each in described:
        data = payload[each["start"] : each["end"]]
        found.append(np.frombuffer(data, each["dtype"]).reshape(each["shape"]))
    return found
