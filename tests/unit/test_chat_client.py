"""The client against a real server over loopback, through the real openai package, with faults injected."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llmrl_jax.chat import (
    BadReply,
    Budget,
    Budgeted,
    BudgetExceeded,
    Cached,
    ChatError,
    ChatReply,
    ChatRequest,
    Choice,
    ContextExceeded,
    Message,
    OpenAIChat,
    Recorder,
    ServerConfig,
    ServerError,
    TimedOut,
    Usage,
    import_jsonl,
)
from llmrl_jax.chat.store import Store


pytest.importorskip("openai", reason="needs the extra api")
pytest.importorskip("tenacity", reason="needs the extra api")

KEY = "sk-test-0123456789abcdef"


def completion(body, text="reply"):
    """A chat completion like OpenAI's, the choices in reverse."""
    n = body.get("n", 1)
    choices = [
        {"index": i, "message": {"role": "assistant", "content": f"{text} {i}"}, "finish_reason": "stop"}
        for i in reversed(range(n))
    ]
    usage = {"prompt_tokens": 11, "completion_tokens": 2 * n, "prompt_tokens_details": {"cached_tokens": 3}}
    return {"id": "x", "model": "tiny-2026", "system_fingerprint": "fp", "choices": choices, "usage": usage}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.seen.append((self.path, self.headers, body))
            server.flying += 1
            server.most = max(server.most, server.flying)
            fault = server.faults.pop(0) if server.faults else server.always
        try:
            (fault or say)(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with server.lock:
                server.flying -= 1

    def log_message(self, *_):
        pass


def send(handler, status, data, **headers):
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": len(content), **headers}.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(content)


def say(handler, body):
    send(handler, 200, completion(body))


def status(code, error=None, **headers):
    return lambda handler, body: send(handler, code, {"error": error or {"message": f"fault {code}"}}, **headers)


def answer(data):
    return lambda handler, body: send(handler, 200, data)


def cut(handler, body):
    """Promise a thousand bytes and hang up after twelve."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": ')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def drip(handler, body):
    """A byte at a time, each soon after the last, without end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b" ")


def silent(handler, body):
    handler.server.over.wait(20)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.over = threading.Lock(), threading.Event()
        self.seen, self.faults, self.always = [], [], None
        self.flying = self.most = 0

    def handle_error(self, request, client_address):
        pass

    @property
    def bodies(self):
        return [body for _, _, body in self.seen]


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def chat(server, waits, monkeypatch):
    """A client of the server; its waits between attempts are written down instead of waited."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = []

    async def sleep(seconds):
        waits.append(seconds)

    def make(**config):
        url = f"http://127.0.0.1:{server.server_port}/v1"
        made.append(OpenAIChat(ServerConfig(**{"model": "tiny", "base_url": url, **config}), sleep=sleep))
        return made[-1]

    yield make
    server.over.set()
    for client in made:
        client.close()


def ask(text="Which way?", **fields):
    return ChatRequest((Message("user", text),), **fields)


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


def test_the_key_goes_to_the_server_and_nowhere_else(server, chat, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("MY_KEY", KEY)
    server.faults = [say, status(401, {"message": f"Incorrect key {KEY}, Bearer {KEY[:20]}"})]
    caplog.set_level(logging.DEBUG)
    client = chat(key_variable="MY_KEY")
    recorder = Recorder(client, tmp_path / "talk.jsonl")
    cached = Cached(recorder, tmp_path / "c")
    cached.complete([ask()])
    assert server.seen[0][1]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(ServerError, match=r"Incorrect key \[key\].*read from MY_KEY") as caught:
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
    chat().complete([ask()])
    assert KEY not in str(server.seen[0][1])


def test_a_key_that_is_missing_or_broken_is_named_before_anything_is_sent(server, chat, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY is empty"):
        chat(base_url="https://api.openai.com/v1").complete([ask()])
    monkeypatch.setenv("MY_KEY", KEY + "\n")
    with pytest.raises(ValueError, match="MY_KEY holds a blank") as caught:
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
        with pytest.raises(ChatError, match="closed while it waited") as error:
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
    """Cache, recorder, budget, client; a fault in the middle; then the same run with no server, from either file."""
    server.faults = [status(500), cut]
    budget = Budget(tokens=2000)
    model = Cached(Recorder(Budgeted(chat(concurrency=1), budget), tmp_path / "talk.jsonl"), tmp_path / "c")
    asks = [ask("a", n=2, max_tokens=20), ask("b", max_tokens=20), ask("a", max_tokens=20)]
    live = model.complete(asks)
    # two requests of 11 + 4 and 11 + 2 tokens, and one lost attempt: "a" is 1 + 16 tokens at most, twice, and 2 x 20
    assert (budget.spent.calls, budget.spent.tokens) == (2, 28 + 74)
    with pytest.raises(BudgetExceeded, match="of 2000 tokens"):
        model.complete([ask("c", max_tokens=2000)])
    server.always = status(500)
    import_jsonl(tmp_path / "talk.jsonl", tmp_path / "from_talk")
    for file in ("c", "from_talk"):
        replay = Cached("tiny", tmp_path / file, "replay").complete(asks)
        assert [r.choices for r in replay] == [r.choices for r in live]
    assert len(server.seen) == 4 and len(Store(tmp_path / "c")) == 3


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"base_url": "127.0.0.1:8000"}, "not an http"),
        ({"base_url": "http://user:pw@host/v1"}, "password"),
        ({"base_url": "http://host/v1?key=1"}, "password or a query"),
        ({"model": ""}, "model is empty"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"timeout": 0.0}, "timeout is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, match):
    with pytest.raises(ValueError, match=match) as caught:
        ServerConfig(**{"model": "m", "base_url": "http://127.0.0.1/v1", **fields})
    assert "pw" not in str(caught.value)
