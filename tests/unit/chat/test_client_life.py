"""The client's keys, threads, interrupts and settings, against a real server over loopback."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmrl_jax.chat import (
    Budget,
    Budgeted,
    BudgetExceeded,
    Cached,
    ChatError,
    OpenAIChat,
    Recorder,
    ServerConfig,
    ServerError,
)
from llmrl_jax.chat.store import Store
from tests.chat_server import KEY, answer, ask, completion, cut, say, silent, status


pytest.importorskip("openai", reason="needs the extra api")
pytest.importorskip("tenacity", reason="needs the extra api")

pytest_plugins = ("tests.chat_server",)


def test_the_key_goes_to_the_server_and_nowhere_else(server, chat, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("MY_KEY", KEY)
    server.faults = [say, status(401, {"message": f"Incorrect key {KEY}, Bearer {KEY[:20]}"})]
    caplog.set_level(logging.DEBUG)
    client = chat(key_variable="MY_KEY")
    recorder = Recorder(client, tmp_path / "talk.jsonl")
    cached = Cached(recorder, tmp_path / "c")
    cached.complete([ask()])
    assert server.seen[0][1]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(ServerError, match=r"Incorrect key \[key\].*MY_KEY") as caught:
        cached.complete([ask("again")])
    chain, seen = caught.value, []
    while chain is not None:
        seen.append(repr(chain) + repr(vars(chain)))
        chain = chain.__cause__
    seen += [caplog.text, repr(client), repr(vars(client))]
    seen += [path.read_bytes().decode("latin1") for path in tmp_path.iterdir()]
    visible = "".join(seen)
    assert KEY not in visible and KEY[:20] not in visible and "Which way?" in visible


def test_a_key_that_a_server_repeats_is_taken_out_also_where_a_quote_ends(server, chat, monkeypatch, tmp_path):
    key = "not-of-the-usual-kind-0123456789"
    monkeypatch.setenv("MY_KEY", key)
    long = "x" * 280 + key
    server.faults = [
        answer({"choices": [{"message": {"content": f"your key is {key}"}}]}),
        status(400, {"message": long}),
        answer({"detail": long}),
        answer(long.encode()),
    ]
    client = chat(key_variable="MY_KEY", attempts=1)
    assert Cached(client, tmp_path / "c").complete([ask()])[0].text == "your key is [key]"
    assert key.encode() not in (tmp_path / "c").read_bytes()
    for _ in range(3):
        with pytest.raises(ServerError) as caught:
            client.complete([ask()])
        assert key[:8] not in str(caught.value)


def test_openai_s_key_is_not_sent_to_others(server, chat, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", KEY)
    monkeypatch.setenv("OPENAI_PROJECT_ID", KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"Authorization: Bearer {KEY}\nX-Gateway-Key: {KEY}")
    chat().complete([ask()])
    assert KEY not in str(server.seen[0][1])


def test_a_key_that_is_a_word_stays_in_replies(server, chat, monkeypatch):
    monkeypatch.setenv("MY_KEY", "token")
    server.always = answer(completion({}, "take the token"))
    (reply,) = chat(key_variable="MY_KEY").complete([ask()])
    assert reply.text == "take the token 0" and reply.usage is not None and reply.usage.prompt_tokens == 11


def test_a_key_that_is_missing_or_broken_is_named_before_anything_is_sent(server, chat, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY.*empty"):
        chat(base_url="https://api.openai.com/v1").complete([ask()])
    monkeypatch.setenv("MY_KEY", KEY + "\n")
    with pytest.raises(ValueError, match="MY_KEY.*blank") as caught:
        chat(key_variable="MY_KEY").complete([ask()])
    assert KEY not in str(caught.value) and server.seen == []


def test_it_may_be_called_inside_a_running_loop(chat):
    async def notebook():
        return chat().complete([ask()])

    assert asyncio.run(notebook())[0].text == "reply 0"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "llmrl-chat"]


def test_closing_and_forgetting_end_the_thread(server, chat):
    client = chat()
    with client:
        client.complete([ask()])
        assert len(threads()) == 1
    assert not threads()
    client.complete([ask()])
    client.close()
    forgotten = OpenAIChat(client.config)
    forgotten.complete([ask()])
    (thread,) = threads()
    del forgotten
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_closing_ends_what_waits(server, chat):
    server.always = silent
    client = chat()
    caught = []

    def run():
        with pytest.raises(ChatError, match=r"/v1\b.*closed") as error:
            client.complete([ask()])
        caught.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    while not server.seen:
        time.sleep(0.01)
    client.close()
    waiting.join(10)
    assert len(caught) == 1 and not threads()


def test_an_interrupt_cancels_what_is_in_flight(server, chat, monkeypatch):
    server.always = silent
    client = chat(timeout=5.0, attempts=1)
    client.complete([])
    started = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine, loop):
        future = started(coroutine, loop)

        class Wrapped:
            cancel = staticmethod(future.cancel)

            def result(self):
                while not server.seen:
                    time.sleep(0.01)
                raise KeyboardInterrupt

        return Wrapped()

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.complete([ask(str(i)) for i in range(20)])
    server.always = None
    server.over.set()
    assert client.complete([ask()])[0].text == "reply 0"
    assert len(server.seen) <= 9  # eight slots were taken; the other twelve were never sent


def test_the_same_question_from_many_threads_is_sent_once(server, chat, tmp_path):
    def wait_for_all(handler, body):
        server.over.wait(0.3)
        say(handler, body)

    server.always = wait_for_all
    cached = Cached(chat(), tmp_path / "c")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(cached.complete, [[ask()]] * 8))
    assert len(server.seen) == 1 and {reply.text for (reply,) in replies} == {"reply 0"}


def test_the_whole_stack(server, chat, tmp_path):
    """Cache, recorder, budget, client; a fault in the middle; then the same run with no server."""
    server.faults = [status(500), cut]
    budget = Budget(tokens=2000)
    model = Cached(Recorder(Budgeted(chat(concurrency=1), budget), tmp_path / "talk.jsonl"), tmp_path / "c")
    asks = [ask("a", n=2, max_tokens=20), ask("b", max_tokens=20), ask("a", max_tokens=20)]
    live = model.complete(asks)
    # two requests of 11 + 4 and 11 + 2 tokens, and one lost attempt: "a" is 1 + 16 + 64 at most, twice, and 2 x 20
    assert (budget.spent.calls, budget.spent.tokens) == (2, 28 + 202)
    with pytest.raises(BudgetExceeded, match="2000 tokens"):
        model.complete([ask("c", max_tokens=2000)])
    server.always = status(500)
    replay = Cached("tiny", tmp_path / "c", "replay").complete(asks)
    assert [r.choices for r in replay] == [r.choices for r in live]
    assert len(server.seen) == 4 and len(Store(tmp_path / "c")) == 3


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"base_url": "127.0.0.1:8000"}, "base_url.*http"),
        ({"base_url": "http://user:pw@host/v1"}, "password"),
        ({"base_url": "http://host/v1?key=1"}, "base_url.*password"),
        ({"model": ""}, "model.*empty"),
        ({"concurrency": 0}, "concurrency.*0"),
        ({"attempts": 0}, "attempts.*0"),
        ({"timeout": 0.0}, "timeout.*0"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, match):
    with pytest.raises(ValueError, match=match) as caught:
        ServerConfig(**{"model": "m", "base_url": "http://127.0.0.1/v1", **fields})
    assert "pw" not in str(caught.value)
