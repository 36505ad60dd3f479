"""The cache: what is asked, what is kept, who shares it, and what a file may look like."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from llmrl_jax.chat import (
    Cached,
    CacheError,
    ChatError,
    ChatReply,
    ChatRequest,
    Choice,
    Message,
    ReplayMiss,
    ServerError,
    Usage,
    read_jsonl,
)
from llmrl_jax.chat.protocol import settle
from llmrl_jax.chat.store import Store


def ask(text="Which way?", **fields):
    return ChatRequest((Message("user", text),), **fields)


class Counting:
    """Answers with a number that never comes twice, and remembers what it was asked."""

    name = "counting"

    def __init__(self, fail=(), gate=None):
        self.asked: list[ChatRequest] = []
        self.fail = set(fail)
        self.entered = threading.Semaphore(0)
        self.gate = gate
        self.count = 0

    def complete(self, requests):
        self.entered.release()
        if self.gate is not None:
            assert self.gate.wait(20)
        outcomes = []
        for request in requests:
            self.asked.append(request)
            if request.messages[-1].content in self.fail:
                outcomes.append(ServerError("no", status=500))
                continue
            self.count += request.n
            texts = range(self.count - request.n, self.count)
            outcomes.append(ChatReply(tuple(Choice(str(t)) for t in texts), "counting-1", Usage(10, 3 * request.n)))
        return settle(outcomes)


def texts(replies):
    return [[choice.text for choice in reply.choices] for reply in replies]


def test_a_question_is_asked_once(tmp_path):
    model = Counting()
    cached = Cached(model, tmp_path / "new" / "cache.sqlite")
    (first,) = cached.complete([ask()])
    (again,) = Cached(model, tmp_path / "new" / "cache.sqlite").complete([ask()])
    assert len(model.asked) == 1 and (first.cached, again.cached) == (0, 1)
    assert replace(again, cached=0) == first and cached.name == "counting"


def test_more_samples_ask_only_for_those(tmp_path):
    model = Counting()
    cached = Cached(model, tmp_path / "c")
    (five,) = cached.complete([ask(n=5)])
    (eight,) = cached.complete([ask(n=8)])
    (seventh,) = cached.complete([ask(sample=6)])
    assert [(r.n, r.sample) for r in model.asked] == [(5, 0), (3, 5)]
    assert texts([five, eight, seventh]) == [list("01234"), list("01234567"), ["6"]]
    assert eight.cached == 5 and eight.usage == Usage(20, 24)  # two prompts were billed, and eight samples


def test_a_hole_in_the_middle_is_filled(tmp_path):
    model = Counting()
    cached = Cached(model, tmp_path / "c")
    cached.complete([ask(sample=1, n=2)])
    (reply,) = cached.complete([ask(n=5)])
    assert [(r.n, r.sample) for r in model.asked] == [(2, 1), (1, 0), (2, 3)]
    assert [c.text for c in reply.choices] == ["2", "0", "1", "3", "4"]


def test_the_modes(tmp_path):
    path = tmp_path / "c"
    for mode in ("read", "replay"):
        with pytest.raises(CacheError, match="no cache.*mode write"):
            Cached(Counting(), path, mode)
    assert not path.exists()
    Cached(Counting(), path, "write").complete([ask("old")])
    before = path.read_bytes()
    for mode, asked in (("off", ["old", "new"]), ("read", ["new"])):
        model = Counting()
        Cached(model, path, mode).complete([ask("old"), ask("new")])
        assert [r.messages[0].content for r in model.asked] == asked
        assert len(Store(path)) == 1
    model = Counting()
    assert Cached(model, path, "replay").complete([ask("old")])[0].cached == 1
    assert Cached("counting", path, "replay").complete([ask("old")])[0].text == "0"
    assert model.asked == [] and path.read_bytes() == before
    with pytest.raises(ValueError, match="mode.*'refresh'"):
        Cached(model, path, "refresh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'counting'.*replay.*write"):
        Cached("counting", path, "write")


def test_a_replay_names_what_it_misses(tmp_path):
    Cached(Counting(), tmp_path / "c").complete([ask("old")])
    with pytest.raises(ReplayMiss, match="3.*'counting'.*7.*'who goes there'.*write") as caught:
        Cached("counting", tmp_path / "c", "replay").complete([ask("old"), ask("who goes there", seed=7, sample=3)])
    assert caught.value.outcomes[0].text == "0"


def test_namespaces_are_apart(tmp_path):
    model = Counting()
    got = [Cached(model, tmp_path / "c", namespace=n).complete([ask()])[0].text for n in ("", "a", "b", "a")]
    assert got == ["0", "1", "2", "1"]


def test_errors_are_never_kept_and_replies_beside_them_are(tmp_path):
    model = Counting(fail={"bad"})
    cached = Cached(model, tmp_path / "c")
    with pytest.raises(ServerError, match="no") as caught:
        cached.complete([ask("bad"), ask("good")])
    assert caught.value.outcomes[1].text == "0" and len(Store(tmp_path / "c")) == 1
    model.fail.clear()
    assert texts(cached.complete([ask("bad"), ask("good")])) == [["1"], ["0"]]
    assert [r.messages[0].content for r in model.asked] == ["bad", "good", "bad"]


def test_duplicates_in_a_batch_are_asked_once(tmp_path):
    model = Counting()
    replies = Cached(model, tmp_path / "c").complete([ask(), ask(n=2), ask()])
    assert [(r.n, r.sample) for r in model.asked] == [(1, 0), (1, 1)]
    assert texts(replies) == [["0"], ["0", "1"], ["0"]] and [r.cached for r in replies] == [0, 1, 1]


def together(cached, model, batches):
    """Ask all batches at once: the gate opens when every thread has asked for its own, so has seen the others' too."""
    got: list = [None] * len(batches)

    def run(i):
        try:
            got[i] = cached.complete(batches[i])
        except BaseException as error:
            got[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
        assert model.entered.acquire(timeout=20)
    model.gate.set()
    for thread in threads:
        thread.join(20)
    return got


@pytest.mark.parametrize("mode", ["write", "read"])
def test_threads_with_one_question_ask_it_once(tmp_path, mode):
    Store(tmp_path / "c")
    model = Counting(gate=threading.Event())
    got = together(Cached(model, tmp_path / "c", mode), model, [[ask("shared"), ask(str(i))] for i in range(8)])
    assert sorted(r.messages[0].content for r in model.asked) == [*map(str, range(8)), "shared"]
    assert len({shared.text for shared, _ in got}) == 1 and len({own.text for _, own in got}) == 8
    assert [shared.cached for shared, _ in got] == [0] + [1] * 7 and all(own.cached == 0 for _, own in got)


@pytest.mark.parametrize("error", [ServerError("no", status=500), KeyboardInterrupt()])
def test_who_waits_for_another_thread_hears_of_its_failure(tmp_path, error):
    class Failing(Counting):
        def complete(self, requests):
            replies = super().complete(requests)
            if requests[0].messages[0].content == "shared":
                raise error
            return replies

    model = Failing(gate=threading.Event())
    cached = Cached(model, tmp_path / "c")
    first, second = together(cached, model, [[ask("shared")], [ask("shared"), ask("own")]])
    assert type(first) is type(error)
    assert isinstance(second, ChatError) and isinstance(second.outcomes[1], ChatReply)
    assert ("no" if isinstance(error, ServerError) else "a reply") in str(second)
    assert cached._flying == {} and len(Store(tmp_path / "c")) == 1


WRITER = """
import sys
from llmrl_jax.chat import Cached, ChatReply, ChatRequest, Choice, Message
class Mine:
    name = "m"
    def complete(self, requests):
        return [ChatReply((Choice(sys.argv[2]),), "m") for _ in requests]
sys.stdin.readline()
cached = Cached(Mine(), sys.argv[1])
print("".join(cached.complete([ChatRequest((Message("user", str(i)),))])[0].text for i in range(40)))
"""


def test_processes_share_a_file(tmp_path):
    """Four begin together with no file, ask the same forty questions, and agree on every answer."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "c")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*command, name], **pipes) for name in "abcd"]
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    done = [process.communicate(timeout=60) for process in running]
    assert all(process.returncode == 0 for process in running), done
    answers = {out.strip() for out, _ in done}
    assert len(answers) == 1 and len(answers.pop()) == 40
    assert len(Store(tmp_path / "c")) == 40


def test_files_that_are_no_cache_are_refused(tmp_path):
    path = tmp_path / "c"
    path.write_text("This is a diary, and quite long enough to be taken for a header." * 3)
    with pytest.raises(CacheError, match="not a cache.*another file"):
        Store(path)
    other = tmp_path / "other"
    for content in (b"x", b"SQLite format 3", b"-" * 600):  # SQLite takes short files for empty ones
        other.write_bytes(content)
        for read_only in (False, True):
            with pytest.raises(CacheError, match="/other .*a cache"):
                Store(other, read_only=read_only)
        assert other.read_bytes() == content
    with pytest.raises(CacheError, match="other/cache"):
        Store(other / "cache")
    with mock.patch.object(Path, "stat", side_effect=PermissionError(13, "Permission denied")):
        with pytest.raises(CacheError, match="/c .Permission denied.*another"):
            Store(path)
    with pytest.raises(CacheError, match="unable to"):
        Store(tmp_path)
    with pytest.raises(CacheError, match="nowhere.*No such file"):
        read_jsonl(tmp_path / "nowhere")
    other.write_bytes(b"")
    Store(other)
    for statement, match in (("CREATE TABLE cats (x)", "something else"), ("CREATE TABLE samples (x)", "format 0")):
        other.unlink(missing_ok=True)
        with sqlite3.connect(other) as db:
            db.execute(statement)
        db.close()
        with pytest.raises(CacheError, match=match):
            Store(other)


LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # the bytes that a reader of SQLite's locks
    except OSError:
        print("locked")
"""


def test_a_second_store_of_a_file_keeps_the_locks_of_the_first(tmp_path):
    """On POSIX, closing any descriptor of a file drops all of the process's locks on it."""
    path = tmp_path / "c"

    def locked():
        return subprocess.run(
            [sys.executable, "-ISc", LOCKED, str(path)], capture_output=True, text=True
        ).stdout.strip()

    first = Store(path)
    assert locked() == ""
    with first._connect() as db:
        db.execute("SELECT count(*) FROM samples").fetchone()
        assert locked() == "locked"
        Store(path), Store(path, read_only=True)
        assert locked() == "locked"


def test_a_damaged_reply_is_named(tmp_path):
    Cached(Counting(), tmp_path / "c").complete([ask()])
    with sqlite3.connect(tmp_path / "c") as db:
        db.execute("UPDATE samples SET reply = '{\"choices\": 3}'")
    db.close()
    with pytest.raises(CacheError, match="/c .*[0-9a-f]{64}"):
        Cached("counting", tmp_path / "c", "replay").complete([ask()])


def test_a_published_file_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    Cached(Counting(), tmp_path / "c").complete([ask()])
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert Cached("counting", tmp_path / "c", "replay").complete([ask()])[0].text == "0"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
