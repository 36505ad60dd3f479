"""`llmrl serve` over loopback: a real uvicorn, asked by the real openai package, by our own client, and badly."""

from __future__ import annotations

import dataclasses
import http.client
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jax
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.chat import ChatRequest, Message, OpenAIChat, ServerConfig, ServerError
from llmrl_jax.chat.keys import read_key
from llmrl_jax.run import cli
from llmrl_jax.run.commands import serve as command
from llmrl_jax.serve import (
    Ask,
    Busy,
    Engine,
    Job,
    Limits,
    LocalLlama,
    Sampling,
    Scorer,
    Served,
    Stopping,
    Work,
    background,
    make_app,
)
from llmrl_jax.serve.app import LOOPBACK
from llmrl_jax.serve.scorer import _log_probs
from llmrl_jax.serve.server import is_loopback, listen, url_of
from llmrl_jax.tuning import ChatTemplate
from tests.lm_random import random_variables


openai = pytest.importorskip("openai", reason="needs the extra api")
pytest.importorskip("tenacity", reason="needs the extra api")
pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
CONFIG = lm.LlamaConfig(420, 16, 24, 2, 2, 1, max_position_embeddings=256)
KEY = "key-0123456789abcdef"
LIMITS = Limits(request_bytes=20_000, requests=12, body_seconds=1.0, default_tokens=10)
HELLO = [{"role": "user", "content": "Colors: red"}]


@pytest.fixture(scope="module")
def served(bpe):
    config = dataclasses.replace(CONFIG, vocab_size=bpe.vocab_size, eos_token_id=bpe.eos_id)
    model = lm.Llama(config, unroll=1)
    variables = {"params": random_variables(model)["params"]}
    return Served("our/tiny", model, variables, bpe, ChatTemplate(TEMPLATE, {}))


