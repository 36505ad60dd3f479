"""Rows of text for fine-tuning: read from JSONL or parquet, tokenized, with the targets marked."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs_jax.extras import require
from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.tuning.template import ChatTemplate


FORMS = "`prompt` and `response`, or `messages` (a list of objects with `role` and `content`)"
LISTS = ("tools", "documents")
"""Columns beside `messages` that a chat template may read."""
OPTIONS = "chat_template_kwargs"
"""The column of a template's options."""
RESERVED = ("messages", "add_generation_prompt", *LISTS)


class DataError(ValueError):
    """Row that cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Example:
    """Row as tokens."""

    tokens: list[int]
    learn: list[bool]
    """Whether each token is a target; the others are context only."""


def read_rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a `.jsonl` or `.parquet` file, each with its name for errors (`file.jsonl:12`, counted from 1).

    **Raises:** `FileNotFoundError`; `DataError` for another kind of file, an encoding other than UTF-8, a line that is
    not a JSON object, or a file that is no parquet.
    """
    path = Path(path)
    if not _is_file(path):
        siblings = sorted(p.name for p in path.parent.glob("*")) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there is no data file {path}{nearest(path.name, siblings)}")
    if path.suffix in (".jsonl", ".ndjson"):
        yield from _read_jsonl(path)
    elif path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        raise DataError(f"{path} is neither .jsonl nor .parquet")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # in a folder that cannot be entered; a name that is too long
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check its permissions and its disk") from error


def _read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(path), 1):
        name = f"{path.name}:{number}"
        text = _decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, name)
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{name} is not JSON: {error.msg} at column {error.colno}") from error
        except (ValueError, RecursionError) as error:  # a number of over 4,300 digits; lists in lists
            raise DataError(f"{name} cannot be read as JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{name} is a {type(row).__name__}; an object with {FORMS} is needed")
        yield name, row


def _decoded(line: bytes, name: str) -> str:
    """A line of UTF-8. **Raises:** `DataError` for another encoding, with the way to convert the file."""
    remedy = "write the file again in UTF-8 (iconv -f {} -t UTF-8 FILE)"
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line:
        raise DataError(f"{name} is not UTF-8, but looks like UTF-16: {remedy.format('UTF-16')}")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        wrong = line[error.start]
        raise DataError(
            f"{name} is not UTF-8 (the byte 0x{wrong:02x} at {error.start + 1}); if it is Latin-1, "
            f"{remedy.format('LATIN1')}"
        ) from error


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    pyarrow: Any = require("a parquet file", "data", "pyarrow", remedy="use JSONL")
    parquet: Any = require("a parquet file", "data", "pyarrow.parquet", remedy="use JSONL")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    chat = {name: _without_nulls(row[name]) for name in ("messages", *LISTS, OPTIONS) if name in row}
                    yield f"{path.name}:{number}", {**row, **chat}
    except (pyarrow.ArrowException, OSError) as error:
        location = f" after row {number}" if number else ""
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f"{path} cannot be read as parquet{location} ({reason}): write it again, or give the rows as .jsonl"
        ) from error


def _without_nulls(value: Any) -> Any:
    """A value without keys that are null, at any depth: parquet gives every object of a column all of its keys."""
    if isinstance(value, dict):
        return {key: _without_nulls(x) for key, x in value.items() if x is not None}
    return [_without_nulls(x) for x in value] if isinstance(value, list) else value


