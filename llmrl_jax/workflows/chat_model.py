"""The chat model of a run, with its cache, record and budget.

The only way from the command line to a model. Three kinds: `scripted`, the command's own scripted adviser, which has no
requirements and is the default; `local:MODEL`, a Llama in this process; any other name, a model of the
OpenAI-compatible server at `base_url`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from llmrl_jax.chat import (
    Budget,
    Budgeted,
    Cached,
    CacheMode,
    ChatModel,
    OpenAIChat,
    Recorder,
    ServerConfig,
    Spent,
    check_server,
)
from llmrl_jax.core.checks import (
    Checked,
    FiniteFloat,
    In,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    refuse_unread,
)
from llmrl_jax.core.config import FREE


SCRIPTED = "scripted"
LOCAL = "local:"

OF_SERVERS = ("base_url", "key_variable", "api_version", "concurrency", "timeout", "split", "send_stop", "token_limit")
"""Options that the models of a server alone read."""
OF_CACHES = ("cache", "cache_mode")
"""Options that the scripted adviser, whose replies are not cached, does not read."""


@dataclass(frozen=True)
class ChatConfig(Checked):
    """Options of the chat model."""

    PREFIX: ClassVar[str] = "chat."

    model: str = SCRIPTED
    """`scripted`: the scripted adviser, rules instead of a model; `local:MODEL`: a Llama on this machine, as
    in `llmrl lm generate` (a folder, a GGUF file, smollm2-135m, a hub id); any
    other name: a model of the server at `base_url`."""
    base_url: str = field(default="", metadata=FREE)
    """Base URL of the server's API, such as `http://127.0.0.1:8000/v1` or `https://api.openai.com/v1`."""
    key_variable: str = field(default="", metadata=FREE)
    """The environment variable with the server's key. Empty: OPENAI_API_KEY for OpenAI's host, AZURE_OPENAI_API_KEY for
    Azure's, none for others."""
    api_version: str = field(default="", metadata=FREE)
    """Azure's version of the API, such as 2024-10-21, where `base_url` is the endpoint, as in
    `https://NAME.openai.azure.com`, and `model` the deployment. Empty: OpenAI's form, which Azure has below
    `/openai/v1`."""
    adapter: str = ""
    """A PEFT folder with adapters for a `local:` model."""
    template: str = ""
    """The chat template of a `local:` model: empty: its own; `plain`: the messages joined, as for models
    fine-tuned without a template; else a file."""
    temperature: FiniteFloat = 1.0
    """Sampling temperature; negative: the server's default."""
    max_tokens: PositiveInt = 2048
    """Maximum number of tokens of a reply."""
    concurrency: Annotated[int, In("[1, 1024]")] = field(default=8, metadata=FREE)
    """Number of concurrent requests."""
    timeout: PositiveFloat = field(default=120.0, metadata=FREE)
    """Seconds that a server may take for one answer, after which it is asked again; more for models that are slow or
    think for long."""
    split: bool = field(default=False, metadata=FREE)
    """Request one sample at a time, for servers that ignore `n` (Ollama, llama.cpp)."""
    send_stop: bool = field(default=False, metadata=FREE)
    """Send stop strings to the server, which saves the tokens after them. Only for a model that does not think and
    does not end its answers itself; replies are cut at stop strings anyway."""
    token_limit: str = field(default="max_tokens", metadata=FREE)
    """The server's name of the limit: `max_tokens`, or `max_completion_tokens` for OpenAI's reasoning models, which is
    also sent after a server refused the first."""
    cache: str = field(default="", metadata=FREE)
    """SQLite file of replies, which several runs may share; empty: one in the run's folder."""
    cache_mode: CacheMode = field(default="write", metadata=FREE)
    """`write`: request missing replies and store them; `read`: store nothing; `replay`: send no request; `off`."""
    max_calls: NonNegativeInt = field(default=0, metadata=FREE)
    """Requests after which the run stops, including those before a resume; with `split`, each sample is one. 0: no
    limit."""
    max_usd: NonNegativeFloat = field(default=0.0, metadata=FREE)
    """Cost in US dollars after which the run stops, including that before a resume; 0: no limit. Needs a model with a
    known price."""

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a `ChatRequest` that these options set."""
        return {"temperature": None if self.temperature < 0 else self.temperature, "max_tokens": self.max_tokens}

    @property
    def remote(self) -> bool:
        """Return whether the model is on a server."""
        return self.model != SCRIPTED and not self.model.startswith(LOCAL)

    @property
    def server(self) -> ServerConfig:
        """The server and model, and the limits of requests, of a remote model."""
        return ServerConfig(
            self.model,
            self.base_url,
            key_variable=self.key_variable,
            api_version=self.api_version,
            concurrency=self.concurrency,
            timeout=self.timeout,
            split=self.split,
            send_stop=self.send_stop,
            token_limit=self.token_limit,  # type: ignore[arg-type]
        )

    def check_usable(self) -> None:
        """Check that the model can be asked, before work that needs its answers.

        **Raises:** what `check` raises; `ModuleNotFoundError` without the extra of servers, `ValueError` without the
        server's key, where requests may be sent."""
        self.check()
        if self.remote and self.cache_mode != "replay":
            check_server(self.server)

    def check(self) -> None:
        """**Raises** `ValueError` for incompatible settings, naming the remedy."""
        if self.remote and not self.base_url and self.cache_mode != "replay":
            raise ValueError(
                f"the model {self.model!r} needs a server: name one with --chat.base-url (OpenAI's is "
                "https://api.openai.com/v1), or take --chat.model scripted, or local:FOLDER"
            )
        if not self.remote:
            unread = (*OF_SERVERS, *(OF_CACHES if self.model == SCRIPTED else ()))
            refuse_unread(self, unread, f"the model {self.model!r}, which is in this process,")
        if self.adapter and not self.model.startswith(LOCAL):
            raise ValueError(f"--chat.adapter needs a local: model, not {self.model!r}")
        if self.template and not self.model.startswith(LOCAL):
            raise ValueError(f"--chat.template is for a local: model, not {self.model!r}; a server has its own")
        if self.token_limit not in ("max_tokens", "max_completion_tokens"):
            raise ValueError(f"chat.token_limit is {self.token_limit!r}; it is max_tokens or max_completion_tokens")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Chat:
    """A chat model as a run uses it, and its cost so far."""

    model: ChatModel
    budget: Budget
    close: Callable[[], None] = _nothing
    """Cancels pending requests: callers that wait for one get a `ChatError`."""

    @property
    def spent(self) -> Spent:
        """Calls, tokens and dollars of the run, including those before a resume."""
        return self.budget.spent


