"""Which chat model a run asks, and what stands around it: a cache, a record, a budget.

The one way from the command line to a model. Three kinds: `scripted`, the command's own scripted adviser, which needs
nothing and is the default; `local:PATH_OR_ID`, a Llama in this process; any other name, a model behind the
OpenAI-compatible server at `base_url`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl_jax.chat import Budget, Budgeted, Cached, CacheMode, ChatModel, OpenAIChat, Recorder, ServerConfig, Spent
from llmrl_jax.core.config import FREE


SCRIPTED = "scripted"
LOCAL = "local:"


@dataclass(frozen=True)
class ChatConfig:
    """Which chat model is asked, and how."""

    model: str = SCRIPTED
    """`scripted`: the scripted adviser, rules in a model's place; `local:PATH_OR_ID`: a Llama on this machine; any
    other name: a model of the server at `base_url`."""
    base_url: str = field(default="", metadata=FREE)
    """Where the server's API begins, `http://127.0.0.1:8000/v1` or `https://api.openai.com/v1` say."""
    key_variable: str = field(default="", metadata=FREE)
    """The environment variable with the server's key. Empty: OPENAI_API_KEY for OpenAI's host, none for others."""
    adapter: str = ""
    """A PEFT folder with adapters for a `local:` model."""
    template: str = ""
    """The chat template of a `local:` model: empty for its own; `plain` for messages one after the other, what models
    without one were fine-tuned on; or a file."""
    temperature: float = 1.0
    """Of sampling; negative leaves it to the server."""
    max_tokens: int = 2048
    """The most tokens that a reply may have."""
    concurrency: int = field(default=8, metadata=FREE)
    """Requests in flight at once."""
    split: bool = field(default=False, metadata=FREE)
    """Ask for one sample at a time, for servers that ignore `n` (Ollama, llama.cpp)."""
    token_limit: str = field(default="max_tokens", metadata=FREE)
    """How the server spells the limit: `max_tokens`, or `max_completion_tokens` for OpenAI's reasoning models."""
    cache: str = field(default="", metadata=FREE)
    """A SQLite file of replies that several runs share; empty: one in the run's own folder."""
    cache_mode: CacheMode = field(default="write", metadata=FREE)
    """`write`: ask for what is missing and keep it; `read`: keep nothing new; `replay`: never ask; `off`."""
    max_calls: int = field(default=0, metadata=FREE)
    """Requests after which the run stops, those before a resume included; 0: no limit."""
    max_usd: float = field(default=0.0, metadata=FREE)
    """Dollars after which the run stops, those before a resume included; 0: no limit. The model must have a price."""

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a `ChatRequest` that are settings."""
        return {"temperature": None if self.temperature < 0 else self.temperature, "max_tokens": self.max_tokens}

    @property
    def remote(self) -> bool:
        """Whether a server is asked."""
        return self.model != SCRIPTED and not self.model.startswith(LOCAL)

    def check(self) -> None:
        """**Raises** `ValueError` where the settings do not go together, naming the remedy."""
        if self.remote and not self.base_url and self.cache_mode != "replay":
            raise ValueError(
                f"the model {self.model!r} needs a server: name one with --chat.base-url (OpenAI's is "
                "https://api.openai.com/v1), or take --chat.model scripted, or local:FOLDER"
            )
        if not self.remote and self.base_url:
            raise ValueError(f"--chat.base-url is for the models of a server; {self.model!r} is in this process")
        if self.adapter and not self.model.startswith(LOCAL):
            raise ValueError(f"--chat.adapter needs a local: model, not {self.model!r}")
        if self.template and not self.model.startswith(LOCAL):
            raise ValueError(f"--chat.template is for a local: model, not {self.model!r}; a server has its own")
        if self.token_limit not in ("max_tokens", "max_completion_tokens"):
            raise ValueError(f"token_limit is {self.token_limit!r}; it is max_tokens or max_completion_tokens")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Chat:
    """A chat model as a run uses it, and what it has cost."""

    model: ChatModel
    budget: Budget
    close: Callable[[], None] = _nothing
    """Cancels a server's answers that are on their way: callers that wait for one get a `ChatError`."""

    @property
    def spent(self) -> Spent:
        """Calls, tokens and dollars of the run, those before a resume included."""
        return self.budget.spent


def make_chat(config: ChatConfig, adviser: ChatModel, folder: str | Path) -> Chat:
    """The chat model of a run.

    **Arguments:** `config`; `adviser`, what `scripted` stands for; `folder`, the run's, where the record
    (`chat.jsonl`) and, unless another is named, the cache (`chat.sqlite`) are.
    **Raises:** `ValueError` where the settings do not go together, naming the remedy, before anything is asked.
    """
    config.check()
    folder = Path(folder)
    remote = config.remote
    cache = Path(config.cache) if config.cache else folder / "chat.sqlite"
    if remote and config.cache_mode == "replay":
        return Chat(Cached(config.model, cache, "replay"), Budget())
    budget = Budget(calls=config.max_calls or None, usd=config.max_usd or None)
    record = folder / "chat.jsonl"
    if record.exists():  # a run that goes on has spent what it spent
        budget.recall(record)
    asked: ChatModel
    close = _nothing
    if remote:
        asked = server = OpenAIChat(
            ServerConfig(
                config.model,
                config.base_url,
                key_variable=config.key_variable,
                concurrency=config.concurrency,
                split=config.split,
                token_limit=config.token_limit,  # type: ignore[arg-type]
            )
        )
        close = server.close
    elif config.model == SCRIPTED:
        return Chat(Recorder(Budgeted(adviser, budget), record), budget)  # nothing to save by a cache
    else:
        from llmrl_jax.serve import LocalLlama

        asked = LocalLlama.load(config.model.removeprefix(LOCAL), adapter=config.adapter, chat_template=config.template)
    recorded = Recorder(Budgeted(asked, budget), record)
    return Chat(Cached(recorded, cache, config.cache_mode), budget, close)
