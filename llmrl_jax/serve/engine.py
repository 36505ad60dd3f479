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

from llmrl_jax.serve.programs import Programs
from llmrl_jax.serve.request import Ask, Sample
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.scorer import Scorer
from llmrl_jax.serve.served import Served


log = logging.getLogger("llmrl_jax.serve")


class Busy(RuntimeError):
    """Request that is refused because the queue is full."""

    def __init__(self, waiting: int, limit: int, retry_after: int):
        super().__init__(f"{waiting} of at most {limit} requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Stopping(RuntimeError):
    """Request that is refused because the engine is closing or closed."""


@dataclass(eq=False)
class Job:
    """Prompt that waits for the device.

    `listen` is called on the engine's thread and must return at once. It receives the samples so far, each time there
    are more, the last time with all of them finished; or an exception.
    """

    ask: Ask
    listen: Callable[[list[Sample] | Exception], None]
    cancelled: bool = field(default=False, init=False)


@dataclass(eq=False)
class Work:
    """Work other than completions, in parts: other requests run between two parts, and it can be cancelled there.
    `listen` receives each part, then `None`; or an exception, which is the last call."""

    parts: Iterator[Any]
    listen: Callable[[Any], None]
    cancelled: bool = field(default=False, init=False)


@dataclass(eq=False)
class _Batch:
    """Jobs that are answered together."""

    jobs: list[Job]
    parts: Iterator[list[list[Sample]]]
    started: float
    ended: list[bool]

    @property
    def finished(self) -> bool:
        return all(ended or job.cancelled for job, ended in zip(self.jobs, self.ended))


class Engine:
    """Answers prompts in batches; may be called from any thread.

    Jobs are answered in the order of arrival, in batches of jobs with the same shape as the first, up to `max_batch`
    continuations. Nothing joins a running batch; a job that is answered leaves it at once. A few tokens of the batch
    and a part of one `Work` take turns on the device, and so do all `Work`s among themselves.

    **Arguments:** `served`; `max_batch`, concurrent continuations; `max_queue`, jobs that may wait; `linger`, seconds
    that the first job waits for others to share its batch.
    """

    def __init__(self, served: Served, *, max_batch: int = 16, max_queue: int = 64, linger: float = 0.005):
        if max_queue < 1:
            raise ValueError(f"max_queue is {max_queue}; at least 1 request must be able to wait")
        self.served, self.max_queue, self.linger = served, max_queue, linger
        self.programs = Programs(served, max_batch)
        self.sampler = Sampler(served, max_batch, self.programs)
        self.scorer = Scorer(served, max_batch, self.programs)
        self._state = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._works: deque[Work] = deque()
        self._at_work: Work | None = None
        self._batch: _Batch | None = None
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
        """Return whether it accepts jobs."""
        return self._thread.is_alive() and not self._closed

    @property
    def stuck(self) -> bool:
        """Return whether it was closed and its thread still runs: a compilation cannot be interrupted."""
        return self._closed and self._thread.is_alive()

    @property
    def load(self) -> tuple[int, int]:
        """Numbers of waiting and of running jobs. A `Work` waits between its parts."""
        with self._state:
            running = [] if self._batch is None else [*zip(self._batch.jobs, self._batch.ended)]
            at_work = self._at_work is not None and not self._at_work.cancelled
            return (
                len(self._waiting) + len(self._works),
                sum(not job.cancelled and not ended for job, ended in running) + at_work,
            )

    def submit(self, jobs: Sequence[Job | Work]) -> None:
        """Queue jobs, all or none.

        **Raises:** `Busy` where they do not fit into the queue, `Stopping` after `close`."""
        with self._state:
            if not self.alive:
                raise Stopping("the server is stopping")
            waiting = len(self._waiting) + len(self._works)
            if waiting + len(jobs) > self.max_queue:
                batches = waiting / self.sampler.max_batch + 1
                raise Busy(waiting, self.max_queue, max(1, math.ceil(self._seconds * batches)))
            for job in jobs:
                self._works.append(job) if isinstance(job, Work) else self._waiting.append(job)
            self._state.notify_all()

    def cancel(self, jobs: Sequence[Job | Work]) -> None:
        """Cancel these jobs. Their listeners are not called again."""
        with self._state:
            for job in jobs:
                job.cancelled = True
            self._waiting = deque(job for job in self._waiting if not job.cancelled)
            self._works = deque(work for work in self._works if not work.cancelled)

    def stop(self) -> None:
        """Refuse new jobs, and tell all others `Stopping`, at once and from the caller's thread."""
        with self._state:
            self._closed = True
            left: list[Job | Work] = [*self._waiting, *self._works]
            left += [] if self._at_work is None else [self._at_work]
            if self._batch is not None:
                left += [job for job, ended in zip(self._batch.jobs, self._batch.ended) if not ended]
            self._waiting, self._works = deque(), deque()
            self._state.notify_all()
        for job in left:
            self._tell(job, Stopping("the server is stopping"))

    def close(self, timeout: float | None = None) -> bool:
        """Stop, and wait for the device's current step. May be called twice.

        **Arguments:** `timeout`, seconds to wait; None: until the step ends.
        **Returns:** whether it has ended."""
        self.stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._wait():
            self._step_batch()
            self._step_work()

    def _wait(self) -> bool:
        """Wait for something to do, and form the next batch if none is running. False when the engine is closed."""
        with self._state:
            self._state.wait_for(lambda: self._waiting or self._works or self._batch or self._closed)
            if self._batch is None and not self._works:
                self._state.wait_for(lambda: len(self._waiting) >= self.sampler.max_batch or self._closed, self.linger)
            if self._batch is None and self._waiting and not self._closed:
                self._batch = self._form()
            return not self._closed

    def _form(self) -> _Batch:
        first = self._waiting.popleft()
        group, room = self.sampler.group(first.ask), self.sampler.capacity(first.ask) - 1
        like = [job for job in self._waiting if self.sampler.group(job.ask) == group][:room]
        self._waiting = deque(job for job in self._waiting if job not in like)
        jobs = [first, *like]
        return _Batch(jobs, iter(self.sampler.run([job.ask for job in jobs])), time.monotonic(), [False] * len(jobs))

    def _step_batch(self) -> None:
        """A few tokens of the running batch."""
        batch = self._batch
        if batch is None:
            return
        try:
            samples = next(batch.parts, None)
            for i, (job, new) in enumerate(zip(batch.jobs, samples or ())):
                if not batch.ended[i]:
                    batch.ended[i] = all(sample.finish for sample in new)
                    self._tell(job, new)
        except Exception as error:
            log.exception("the device failed; the engine goes on")
            for job in batch.jobs:
                self._tell(job, error)
            samples = None
        if samples is None or batch.finished:
            with self._state:
                self._batch = None
            self._seconds += 0.3 * (time.monotonic() - batch.started - self._seconds)

    def _step_work(self) -> None:
        """A part of the first work in the queue, which then goes to its end."""
        with self._state:
            if not self._works:
                return
            work = self._at_work = self._works.popleft()
        part: Any
        try:
            part = next(work.parts, None)
        except Exception as error:
            log.exception("the device failed; the engine goes on")
            part = error
        with self._state:
            self._at_work = None
            if part is not None and not isinstance(part, Exception) and not work.cancelled and not self._closed:
                self._works.append(work)
        self._tell(work, part)

    def _tell(self, job: Job | Work, report: Any) -> None:
        """Call the listener. One that fails does not stop the others; none is called after `Stopping`."""
        if job.cancelled:
            return
        job.cancelled = isinstance(report, Stopping)
        try:
            job.listen(report)
        except Exception:
            log.debug("a listener has gone", exc_info=True)
            job.cancelled = True
