"""A tokenizer's chat template, rendered in Jinja's sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from llmrl_jax.lm.source import tokenizer_config
from llmrl_jax.lm.tokens import CONFIG_FILE, FastTokenizer, special_tokens


PLAIN = "{{ messages | map(attribute='content') | join('\n\n') }}"
"""The contents of the messages joined by blank lines, for models that were not trained on chat."""
SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
TEMPLATE_FILE = "chat_template.jinja"


class TemplateError(ValueError):
    """A chat template that cannot be parsed, that rejects its arguments, or that does not end."""


class ChatTemplate:
    """A function from messages to the text that the model was trained on.

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
        whole: bool = True,
        date: datetime | None = None,
    ):
        """**Arguments:** `source`, the template; `specials`, the special tokens by name (`bos_token`, ...); `whole`,
        whether it writes what the model reads before a text, as a model's own template does; if not, `encode` adds
        what the tokenizer puts there; `date`, which `strftime_now` writes; None: the present.

        **Raises:** `TemplateError` if the source is not valid Jinja."""
        from jinja2 import TemplateSyntaxError

        from llmrl_jax.tuning.sandbox import BoundedEnvironment

        self.source, self.specials, self.whole = source, {n: token or "" for n, token in specials.items()}, whole
        self._environment = BoundedEnvironment(date)
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not Jinja: {error.message} in line {error.lineno}") from error
        except Exception as error:  # a constant expression in it fails, or it is nested too deeply
            raise TemplateError(f"the chat template cannot be compiled: {_reason(error)}") from error

    @classmethod
    def load(cls, folder: str | Path, choice: str = "", *, date: datetime | None = None) -> ChatTemplate | None:
        """The template of a model, from `chat_template.jinja` or `tokenizer_config.json` of its folder, or from a GGUF
        file; None without one.

        **Arguments:** `choice`, empty for the model's own; `plain` for `PLAIN`; else a file with a template; `date`,
        see the constructor.
        **Raises:** `TemplateError` if that file does not exist, or the template is not valid Jinja; `ValueError` for a
        `tokenizer_config.json` that is not JSON."""
        folder = Path(folder)
        file = folder if folder.is_file() else folder / CONFIG_FILE
        config = tokenizer_config(folder)
        if choice == "plain":
            source: Any = PLAIN
        elif choice:
            if not _is_file(choice):
                raise TemplateError(f"the chat template {choice[:80]!r} is neither plain nor a file")
            source = _read(Path(choice))
        elif (folder / TEMPLATE_FILE).is_file():
            source = _read(folder / TEMPLATE_FILE)
        else:
            source = config.get("chat_template")
            if isinstance(source, list):  # several, by name
                named = [x for x in source if isinstance(x, Mapping) and x.get("name") == "default"]
                source = named[0].get("template") if named else None
            if not isinstance(source, str | None):
                raise TemplateError(f"the chat_template of {file} is {type(source).__name__}; a text is needed")
        if not source:
            return None
        try:
            return cls(source, special_tokens(config, SPECIALS), whole=choice != "plain", date=date)
        except TemplateError:
            raise
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """The text of a conversation. **Raises** `TemplateError` if the template rejects it, fails, violates the
        sandbox, or exceeds its bounds."""
        from jinja2 import TemplateError as JinjaError

        from llmrl_jax.tuning.sandbox import Unbounded

        given = {
            "messages": [dict(m) for m in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.specials,
        }
        try:
            return self._environment.render(self._template, given)
        except Unbounded as error:
            raise TemplateError(f"the chat template does not end: {error}") from error
        except JinjaError as error:
            raise TemplateError(f"the chat template refuses these messages: {_reason(error)}") from error
        except Exception as error:  # an operation in the template
            raise TemplateError(f"the chat template fails on these messages: {_reason(error)}") from error

    def encode(self, tokenizer: FastTokenizer, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
        """A conversation up to where the assistant's answer begins, as text and as tokens. **Raises** as `render`."""
        text = self.render(messages, add_generation_prompt=True)
        return text, tokenizer.encode(text) if self.whole else tokenizer.encode_start(text)


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


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TemplateError(f"{file} is not UTF-8 (byte {error.start}): write it again in UTF-8") from None
    except OSError as error:
        raise TemplateError(f"the chat template {file} cannot be read: {error.strerror}") from error
