"""Threads of XLA's client for CPUs."""

from __future__ import annotations

import os


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spare_thread() -> None:
    """On one core, let XLA have two threads, by its environment variable `NPROC`, which it reads when jax computes for
    the first time; a value that is there is left.

    XLA has a thread for each core. A callback, such as a step of C MuJoCo, that began before its input was ready keeps
    one, and waits there for a copy that another one has to make: with one thread it waits for ever (jax 0.10.2;
    asynchronous dispatch switched off makes no difference).
    """
    if cores() == 1:
        os.environ.setdefault("NPROC", "2")
