"""Where a chat model meets a program: ask, check the reply, ask again."""

from llmrl_jax.advice.structured import JsonParser, Parsed, ask


__all__ = ["JsonParser", "Parsed", "ask"]
