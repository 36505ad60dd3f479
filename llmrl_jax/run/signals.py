"""SIGINT and SIGTERM: the first requests that the run saves and stops, a SIGINT after either aborts it. SIGHUP, sent
when the terminal closes, is ignored."""

from __future__ import annotations

import signal
import threading
from typing import Any


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
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
            if getattr(signal, "SIGHUP", None) and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
