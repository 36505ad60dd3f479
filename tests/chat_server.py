"""A chat server over loopback that can be told to fail, and clients of it."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llmrl_jax.chat import (
    ChatRequest,
    Message,
    OpenAIChat,
    ServerConfig,
)


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