def make_chat(config: ChatConfig, adviser: ChatModel, folder: str | Path) -> Chat:
    """The chat model of a run.

    **Arguments:** `config`; `adviser`, the model of `scripted`; `folder`, the run's, which holds the record
    (`chat.jsonl`) and, unless `config` names another, the cache (`chat.sqlite`).
    **Raises:** what `ChatConfig.check_usable` raises, before any request.
    """
    config.check_usable()
    folder = Path(folder)
    remote = config.remote
    cache = Path(config.cache) if config.cache else folder / "chat.sqlite"
    if remote and config.cache_mode == "replay":
        return Chat(Cached(config.model, cache, "replay"), Budget())
    budget = Budget(calls=config.max_calls or None, usd=config.max_usd or None)
    record = folder / "chat.jsonl"
    if record.exists():  # a resumed run counts what it spent before
        budget.recall(record)
    chat_model: ChatModel
    close = _nothing
    if remote:
        chat_model = server = OpenAIChat(config.server)
        close = server.close
    elif config.model == SCRIPTED:
        return Chat(Recorder(Budgeted(adviser, budget), record), budget)  # a cache would save nothing
    else:
        from llmrl_jax.serve import LocalLlama

        chat_model = llama = LocalLlama.load(
            config.model.removeprefix(LOCAL), adapter=config.adapter, chat_template=config.template
        )
        close = llama.close
    recorded = Recorder(Budgeted(chat_model, budget), record)
    return Chat(Cached(recorded, cache, config.cache_mode), budget, close)
