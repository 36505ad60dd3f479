"""JSON lines, for exchange between caches and for publication: one sample or one recorded request per line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmrl_jax.chat.errors import CacheError
from llmrl_jax.chat.protocol import ChatReply, ChatRequest, canonical
from llmrl_jax.chat.store import Row, Store
from llmrl_jax.core.files import new_draft


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a recording or an export; a last line without a newline is incomplete, and is left out.

    **Raises:** `CacheError` for a file that cannot be read, or naming the line that is not a JSON object.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise CacheError(
            f"{path} cannot be read: {error.strerror}; give the path of a recording or an export"
        ) from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            raise CacheError(f"line {number} of {path} cannot be read: {error}") from None
        records.append(record)
    return records


def export_jsonl(cache: str | Path, path: str | Path) -> int:
    """Write a cache as JSON lines, one sample each, sorted by key, so that equal caches give equal files.

    **Arguments:** `cache`, an SQLite file; `path`, replaced once the new file is complete.
    **Returns:** the number of lines.
    """
    count = 0
    with new_draft(path) as draft, draft.open("w") as file:
        for row in Store(cache, read_only=True).rows():
            line = {"key": row.key, "namespace": row.namespace, "model": row.model}
            file.write(canonical({**line, "request": row.request.to_json(), "reply": row.reply.to_json()}) + "\n")
            count += 1
    return count


def import_jsonl(path: str | Path, cache: str | Path, *, namespace: str | None = None) -> int:
    """Import an export or a recording into a cache, all lines or none. Existing samples are not changed.

    **Arguments:** `path`, the JSONL file; `cache`, the SQLite file, created if missing; `namespace`, for the samples;
    None keeps those of the lines (a recording's lines have none: the empty one).
    **Returns:** the number of new samples. Errors in a recording are skipped.
    **Raises:** `CacheError` naming the line that cannot be read, or whose key does not match its content.
    """
    rows = []
    for number, record in enumerate(read_jsonl(path), 1):
        if "error" in record:
            continue
        try:
            space = record.get("namespace", "")
            request, reply = ChatRequest.from_json(record["request"]), ChatReply.from_json(record["reply"])
            if len(reply.choices) != request.n:
                raise ValueError(f"{request.n} samples were asked for and {len(reply.choices)} stand there")
            model = record["model"]
            if not isinstance(model, str) or not isinstance(space, str):
                raise ValueError("model and namespace must be strings")
            parts = [
                Row(model, replace(request, n=1, sample=request.sample + i), part, space)
                for i, part in enumerate(reply.split())
            ]
            if "key" in record and [record["key"]] != [row.key for row in parts]:
                raise ValueError("its key is not that of its content; the file was edited")
        except (ValueError, TypeError, KeyError) as error:
            raise CacheError(f"line {number} of {path} is no sample: {type(error).__name__}: {error}") from None
        rows += parts if namespace is None else [replace(row, namespace=namespace) for row in parts]
    return Store(cache).put(rows)
