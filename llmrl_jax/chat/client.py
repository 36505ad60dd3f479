"""A chat model on any server with OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, `llmrl serve`.

Retries are done here (tenacity); those of the `openai` package are switched off, because two nested loops multiply. The
time limit covers a whole attempt, from connecting to the last byte, because a limit between bytes would let a slow
server block forever. The API key is read from an environment variable when the first request is sent, and sent only to
the host that it is meant for.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from llmrl_jax.chat.errors import ChatError, ContextExceeded, ServerError, TimedOut
from llmrl_jax.chat.keys import read_key
from llmrl_jax.chat.protocol import ChatReply, ChatRequest, settle
from llmrl_jax.chat.wire import from_wire, quote, redact, retry_after, to_wire


_OPENAI_HOST = "api.openai.com"


@dataclass(frozen=True)
class ServerConfig:
    """The server and model, and the limits of requests."""

    model: str
    """The server's name of the model."""
    base_url: str
    """Base address of the server's API, for example `http://127.0.0.1:8000/v1`. There is no default, so that nothing is
    sent to a paid server by accident."""
    key_variable: str = ""
    """The environment variable with the API key. Empty: OPENAI_API_KEY for OpenAI's own host, none for any other."""
    concurrency: int = 8
    """Concurrent requests. One that waits to retry keeps its slot, so a busy server receives fewer."""
    timeout: float = 120.0
    """Time limit of one attempt in seconds, from connecting to the last byte."""
    attempts: int = 6
    """Number of attempts, including the first."""
    first_wait: float = 0.5
    """Seconds before the second attempt if the server gives none; doubled each time, minus a random part of up to a
    quarter."""
    longest_wait: float = 60.0
    """Maximum seconds between attempts. If a server asks for more, the request fails and says so."""
    split: bool = False
    """Ask for one sample at a time, for servers that ignore `n` (Ollama, llama.cpp)."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The server's name of the token limit; OpenAI's reasoning models need the second."""

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("base_url is not an http or https address, such as http://127.0.0.1:8000/v1")
        if url.username or url.password or url.query:
            raise ValueError(
                "base_url holds a password or a query; a key comes from an environment variable (key_variable), "
                "because addresses are shown in errors"
            )
        if not self.model:
            raise ValueError("model is empty; give the name by which the server knows it")
        for name, low in (("concurrency", 1), ("attempts", 1), ("first_wait", 0), ("longest_wait", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}; it must be a positive number of seconds")


class OpenAIChat:
    """A chat model on an OpenAI-compatible server (`ChatModel`). Needs the extra `api`.

    A separate thread runs the connections, so it can be called from any thread, from several at once, and from a
    notebook. `close()` or a `with` block closes them.

    **Arguments:** `config`; `sleep`, an async function of seconds that waits between attempts (for tests).
    **Raises:** `complete` raises `ServerError`, `TimedOut` or `BadReply` (`ChatModel.complete`);
    `ModuleNotFoundError` without the extra; `ValueError` if the key is missing.
    """

    def __init__(self, config: ServerConfig, *, sleep: Callable[[float], Awaitable[Any]] | None = None):
        self.config = config
        self.name = config.model
        self._sleep = sleep
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def __repr__(self) -> str:
        return f"OpenAIChat({self.config})"

    def __enter__(self) -> OpenAIChat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch (`ChatModel.complete`), `concurrency` requests at a time over all callers."""
        if not requests:
            return []
        groups = [self._parts(request) for request in requests]
        with self._lock:
            if self._session is None:
                self._session = _Session(self.config, self._sleep)
            session = self._session
        flat = session.run([part for group in groups for part in group])
        outcomes: list[ChatReply | ChatError] = []
        for group in groups:
            taken, flat = flat[: len(group)], flat[len(group) :]
            failed = [part for part in taken if isinstance(part, ChatError)]
            whole = [part for part in taken if isinstance(part, ChatReply)]
            if failed:  # the parts of a split request that succeeded are billed, but useless without the rest
                failed[0].lost = sum(part.lost for part in taken) + len(whole)
            outcomes.append(failed[0] if failed else ChatReply.join(whole))
        return settle(outcomes)

    def _parts(self, request: ChatRequest) -> list[ChatRequest]:
        if not self.config.split:
            return [request]
        return [replace(request, n=1, sample=request.sample + i) for i in range(request.n)]


class _Session:
    """A thread with an event loop, a client, and a slot for each concurrent request."""

    def __init__(self, config: ServerConfig, sleep: Callable[[float], Awaitable[Any]] | None):
        try:
            import openai
            import tenacity
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("asking a server needs the extra: pip install 'llmrl-jax[api]'") from error
        import asyncio

        self._asyncio, self._openai, self._tenacity = asyncio, openai, tenacity
        self._config = config
        self._key = read_key(_key_variable(config), f"for {config.base_url}")
        self._sleep = sleep or asyncio.sleep
        self._slots = asyncio.Semaphore(config.concurrency)
        self._loop = asyncio.new_event_loop()
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",  # the package requires one; servers without keys ignore it
            base_url=config.base_url,
            max_retries=0,
            timeout=None,
        )
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._client), name="llmrl-chat", daemon=True)
        self._thread.start()
        # An owner that is garbage-collected without close() ends its thread.
        self._stop = weakref.finalize(self, _stop, self._loop)

    def close(self) -> None:
        self._stop()
        self._thread.join()

    def run(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        async def together() -> list[ChatReply | ChatError]:
            return await self._asyncio.gather(*(self._one(request) for request in requests))

        future = self._asyncio.run_coroutine_threadsafe(together(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ChatError(f"the client of {self._config.base_url} was closed while it waited for an answer") from None
        except BaseException:  # Ctrl-C: no request continues, at a cost, without the caller
            future.cancel()
            raise

    async def _one(self, request: ChatRequest) -> ChatReply | ChatError:
        lost, tried = 0, 0

        async def attempt() -> ChatReply:
            nonlocal lost, tried
            tried += 1
            try:
                return await self._attempt(request)
            except ServerError as error:
                lost += error.lost
                raise

        retrying = self._tenacity.AsyncRetrying(
            stop=self._tenacity.stop_after_attempt(self._config.attempts),
            retry=self._tenacity.retry_if_exception(self._worth_another),
            wait=self._wait,
            sleep=self._sleep,
            reraise=True,
        )
        async with self._slots:
            try:
                return replace(await retrying(attempt), lost=lost)
            except ServerError as error:
                return type(error)(
                    self._explain(error, tried),
                    status=error.status,
                    transient=error.transient,
                    retry_after=error.retry_after,
                    lost=lost,
                )

    async def _attempt(self, request: ChatRequest) -> ChatReply:
        openai, limit = self._openai, self._config.timeout
        body, extra = to_wire(self.name, request, self._config.token_limit)
        started = time.monotonic()
        # `from None` below: openai's errors contain the request with its headers, which may contain the key.
        try:
            async with self._asyncio.timeout(limit):
                answer = await self._client.chat.completions.with_raw_response.create(**body, extra_body=extra)
                content = answer.content
        except TimeoutError:
            raise TimedOut(f"no whole answer within {limit:g} s (timeout)", transient=True, lost=1) from None
        except openai.APIStatusError as error:
            raise self._refusal(error) from None
        except openai.APIConnectionError as error:
            reached = "Connect" not in type(error.__cause__).__name__
            what = "the connection broke before the answer was whole" if reached else "the server cannot be reached"
            cause = f"{what} ({type(error.__cause__).__name__})"
            raise ServerError(cause, transient=True, lost=int(reached)) from None
        except openai.OpenAIError as error:
            raise ServerError(f"the openai package failed: {type(error).__name__}: {error}") from None
        if self._key:  # the server may repeat the key in a text that would be cached
            content = content.replace(self._key.encode(), b"[key]")
        return from_wire(content, request, self.name, time.monotonic() - started)

    @property
    def name(self) -> str:
        return self._config.model

    def _refusal(self, error: Any) -> ServerError:
        status, code = int(error.status_code), getattr(error, "code", None)
        wait = retry_after(error.response.headers)
        # An account without credit answers 429 like a busy server, and waiting does not help.
        transient = (status in (408, 409, 429) or status >= 500) and code != "insufficient_quota"
        said = f"status {status}: {quote(redact(str(error.message), self._key))}"
        if status in (401, 403):
            said += f"; the key is read from {_key_variable(self._config) or 'no variable (set key_variable)'}"
        kind = ContextExceeded if code == "context_length_exceeded" else ServerError
        return kind(said, status=status, transient=transient, retry_after=wait)

    def _worth_another(self, error: BaseException) -> bool:
        if not isinstance(error, ServerError) or not error.transient:
            return False
        return error.retry_after is None or error.retry_after <= self._config.longest_wait

    def _wait(self, state: Any) -> float:
        error = state.outcome.exception()
        if error.retry_after is not None:
            return error.retry_after
        doubled = self._config.first_wait * 2.0 ** min(state.attempt_number - 1, 30)
        return min(doubled, self._config.longest_wait) * random.uniform(0.75, 1.0)

    def _explain(self, error: ServerError, tried: int) -> str:
        text = f"{self.name} at {self._config.base_url}: {error} (attempt {tried} of {self._config.attempts})"
        if error.transient and not self._worth_another(error):
            text += (
                f"; the server asks to wait {error.retry_after:g} s, longer than "
                f"longest_wait={self._config.longest_wait:g}"
            )
        return redact(text, self._key)


def _serve(loop: Any, client: Any) -> None:
    """The thread's function. It holds no reference to the session, so that the session can be garbage-collected."""
    import asyncio

    async def end() -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await client.close()

    try:
        loop.run_forever()
        loop.run_until_complete(end())
    finally:
        loop.close()


def _stop(loop: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def _key_variable(config: ServerConfig) -> str:
    official = urlsplit(config.base_url).hostname == _OPENAI_HOST
    return config.key_variable or ("OPENAI_API_KEY" if official else "")
