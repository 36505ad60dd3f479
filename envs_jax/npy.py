"""Python objects in npy files, which NumPy pickles, read without the rights of a pickle.

A pickle names functions, and what is called is up to it. Here the four names that NumPy's arrays need stand for
functions of this module, which check what they are given; any other name is refused. NumPy's own are not used: an
edited description of a type can make them read memory that is not the array's.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


_TYPES = re.compile(r"b1|[iu][1248]|f[248]|U[0-9]{1,5}|O8?")
_MAX_NDIM = 8


class _Refused(ValueError):
    """A pickle asks for something that arrays of numbers, strings and objects do not need."""


class _Type:
    """A type of an array's elements."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, *_: Any):
        if not isinstance(name, str) or not _TYPES.fullmatch(name):
            raise _Refused(f"it has an array of the type {str(name)[:40]!r}; numbers, strings and objects are read")
        self.name = name
        self.order: Any = "<"

    def __setstate__(self, state: Any) -> None:
        order, *parts = state[1:5]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in parts):
            raise _Refused("it has an array of a type with parts; numbers, strings and objects are read")
        self.order = order

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.name).newbyteorder(self.order)


class _Array:
    """An array, of which nothing is made yet."""

    __slots__ = ("data", "fortran", "shape", "type")

    def __init__(self, *_: Any):
        self.shape: tuple[int, ...] = ()
        self.type, self.fortran = _Type("O"), False
        self.data: Any = []

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if not isinstance(kind, _Type) or not isinstance(data, list if kind.name[0] == "O" else bytes):
            raise _Refused("it has an array that is damaged")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > _MAX_NDIM:
            raise _Refused(f"it has an array of the shape {str(shape)[:60]}")
        if math.prod(shape) * (1 if kind.name[0] == "O" else kind.numpy.itemsize) != len(data):
            raise _Refused(f"it has an array of the shape {list(shape)} with {len(data)} bytes or objects")
        self.shape, self.type, self.fortran, self.data = shape, kind, bool(fortran), data

    def build(self) -> Any:
        """The array; a list of the elements of an array of objects."""
        if self.type.name[0] == "O":
            return self.data
        order: Any = "F" if self.fortran else "C"
        return np.frombuffer(self.data, self.type.numpy).reshape(self.shape, order=order)


def _number(kind: Any, data: Any = b"") -> Any:
    """A number of NumPy's, as Python's."""
    if not isinstance(kind, _Type) or kind.name[0] == "O" or not isinstance(data, bytes):
        raise _Refused("it has a number that is damaged")
    if len(data) != kind.numpy.itemsize:
        raise _Refused(f"it has a number of {len(data)} bytes")
    return np.frombuffer(data, kind.numpy)[0].item()


class _Name:
    """Stand-in for a name of the pickle: it can be called, and nothing else."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("it sets the state of a function")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            qualified_name = f"{module}.{name}"[:80]
            raise _Refused(
                f"it asks for {qualified_name!r}; lists, dicts, strings, numbers and arrays of NumPy are read"
            )
        return _Name(_ALLOWED[module, name])


def read_objects(path: Path, error: type[ValueError] = ValueError) -> list[Any]:
    """The elements of an array of objects, as `numpy.save` writes it.

    **Arguments:** `error`, the type of what is raised.
    **Returns:** lists, dicts, strings, numbers; `array_of` makes arrays of the others. Nothing that the file names is
    imported or called.
    **Raises:** `error` for another kind of file, and for one that asks for anything else.
    """
    with path.open("rb") as file:
        try:
            dtype = _dtype(file)
        except ValueError as fault:
            raise error(f"{path} is no npy file: {fault}") from None
        if not dtype.hasobject:
            raise error(f"{path} has an array of {dtype}; one of objects is needed")
        try:
            value = _Reader(file).load()
        except _Refused as refusal:
            raise error(f"{path} is not read: {refusal}") from None
        except Exception as fault:  # noqa: BLE001 - whatever a damaged pickle raises
            raise error(f"{path} is cut or damaged: {type(fault).__name__}: {str(fault)[:200]}") from None
    if not isinstance(value, _Array) or not isinstance(value.data, list):
        raise error(f"{path} has no list of objects")
    return value.data


def is_object(path: Path) -> bool:
    """Return whether a file is an npy file of Python objects."""
    if path.suffix != ".npy" or not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            return bool(_dtype(file).hasobject)
        except ValueError:
            return False


def _dtype(file: BinaryIO) -> np.dtype[Any]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)[2]


def items_of(value: Any) -> list[Any] | None:
    """The elements of a list, or of an array with one axis; None for anything else."""
    if isinstance(value, _Array):
        value = value.build()
        value = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
    if not isinstance(value, list):
        return None
    return [x.build().item() if isinstance(x, _Array) and x.shape == () and x.data else x for x in value]


def array_of(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """`numbers_of` as a float32 array of the shape; None for anything else."""
    array = numbers_of(value)
    return None if array is None or array.shape != shape else array.astype(np.float32)


def numbers_of(value: Any) -> np.ndarray | None:
    """An array of numbers or truth values, from an array, or nested lists of numbers or arrays of one shape; None for
    anything else."""
    return _array_of_kind(value, "biuf", bool | int | float, _MAX_NDIM)


def texts_of(value: Any) -> np.ndarray | None:
    """An array of texts, from an array, or nested lists of texts of one shape; None for anything else."""
    return _array_of_kind(value, "U", str, _MAX_NDIM)


def _array_of_kind(value: Any, kinds: str, scalar: Any, dimensions: int) -> np.ndarray | None:
    if isinstance(value, _Array):
        value = value.build()
    if isinstance(value, list) and value and dimensions:
        if all(isinstance(x, scalar) for x in value):
            return np.array(value)
        parts = [_array_of_kind(x, kinds, scalar, dimensions - 1) for x in value]
        if any(x is None or x.shape != parts[0].shape for x in parts):  # type: ignore[union-attr]
            return None
        return np.stack(parts)  # type: ignore[arg-type]
    return value if isinstance(value, np.ndarray) and value.dtype.kind in kinds else None
