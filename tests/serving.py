"""Our server over loopback, for the tests that ask it: a tiny random Llama, its engine, and its address."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import time
from contextlib import contextmanager

import pytest

from llmrl_jax import lm
from llmrl_jax.serve import (
    Engine,
    Limits,
    Served,
    background,
    make_app,
)
from llmrl_jax.tuning import ChatTemplate
from tests.lm_random import random_variables


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
CONFIG = lm.LlamaConfig(420, 16, 24, 2, 2, 1, max_position_embeddings=256)
KEY = "key-0123456789abcdef"
LIMITS = Limits(
    request_bytes=20_000, requests=12, body_seconds=1.0, score_pairs=30, score_tokens=400, default_tokens=10
)
HELLO = [{"role": "user", "content": "Colors: red"}]
CHAT = {"model": "our/tiny", "messages": HELLO}
TEXT = {"model": "our/tiny", "prompt": "go"}
SCORE = {"model": "our/tiny", "prompt": "go", "candidates": ["a"]}


@pytest.fixture(scope="session")
def served(bpe):
    config = dataclasses.replace(CONFIG, vocab_size=bpe.vocab_size, eos_token_id=bpe.eos_id)
    model = lm.Llama(config, unroll=1)
    variables = {"params": random_variables(model)["params"]}
    return Served("our/tiny", model, variables, bpe, ChatTemplate(TEMPLATE, {}))


@pytest.fixture(scope="session")
def engine(served):
    with Engine(served, max_batch=4, max_queue=4) as engine:
        yield engine


@pytest.fixture(scope="session")
def url(engine):
    with background(make_app(engine, key=KEY, limits=LIMITS)) as url:
        yield url


@pytest.fixture(scope="session")
def client(url):
    openai = pytest.importorskip("openai", reason="needs the extra api")
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@contextmanager
def serving(served, *, engine=None, **options):
    with engine or Engine(served, max_batch=4, max_queue=4) as engine, background(make_app(engine, **options)) as url:
        yield url


@contextmanager
def slow(engine, seconds=0.05):
    """The engine, with batches that take their time and never end by themselves."""
    whole = engine.sampler.run

    def run(asks):
        while True:
            for found in whole(asks):
                yield [[dataclasses.replace(s, finish="") for s in samples] for samples in found]
                time.sleep(seconds)

    engine.sampler.run = run
    try:
        yield
    finally:
        del engine.sampler.run


def post(url, path, body, key=KEY, **headers):
    """A request by hand: `(status, headers, body)`."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **headers}
        head = {name.replace("_", "-"): value for name, value in head.items() if value is not None}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request("POST" if body is not None else "GET", path, content, head)
        answer = connection.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())
    finally:
        connection.close()


def connect(url):
    """A connection for requests by hand."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def head(path, *more, method="POST", host="x", body=b""):
    """The bytes of a request: its head, with the key, and its body."""
    more = [f"Content-Length: {len(body)}", *more] if body else more
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {KEY}", *more]
    return ("\r\n".join([*lines, "Content-Type: application/json"]) + "\r\n\r\n").encode() + body


def everything(sock):
    """Bytes that arrive until the connection ends."""
    parts = []
    while part := sock.recv(100_000):
        parts.append(part)
    return b"".join(parts)


def one_answer(sock):
    """One answer of a known length, from its first byte to its last."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += sock.recv(10_000)
    top, _, body = text.partition(b"\r\n\r\n")
    length = int(top.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(10_000)
    return top + b"\r\n\r\n" + body


def eventually(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
