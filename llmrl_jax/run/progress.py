"""What the terminal shows of a run: a live bar, or plain lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any


SHOWN: Mapping[str, str] = {"success": "success", "episode_return": "return"}
"""Metric -> its label beside the bar."""


def duration(seconds: float) -> str:
    """Seconds as `h:mm:ss`; `-:--:--` when unknown."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def count(n: float) -> str:
    """A number with three digits and a unit: 950, 12.3k, 1.20M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.3g}"


class Progress:
    """Shows steps/s, the chosen metrics and the time left of one run."""

    def __init__(self, mode: str, title: str, total: int, done: int = 0, shown: Mapping[str, str] = SHOWN):
        """**Arguments:** `mode`, of `RunConfig.progress`; `title`; `total` and `done`, updates; `shown`, labels."""
        if mode == "auto":
            mode = "bar" if sys.stdout.isatty() else "lines"
        self.mode, self.title, self.total, self.shown = mode, title, total, shown
        self._latest: dict[str, float] = {}
        self._start, self._first = time.monotonic(), done
        self._bar: Any = None
        if mode == "bar":
            from rich.progress import BarColumn, Progress as Bar, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Bar(*columns, transient=False)
            self._task = self._bar.add_task(title, total=total, completed=done, text="compiling")
            self._bar.start()
        elif mode == "lines":
            print(f"{title}: {total} updates, {done} done; compiling", flush=True)

    def restart_clock(self, done: int) -> None:
        """Measure the time left from here on (compilation is over)."""
        self._start, self._first = time.monotonic(), done

    def _text(self, done: int, steps_per_second: float) -> str:
        spent, made = time.monotonic() - self._start, done - self._first
        left = (self.total - done) * spent / made if made else math.inf
        parts = [f"{done}/{self.total}", f"{count(steps_per_second)} steps/s"]
        parts += [f"{label} {self._latest[name]:.3f}" for name, label in self.shown.items() if name in self._latest]
        return "  ".join([*parts, f"left {duration(left)}"])

    def advance(self, done: int, steps_per_second: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=self._text(done, steps_per_second))

    def report(self, line: Mapping[str, Any], steps_per_second: float) -> None:
        """A line of metrics was written."""
        for name in self.shown:
            if isinstance(line.get(name), float) and math.isfinite(line[name]):
                self._latest[name] = line[name]
        if self.mode == "lines" and line["kind"] == "train":
            print(f"{self.title}: {self._text(line['update'], steps_per_second)}", flush=True)
        else:
            self.advance(line["update"], steps_per_second)

    def say(self, text: str) -> None:
        """Print one sentence, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        elif self.mode != "off":
            print(text, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
