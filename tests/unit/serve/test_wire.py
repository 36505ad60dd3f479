"""Reading of requests: values without effect change nothing, and variables reach the chat template."""

from __future__ import annotations

import dataclasses
import re

import pytest

from llmrl_jax.serve.request import ApiError
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.wire import read_chat, read_completion
from llmrl_jax.tuning import ChatTemplate
from tests.serving import CHAT, HELLO, TEXT


pytest_plugins = ("tests.serving",)


NO_EFFECT = [
    {"top_k": -1}, {"top_k": 0, "min_p": 0, "repetition_penalty": 1.0, "top_p": 1}, {"reasoning_effort": "none"},
    {"chat_template_kwargs": {}}, {"chat_template_kwargs": {"enable_thinking": False, "tools": [], "x": None}},
    {"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"reasoning": {"effort": "none"}},
    {"reasoning": {}},
    {"ignore_eos": False, "min_tokens": 0, "stop_token_ids": [], "include_stop_str_in_output": False},
    {"skip_special_tokens": False, "spaces_between_special_tokens": True, "add_special_tokens": False},
    {"add_generation_prompt": True, "continue_final_message": False, "echo": False, "documents": []},
    {"use_beam_search": False, "length_penalty": 1.0, "best_of": 1, "early_stopping": False, "do_sample": True},
    {"logit_bias": {}, "parallel_tool_calls": False, "tools": [], "tool_choice": "none", "functions": []},
    {"stream_options": {"include_usage": False}}, {"stream_options": {}}, {"stream_options": None, "stream": False},
    {"store": False, "metadata": {}, "service_tier": "auto", "user": "me", "verbosity": "medium", "seed": None},
    {"typical_p": 1, "tfs_z": 1.0, "mirostat": 0, "repeat_penalty": 1.0, "cache_prompt": True, "grammar": ""},
    {"stop": [], "n": 1, "logprobs": False, "top_logprobs": 0, "response_format": {"type": "text"}},
]  # fmt: skip


@pytest.mark.parametrize("fields", NO_EFFECT, ids=str)
def test_values_without_effect_change_nothing(fields, engine):
    def ask(body):
        (ask,) = read_chat(body, engine.sampler).asks
        return ask.tokens, dataclasses.replace(ask.sampling, seed=0)

    assert ask(CHAT | fields) == ask(CHAT)


def test_parts_of_a_message_are_lines(engine):
    def tokens(content):
        (ask,) = read_chat(CHAT | {"messages": [{"role": "user", "content": content}]}, engine.sampler).asks
        return ask.tokens

    parts = [{"type": "text", "text": text} for text in ("Colors:", "red")]
    assert tokens(parts) == tokens("Colors:\nred") and tokens(parts[:1]) == tokens("Colors:")


def test_replies_are_texts_of_their_own_and_completions_are_not(engine):
    assert [ask.start for ask in read_chat(CHAT, engine.sampler).asks] == [True]
    assert [ask.start for ask in read_completion(TEXT, engine.sampler).asks] == [False]


def test_values_without_effect_of_completions(engine):
    fields = {"logprobs": False, "add_special_tokens": True, "suffix": None, "best_of": 1, "top_k": -1}
    fields |= {"chat_template_kwargs": {}, "reasoning_effort": "none", "enable_thinking": False}
    asks = [read_completion(TEXT | f | {"seed": 1}, engine.sampler).asks for f in (fields, {})]
    assert asks[0] == asks[1]
    with pytest.raises(ApiError, match="add_special_tokens.*false"):
        read_completion(TEXT | {"add_special_tokens": False}, engine.sampler)


THINKS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking is defined and not enable_thinking %} <none>"
    "{% endif %}{{ style }}{% endif %}"
)


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "assistant:"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "assistant: <none>"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "assistant:"),
        ({"enable_thinking": False}, "assistant: <none>"),
        ({"reasoning_effort": "none"}, "assistant: <none>"),
        ({"thinking": {"type": "disabled"}}, "assistant: <none>"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "assistant:"),
        ({"chat_template_kwargs": {"style": " brief"}}, "assistant: brief"),
    ],
    ids=str,
)
def test_variables_of_the_template(fields, end, served):
    sampler = Sampler(dataclasses.replace(served, template=ChatTemplate(THINKS, {})), 4)
    (ask,) = read_chat(CHAT | fields, sampler).asks
    text, tokens = sampler.served.template.encode(served.tokenizer, HELLO)
    assert text.endswith("assistant:")
    want = served.tokenizer.encode(text.removesuffix("assistant:") + end)
    assert list(ask.tokens)[-len(want) :] == want and len(ask.tokens) - len(want) == len(tokens) - len(
        served.tokenizer.encode(text)
    )


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"chat_template_kwargs": {"enable_thinkng": True}}, "chat_template_kwargs.enable_thinkng", "does not read"),
        ({"chat_template_kwargs": {"style": ["a"]}}, "chat_template_kwargs.style", "number"),
        ({"chat_template_kwargs": {"tools": [{}]}}, "chat_template_kwargs.tools", "only []"),
        (
            {"chat_template_kwargs": {"add_generation_prompt": False}},
            "chat_template_kwargs.add_generation_prompt",
            "true",
        ),
        ({"chat_template_kwargs": {"messages": [1]}}, "chat_template_kwargs.messages", "does not read"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "an object is needed"),
        ({"enable_thinking": "no"}, "enable_thinking", "true or false"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "only none"),
        ({"reasoning_effort": 3}, "reasoning_effort", "a text"),
        ({"thinking": {"type": "enabled"}}, "thinking", "only"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"ignore_eos": True}, "ignore_eos", "only false"),
        ({"min_tokens": 4}, "min_tokens", "only 0"),
        ({"add_special_tokens": True}, "add_special_tokens", "only false"),
    ],
    ids=str,
)
def test_variables_and_options_with_an_effect_are_refused(fields, param, said, served):
    sampler = Sampler(dataclasses.replace(served, template=ChatTemplate(THINKS, {})), 4)
    with pytest.raises(ApiError, match=re.escape(said)) as caught:
        read_chat(CHAT | fields, sampler)
    assert caught.value.param == param and param in str(caught.value)
