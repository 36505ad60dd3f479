"""From the engine's thread to the event loop: what a request's jobs report, until its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from llmrl_jax.serve.engine import Busy, Engine, Job, Stopping, Work
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.request import Ask, Sample


class Gone(Exception):
    """The client has disconnected."""


class Inbox:
    """What the engine's thread reports, received by the event loop."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._jobs: list[Job | Work] = []

    def ask(self, asks: Sequence[Ask]) -> None:
        """Queue prompts; `next` then returns `(place, samples)`."""
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

    def _post(self, place: int | None, what: Any) -> None:
        """On the engine's thread."""
        said = what if place is None or isinstance(what, Exception) else (place, what)
        self._loop.call_soon_threadsafe(self._queue.put_nowait, said)

    def cancel(self) -> None:
        """Cancel what has no listener left."""
        self._engine.cancel(self._jobs)

    async def next(self) -> Any:
        """The next report. **Raises:** the report if it is an exception; `Gone` if the client has disconnected."""
        what = await self._queue.get()
        if isinstance(what, Stopping):
            raise ApiError(str(what), 503, retry_after=1)
        if isinstance(what, Exception):
            raise what
        return what

    @asynccontextmanager
    async def watching(self, receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
        """While the client is connected: `next` raises `Gone` when it disconnects, and the rest is cancelled."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._queue.put_nowait(Gone())

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            self.cancel()


async def collect(inbox: Inbox, count: int, receive: Callable[[], Awaitable[Any]]) -> list[list[Sample]]:
    """Every prompt's samples, all finished."""
    found: list[list[Sample]] = [[] for _ in range(count)]
    async with inbox.watching(receive):
        while not ended(found):
            place, found_there = await inbox.next()
            found[place] = found_there
    return found


def ended(found: Sequence[Sequence[Sample]]) -> bool:
    """Whether all samples of all prompts have finished."""
    return all(samples and all(sample.finish for sample in samples) for samples in found)
