"""Requests and replies as values, scripted advisers, recordings, and what importing costs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from llmrl_jax.chat import (
    CacheError,
    ChatError,
    ChatModel,
    ChatReply,
    ChatRequest,
    Choice,
    Message,
    Recorder,
    ScriptedAdviser,
    ServerError,
    Usage,
    read_jsonl,
)
from llmrl_jax.chat.protocol import outcomes_of, sample_key, settle


ASK = ChatRequest((Message("user", "Which way?"),))


class Echo(ScriptedAdviser):
    def advise(self, messages, rng):
        return f"{messages[-1].content} {rng.random()} END never seen"


def test_a_request_goes_to_json_and_back():
    request = ChatRequest(
        (Message("system", "Be brief."), Message("user", "Grüße")),
        temperature=0,
        top_p=0.5,
        max_tokens=7,
        seed=3,
        stop=("\n",),
        n=2,
        sample=4,
        extra={"top_k": 5, "response_format": {"type": "json_object"}},
    )
    assert ChatRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert isinstance(request.temperature, float) and len({request, replace(request, n=3)}) == 2


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"messages": ()}, "messages"),
        ({"temperature": -0.1}, "temperature.*-0.1"),
        ({"temperature": float("nan")}, "temperature.*nan"),
        ({"top_p": 1.5}, "top_p.*1.5"),
        ({"max_tokens": 0}, "max_tokens.*0"),
        ({"n": 0}, "^n .*0"),
        ({"sample": -1}, "sample.*-1"),
        ({"stop": "abc"}, "stop.*'abc'"),
        ({"stop": ("",)}, "empty string"),
        ({"extra": {"seed": 1}}, "extra.*'seed'"),
        ({"extra": {"api_key": "x"}}, "extra.*'api_key'"),
        ({"extra": {"a": {1, 2}}}, "not JSON"),
        ({"extra": {"a": float("inf")}}, "not JSON"),
    ],
)
def test_requests_that_make_no_sense_are_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        ChatRequest(**{"messages": ASK.messages, **fields})


def test_messages_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="'tool'"):
        Message("tool", "x")
    with pytest.raises(ValueError, match="UTF-8"):
        Message("user", "half a character: \ud83d")
    with pytest.raises(ValueError, match="'colour'"):
        ChatRequest.from_json({**ASK.to_json(), "colour": 1})


def test_a_sample_key_is_the_hash_of_this_text():
    """Written out by hand: a change here would orphan every cache there is, so it must be meant (`FORMAT`)."""
    text = (
        '{"extra":{},"format":1,"max_tokens":512,"messages":[{"content":"Which way?","role":"user"}],"model":"m",'
        '"namespace":"","sample":2,"seed":null,"stop":[],"temperature":1.0,"top_p":null}'
    )
    assert sample_key("m", replace(ASK, n=5, sample=0), 2) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.5},
        {"temperature": None},
        {"top_p": 0.9},
        {"max_tokens": 511},
        {"seed": 0},
        {"stop": ("\n",)},
        {"extra": {"top_k": 1}},
        {"messages": (Message("system", "Which way?"),)},
        {"messages": (*ASK.messages, Message("user", ""))},
    ],
)
def test_every_parameter_changes_the_key(other):
    assert sample_key("m", replace(ASK, **other), 0) != sample_key("m", ASK, 0)


def test_model_namespace_and_sample_change_the_key_and_n_does_not():
    keys = {sample_key("m", ASK, 0), sample_key("m2", ASK, 0), sample_key("m", ASK, 0, "run"), sample_key("m", ASK, 1)}
    assert len(keys) == 4
    assert sample_key("m", replace(ASK, n=9), 0) in keys


def test_shares_of_a_reply_add_up():
    reply = ChatReply((Choice("a"), Choice("b"), Choice("c", "length")), "m", Usage(10, 8, 4), "f", 2.0, lost=1)
    parts = reply.split()
    assert [p.usage for p in parts] == [Usage(10, 4, 4), Usage(0, 2), Usage(0, 2)]
    assert ChatReply.join(parts) == reply
    assert ChatReply.join([replace(parts[0], usage=None), parts[1]]).usage is None
    assert ChatReply.from_json(json.loads(json.dumps(reply.to_json()))) == reply


def test_a_batch_that_fails_keeps_what_arrived():
    reply = ChatReply((Choice("a"),), "m")
    error = ServerError("busy", status=503, lost=2)
    with pytest.raises(ServerError, match="busy") as caught:
        settle([reply, error, ChatError("later")])
    assert caught.value.outcomes[0] == reply and caught.value.status == 503 and caught.value.lost == 2
    assert error.outcomes == ()  # other threads may hold the same error


def test_a_model_that_breaks_the_contract_is_named():
    class Short(Echo):
        def complete(self, requests):
            return super().complete(requests)[1:]

    with pytest.raises(ValueError, match="scripted-adviser/Short.*contract"):
        outcomes_of(Short(), [ASK])


def test_a_scripted_adviser_is_named_so_and_repeats_itself():
    adviser = Echo()
    assert isinstance(adviser, ChatModel) and adviser.name == "scripted-adviser/Echo"
    (two,) = adviser.complete([replace(ASK, n=2, stop=("zzz", " END"))])
    assert two.model == adviser.name and two.usage == Usage() and len({c.text for c in two.choices}) == 2
    assert all(c.text.startswith("Which way? 0.") and "END" not in c.text for c in two.choices)
    (second,) = Echo().complete([replace(ASK, sample=1, stop=("zzz", " END"))])
    assert second.text == two.choices[1].text


def test_a_recorder_writes_replies_and_errors(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))

    class Half(Echo):
        def complete(self, requests):
            done = super().complete(requests)
            return settle([done[0], *[ServerError("down", status=500)] * (len(done) - 1)])

    path = tmp_path / "new" / "talk.jsonl"
    recorder = Recorder(Half(), path)
    with pytest.raises(ServerError, match="down"):
        recorder.complete([ASK, replace(ASK, seed=1)])
    first, second = read_jsonl(path)
    assert ChatRequest.from_json(first["request"]) == ASK and first["model"] == "scripted-adviser/Half"
    assert ChatReply.from_json(first["reply"]).text.startswith("Which way?")
    assert second["error"] == {"type": "ServerError", "message": "down", "lost": 0} and "reply" not in second
    assert synced == [path.stat().st_size]


def test_a_line_that_a_crash_cut_off_is_removed(tmp_path):
    path = tmp_path / "talk.jsonl"
    Recorder(Echo(), path).complete([ASK])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"half": ' + b"x" * 70000)
    assert len(read_jsonl(path)) == 1
    Recorder(Echo(), path).complete([ASK])
    assert len(read_jsonl(path)) == 2 and path.read_bytes().startswith(whole)
    path.write_bytes(b"oops\n" + whole)
    with pytest.raises(CacheError, match=r"line 1.*talk\.jsonl"):
        read_jsonl(path)


def test_recorders_share_a_file(tmp_path):
    path = tmp_path / "talk.jsonl"
    asks = [replace(ASK, messages=(Message("user", f"{i} " + "long " * 2000),)) for i in range(4)]

    def record():
        for ask in asks:
            Recorder(Echo(), path).complete([ask])

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_jsonl(path)) == 16


def test_importing_chat_is_cheap():
    """It loads the standard library without an event loop, and files of ours that need no more than that."""
    program = "import sys; before = set(sys.modules); import llmrl_jax.chat; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"envs_jax", "llmrl_jax"} and "asyncio" not in packages
