"""Activity of the program at the moment (compiling, playing episodes, reading weights), and its display.

Code that may take over some seconds names its work with `doing`. That prints nothing unless a display is on: the
command line turns one on (`display`), which writes to stderr. On a terminal it is one line that is rewritten; into a
file or a pipe it is a plain line after `FIRST` seconds, and then every `EVERY` seconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


FIRST, EVERY = 5.0, 10.0
"""Seconds of work before its first plain line, and between plain lines."""
FLICKER = 1.0
"""Seconds of work before a line that is rewritten appears."""
TICK = 0.5
"""Seconds between looks at the work."""

Write = Callable[[str], None]
"""Shows a line of text; the empty text removes the line that is rewritten."""


def duration(seconds: float) -> str:
    """Seconds as `h:mm:ss`; `-:--:--` when unknown."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, seconds_left = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}"


@dataclass
class Activity:
    """A piece of work that is going on."""

    what: str
    total: int | None
    """Number of units of the whole work; None: unknown."""
    unit: str
    done: int = 0
    """Units done so far; the work itself updates it."""
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=time.monotonic)

    def text(self) -> str:
        """Activity and its progress, as a line."""
        return self.what if self.total is None else f"{self.what}: {self.done} of {self.total} {self.unit}"


_lock = threading.RLock()
_activities: list[Activity] = []
_displays: list[_Display] = []


@contextlib.contextmanager
def doing(what: str, total: int | None = None, unit: str = "") -> Iterator[Activity]:
    """Name the work of the block, for the display.

    **Arguments:** `what`, as in "compiling the update"; `total`, its number of units, whose name is `unit`.
    **Yields:** the activity, whose `done` the block updates.
    """
    activity = Activity(what, total, unit)
    with _lock:
        _activities.append(activity)
    try:
        yield activity
    finally:
        with _lock:
            _activities[:] = [a for a in _activities if a is not activity]
            if _displays:
                _displays[-1].clear()


def status() -> str:
    """The newest activity, after those of its thread that contain it, with its time; empty if there is none."""
    with _lock:
        if not _activities:
            return ""
        newest = _activities[-1]
        chain = [activity for activity in _activities if activity.thread == newest.thread]
    return f"{': '.join(a.text() for a in chain)} ({duration(time.monotonic() - newest.began)})"


class _Display(threading.Thread):
    """Writes the status from time to time. Only the newest display writes."""

    def __init__(self, write: Write, live: bool):
        super().__init__(name="llmrl-display", daemon=True)
        self.write, self.live = write, live
        self.printed_at = -math.inf
        self.drawn = False
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(TICK):
            with _lock:
                if _displays and _displays[-1] is self and _activities:
                    self._look(_activities[-1])

    def _look(self, newest: Activity) -> None:
        now = time.monotonic()
        age = now - newest.began
        if self.live and age >= FLICKER:
            self._write(status())
            self.drawn = True
        elif not self.live and age >= FIRST and now - self.printed_at >= EVERY:
            self._write(status())
            self.printed_at = now

    def clear(self) -> None:
        """Remove a line that is rewritten."""
        if self.drawn:
            self._write("")
        self.drawn = False

    def _write(self, text: str) -> None:
        try:
            self.write(text)
        except (OSError, ValueError, AttributeError):  # closed or missing: the work goes on without a display
            self.ended.set()


def say(text: str) -> None:
    """Print a line to stderr. If its reader is gone, or it is closed or missing, the work goes on without."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except ValueError:  # closed
        pass
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # else the rest of the line fails again when the process exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _rewritten(text: str) -> None:
    columns = shutil.get_terminal_size().columns  # a line that is broken cannot be rewritten
    print(f"\r\x1b[2K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


@contextlib.contextmanager
def display(write: Write | None = None, *, live: bool = True) -> Iterator[None]:
    """Display activities during the block.

    **Arguments:** `write`, called with the status: twice a second if `live`, else now and then. None: to stderr, as the
    module's docstring says; if another display is on, that one continues.
    """
    if write is None:
        live = _on_terminal()
        write = _rewritten if live else say
        if _displays:
            yield
            return
    shower = _Display(write, live)
    with _lock:
        if _displays:
            _displays[-1].clear()
        _displays.append(shower)
    shower.start()
    try:
        yield
    finally:
        shower.ended.set()
        with _lock:
            shower.clear()
            _displays[:] = [d for d in _displays if d is not shower]
        shower.join()


def quiet(text: str) -> None:
    """A `write` that shows nothing."""
