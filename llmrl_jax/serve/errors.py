"""Errors of requests, in OpenAI's format."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A refused request. The message goes to the client, so it contains nothing that the client did not send."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ):
        """**Arguments:** `message`; `status`, of HTTP; `param`, the wrong field; `code`, OpenAI's error code;
        `retry_after`, seconds after which to try again; `close`, whether the connection ends with the answer."""
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after, self.close = status, param, code, retry_after, close

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        named = {401: "authentication_error", 429: "rate_limit_error"}
        return named.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """As JSON values."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}
