"""What a server may ask for and say, and the extra that the client needs; nothing here needs the extra itself."""

from __future__ import annotations

import sys

import pytest

from llmrl_jax.chat import ChatRequest, Message, OpenAIChat, ServerConfig
from llmrl_jax.chat.wire import redact, retry_after, sample_seed


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "9", "retry-after-ms": "soon"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_how_long_a_server_asks_to_wait(headers, seconds):
    assert retry_after(headers, now=100.0) == seconds


def test_keys_are_taken_out_of_a_server_s_words():
    assert redact("bad my-own-key here", "my-own-key") == "bad [key] here"
    assert redact("sk-proj-abcdefgh1234 and bearer xyz", "") == "[key] and Bearer [key]"
    assert redact("a task-force risk-averse", "") == "a task-force risk-averse"


def test_seeds_are_fixed():
    """Recorded, because a published run is drawn again with them: sha256("3/1")[:4] >> 1."""
    assert [sample_seed(3, i) for i in range(3)] == [3, 21572990, 915662092]


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModuleNotFoundError, match="openai.*`api`"):
        OpenAIChat(ServerConfig("m", "http://127.0.0.1/v1")).complete([ChatRequest((Message("user", "x"),))])
