"""Rows of text for fine-tuning: read from JSONL or parquet, tokenized, with the targets marked."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.tuning.template import ChatTemplate


FORMS = "`prompt` and `response`, or `messages` (a list of objects with `role` and `content`)"


class DataError(ValueError):
    """A row that cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Example:
    """One row as tokens."""

    tokens: list[int]
    learn: list[bool]
    """Which of the tokens are targets; the others are context only."""


def read_rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a `.jsonl` or `.parquet` file, each with its name for errors (`file.jsonl:12`, counted from 1).

    **Raises:** `FileNotFoundError`; `DataError` for another kind of file, an encoding other than UTF-8, a line that is
    not a JSON object, or a file that is no parquet.
    """
    path = Path(path)
    if not _is_file(path):
        here = sorted(p.name for p in path.parent.glob("*")) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there is no data file {path}{nearest(path.name, here)}")
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
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("parquet files need pyarrow: pip install 'llmrl-jax[data]', or use JSONL") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path.name}:{number}", row
    except (pyarrow.ArrowException, OSError) as error:
        where = f" after row {number}" if number else ""
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f"{path} cannot be read as parquet{where} ({reason}): write it again, or give the rows as .jsonl"
        ) from error


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
    """The tokens of one row.

    A `prompt` and a `response`: the prompt is context, the response and the end-of-sequence token are targets. The
    tokens are those of the concatenated text if they begin with the prompt's tokens, as when a model answers the
    prompt; if the tokenizer merges across the boundary, the two are tokenized separately. What the tokenizer puts
    before a text comes first (`FastTokenizer.encode_start`).
    `messages`: rendered by the model's chat template; the assistant's messages are targets, with their end tokens.

    **Arguments:** `row`; `name`, for errors; `tokenizer`; `template`, needed for messages.
    **Raises:** `DataError` for a row of neither form, a field that is not text, no target, or messages without a
    template.
    """
    if "messages" in row:
        if template is None:
            raise DataError(
                f"{name} has messages, but the model has no chat template (tokenizer_config.json); use prompt and "
                "response, or a model that was made for chat"
            )
        return _encode_messages(row["messages"], name, tokenizer, template)
    for field in ("prompt", "response"):
        if field not in row:
            raise DataError(f"{name} has no {field!r}{nearest(field, list(row))}; a row has {FORMS}")
        if not isinstance(row[field], str):
            raise DataError(f"{name}: {field!r} is a {type(row[field]).__name__}, not text")
    if not row["response"]:
        raise DataError(f"{name}: the response is empty, so there is nothing to learn")
    with _row(name):
        head = tokenizer.encode_start(row["prompt"])
        whole = tokenizer.encode_start(row["prompt"] + row["response"])
        if whole[: len(head)] != head:
            whole = head + tokenizer.encode(row["response"])
    tokens = whole + ([] if tokenizer.eos_id is None else [tokenizer.eos_id])
    return Example(tokens, [i >= len(head) for i in range(len(tokens))])


def encode_prompt(
    row: Mapping[str, Any], name: str, tokenizer: FastTokenizer, template: ChatTemplate | None = None
) -> tuple[str, list[int]]:
    """The prompt of a row as text and as tokens: its `prompt`, or its `messages` up to the assistant's turn.

    **Arguments:** as for `encode_row`; the row's other fields are for the reward.
    **Returns:** the text, and its tokens after what the tokenizer puts before a text (chat templates write it).
    **Raises:** `DataError` for a row of neither form, a field that is not text, or a text that cannot be encoded.
    """
    if "messages" in row:
        if template is None:
            raise DataError(f"{name} has messages, but the model has no chat template; give a prompt")
        messages = row["messages"]
        _check_messages(messages, name)
        if messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        if not messages:
            raise DataError(f"{name}: it has messages of the assistant only; a message of the user is needed")
        with _row(name):
            return template.encode(tokenizer, messages)
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


def _check_messages(messages: Any, name: str) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError(f"{name}: messages is {type(messages).__name__}; a list of at least one message is needed")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"{name}: message {i} has no role; it needs a role and a content")
        if not isinstance(message.get("content"), str):
            raise DataError(f"{name}: message {i} has no text as its content")


def _encode_messages(messages: Any, name: str, tokenizer: FastTokenizer, template: ChatTemplate) -> Example:
    _check_messages(messages, name)
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(f"{name}: the assistant says nothing, so there is nothing to learn")
    text, spans = "", []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        with _row(name):
            asked = template.render(messages[:i], add_generation_prompt=True)
            answered = template.render(messages[: i + 1])
        if not asked.startswith(text) or not answered.startswith(asked):
            raise DataError(
                f"{name}: the chat template rewrites what came before message {i}, so the assistant's words cannot "
                "be located; split the row into one for each answer"
            )
        spans.append((len(asked), len(answered)))
        text = answered
    with _row(name):
        tokens, offsets = tokenizer.encode_with_offsets(text)
        start = [] if template.whole else tokenizer.encode_start(text)[: -len(tokens) or None]
    learn = [any(a <= start and end <= b and start < end for a, b in spans) for start, end in offsets]
    if not any(learn):
        raise DataError(f"{name}: no token lies within what the assistant says")
    return Example(start + tokens, [False] * len(start) + learn)
