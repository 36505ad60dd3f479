"""The header of a GGUF file: its metadata, and the names, shapes, types and offsets of its tensors. The files of a
split model have one header together.

Read here and not by the `gguf` package, which makes a NumPy array of every string (a vocabulary of 49,152 tokens takes
seconds), and which meets a damaged file with whatever error NumPy has.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Bytes to whose multiples tensors are aligned, unless `general.alignment` says otherwise."""

TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
         30: "BF16"}  # fmt: skip
"""The supported types of tensors by their numbers in the format."""
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
          "Q5_1": (32, 24), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}  # fmt: skip
"""Weights and bytes of a block of each type."""
_UNSUPPORTED = {9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
           20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
           29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}  # fmt: skip

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 8
"""Levels of arrays within arrays."""
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Names of the files that a model is split into, as `llama-gguf-split` writes them; the first number is 00001."""


_BYTES = re.compile(r".*\.gguf[.-](part|split).*", re.IGNORECASE)
"""Names of parts of a file that was cut by bytes, such as `model.gguf.part1of2` and `model.gguf-split-a`."""


class Unread(NamedTuple):
    """The value of a field that is not read: no field of a model has such a value."""

    kind: str
    """Description of it."""


_NOT_UTF8 = Unread("text that is not UTF-8")


class Entry(NamedTuple):
    """A tensor of the file."""

    type: str
    """A key of `BLOCKS`."""
    shape: tuple[int, ...]
    """In Hugging Face's order: the axis whose values are side by side is the last one."""
    start: int
    """Offset of its first byte in the file."""
    file: Path
    """The file, which is one of several for a model that is split."""

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        weights, size = BLOCKS[self.type]
        return math.prod(self.shape) // weights * size


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file, before its weights."""

    path: Path
    """The file; the first one of a model that is split."""
    metadata: dict[str, Any]
    """Numbers, booleans, texts, lists of texts, NumPy arrays of numbers, and `Unread`."""
    tensors: dict[str, Entry]
    """By the file's own names."""

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A field of the metadata, or `default` if it is missing. **Raises** `ValueError` for one of another kind."""
        value = self.metadata.get(name)
        if value is None:
            return default
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, allowed) or isinstance(value, bool) and bool not in allowed:
            description = f"an array of {len(value)}" if isinstance(value, list | np.ndarray) else repr(value)
            description = value.kind if isinstance(value, Unread) else description
            names = " or ".join(_KINDS.get(k, k.__name__) for k in allowed)
            raise ValueError(f"{self.path}: the field {name} is {description}; {names} is needed")
        return value

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """`get` of a field that must be there. **Raises** `ValueError` if it is missing."""
        value = self.get(name, kind)
        if value is None:
            raise ValueError(f"{self.path}: the metadata lack the field {name}; convert the model again")
        return value


_KINDS: dict[type, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false",
                           list: "an array of texts", np.ndarray: "an array of numbers"}  # fmt: skip


def is_gguf(path: str | Path) -> bool:
    """Return whether a path is a file that begins as a GGUF file does, whatever its name is (Ollama's have none)."""
    path = Path(path)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_header(path: str | Path) -> Header:
    """The header of a GGUF file, or of a model that is split into several, given any of them; that of the model that
    was read last is kept.

    **Raises:** `ValueError`, naming the file, for one that is cut short, of another format or version, or with tensors
    of a type that is not supported, or that does not fit the others; `FileNotFoundError` for missing parts."""
    path = Path(path)
    name = PART.fullmatch(path.name)
    files = [path, *(path.with_name(part) for part in part_names(name))] if name else [path]
    return _read_model(path, tuple(_file_stat(file) for file in files if file == path or file.is_file()))


def part_names(name: re.Match[str]) -> list[str]:
    """The names of all files of a split model. **Arguments:** `name`, of one of them, a match of `PART`."""
    count = int(name["count"])
    return [f"{name['stem']}-{i:05d}-of-{count:05d}{SUFFIX}" for i in range(1, count + 1)]


def _file_stat(path: Path) -> tuple[Path, int, int]:
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1)
def _read_model(path: Path, states: tuple[tuple[Path, int, int], ...]) -> Header:
    """**Arguments:** `states`, path, size and time of change of each file that is there: `path` and the other parts."""
    sizes = {file: size for file, size, _ in states}
    header = _read_file(path, sizes[path])
    count = header.get(_COUNT, int, 0)
    if count <= 1:
        return header
    name = PART.fullmatch(path.name)
    number = header.need(_NUMBER, int) + 1
    if name is None or (int(name["number"]), int(name["count"])) != (number, count):
        raise ValueError(
            f"{path} is part {number} of a model that is split into {count} files, and its name does not end in "
            f"-{number:05d}-of-{count:05d}{SUFFIX}, by which the other parts are found: rename it, or merge the parts "
            "into one file (llama-gguf-split --merge)"
        )
    files = [path.with_name(part) for part in part_names(name)]
    if missing := [file.name for file in files if file not in sizes]:
        raise FileNotFoundError(
            f"{path} is part {number} of a model that is split into {count} files, and {path.parent} lacks "
            f"{', '.join(missing[:4])}{' ...' * (len(missing) > 4)}: copy or download the missing parts to it"
        )
    return _join_headers([header if file == path else _read_file(file, sizes[file]) for file in files])


