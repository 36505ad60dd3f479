"""A model with its weights, tokenizer, chat template and end tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax import lm
from llmrl_jax.core.checksum import checksum
from llmrl_jax.tuning import ChatTemplate


CHARACTERS = 32
"""Characters per token above which a text is tokenized in parts: it probably has more tokens than the context."""
SPLIT = 256
"""Tokens that a cut within a text may add to it."""


class ContextOverflow(ValueError):
    """Prompt and answer do not fit into the model's context."""


@dataclass(frozen=True, eq=False)
class Served:
    """Language model with its tokenizer and chat template."""

    name: str
    """Name that requests use."""
    model: lm.Llama
    variables: Any
    """`{"params": ...}`, with `lora` if adapters are used."""
    tokenizer: lm.FastTokenizer
    template: ChatTemplate | None = None
    """None: completions only, no chat."""
    stop_tokens: tuple[int, ...] | None = None
    """Tokens that end a text. None: the end-of-sequence tokens of the model's configuration and of the tokenizer."""
    context: int = 0
    """Maximum tokens of prompt and answer together. 0: the model's `max_position_embeddings`."""

    def __post_init__(self) -> None:
        limit, vocab = self.model.config.max_position_embeddings, self.model.config.vocab_size
        if not self.name:
            raise ValueError("the model's name is empty; give the one that requests use")
        if not 0 <= self.context <= limit:
            raise ValueError(
                f"context is {self.context}; the model has {limit} positions: give 1 to {limit}, or 0 for all"
            )
        object.__setattr__(self, "context", self.context or limit)
        ends = (self.model.config.eos_token_id, self.tokenizer.eos_id) if self.stop_tokens is None else self.stop_tokens
        stop_tokens = tuple(dict.fromkeys(int(t) for t in ends if t is not None))
        for token in stop_tokens:
            if not 0 <= token < vocab:
                raise ValueError(f"the stop token {token} cannot occur: the model's vocabulary is 0 to {vocab - 1}")
        object.__setattr__(self, "stop_tokens", stop_tokens)

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        *,
        adapter: str | Path = "",
        name: str = "",
        context: int = 0,
        dtype: Any = jnp.float32,
        quantize: str | None = None,
        chat_template: str = "",
    ) -> Served:
        """Load a model (`lm.locate`), with its tokenizer and chat template.

        **Arguments:** `path_or_id`; `adapter`, a PEFT adapter, a folder or hub id; `name`, by default the folder's
        name or the id, and the adapter's; `context`, see the field; `dtype`, of weights and computation; `quantize`,
        `int8` or `nf4`, see `lm.load`; `chat_template`, which replaces the model's own: `plain` (messages one after the
        other) or a file with a template.
        **Raises:** what `lm.load`, `lm.load_adapter` and `lm.load_tokenizer` raise.
        """
        folder = lm.locate(path_or_id)
        lm.read_config(folder)  # a folder without a model has no tokenizer either, and this error says more
        tokenizer, template = lm.load_tokenizer(folder), ChatTemplate.load(folder, chat_template)
        model, variables = lm.load(folder, dtype=dtype, quantize=quantize)
        if adapter:
            model, variables = lm.load_adapter(adapter, model, variables)
        parts = [_name(path) for path in (path_or_id, adapter) if path]
        stop = lm.end_tokens(folder, tokenizer)
        return cls(name or "+".join(parts), model, variables, tokenizer, template, stop, context)

    @cached_property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits: a checksum of the weights and the configuration, and of what makes tokens of
        messages and text of tokens: template, tokenizer and end tokens."""
        leaves = jax.tree_util.tree_leaves_with_path(self.variables)
        sums = [f"{jax.tree_util.keystr(path)} {_checksum(leaf)}" for path, leaf in leaves]
        import hashlib

        model, template = self.model, self.template
        words = [repr(self.stop_tokens), self.tokenizer.backend.to_str()]
        if template is not None:
            words += [template.source, repr(sorted(template.specials.items()))]
        text = "\n".join([repr(model.config), repr(model.lora), str(model.dtype), *words, *sums])
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @cached_property
    def byte_tokens(self) -> frozenset[int]:
        """Tokens that are one byte each (`<0x0A>`), where the tokenizer decodes them so, as Llama 2's does."""
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        tokens = {name: self.tokenizer.backend.token_to_id(name) for name in names}
        present = {name: token for name, token in tokens.items() if token is not None}
        return frozenset(token for name, token in present.items() if self.tokenizer.decode([token]) != name)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text to continue, after what the tokenizer puts before a text (`FastTokenizer.encode_start`).

        **Raises:** `ValueError` where there is none, or a word that the tokenizer does not have."""
        self.refuse_early(text)
        return self.check(self.tokenizer.encode_start(text))

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] = MappingProxyType({})
    ) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins.

        **Arguments:** `variables`, of the template, such as `enable_thinking`: texts, numbers and booleans.
        **Raises:** `ValueError` where the model has no chat template, or that refuses the messages."""
        if self.template is None:
            raise ValueError(f"the model {self.name!r} has no chat template; request a completion")
        texts = [message["content"] for message in messages] + [v for v in variables.values() if isinstance(v, str)]
        self.refuse_early("".join(texts))
        return self.check(self.template.encode(self.tokenizer, messages, **variables)[1])

    def refuse_early(self, text: str) -> None:
        """**Raises:** `ContextOverflow` for a text whose beginning has more tokens than the context; the rest of it is
        not read."""
        part, count, start, parts = CHARACTERS * self.context, 0, 0, 0
        while len(text) > part and start < len(text):
            end = min(start + part, len(text))
            blank = max(text.rfind(character, start, end) for character in " \n\t") if end < len(text) else -1
            end = blank if blank > start else end
            count, parts, start = count + len(self.tokenizer.encode(text[start:end])), parts + 1, end
            if count > self.context + SPLIT * parts:
                raise ContextOverflow(
                    f"a text has {len(text)} characters, and {count} tokens in the first {start} of them; the context "
                    f"is {self.context}: shorten it"
                )

    def check(self, tokens: Sequence[int]) -> list[int]:
        """Tokens. **Raises:** `ValueError` where there is none, or one outside of the vocabulary."""
        if not tokens:
            raise ValueError("the prompt is empty, and the tokenizer has no beginning-of-sequence token to start from")
        low, high, vocab = min(tokens), max(tokens), self.model.config.vocab_size
        if low < 0 or high >= vocab:
            wrong = low if low < 0 else high
            raise ValueError(f"the prompt holds the token {wrong}; the model's vocabulary is 0 to {vocab - 1}")
        return list(tokens)


def _name(path: str | Path) -> str:
    """The last part of a folder's path, a file's name without its ending, or the whole hub id."""
    local = Path(path).expanduser()
    return local.resolve().name if local.is_dir() else local.stem if local.is_file() else str(path)


_sum = jax.jit(checksum)


def _checksum(leaf: Any) -> str:
    return f"{np.shape(leaf)} {leaf.dtype} {int(_sum(leaf)):08x}"
