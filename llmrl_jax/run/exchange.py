"""Exchanges with the host: between two updates a learner sends a request, the host computes an answer, and the answer
enters the state.

`llmrl_jax.core.learner.Exchange` describes what a learner declares, and why a resumed run is bit-identical. This module
calls `answer` in a thread of process 0, so that the run handles stop signals while it waits, and broadcasts the answer
to all processes.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from llmrl_jax.core.learner import Exchange
from llmrl_jax.parallel.hosts import put
from llmrl_jax.run import pytrees as trees


_POLL_SECONDS = 0.1
"""Seconds between checks for a stop signal while a run waits for an answer."""

Arrays = dict[str, np.ndarray]


class NoAnswer(RuntimeError):
    """Exchange to which the host computed no answer; the message says why."""


class Exchanges:
    """The exchanges of one run of a learner."""

    def __init__(self, exchange: Exchange, state: Any, last: int):
        """**Arguments:** `exchange`; `state`, the learner's, for its shardings; `last`, the update after which the
        run ends."""
        self.every, self._exchange, self._last = exchange.every, exchange, last
        self.seconds = 0.0
        """Time spent waiting for answers."""
        mesh = trees.mesh_of(state)
        self._replicated = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._request = jax.jit(exchange.request, out_shardings=self._replicated)
        places = jax.tree.map(lambda x: x.sharding, state.replace(frozen=()))
        self._take = jax.jit(self._apply, donate_argnums=0, out_shardings=places)
        self._pending: _Request | None = None

    def due(self, update: int) -> bool:
        """Return whether an exchange is due after `update` updates."""
        return 0 < update < self._last and update % self.every == 0

    def prepare(self, state: Any, update: int) -> None:
        """Start the next exchange's request if it may be sent ahead. For the start of a run."""
        if not self.due(update):
            self._ask_ahead(state, update)

    def make(self, state: Any, update: int, stop: Callable[[], bool]) -> Any:
        """Make one exchange.

        **Arguments:** `state`, after `update` updates, whose part that is not frozen is donated; `stop`, whether the
        run must stop (polled while it waits).
        **Returns:** the state to continue with; None if `stop` came first, with `state` unchanged.
        **Raises:** `NoAnswer` if `answer` raised, with `state` unchanged; `ValueError` for a request, an answer or a
        new state of the wrong form.
        """
        started = time.monotonic()
        request = self._read(state)
        answer: Arrays | str | None = None
        if jax.process_index() == 0:
            answer = self._answered(request, stop)
        answer = _from_first(answer)
        self.seconds += time.monotonic() - started
        if answer is None:
            return None
        if isinstance(answer, str):
            raise NoAnswer(answer) from (self._pending.error if self._pending else None)
        state = self._with_answer(state, answer)
        self._ask_ahead(state, update)
        return state

    # --- asking -------------------------------------------------------------------------------------------------------

    def _read(self, state: Any) -> Arrays:
        request = jax.device_get(self._request(state))
        if not isinstance(request, Mapping) or not all(isinstance(x, np.ndarray) for x in request.values()):
            raise ValueError("an exchange's request must be a dict of arrays (of a key: its jax.random.key_data)")
        return dict(request)

    def _ask_ahead(self, state: Any, update: int) -> None:
        self._pending = None
        upcoming = (update // self.every + 1) * self.every
        if self._exchange.ahead and self.due(upcoming):
            request = self._read(state)
            if jax.process_index() == 0:
                self._pending = _Request(self._exchange.answer, request)

    def _answered(self, request: Arrays, stop: Callable[[], bool]) -> Arrays | str | None:
        """The answer to a request; an error message if there is none; or None if the run must stop."""
        if self._pending is None:
            self._pending = _Request(self._exchange.answer, request)
        elif not _equal(self._pending.request, request):
            return (
                "the request changed since the exchange before it: with ahead=True it must be read from a part of the "
                "state that only take writes"
            )
        while not self._pending.done.wait(_POLL_SECONDS):
            if stop():
                return None
        if self._pending.error is not None:
            return f"{type(self._pending.error).__name__}: {' '.join(str(self._pending.error).split())}"
        try:
            return _checked(self._pending.answer)
        except ValueError as error:
            return str(error)

    # --- taking -------------------------------------------------------------------------------------------------------

    def _apply(self, trained: Any, frozen: Any, answer: dict[str, jax.Array]) -> Any:
        after = self._exchange.take(trained.replace(frozen=frozen), answer).replace(frozen=())
        return _like(trained, after)

    def _with_answer(self, state: Any, answer: Arrays) -> Any:
        frozen = state.frozen
        placed: Any = answer
        if self._replicated is not None:
            placed = {name: put(x, self._replicated) for name, x in answer.items()}
        return self._take(state.replace(frozen=()), frozen, placed).replace(frozen=frozen)


class _Request:
    """A call of `answer` in a daemon thread: neither a stopping run nor the end of the process waits for it."""

    def __init__(self, function: Callable[[Arrays], Any], request: Arrays):
        self.request = request
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        copied = {name: x.copy() for name, x in request.items()}
        threading.Thread(target=self._run, args=(function, copied), name="exchange", daemon=True).start()

    def _run(self, function: Callable[[Arrays], Any], request: Arrays) -> None:
        try:
            self.answer = function(request)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


def _equal(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def _like(before: Any, after: Any) -> Any:
    """The state `after` an exchange, with the exact types of the state `before`. **Raises:** `ValueError` naming the
    leaves that differ."""
    after = jax.tree.map(lambda x: x if hasattr(x, "dtype") else jax.numpy.asarray(x), after)
    old, new = trees.named_leaves(before), trees.named_leaves(after)
    wrong = [f"{name} is missing" for name in old if name not in new]
    wrong += [f"{name} is new" for name in new if name not in old]
    for name in old.keys() & new.keys():
        a, b = (f"{x.dtype}{list(x.shape)}" for x in (old[name], new[name]))
        if a != b:
            wrong.append(f"{name} is {b} and was {a}")
    if wrong:
        raise ValueError(f"an exchange's take must keep the form of the state: {'; '.join(sorted(wrong)[:5])}")
    # compiled updates treat a weak type as another type
    return jax.tree.map(lambda x: x if trees.is_key(x) else jax.lax.convert_element_type(x, x.dtype), after)


def _checked(answer: Any) -> Arrays:
    """An answer as NumPy arrays. **Raises:** `ValueError` for anything except plain arrays by name."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"the answer is a {type(answer).__name__}; a dict of arrays is needed")
    arrays = {str(name): np.asarray(x) for name, x in answer.items()}
    for name, x in arrays.items():
        if x.dtype.kind not in "biuf":
            raise ValueError(f"the answer's {name!r} has dtype {x.dtype}; bool, int or float is needed")
    return arrays


# --- over processes ---------------------------------------------------------------------------------------------------


def _from_first(answer: Arrays | str | None) -> Arrays | str | None:
    """Broadcast the result of process 0 to every process. A collective operation; other processes' values are
    ignored."""
    if jax.process_count() == 1:
        return answer
    from jax.experimental import multihost_utils

    content = _packed(answer) if jax.process_index() == 0 else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    sent = np.frombuffer(content.ljust(size, b"\0"), np.uint8)
    return _unpacked(np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8).tobytes())


def _packed(answer: Arrays | str | None) -> bytes:
    """A line of JSON with names, dtypes and shapes, and then the bytes of the arrays."""
    if not isinstance(answer, dict):
        return json.dumps(answer).encode() + b"\n"
    head = [[name, x.dtype.str, x.shape] for name, x in answer.items()]
    return json.dumps(head).encode() + b"\n" + b"".join(x.tobytes() for x in answer.values())


def _unpacked(content: bytes) -> Arrays | str | None:
    head, _, data = content.partition(b"\n")
    decoded = json.loads(head)
    if not isinstance(decoded, list):
        return decoded
    arrays, start = {}, 0
    for name, kind, shape in decoded:
        size = np.dtype(kind).itemsize * math.prod(shape)
        arrays[name] = np.frombuffer(data[start : start + size], kind).reshape(shape)
        start += size
    return arrays
