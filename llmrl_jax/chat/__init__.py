"""Requests to chat models: one protocol, its implementations and its wrappers.

Implementations: any OpenAI-compatible server, a scripted adviser. Wrappers, from the outside in: a cache, a recorder, a
budget. `openai` is imported and files are opened only on use.
"""

from llmrl_jax.chat.budget import Budget, Budgeted, Price, Spent, cost, load_prices
from llmrl_jax.chat.cache import Cached, CacheMode, Recorder
from llmrl_jax.chat.client import OpenAIChat, ServerConfig, check_server
from llmrl_jax.chat.lists import list_items
from llmrl_jax.chat.protocol import (
    BadReply,
    BudgetExceeded,
    CacheError,
    ChatError,
    ChatModel,
    ChatReply,
    ChatRequest,
    Choice,
    ContextExceeded,
    Message,
    ReplayMiss,
    ScriptedAdviser,
    ServerError,
    TimedOut,
    Usage,
)
from llmrl_jax.chat.store import read_jsonl
from llmrl_jax.chat.thinking import strip_thinking


__all__ = [
    "BadReply",
    "Budget",
    "BudgetExceeded",
    "Budgeted",
    "CacheError",
    "CacheMode",
    "Cached",
    "ChatError",
    "ChatModel",
    "ChatReply",
    "ChatRequest",
    "Choice",
    "ContextExceeded",
    "Message",
    "OpenAIChat",
    "Price",
    "Recorder",
    "ReplayMiss",
    "ScriptedAdviser",
    "ServerConfig",
    "ServerError",
    "Spent",
    "TimedOut",
    "Usage",
    "check_server",
    "cost",
    "load_prices",
    "read_jsonl",
    "list_items",
    "strip_thinking",
]
