"""What a program may use."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl_jax.core.checks import COUNT, fields_in


@dataclass(frozen=True)
class Limits:
    """The limits of one admission. Sizes of arrays are those of one window, without the batch.

    **Raises:** `ValueError` for a limit that is not positive.
    """

    seconds: float = 30.0
    """Wall-clock seconds from the call of `admit` to its end, the start of Python and JAX included."""
    memory: int = 1 << 30
    """Bytes of address space that the child process may add to what Python and JAX have reserved before."""
    source: int = 16_384
    """Characters of the source."""
    nodes: int = 3_000
    """Nodes of its syntax tree."""
    depth: int = 32
    """Levels of its syntax tree."""
    loop: int = 64
    """Rounds of one loop or comprehension."""
    unrolled: int = 1_024
    """Rounds of nested loops, multiplied."""
    steps: int = 5_000
    """Operations, calls and rounds that tracing executes."""
    sequence: int = 1_024
    """Elements of a tuple, list or dict, those of its parts included."""
    elements: int = 32_768
    """Elements of an array."""
    dimensions: int = 8
    """Dimensions of an array."""
    equations: int = 5_000
    """Operations of the traced program."""
    work: int = 1 << 23
    """Elements that one evaluation computes, where a matrix product counts its multiplications, a running sum a window
    at every place, and a sort its comparisons."""
    components: int = 32
    """Components beside the potential."""
    bound: float = 1_000.0
    """Largest magnitude of the potential and its components on sample windows."""
    module: int = 4 << 20
    """Bytes of the exported program."""

    def __post_init__(self) -> None:
        fields_in(self, "(0, 3600]", "seconds", prefix="limits.")
        fields_in(self, "(0, 1e9]", "bound", prefix="limits.")
        fields_in(self, "[1, 1152921504606846976]", "memory", prefix="limits.")
        counts = ("source", "nodes", "depth", "loop", "unrolled", "steps", "sequence", "elements", "dimensions")
        fields_in(self, COUNT, *counts, "equations", "work", "components", "module", prefix="limits.")


DEFAULT = Limits()
