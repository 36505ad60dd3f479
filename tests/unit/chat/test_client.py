"""The client against a real server over loopback, through the real openai package, with faults injected."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmrl_jax.chat import (
    BadReply,
    Cached,
    ChatReply,
    ChatRequest,
    Choice,
    ContextExceeded,
    Message,
    ServerError,
    TimedOut,
    Usage,
)
from tests.chat_server import answer, ask, completion, cut, drip, say, send, silent, status


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
    (reply,) = chat().complete([request])
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
    with pytest.raises(ServerError, match=r"tiny at http://127.*status 500: .*fault 500.*\(attempt 3 of 3\)") as caught:
        chat(attempts=3).complete([ask()])
    assert len(server.seen) == 3 and len(waits) == 2 and caught.value.status == 500


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (status(400, {"message": "context of 9000 tokens overflows"}), "status 400.*9000 tokens"),
        (status(404), "status 404"),
        (status(429, {"message": "pay first", "code": "insufficient_quota"}), "pay first"),
        (status(429, Retry_After="3600"), "asks to wait 3600 s, longer than longest_wait=60"),
    ],
)
def test_what_trying_again_cannot_mend_is_not_tried_again(server, chat, waits, fault, match):
    server.always = fault
    with pytest.raises(ServerError, match=match):
        chat().complete([ask()])
    assert len(server.seen) == 1 and waits == []


def test_a_prompt_that_is_too_long_has_its_own_error(server, chat):
    server.always = status(400, {"message": "9000 tokens", "code": "context_length_exceeded"})
    with pytest.raises(ContextExceeded, match="tiny at .*9000 tokens") as caught:
        chat().complete([ask()])
    assert caught.value.status == 400 and len(server.seen) == 1


@pytest.mark.parametrize("fault", [silent, drip])
def test_a_slow_server_is_left(server, chat, waits, fault):
    """The limit holds for the whole answer: bytes that trickle in do not extend it."""
    server.always = fault
    started = time.monotonic()
    with pytest.raises(TimedOut, match="within 0.3 s") as caught:
        chat(timeout=0.3, attempts=2).complete([ask()])
    assert 0.6 <= time.monotonic() - started < 10
    assert caught.value.lost == 2 and len(server.seen) == 2


def test_a_connection_that_is_cut_is_tried_again(server, chat):
    server.faults = [cut]
    (reply,) = chat().complete([ask()])
    assert reply.text == "reply 0" and reply.lost == 1
    server.always = cut
    with pytest.raises(ServerError, match="broke before the answer was whole") as caught:
        chat(attempts=2).complete([ask()])
    assert caught.value.lost == 2


def test_an_unreadable_body_is_tried_again(server, chat):
    server.faults = [answer(b'{"choices": [{"mess'), answer(b"<html>\xff"), answer(b"[" * 100_000)]
    (reply,) = chat().complete([ask()])
    assert reply.text == "reply 0" and reply.lost == 3
    server.always = answer(b"<html>Bad gateway</html>")
    with pytest.raises(BadReply, match="not JSON: <html>Bad gateway"):
        chat(attempts=2).complete([ask()])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({}, "no list of choices"),
        ([], "no list of choices"),
        ({"error": {"message": "quota"}}, "no list of choices.*quota"),
        ({"choices": []}, "1 samples were asked for and 0 came"),
        ({"choices": [{"text": "old format"}]}, "no message with a text in content"),
        ({"choices": [{"message": {"content": [{"type": "text"}]}}]}, "no message with a text"),
        ({"choices": [{"message": {"content": "x"}}], "usage": []}, "usage is"),
        ({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -1}}, "usage.prompt_tokens is -1"),
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
    with pytest.raises(BadReply, match="3 samples were asked for and 1 came; set split=True"):
        chat().complete([ask(n=3, seed=1)])
    server.seen.clear()
    (reply,) = chat(split=True).complete([ask(n=3, seed=1)])
    assert len(server.seen) == 3 and all("n" not in body for body in server.bodies)
    assert len({choice.text for choice in reply.choices}) == 3 and reply.usage == Usage(33, 6, 9)
    server.faults = [say, status(400), say]
    with pytest.raises(ServerError, match="status 400") as caught:
        chat(split=True).complete([ask(n=3)])
    assert caught.value.lost == 2  # two were answered and billed for nothing


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
    with pytest.raises(ServerError, match=f"{port}/v1: the server cannot be reached.*attempt 2 of 2") as caught:
        chat(base_url=f"http://127.0.0.1:{port}/v1", attempts=2).complete([ask()])
    assert caught.value.lost == 0 and len(waits) == 1
