"""The HTTP side: OpenAI's routes and `/v1/score`. Every limit is checked before a request reaches the device."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from llmrl_jax.serve.engine import Busy, Engine, Job, Stopping, Work
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.gate import CUT_OFF, Gate
from llmrl_jax.serve.metrics import Metrics, make_metrics, page
from llmrl_jax.serve.request import Ask, Sample
from llmrl_jax.serve.wire import Answer, model_body, read_chat, read_completion, read_score, score_body


if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

log = logging.getLogger("llmrl_jax.serve")

LONGEST_NUMBER = 64
"""Characters of a number in a request. Python needs quadratic time for long ones."""
CLOSE_SECONDS = 0.5
"""Seconds that the device's current step has to end when the server stops."""
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True)
class Limits:
    """Limits on what a client may request."""

    request_bytes: int = 1_000_000
    """Largest size of a request's body, in bytes."""
    requests: int = 128
    """Open requests, including those that are still being received."""
    body_seconds: float = 30.0
    """Seconds from a request's head to the end of its body."""
    score_pairs: int = 1024
    """Prompts times candidates of a scoring request."""
    score_tokens: int = 2**20
    """Tokens of a scoring request's pairs, each prompt counted once per candidate."""
    default_tokens: int = 512
    """`max_tokens` of a chat completion that gives none (16 for a completion, as at OpenAI)."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")


class _Gone(Exception):
    """The client has disconnected."""


def needs_extra(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for a missing extra, with the command that installs it."""
    return ModuleNotFoundError(f"serving needs {error.name}, of the extra: pip install 'llmrl_jax[serve]'")


