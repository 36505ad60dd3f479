"""The types of a request: a prompt with its sampling options, and a continuation."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from llmrl_jax.lm.sampling import EXTREMES


MOST_STOPS = 64
"""Maximum number of stop strings of a request. Each is looked for in the text after every few tokens."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options of a prompt; see `lm.SamplingConfig`."""

    max_tokens: int
    """Maximum tokens of a continuation, including its stop token."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: float = 1.0
    """0 leaves the most probable token."""
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    """Number of continuations."""
    stop: tuple[str, ...] = ()
    """Strings that end a continuation; they are not included in it."""
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    """Random seed (lowest 32 bits), by default a random one."""
    pieces: bool = False
    """Whether each token's text is returned with its log-probability."""

    def __post_init__(self) -> None:
        for name, minimum in (("max_tokens", 1), ("n", 1), ("top_k", 0)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
        if self.top_k >= 2**31:
            raise ValueError(f"top_k is {self.top_k}; it must be below 2^31, and 0 keeps all tokens")
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1]")
        for name, (low, high) in EXTREMES.items():
            value, greedy = getattr(self, name), name == "temperature"
            if not (low <= value <= high or greedy and value == 0):
                zero = ", or be 0 for the most probable tokens" if greedy else ", where 1 changes nothing"
                raise ValueError(f"{name} is {value}; it must lie in [{low:g}, {high:g}]{zero}")
        if len(self.stop) > MOST_STOPS:
            raise ValueError(f"stop holds {len(self.stop)} strings; at most {MOST_STOPS} are looked for")
        if not all(self.stop):
            raise ValueError("stop holds an empty string, which would end every text at once; leave it out")


@dataclass(frozen=True)
class Ask:
    """Prompt and its sampling options."""

    tokens: tuple[int, ...]
    sampling: Sampling
    row: int = 0
    """Index among the prompts that share a seed. Samples depend on it, and not on the position in a batch."""
    start: bool = False
    """Whether a continuation is a text of its own, as a reply in a chat; see `lm.Generation.texts`."""


@dataclass(frozen=True)
class Sample:
    """Continuation so far."""

    text: str
    """The text before the stop token or stop string. While it grows: the part that later tokens cannot change."""
    count: int
    """Tokens sampled, including the stop token."""
    finish: str
    """`stop`, `length`, or empty while it grows."""
    pieces: tuple[str, ...] = ()
    """The text of each token, if requested; joined, they are `text`."""
    log_probs: tuple[float, ...] = ()
    """Log-probabilities of the tokens under the unmodified model."""


# --- errors, in OpenAI's format -------------------------------------------------------------------------------------


class ApiError(Exception):
    """Refused request. The message goes to the client, so it contains nothing that the client did not send."""

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
        """Error as JSON values."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}