def _join_headers(parts: Sequence[Header]) -> Header:
    """The header of a split model: the first part's metadata, and all tensors.

    **Raises:** `ValueError` for a file that is another part than its name says, or of another model."""
    count = len(parts)
    tensors: dict[str, Entry] = {}
    for i, part in enumerate(parts):
        split = part.get(_NUMBER, int), part.get(_COUNT, int)
        if split != (i, count):
            raise ValueError(
                f"{part.path}: {_NUMBER} and {_COUNT} are {split[0]} and {split[1]}; {i} and {count} are needed "
                f"in part {i + 1} of a model that is split into {count} files: download it again"
            )
        if duplicate := next((name for name in part.tensors if name in tensors), None):
            raise ValueError(
                f"{part.path} has the tensor {duplicate}, which {tensors[duplicate].file.name} has too: the parts are "
                "not of one model; download them again"
            )
        tensors |= part.tensors
    totals = {part.path: total for part in parts if (total := part.get(_TENSORS, int)) is not None}
    if mismatch := next((path for path, total in totals.items() if total != len(tensors)), None):
        raise ValueError(
            f"{mismatch}: {_TENSORS} is {totals[mismatch]}, and the {count} parts of the split model hold "
            f"{len(tensors)}: the parts are not of one model; download them again"
        )
    return Header(parts[0].path, parts[0].metadata, tensors)


def part_of_bytes(path: Path) -> str:
    """A clause of an error message if the file's name is that of a part of a file cut by bytes; else empty."""
    if not _BYTES.fullmatch(path.name):
        return ""
    return " (its name is that of a part of a file: join all parts into one file, with cat)"


