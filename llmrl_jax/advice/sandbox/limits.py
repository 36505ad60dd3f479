"""What a program may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from llmrl_jax.core.checks import Checked, In, PositiveInt


@dataclass(frozen=True)
class Limits(Checked):
    """The limits of one admission. Sizes of arrays are those of one window, without the batch.

    **Raises:** `ValueError` for a limit that is not positive.
    """

    PREFIX: ClassVar[str] = "limits."

    seconds: Annotated[float, In("(0, 3600]")] = 30.0
    """Wall-clock seconds from the call of `admit` to its end, the start of Python and JAX included."""
    memory: Annotated[int, In("[1, 1152921504606846976]")] = 1 << 30
    """Bytes of address space that the child process may add to what Python and JAX have reserved before."""
    source: PositiveInt = 16_384
    """Characters of the source."""
    nodes: PositiveInt = 3_000
    """Nodes of its syntax tree."""
    depth: PositiveInt = 32
    """Levels of its syntax tree."""
    loop: PositiveInt = 64
    """Rounds of one loop or comprehension."""
    unrolled: PositiveInt = 1_024
    """Rounds of nested loops, multiplied."""
    steps: PositiveInt = 5_000
    """Operations, calls and rounds that tracing executes."""
    sequence: PositiveInt = 1_024
    """Elements of a tuple, list or dict, those of its parts included."""
    elements: PositiveInt = 32_768
    """Elements of an array."""
    dimensions: PositiveInt = 8
    """Dimensions of an array."""
    equations: PositiveInt = 5_000
    """Operations of the traced program."""
    work: PositiveInt = 1 << 23
    """Elements that one evaluation computes, where a matrix product counts its multiplications, a running sum a window
    at every place, and a sort its comparisons."""
    components: PositiveInt = 32
    """Components beside the potential."""
    bound: Annotated[float, In("(0, 1e9]")] = 1_000.0
    """Largest magnitude of the potential and its components on sample windows."""
    module: PositiveInt = 4 << 20
    """Bytes of the exported program."""


DEFAULT = Limits()