def make_app(
    engine: Engine, *, key: str = "", limits: Limits | None = None, hosts: frozenset[str] | None = None
) -> Starlette:
    """The application: `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/v1/score`, `/metrics` and `/health`.

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
        await asyncio.to_thread(engine.close, CLOSE_SECONDS)

    async def http_error(request: Request, error: Exception) -> Any:
        assert isinstance(error, HTTPException)
        what = {404: "there is no such route", 405: f"this route does not take {request.method}"}
        said = what.get(error.status_code, str(error.detail))
        return _refusal(ApiError(said, error.status_code), request.scope["llmrl.request_id"])

    routes = [
        Route("/health", server.health),
        Route("/metrics", server.guarded(server.metrics)),
        Route("/v1/models", server.guarded(server.models)),
        Route("/v1/models/{name:path}", server.guarded(server.one_model)),
        Route("/v1/completions", server.guarded(partial(server.complete, chat=False)), methods=["POST"]),
        Route("/v1/chat/completions", server.guarded(partial(server.complete, chat=True)), methods=["POST"]),
        Route("/v1/score", server.guarded(server.score), methods=["POST"]),
    ]
    gate = Middleware(Gate, hosts=hosts, metrics=metrics, refusal=_refusal)
    app = Starlette(routes=routes, middleware=[gate], lifespan=lifespan, exception_handlers={HTTPException: http_error})
    app.router.redirect_slashes = False  # a redirect repeats the host name that the request gave
    app.state.stop = engine.stop
    return app


class _Server:
    """What all routes use."""

    def __init__(self, engine: Engine, key: str, limits: Limits, metrics: Metrics | None):
        self._engine, self._key, self._limits, self._metrics = engine, key.encode(), limits, metrics
        self._created = int(time.time())
        self._at_work = 0

    async def health(self, request: Request) -> Any:
        """Whether the server answers. Needs no key and reveals nothing else."""
        return _json({"status": "ok" if self._engine.alive else "stopping"}, 200 if self._engine.alive else 503)

    def guarded(self, route: Callable[[Request, str], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
        """A route with the common checks; errors become HTTP answers."""

        async def guard(request: Request) -> Any:
            request_id = request.scope["llmrl.request_id"]
            try:
                self._check_caller(request)
                if self._at_work >= self._limits.requests:
                    raise ApiError(f"{self._at_work} requests are at work, as many as may be", 429, retry_after=1)
                self._at_work += 1
                # a streamed answer counts as open until it ends
                done = _Once(self._leave)
                try:
                    answer = await route(request, request_id)
                except BaseException:
                    done()
                    raise
                if isinstance(answer, _Events):
                    answer.done = done
                else:
                    done()
                return answer
            except ApiError as error:
                return _refusal(error, request_id)
            except _Gone:
                return _json({}, CUT_OFF, request_id)  # the client is gone
            except Exception:
                log.exception("request %s failed", request_id)
                return _refusal(_failed(request_id), request_id)

        return guard

    def _leave(self) -> None:
        self._at_work -= 1

    def _check_caller(self, request: Request) -> None:
        """**Raises:** `ApiError` for a missing key."""
        if self._key:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self._key)
            if scheme.lower() != "bearer" or not same:
                said = "the key is missing or wrong; the header Authorization has it behind the word bearer"
                raise ApiError(said, 401, code="invalid_api_key")

    async def metrics(self, request: Request, request_id: str) -> Any:
        """The counts, for Prometheus."""
        from starlette.responses import Response

        content, kind = page(self._metrics)
        return Response(content, 200, _headers(request_id), kind)

    async def models(self, request: Request, request_id: str) -> Any:
        """The one model."""
        return _json({"object": "list", "data": [model_body(self._engine.served, self._created)]}, 200, request_id)

    async def one_model(self, request: Request, request_id: str) -> Any:
        """It by its name."""
        name, served = request.path_params["name"], self._engine.served
        if name != served.name:
            raise ApiError(
                f"there is no model {name!r} here; this server's is {served.name!r}", 404, code="model_not_found"
            )
        return _json(model_body(served, self._created), 200, request_id)

    async def complete(self, request: Request, request_id: str, chat: bool) -> Any:
        """A completion or a chat completion, whole or streamed."""
        body, engine = await self._body(request), self._engine
        # tokenizing and rendering a long text takes time
        if chat:
            read = await asyncio.to_thread(read_chat, body, engine.sampler, self._limits.default_tokens)
        else:
            read = await asyncio.to_thread(read_completion, body, engine.sampler, 16, engine.max_queue)
        answer = Answer(engine.served, read.asks, chat, request_id)
        inbox = _Inbox(engine)
        inbox.ask(read.asks)
        if read.stream:
            return _Events(inbox, answer, read.usage, len(read.asks), request_id)
        content = answer.whole(await _all(inbox, len(read.asks), request.receive))
        _note_tokens(request.scope, content["usage"])
        return _json(content, 200, request_id)

    async def score(self, request: Request, request_id: str) -> Any:
        """Log-probabilities of candidates."""
        body, engine, limits = await self._body(request), self._engine, self._limits
        read = await asyncio.to_thread(read_score, body, engine.scorer, limits.score_pairs, limits.score_tokens)
        inbox = _Inbox(engine)
        inbox.work(engine.scorer.run(read.pairs))
        found: list[list[float]] = []
        async with inbox.watching(request.receive):
            while (part := await inbox.next()) is not None:
                found += part
        content = score_body(read, engine.served, found)
        _note_tokens(request.scope, content["usage"])
        return _json(content, 200, request_id)

    async def _body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request. **Raises:** `ApiError`; `_Gone` when the client disconnects."""
        from starlette.requests import ClientDisconnect

        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a web page cannot send this type to another site without permission
            raise ApiError(f"the content type is {kind!r}; application/json is needed", 415)
        limit = self._limits.request_bytes
        content, size = bytearray(), 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        content += part
                    elif size > 16 * limit:  # it is read up to here, so that the client receives the error
                        break
        except TimeoutError:
            raise ApiError(f"the body was not received within {self._limits.body_seconds:g} s", 408) from None
        except ClientDisconnect:
            raise _Gone from None
        if size > limit:
            raise ApiError(f"the body is longer than the {limit} bytes that this server takes", 413)
        try:
            body = json.loads(
                bytes(content),
                parse_constant=_no_constant,
                parse_int=partial(_number, int),
                parse_float=partial(_number, float),
            )
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, json.JSONDecodeError | _NotTaken) else "it cannot be read"
            raise ApiError(f"the body is not JSON: {why}") from None
        if not isinstance(body, dict):
            raise ApiError(f"the body is a JSON {type(body).__name__}; an object is needed")
        return body


class _NotTaken(ValueError):
    """A value that this server does not read."""


def _no_constant(name: str) -> Any:
    raise _NotTaken(f"it holds {name}")


def _number(kind: Callable[[str], Any], digits: str) -> Any:
    if len(digits) > LONGEST_NUMBER:
        raise _NotTaken(f"it holds a number of {len(digits)} characters; at most {LONGEST_NUMBER} are read")
    return kind(digits)


def _note_tokens(scope: Any, usage: dict[str, int]) -> None:
    """Leave the token usage for the access log and the metrics."""
    scope["llmrl.tokens"] = usage["prompt_tokens"], usage.get("completion_tokens", 0)


