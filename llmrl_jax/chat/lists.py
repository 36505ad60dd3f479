"""Lists in replies, as models write them in Markdown."""

from __future__ import annotations

import re


_ITEM = re.compile(r"\s*(?:-(?!-)\s*|[*\u2022]\s+|\d+[.)]\s+)(\S.*)")
_EMPHASIS = re.compile(r"[*`]+|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")


def list_items(text: str) -> list[str]:
    """Items of a list in their order: lines that begin with a dash, an asterisk, a bullet or a number, without it,
    and without the signs of bold, italic or code text."""
    return [_EMPHASIS.sub("", match[1]).strip() for line in text.splitlines() if (match := _ITEM.fullmatch(line))]
