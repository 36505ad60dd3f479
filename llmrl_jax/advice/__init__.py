"""Structured replies from a chat model: ask, check the reply, ask again."""

from llmrl_jax.advice.structured import JsonParser, Parsed, ask


__all__ = ["JsonParser", "Parsed", "ask"]
