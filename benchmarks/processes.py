"""Peers that compute on one core, in one process and in as many as there are cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import REPEATS, Row


Work = Callable[..., Iterator[float | None]]
"""`work(seed, *args)` does a piece of work each time it is advanced, and yields its amount; None for a piece that is
not part of the measurement, such as a reset that ours takes from a pool. A function at the top of its module."""


def names(count: int) -> str:
    """`1 process`, `2 processes`."""
    return f"{count} process{'' if count == 1 else 'es'}"


def rate(pieces: Iterator[float | None], window: float) -> float:
    """Amounts per second over at least `window` seconds of measured pieces."""
    amount = spent = 0.0
    while spent < window:
        started = time.perf_counter()
        done = next(pieces)
        if done is not None:
            amount, spent = amount + done, spent + time.perf_counter() - started
    return amount / spent


def _serve(pipe: Any, work: Work, seed: int, args: tuple[Any, ...]) -> None:
    """Answer each window asked for with the rate in it, until there is none. What the work prints is discarded."""
    with contextlib.suppress(EOFError), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        pieces = work(seed, *args)
        while True:
            pipe.send(rate(pieces, pipe.recv()))


def together(work: Work, args: tuple[Any, ...], count: int, window: float, warmup: float) -> list[float]:
    """Samples of amounts per second of `count` processes at once, each with a seed of its own: the sums of their rates
    in windows that begin at the same time."""
    context = multiprocessing.get_context("spawn")  # XLA's threads do not survive a fork
    pipes, workers = [], []
    for seed in range(count):
        mine, theirs = context.Pipe()
        workers.append(context.Process(target=_serve, args=(theirs, work, seed, args)))
        workers[-1].start()
        theirs.close()
        pipes.append(mine)
    samples = []
    try:
        for span in (warmup, *[window] * REPEATS):
            for pipe in pipes:
                pipe.send(span)
            samples.append(sum(pipe.recv() for pipe in pipes))
    except EOFError:
        raise RuntimeError(f"a process of {work.__module__}.{work.__name__} failed; its error is above") from None
    finally:
        for pipe, worker in zip(pipes, workers):
            pipe.close()
            worker.join(10)
            worker.kill()
    return samples[1:]


def peer_rows(
    case: str, who: str, unit: str, work: Work, args: tuple[Any, ...], *, window: float, note: str = ""
) -> list[Row]:
    """A row of one process, and one of as many as there are cores; the faster of them counts.

    **Arguments:** `window`, seconds of a sample; `note`, added to the number of processes.
    """
    cores = len(os.sched_getaffinity(0))
    rows = []
    for count in sorted({1, cores}):
        samples = together(work, args, count, window, warmup=window / 2)
        rows.append(Row(case, who, unit, samples, None, "; ".join(filter(None, (names(count), note)))))
    return rows
