"""Prompts as tokens, for learning from rewards."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax import struct


@struct.dataclass
class Prompts:
    """`N` prompts as tokens."""

    tokens: Any
    """int32 `[N, S]`, padded on the right."""
    lengths: Any
    """int32 `[N]`, at least 1."""
    sums: Any = None
    """int32 `[N]`, checksums of the other fields that a reward reads, by which a resumed run detects changes; None: no
    detection."""


def pad_prompts(prompts: Sequence[Sequence[int]], pad: int, rows: Sequence[Mapping[str, Any]] | None = None) -> Prompts:
    """Token lists as `Prompts`, padded on the right to the longest; `rows`, the data that a reward on text reads."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.full((len(prompts), lengths.max()), pad, np.int32)
    for padded, prompt in zip(tokens, prompts, strict=True):
        padded[: len(prompt)] = prompt
    if rows is None:
        return Prompts(tokens, lengths)
    texts = [json.dumps(row, sort_keys=True, default=str) for row in rows]
    return Prompts(tokens, lengths, np.array([zlib.crc32(text.encode()) for text in texts], np.uint32).view(np.int32))
