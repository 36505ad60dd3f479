"""The terms of an admission: what a program sees of an environment, what it may use, and the error that refuses it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.checks import Checked, In, PositiveInt


class SandboxError(ValueError):
    """Program that is refused. The message is written for the author of the program, a language model included.

    **Arguments:** `reason`; `line`, the line of the source, from 1, or None where no single line is the cause;
    `source`, from which the line is quoted.
    """

    def __init__(self, reason: str, line: int | None = None, source: str = ""):
        self.reason, self.line = reason, line
        lines = lines_of(source)
        code = lines[line - 1].strip() if line and line <= len(lines) else ""
        quoted = f" ({code if len(code) <= 80 else code[:77] + '...'})" if code else ""
        super().__init__(f"line {line}{quoted}: {reason}" if line else reason)


def lines_of(source: str) -> list[str]:
    """The lines of a text as Python counts them."""
    return re.split(r"\r\n|\r|\n", source)


@dataclass(frozen=True)
class Limits(Checked):
    """Limits of one admission. Sizes of arrays are those of one window, without the batch.

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


# --- the inputs of a program ------------------------------------------------------------------------------------------


NOT_NUMBERS = ("text", "mission", "key")
"""Parts that programs do not see unless they are asked for: captions, which are numbers of phrases, and keys."""


@dataclass(frozen=True)
class Part:
    """One part of an observation, in the environment's own type."""

    name: str
    """Its key; empty where the observation is a single array."""
    shape: tuple[int, ...]
    dtype: str

    @property
    def program_dtype(self) -> Any:
        """The type in which programs see it. Not uint8, in which `2 - 5` is 253."""
        return jnp.float32 if np.issubdtype(np.dtype(self.dtype), np.floating) else jnp.int32


