"""`llmrl lm fit`."""

from __future__ import annotations

from typing import Annotated

import tyro

from llmrl_jax.run.memory.fit import FitConfig, advice, fit as compile_and_add


def fit(config: Annotated[FitConfig, tyro.conf.arg(name="")]) -> int:
    """Tell whether a model fits: memory per device, compiled ahead of time from its config.json; nothing is allocated.

    Ends with 1 where it does not fit."""
    found = compile_and_add(config)
    print(found.table())
    platform = found.devices.rpartition("(")[2].partition(")")[0]
    print(f"Compiled in {found.seconds:.0f} s. Activations are what XLA plans for {platform}; other devices plan anew.")
    if found.fits is not False:
        return 0
    if config.advise:
        lines = advice(found)
        print("What helps:" if lines else "No knob helps: take more or larger devices (--mesh), or a smaller model.")
        print("\n".join(lines))
    return 1
