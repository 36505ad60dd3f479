"""What comes before the routes of `llmrl serve`: connections, heads, framing, host names; and what is counted after."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from llmrl_jax.serve import server
from llmrl_jax.serve.app import LOOPBACK
from llmrl_jax.serve.metrics import route_of
from tests.serving import CHAT, KEY, SCORE, TEXT, connect, eventually, everything, head, one_answer, post, serving


pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

pytest_plugins = ("tests.serving",)


def test_a_request_of_two_lengths_is_refused_and_its_connection_ends(url):
    for path in ("/v1/score", "/v1/nowhere", "/health"):
        with connect(url) as sock:
            sock.sendall(
                head(path, "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\nGET /health HTTP/1.1\r\n"
            )
            answer = everything(sock)
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
        assert b"Content-Length and Transfer-Encoding are both given" in answer


def test_a_path_with_a_slash_at_its_end_is_not_redirected(served, url):
    with connect(url) as sock:
        sock.sendall(head("/v1/score/", "Content-Length: 0", "Connection: close", host="evil.example"))
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 404 ") and b"evil.example" not in answer
    with serving(served, hosts=LOOPBACK) as ours, connect(ours) as sock:
        for path in ("/v1/score/", "/v1/nowhere", "/health"):
            sock.sendall(head(path, method="GET", host="evil.example"))
            assert one_answer(sock).startswith(b"HTTP/1.1 403 ")


def test_a_head_that_comes_slowly_is_cut_off(served, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.4)
    with serving(served) as url, connect(url) as silent, connect(url) as slow, connect(url) as good:
        started = time.monotonic()
        good.sendall(head("/health", method="GET"))
        assert one_answer(good).startswith(b"HTTP/1.1 200 ")
        slow.sendall(b"GET /health HTT")
        time.sleep(0.25)
        slow.sendall(b"P/1.1\r\nHost: x\r\n")  # a byte in time does not stop the clock
        good.sendall(head("/health", method="GET"))
        assert one_answer(good).startswith(b"HTTP/1.1 200 ")
        assert everything(slow).startswith(b"HTTP/1.1 408 ")
        assert everything(silent) == b""
        assert 0.35 < time.monotonic() - started < 3
        good.sendall(b"GET /hea")  # on a connection that has been used
        assert everything(good).startswith(b"HTTP/1.1 408 ")


def test_connections_have_a_limit(served, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 2)
    with serving(served) as url, connect(url) as first:
        first.sendall(b"GET")
        with connect(url) as second:
            second.sendall(b"GET")
            time.sleep(0.1)
            with connect(url) as third, pytest.raises(ConnectionError):
                third.sendall(head("/health", method="GET"))
                assert not everything(third)
                raise ConnectionResetError  # it was closed, or reset
        eventually(lambda: post(url, "/health", None)[0] == 200)


def test_what_is_counted_and_logged(served, caplog):
    parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra serve")
    logging.getLogger("llmrl_jax.serve.access").setLevel(logging.INFO)
    with serving(served, key=KEY) as url:
        assert post(url, "/v1/completions", TEXT | {"max_tokens": 3, "temperature": 0, "user": "SECRET"})[0] == 200
        assert post(url, "/v1/score", SCORE)[0] == 200
        assert post(url, "/v1/chat/completions", CHAT | {"max_tokens": 0})[0] == 400
        assert post(url, "/v1/SECRET?key=SECRET", {})[0] == 404
        assert post(url, "/metrics", None, key="wrong")[0] == 401
        with connect(url) as sock:
            sock.sendall(head("/metrics", "Connection: close", method="GET"))
            text = everything(sock)
    top, _, page = text.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200 ") and b"text/plain" in top
    found = {}
    for family in parser.text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    prompt = len(served.encode("go"))
    assert found["llmrl_requests_total", "/v1/completions", "200"] == 1
    assert found["llmrl_requests_total", "/v1/chat/completions", "400"] == 1
    assert found["llmrl_requests_total", "other", "404"] == 1
    assert found["llmrl_requests_total", "/metrics", "401"] == 1
    assert found["llmrl_tokens_total", "prompt"] == 2 * prompt and 1 <= found["llmrl_tokens_total", "completion"] <= 3
    assert found["llmrl_request_seconds_count", "/v1/score"] == 1
    assert found["llmrl_waiting",] == found["llmrl_running",] == 0 and found["llmrl_programs",] == 3
    lines = [r.getMessage() for r in caplog.records if r.name == "llmrl_jax.serve.access"]
    assert len(lines) == 6 and all(line.startswith("req_") for line in lines)
    assert " 127.0.0.1 POST /v1/completions 200 " in lines[0] and f"tokens {prompt} + " in lines[0]
    assert " POST other 404 " in lines[3] and " GET /metrics 401 " in lines[4]
    whole = caplog.text + page.decode()
    assert "SECRET" not in whole and KEY not in whole and "Colors" not in whole
    assert route_of("/v1/models/our/tiny") == "/v1/models/{name}"


def test_a_server_without_the_client_of_prometheus(served, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with serving(served) as url:
        status, _, answer = post(url, "/metrics", None)
        assert status == 501 and "prometheus_client" in answer["error"]["message"]
        assert post(url, "/v1/models", None)[0] == 200
