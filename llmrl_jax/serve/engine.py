"""The one thread that uses the device, and the queue before it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmrl_jax.serve.sampler import Ask, Sample, Sampler
from llmrl_jax.serve.scorer import Scorer
from llmrl_jax.serve.served import Served


log = logging.getLogger("llmrl_jax.serve")


class Busy(RuntimeError):
    """The queue is full."""

    def __init__(self, waiting: int, limit: int, retry_after: int):
        super().__init__(f"{waiting} of at most {limit} requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Stopping(RuntimeError):
    """The engine is closing or closed."""


@dataclass(eq=False)
class Job:
    """A prompt that waits for the device.

    `listen` is called on the engine's thread and must return at once. It receives the samples so far, each time there
    are more, the last time with all of them finished; or an exception.
    """

    ask: Ask
    listen: Callable[[list[Sample] | Exception], None]
    cancelled: bool = field(default=False, init=False)


@dataclass(eq=False)
class Work:
    """Any other work for the device, in parts: it can be cancelled between two parts. `listen` receives each part, then
    `None`; or an exception, which is the last call."""

    parts: Iterator[Any]
    listen: Callable[[Any], None]
    cancelled: bool = field(default=False, init=False)


class Engine:
    """Answers prompts in batches; may be called from any thread.

    Jobs are answered in the order of arrival, in batches of jobs with the same shape as the first, up to `max_batch`
    continuations. Nothing joins a running batch; a job that is answered leaves it at once.

    **Arguments:** `served`; `max_batch`, concurrent continuations; `max_queue`, jobs that may wait; `linger`, seconds
    that the first job waits for others to share its batch.
    """

    def __init__(self, served: Served, *, max_batch: int = 16, max_queue: int = 64, linger: float = 0.005):
        if max_queue < 1:
            raise ValueError(f"max_queue is {max_queue}; at least 1 request must be able to wait")
        self.served, self.max_queue, self.linger = served, max_queue, linger
        self.sampler, self.scorer = Sampler(served, max_batch), Scorer(served, max_batch)
        self._state = threading.Condition()
        self._waiting: deque[Job | Work] = deque()
        self._running: Sequence[Job | Work] = ()
        self._closed = False
        self._seconds = 1.0
        self._thread = threading.Thread(target=self._run, name="llmrl-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it accepts jobs."""
        return self._thread.is_alive() and not self._closed

    @property
    def load(self) -> tuple[int, int]:
        """How many jobs wait, and how many are running."""
        return len(self._waiting), sum(not job.cancelled for job in self._running)

    def submit(self, jobs: Sequence[Job | Work]) -> None:
        """Queue jobs, all or none.

        **Raises:** `Busy` where they do not fit into the queue, `Stopping` after `close`."""
        with self._state:
            if not self.alive:
                raise Stopping("the server is stopping")
            if len(self._waiting) + len(jobs) > self.max_queue:
                batches = len(self._waiting) / self.sampler.max_batch + 1
                raise Busy(len(self._waiting), self.max_queue, max(1, math.ceil(self._seconds * batches)))
            self._waiting += jobs
            self._state.notify_all()

    def cancel(self, jobs: Sequence[Job | Work]) -> None:
        """Cancel these jobs. Their listeners are not called again."""
        with self._state:
            for job in jobs:
                job.cancelled = True
            self._waiting = deque(job for job in self._waiting if not job.cancelled)

    def close(self) -> None:
        """Stop between two tokens. Waiting jobs receive `Stopping`. May be called twice."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            started, self._running = time.monotonic(), [batch] if isinstance(batch, Work) else batch
            try:
                self._work(batch) if isinstance(batch, Work) else self._sample(batch)
            except Exception as error:
                log.exception("the device failed; the engine goes on")
                for job in self._running:
                    self._tell(job, error)
            self._running = ()
            self._seconds += 0.3 * (time.monotonic() - started - self._seconds)
        with self._state:
            left, self._waiting = self._waiting, deque()
        for job in left:
            self._tell(job, Stopping("the server is stopping"))

    def _next(self) -> list[Job] | Work | None:
        """The next batch or work; None when the engine is closed."""
        with self._state:
            while True:
                self._state.wait_for(lambda: self._waiting or self._closed)
                self._state.wait_for(lambda: len(self._waiting) >= self.sampler.max_batch or self._closed, self.linger)
                if self._closed:
                    return None
                if self._waiting:  # they may have been cancelled in the meantime
                    break
            first = self._waiting.popleft()
            if isinstance(first, Work):
                return first
            group, room = self.sampler.group(first.ask), self.sampler.capacity(first.ask) - 1
            like = [j for j in self._waiting if isinstance(j, Job) and self.sampler.group(j.ask) == group][:room]
            self._waiting = deque(job for job in self._waiting if job not in like)
            return [first, *like]

    def _sample(self, jobs: list[Job]) -> None:
        ended = [False] * len(jobs)
        for found in self.sampler.run([job.ask for job in jobs]):
            if self._closed:
                for job, over in zip(jobs, ended):
                    if not over:
                        self._tell(job, Stopping("the server is stopping"))
                return
            for i, (job, samples) in enumerate(zip(jobs, found)):
                if not ended[i] and not job.cancelled:
                    ended[i] = all(sample.finish for sample in samples)
                    self._tell(job, samples)
            if all(over or job.cancelled for job, over in zip(jobs, ended)):
                return

    def _work(self, work: Work) -> None:
        for part in work.parts:
            if work.cancelled:
                return
            if self._closed:
                self._tell(work, Stopping("the server is stopping"))
                return
            self._tell(work, part)
        self._tell(work, None)

    def _tell(self, job: Job | Work, what: Any) -> None:
        """Call the listener. One that fails does not stop the others."""
        if job.cancelled:
            return
        try:
            job.listen(what)
        except Exception:
            log.debug("a listener has gone", exc_info=True)
            job.cancelled = True
