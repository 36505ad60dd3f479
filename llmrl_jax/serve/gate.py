"""What every request passes before its route: checks of its framing and host name, then the counts."""

from __future__ import annotations

import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.metrics import Metrics, log_access, route_of


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
