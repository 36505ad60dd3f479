"""Progress of a run on the terminal: a live bar, or plain lines without a terminal. Both also show what takes long
between updates, such as compilation (`llmrl_jax.core.activity`)."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from llmrl_jax.core import activity
from llmrl_jax.core.activity import duration


SHOWN: Mapping[str, str] = {"success": "success", "episode_return": "return"}
"""Metric -> its label beside the bar."""


def count(n: float) -> str:
    """A number with three digits and a unit: 950, 12.3k, 1.20M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.3g}"


def _on_terminal() -> bool:
    """Return whether stdout is a terminal. It may also be missing (`llmrl ... >&-`), or closed."""
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False


def mute_stdout() -> None:
    """Discard further output, because stdout cannot be written."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # missing, not a file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stdout_has_no_reader() -> bool:
    """Return whether stdout is a pipe whose reader has ended, as in `llmrl ... | head`."""
    try:
        sys.stdout.flush()
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except BrokenPipeError:
        return True
    except (AttributeError, OSError, ValueError):  # missing, closed, not a file, or a system without poll
        return False


class Progress:
    """Shows the speed, the chosen metrics and the remaining time of one run. If the terminal or the pipe is closed, the
    run continues without a display."""

    def __init__(
        self,
        mode: str,
        title: str,
        total: int,
        start_update: int = 0,
        shown: Mapping[str, str] = SHOWN,
        unit: str = "steps",
    ):
        """**Arguments:** `mode`, of `RunConfig.progress`; `title`; `total`, `start_update`: updates; `shown`, labels;
        `unit`, of the speed."""
        if mode == "auto":
            mode = "bar" if _on_terminal() else "lines"
        self.mode, self.title, self.total, self.shown, self.unit = mode, title, total, shown, unit
        self._latest: dict[str, float] = {}
        self._start, self._first = time.monotonic(), start_update
        self._bar: Any = None
        self._display = contextlib.ExitStack()
        if mode == "bar":
            from rich.console import Console
            from rich.progress import BarColumn, Progress as Bar, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            console = Console()
            # rich's handler ends the process; the thread that redraws the bar may call it
            console.on_broken_pipe = lambda: self._switch_off("Broken pipe")  # type: ignore[method-assign]
            self._bar = Bar(*columns, console=console, transient=False)
            self._task = self._bar.add_task(title, total=total, completed=start_update, text="compiling")
            self._try(self._bar.start)
            self._display.enter_context(activity.display(self._show_activity, live=True))
        elif mode == "lines":
            self._print(f"{title}: {total} updates, {start_update} done; compiling")
            self._display.enter_context(activity.display())
        else:
            self._display.enter_context(activity.display(activity.quiet))

    def _show_activity(self, text: str) -> None:
        self._try(lambda: self._bar.update(self._task, text=text))

    def _try(self, show: Callable[[], None]) -> None:
        """Call `show`; if it cannot write, switch the display off."""
        try:
            show()
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) and "closed" not in str(error):
                raise
            self._switch_off(str(error))

    def _print(self, text: str) -> None:
        self._try(lambda: print(text, flush=True))

    def _switch_off(self, reason: str) -> None:
        if self.mode == "off":
            return
        self.mode = "off"
        if self._bar is not None:
            self._bar.console.quiet = True
        mute_stdout()
        stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # a live bar replaces it
        with contextlib.suppress(OSError, ValueError):
            print(f"{self.title}: stdout cannot be written ({reason}); the run continues without it", file=stderr)

    def restart_clock(self, update: int) -> None:
        """Measure the remaining time from now on (compilation is over)."""
        self._start, self._first = time.monotonic(), update

    def _text(self, update: int, steps_per_second: float) -> str:
        spent, updates = time.monotonic() - self._start, update - self._first
        left = (self.total - update) * spent / updates if updates else math.inf
        parts = [f"{update}/{self.total}", f"{count(steps_per_second)} {self.unit}/s"]
        parts += [f"{label} {self._latest[name]:.3f}" for name, label in self.shown.items() if name in self._latest]
        return "  ".join([*parts, f"left {duration(left)}"])

    def advance(self, reached: int, steps_per_second: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            text = self._text(reached, steps_per_second)
            self._try(lambda: self._bar.update(self._task, completed=reached, text=text))

    def report(self, line: Mapping[str, Any], steps_per_second: float) -> None:
        """Show a line of metrics that was written."""
        for name in self.shown:
            if isinstance(line.get(name), float) and math.isfinite(line[name]):
                self._latest[name] = line[name]
        if self.mode == "lines" and line["kind"] == "train":
            self._print(f"{self.title}: {self._text(line['update'], steps_per_second)}")
        else:
            self.advance(line["update"], steps_per_second)

    def say(self, text: str) -> None:
        """Print one sentence, above the bar if there is one."""
        if self._bar is not None:
            self._try(lambda: self._bar.console.print(text, markup=False, highlight=False))
        elif self.mode != "off":
            self._print(text)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._display.close()
        if self._bar is not None:
            self._try(self._bar.stop)
