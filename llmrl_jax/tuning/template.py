"""A tokenizer's chat template, rendered in Jinja's sandbox."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from llmrl_jax.lm.source import chat_template, locate, read_template, tokenizer_config
from llmrl_jax.lm.tokens import TEMPLATE_SPECIALS, FastTokenizer


PLAIN = "{{ messages | map(attribute='content') | join('\n\n') }}"
"""The contents of the messages joined by blank lines, for models that were not trained on chat."""
MERGE_WINDOW = 64
"""Characters within which a tokenizer's merges are looked for."""


class TemplateError(ValueError):
    """Chat template that cannot be parsed, that rejects its arguments, or that does not end."""


class ChatTemplate:
    """Function from messages to the text that the model was trained on.

    Templates are Jinja programs distributed with a model. They run in Jinja's immutable sandbox, in which they can
    only read their arguments; they have no access to Python. They have the functions, blocks and variables that
    transformers gives them (`strftime_now`, `{% generation %}`), and end within the bounds of
    `llmrl_jax.tuning.sandbox`.
    """

    def __init__(
        self,
        source: str,
        specials: Mapping[str, str | None],
        *,
        writes_specials: bool = True,
        date: datetime | None = None,
    ):
        """**Arguments:** `source`, the template; `specials`, the special tokens by name (`bos_token`, ...);
        `writes_specials`, whether it writes the special tokens before a text, as a model's own template does; if not,
        `encode` adds those of the tokenizer; `date`, which `strftime_now` writes; None: the present.

        **Raises:** `TemplateError` if the source is not valid Jinja."""
        from jinja2 import TemplateSyntaxError

        from llmrl_jax.tuning.sandbox import BoundedEnvironment

        self.source, self.writes_specials = source, writes_specials
        self.specials = {n: token or "" for n, token in specials.items()}
        self._environment = BoundedEnvironment(date)
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not Jinja: {error.message} in line {error.lineno}") from error
        except Exception as error:  # a constant expression in it fails, or it is nested too deeply
            raise TemplateError(f"the chat template cannot be compiled: {_reason(error)}") from error

    @classmethod
    def load(cls, folder: str | Path, choice: str = "", *, date: datetime | None = None) -> ChatTemplate | None:
        """Template of a model (`lm.locate`), in its folder or GGUF file; None without one.

        **Arguments:** `choice`, empty for the model's own; `plain` for `PLAIN`; else a file with a template; `date`,
        see the constructor.
        **Raises:** `TemplateError` if that file does not exist, or the template is not valid Jinja; `ValueError` for a
        `tokenizer_config.json` that is not JSON; what `lm.locate` raises, if there is no such model."""
        if choice not in ("", "plain") and not _is_file(choice):
            raise TemplateError(f"the chat template {choice[:80]!r} is neither plain nor a file")
        folder = locate(folder)
        config = tokenizer_config(folder)
        try:
            source = PLAIN if choice == "plain" else read_template(Path(choice)) if choice else chat_template(folder)
        except ValueError as error:
            raise TemplateError(str(error)) from error
        if not source:
            return None
        return cls(source, {n: config.get(n) for n in TEMPLATE_SPECIALS}, writes_specials=choice != "plain", date=date)

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the template may read."""
        from jinja2 import meta

        return frozenset(meta.find_undeclared_variables(self._environment.parse(self.source)))

    @functools.cached_property
    def marks(self) -> bool:
        """Return whether the template marks what the assistant says, by `{% generation %}`."""
        from jinja2 import nodes

        blocks = self._environment.parse(self.source).find_all(nodes.CallBlock)
        return any(isinstance(block.call.node, nodes.ExtensionAttribute) for block in blocks)

    def render(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = False, **variables: Any
    ) -> str:
        """Text of a conversation. As in transformers, a key of a message whose value is None is left out.

        **Arguments:** `variables`, of the template: `tools`, `documents`, its options.
        **Raises:** `TemplateError` if the template rejects the conversation, fails, violates the sandbox, or exceeds
        its bounds."""
        return self.render_marked(messages, add_generation_prompt=add_generation_prompt, **variables)[0]

    def render_marked(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = False, **variables: Any
    ) -> tuple[str, list[tuple[int, int]] | None]:
        """`render`, and where the texts that the template marks by `{% generation %}` begin and end, in characters;
        None if they cannot be located, as in a macro."""
        from jinja2 import TemplateError as JinjaError

        from llmrl_jax.tuning.sandbox import Unbounded

        context = {
            "messages": [_plain(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.specials,
            **variables,
        }
        try:
            return self._environment.render(self._template, context)
        except Unbounded as error:
            raise TemplateError(f"the chat template does not end: {error}") from error
        except JinjaError as error:
            raise TemplateError(f"the chat template refuses these messages: {_reason(error)}") from error
        except Exception as error:  # an operation in the template
            raise TemplateError(f"the chat template fails on these messages: {_reason(error)}") from error

    def encode(
        self, tokenizer: FastTokenizer, messages: Sequence[Mapping[str, Any]], /, **variables: Any
    ) -> tuple[str, list[int]]:
        """Conversation up to where the assistant's answer begins, as text and as tokens: those with which a row that
        holds the answer begins, too. **Arguments** and **Raises** as `render`."""
        text = self.render(messages, add_generation_prompt=True, **variables)
        before = self.render(messages, **variables)
        prompt = text[len(before) :] if text.startswith(before) else ""
        # Parts take a rendering for each earlier answer: only where the tokenizer merges across their beginnings.
        parts = self.parts(text, messages, **variables) if _merges(tokenizer, text, prompt) else [text]
        encoded = tokenizer.encode_parts(parts, start=not self.writes_specials)
        return text, [token for ids, _ in encoded for token in ids]

    def parts(self, text: str, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> list[str]:
        """Rendered text of a conversation in parts, one more than answers that the model begins after reading the
        text up to there: each part but the first begins with an answer."""
        borders = [0]
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                border = len(self._question(text, messages[:i], variables))
                borders += [border] if border > borders[-1] else []
        return [text[a:b] for a, b in zip(borders, [*borders[1:], len(text)], strict=True)]

    def _question(self, text: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The conversation up to where the assistant's answer begins, if `text` begins with it, else no text."""
        try:
            question = self.render(messages, add_generation_prompt=True, **variables)
        except TemplateError:  # as of no message
            return ""
        return question if text.startswith(question) else ""