@pytest.fixture(scope="module")
def engine(served):
    with Engine(served, max_batch=4, max_queue=4) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine):
    with background(make_app(engine, key=KEY, limits=LIMITS)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
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


def eventually(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def test_models(client, url):
    models = list(client.models.list())
    assert [m.id for m in models] == ["our/tiny"] and models[0].max_model_len == 256
    assert client.models.retrieve("our/tiny").owned_by == "llmrl_jax"
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")


def test_a_completion_is_what_the_model_says(client, served):
    prompts, how = ["Colors: red", "go"], {"max_tokens": 12, "temperature": 0.8, "seed": 7}
    answer = client.completions.create(model="our/tiny", prompt=prompts, n=2, logprobs=0, **how)
    tokens = [served.encode(prompt) for prompt in prompts]
    width = max(map(len, tokens))
    rows = np.array([t + [0] * (width - len(t)) for t in tokens], np.int32)
    config = lm.SamplingConfig(12, temperature=0.8, samples=2)
    lengths = np.array(list(map(len, tokens)), np.int32)
    want = lm.generate(served.model, served.variables, rows, lengths, jax.random.key(7), config)
    texts = [text for row in want.texts(served.tokenizer) for text in row]
    assert [c.text for c in answer.choices] == texts and [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == sum(map(len, tokens))
    assert answer.usage.completion_tokens == want.lengths.sum()
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.system_fingerprint == served.fingerprint
    for i, choice in enumerate(answer.choices):
        got, logprobs = choice.logprobs, want.log_probs[i // 2, i % 2]
        assert "".join(got.tokens) == choice.text
        np.testing.assert_allclose(got.token_logprobs, logprobs[: len(got.tokens)], atol=1e-5)
        starts = np.cumsum([0, *map(len, got.tokens)])[:-1]
        assert got.text_offset == starts.tolist()
    # the same from tokens, alone, and greedily of another length
    alone = client.completions.create(model="our/tiny", prompt=tokens[0], n=2, **how)
    assert [c.text for c in alone.choices] == texts[:2] and alone.choices[0].logprobs is None
    assert client.completions.create(model="our/tiny", prompt="go", temperature=0).usage.completion_tokens <= 16


def test_a_conversation_is_what_the_local_model_says(client, served, url):
    requests = [
        ChatRequest((Message("system", "be brief"), Message("user", "go")), max_tokens=9, seed=1, n=2),
        ChatRequest((Message("user", "drop"),), max_tokens=15, seed=2, temperature=0.6, stop=("e", "1"), top_p=0.9),
        ChatRequest((Message("user", "drop"),), max_tokens=9, seed=2, temperature=0.0, sample=4, extra={"top_k": 3}),
    ]
    os.environ["SERVE_TEST_KEY"] = KEY
    try:
        with OpenAIChat(ServerConfig("our/tiny", url, key_variable="SERVE_TEST_KEY", attempts=1)) as remote:
            theirs = remote.complete(requests)
            with pytest.raises(
                ServerError,
                match="22 tokens and max_tokens is 291: together 313, and the context is 256; ask for at most 234",
            ) as caught:
                remote.complete([dataclasses.replace(requests[0], max_tokens=291)])
            assert caught.value.status == 400
    finally:
        del os.environ["SERVE_TEST_KEY"]
    ours = LocalLlama(served, max_batch=4).complete(requests)
    assert [dataclasses.replace(reply, seconds=0.0) for reply in theirs] == [
        dataclasses.replace(reply, seconds=0.0) for reply in ours
    ]
    answer = client.chat.completions.create(
        model="our/tiny", messages=HELLO, seed=5, max_completion_tokens=8, logprobs=True
    )
    content = answer.choices[0].logprobs.content
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    assert all(t.logprob < 0 and bytes(t.bytes).decode() == t.token for t in content)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Colors:"}, {"type": "text", "text": " red"}]}]
    again = client.chat.completions.create(model="our/tiny", messages=parts, seed=5, max_tokens=8)
    assert again.choices[0].message.content == answer.choices[0].message.content
    short = client.chat.completions.create(model="our/tiny", messages=HELLO, seed=5)  # the server's default length
    assert short.usage.completion_tokens <= 10


def test_a_stream_is_the_whole_in_parts(client):
    how = {"model": "our/tiny", "messages": HELLO, "seed": 3, "max_tokens": 30, "n": 2, "stop": [": "]}
    whole = client.chat.completions.create(**how, logprobs=True)
    texts, reasons, pieces, usage, roles = ["", ""], {}, [[], []], None, []
    chunks = list(
        client.chat.completions.create(**how, logprobs=True, stream=True, stream_options={"include_usage": True})
    )
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
            pieces[choice.index] += [t.token for t in (choice.logprobs.content if choice.logprobs else [])]
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == [c.message.content for c in whole.choices]
    assert ["".join(p) for p in pieces] == texts
    assert reasons == {c.index: c.finish_reason for c in whole.choices}
    assert sorted(roles) == [0, 1] and len({chunk.id for chunk in chunks}) == 1
    assert usage.to_dict() == whole.usage.to_dict() and chunks[-1].choices == []
    assert len(chunks) > 6  # it came in parts

    plain = {"model": "our/tiny", "prompt": ["go", "drop"], "seed": 3, "max_tokens": 20}
    parts = ["", ""]
    for chunk in client.completions.create(**plain, stream=True):
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert parts == [c.text for c in client.completions.create(**plain).choices]


def test_requests_that_wait_together_share_a_batch(client, engine):
    sizes, whole = [], engine.sampler.run

    def run(asks):
        sizes.append(len(asks))
        time.sleep(0.1)
        return whole(asks)

    def one(seed):
        return client.completions.create(model="our/tiny", prompt="go" * seed, seed=seed, max_tokens=8).choices[0].text

    alone = [one(seed) for seed in range(1, 5)]
    engine.sampler.run = run
    try:
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(one, range(1, 5)))
    finally:
        del engine.sampler.run
    assert together == alone and sum(sizes) == 4 and len(sizes) < 4


def test_scores_are_those_of_the_model(url, served):
    prompts, candidates = ["Colors: red", "go forward, "], [" red", " green, red", "x"]
    status, _, body = post(url, "/v1/score", {"model": "our/tiny", "prompt": prompts, "candidates": candidates})
    assert status == 200
    for i, prompt in enumerate(prompts):
        tokens = served.encode(prompt)
        added = [served.encode(prompt + c)[len(tokens) :] for c in candidates]
        assert [c["tokens"] for c in body["data"][i]["candidates"]] == added
        rows, lengths = np.array([tokens], np.int32), np.array([len(tokens)], np.int32)
        want = lm.score(served.model, served.variables, rows, lengths, lm.Candidates(added))
        for a, got in enumerate(body["data"][i]["candidates"]):
            np.testing.assert_allclose(got["sum"], want.sum[0, a], atol=1e-4)
            np.testing.assert_allclose(got["mean"], want.mean[0, a], atol=1e-4)
            np.testing.assert_allclose(got["log_probs"], want.log_probs[0, a, : len(added[a])], atol=1e-4)
    spent = sum(len(served.encode(p)) for p in prompts)
    assert body["usage"]["prompt_tokens"] == spent and body["data"][1]["index"] == 1
    # other texts of like lengths are no new program
    before = _log_probs._cache_size()
    other = {"model": "our/tiny", "prompt": ["drop", "pick up"], "candidates": [" a", " key", " blue"]}
    assert post(url, "/v1/score", other)[0] == 200 and _log_probs._cache_size() == before


def test_many_candidates_are_scored_in_parts(served):
    scorer, one = Scorer(served, max_batch=4), Scorer(served, max_batch=1)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 400, n).tolist() for n in (3, 9)]
    candidates = [rng.integers(0, 400, n).tolist() for n in (1, 2, 5, 8, 1)]
    pairs = [scorer.pair(p, c) for p in prompts for c in candidates]
    parts = list(scorer.run(pairs))
    assert [len(part) for part in parts] == [4, 4, 2]
    alone = [x for part in one.run(pairs) for x in part]
    for got, want, pair in zip((x for part in parts for x in part), alone, pairs):
        assert len(got) == len(pair.candidate)
        np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(ValueError, match="a candidate is empty"):
        scorer.pair([1], [])
    with pytest.raises(ValueError, match="outside of the model's vocabulary"):
        scorer.pair([1], [420_000])
    with pytest.raises(ValueError, match="together 261, and the context is 256"):
        scorer.pair([1] * 255, [2] * 6)


CHAT = {"model": "our/tiny", "messages": HELLO}
TEXT = {"model": "our/tiny", "prompt": "go"}
SCORE = {"model": "our/tiny", "prompt": "go", "candidates": ["a"]}


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("chat/completions", CHAT | {"tools": [{"type": "function"}]}, "tools", "cannot honour: only [] is"),
        ("chat/completions", CHAT | {"response_format": {"type": "json_object"}}, "response_format", "cannot honour"),
        ("chat/completions", CHAT | {"logprobs": True, "top_logprobs": 3}, "top_logprobs", "top_logprobs is 3"),
        ("chat/completions", CHAT | {"presence_penalty": 0.5}, "presence_penalty", "presence_penalty is 0.5"),
        ("chat/completions", CHAT | {"beam_width": 4}, "beam_width", "the field 'beam_width' is not known"),
        ("chat/completions", CHAT | {"temperature": "hot"}, "temperature", "temperature is hot; a number is needed"),
        ("chat/completions", CHAT | {"temperature": -1}, "temperature", "temperature is -1.0; it must lie in"),
        ("chat/completions", CHAT | {"temperature": 1e400}, None, "the body is not JSON: it holds Infinity"),
        ("chat/completions", CHAT | {"n": 5}, "n", "n is 5; at most 4"),
        ("chat/completions", CHAT | {"n": True}, "n", "n is true; an integer of at least 1"),
        ("chat/completions", CHAT | {"stop": [""]}, "stop", "stop holds an empty string"),
        ("chat/completions", CHAT | {"stop": [3]}, "stop", "stop is [3]; a text or a list of texts"),
        ("chat/completions", CHAT | {"stream": "yes"}, "stream", "true or false is needed"),
        ("chat/completions", CHAT | {"stream_options": {"include_usage": True}}, "stream_options", "stream is not"),
        ("chat/completions", CHAT | {"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens", "differ"),
        ("chat/completions", CHAT | {"max_tokens": 300}, None, "together 310, and the context is 256; ask for at most"),
        ("chat/completions", CHAT | {"messages": []}, "messages", "a list of at least 1 message"),
        ("chat/completions", CHAT | {"messages": ["hi"]}, "messages", "messages[0] is hi; an object"),
        ("chat/completions", CHAT | {"messages": [{"role": "tool", "content": "x"}]}, "messages", "known roles are"),
        ("chat/completions", CHAT | {"messages": [{"role": "user"}]}, "messages", "content is null; a text"),
        ("chat/completions", CHAT | {"messages": HELLO + [{"role": "user", "content": "\ud800"}]}, "messages", "UTF-8"),
        (
            "chat/completions",
            CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "only parts of text are read",
        ),
        ("chat/completions", CHAT | {"messages": [HELLO[0] | {"name": "Bo"}]}, "messages", "the field 'name'"),
        ("completions", TEXT | {"prompt": []}, "prompt", "prompt is []; a text"),
        ("completions", TEXT | {"prompt": [9999]}, "prompt", "the prompt holds the token 9999"),
        ("completions", TEXT | {"prompt": {"a": 1}}, "prompt", "a text, a list of token ids"),
        ("completions", TEXT | {"prompt": ["a"] * 5}, None, "5 prompts are asked for at once; at most 4"),
        ("completions", TEXT | {"echo": True}, "echo", "echo is true"),
        ("completions", TEXT | {"logprobs": 5}, "logprobs", "logprobs is 5"),
        ("completions", TEXT | {"prompt": "go " * 300}, None, "shorten the prompt"),
        ("completions", {"prompt": "go"}, "model", "this server's is 'our/tiny'"),
        ("score", SCORE | {"candidates": []}, "candidates", "a list of at least 1 text"),
        ("score", SCORE | {"candidates": [""]}, "candidates", "a candidate is empty"),
        ("score", SCORE | {"temperature": 2}, "temperature", "the field 'temperature' is unknown here"),
        ("score", SCORE | {"prompt": 3}, "prompt", "a text, a list of token ids"),
    ],
)
def test_what_is_refused_and_how(url, path, body, param, said):
    status, headers, answer = post(url, f"/v1/{path}", body)
    error = answer["error"]
    assert status == 400 and said in error["message"] and error["type"] == "invalid_request_error"
    assert error["param"] == param or param is None
    assert headers["x-request-id"].startswith("req_") and (error["code"] == "context_length_exceeded") == (
        "context is" in said or said == "shorten the prompt"
    )