@contextmanager
def _row(name: str) -> Iterator[None]:
    """Name the row in the errors of tokenizers and templates."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


def encode_row(
    row: Mapping[str, Any], name: str, tokenizer: FastTokenizer, template: ChatTemplate | None = None
) -> Example:
    """Tokens of one row.

    The tokens begin with those of the prompt (`encode_prompt`), whatever follows it; see `FastTokenizer.encode_parts`.

    A `prompt` and a `response`: the prompt is context, the response and the end-of-sequence token are targets.
    `messages`: rendered by the model's chat template, with the row's `tools`, `documents` and `chat_template_kwargs`.
    Targets are what the template marks by `{% generation %}`; if it has no such blocks, what it writes for the
    assistant's messages after the generation prompt. An assistant's message with `weight` 0 is context.

    **Arguments:** `row`; `name`, for errors; `tokenizer`; `template`, needed for messages.
    **Raises:** `DataError` for a row of neither form, a field that is not text, no target, messages without a template
    or that it cannot show, and a tokenizer without an end-of-sequence token where one is needed.
    """
    if row.get("messages") is not None:
        if template is None:
            raise DataError(
                f"{name} has messages, but the model has no chat template (tokenizer_config.json); use prompt and "
                "response, or a model that was made for chat"
            )
        return _encode_messages(row, name, tokenizer, template)
    for field in ("prompt", "response"):
        if field not in row:
            raise DataError(f"{name} has no {field!r}{nearest(field, list(row))}; a row has {FORMS}")
        if not isinstance(row[field], str):
            raise DataError(f"{name}: {field!r} is a {type(row[field]).__name__}, not text")
    if not row["response"]:
        raise DataError(f"{name}: the response is empty, so there is nothing to learn")
    with _row(name):
        (head, _), (answer, _) = tokenizer.encode_parts([row["prompt"], row["response"]])
        answer = [*answer, tokenizer.end_id]
    return Example(head + answer, [False] * len(head) + [True] * len(answer))


def encode_prompt(
    row: Mapping[str, Any], name: str, tokenizer: FastTokenizer, template: ChatTemplate | None = None
) -> tuple[str, list[int]]:
    """Prompt of a row as text and as tokens: its `prompt`, or its `messages` up to the assistant's turn.

    **Arguments:** as for `encode_row`; the row's other fields are for the reward.
    **Returns:** the text, and its tokens after what the tokenizer puts before a text (chat templates write it).
    **Raises:** `DataError` for a row of neither form, a field that is not text, or a text that cannot be encoded.
    """
    if row.get("messages") is not None:
        if template is None:
            raise DataError(f"{name} has messages, but the model has no chat template; give a prompt")
        messages, variables = _conversation(row, name, template)
        if messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        if not messages:
            raise DataError(f"{name}: it has messages of the assistant only; a message of the user is needed")
        with _row(name):
            return template.encode(tokenizer, messages, **variables)
    if "prompt" not in row:
        raise DataError(f"{name} has no 'prompt'{nearest('prompt', list(row))}; a row has prompt, or messages")
    if not isinstance(row["prompt"], str):
        raise DataError(f"{name}: 'prompt' is a {type(row['prompt']).__name__}, not text")
    with _row(name):
        tokens = tokenizer.encode_start(row["prompt"])
    if not tokens:
        raise DataError(f"{name}: the prompt has no token")
    return row["prompt"], tokens


def check_vocabulary(tokens: Sequence[int], name: str, tokenizer: FastTokenizer, vocab_size: int) -> None:
    """**Raises** `DataError`, naming the row, for a token that the model does not have."""
    if tokens and max(tokens) >= vocab_size:
        top = max(tokens)
        raise DataError(
            f"{name} has the token {top} ({tokenizer.decode([top])!r}), but the model's vocabulary is 0 to "
            f"{vocab_size - 1}: the tokenizer is not the model's, or it has gained tokens since"
        )


def _conversation(
    row: Mapping[str, Any], name: str, template: ChatTemplate
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row's messages, without keys that are null, and the variables for the template."""
    messages = row["messages"]
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError(f"{name}: messages is {type(messages).__name__}; a list of at least one message is needed")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"{name}: message {i} has no role; it needs a role and a content")
        if not isinstance(message.get("content"), str) and not (
            message.get("content") is None and message.get("tool_calls")
        ):
            raise DataError(f"{name}: message {i} has no text as its content")
    variables = {column: _parsed(row[column], column, list, name) for column in LISTS if row.get(column)}
    for column, value in variables.items():
        if value and column not in template.variables:
            raise DataError(
                f"{name} has {column}, which the model's chat template does not read: leave the column out, or take a "
                "model whose template shows them"
            )
    options = _parsed(row[OPTIONS], OPTIONS, dict, name) if row.get(OPTIONS) else {}
    for option in options:
        if option in RESERVED or option not in template.variables:
            readable = sorted(template.variables - {*RESERVED, *template.specials})
            raise DataError(
                f"{name}: {OPTIONS} has {option!r}, which is no option of the model's chat template"
                f"{nearest(option, readable)}; leave it out"
            )
    return [_message(message) for message in messages], {**variables, **options}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without keys that are null, also in its calls of tools; the arguments of a call are as they are."""
    fields = {key: value for key, value in message.items() if value is not None}
    if isinstance(calls := fields.get("tool_calls"), list):
        fields["tool_calls"] = [_call(call) for call in calls]
    return fields


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    fields = {key: value for key, value in call.items() if value is not None}
    return {**fields, "function": _call(fields["function"])} if "function" in fields else fields


def _parsed(value: Any, column: str, kind: type, name: str) -> Any:
    """A column's value, which may be stored as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}: {column} is a text, and no JSON: {error}") from error
    if value is not None and not isinstance(value, kind):
        needed = "a list of objects" if kind is list else "an object"
        raise DataError(f"{name}: {column} is a {type(value).__name__}; {needed} is needed, as such or as JSON")
    return value or kind()


