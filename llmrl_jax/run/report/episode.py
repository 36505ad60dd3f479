"""An episode as an animation: the grid beside the text and the probabilities of the actions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.run.report.media import write_gif


INK, FAINT, CHOSEN, OTHER = "#222222", "#777777", "#cc6677", "#4477aa"


def draw_frame(frame: Any, actions: Sequence[str], step: int, verdict: str) -> np.ndarray:
    """One step as an image, uint8 `[H, W, 3]`.

    **Arguments:** `frame`, with `picture`, `text`, `probabilities`, `action` and `value` (see
    `llmrl_jax.agents.recording.Frame`); `actions`, their names; `step`, its number; `verdict`, the
    text of the last frame, which has no probabilities.
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
    said = frame.text.get("text", "")
    lines = [f"Goal: {frame.text.get('mission', '')}", ""]
    for sentence in said.split("\n") if "\n" in said else said.split(", "):
        lines += textwrap.wrap(sentence, 46, subsequent_indent="   ")
    shown = lines[:13] + (["..."] if len(lines) > 13 else [])
    words.text(0, 1, "\n".join(shown), va="top", family="monospace", fontsize=8.5, color=INK)
    bars = figure.add_axes((0.66, 0.1, 0.31, 0.29))
    bars.set_title(f"step {step}", fontsize=8.5, color=FAINT, loc="right")
    if len(frame.probabilities):
        colors = [CHOSEN if i == frame.action else OTHER for i in range(len(actions))]
        bars.barh(range(len(actions)), frame.probabilities, color=colors, height=0.7)
        bars.set_yticks(range(len(actions)), actions, fontsize=8.5, color=INK)
        bars.invert_yaxis()
        bars.set_xlim(0, 1)
        bars.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=7.5, color=FAINT)
        bars.spines[["top", "right"]].set_visible(False)
    else:
        bars.axis("off")
        bars.text(0, 0.6, verdict, fontsize=15, color=CHOSEN if "fail" in verdict else OTHER)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def write_episode(path: str | Path, frames: Sequence[Any], success: bool, actions: Sequence[str]) -> Path:
    """Write an episode, as `record_episode` returns it, as an animated GIF."""
    verdict = "success" if success else "failed"
    drawn = [draw_frame(frame, actions, i, verdict) for i, frame in enumerate(frames)]
    return write_gif(path, drawn, fps=2.0, hold=2.5)
