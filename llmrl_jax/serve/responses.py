"""Answers over HTTP: JSON, errors, and server-sent events."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from llmrl_jax.serve.answers import Answer
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.inbox import Gone, Inbox, ended
from llmrl_jax.serve.request import Sample


log = logging.getLogger("llmrl_jax.serve")


def note_tokens(scope: Any, usage: dict[str, int]) -> None:
    """Leave the token usage for the access log and the metrics."""
    scope["llmrl.tokens"] = usage["prompt_tokens"], usage.get("completion_tokens", 0)


class Events:
    """An answer as server-sent events (an ASGI application)."""

    def __init__(self, inbox: Inbox, answer: Answer, usage: bool, count: int, request_id: str):
        self._inbox, self._answer, self._usage, self._request_id = inbox, answer, usage, request_id
        self._found: list[list[Sample]] = [[] for _ in range(count)]
        self.done: Callable[[], None] = lambda: None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head = {**headers_of(self._request_id), "content-type": "text/event-stream; charset=utf-8"}
        head |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        raw = [(name.encode(), value.encode()) for name, value in head.items()]

        async def event(data: Any, more: bool = True) -> None:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more})

        try:
            async with self._inbox.watching(receive):
                await send({"type": "http.response.start", "status": 200, "headers": raw})
                try:
                    while not ended(self._found):
                        place, self._found[place] = await self._next()
                        for chunk in self._answer.chunks(place, self._found[place]):
                            await event(chunk)
                    if self._usage:
                        await event(self._answer.last_chunk(self._found))
                except (Gone, OSError):
                    return
                except ApiError as error:
                    await event(error.body())
                except Exception:
                    log.exception("request %s failed", self._request_id)
                    await event(failed(self._request_id).body())
                await event("[DONE]", more=False)
        finally:
            note_tokens(scope, self._answer.usage(self._found))
            self.done()

    async def _next(self) -> tuple[int, list[Sample]]:
        return await self._inbox.next()


def failed(request_id: str) -> ApiError:
    """The answer to an internal error: the id under which the log has the details."""
    return ApiError(f"the server failed; its log has the details under {request_id}", 500)


def headers_of(request_id: str) -> dict[str, str]:
    """The headers of every answer."""
    return {"x-request-id": request_id} if request_id else {}


def json_response(data: Any, status: int = 200, request_id: str = "", headers: dict[str, str] | None = None) -> Any:
    """A response with a JSON body."""
    from starlette.responses import Response

    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status, {**headers_of(request_id), **(headers or {})}, "application/json")


def refusal(error: ApiError, request_id: str) -> Any:
    """The response for an error."""
    after = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        after["www-authenticate"] = "Bearer"
    if error.close:
        after["connection"] = "close"
    return json_response(error.body(), error.status, request_id, after)