def test_what_changes_nothing_is_taken(client):
    client.chat.completions.create(
        model="our/tiny",
        messages=[HELLO[0] | {"name": None}],
        max_tokens=2,
        user="me",
        metadata={"a": "b"},
        store=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        tools=[],
        top_logprobs=0,
        extra_body={"suffix": None, "anything": None},
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is not JSON: Expecting"),
        (b'{"a": NaN}', "the body is not JSON: it holds NaN"),
        (b"[" * 10_000, "the body is not JSON"),
        (b'{"a": ' + b"9" * 9000 + b"}", "the body is not JSON"),
        (b"\xff\xfe{}", "the body is not JSON"),
        (b"[1]", "the body is a JSON list; an object is needed"),
    ],
)
def test_what_is_no_json(url, body, said):
    status, _, answer = post(url, "/v1/completions", body)
    assert status == 400 and answer["error"]["message"].startswith(said)


def test_routes_methods_and_types(url):
    status, _, answer = post(url, "/v1/embeddings", {})
    assert status == 404 and answer["error"]["message"] == "there is no such route"
    status, _, answer = post(url, "/v1/score", None)
    assert status == 405 and "does not take GET" in answer["error"]["message"]
    status, _, answer = post(url, "/v1/score", SCORE, Content_Type="text/plain")
    assert status == 415 and "application/json is needed" in answer["error"]["message"]
    status, _, answer = post(url, "/v1/completions", TEXT | {"model": "gpt-9"})
    assert status == 404 and answer["error"]["code"] == "model_not_found"


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
        assert caught.value.status_code == 413 and "longer than the 20000 bytes" in str(caught.value)


