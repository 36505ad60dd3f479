"""The compiled program of a run, several updates of a learner, and the checks of its metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import nearest


MEMBER: ContextVar[Any] = ContextVar("MEMBER", default=None)
"""The member of a group of runs that share a program (`llmrl_jax.workflows.group`); None: a run of its own."""


def make_chunk(learner: Any, capacity: int) -> Callable:
    """The function that runs several updates on the device.

    `chunk(state, frozen, n) -> (state, metrics)`: `n` (int32, at most `capacity`) is traced, so any length runs the
    same compiled program and the results do not depend on the chunk lengths, bit for bit. `state` is without its frozen
    part, which is neither donated nor carried. Metrics have the shape `[capacity]`; rows from `n` on are nan.
    """

    def chunk(state, frozen, n):
        def update_once(state, frozen):
            state, metrics = learner.update(state.replace(frozen=frozen))
            return state.replace(frozen=()), {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

        update_once = jax.jit(update_once, inline=True)  # traced once, for its shapes and for the loop
        shapes = jax.eval_shape(update_once, state, frozen)[1]
        for name, x in shapes.items():
            if x.shape:
                raise ValueError(f"the metric {name!r} has shape {x.shape}; a learner's metrics are scalars")
        rows = {name: jnp.full(capacity, jnp.nan, jnp.float32) for name in shapes}

        def body(i, carry):
            state, rows = carry
            state, metrics = update_once(state, frozen)
            return state, {name: row.at[i].set(metrics[name]) for name, row in rows.items()}

        return jax.lax.fori_loop(0, n, body, (state, rows))

    return chunk


def jit_chunk(learner: Any, places: Any, capacity: int) -> Any:
    """`make_chunk` as a run compiles it.

    **Arguments:** `places`, the shardings of the state without its frozen part.
    """
    options = dict(learner.compiler_options)
    return jax.jit(
        make_chunk(learner, capacity), donate_argnums=0, out_shardings=(places, None), compiler_options=options
    )


def compile_chunk(learner: Any, state: Any, capacity: int) -> tuple[Any, float]:
    """Compile `make_chunk` for a state, whose shardings are kept. **Returns:** the program, and the compile time in
    seconds."""
    started = time.monotonic()
    trained, frozen = state.replace(frozen=()), state.frozen
    jitted = jit_chunk(learner, jax.tree.map(lambda x: x.sharding, trained), capacity)
    # Restored arrays are committed to their devices, new ones are not, and XLA's cache would have a program for each.
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (trained, frozen))
    with doing("compiling the update"):
        compiled = jitted.lower(*placed, np.int32(1)).compile()
    return compiled, time.monotonic() - started


def must_be_finite(name: str) -> bool:
    """Return whether a metric must be finite, because otherwise learning has failed: losses and gradient norms."""
    last = name.split("/")[-1]
    return last.endswith("loss") or "grad_norm" in last


def check_bounds(learner: Any, names: list[str]) -> None:
    """**Raises** `ValueError` if the learner bounds a metric that is not among `names`, naming the nearest."""
    for name in (*learner.bounds, *learner.alarms):
        if name not in names:
            raise ValueError(f"the learner bounds a metric {name!r} that it does not report{nearest(name, names)}")


def verdict(learner: Any, rows: Mapping[str, np.ndarray], first: int) -> str:
    """Reason why the run must stop, from metrics of consecutive updates from `first` on; empty if it need not."""
    for i in range(len(next(iter(rows.values()), ()))):
        broken = [name for name in rows if must_be_finite(name) and not math.isfinite(rows[name][i])]
        if broken:
            values = ", ".join(f"{name} is {rows[name][i]}" for name in broken)
            return f"{values} at update {first + i}: learning has broken down (a lower learning rate may help)"
        for name, bound in learner.bounds.items():
            if not rows[name][i] <= bound:
                return (
                    f"{name} is {rows[name][i]:.3g} at update {first + i}, above its bound {bound:g}: what the update "
                    "computes disagrees with what the rollout recorded, or the computation is wrong"
                )
        for name, meaning in learner.alarms.items():
            if not rows[name][i] <= 0:
                return f"{name} at update {first + i}: {meaning}"
    return ""