def _encode_messages(row: Mapping[str, Any], name: str, tokenizer: FastTokenizer, template: ChatTemplate) -> Example:
    messages, variables = _conversation(row, name, template)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        raise DataError(f"{name}: the assistant says nothing, so there is nothing to learn")
    messages = messages[: answers[-1] + 1]
    weights = [_weight(messages[i], i, name) for i in answers]
    if not any(weights):
        raise DataError(f"{name}: every message of the assistant has weight 0, so there is nothing to learn")
    with _row(name):
        text, spans = template.render_marked(messages, **variables)
        parts = template.parts(text, messages, **variables)
        encoded = tokenizer.encode_parts(parts, start=not template.writes_specials)
        if spans is None or not template.marks:
            learned = [i for i, weight in zip(answers, weights, strict=True) if weight]
            spans = _answers(template, text, messages, learned, variables, name)
        elif not all(weights):
            if len(spans) != len(answers):
                raise DataError(
                    f"{name}: the chat template marks {len(spans)} texts of {len(answers)} messages of the assistant, "
                    "so those of weight 0 cannot be located: give every message weight 1"
                )
            spans = [span for span, weight in zip(spans, weights, strict=True) if weight]
    example, offset = Example([], []), 0
    for part, (ids, offsets) in zip(parts, encoded, strict=True):
        example.tokens.extend(ids)
        # A token without characters of its own, as one of several bytes of one, counts where it begins.
        example.learn.extend(
            any(a < offset + max(end, start + 1) and offset + start < b for a, b in spans) for start, end in offsets
        )
        offset += len(part)
    if not any(example.learn):
        raise DataError(f"{name}: no token lies within what the assistant says")
    if not template.writes_specials and weights[-1]:  # such a template writes no end token
        with _row(name):
            example.tokens.append(tokenizer.end_id)
        example.learn.append(True)
    return example


def _weight(message: Mapping[str, Any], index: int, name: str) -> bool:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise DataError(f"{name}: message {index} has the weight {weight!r}; 0 (context) or 1 (learned) is needed")
    return bool(weight)


def _answers(
    template: ChatTemplate,
    text: str,
    messages: Sequence[Mapping[str, Any]],
    learned: Sequence[int],
    variables: Mapping[str, Any],
    name: str,
) -> list[tuple[int, int]]:
    """The spans of messages of the assistant in the rendered text: from after what the template writes before an
    answer, to where the text of the messages up to it ends."""
    spans = []
    for i in reversed(learned):
        prompt = template.render(messages[:i], add_generation_prompt=True, **variables)
        answered = template.render(messages[: i + 1], **variables)
        if not answered.startswith(prompt):
            raise DataError(
                f"{name}: the chat template does not begin message {i} with its generation prompt, so the assistant's "
                "words cannot be located: mark them in the template by {% generation %}, or give the row as prompt and "
                "response"
            )
        if not text.startswith(answered):
            raise DataError(
                f"{name}: the chat template rewrites message {i} when others follow, so the words cannot be "
                "located: split the row into one for each answer, in which the earlier ones have the weight 0, or mark "
                "the words in the template by {% generation %}"
            )
        spans.append((len(prompt), len(answered)))
    return spans
