"""The HTTP side: OpenAI's routes and `/v1/score`. Every limit is checked before a request reaches the device."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envs_jax.extras import missing
from llmrl_jax.serve.answers import (
    Answer,
    Events,
    failed,
    headers_of,
    json_response,
    model_body,
    note_tokens,
    refusal,
    score_body,
)
from llmrl_jax.serve.engine import Engine
from llmrl_jax.serve.inbox import Disconnected, Inbox, Readers, collect, read_body
from llmrl_jax.serve.metrics import Metrics, log_access, make_metrics, page, route_of
from llmrl_jax.serve.request import ApiError
from llmrl_jax.serve.wire import read_chat, read_completion, read_score


if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

log = logging.getLogger("llmrl_jax.serve")

CLOSE_SECONDS = 0.5
"""Seconds that the device's current step has to end when the server stops."""
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True)
class Limits:
    """Limits on what a client may request."""

    request_bytes: int = 1_000_000
    """Largest size of a request's body, in bytes."""
    requests: int = 128
    """Open requests that are posted, including those that are still being received."""
    body_seconds: float = 30.0
    """Seconds from a request's head to the end of its body."""
    score_pairs: int = 1024
    """Prompts times candidates of a scoring request."""
    score_tokens: int = 2**20
    """Tokens of a scoring request's pairs, each prompt counted once per candidate."""
    score_characters: int = 2**22
    """Characters of a scoring request's pairs, counted in the same way: each pair is tokenized on its own."""
    default_tokens: int = 512
    """`max_tokens` of a chat completion that gives none (16 for a completion, as at OpenAI)."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")


def needs_extra(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for a missing extra, with the command that installs it."""
    return missing("serving", "serve", error.name or "starlette")


def make_app(
    engine: Engine, *, key: str = "", limits: Limits | None = None, hosts: frozenset[str] | None = None
) -> Starlette:
    """Application: `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/v1/score`, `/metrics` and `/health`.

    **Arguments:** `engine`, which is closed with the application; `key`, the API key that requests must send, except to
    `/health` (empty: none is needed); `limits`; `hosts`, the host names that requests may use, None for any. A server
    without a key on this machine takes `LOOPBACK`, so that a web page cannot reach it under a name of its own.
    **Returns:** an ASGI application.
    **Raises:** `ModuleNotFoundError` without the extra `serve`; `ValueError` for a key that no header can hold.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.routing import Route
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("the API key contains a blank or a character that an HTTP header cannot carry; change it")
    metrics = make_metrics(engine)
    server = _Server(engine, key, limits or Limits(), metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        server.stop()
        end = time.monotonic() + CLOSE_SECONDS
        while not engine.close(0) and time.monotonic() < end:
            await asyncio.sleep(0.01)

    async def http_error(request: Request, error: Exception) -> Any:
        assert isinstance(error, HTTPException)
        messages = {404: "there is no such route", 405: f"this route does not take {request.method}"}
        message = messages.get(error.status_code, str(error.detail))
        return refusal(ApiError(message, error.status_code), request.scope["llmrl.request_id"])

    routes = [
        Route("/health", server.health),
        Route("/metrics", server.guarded(server.metrics, limited=False)),
        Route("/v1/models", server.guarded(server.models, limited=False)),
        Route("/v1/models/{name:path}", server.guarded(server.one_model, limited=False)),
        Route("/v1/completions", server.guarded(partial(server.complete, chat=False)), methods=["POST"]),
        Route("/v1/chat/completions", server.guarded(partial(server.complete, chat=True)), methods=["POST"]),
        Route("/v1/score", server.guarded(server.score), methods=["POST"]),
    ]
    gate = Middleware(Gate, hosts=hosts, metrics=metrics, refusal=refusal)
    app = Starlette(routes=routes, middleware=[gate], lifespan=lifespan, exception_handlers={HTTPException: http_error})
    app.router.redirect_slashes = False  # a redirect repeats the host name that the request gave
    app.state.stop = server.stop
    app.state.readers = server.readers
    return app


class _Server:
    """The routes, with the state that they share."""

    def __init__(self, engine: Engine, key: str, limits: Limits, metrics: Metrics | None):
        self._engine, self._key, self._limits, self._metrics = engine, key.encode(), limits, metrics
        self._created = int(time.time())
        self._open = 0
        self.readers = Readers()

    def stop(self) -> None:
        """End all requests with an error, and refuse more. On the event loop's thread."""
        self._engine.stop()
        self.readers.stop()

    async def health(self, request: Request) -> Any:
        """Return whether the server answers. Needs no key and reveals nothing else."""
        return json_response({"status": "ok" if self._engine.alive else "stopping"}, 200 if self._engine.alive else 503)

    def guarded(
        self, route: Callable[[Request, str], Awaitable[Any]], limited: bool = True
    ) -> Callable[[Request], Awaitable[Any]]:
        """A route with the common checks; errors become HTTP answers. **Arguments:** `route`; `limited`, whether it
        counts as an open request. What only looks does not, so that it is answered while the server is full."""

        async def guard(request: Request) -> Any:
            request_id = request.scope["llmrl.request_id"]
            try:
                self._check_caller(request)
                if not limited:
                    return await route(request, request_id)
                if self._open >= self._limits.requests:
                    raise ApiError(f"{self._open} requests are open, the most at a time", 429, retry_after=1)
                self._open += 1
                # a streamed answer counts as open until it ends
                release = _RunOnce(self._leave)
                try:
                    answer = await route(request, request_id)
                except BaseException:
                    release()
                    raise
                if isinstance(answer, Events):
                    answer.release = release
                else:
                    release()
                return answer
            except ApiError as error:
                return refusal(error, request_id)
            except Disconnected:
                return json_response({}, CUT_OFF, request_id)  # the client is gone
            except Exception:
                log.exception("request %s failed", request_id)
                return refusal(failed(request_id), request_id)

        return guard

    def _leave(self) -> None:
        self._open -= 1

    def _check_caller(self, request: Request) -> None:
        """**Raises:** `ApiError` for a missing key."""
        if self._key:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            valid = hmac.compare_digest(token.strip().encode(), self._key)
            if scheme.lower() != "bearer" or not valid:
                message = "the key is missing or wrong; send it in a header `Authorization: Bearer KEY`"
                raise ApiError(message, 401, code="invalid_api_key")

    async def metrics(self, request: Request, request_id: str) -> Any:
        """The counts, for Prometheus."""
        from starlette.responses import Response

        content, kind = page(self._metrics)
        return Response(content, 200, headers_of(request_id), kind)

    async def models(self, request: Request, request_id: str) -> Any:
        """`GET /v1/models`: the one model."""
        return json_response(
            {"object": "list", "data": [model_body(self._engine.served, self._created)]}, 200, request_id
        )

    async def one_model(self, request: Request, request_id: str) -> Any:
        """`GET /v1/models/{name}`."""
        name, served = request.path_params["name"], self._engine.served
        if name != served.name:
            raise ApiError(
                f"there is no model {name!r} here; this server's is {served.name!r}", 404, code="model_not_found"
            )
        return json_response(model_body(served, self._created), 200, request_id)

    async def complete(self, request: Request, request_id: str, chat: bool) -> Any:
        """A completion or a chat completion, whole or streamed."""
        body, engine = await self._body(request), self._engine
        reader = (
            partial(read_chat, body, engine.sampler, self._limits.default_tokens)
            if chat
            else partial(read_completion, body, engine.sampler, 16, engine.max_queue)
        )
        read = await self.readers.run(lambda check: reader(check=check), request.receive)
        answer = Answer(engine.served, read.asks, chat, request_id)
        inbox = Inbox(engine)
        inbox.ask(read.asks)
        if read.stream:
            return Events(inbox, answer, read.usage, len(read.asks), request_id)
        content = answer.body(await collect(inbox, len(read.asks), request.receive))
        note_tokens(request.scope, content["usage"])
        return json_response(content, 200, request_id)

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_body(request, self._limits.request_bytes, self._limits.body_seconds)

    async def score(self, request: Request, request_id: str) -> Any:
        """Log-probabilities of candidates."""
        body, engine, limits = await self._body(request), self._engine, self._limits
        maxima = limits.score_pairs, limits.score_tokens, limits.score_characters
        read = await self.readers.run(lambda check: read_score(body, engine.scorer, *maxima, check), request.receive)
        inbox = Inbox(engine)
        inbox.work(engine.scorer.run(read.pairs))
        log_probs: list[list[float]] = []
        async with inbox.watching(request.receive):
            while (part := await inbox.next()) is not None:
                log_probs += part
        content = score_body(read, engine.served, log_probs)
        note_tokens(request.scope, content["usage"])
        return json_response(content, 200, request_id)