def test_a_body_that_does_not_come(url):
    with socket.create_connection(url.removeprefix("http://").removesuffix("/v1").split(":")) as sock:
        head = (
            f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        )
        sock.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        sock.settimeout(10)
        assert b" 408 " in sock.recv(1000)


def test_a_queue_that_is_full_says_when_to_come_back(client, engine):
    with slow(engine), ThreadPoolExecutor(8) as pool:

        def one(temperature):  # greedy and not: two groups
            return client.with_options(timeout=3).completions.create(
                model="our/tiny", prompt="go", temperature=temperature, max_tokens=2
            )

        first = pool.submit(one, 1.0)
        eventually(lambda: engine.load == (0, 1))
        rest = [pool.submit(one, 0.0) for _ in range(4)]
        eventually(lambda: engine.load == (4, 1))
        with pytest.raises(openai.RateLimitError) as caught:
            one(0.0)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert "4 of at most 4 requests are waiting" in str(caught.value)
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
            with pytest.raises(openai.RateLimitError, match="1 requests are at work"):
                c.models.list()
        eventually(lambda: post(url, "/v1/models", None)[0] == 200)


def test_a_client_that_hangs_up_stops_the_device(client, engine):
    with slow(engine):
        stream = client.chat.completions.create(model="our/tiny", messages=HELLO, max_tokens=60, stream=True)
        next(iter(stream))
        assert engine.load == (0, 1)
        stream.close()
        eventually(lambda: not engine._running)
        # and one that waits for the whole
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(model="our/tiny", messages=HELLO)
        eventually(lambda: not engine._running)
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
        with pytest.raises(openai.APIError, match="the server failed; its log knows more of req_"):
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
    with slow(engine):
        jobs = [Job(ask, lambda what, i=i: heard.put((i, what))) for i in range(2)]
        jobs.append(Job(dataclasses.replace(ask, how=Sampling(3, temperature=0.0)), lambda what: heard.put((2, what))))
        jobs.append(Work(iter([1]), lambda what: heard.put((3, what))))
        engine.submit(jobs)
        assert isinstance(heard.get(timeout=20)[1], list)
        with pytest.raises(Busy, match="2 of at most 4"):
            engine.submit([Work(iter([]), print)] * 3)
        engine.close()
        engine.close()
    told = {}
    while not heard.empty():
        i, what = heard.get()
        told[i] = what
    assert {i: type(what) for i, what in told.items()} == dict.fromkeys(range(4), Stopping)
    assert not engine.alive
    with pytest.raises(Stopping):
        engine.submit(jobs[:1])
    with background(make_app(engine)) as url:
        assert post(url, "/health", None)[::2] == (503, {"status": "stopping"})
        status, headers, answer = post(url, "/v1/completions", TEXT)
        assert (
            status == 503 and headers["retry-after"] == "1" and answer["error"]["message"] == "the server is stopping"
        )


