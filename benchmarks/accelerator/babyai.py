"""BabyAI with random actions: environment steps per second, by the program of `benchmarks.envs_babyai`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.accelerator.record import Case, Measured, Settings
from benchmarks.envs_babyai import LEVEL, ours


def measure(id: str, num_envs: int, steps: int, prompt_window: int) -> Measured:
    """A rollout of random actions, resets included; every part of every observation is added up."""
    samples, took = ours(id, num_envs, steps, {"default": {}}, prompt_window)["default"]
    amount = num_envs * steps
    return Measured([amount / rate for rate in samples], took, amount, "environment steps")


def cases(settings: Settings) -> Iterator[Case]:
    """Views only, with captions, and with GLAM's prompt tokens."""
    envs, steps = ((8,), 3) if settings.tiny else ((1024, 16_384), 200)
    kinds = [("views", f"BabyAI-{LEVEL}", 0)]
    if not settings.tiny:
        text = f"BabyAI-Text/{LEVEL}"
        kinds += [("captions", text, 0), ("captions and GLAM's prompt (3 observations)", text, 3)]
    for name, id, window in kinds:
        for num_envs in envs:
            shape = {"env": id, "envs": num_envs, "steps": steps, "prompt_window": window}
            yield Case(
                f"{LEVEL}, {name}, {num_envs} environments", shape, partial(measure, id, num_envs, steps, window)
            )
