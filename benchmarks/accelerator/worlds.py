"""Crafter and BabyAI with random actions: environment steps per second, by the programs of `benchmarks.crafter` and
`benchmarks.envs_babyai`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import crafter, envs_babyai
from benchmarks.accelerator.record import Case, Measured, Settings


CRAFTER, VIEWS, TEXT = crafter.TEXT, f"BabyAI-{envs_babyai.LEVEL}", f"BabyAI-Text/{envs_babyai.LEVEL}"
WORLDS = [
    # a name, the id, the observations of a prompt, batches, steps
    ("Crafter, captions", CRAFTER, 0, (1024, 8192), 64),
    ("BabyAI, captions and GLAM's prompt (3 observations)", TEXT, 3, (1024, 16_384), 100),
    ("BabyAI, captions", TEXT, 0, (1024, 16_384), 100),
    ("BabyAI, views", VIEWS, 0, (1024, 16_384), 100),
    ("Crafter, cells and items", f"{CRAFTER}?text=none", 0, (1024, 8192), 64),
]
"""The cases of `--size full`, the most important first."""
SMALL = [("Crafter, captions", CRAFTER, 0, (4,), 2), ("BabyAI, views", VIEWS, 0, (8,), 3)]
"""Those of `--size tiny`."""


def measure(id: str, num_envs: int, steps: int, prompt_window: int) -> Measured:
    """A rollout of random actions, resets included; every part of every observation is added up."""
    if id.startswith(CRAFTER):
        samples, took = crafter.ours(id, num_envs, steps)
    else:
        samples, took = envs_babyai.ours(id, num_envs, steps, {"default": {}}, prompt_window)["default"]
    amount = num_envs * steps
    return Measured([amount / rate for rate in samples], took, amount, "environment steps")


def cases(settings: Settings) -> Iterator[Case]:
    """Each world with fewer and more environments."""
    for name, id, window, batches, steps in SMALL if settings.tiny else WORLDS:
        for n in batches:
            shape = {"env": id, "envs": n, "steps": steps, "prompt_window": window}
            yield Case(f"{name}, {n} environments x {steps} steps", shape, partial(measure, id, n, steps, window))
