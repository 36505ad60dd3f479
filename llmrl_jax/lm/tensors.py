"""Streaming of safetensors files: read in parts and written tensor by tensor, so that no file is ever in memory."""

from __future__ import annotations

import json
import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open


DTYPES: dict[str, Any] = {"F32": jnp.float32, "BF16": jnp.bfloat16, "F16": jnp.float16}
"""The supported dtypes by their names in the format."""
_EXPONENT: dict[str, Any] = {"F32": np.uint32(0x7F800000), "BF16": np.uint16(0x7F80), "F16": np.uint16(0x7C00)}
"""The bits of the exponent, all of which are set in NaN and the infinities only."""
KINDS = {jnp.dtype(dtype).name: name for name, dtype in DTYPES.items()}
"""The names in the format of the supported dtypes."""
_BLOCK = 4 << 20
"""Bytes per read."""
_PAGES = 1 << 20
"""Size in bytes from which an array gets its own memory pages."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Spec(NamedTuple):
    """A tensor's entry in the header."""

    dtype: str
    """A key of `DTYPES`, or another name of the format."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in the file; only for a dtype in `DTYPES`."""
        return math.prod(self.shape) * jnp.dtype(DTYPES[self.dtype]).itemsize


def spec(name: str, array: Any) -> Spec:
    """The header entry of `array`. **Raises:** `ValueError` for a dtype other than float32, bfloat16 and float16."""
    kind = jnp.dtype(array.dtype).name
    if kind not in KINDS:
        raise ValueError(f"{name} has dtype {kind}; cast it to one of {', '.join(KINDS)} to write it")
    return Spec(KINDS[kind], tuple(array.shape))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. **Raises:** `ValueError`, naming the file, for anything else, or a file that cannot be read;
    `FileNotFoundError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not a JSON object")
    return value


def pickles(folder: Path) -> str:
    """The message for a folder without safetensors that contains pickled weights; empty if it contains none."""
    names = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLED)
    if not names:
        return ""
    return (
        f"; it holds {names[0]}, a pickle, which can run code and is never read here: it must be converted to "
        "safetensors first (where you trust it, load it with torch and save_pretrained it)"
    )


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array. A large one has its own memory pages, which are returned to the system when it is freed
    (the heap would keep them), and is aligned, so that a CPU device uses it without a copy."""
    nbytes = math.prod(shape) * jnp.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, nbytes)) if nbytes >= _PAGES else np.empty(shape, dtype)


def all_finite(array: np.ndarray, kind: str) -> bool:
    """Return whether every value is a finite number. **Arguments:** `kind`, the dtype's name in the format."""
    mask = _EXPONENT[kind]
    bits = array.reshape(-1).view(mask.dtype)
    return not bits.size or int(np.max(bits & mask)) != int(mask)


class TensorSource(ABC):
    """Named tensors in an open file, read in parts."""

    specs: dict[str, Spec]
    """The dtype and shape of each tensor that `fill` reads, by name."""

    def __init__(self, path: Path):
        self.path = path
        self._cached: tuple[str, np.ndarray] | None = None

    def close(self) -> None:
        """Close the file; nothing is read from it afterwards."""
        self._cached = None

    def fill(self, name: str, output: np.ndarray, part: tuple[slice, ...] | None = None) -> None:
        """Copy a part of a tensor into `output`, in the dtype of `output`.

        **Arguments:** `name`; `output`, a view of the part's shape; `part`, a slice with whole bounds for each axis
        (None: everything).
        **Raises:** `ValueError`, naming the file and the tensor, if the file ends, or a value is not finite.
        """
        kind, shape = self.specs[name]
        part = part or tuple(slice(0, n) for n in shape)
        if any((s.start, s.stop) != (0, n) for s, n in zip(part[1:], shape[1:], strict=True)):
            # Columns: the parts of other devices are in the same rows, so the whole tensor is cached for them.
            if self._cached is None or self._cached[0] != name:
                self._cached = None
                full = empty(shape, DTYPES[kind])
                self._rows(name, full, 0, shape[0])
                self._cached = (name, full)
            output[...] = self._cached[1][part]
            return
        rows = part[0] if shape else slice(0, 1)
        self._rows(name, output if shape else output.reshape(1), rows.start, rows.stop)

    @abstractmethod
    def _rows(self, name: str, output: np.ndarray, start: int, stop: int) -> None:
        """Copy whole rows of a tensor into `output`."""

    def file(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.path

    def check(self, name: str, shape: tuple[int, ...], origin: str) -> None:
        """Check a tensor's entry in the header. **Arguments:** `shape`, the needed one; `origin`, what asks for it.

        **Raises:** `ValueError`, naming file and tensor, for another shape or an unsupported dtype."""
        kind, actual = self.specs[name]
        if actual != shape:
            raise ValueError(f"{self.file(name)}: tensor {name} has shape {actual}; {origin} asks for {shape}")
        if kind not in DTYPES:
            raise ValueError(
                f"{self.file(name)}: tensor {name} is stored as {kind}; supported: {', '.join(DTYPES)} (quantised "
                "weights must be written again in one of these)"
            )

    def not_finite(self, name: str) -> ValueError:
        """The error for a tensor with values that are NaN or infinite."""
        return ValueError(
            f"{self.file(name)}: the tensor {name} has values that are NaN or infinite, so nothing that this model "
            "computes is a number: copy or download it again"
        )


class TensorFile(TensorSource):
    """An open safetensors file. The library checks its header; parts are then read with `pread`, since a memory-mapped
    file would count as memory of the process, up to its whole size.
    """

    def __init__(self, path: Path):
        """**Raises:** `ValueError`, naming the file, if it is damaged or truncated."""
        try:
            with safe_open(path, "np"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or cut short: {error}; copy or download it again") from None
        super().__init__(path)
        self._file = open(path, "rb", buffering=0)
        size = int.from_bytes(self._file.read(8), "little")
        header = json.loads(self._file.read(size))
        header.pop("__metadata__", None)
        self.specs = {name: Spec(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
        self._start = {name: 8 + size + entry["data_offsets"][0] for name, entry in header.items()}

    def close(self) -> None:
        super().close()
        self._file.close()

    def _rows(self, name: str, output: np.ndarray, start: int, stop: int) -> None:
        kind, shape = self.specs[name]
        width, inner = math.prod(shape[1:]), shape[1:]
        itemsize = jnp.dtype(DTYPES[kind]).itemsize
        step = max(1, _BLOCK // max(1, width * itemsize))
        direct = output.dtype == DTYPES[kind] and output.flags.c_contiguous
        for row in range(start, stop, step):
            count = min(step, stop - row)
            part = output[row - start : row - start + count]
            block = part if direct else empty((count, *inner), DTYPES[kind])
            raw = block.reshape(-1).view(np.uint8).data
            offset = self._start[name] + row * width * itemsize
            while raw:
                num_read = os.preadv(self._file.fileno(), [raw], offset)
                if not num_read:
                    raise ValueError(f"{self.path} was cut short while {name} was read from it; copy it again")
                raw, offset = raw[num_read:], offset + num_read
            if not all_finite(block, kind):
                raise self.not_finite(name)
            if not direct:
                part[...] = block


def write_file(path: Path, specs: Sequence[tuple[str, Spec]], arrays: Iterable[np.ndarray]) -> None:
    """Write a safetensors file tensor by tensor.

    **Arguments:** `specs`, the name and spec of each tensor, in order; `arrays`, their values, consumed one at a time.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in specs:
        header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [end, end + entry.nbytes]}
        end += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, entry), array in zip(specs, arrays, strict=True):
            assert spec(name, array) == entry, name
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
