"""An episode as an animation: the grid beside the text and the probabilities of the actions."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.env import Environment
from llmrl_jax.report.media import write_gif


INK, FAINT, CHOSEN, OTHER = "#222222", "#777777", "#cc6677", "#4477aa"


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


def write_episode(path: str | Path, env: Environment, frames: Sequence[Any], success: bool) -> Path:
    """Write an episode, as `record_episode` returns it, as an animated GIF."""
    verdict = "success" if success else "failed"
    return write_gif(path, [draw_frame(env, frame, i, verdict) for i, frame in enumerate(frames)], fps=2.0, hold=2.5)
