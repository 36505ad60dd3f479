"""From the engine's thread to the event loop: what a request's jobs report, until its client leaves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from llmrl_jax.serve.engine import Busy, Engine, Job, Stopping, Work
from llmrl_jax.serve.request import ApiError, Ask, Sample


class Disconnected(Exception):
    """The client has disconnected."""


class Inbox:
    """Reports of the engine's thread, received by the event loop."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._jobs: list[Job | Work] = []

    def ask(self, asks: Sequence[Ask]) -> None:
        """Queue prompts; `next` then returns `(index, samples)`."""
        self._submit([Job(ask, partial(self._post, i)) for i, ask in enumerate(asks)])

    def work(self, parts: Any) -> None:
        """Queue work; `next` then returns its parts, then None."""
        self._submit([Work(parts, partial(self._post, None))])

    def _submit(self, jobs: Sequence[Job | Work]) -> None:
        if len(jobs) > self._engine.max_queue:
            raise ApiError(f"{len(jobs)} prompts are in one request; at most {self._engine.max_queue} may wait here")
        try:
            self._engine.submit(jobs)
        except Busy as error:
            raise ApiError(str(error), 429, retry_after=error.retry_after) from None
        except Stopping as error:
            raise ApiError(str(error), 503, retry_after=1) from None
        self._jobs = list(jobs)

    def _post(self, index: int | None, report: Any) -> None:
        """On the engine's thread."""
        message = report if index is None or isinstance(report, Exception) else (index, report)
        self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    def cancel(self) -> None:
        """Cancel what has no listener left."""
        self._engine.cancel(self._jobs)

    async def next(self) -> Any:
        """The next report. **Raises:** the report if it is an exception; `Disconnected` if the client has left."""
        report = await self._queue.get()
        if isinstance(report, Stopping):
            raise ApiError(str(report), 503, retry_after=1)
        if isinstance(report, Exception):
            raise report
        return report

    @asynccontextmanager
    async def watching(self, receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
        """While the client is connected: `next` raises `Disconnected` when it leaves, and the rest is cancelled."""

        async def watch() -> None:
            await _until_disconnected(receive)
            self._queue.put_nowait(Disconnected())

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            self.cancel()


async def collect(inbox: Inbox, count: int, receive: Callable[[], Awaitable[Any]]) -> list[list[Sample]]:
    """Every prompt's samples, all finished."""
    outputs: list[list[Sample]] = [[] for _ in range(count)]
    async with inbox.watching(receive):
        while not ended(outputs):
            index, samples = await inbox.next()
            outputs[index] = samples
    return outputs


def ended(outputs: Sequence[Sequence[Sample]]) -> bool:
    """Return whether all samples of all prompts have finished."""
    return all(samples and all(sample.finish for sample in samples) for samples in outputs)


# --- threads that read requests, which can be abandoned -------------------------------------------------------------


T = TypeVar("T")

THREADS = 4
"""Requests that are read at a time; more of them wait."""


class Abandoned(Exception):
    """The result is not needed any more."""


class Readers:
    """Threads that read requests. What its client has left, or what the server's end has overtaken, is abandoned: its
    thread stops at its next check, and neither the event loop nor the process waits for it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="llmrl-read")
        self._open: dict[asyncio.Future[None], threading.Event] = {}
        self._stopped = False
        self._running = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Return whether a thread is still at work."""
        with self._lock:
            return self._running > 0

    async def run(self, call: Callable[[Callable[[], None]], T], receive: Callable[[], Awaitable[Any]]) -> T:
        """Call a function in a thread.

        **Arguments:** `call`, with a function as its argument that it calls between two steps of its work, and that
        raises `Abandoned`; `receive`, the request's, after its body.
        **Returns:** what `call` returns.
        **Raises:** what `call` raises; `Disconnected` if the client leaves; `ApiError` (503) if the server stops."""
        if self._stopped:
            raise _stopping()
        left = threading.Event()
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[stop] = left
        work = asyncio.wrap_future(self._pool.submit(self._call, call, left))
        disconnected = asyncio.create_task(_until_disconnected(receive))
        try:
            await asyncio.wait((work, disconnected, stop), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise _stopping() if stop.done() else Disconnected
        finally:
            left.set()
            work.cancel()
            disconnected.cancel()
            del self._open[stop]

    def _call(self, call: Callable[[Callable[[], None]], T], left: threading.Event) -> T:
        def check() -> None:
            if left.is_set():
                raise Abandoned

        with self._lock:
            self._running += 1
        try:
            check()
            return call(check)
        finally:
            with self._lock:
                self._running -= 1

    def stop(self) -> None:
        """Abandon all work, and refuse more. On the event loop's thread."""
        self._stopped = True
        for stop, left in self._open.items():
            left.set()
            if not stop.done():
                stop.set_result(None)
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _until_disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _stopping() -> ApiError:
    return ApiError("the server is stopping", 503, retry_after=1)


# --- the body of a request ------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from starlette.requests import Request

LONGEST_NUMBER = 64
"""Characters of a number in a request. Python needs quadratic time for long ones."""


async def read_body(request: Request, limit: int, seconds: float) -> dict[str, Any]:
    """The JSON object of a request.

    **Arguments:** `request`; `limit`, its bytes; `seconds`, until its end.
    **Raises:** `ApiError`; `Disconnected` when the client disconnects."""
    from starlette.requests import ClientDisconnect

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page cannot send this type to another site without permission
        raise ApiError(f"the content type is {kind!r}; application/json is needed", 415)
    content, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    content += part
                elif size > 16 * limit:  # it is read up to here, so that the client receives the error
                    break
    except TimeoutError:
        raise ApiError(f"the body was not received within {seconds:g} s", 408) from None
    except ClientDisconnect:
        raise Disconnected from None
    if size > limit:
        raise ApiError(f"the body is longer than the {limit} bytes that this server takes", 413)
    try:
        body = json.loads(
            bytes(content),
            parse_constant=_no_constant,
            parse_int=partial(_number, int),
            parse_float=partial(_number, float),
        )
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError | _Unreadable) else "it cannot be read"
        raise ApiError(f"the body is not JSON: {reason}") from None
    if not isinstance(body, dict):
        raise ApiError(f"the body is a JSON {type(body).__name__}; an object is needed")
    return body


class _Unreadable(ValueError):
    """A value that this server does not read."""


def _no_constant(name: str) -> Any:
    raise _Unreadable(f"it holds {name}")


def _number(kind: Callable[[str], Any], digits: str) -> Any:
    if len(digits) > LONGEST_NUMBER:
        raise _Unreadable(f"it holds a number of {len(digits)} characters; at most {LONGEST_NUMBER} are read")
    return kind(digits)
