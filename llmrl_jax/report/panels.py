"""Frames of a video: a world's picture, and beside it a panel of text in sections."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8


INK, FAINT, GOOD, PAPER = "#222222", "#777777", "#117733", "#ffffff"
SIDE, PANEL, MARGIN = 432, 372, 16
"""Pixels: the square for the picture, the panel's width, and the space around both."""
TEXT, SMALL, LINE = 15, 12, 20
"""Heights of letters and of a line in pixels."""
INDENT = "   "


@dataclass(frozen=True)
class Section:
    """Lines of a panel under a title."""

    title: str
    lines: Sequence[str]
    color: str = INK
    most: int = 6
    """Lines that are drawn at most, after wrapping; the last one then says how many entries are left out."""


@functools.cache
def font(size: int) -> Any:
    """The letters that matplotlib brings along."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), size)


def wrapped(text: str, width: float, size: int = TEXT) -> list[str]:
    """A text as lines of at most `width` pixels, broken between words; a longer word is cut."""
    measure = font(size).getlength
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if measure(joined) <= width:
            lines[-1] = joined
            continue
        while measure(word) > width:
            word = word[:-2] + "…"
        lines = [*lines, word] if lines[-1] else [word]
    return lines


def fitted(section: Section, width: float) -> list[str]:
    """The lines of a section as they are drawn: wrapped, with the further lines of an entry indented, and at most
    `most`."""
    entries = [wrapped(text, width - font(TEXT).getlength(INDENT)) for text in section.lines]
    drawn: list[str] = []
    for i, (first, *rest) in enumerate(entries):
        lines, left = [first, *(f"{INDENT}{line}" for line in rest)], len(entries) - i
        room = section.most - len(drawn) - (left > 1)  # the last line is for those that are left
        if len(lines) > room:
            return (
                [*drawn, f"… and {left} more"]
                if drawn
                else [*lines[: section.most - 1], f"{lines[section.most - 1]} …"]
            )
        drawn += lines
    return drawn


def scaled(picture: UInt8[np.ndarray, "H W 3"], side: int = SIDE) -> Any:
    """A picture as large as fits a square, as a PIL image: small pictures have sharp pixels."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture))
    factor = side / max(image.size)
    if factor >= 4:
        factor = float(int(factor))
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.NEAREST if factor >= 2 else Image.Resampling.LANCZOS)


def draw_panel(
    picture: UInt8[np.ndarray, "H W 3"], header: str, sections: Sequence[Section], footer: str = ""
) -> UInt8[np.ndarray, "464 852 3"]:
    """One frame: the picture, and beside it a line of small letters, the sections, and a line at the bottom.

    What does not fit is left out, from the last section on; nothing is clipped or drawn over."""
    from PIL import Image, ImageDraw

    height = SIDE + 2 * MARGIN
    image = Image.new("RGB", (SIDE + PANEL + 3 * MARGIN, height), PAPER)
    view = scaled(picture)
    image.paste(view, (MARGIN + (SIDE - view.width) // 2, MARGIN + (SIDE - view.height) // 2))
    pen, left, y = ImageDraw.Draw(image), SIDE + 2 * MARGIN, MARGIN
    pen.text((left, y), wrapped(header, PANEL, SMALL)[0], FAINT, font(SMALL))
    y += LINE + 8
    bottom = height - MARGIN - (LINE if footer else 0)
    for section in sections:
        room = (bottom - y - LINE) // LINE
        if room < 1:
            break
        pen.text((left, y), section.title, FAINT, font(SMALL))
        y += LINE - 2
        for line in fitted(replace(section, most=min(section.most, room)), PANEL - 14):
            pen.text((left + 14, y), line, section.color, font(TEXT))
            y += LINE
        y += LINE // 2
    if footer:
        pen.text((left, height - MARGIN - 16), wrapped(footer, PANEL, SMALL)[0], FAINT, font(SMALL))
    return np.asarray(image)
