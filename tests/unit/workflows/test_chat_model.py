"""Options of chat models: those that the chosen model does not read are refused by name."""

from __future__ import annotations

import pytest

from llmrl_jax.workflows.chat_model import ChatConfig


URL = "http://127.0.0.1:1/v1"
OF_SERVERS = {
    "base_url": URL,
    "key_variable": "MY_KEY",
    "api_version": "2024-10-21",
    "concurrency": 4,
    "timeout": 600.0,
    "split": True,
    "send_stop": True,
    "token_limit": "max_completion_tokens",
}
OF_CACHES = {"cache": "replies.sqlite", "cache_mode": "replay"}
OF_LOCAL_MODELS = {"adapter": "runs/tuned/adapter", "template": "plain"}


@pytest.mark.parametrize(
    ("model", "unread"),
    [
        ("scripted", OF_SERVERS | OF_CACHES | OF_LOCAL_MODELS),
        ("local:smollm2-135m", OF_SERVERS),
        ("gpt-4o", OF_LOCAL_MODELS),
    ],
)
def test_options_that_the_model_does_not_read_are_refused(model, unread):
    usual = {} if model != "gpt-4o" else {"base_url": URL}
    ChatConfig(model, **usual).check()
    for name, value in unread.items():
        with pytest.raises(ValueError, match=f"--chat.{name.replace('_', '-')}.*{model}"):
            ChatConfig(model, **{**usual, name: value}).check()


def test_options_that_the_model_reads_are_taken():
    ChatConfig("gpt-4o", **OF_SERVERS | OF_CACHES).check()
    ChatConfig("local:smollm2-135m", **OF_CACHES | OF_LOCAL_MODELS).check()
    with pytest.raises(ValueError, match=r"chat\.token_limit.*'tokens'"):
        ChatConfig("gpt-4o", URL, token_limit="tokens").check()
