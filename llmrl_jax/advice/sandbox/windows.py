"""Sample windows, and how a program must behave on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.limits import Limits
from llmrl_jax.advice.sandbox.spec import Spec
from llmrl_jax.advice.sandbox.trace import Traced


RANDOM = 128
"""Windows that are drawn."""
LOOPED = 4
"""Windows that are evaluated one by one too."""


def random_windows(observation: Any, spec: Spec, actions: int, seed: int = 0) -> list[np.ndarray]:
    """Windows drawn around one observation, as flat inputs with a leading dimension of `RANDOM`.

    Half of them keep most of the observation, half are uniform between 0 and its largest value (at least 10), so that
    codes of things that the observation does not show occur too. A third of them have every second
    observation twice.
    """
    rng = np.random.default_rng(seed)
    now, past = [], []
    for part in spec.parts:
        x = np.asarray(observation[part.name] if part.name else observation, part.seen)
        shape = (RANDOM, spec.window + 1, *x.shape)
        if x.dtype.kind == "i":
            drawn: np.ndarray = rng.integers(0, max(10, min(int(x.max(initial=0)), 1000)) + 1, shape)
        else:
            drawn = rng.uniform(float(x.min(initial=0)), float(x.max(initial=1)), shape)
        replaced = rng.random(shape) < np.where(np.arange(RANDOM) % 2, 1.0, 0.2).reshape(-1, *[1] * (len(shape) - 1))
        every = np.where(replaced, drawn, x)
        every[::3] = np.repeat(every[::3, ::2], 2, axis=1)[:, : shape[1]]
        every = every.astype(part.seen)
        past.append(every[:, :-1])
        now.append(every[:, -1])
    return [*now, *past, rng.integers(0, actions, (RANDOM, spec.window)).astype(np.int32)]


def check_behaviour(
    traced: Traced, drawn: Sequence[Any], given: Sequence[Any] | None, limits: Limits
) -> dict[str, float]:
    """Evaluate a program on windows.

    **Arguments:** `drawn`, of `random_windows`; `given`, sampled windows of the same form, if there are any: then it is
    on these that the potential must vary.
    **Returns:** the least and the largest potential, and the number of windows.
    **Raises:** `SandboxError` if a value is not finite or beyond `limits.bound`, if two evaluations differ, or a batch
    and a loop, or if the potential is the same on all windows.
    """
    function = jaxpr_as_fun(traced.jaxpr)
    batched, single = jax.jit(jax.vmap(function)), jax.jit(function)
    values = np.stack(batched(*drawn))
    if not np.array_equal(values, np.stack(batched(*drawn)), equal_nan=True):
        raise SandboxError("two evaluations of the same windows differ")
    if given is not None:
        seen = np.stack(batched(*_repeated(given)))[:, : len(given[0])]
        values = np.concatenate([values, seen], axis=1)
    else:
        seen = values
    for name, row in zip(("the potential", *(f"the component {n!r}" for n in traced.components)), values):
        if not np.isfinite(row).all():
            bad = "NaN" if np.isnan(row).any() else "infinite"
            count = int((~np.isfinite(row)).sum())
            raise SandboxError(
                f"{name} is {bad} on {count} of {row.size} windows: guard divisions, logarithms and roots"
            )
        if np.abs(row).max() > limits.bound:
            raise SandboxError(
                f"{name} reaches {np.abs(row).max():.4g}; at most {limits.bound:g} is allowed: scale it down"
            )
    for i in range(LOOPED):
        alone = np.stack(single(*(x[i] for x in drawn)))
        if not np.allclose(alone, values[:, i], rtol=1e-4, atol=1e-4):
            raise SandboxError("a window evaluated alone and in a batch give different values")
    low, high = float(seen[0].min()), float(seen[0].max())
    if high - low <= 1e-6:
        kind = "sampled" if given is not None else "random"
        raise SandboxError(
            f"the potential is {low:.4g} on all {seen.shape[1]} {kind} windows: it must depend on what it is given"
        )
    return {"lowest": low, "highest": high, "windows": int(values.shape[1])}


def _repeated(given: Sequence[Any]) -> list[np.ndarray]:
    """Windows repeated to a multiple of `RANDOM`, so that the compiled program of the drawn windows is used again where
    there are as many."""
    n = len(given[0])
    index = np.arange(-(-n // RANDOM) * RANDOM) % n
    return [np.asarray(x)[index] for x in given]