@dataclass(frozen=True)
class Spec:
    """Inputs of a program: the observation's parts, ordered by name, and the window."""

    parts: tuple[Part, ...]
    window: int
    """Earlier observations and actions, K."""

    def inputs(self, batch: tuple[Any, ...] = ()) -> list[jax.ShapeDtypeStruct]:
        """Flat inputs of the exported program: each part now, each part `[K, ...]` earlier, actions `[K]`."""
        now = [jax.ShapeDtypeStruct((*batch, *p.shape), p.program_dtype) for p in self.parts]
        past = [jax.ShapeDtypeStruct((*batch, self.window, *p.shape), p.program_dtype) for p in self.parts]
        return [*now, *past, jax.ShapeDtypeStruct((*batch, self.window), jnp.int32)]

    def nested(self, flat: Sequence[Any]) -> tuple[Any, Any, Any]:
        """`(obs, past_obs, past_actions)` of flat inputs, as the program's text names them."""
        n = len(self.parts)
        if self.parts[0].name == "":
            return flat[0], flat[1], flat[2]
        now, past = ({p.name: x for p, x in zip(self.parts, flat[i : i + n])} for i in (0, n))
        return now, past, flat[2 * n]

    def flat(self, obs: Any, past_obs: Any, past_actions: Any, leading: int = 0) -> list[Any]:
        """Flat inputs of `(obs, past_obs, past_actions)` as the environment gives them; parts that the program does not
        see are ignored.

        **Arguments:** `leading`, the number of batch dimensions, whose sizes are not checked.
        **Raises:** `ValueError` naming a part that is missing or has another shape or kind.
        """
        n, inputs = len(self.parts), []
        for i, want in enumerate(self.inputs()):
            location = ("obs", "past_obs", "past_actions")[min(i // n, 2)]
            x = (obs, past_obs, past_actions)[min(i // n, 2)]
            name = self.parts[i % n].name if i < 2 * n else ""
            if name:
                if not isinstance(x, Mapping) or name not in x:
                    names = ", ".join(sorted(x)) if isinstance(x, Mapping) else type(x).__name__
                    raise ValueError(f"{location} has no part {name!r}, which the program needs; it has {names}")
                x, location = x[name], f"{location}[{name!r}]"
            if not hasattr(x, "shape") or not hasattr(x, "dtype"):
                x = np.asarray(x)
            if x.shape[leading:] != want.shape or len(x.shape) != leading + len(want.shape):
                problem = f"has the shape {x.shape[leading:]}; {want.shape} is needed"
                raise ValueError(f"{location} {problem}: the program was admitted for another world, or another window")
            if np.issubdtype(want.dtype, np.integer) and np.issubdtype(x.dtype, np.floating):
                raise ValueError(f"{location} is {x.dtype}; integers are needed: the program was admitted for these")
            inputs.append(x.astype(want.dtype))
        return inputs

    def to_json(self) -> dict[str, Any]:
        parts = [{"name": p.name, "shape": list(p.shape), "dtype": p.dtype} for p in self.parts]
        return {"parts": parts, "window": self.window}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Spec:
        """**Raises:** `ValueError`, `KeyError` or `TypeError` for what `to_json` does not make."""
        parts = tuple(
            Part(str(p["name"]), tuple(int(n) for n in p["shape"]), np.dtype(str(p["dtype"])).name)
            for p in value["parts"]
        )
        if not parts or any(n < 0 for p in parts for n in p.shape) or int(value["window"]) < 1:
            raise ValueError("no parts, or a size that is not positive")
        return cls(parts, int(value["window"]))


def spec_of(observation: Any, window: int = 5, parts: Sequence[str] | None = None) -> Spec:
    """Inputs of programs for the environment of an observation.

    **Arguments:** `observation`, a dict of arrays or an array, without a batch; `window`, K; `parts`, the parts that
    programs see; None: all that are numbers, without captions (`text`, `mission`) and keys.
    **Raises:** `ValueError` if nothing is left, or a part is unknown or no number.
    """
    if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 64:
        raise ValueError(f"window is {window!r}; from 1 to 64 is needed")
    if not isinstance(observation, Mapping):
        if parts is not None:
            raise ValueError(f"parts is {list(parts)}, but the observation is one array; leave it out")
        return Spec((_part("", observation),), window)
    for name in parts or ():
        if name not in observation:
            raise ValueError(f"parts names {name!r}; the observation has {', '.join(sorted(observation))}")
    names = sorted(observation) if parts is None else sorted(set(parts))
    chosen = [n for n in names if parts is not None or (n not in NOT_NUMBERS and _numeric(observation[n]))]
    if not chosen:
        raise ValueError(f"the observation has no part that is a number: it has {', '.join(names) or 'nothing'}")
    return Spec(tuple(_part(name, observation[name]) for name in chosen), window)


def _numeric(x: Any) -> bool:
    if isinstance(x, Mapping):
        return False
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) and np.dtype(dtype).kind in "biuf"


def _part(name: str, x: Any) -> Part:
    if not _numeric(x):
        raise ValueError(f"the observation's part {name!r} is no array of numbers")
    x = x if hasattr(x, "dtype") else np.asarray(x)
    return Part(name, tuple(x.shape), np.dtype(x.dtype).name)


RANDOM = 128
"""Windows that are drawn."""


def random_windows(observation: Any, spec: Spec, actions: int, seed: int = 0) -> list[np.ndarray]:
    """Windows drawn around one observation, as flat inputs with a leading dimension of `RANDOM`.

    Half of them keep most of the observation, half are uniform between 0 and its largest value (at least 10), so that
    codes of things that the observation does not show occur too. A third of them have every second
    observation twice.
    """
    rng = np.random.default_rng(seed)
    now, past = [], []
    for part in spec.parts:
        x = np.asarray(observation[part.name] if part.name else observation, part.program_dtype)
        shape = (RANDOM, spec.window + 1, *x.shape)
        if x.dtype.kind == "i":
            drawn: np.ndarray = rng.integers(0, max(10, min(int(x.max(initial=0)), 1000)) + 1, shape)
        else:
            drawn = rng.uniform(float(x.min(initial=0)), float(x.max(initial=1)), shape)
        replaced = rng.random(shape) < np.where(np.arange(RANDOM) % 2, 1.0, 0.2).reshape(-1, *[1] * (len(shape) - 1))
        values = np.where(replaced, drawn, x)
        values[::3] = np.repeat(values[::3, ::2], 2, axis=1)[:, : shape[1]]
        values = values.astype(part.program_dtype)
        past.append(values[:, :-1])
        now.append(values[:, -1])
    return [*now, *past, rng.integers(0, actions, (RANDOM, spec.window)).astype(np.int32)]
