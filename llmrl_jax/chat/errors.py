"""Errors between a request and its reply."""

from __future__ import annotations

from typing import Any


class ChatError(RuntimeError):
    """A request that got no usable reply. The message never holds a key."""

    outcomes: tuple[Any, ...] = ()
    """The outcome of every request of the batch, in order: a `ChatReply` or a `ChatError`. Replies that arrived, and
    were paid for, are thus not lost with the one that failed."""

    lost: int = 0
    """Attempts that the server may have billed without a report: timed out, cut off, or answered unreadably."""


class ServerError(ChatError):
    """A server refused, failed or could not be reached, after every attempt that made sense."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        lost: int = 0,
    ):
        super().__init__(message)
        self.status = status
        self.transient = transient
        self.retry_after = retry_after
        self.lost = lost


class TimedOut(ServerError):
    """An attempt took longer than its time limit."""


class ContextExceeded(ServerError):
    """Prompt and reply together do not fit into the model's context."""


class BadReply(ServerError):
    """A server answered with something that is not a chat completion."""


class BudgetExceeded(ChatError):
    """The next request could take more than the budget holds; it was not sent."""


class ReplayMiss(ChatError):
    """A cache in the mode `replay` does not hold the reply."""


class CacheError(ChatError):
    """A cache file is missing, damaged, or of another kind."""


class UnparsedReply(ChatError):
    """A reply could not be read, nor could those to the requests for repair."""
