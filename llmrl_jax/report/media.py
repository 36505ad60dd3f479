"""Animations of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

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
    how = {"save_all": True, "append_images": images[1:], "duration": times, "loop": 0, "optimize": True}
    with new_draft(path) as draft:
        images[0].save(draft, format="GIF", **how)
    return path
