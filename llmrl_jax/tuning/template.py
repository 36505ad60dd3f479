"""The chat template that comes with a tokenizer, rendered in Jinja's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn


PLAIN = "{{ bos_token }}{{ messages | map(attribute='content') | join('\n\n') }}"
"""What is said, one message after the other, for models that never learnt whose turn it is."""


class TemplateError(ValueError):
    """A chat template that cannot be read, or that refuses what it was given."""


class ChatTemplate:
    """A function from messages to the text that the model was trained on.

    Templates are programs in Jinja that come with a model. They run in Jinja's immutable sandbox, which lets them
    read their arguments and nothing else; there is no way from them to Python.
    """

    def __init__(self, source: str, specials: Mapping[str, str | None]):
        """**Arguments:** `source`, the template; `specials`, the special tokens by name (`bos_token`, ...).

        **Raises:** `TemplateError` where the source is not Jinja."""
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
        **Raises:** `TemplateError` where that file is not there, or the template is not Jinja."""
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
        """The text of a conversation. **Raises** `TemplateError` where the template refuses it or reaches out of its
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