class _RunOnce:
    """A function that runs at its first call only."""

    def __init__(self, call: Callable[[], None]):
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


# --- checks of framing and host name before a route -----------------------------------------------------------------


CUT_OFF = 499
"""The status of a request whose client left before the answer began; it is counted and not sent."""


class Gate:
    """An ASGI middleware. It refuses a request with two different lengths, which a proxy may read as another request
    than this server does, and one for another host name, before anything else is done or answered.

    **Arguments:** `app`; `hosts`, the host names that requests may use, None for any; `metrics`; `refusal`, which makes
    the response of an `ApiError` and a request's id.
    """

    def __init__(self, app: Any, hosts: frozenset[str] | None, metrics: Metrics | None, refusal: Any):
        self._app, self._hosts, self._metrics, self._refusal = app, hosts, metrics, refusal

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["llmrl.request_id"] = f"req_{secrets.token_hex(12)}"
        started, status = time.monotonic(), CUT_OFF

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._check(scope)
            except ApiError as error:
                await self._refusal(error, scope["llmrl.request_id"])(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
        finally:
            route, seconds = route_of(scope["path"]), time.monotonic() - started
            if self._metrics is not None:
                self._metrics.count(route, status, seconds, *scope.get("llmrl.tokens", (0, 0)))
            log_access(scope, route, status, seconds)

    def _check(self, scope: Any) -> None:
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        names = {name for name, _ in headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise ApiError("Content-Length and Transfer-Encoding are both given; send one of them", close=True)
        if self._hosts is not None:
            host = next((value for name, value in headers if name == b"host"), b"")
            try:
                called = urlsplit(f"//{host.decode('latin-1')}").hostname
            except ValueError:
                called = None
            if called not in self._hosts:
                raise ApiError(f"the host name must be {' or '.join(sorted(self._hosts))}", 403)
