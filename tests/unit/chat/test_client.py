"""The client against a real server over loopback, through the real openai package, with faults injected."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from llmrl_jax.chat import (
    BadReply,
    Budget,
    Budgeted,
    Cached,
    ChatReply,
    ChatRequest,
    Choice,
    ContextExceeded,
    Message,
    ServerConfig,
    ServerError,
    TimedOut,
    Usage,
    check_server,
)
from tests.chat_server import KEY, answer, ask, completion, cut, drip, say, send, silent, status


pytest.importorskip("openai", reason="needs the extra api")
pytest.importorskip("tenacity", reason="needs the extra api")

pytest_plugins = ("tests.chat_server",)


def test_what_is_sent_and_what_comes_back(server, chat):
    request = ChatRequest(
        (Message("system", "Be brief."), Message("user", "Which way?")),
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        seed=3,
        stop=("\n",),
        n=2,
        extra={"top_k": 5},
    )
    (reply,) = chat(send_stop=True).complete([request])
    assert server.seen[0][0] == "/v1/chat/completions"
    assert server.bodies[0] == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which way?"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "seed": 3,
        "stop": ["\n"],
        "n": 2,
        "top_k": 5,
    }
    assert reply.choices == (Choice("reply 0"), Choice("reply 1"))
    assert (reply.model, reply.fingerprint, reply.usage) == ("tiny-2026", "fp", Usage(11, 4, 3))
    assert reply.lost == 0 and 0 < reply.seconds < 20


def test_what_is_left_out_is_not_sent(server, chat):
    chat(token_limit="max_completion_tokens").complete([ask(temperature=None)])
    assert set(server.bodies[0]) == {"model", "messages", "max_completion_tokens"}


def test_azure_has_the_deployment_in_its_address_and_the_key_in_a_header(server, chat, monkeypatch):
    monkeypatch.setenv("AZURE_KEY", KEY)
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "another")
    endpoint = f"http://127.0.0.1:{server.server_port}"
    client = chat(base_url=endpoint, model="my-gpt", api_version="2024-10-21", key_variable="AZURE_KEY")
    assert client.complete([ask()])[0].text == "reply 0"
    path, headers, body = server.seen[0]
    assert path == "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
    assert headers["api-key"] == KEY and headers["Authorization"] is None and body["model"] == "my-gpt"
    server.faults = [lambda handler, body: send(handler, 307, {}, Location="http://127.0.0.1:9/elsewhere")]
    with pytest.raises(ServerError) as error:
        client.complete([ask()])
    assert KEY not in str(error.value) and len(server.seen) == 2


@pytest.mark.parametrize(
    "config, named",
    [
        ({"base_url": "https://x.openai.azure.com/openai/v1", "api_version": "2024-10-21"}, "/openai/v1"),
        ({"base_url": "https://x.openai.azure.com", "api_version": "a b"}, "'a b'"),
    ],
)
def test_addresses_that_are_not_azures_are_refused(config, named):
    with pytest.raises(ValueError, match=named):
        ServerConfig("tiny", **config)


def test_azures_key_has_a_variable_of_its_own(monkeypatch):
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    for base in ("https://x.openai.azure.com", "https://x.openai.azure.com/openai/v1"):
        with pytest.raises(ValueError, match="AZURE_OPENAI_API_KEY"):
            check_server(ServerConfig("tiny", base))


def test_later_samples_have_seeds_of_their_own(server, chat):
    chat().complete([ask(seed=3)])
    chat().complete([ask(seed=3, sample=1), ask(seed=3, sample=2), ask(seed=4, sample=1)])
    assert server.bodies[0]["seed"] == 3
    assert len({body["seed"] for body in server.bodies}) == 4
    assert all(0 <= body["seed"] < 2**31 for body in server.bodies)


def test_a_busy_server_is_obeyed(server, chat, waits):
    server.faults = [status(429, Retry_After="7"), status(503, retry_after_ms="250")]
    assert chat().complete([ask()])[0].text == "reply 0"
    assert waits == [7.0, 0.25] and len(server.seen) == 3


def test_failures_are_tried_again_with_growing_waits(server, chat, waits):
    server.faults = [status(500), status(502), status(408)]
    assert chat(first_wait=1.0, longest_wait=3.0).complete([ask()])[0].text == "reply 0"
    assert len(server.seen) == 4  # and not 3 times as many, which the openai package would make of them
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, (1.0, 2.0, 3.0), strict=True))


def test_attempts_end(server, chat, waits):
    server.always = status(500)
    with pytest.raises(ServerError, match="tiny.*http://127.*500.*3 of 3") as caught:
        chat(attempts=3).complete([ask()])
    assert len(server.seen) == 3 and len(waits) == 2 and caught.value.status == 500


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (status(400, {"message": "context of 9000 tokens overflows"}), "status 400.*9000 tokens"),
        (status(404), "status 404"),
        (status(429, {"message": "pay first", "code": "insufficient_quota"}), "pay first"),
        (status(429, Retry_After="3600"), "3600.*longest_wait=60"),
    ],
)
def test_what_trying_again_cannot_mend_is_not_tried_again(server, chat, waits, fault, match):
    server.always = fault
    with pytest.raises(ServerError, match=match):
        chat().complete([ask()])
    assert len(server.seen) == 1 and waits == []


def test_a_prompt_that_is_too_long_has_its_own_error(server, chat):
    server.always = status(400, {"message": "9000 tokens", "code": "context_length_exceeded"})
    with pytest.raises(ContextExceeded, match="tiny.*9000 tokens") as caught:
        chat().complete([ask()])
    assert caught.value.status == 400 and len(server.seen) == 1


@pytest.mark.parametrize("fault", [silent, drip])
def test_a_slow_server_is_left(server, chat, waits, fault):
    """The limit holds for the whole answer: bytes that trickle in do not extend it."""
    server.always = fault
    started = time.monotonic()
    with pytest.raises(TimedOut, match="within 0.3") as caught:
        chat(timeout=0.3, attempts=2).complete([ask()])
    assert 0.6 <= time.monotonic() - started < 10
    assert caught.value.lost == 2 and len(server.seen) == 2


def test_a_connection_that_is_cut_is_tried_again(server, chat):
    server.faults = [cut]
    (reply,) = chat().complete([ask()])
    assert reply.text == "reply 0" and reply.lost == 1
    server.always = cut
    with pytest.raises(ServerError, match="RemoteProtocolError.*attempt 2 of 2") as caught:
        chat(attempts=2).complete([ask()])
    assert caught.value.lost == 2


def test_an_unreadable_body_is_tried_again(server, chat):
    server.faults = [answer(b'{"choices": [{"mess'), answer(b"<html>\xff"), answer(b"[" * 100_000)]
    (reply,) = chat().complete([ask()])
    assert reply.text == "reply 0" and reply.lost == 3
    server.always = answer(b"<html>Bad gateway</html>")
    with pytest.raises(BadReply, match="JSON: <html>Bad gateway"):
        chat(attempts=2).complete([ask()])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({}, "choices"),
        ([], "choices"),
        ({"detail": "quota"}, "choices.*quota"),
        ({"choices": [{"message": {"content": "a"}}] * 2}, "1 samples.*2"),
        ({"choices": [{"text": "old format"}]}, "message.*content"),
        ({"choices": [{"message": {"content": [{"type": "text"}]}}]}, "message.*content"),
        ({"choices": [{"message": {"content": [{"type": "image_url"}]}}]}, "message.*content"),
    ],
)
def test_an_answer_of_another_shape_is_named(server, chat, data, match):
    server.always = answer(data)
    with pytest.raises(BadReply, match=match):
        chat().complete([ask()])
    assert len(server.seen) == 1


def test_a_sparse_answer_will_do(server, chat):
    server.always = answer({"choices": [{"message": {"content": None}, "finish_reason": "length"}]})
    (reply,) = chat().complete([ask()])
    assert reply == ChatReply((Choice("", "length"),), "tiny", seconds=reply.seconds)


def test_half_a_character_does_not_break_a_cache(server, chat, tmp_path):
    server.always = answer(b'{"choices": [{"message": {"content": "a\\ud83d"}}]}')
    cached = Cached(chat(), tmp_path / "c")
    assert cached.complete([ask()])[0].text == cached.complete([ask()])[0].text == "a?"


def test_a_server_that_ignores_n_is_asked_one_by_one(server, chat):
    server.always = lambda handler, body: send(handler, 200, completion({}, str(body["seed"])))
    with pytest.raises(BadReply, match="3 samples.*1.*split=True"):
        chat().complete([ask(n=3, seed=1)])
    server.seen.clear()
    (reply,) = chat(split=True).complete([ask(n=3, seed=1)])
    assert len(server.seen) == 3 and all("n" not in body for body in server.bodies)
    assert len({choice.text for choice in reply.choices}) == 3 and reply.usage == Usage(33, 6, 9)
    assert reply.calls == 3 and chat(split=True).complete([ask(seed=1)])[0].calls == 1
    server.faults = [say, status(400), say]
    with pytest.raises(ServerError, match="status 400") as caught:
        chat(split=True).complete([ask(n=3)])
    assert (caught.value.calls, caught.value.lost) == (3, 2)  # two were answered and billed for nothing


def test_requests_in_flight_are_bounded(server, chat):
    def together(handler, body):
        time.sleep(0.03)
        say(handler, body)

    server.always = together
    client = chat(concurrency=3)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(client.complete, [[ask(str(i)) for i in range(6)]] * 2))
    assert [len(replies) for replies in done] == [6, 6] and server.most == 3


def test_one_failure_does_not_lose_the_others(server, chat):
    server.always = lambda h, body: (status(400) if body["messages"][0]["content"] == "1" else say)(h, body)
    with pytest.raises(ServerError) as caught:
        chat().complete([ask(str(i)) for i in range(3)])
    first, second, third = caught.value.outcomes
    assert first.text == third.text == "reply 0" and isinstance(second, ServerError)


def test_a_server_that_is_not_there_is_named(chat, waits):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ServerError, match=f"{port}/v1.*attempt 2 of 2") as caught:
        chat(base_url=f"http://127.0.0.1:{port}/v1", attempts=2).complete([ask()])
    assert caught.value.lost == 0 and len(waits) == 1


@pytest.mark.parametrize(
    "usage",
    [
        None, {}, [], "many", {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
        {"total_tokens": 5}, {"prompt_tokens": 3}, {"prompt_tokens": 3, "completion_tokens": -1},
        {"prompt_tokens": 3.5, "completion_tokens": 2}, {"prompt_tokens": True, "completion_tokens": 2},
        {"prompt_tokens": "3", "completion_tokens": "2"},
    ],
)  # fmt: skip
def test_a_reply_with_incomplete_usage_is_a_reply(server, chat, tmp_path, usage):
    """Its text was paid for: it is stored, and a budget counts its maximum, 5 + 16 + 64 tokens of prompt and 7."""
    server.always = answer(completion({}) | {"usage": usage})
    budget = Budget(tokens=100)
    cached = Cached(Budgeted(chat(), budget), tmp_path / "c")
    for _ in range(2):
        (reply,) = cached.complete([ask("Which", max_tokens=7)])
        assert reply.text == "reply 0" and reply.usage is None
    assert len(server.seen) == 1 and budget.spent.tokens == 92


@pytest.mark.parametrize("details", [None, [], {}, {"cached_tokens": None}, {"cached_tokens": -1}])
def test_unknown_counts_of_cached_tokens_are_none(server, chat, details):
    counts = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details}
    server.always = answer(completion({}) | {"usage": counts})
    assert chat().complete([ask()])[0].usage == Usage(3, 2, 0)


def _failed_choice(**fields):
    choice = {"index": 0, "message": {"role": "assistant", "content": "half a"}, "finish_reason": "error"}
    return {"choices": [choice | fields], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@pytest.mark.parametrize(
    ("data", "lost"),
    [
        ({"choices": None, "error": {"message": "Provider returned error", "code": 429}}, 0),
        ({"id": "g", "error": {"message": "temporarily overloaded", "code": 502}}, 0),
        ({"error": {"message": "overloaded", "code": "503"}}, 0),
        ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 0),
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, 0),
        ({"object": "error", "message": "busy", "code": 503}, 0),
        ({"choices": [], "error": {"message": "slow down", "code": 429}}, 0),
        (_failed_choice(error={"message": "upstream", "code": 502}), 1),
        (_failed_choice(), 1),
        ({"choices": []}, 1),
    ],
)
def test_a_transient_error_in_an_answer_is_tried_again(server, chat, data, lost):
    server.faults = [answer(data)]
    (reply,) = chat().complete([ask()])
    assert reply.text == "reply 0" and len(server.seen) == 2 and reply.lost == lost


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"error": {"message": "no such model", "code": 400}}, 400),
        ({"error": {"message": "no such model", "code": "404"}}, 404),
        ({"error": {"message": "no such model", "code": "model_not_found"}}, None),
        ({"error": "no such model"}, None),
        ({"error": {"message": "no such model", "code": 1302}}, None),
        ({"error": {"message": "no such model", "code": 429, "type": "insufficient_quota"}}, 429),
        ({"error": {"metadata": {"raw": "no such model"}, "message": "Provider returned error", "code": 400}}, 400),
        (_failed_choice(error={"message": "no such model", "code": 400}), 400),
    ],
)
def test_other_errors_in_an_answer_are_final(server, chat, waits, data, code):
    server.always = answer(data)
    with pytest.raises(ServerError, match="such model") as caught:
        chat().complete([ask()])
    assert len(server.seen) == 1 and waits == [] and caught.value.status == code


def test_errors_in_answers_have_the_kinds_of_statuses(server, chat, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    server.always = answer({"error": {"message": "9000 tokens", "code": "context_length_exceeded"}})
    with pytest.raises(ContextExceeded):
        chat().complete([ask()])
    server.always = answer({"error": {"message": f"bad key {KEY}", "code": 401}})
    with pytest.raises(ServerError, match=r"\[key\].*SOME_KEY") as caught:
        chat(key_variable="SOME_KEY").complete([ask()])
    assert caught.value.status == 401


def test_stop_strings_are_applied_here(server, chat):
    """A server that obeyed them would end a reply within its thoughts."""
    text = "<think>\na cow.\n\nwater.\n</think>\n\n- Drink water\n\nYou see a cow."
    server.always = lambda handler, body: send(handler, 200, completion(body, text))
    (reply,) = chat().complete([ask(stop=("\n\n",))])
    assert "stop" not in server.bodies[0]
    assert reply.choices == (Choice("<think>\na cow.\n\nwater.\n</think>\n\n- Drink water"),)


def test_thoughts_in_parts_and_fields_are_left_out(server, chat):
    def message(**fields):
        return answer({"choices": [{"message": fields, "finish_reason": "stop"}]})

    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "- no"}]}
    server.faults = [
        message(content=[thinking, {"type": "text", "text": "- Drink"}, {"type": "text", "text": " water"}]),
        message(content="\n\n- Drink water\n\nmore", reasoning_content="a cow."),
    ]
    for _ in range(2):
        assert chat().complete([ask(stop=("\n\n",))])[0].text == "- Drink water"


def _unsupported(field, message="Unsupported parameter: '{}' is not supported with this model."):
    error = {"message": message.format(field), "param": field, "code": "unsupported_parameter"}
    return lambda handler, body: (status(400, error) if field in body else say)(handler, body)


@pytest.mark.parametrize(
    ("field", "request_", "left"),
    [
        ("stop", ask(stop=("a",)), {"max_tokens", "temperature"}),
        ("seed", ask(seed=3), {"max_tokens", "temperature"}),
        ("max_tokens", ask(), {"max_completion_tokens", "temperature"}),
        ("temperature", ask(), {"max_tokens"}),
        ("top_p", ask(top_p=1.0), {"max_tokens", "temperature"}),
        ("n", ask(n=3), {"max_tokens", "temperature"}),
    ],
)
def test_fields_that_a_model_refuses_are_left_out(server, chat, waits, field, request_, left):
    """Where the request means the same without them; the server is asked once whether it takes them."""
    server.always = _unsupported(field)
    client = chat(send_stop=True)
    for _ in range(2):
        (reply,) = client.complete([request_])
        assert len(reply.choices) == request_.n == reply.calls and reply.lost == 0 and waits == []
    assert client.splits == (field == "n")
    assert [field in body for body in server.bodies] == [True] + [False] * (2 * request_.n)
    assert set(server.bodies[-1]) == {"model", "messages"} | left


@pytest.mark.parametrize(
    "error",
    [
        {"message": "m does not support parameters: ['stop'], for this model"},
        {"message": "Argument not supported on this model: stop", "code": 400},
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}]},
        "Unrecognized request argument supplied: stop",
    ],
)
@pytest.mark.parametrize("code", [200, 400, 422])
def test_refusals_in_other_words(server, chat, code, error):
    refuse = lambda handler, body: send(handler, code, {"error": error})  # noqa: E731
    server.always = lambda handler, body: (refuse if "stop" in body else say)(handler, body)
    assert chat(send_stop=True).complete([ask(stop=("z",))])[0].text == "reply 0" and len(server.seen) == 2


@pytest.mark.parametrize(("field", "request_"), [("temperature", ask(temperature=0.5)), ("top_p", ask(top_p=0.9))])
def test_a_field_that_changes_the_meaning_is_not_left_out(server, chat, field, request_):
    server.always = _unsupported(field, "'{}' does not support 0.5. Only the default (1) value is supported.")
    with pytest.raises(ServerError, match=f"set {field} to None") as caught:
        chat().complete([request_])
    assert caught.value.unsupported == field and len(server.seen) == 1
    model = chat()
    server.always = lambda handler, body: (_unsupported(field) if field in body else say)(handler, body)
    model.complete([replace(request_, **{field: 1.0})])  # left out
    with pytest.raises(ServerError, match=f"set {field} to None"):  # and not for a request that it changes
        model.complete([request_])


def test_a_model_that_refuses_several_fields(server, chat):
    def picky(handler, body):
        for field in ("max_tokens", "stop", "n", "seed"):
            if field in body:
                return _unsupported(field)(handler, body)
        return say(handler, body)

    server.always = picky
    (reply,) = chat(send_stop=True, concurrency=2).complete([ask(stop=("z",), seed=1, n=2)])
    assert len(reply.choices) == 2
    assert set(server.bodies[-1]) == {"model", "messages", "temperature", "max_completion_tokens"}
    server.always = lambda handler, body: status(400, {"message": "max_tokens: max_completion_tokens unsupported"})(
        handler, body
    )
    with pytest.raises(ServerError, match="unsupported"):
        chat().complete([ask()])
    server.seen.clear()
    server.always = status(400, {"message": "max_tokens is too large: this model supports at most 4096"})
    with pytest.raises(ServerError, match="too large"):
        chat().complete([ask()])
    assert len(server.seen) == 1