def test_only_by_its_own_name(served):
    with serving(served, hosts=LOOPBACK) as url:
        assert post(url, "/v1/models", None)[0] == 200
        assert post(url, "/v1/models", None, Host="localhost:99")[0] == 200
        for host in ("evil.example", "evil.example:8000", "[", ""):
            status, _, answer = post(url, "/v1/models", None, Host=host)
            assert status == 403 and "localhost only" in answer["error"]["message"]


def test_a_model_that_is_not_chatted_with(served):
    with serving(dataclasses.replace(served, template=None)) as url:
        status, _, answer = post(url, "/v1/chat/completions", CHAT)
        assert status == 400 and "has no chat template, so it has no chat" in answer["error"]["message"]


def test_addresses_and_keys(monkeypatch):
    assert [is_loopback(h) for h in ("127.0.0.1", "127.8.0.1", "::1", "localhost")] == [True] * 4
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "", "10.0.0.1", "my.host")] == [False] * 5
    monkeypatch.setenv("A_KEY", "two words")
    with pytest.raises(ValueError, match="A_KEY holds a blank"):
        read_key("A_KEY", "that requests will bear")
    monkeypatch.setenv("A_KEY", "")
    with pytest.raises(ValueError, match="A_KEY is empty"):
        read_key("A_KEY", "that requests will bear")
    assert read_key("", "of nobody") == ""
    with listen("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()) as caller:
        taken, _ = sock.accept()
        with taken:  # what asyncio goes by to send at once
            assert taken.proto == socket.IPPROTO_TCP and caller
    with listen("127.0.0.1", 0) as sock, pytest.raises(ValueError, match="cannot listen at 127.0.0.1 port"):
        listen("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(ValueError, match="port is 99999"):
        listen("127.0.0.1", 99_999)
    with pytest.raises(ValueError, match="request_bytes is 0"):
        Limits(request_bytes=0)


def test_the_command(served, tmp_path, capfd, monkeypatch):
    lm.save_hf(tmp_path / "tiny", served.model.config, served.variables["params"])
    served.tokenizer.save(tmp_path / "tiny")
    model = ["serve", "--model", str(tmp_path / "tiny")]
    assert cli.main([*model, "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "0.0.0.0 is reached from other machines, and there is no key" in capfd.readouterr().err
    monkeypatch.delenv("NO_KEY", raising=False)
    assert cli.main([*model, "--key-variable", "NO_KEY"]) == 2
    assert "the environment variable NO_KEY is empty" in capfd.readouterr().err
    assert cli.main(["serve", "--model", str(tmp_path / "nowhere"), "--port", "0"]) == 2
    assert "no model folder" in capfd.readouterr().err

    sockets, said, over = [], [], threading.Event()
    monkeypatch.setattr(command, "listen", lambda *at: sockets.append(listen(*at)) or sockets[-1])

    def ask():
        try:
            eventually(lambda: sockets or over.is_set(), 30)
            url = url_of(sockets[0])
            said.append(post(url, "/v1/completions", {"model": "tiny", "prompt": "go", "max_tokens": 2}, key="x"))
        finally:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            assert cli.main([*model, "--port", "0", "--max-batch", "2"]) == 0
        finally:
            over.set()
        asking.result()
    assert signal.getsignal(signal.SIGTERM) is before
    assert said[0][0] == 200
    printed = capfd.readouterr().out
    assert printed.startswith("tiny (") and " answers at http://127.0.0.1:" in printed
    assert "(no chat template: no /v1/chat/completions)\nstopped\n" in printed


def test_without_the_extra(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'llmrl_jax\[serve\]'"):
        make_app(engine)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModuleNotFoundError, match="serving needs uvicorn"), background(None):
        pass
