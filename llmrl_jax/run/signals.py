"""SIGINT and SIGTERM: the first asks the run to save and stop, a second SIGINT aborts it. SIGHUP, which a terminal
that goes away sends, ends no run."""

from __future__ import annotations

import signal
import threading
from typing import Any


class StopRequest:
    """Inside this context, signals set `name` in place of ending the process."""

    name: str = ""
    """`SIGINT` or `SIGTERM` once it came; empty before."""
    aborted: bool = False
    """Whether a second SIGINT came. Only the main thread is interrupted by it: others look here."""

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
