"""Reading requests in threads that can be abandoned: tokenizing and rendering a long text take time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.inbox import Gone


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
        """Whether a thread is still at work."""
        with self._lock:
            return self._running > 0

    async def run(self, call: Callable[[Callable[[], None]], T], receive: Callable[[], Awaitable[Any]]) -> T:
        """Call a function in a thread.

        **Arguments:** `call`, with a function as its argument that it calls between two steps of its work, and that
        raises `Abandoned`; `receive`, the request's, after its body.
        **Returns:** what `call` returns.
        **Raises:** what `call` raises; `Gone` if the client disconnects; `ApiError` (503) if the server stops."""
        if self._stopped:
            raise _stopping()
        left = threading.Event()
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[stop] = left
        work = asyncio.wrap_future(self._pool.submit(self._call, call, left))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((work, gone, stop), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise _stopping() if stop.done() else Gone
        finally:
            left.set()
            work.cancel()
            gone.cancel()
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


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _stopping() -> ApiError:
    return ApiError("the server is stopping", 503, retry_after=1)
