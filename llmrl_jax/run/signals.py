"""SIGINT and SIGTERM: the first requests that the run saves and stops, a SIGINT after either aborts it. SIGHUP, sent
when the terminal closes, is ignored."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def hangups_ignored() -> Iterator[None]:
    """Ignore SIGHUP in this context of the main thread, unless it is handled or ignored already."""
    hangup = getattr(signal, "SIGHUP", None)
    in_main = threading.current_thread() is threading.main_thread()
    if hangup is None or not in_main or signal.getsignal(hangup) != signal.SIG_DFL:
        yield
        return
    before = signal.signal(hangup, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(hangup, before)


class StopRequest:
    """Inside this context, signals set `name` instead of ending the process."""

    name: str = ""
    """`SIGINT` or `SIGTERM` once received; empty before."""
    aborted: bool = False
    """Whether a SIGINT was received after another signal. It interrupts only the main thread; other
    threads read this flag."""

    def _handle(self, number: int, frame: Any) -> None:
        if self.name and number == signal.SIGINT:
            self.aborted = True
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name

    def __enter__(self) -> StopRequest:
        self._stack = contextlib.ExitStack()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._stack.callback(signal.signal, number, signal.signal(number, self._handle))
        self._stack.enter_context(hangups_ignored())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