def _merges(tokenizer: FastTokenizer, text: str, prompt: str) -> bool:
    """Return whether a tokenizer merges what ends a generation prompt, anywhere in a text, with what follows it."""
    if not prompt:
        return True
    ends = [match.end() for match in re.finditer(re.escape(prompt), text)]
    around = {(text[max(0, end - MERGE_WINDOW) : end], text[end : end + MERGE_WINDOW]) for end in ends}
    return any(tokenizer.encode(a + b)[: len(head := tokenizer.encode(a))] != head for a, b in around)


def _reason(error: Exception) -> str:
    """An exception in one line."""
    lines = str(error).split("\n")
    return (
        lines[0]
        if type(error).__module__.startswith(("jinja2", "llmrl_jax"))
        else f"{type(error).__name__}: {lines[0]}"
    )


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # as a whole template is too long for a path
        return False


_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""The names that templates and servers have for the thoughts of a message."""


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as transformers gives it to templates: without keys whose value is None, its thoughts as
    `reasoning_content` and `thinking`, whichever name they have."""
    plain = {key: value for key, value in message.items() if value is not None}
    thoughts = next((plain[name] for name in _THOUGHTS if name in plain), None)
    if thoughts is not None:
        plain["reasoning_content"] = thoughts
        plain.setdefault("thinking", thoughts)
    return plain
