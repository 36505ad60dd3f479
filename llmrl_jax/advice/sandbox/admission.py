"""Admission: the stages in order."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from envs_jax.threads import cores
from llmrl_jax.advice.sandbox import gate
from llmrl_jax.advice.sandbox.process import Reply, contact
from llmrl_jax.advice.sandbox.program import Program
from llmrl_jax.advice.sandbox.spec import DEFAULT, Limits, SandboxError, Spec, random_windows, spec_of
from llmrl_jax.chat.thinking import strip_thinking


_WINDOWS = 4_096
_AFTER = 1.0
"""Seconds reserved for the stages after the child."""


def admit(
    source: str,
    observation: Any,
    *,
    window: int = 5,
    actions: int = 7,
    parts: Sequence[str] | None = None,
    windows: tuple[Any, Any, Any] | None = None,
    limits: Limits = DEFAULT,
) -> Program:
    """Check the text of a potential that a language model wrote, and make a program of it.

    The text is compared with a whitelist here, then traced, exported and evaluated in a new process with limits; what
    comes back is StableHLO, whose operations are compared with a whitelist here. `docs/security.md` says what this
    promises.

    **Arguments:** `source`, text that defines `compute_potential(obs, past_obs, past_actions) -> (potential,
    components)`; `observation`, one of the environment, a dict of arrays or an array, whose values sample windows
    resemble; `window`, earlier observations and actions that it sees, K; `actions`, their number in the environment;
    `parts`, of the observation, that it sees (None: all numeric ones without captions and keys); `windows`, sampled
    windows `(obs, past_obs, past_actions)` with a leading dimension, at most 4,096, on which the potential must vary.
    **Returns:** the program, which is compiled where it is used.
    **Raises:** `SandboxError`, naming the line where one is the cause, within `limits.seconds`; `ValueError` for an
    observation, window or option that is wrong; `RuntimeError` if no child process can be started.
    """
    options: Any = {"window": window, "actions": actions, "parts": parts, "windows": windows, "limits": limits}
    (program,) = admit_many([source], observation, **options)
    if isinstance(program, SandboxError):
        raise program
    return program


def admit_many(
    sources: Sequence[str],
    observation: Any,
    *,
    window: int = 5,
    actions: int = 7,
    parts: Sequence[str] | None = None,
    windows: tuple[Any, Any, Any] | None = None,
    limits: Limits = DEFAULT,
    workers: int | None = None,
) -> list[Program | SandboxError]:
    """`admit` for several candidates, each in a process of its own, several at a time.

    **Arguments:** as of `admit`; `workers`, processes at a time; None: one for each processor.
    **Returns:** for each text its program, or the error that refuses it.
    """
    started = time.monotonic()
    spec, drawn, sampled = _inputs(observation, window, actions, parts, windows)
    checked = [_gate(source, limits) for source in sources]
    waiting = [i for i, error in enumerate(checked) if error is None]
    count = min(workers or cores(), max(len(waiting), 1))

    def checked_by_child(i: int) -> Reply | SandboxError:
        # With one candidate, the time of the gate is part of its own.
        start = started if len(sources) == 1 else time.monotonic()
        try:
            return contact(
                sources[i], spec, drawn, sampled, limits, start + max(limits.seconds - _AFTER, limits.seconds / 2)
            )
        except SandboxError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        replies = dict(zip(waiting, pool.map(checked_by_child, waiting)))
    return [_program_of(sources[i], replies.get(i, error), spec, limits) for i, error in enumerate(checked)]


def _inputs(
    observation: Any, window: int, actions: int, parts: Sequence[str] | None, windows: tuple[Any, Any, Any] | None
) -> tuple[Spec, list[np.ndarray], list[np.ndarray]]:
    if isinstance(actions, bool) or not isinstance(actions, int) or not 1 <= actions <= 2**31 - 1:
        raise ValueError(f"actions is {actions!r}; the number of actions of the world is needed, at least 1")
    spec = spec_of(observation, window, parts)
    sampled: list[np.ndarray] = []
    if windows is not None:
        sampled = [np.asarray(x) for x in spec.flat(*windows, leading=1)]
        sizes = {len(x) for x in sampled}
        if len(sizes) != 1 or not 2 <= min(sizes) <= _WINDOWS:
            raise ValueError(f"windows have {sorted(sizes)} entries; one number from 2 to {_WINDOWS:,} is needed")
    return spec, random_windows(observation, spec, actions), sampled


def _gate(source: str, limits: Limits) -> SandboxError | None:
    if not isinstance(source, str):
        raise ValueError(f"source is a {type(source).__name__}; the program's text is needed")
    try:
        gate.check(source, limits)
    except SandboxError as error:
        return error
    return None


def _program_of(source: str, reply: Reply | SandboxError | None, spec: Spec, limits: Limits) -> Program | SandboxError:
    if not isinstance(reply, Reply):
        assert reply is not None
        return reply
    try:
        return Program(reply.module, reply.version, source, spec, reply.components, limits.bound, reply.report, limits)
    except SandboxError as error:
        return error


_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_PYTHON = ("python", "py", "python3")


def code_block(reply: str) -> str:
    """Python block of a reply without its thoughts, between lines of three backquotes; a block without a
    language counts only if no block is marked as Python.

    **Raises:** `SandboxError` if there is none, more than one, or one without an end.
    """
    reply = strip_thinking(reply)
    blocks: list[tuple[str, str]] = []
    position = 0
    while opening := _FENCE.search(reply, position):
        closing = re.compile(rf"^[ \t]*{re.escape(opening[1])}[ \t]*$", re.MULTILINE).search(reply, opening.end())
        if closing is None:
            raise SandboxError("the code block has no end: close it by a line of three backquotes, and write less")
        blocks.append((opening[2].lower(), reply[opening.end() + 1 : closing.start()]))
        position = closing.end()
    marked = [code for language, code in blocks if language in _PYTHON]
    chosen = marked or [code for language, code in blocks if not language]
    if len(chosen) != 1:
        number = "no Python code block" if not chosen else f"{len(chosen)} Python code blocks"
        raise SandboxError(
            f"the reply has {number}; exactly one is needed, which starts with ```python and ends with ```"
        )
    if not chosen[0].strip():
        raise SandboxError("the code block is empty")
    return chosen[0]