class _Once:
    """A function that runs at its first call only."""

    def __init__(self, call: Callable[[], None]):
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class _Inbox:
    """What the engine's thread reports, received by the event loop."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._jobs: list[Job | Work] = []

    def ask(self, asks: Sequence[Ask]) -> None:
        """Queue prompts; `next` then returns `(place, samples)`."""
        self._submit([Job(ask, partial(self._post, i)) for i, ask in enumerate(asks)])

    def work(self, parts: Any) -> None:
        """Queue work; `next` then returns its parts, then None."""
        self._submit([Work(parts, partial(self._post, None))])

    def _submit(self, jobs: Sequence[Job | Work]) -> None:
        if len(jobs) > self._engine.max_queue:
            raise ApiError(f"{len(jobs)} prompts are asked for at once; at most {self._engine.max_queue} may wait here")
        try:
            self._engine.submit(jobs)
        except Busy as error:
            raise ApiError(str(error), 429, retry_after=error.retry_after) from None
        except Stopping as error:
            raise ApiError(str(error), 503, retry_after=1) from None
        self._jobs = list(jobs)

    def _post(self, place: int | None, what: Any) -> None:
        """On the engine's thread."""
        said = what if place is None or isinstance(what, Exception) else (place, what)
        self._loop.call_soon_threadsafe(self._queue.put_nowait, said)

    def cancel(self) -> None:
        """Cancel what has no listener left."""
        self._engine.cancel(self._jobs)

    async def next(self) -> Any:
        """The next report. **Raises:** the report if it is an exception; `_Gone` if the client has disconnected."""
        what = await self._queue.get()
        if isinstance(what, Stopping):
            raise ApiError(str(what), 503, retry_after=1)
        if isinstance(what, Exception):
            raise what
        return what

    @asynccontextmanager
    async def watching(self, receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
        """While the client is connected: `next` raises `_Gone` when it disconnects, and the rest is cancelled."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._queue.put_nowait(_Gone())

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            self.cancel()


async def _all(inbox: _Inbox, count: int, receive: Callable[[], Awaitable[Any]]) -> list[list[Sample]]:
    """Every prompt's samples, all finished."""
    found: list[list[Sample]] = [[] for _ in range(count)]
    async with inbox.watching(receive):
        while not _ended(found):
            place, found_there = await inbox.next()
            found[place] = found_there
    return found


def _ended(found: Sequence[Sequence[Sample]]) -> bool:
    return all(samples and all(sample.finish for sample in samples) for samples in found)


class _Events:
    """An answer as server-sent events (an ASGI application)."""

    def __init__(self, inbox: _Inbox, answer: Answer, usage: bool, count: int, request_id: str):
        self._inbox, self._answer, self._usage, self._request_id = inbox, answer, usage, request_id
        self._found: list[list[Sample]] = [[] for _ in range(count)]
        self.done: Callable[[], None] = lambda: None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head = {**_headers(self._request_id), "content-type": "text/event-stream; charset=utf-8"}
        head |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        raw = [(name.encode(), value.encode()) for name, value in head.items()]

        async def event(data: Any, more: bool = True) -> None:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more})

        try:
            async with self._inbox.watching(receive):
                await send({"type": "http.response.start", "status": 200, "headers": raw})
                try:
                    while not _ended(self._found):
                        place, self._found[place] = await self._next()
                        for chunk in self._answer.chunks(place, self._found[place]):
                            await event(chunk)
                    if self._usage:
                        await event(self._answer.last_chunk(self._found))
                except (_Gone, OSError):
                    return
                except ApiError as error:
                    await event(error.body())
                except Exception:
                    log.exception("request %s failed", self._request_id)
                    await event(_failed(self._request_id).body())
                await event("[DONE]", more=False)
        finally:
            _note_tokens(scope, self._answer.usage(self._found))
            self.done()

    async def _next(self) -> tuple[int, list[Sample]]:
        return await self._inbox.next()


def _failed(request_id: str) -> ApiError:
    """The answer to an internal error: the id under which the log has the details."""
    return ApiError(f"the server failed; its log knows more of {request_id}", 500)


def _headers(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id} if request_id else {}


def _json(data: Any, status: int = 200, request_id: str = "", headers: dict[str, str] | None = None) -> Any:
    from starlette.responses import Response

    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status, {**_headers(request_id), **(headers or {})}, "application/json")


def _refusal(error: ApiError, request_id: str) -> Any:
    after = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        after["www-authenticate"] = "Bearer"
    if error.close:
        after["connection"] = "close"
    return _json(error.body(), error.status, request_id, after)
