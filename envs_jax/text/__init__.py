"""Text as integers on the device: phrasebooks, captions, and prompts whose tokens are assembled inside jit."""

from envs_jax.text.compiled import CompiledPrompt
from envs_jax.text.phrases import Caption, Counted, Phrasebook, Tokenizer, TokenTable, compact, pad_rows
from envs_jax.text.prompt import Prompt
from envs_jax.text.template import Block, Choice, Limit, Literal, Part, PromptError, Slot


__all__ = [
    "Block",
    "Caption",
    "Choice",
    "CompiledPrompt",
    "Counted",
    "Limit",
    "Literal",
    "Part",
    "Phrasebook",
    "Prompt",
    "PromptError",
    "Slot",
    "TokenTable",
    "Tokenizer",
    "compact",
    "pad_rows",
]
