"""A chat model on any server with OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, `llmrl serve`.

Retries are done here (tenacity); those of the `openai` package are switched off, because two nested loops multiply. The
time limit covers a whole attempt, from connecting to the last byte, because a limit between bytes would let a slow
server block forever. The API key is read from an environment variable when the first request is sent, and sent only to
the host that it is meant for.

Azure's servers have two forms. The newer one, `https://NAME.openai.azure.com/openai/v1`, is that of OpenAI. The older
one, with `api_version`, names the deployment in the address and has the key in a header of its own.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from llmrl_jax.chat.protocol import ChatError, ChatReply, ChatRequest, ServerError, TimedOut, settle
from llmrl_jax.chat.wire import adapted, from_wire, redact, refusal, retry_after, to_wire


_OPENAI_HOST = "api.openai.com"
_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")


@dataclass(frozen=True)
class ServerConfig:
    """Server and model, and the limits of requests."""

    model: str
    """The server's name of the model."""
    base_url: str
    """Base address of the server's API, for example `http://127.0.0.1:8000/v1`. There is no default, so that nothing is
    sent to a paid server by accident."""
    key_variable: str = ""
    """The environment variable with the API key. Empty: OPENAI_API_KEY for OpenAI's own host, AZURE_OPENAI_API_KEY for
    Azure's, none for any other."""
    api_version: str = ""
    """Azure's version of the API, such as `2024-10-21`: requests go to `/openai/deployments/MODEL`, below `base_url`,
    which is then the endpoint alone, such as `https://NAME.openai.azure.com`. Empty: OpenAI's form."""
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
    send_stop: bool = False
    """Send stop strings to the server. It saves the tokens after them, for a model that does not end its answers
    itself; it ends the replies of a model that thinks within its thoughts. Replies are cut at stop strings anyway."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The server's name of the token limit. OpenAI's reasoning models know the second only, which is sent after a
    server refused the first."""

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("base_url is not an http or https address, such as http://127.0.0.1:8000/v1")
        if url.username or url.password or url.query:
            raise ValueError(
                "base_url holds a password or a query; a key comes from an environment variable (key_variable), "
                "because addresses are shown in errors"
            )
        if self.api_version and "/openai" in url.path:
            raise ValueError(
                f"api_version is {self.api_version}, and base_url has the path {url.path}: give the endpoint alone, "
                "such as https://NAME.openai.azure.com, or leave api_version out"
            )
        if self.api_version and not re.fullmatch(r"[A-Za-z0-9._-]+", self.api_version):
            raise ValueError(f"api_version is {self.api_version!r}; a date is needed, such as 2024-10-21")
        if not self.model:
            raise ValueError("model is empty; give the name by which the server knows it")
        for name, low in (("concurrency", 1), ("attempts", 1), ("first_wait", 0), ("longest_wait", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}; it must be a positive number of seconds")


def check_server(config: ServerConfig) -> str:
    """Check the settings of a server's client, before work that uses it later.

    **Returns:** the key; empty if there is none. **Raises:** `ModuleNotFoundError` without the extra `api`;
    `ValueError` if the key is missing."""
    from envs_jax.extras import require

    require("a model on a server", "api", "openai", "tenacity")
    return read_key(_key_variable(config), f"for {config.base_url}")


class OpenAIChat:
    """Chat model on an OpenAI-compatible server (`ChatModel`). Needs the extra `api`.

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

    @property
    def splits(self) -> bool:
        """Return whether each sample is a request of its own: by `split`, or since the server refused `n`."""
        session = self._session
        return self.config.split or (session is not None and session.splits)

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
        with self._lock:
            if self._session is None:
                self._session = _Session(self.config, self._sleep)
            session = self._session
        return settle(session.run(requests))


class _Session:
    """A thread with an event loop, a client, and a slot for each concurrent request."""

    def __init__(self, config: ServerConfig, sleep: Callable[[float], Awaitable[Any]] | None):
        self._key = check_server(config)
        import asyncio

        import openai
        import tenacity

        self._asyncio, self._openai, self._tenacity = asyncio, openai, tenacity
        self._config = config
        self._sleep = sleep or asyncio.sleep
        self._slots = asyncio.Semaphore(config.concurrency)
        # Fields that are not sent: by configuration, and those that the server refused (`adapted`).
        self._omitted: set[str] = {"max_tokens"} if config.token_limit == "max_completion_tokens" else set()
        self._omitted |= {field for field, sent in (("n", not config.split), ("stop", config.send_stop)) if not sent}
        self._loop = asyncio.new_event_loop()
        self._headers: dict[str, Any] = {}
        options: dict[str, Any] = {"base_url": config.base_url}
        if config.api_version:
            self._headers = {"api-key": self._key, "Authorization": openai.Omit()} if self._key else {}
            options = {
                "base_url": f"{config.base_url.rstrip('/')}/openai/deployments/{quote(config.model, safe='')}",
                "default_query": {"api-version": config.api_version},
                # a redirect to another host would take this header along
                "http_client": openai.DefaultAsyncHttpxClient(follow_redirects=False),
            }
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",  # the package requires one; servers without keys ignore it
            max_retries=0,
            timeout=None,
            **options,
        )
        if urlsplit(config.base_url).hostname != _OPENAI_HOST:  # the package sends OpenAI's variables to every host
            self._client.organization = self._client.project = None
            self._client._custom_headers = {}
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._client), name="llmrl-chat", daemon=True)
        self._thread.start()
        # An owner that is garbage-collected without close() ends its thread.
        self._stop = weakref.finalize(self, _stop, self._loop)

    def close(self) -> None:
        self._stop()
        self._thread.join()

    def run(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        async def gather_all() -> list[ChatReply | ChatError]:
            return await self._asyncio.gather(*(self._complete(request) for request in requests))

        future = self._asyncio.run_coroutine_threadsafe(gather_all(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ChatError(f"the client of {self._config.base_url} was closed while it waited for an answer") from None
        except BaseException:  # Ctrl-C: no request continues, at a cost, without the caller
            future.cancel()
            raise

    async def _complete(self, request: ChatRequest) -> ChatReply | ChatError:
        if request.n > 1 and self.splits:
            return await self._one_by_one(request)
        outcome = await self._with_retries(request)
        if request.n > 1 and isinstance(outcome, ServerError) and outcome.unsupported == "n":
            return await self._one_by_one(request)
        return outcome

    async def _one_by_one(self, request: ChatRequest) -> ChatReply | ChatError:
        """The samples of a request, each asked for by one of its own."""
        parts = [replace(request, n=1, sample=request.sample + i) for i in range(request.n)]
        outcomes = await self._asyncio.gather(*map(self._with_retries, parts))
        failed = [part for part in outcomes if isinstance(part, ChatError)]
        replies = [part for part in outcomes if isinstance(part, ChatReply)]
        if not failed:
            return ChatReply.join(replies)
        # The parts that succeeded are billed, but useless without the rest.
        failed[0].lost = sum(part.lost for part in outcomes) + len(replies)
        failed[0].calls = len(parts)
        return failed[0]

    async def _with_retries(self, request: ChatRequest) -> ChatReply | ChatError:
        lost, tried = 0, 0

        async def attempt() -> ChatReply:
            nonlocal lost, tried
            tried += 1
            try:
                return await self._adapting(request)
            except ServerError as error:
                lost += error.lost
                raise

        retrying = self._tenacity.AsyncRetrying(
            stop=self._tenacity.stop_after_attempt(self._config.attempts),
            retry=self._tenacity.retry_if_exception(self._should_retry),
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
                    unsupported=error.unsupported,
                )

    async def _adapting(self, request: ChatRequest) -> ChatReply:
        """An attempt, repeated without the fields that the server refuses if the request's meaning allows it."""
        while True:
            omitted = frozenset(self._omitted)
            if request.n > 1 and "n" in omitted:  # refused since this request began to wait
                raise ServerError("n is refused", unsupported="n")
            try:
                return await self._attempt(request, omitted)
            except ServerError as error:
                fewer = adapted(error.unsupported, request, omitted)
                if fewer is None:
                    raise
                self._omitted |= fewer

    async def _attempt(self, request: ChatRequest, omitted: frozenset[str]) -> ChatReply:
        openai, limit = self._openai, self._config.timeout
        body, extra = to_wire(self.name, request, omitted)
        started = time.monotonic()
        # `from None` below: openai's errors contain the request with its headers, which may contain the key.
        try:
            async with self._asyncio.timeout(limit):
                create = self._client.chat.completions.with_raw_response.create
                answer = await create(**body, extra_body=extra, extra_headers=self._headers)
                content = answer.content
        except TimeoutError:
            raise TimedOut(
                f"no whole answer within {limit:g} s (timeout, --chat.timeout)", transient=True, lost=1
            ) from None
        except openai.APIStatusError as error:
            raise self._refusal(error) from None
        except openai.APIConnectionError as error:
            reached = "Connect" not in type(error.__cause__).__name__
            reason = "the connection broke before the answer was whole" if reached else "the server cannot be reached"
            cause = f"{reason} ({type(error.__cause__).__name__})"
            raise ServerError(cause, transient=True, lost=int(reached)) from None
        except openai.OpenAIError as error:
            raise ServerError(f"the openai package failed: {type(error).__name__}: {error}") from None
        if len(self._key) >= _SECRET:  # the server may repeat the key in a text that would be cached
            content = content.replace(self._key.encode(), b"[key]")
        return from_wire(content, request, self.name, time.monotonic() - started)

    @property
    def name(self) -> str:
        return self._config.model

    @property
    def splits(self) -> bool:
        return "n" in self._omitted

    def _refusal(self, error: Any) -> ServerError:
        body = error.body or str(error.message)
        return refusal(body, int(error.status_code), retry_after(error.response.headers), self._key)

    def _should_retry(self, error: BaseException) -> bool:
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
        text = f"{self.name} at {self._config.base_url}: {error}"
        if error.status in (401, 403):
            text += f"; the key is read from {_key_variable(self._config) or 'no variable (set key_variable)'}"
        if error.unsupported in ("temperature", "top_p"):
            text += f"; set {error.unsupported} to None, the server's default (--chat.temperature -1)"
        text += f" (attempt {tried} of {self._config.attempts})"
        if error.transient and not self._should_retry(error):
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


_SECRET = 16
"""Characters of a key from which it is taken out of replies; shorter ones are words, such as `EMPTY` or `token`, which
servers without keys are given, and which texts have of themselves."""


def _key_variable(config: ServerConfig) -> str:
    host = urlsplit(config.base_url).hostname or ""
    if host == _OPENAI_HOST:
        return config.key_variable or "OPENAI_API_KEY"
    return config.key_variable or ("AZURE_OPENAI_API_KEY" if host.endswith(_AZURE_HOSTS) else "")


# --- keys -----------------------------------------------------------------------------------------------------------


def read_key(variable: str, use: str) -> str:
    """The key in an environment variable; empty if no variable is named.

    **Arguments:** `variable`, its name; `use`, the purpose of the key, for the error.
    **Raises:** `ValueError` if the variable is empty or its value is not a valid key; the key is never shown.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(f"the environment variable {variable} is empty; it must hold the key {use}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"the environment variable {variable} holds a blank or an unprintable character; mend it")
    return key
