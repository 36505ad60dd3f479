"""The leaves of a checkpoint: their description, and reading them with verification."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from llmrl_jax.run import info, leaves as trees


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, because its configuration or state differs or it is damaged; the message says
    which."""


def raw(x: Any) -> Any:
    """An array as it is stored: typed PRNG keys as their words."""
    return jax.random.key_data(x) if trees.is_key(x) else x


def describe(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The shape and dtype of each array, as JSON."""
    return {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in leaves.items()}


class Damaged(CheckpointError):
    """The bytes of a checkpoint differ from those saved."""


class DamagedFrozen(Damaged):
    """The bytes of the frozen part differ from those saved."""


def moved(meta: Mapping[str, Any], update: int) -> list[str]:
    """A note if a checkpoint is of another jax, jaxlib or device, whose programs may round differently."""
    saved = {**meta.get("versions", {}), "device": meta.get("device", "")}
    now = {**info.versions(), "device": info.device()}
    changed = [
        f"{name} {saved[name]} -> {now[name]}" for name in ("jax", "jaxlib") if saved.get(name, now[name]) != now[name]
    ]
    if saved["device"] not in ("", now["device"]):
        changed.append(f"device {saved['device']} -> {now['device']}")
    if not changed:
        return []
    return [
        f"checkpoint {update} was written with others ({', '.join(changed)}): what follows may differ in its last bits "
        "from an uninterrupted run"
    ]


def line_of(error: Exception) -> str:
    """An error on one line: its class, and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


def mute_late_errors() -> None:
    """Keep orbax's late errors from standard error: after a read or write that fails, it closes its event loop before
    tensorstore's others end, and each of those prints a traceback (`RuntimeError: Event loop is closed`), or is logged
    by asyncio as a task, or a gathering of tasks, whose error was not taken. They come before the failure reaches the
    caller or after it, so this is called before anything is read or written."""
    logging.getLogger("asyncio").addFilter(_is_not_late)  # a filter is added once
    report = sys.unraisablehook
    if getattr(report, "mutes_late_errors", False):
        return

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not isinstance(error, RuntimeError) or str(error) != "Event loop is closed":
            report(unraisable)

    hook.mutes_late_errors = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def _is_not_late(record: logging.LogRecord) -> bool:
    """Any record but one of asyncio's on an error that was never taken and that passed through orbax or tensorstore: a
    task's text names its coroutine's file, a gathering of tasks (`_GatheringFuture`) does so only in its traceback, and
    the error of a plain future of tensorstore has no traceback, but says what was read (`tensorstore_spec`)."""
    text = record.getMessage()
    if "exception was never retrieved" not in text.split("\n", 1)[0]:
        return True
    error = record.exc_info[1] if record.exc_info else None
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return not ("orbax" in text or "tensorstore" in text or any("orbax" in frame.filename for frame in frames))


def check_leaves(saved: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    """**Raises** `CheckpointError` naming the leaves that are missing, extra, or of another shape or dtype."""
    lines = [f"{name} is not in it" for name in wanted if name not in saved]
    lines += [f"{name} is only in it" for name in saved if name not in wanted]
    for name in wanted:
        if name in saved:
            a, b = saved[name], wanted[name]
            if (a["shape"], a["dtype"]) != (b["shape"], b["dtype"]):
                lines.append(f"{name} is {a['dtype']}{a['shape']}, not {b['dtype']}{b['shape']}")
    if lines:
        more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise CheckpointError(f"{what} is of another state: {'; '.join(lines[:5])}{more}")


def _key_impl(x: Any) -> Any:
    """The PRNG implementation of keys, also of abstract ones (which `jax.random.key_impl` refuses)."""
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct(x.shape, x.dtype))
    return impls[0]


def _target(x: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(x, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    if trees.is_key(x):
        x = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def restore_leaves(
    wanted: Mapping[str, Any], sums: Mapping[str, int], restore: Any, version: int, prefix: str = ""
) -> dict[str, Any]:
    """Read the leaves `wanted`, by name and in their order, verify their checksums of that version, and rewrap PRNG
    keys.

    **Arguments:** `restore`, `(targets by name) -> arrays by name`; `prefix`, of names in messages.
    **Raises:** `Damaged` if they cannot be read, or differ from those saved.
    """
    target = {name: _target(x) for name, x in wanted.items()}
    mute_late_errors()
    try:
        read = dict(restore({name: x for name, x in target.items() if x.size}))
    except Exception as error:
        raise Damaged(line_of(error)) from error
    for name, x in target.items():
        if not x.size:
            read[name] = jax.device_put(jax.numpy.zeros(x.shape, x.dtype), x.sharding)
    actual = trees.checksums({name: read[name] for name in wanted}, version)
    wrong = [prefix + name for name in wanted if actual[name] != sums[name]]
    if wrong:
        raise Damaged(f"the contents of {', '.join(wrong[:5])} changed since they were saved")
    return {
        name: jax.random.wrap_key_data(read[name], impl=_key_impl(x)) if trees.is_key(x) else read[name]
        for name, x in wanted.items()
    }
