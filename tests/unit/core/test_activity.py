from __future__ import annotations

import io
import os
import sys
import threading
import time

import pytest

from llmrl_jax.core import activity
from llmrl_jax.core.activity import display, doing, duration, quiet, status


@pytest.fixture
def fast(monkeypatch):
    """Every look writes."""
    monkeypatch.setattr(activity, "TICK", 0.001)
    monkeypatch.setattr(activity, "FIRST", 0.0)
    monkeypatch.setattr(activity, "FLICKER", 0.0)


def wait_for(condition) -> None:
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_durations():
    assert [duration(s) for s in (0, 59.6, 3600, 36000, float("nan"))] == [
        "0:00:00",
        "0:01:00",
        "1:00:00",
        "10:00:00",
        "-:--:--",
    ]


def test_the_status_names_the_newest_work_and_what_contains_it():
    assert status() == ""
    with doing("glam: go_to"), doing("sampled", 1000, "episodes") as played:
        played.done = 120
        assert status() == "glam: go_to: sampled: 120 of 1000 episodes (0:00:00)"
        with doing("compiling") as inner:
            inner.began -= 75
            assert status() == "glam: go_to: sampled: 120 of 1000 episodes: compiling (0:01:15)"
        assert status().endswith("episodes (0:00:00)")
    assert status() == ""


def test_work_of_another_thread_does_not_contain_ours():
    with doing("ours"):
        begun, end = threading.Event(), threading.Event()

        def work():
            with doing("theirs"):
                begun.set()
                end.wait()

        other = threading.Thread(target=work)
        other.start()
        begun.wait()
        assert status().startswith("theirs (")
        end.set()
        other.join()
        assert status().startswith("ours (")


def test_plain_lines_come_after_some_seconds_and_then_now_and_then():
    said: list[str] = []
    shown = activity._Display(said.append, live=False)
    with doing("compiling") as work:
        work.began -= activity.FIRST - 0.1
        shown._look(work)
        assert said == []
        work.began -= 0.2
        shown._look(work)
        assert said == ["compiling (0:00:05)"]
        shown._look(work)
        assert len(said) == 1
        shown.printed_at -= activity.EVERY
        shown._look(work)
        assert len(said) == 2


def test_a_pipe_gets_lines_on_stderr_only(fast, capsys):
    with display(), doing("compiling"):
        wait_for(lambda: len(activity._displays) == 1 and activity._displays[0].printed_at > 0)
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[0] == "compiling (0:00:00)" and "\r" not in err
    assert activity._displays == []


def test_a_terminal_gets_one_line_which_is_removed(fast, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "21")
    with display():
        with doing("compiling"):
            wait_for(lambda: activity._displays[0].drawn)
        assert not activity._displays[0].drawn
    written = capsys.readouterr().err
    assert written.startswith("\r\x1b[2Kcompiling (0:00:00)") and written.endswith("\r\x1b[2K") and "\n" not in written
    assert activity._rewritten("compiling a long name") is None
    assert capsys.readouterr().err == "\r\x1b[2Kcompiling a long nam"


def test_the_newest_display_writes(fast):
    outer: list[str] = []
    inner: list[str] = []
    with display(outer.append), display(inner.append):
        with doing("training"):
            wait_for(lambda: len(inner) > 2)
        assert inner[-1] == "" and not outer
    with display(outer.append), display(quiet), doing("training"):
        wait_for(lambda: activity._displays[-1].drawn)
    assert not outer


def test_the_work_goes_on_if_nothing_can_be_written(fast):
    def closed(text):
        raise ValueError("I/O operation on closed file")

    with display(closed):
        with doing("training"):
            wait_for(lambda: activity._displays[0].ended.is_set())
        with doing("testing"):
            pass


def test_a_line_that_no_reader_takes_is_dropped(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    activity.say("missing")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    activity.say("closed")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        activity.say("a note")
        activity.say("another")
