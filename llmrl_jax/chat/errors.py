"""Errors of requests to chat models."""

from __future__ import annotations

from typing import Any


class ChatError(RuntimeError):
    """A request that got no usable reply. The message never contains a key."""

    outcomes: tuple[Any, ...] = ()
    """The outcome of every request of the batch, in order: a `ChatReply` or a `ChatError`. Replies that arrived, and
    were paid for, are thus not lost with a failed one."""

    lost: int = 0
    """Attempts that the server may have billed without a report: timed out, cut off, or with an unreadable answer."""


class ServerError(ChatError):
    """A server refused, failed or could not be reached, after all retries."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        lost: int = 0,
        unsupported: str = "",
    ):
        super().__init__(message)
        self.status = status
        self.transient = transient
        self.retry_after = retry_after
        self.lost = lost
        self.unsupported = unsupported
        """The field of the request that the server says the model does not accept; empty if it says none."""


class TimedOut(ServerError):
    """An attempt took longer than its time limit."""


class ContextExceeded(ServerError):
    """Prompt and reply together exceed the model's context."""


class BadReply(ServerError):
    """A server's answer is not a chat completion."""


class BudgetExceeded(ChatError):
    """The next request could exceed the budget; it was not sent."""


class ReplayMiss(ChatError):
    """A cache in the mode `replay` does not contain the reply."""


class CacheError(ChatError):
    """A cache file is missing, damaged, or of another format."""


class UnparsedReply(ChatError):
    """A reply could not be parsed, nor could those to the requests for repair."""
