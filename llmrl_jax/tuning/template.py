"""A tokenizer's chat template, rendered in Jinja's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn


PLAIN = "{{ bos_token }}{{ messages | map(attribute='content') | join('\n\n') }}"
"""The contents of the messages joined by blank lines, for models that were not trained on chat."""


class TemplateError(ValueError):
    """A chat template that cannot be parsed, or that rejects its arguments."""


class ChatTemplate:
    """A function from messages to the text that the model was trained on.

    Templates are Jinja programs distributed with a model. They run in Jinja's immutable sandbox, in which they can
    only read their arguments; they have no access to Python.
    """

    def __init__(self, source: str, specials: Mapping[str, str | None]):
        """**Arguments:** `source`, the template; `specials`, the special tokens by name (`bos_token`, ...).

        **Raises:** `TemplateError` if the source is not valid Jinja."""
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda x, **how: json.dumps(x, ensure_ascii=False, **how)
        environment.globals["raise_exception"] = _refuse
        self.source, self.specials = source, {name: token or "" for name, token in specials.items()}
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not Jinja: {error.message} in line {error.lineno}") from error

    @classmethod
    def load(cls, folder: str | Path, choice: str = "") -> ChatTemplate | None:
        """The template of a model folder, from `chat_template.jinja` or `tokenizer_config.json`; None without one.

        **Arguments:** `choice`, empty for the model's own; `plain` for `PLAIN`; else a file with a template.
        **Raises:** `TemplateError` if that file does not exist, or the template is not valid Jinja."""
        folder = Path(folder)
        config: dict[str, Any] = {}
        if (folder / "tokenizer_config.json").is_file():
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        source = config.get("chat_template")
        if (folder / "chat_template.jinja").is_file():
            source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        if isinstance(source, list):  # several, by name
            source = next((x["template"] for x in source if x["name"] == "default"), None)
        if choice == "plain":
            source = PLAIN
        elif choice:
            if not Path(choice).is_file():
                raise TemplateError(f"the chat template {choice!r} is neither plain nor a file")
            source = Path(choice).read_text(encoding="utf-8")
        if not source:
            return None
        tokens = {name: config.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        return cls(source, {n: t["content"] if isinstance(t, dict) else t for n, t in tokens.items()})

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """The text of a conversation. **Raises** `TemplateError` if the template rejects it or violates the
        sandbox."""
        from jinja2 import TemplateError as JinjaError

        try:
            return self._template.render(
                messages=[dict(m) for m in messages], add_generation_prompt=add_generation_prompt, **self.specials
            )
        except JinjaError as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError as JinjaError

    raise JinjaError(message)