def _read_file(path: Path, size: int) -> Header:
    with open(path, "rb") as file:
        start = file.read(8)
        if start[:4] != MAGIC:
            raise ValueError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
        version = int.from_bytes(start[4:], "little")
        if version not in VERSIONS:
            big_endian = int.from_bytes(start[4:], "big")
            label = f"{big_endian} for big-endian machines" if big_endian in VERSIONS else str(version)
            raise ValueError(
                f"{path} is GGUF version {label}; supported: {', '.join(map(str, VERSIONS))}, little-endian: convert "
                "the model again"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(path, data, size).header()
            except _EndOfFile:
                raise ValueError(
                    f"{path} is cut short within its header: copy or download it again{part_of_bytes(path)}"
                ) from None


class _EndOfFile(Exception):
    """The file ends before its last entry."""


class _Reader:
    """A position in the bytes of a header."""

    def __init__(self, path: Path, data: Any, size: int):
        self.path, self.data, self.size, self.offset = path, data, size, 8

    def header(self) -> Header:
        count, fields = self.numbers("QQ")
        metadata: dict[str, Any] = {}
        for _ in range(fields):
            name = self.name()
            if name in metadata:
                raise ValueError(f"{self.path}: the metadata have the field {name} twice")
            metadata[name] = self.value(name)
        entries = [self.entry() for _ in range(self.bounded(count))]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"{self.path}: the field general.alignment is {alignment!r}; a positive number is needed")
        begin = -(-self.offset // alignment) * alignment
        tensors: dict[str, Entry] = {}
        for name, (kind, shape, offset) in entries:
            if name in tensors:
                raise ValueError(f"{self.path} has the tensor {name} twice")
            tensors[name] = entry = Entry(kind, shape, begin + offset, self.path)
            if entry.start + entry.nbytes > self.size:
                raise ValueError(
                    f"{self.path} is cut short: the tensor {name} ends at byte {entry.start + entry.nbytes:,} of "
                    f"{self.size:,}; copy or download it again{part_of_bytes(self.path)}"
                )
        return Header(self.path, metadata, tensors)

    def take(self, count: int) -> int:
        """Step over `count` bytes. **Returns:** the offset of the first."""
        start, self.offset = self.offset, self.offset + count
        if self.offset > self.size:
            raise _EndOfFile
        return start

    def numbers(self, kinds: str) -> tuple[Any, ...]:
        form = "<" + kinds
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))

    def bounded(self, count: int) -> int:
        """A count of entries of at least a byte, checked before anything of that size is allocated."""
        if count > self.size - self.offset:
            raise _EndOfFile
        return count

    def text(self) -> bytes:
        (length,) = self.numbers("Q")
        start = self.take(self.bounded(length))
        return self.data[start : start + length]

    def name(self) -> str:
        """The name of a field or a tensor; no name that is read has bytes that are not UTF-8."""
        return self.text().decode(errors="backslashreplace")

    def value(self, name: str) -> Any:
        (kind,) = self.numbers("I")
        if kind == _STRING:
            try:
                return self.text().decode()
            except UnicodeDecodeError:
                return _NOT_UTF8
        if kind in _SCALARS:
            (number,) = self.numbers(_SCALARS[kind])
            # float32: 1e-05, and not 9.999999747378752e-06
            return float(str(np.float32(number))) if _SCALARS[kind] == "f" else number
        if kind != _ARRAY:
            raise ValueError(f"{self.path}: the field {name} has the type {kind}, which GGUF does not know")
        return self.array(name)

    def array(self, name: str, depth: int = 1) -> Any:
        inner, count = self.numbers("IQ")
        if inner == _STRING:
            return self.texts(self.bounded(count))
        if inner == _ARRAY:
            if depth == _MAX_DEPTH:
                raise ValueError(f"{self.path}: the field {name} has more than {depth} levels of arrays")
            for _ in range(self.bounded(count)):
                self.array(name, depth + 1)
            return Unread("an array of arrays")
        if inner not in _SCALARS:
            raise ValueError(f"{self.path}: the field {name} is an array of the type {inner}, which GGUF does not know")
        dtype = np.dtype("<" + _SCALARS[inner])
        start = self.take(self.bounded(count) * dtype.itemsize)
        return np.frombuffer(self.data[start : start + count * dtype.itemsize], dtype)

    def texts(self, count: int) -> list[str] | Unread:
        """Texts one after the other. A vocabulary has hundreds of thousands, so the loop is spelled out."""
        data, offset, end = self.data, self.offset, self.size
        length: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        raw = []
        try:
            for _ in range(count):
                (size,) = length(data, offset)
                offset += 8 + size
                if offset > end:
                    raise _EndOfFile
                raw.append(data[offset - size : offset])
        except struct.error:
            raise _EndOfFile from None
        self.offset = offset
        try:
            return [text.decode() for text in raw]
        except UnicodeDecodeError:
            return _NOT_UTF8

    def entry(self) -> tuple[str, tuple[str, tuple[int, ...], int]]:
        name = self.name()
        (count,) = self.numbers("I")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise ValueError(f"{self.path}: the tensor {name} has {count} axes; 1 to {_MAX_DIMENSIONS} are possible")
        shape = self.numbers("Q" * count)[::-1]
        kind, offset = self.numbers("IQ")
        if kind not in TYPES:
            type_name = _UNSUPPORTED.get(kind, f"the unknown type {kind}")
            raise ValueError(
                f"{self.path}: the tensor {name} is stored as {type_name}; supported: {', '.join(TYPES.values())} "
                "(take a file of another quantisation)"
            )
        weights = BLOCKS[TYPES[kind]][0]
        if shape[-1] % weights:
            raise ValueError(
                f"{self.path}: the tensor {name} has rows of {shape[-1]} weights; {TYPES[kind]} stores {weights} at a "
                "time: the file is damaged"
            )
        return name, (TYPES[kind], _checked_shape(self, name, shape), offset)


def _checked_shape(reader: _Reader, name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, if that many weights can be in a file: the product of damaged numbers has no bound."""
    if math.prod(shape) > 8 * reader.size or 0 in shape:
        raise ValueError(f"{reader.path}: the tensor {name} has the shape {tuple(shape)}: the file is cut or damaged")
    return tuple(shape)
