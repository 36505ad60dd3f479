"""`llmrl serve` over loopback: a real uvicorn, asked by the real openai package, by our own client, and badly."""

from __future__ import annotations

import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.chat import ChatRequest, Message, OpenAIChat, ServerConfig, ServerError
from llmrl_jax.serve import (
    LocalLlama,
    Scorer,
)
from llmrl_jax.serve.request import ApiError
from llmrl_jax.serve.wire import read_chat, read_score
from tests.serving import CHAT, HELLO, KEY, SCORE, TEXT, post


openai = pytest.importorskip("openai", reason="needs the extra api")
pytest.importorskip("tenacity", reason="needs the extra api")
pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

pytest_plugins = ("tests.serving",)


def test_models(client, url):
    models = list(client.models.list())
    assert [m.id for m in models] == ["our/tiny"] and models[0].max_model_len == 256
    assert client.models.retrieve("our/tiny").owned_by == "llmrl_jax"
    with pytest.raises(openai.NotFoundError, match="'other'"):
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
        config = ServerConfig("our/tiny", url, key_variable="SERVE_TEST_KEY", attempts=1, send_stop=True)
        with OpenAIChat(config) as remote:
            theirs = remote.complete(requests)
            with pytest.raises(
                ServerError,
                match="22.*max_tokens.*291.*313.*context.*256.*234",
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
    parts = [{"role": "user", "content": [{"type": "text", "text": "Colors: red"}]}]
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


def test_scores_are_those_of_the_model(url, served, engine):
    prompts, candidates = ["Colors: red", "go forward, "], [" red", " green, red", "x"]
    status, _, body = post(url, "/v1/score", {"model": "our/tiny", "prompt": prompts, "candidates": candidates})
    assert status == 200
    scores = jax.jit(partial(lm.score, served.model), static_argnums=3)
    for i, prompt in enumerate(prompts):
        tokens = served.encode(prompt)
        added = [served.encode(prompt + c)[len(tokens) :] for c in candidates]
        assert [c["tokens"] for c in body["data"][i]["candidates"]] == added
        rows, lengths = np.array([tokens], np.int32), np.array([len(tokens)], np.int32)
        want = jax.tree.map(np.asarray, scores(served.variables, rows, lengths, lm.Candidates(added)))
        for a, got in enumerate(body["data"][i]["candidates"]):
            np.testing.assert_allclose(got["sum"], want.sum[0, a], atol=1e-4)
            np.testing.assert_allclose(got["mean"], want.mean[0, a], atol=1e-4)
            np.testing.assert_allclose(got["log_probs"], want.log_probs[0, a, : len(added[a])], atol=1e-4)
    spent = sum(len(served.encode(p)) for p in prompts)
    assert body["usage"]["prompt_tokens"] == spent and body["data"][1]["index"] == 1
    # other texts of like lengths are no new program
    before = engine.programs.count
    other = {"model": "our/tiny", "prompt": ["drop", "pick up"], "candidates": [" a", " key", " blue"]}
    assert post(url, "/v1/score", other)[0] == 200 and engine.programs.count == before


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
    with pytest.raises(ValueError, match="candidate.*empty"):
        scorer.pair([1], [])
    with pytest.raises(ValueError, match="vocabulary"):
        scorer.pair([1], [420_000])
    with pytest.raises(ValueError, match="261.*context.*256"):
        scorer.pair([1] * 255, [2] * 6)


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("chat/completions", CHAT | {"tools": [{"type": "function"}]}, "tools", "does not support (only [])"),
        ("chat/completions", CHAT | {"response_format": {"type": "json_object"}}, "response_format", "not support"),
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
        (
            "chat/completions",
            CHAT | {"messages": [HELLO[0] | {"name": 3}]},
            "messages",
            "messages[0].name is 3; a text",
        ),
        ("chat/completions", CHAT | {"messages": [HELLO[0] | {"tool_calls": [{}]}]}, "messages", "field 'tool_calls'"),
        ("chat/completions", CHAT | {"priority": 1}, "priority", "priority is 1, which this server does not support"),
        ("chat/completions", CHAT | {"tool_choice": "required"}, "tool_choice", "only none or auto"),
        ("chat/completions", CHAT | {"repetition_penalty": 1e-46}, "repetition_penalty", "must lie in [0.001, 1000]"),
        ("chat/completions", CHAT | {"temperature": -1e300}, "temperature", "temperature is -inf; it must lie in"),
        ("chat/completions", CHAT | {"stop": ["a"] * 65}, "stop", "stop holds 65 strings; at most 64"),
        (
            "chat/completions",
            CHAT | {"messages": [HELLO[0] | {"content": "a b" * 6000}]},
            "messages",
            "the context is 256: shorten it",
        ),
        ("completions", TEXT | {"prompt": []}, "prompt", "prompt is []; a text"),
        ("completions", TEXT | {"prompt": [9999]}, "prompt", "the prompt holds the token 9999"),
        ("completions", TEXT | {"prompt": {"a": 1}}, "prompt", "a text, a list of token ids"),
        ("completions", TEXT | {"prompt": ["a"] * 5}, None, "5 prompts are in one request; at most 4"),
        ("completions", TEXT | {"echo": True}, "echo", "echo is true"),
        ("completions", TEXT | {"logprobs": 5}, "logprobs", "logprobs is 5"),
        ("completions", TEXT | {"prompt": "go " * 300}, None, "shorten the prompt"),
        ("completions", {"prompt": "go"}, "model", "this server's is 'our/tiny'"),
        ("score", SCORE | {"candidates": []}, "candidates", "a list of at least 1 text"),
        ("score", SCORE | {"candidates": [""]}, "candidates", "a candidate is empty"),
        ("score", SCORE | {"temperature": 2}, "temperature", "the field 'temperature' is unknown here"),
        ("score", SCORE | {"prompt": 3}, "prompt", "a text, a list of token ids"),
        ("score", SCORE | {"candidates": ["a", "\ud800"]}, "candidates", "cannot be written as UTF-8"),
        (
            "score",
            SCORE | {"prompt": ["a"] * 4, "candidates": ["b"] * 8},
            "candidates",
            "4 prompts x 8 candidates are 32",
        ),
        ("score", SCORE | {"prompt": "x " * 50, "candidates": ["b"] * 9}, "candidates", "have more than 400 tokens"),
        ("score", SCORE | {"candidates": ["b " * 90] * 9}, "candidates", "have more than 400 tokens"),
        ("score", SCORE | {"prompt": "x " * 300}, "prompt", "tokens, and the context is 256, with the candidate"),
        ("score", SCORE | {"candidates": ["x " * 300]}, "candidates", "and the context is 256; shorten one of them"),
        ("score", SCORE | {"candidates": ["x y" * 6000]}, "candidates", "the context is 256: shorten it"),
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


def test_the_characters_of_pairs_are_bounded_before_they_are_tokenized(served, engine, monkeypatch):
    read = []
    monkeypatch.setattr(
        type(served.tokenizer), "encode", lambda self, text: read.append(text) or [5] * (1 + text.count("a"))
    )
    body = {"model": "our/tiny", "prompt": " " * 2000, "candidates": ["a"] * 300}
    with pytest.raises(ApiError, match="600300 characters.*600000"):
        read_score(body, engine.scorer, 1024, 2**20, 600_000)
    assert not read
    calls = iter([None] * 305)

    def check():
        next(calls)

    with pytest.raises(StopIteration):
        read_score(body, engine.scorer, 1024, 2**20, 600_300, check)
    assert len(read) == 1 + 4, "the prompt, then four pairs"


def test_a_temperature_next_to_0_is_greedy(engine):
    for given, read in ((1e-8, 0.0), (9e-7, 0.0), (0, 0.0), (1e-6, 1e-6), (0.5, 0.5)):
        assert read_chat(CHAT | {"temperature": given}, engine.sampler).asks[0].sampling.temperature == read


def test_what_changes_nothing_is_taken(client):
    client.chat.completions.create(
        model="our/tiny",
        messages=[
            HELLO[0] | {"name": None, "refusal": None},
            {
                "role": "assistant",
                "content": "a",
                "name": "Bo",
                "tool_calls": [],
                "annotations": [],
                "function_call": {},
            },
        ],
        max_tokens=2,
        user="me",
        metadata={"a": "b"},
        store=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        top_logprobs=0,
        extra_body={"suffix": None, "anything": None, "priority": 0},
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is not JSON: Expecting"),
        (b'{"a": NaN}', "the body is not JSON: it holds NaN"),
        (b"[" * 10_000, "the body is not JSON"),
        (b'{"a": ' + b"9" * 9000 + b"}", "the body is not JSON"),
        (b'{"seed": ' + b"9" * 4300 + b"}", "the body is not JSON: it holds a number of 4300 characters; at most 64"),
        (b'{"top_p": 0.' + b"9" * 400 + b"}", "the body is not JSON: it holds a number of 402 characters; at most 64"),
        (b'{"model": "our/tiny", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}", "prompt is [[[["),
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
