"""`llmrl serve` under strain: keys, limits, full queues, clients that leave, faults, and its end."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from envs_jax.extras import install
from llmrl_jax import lm
from llmrl_jax.chat.client import read_key
from llmrl_jax.cli import main as cli
from llmrl_jax.serve import (
    Ask,
    Busy,
    Engine,
    Job,
    Limits,
    Sampling,
    Stopping,
    Work,
    background,
    make_app,
    server,
)
from llmrl_jax.serve.app import LOOPBACK
from llmrl_jax.serve.server import is_loopback, listen, url_of
from tests.serving import (
    CHAT,
    HELLO,
    KEY,
    LIMITS,
    SCORE,
    TEXT,
    connect,
    eventually,
    everything,
    head,
    post,
    serving,
    slow,
)


openai = pytest.importorskip("openai", reason="needs the extra api")
pytest.importorskip("tenacity", reason="needs the extra api")
pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

pytest_plugins = ("tests.serving",)


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {KEY}", KEY, "Bearer ", f"Bearer {KEY}x", "Bearer ké"])
def test_a_request_without_the_key_is_turned_away(url, given, caplog):
    given = given if given is None else given.encode("latin-1")
    status, headers, answer = post(url, "/v1/models", None, Authorization=given)
    assert status == 401 and answer["error"]["code"] == "invalid_api_key" and headers["www-authenticate"] == "Bearer"
    assert KEY not in json.dumps(answer) and KEY not in caplog.text


def test_health_needs_no_key(url):
    assert post(url, "/health", None, Authorization=None)[::2] == (200, {"status": "ok"})


@pytest.mark.parametrize("size", [20_001, 200_000, 4_000_000])
def test_a_body_that_is_too_long(client, size):
    with pytest.raises(openai.APIError) as caught:
        client.completions.create(model="our/tiny", prompt="a" * size)
    if size < 16 * LIMITS.request_bytes:  # a flood is cut off
        assert caught.value.status_code == 413 and "20000 bytes" in str(caught.value)


def test_a_body_that_does_not_come(url):
    with socket.create_connection(url.removeprefix("http://").removesuffix("/v1").split(":")) as sock:
        head = (
            f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        )
        sock.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        sock.settimeout(10)
        assert b" 408 " in sock.recv(1000)


def test_a_queue_that_is_full_says_when_to_come_back(client, engine):
    client.completions.create(model="our/tiny", prompt="go", max_tokens=2)  # compiled before clients count seconds
    with slow(engine), ThreadPoolExecutor(8) as pool:

        def one(n):  # another number of continuations is another group
            return client.with_options(timeout=3).completions.create(model="our/tiny", prompt="go", n=n, max_tokens=2)

        first = pool.submit(one, 1)
        eventually(lambda: engine.load == (0, 1))
        rest = [pool.submit(one, 2) for _ in range(4)]
        eventually(lambda: engine.load == (4, 1))
        with pytest.raises(openai.RateLimitError) as caught:
            one(2)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert "at most 4" in str(caught.value)
        # they give up, and what they waited for is forgotten
        for future in (first, *rest):
            with pytest.raises(openai.APITimeoutError):
                future.result()
        eventually(lambda: engine.load == (0, 0))
    assert client.completions.create(model="our/tiny", prompt="go", max_tokens=2).usage.completion_tokens <= 2


def test_as_many_requests_as_may_be_at_work(served):
    with (
        serving(served, limits=Limits(requests=1)) as url,
        openai.OpenAI(base_url=url, api_key="x", max_retries=0) as c,
    ):
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(
                b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            time.sleep(0.2)
            with pytest.raises(openai.RateLimitError, match="1 requests"):
                c.completions.create(model="our/tiny", prompt="go", max_tokens=2)
            assert [model.id for model in c.models.list()] == ["our/tiny"]  # what only looks is answered
            with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as page:
                assert page.status == 200
        eventually(lambda: post(url, "/v1/completions", TEXT | {"model": "other"})[0] == 404)


def test_an_extra_that_is_missing_is_found_before_the_model_is_loaded(monkeypatch, capfd):
    for name in ("starlette", "uvicorn", "h11"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, name, None)
            missing.setattr("llmrl_jax.serve.served.Served.load", None)
            assert cli.main(["serve", "--model", "tiny", "--port", "0"]) == 2
        errors = capfd.readouterr().err
        assert f"serving needs {name}, of the extra `serve`: {install('serve')}" in errors and errors.count("\n") == 1


def test_a_text_that_is_still_read_holds_nobody_up(served, monkeypatch, caplog):
    """A client that leaves, one that waits while the server stops, and the thread that is in the tokenizer."""
    monkeypatch.setattr(server, "GRACE", 0.2)
    engine, release, begun = Engine(served, max_batch=4, max_queue=4), threading.Event(), []

    def encode(prompt, candidate, tokens):
        begun.append(candidate)
        release.wait(20)
        return type(engine.scorer).encode(engine.scorer, prompt, candidate, tokens)

    engine.scorer.encode = encode
    app = make_app(engine)
    with ThreadPoolExecutor(1) as pool:
        with background(app) as url:
            with connect(url) as sock:
                sock.sendall(head("/v1/score", body=json.dumps(SCORE | {"candidates": ["a", "b"]}).encode()))
                eventually(lambda: begun == ["a"])
            eventually(lambda: not app.state.readers._open)  # it has left
            waiting = pool.submit(post, url, "/v1/score", SCORE | {"candidates": ["c", "d"]})
            eventually(lambda: begun == ["a", "c"])
            started = time.monotonic()
        assert time.monotonic() - started < 2 and app.state.readers.busy
        status, _, answer = waiting.result()
    assert status == 503 and answer["error"]["message"] == "the server is stopping"
    release.set()
    eventually(lambda: not app.state.readers.busy)
    assert begun == ["a", "c"], "neither thread goes on to its second candidate"
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_a_client_that_hangs_up_stops_the_device(client, engine):
    with slow(engine):
        stream = client.chat.completions.create(model="our/tiny", messages=HELLO, max_tokens=60, stream=True)
        next(iter(stream))
        assert engine.load == (0, 1)
        stream.close()
        eventually(lambda: engine.load == (0, 0))
        # and one that waits for the whole
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(model="our/tiny", messages=HELLO)
        eventually(lambda: engine.load == (0, 0))
    client.completions.create(model="our/tiny", prompt="go", max_tokens=2)


def test_a_fault_of_ours_is_not_told(client, engine, caplog):
    def run(asks):
        raise RuntimeError("secret path /somewhere")
        yield

    def late(asks):
        yield from itertools_first(type(engine.sampler).run(engine.sampler, asks))
        raise RuntimeError("secret path /somewhere")

    logging.getLogger("llmrl_jax.serve").setLevel(logging.INFO)
    engine.sampler.run = run
    try:
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="our/tiny", prompt="go")
        engine.sampler.run = late
        stream = client.completions.create(model="our/tiny", prompt="go", max_tokens=40, stream=True)
        with pytest.raises(openai.APIError, match="log.*req_"):
            list(stream)
    finally:
        del engine.sampler.run
    body = caught.value.response.text
    assert "secret" not in body and "Traceback" not in body and caught.value.request_id in body
    assert "secret path" in caplog.text and caught.value.request_id in caplog.text and KEY not in caplog.text
    assert client.completions.create(model="our/tiny", prompt="go", max_tokens=2).choices


def itertools_first(found):
    yield [[dataclasses.replace(s, finish="") for s in samples] for samples in next(iter(found))]


def test_a_server_that_stops_tells_those_who_wait(served):
    engine = Engine(served, max_batch=4, max_queue=4)
    heard: queue.Queue = queue.Queue()
    ask = Ask((1, 2), Sampling(60, seed=1))
    endless = (time.sleep(0.01) for _ in iter(int, 1))
    with slow(engine):
        jobs = [Job(ask, lambda what, i=i: heard.put((i, what))) for i in range(2)]
        jobs.append(Job(dataclasses.replace(ask, sampling=Sampling(3, n=2)), lambda what: heard.put((2, what))))
        jobs.append(Work((3 for _ in endless), lambda what: heard.put((3, what))))
        engine.submit(jobs)
        told: dict = {}
        while set(told) != {0, 1, 3}:  # a batch and other work take turns; the third prompt is of another group
            i, what = heard.get(timeout=20)
            told[i] = what
        assert isinstance(told[0], list) and told[3] == 3
        with pytest.raises(Busy, match="at most 4"):
            engine.submit([Work(iter([]), print)] * 3)
        assert engine.close() and engine.close()
    while not heard.empty():
        i, what = heard.get()
        told[i] = what
    assert {i: type(what) for i, what in told.items()} == dict.fromkeys(range(4), Stopping)
    assert not engine.alive and not engine.stuck
    with pytest.raises(Stopping):
        engine.submit(jobs[:1])
    with background(make_app(engine)) as url:
        assert post(url, "/health", None)[::2] == (503, {"status": "stopping"})
        status, headers, answer = post(url, "/v1/completions", TEXT)
        assert (
            status == 503 and headers["retry-after"] == "1" and answer["error"]["message"] == "the server is stopping"
        )


def test_an_answer_in_progress_ends_with_an_error_when_the_server_stops(served, monkeypatch, caplog):
    monkeypatch.setattr(server, "GRACE", 0.4)
    engine = Engine(served, max_batch=4, max_queue=4)
    with slow(engine), ThreadPoolExecutor(2) as pool:
        with background(make_app(engine)) as url:
            stream, late = connect(url), connect(url)
            stream.sendall(head("/v1/completions", body=json.dumps(TEXT | {"stream": True}).encode()))
            assert stream.recv(1000).startswith(b"HTTP/1.1 200 ")
            whole = pool.submit(post, url, "/v1/completions", TEXT | {"n": 2})
            late.sendall(head("/v1/completions", "Content-Length: 9"))  # its body does not come
            eventually(lambda: engine.load == (1, 1))
            started = time.monotonic()
        assert time.monotonic() - started < server.GRACE + server.CUT + 2 < 5
        with stream, late:
            text = everything(stream)
        status, _, answer = whole.result()
    assert b'"message": "the server is stopping"' in text and b"data: [DONE]" in text
    assert status == 503 and answer["error"]["message"] == "the server is stopping"
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR] and not engine.alive


def test_a_device_that_does_not_answer_is_left_behind(served):
    engine, release, heard = Engine(served, max_batch=4), threading.Event(), queue.Queue()

    def run(asks):  # as in a compilation
        release.wait(20)
        yield from ()

    engine.sampler.run = run
    engine.submit([Job(Ask((1,), Sampling(2)), heard.put)])
    eventually(lambda: engine.load == (0, 1))
    assert not engine.close(0.05) and engine.stuck and not engine.alive
    assert isinstance(heard.get(timeout=1), Stopping)  # at once, although the device is busy
    release.set()
    assert engine.close(10) and not engine.stuck and heard.empty()


def test_scoring_is_cancelled_when_its_client_leaves_and_lets_others_through(served, url, engine):
    whole, pieces = engine.scorer.run, []

    def run(pairs):
        while True:
            for part in whole(pairs[:1]):
                pieces.append(part)
                time.sleep(0.02)
                yield part

    engine.scorer.run = run
    try:
        with connect(url) as sock:
            sock.sendall(head("/v1/score", body=json.dumps(SCORE).encode()))
            eventually(lambda: len(pieces) > 2)
            assert post(url, "/v1/completions", TEXT | {"max_tokens": 20})[0] == 200
            assert sum(engine.load) == 1
        eventually(lambda: engine.load == (0, 0))
    finally:
        del engine.scorer.run


def test_only_by_its_own_name(served):
    with serving(served, hosts=LOOPBACK) as url:
        assert post(url, "/v1/models", None)[0] == 200
        assert post(url, "/v1/models", None, Host="localhost:99")[0] == 200
        for host in ("evil.example", "evil.example:8000", "[", ""):
            status, _, answer = post(url, "/v1/models", None, Host=host)
            assert status == 403 and "must be 127.0.0.1 or ::1 or localhost" in answer["error"]["message"]


def test_a_model_that_is_not_chatted_with(served):
    with serving(dataclasses.replace(served, template=None)) as url:
        status, _, answer = post(url, "/v1/chat/completions", CHAT)
        assert status == 400 and "has no chat template; request" in answer["error"]["message"]


def test_addresses_and_keys(monkeypatch):
    assert [is_loopback(h) for h in ("127.0.0.1", "127.8.0.1", "::1", "localhost")] == [True] * 4
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "", "10.0.0.1", "my.host")] == [False] * 5
    monkeypatch.setenv("A_KEY", "two words")
    with pytest.raises(ValueError, match="A_KEY"):
        read_key("A_KEY", "that requests will bear")
    monkeypatch.setenv("A_KEY", "")
    with pytest.raises(ValueError, match="A_KEY.*empty"):
        read_key("A_KEY", "that requests will bear")
    assert read_key("", "of nobody") == ""
    with listen("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()) as caller:
        taken, _ = sock.accept()
        with taken:  # what asyncio goes by to send at once
            assert taken.proto == socket.IPPROTO_TCP and caller
    with listen("127.0.0.1", 0) as sock, pytest.raises(ValueError, match="127.0.0.1 port"):
        listen("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(ValueError, match="port.*99999"):
        listen("127.0.0.1", 99_999)
    with pytest.raises(ValueError, match="request_bytes.*0"):
        Limits(request_bytes=0)


def test_the_command(served, tmp_path, capfd, monkeypatch):
    lm.save_hf(tmp_path / "tiny", served.model.config, served.variables["params"])
    served.tokenizer.save(tmp_path / "tiny")
    model = ["serve", "--model", str(tmp_path / "tiny")]
    assert cli.main([*model, "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "0.0.0.0" in capfd.readouterr().err
    monkeypatch.delenv("NO_KEY", raising=False)
    assert cli.main([*model, "--key-variable", "NO_KEY"]) == 2
    assert "NO_KEY is empty" in capfd.readouterr().err
    assert cli.main(["serve", "--model", str(tmp_path / "nowhere"), "--port", "0"]) == 2
    assert "model folder" in capfd.readouterr().err
    for flag, value in (("--max-batch", "0"), ("--max-queue", "-1"), ("--max-pairs", "0"), ("--context", "-1")):
        assert cli.main([*model, flag, value]) == 2
        assert f"{flag} is {value}; " in capfd.readouterr().err
    assert cli.main(["serve", "--model", ""]) == 2
    assert "--model is empty" in capfd.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["serve", "--model", str(tmp_path / "empty"), "--port", "0"]) == 2
    errors = capfd.readouterr().err
    assert "config.json" in errors and errors.count("\n") == 1

    sockets, said, over = [], [], threading.Event()
    monkeypatch.setattr(server, "listen", lambda *at: sockets.append(listen(*at)) or sockets[-1])
    model += ["--context", "64", "--max-batch", "1", "--warm-up", "--access-log"]

    def ask():
        try:
            eventually(lambda: sockets or over.is_set(), 30)
            url = url_of(sockets[0])
            said.append(post(url, "/v1/completions", {"model": "tiny", "prompt": "go", "max_tokens": 2}, key="x"))
        finally:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    before, exits = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr(Engine, "stuck", property(lambda engine: True))  # as in a compilation
    monkeypatch.setattr(os, "_exit", exits.append)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            assert cli.main([*model, "--port", "0"]) == 0
        finally:
            over.set()
        asking.result()
    assert signal.getsignal(signal.SIGTERM) is before
    assert said[0][0] == 200 and exits == [0]
    printed, log = capfd.readouterr()
    assert " 127.0.0.1 POST /v1/completions 200 " in log
    first, _, printed = printed.partition("compiled 5 programs\n")
    assert first.startswith("compiling 1 of 5 (") and first.count("\n") == 5
    assert printed.startswith("tiny (") and " answers at http://127.0.0.1:" in printed
    assert "(no chat template: no /v1/chat/completions)\nstopped\n" in printed


def test_without_the_extra(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(ModuleNotFoundError, match="`serve`"):
        make_app(engine)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModuleNotFoundError, match="uvicorn"), background(None):
        pass
