"""Animations of episodes."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from envs_jax.env import Environment
from llmrl_jax.core.files import new_draft


def write_gif(path: str | Path, frames: Sequence[np.ndarray], *, fps: float = 4.0, hold: float = 1.0) -> Path:
    """Write frames as an animated GIF that repeats, atomically.

    **Arguments:** `path`, whose folder is created if it is new; `frames`, uint8 `[H, W, 3]` each, all of one shape;
    `fps`, frames per second; `hold`, seconds that the last frame is shown.
    **Raises:** `ValueError` if there is no frame, or one has another shape or dtype.
    """
    if not len(frames):
        raise ValueError("a GIF needs at least one frame")
    first = np.asarray(frames[0])
    for i, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3 or frame.shape != first.shape:
            raise ValueError(
                f"frame {i} is {frame.dtype}{list(frame.shape)}; expected uint8[H, W, 3], as the first: "
                f"{list(first.shape)}"
            )
    from PIL import Image

    images = [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames]
    pause = round(1000 / fps)
    times = [pause] * (len(images) - 1) + [max(pause, round(1000 * hold))]
    path = Path(path)
    options = {"save_all": True, "append_images": images[1:], "duration": times, "loop": 0, "optimize": True}
    with new_draft(path) as draft:
        images[0].save(draft, format="GIF", **options)
    return path


# --- frames: a picture beside text ----------------------------------------------------------------------------------


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
    for i, (first, *remaining) in enumerate(entries):
        lines, left = [first, *(f"{INDENT}{line}" for line in remaining)], len(entries) - i
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


# --- an episode -----------------------------------------------------------------------------------------------------


CHOSEN, REST_COLOR = "#cc6677", "#4477aa"


def text_lines(env: Environment, text: Mapping[str, str], width: int = 46, height: int = 13) -> list[str]:
    """The strings of an observation as at most `height` + 1 lines: the captions of the episode first, as `mission: go
    to ...`, then one line per phrase of the others, with further lines indented.

    **Arguments:** `env`, whose `captions` and `episode_captions` say what the strings are; `text`, from `env.describe`.
    """
    lines: list[str] = []
    for name in (name for name in env.episode_captions if name in text):
        lines += textwrap.wrap(f"{name}: {text[name]}", width, subsequent_indent="   ")
    for name in (name for name in text if name not in env.episode_captions):
        lines += [""] if lines else []
        for phrase in text[name].split(env.captions[name].separator if name in env.captions else "\n"):
            lines += textwrap.wrap(phrase, width, subsequent_indent="   ")
    return lines[:height] + (["..."] if len(lines) > height else [])


def draw_frame(env: Environment, frame: Any, step: int, verdict: str) -> np.ndarray:
    """One step as an image, uint8 `[H, W, 3]`.

    **Arguments:** `env`, which the episode was played in; `frame`, with `picture`, `text`, `probabilities`, `action`
    and `value` (see `llmrl_jax.agents.play.Frame`); `step`, its number; `verdict`, the text of the last frame,
    which has no probabilities.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.2), dpi=80)
    canvas = FigureCanvasAgg(figure)
    grid = figure.add_axes((0.015, 0.03, 0.47, 0.94))
    grid.imshow(frame.picture, interpolation="nearest")
    grid.axis("off")
    words = figure.add_axes((0.51, 0.42, 0.48, 0.55))
    words.axis("off")
    words.text(0, 1, "\n".join(text_lines(env, frame.text)), va="top", family="monospace", fontsize=8.5, color=INK)
    bars = figure.add_axes((0.66, 0.1, 0.31, 0.29))
    bars.set_title(f"step {step}", fontsize=8.5, color=FAINT, loc="right")
    if len(frame.probabilities):
        actions = env.action_names
        colors = [CHOSEN if i == frame.action else REST_COLOR for i in range(len(actions))]
        bars.barh(range(len(actions)), frame.probabilities, color=colors, height=0.7)
        bars.set_yticks(range(len(actions)), actions, fontsize=8.5, color=INK)
        bars.invert_yaxis()
        bars.set_xlim(0, 1)
        bars.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=7.5, color=FAINT)
        bars.spines[["top", "right"]].set_visible(False)
    else:
        bars.axis("off")
        bars.text(0, 0.6, verdict, fontsize=15, color=CHOSEN if "fail" in verdict else REST_COLOR)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def write_episode(path: str | Path, env: Environment, frames: Sequence[Any], success: bool) -> Path:
    """Write an episode, as `record_episode` returns it, as an animated GIF."""
    verdict = "success" if success else "failed"
    return write_gif(path, [draw_frame(env, frame, i, verdict) for i, frame in enumerate(frames)], fps=2.0, hold=2.5)
