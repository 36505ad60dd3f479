"""Converting Housekeep's `data.npy`, a pickled dict, into an `.npz` file that is read without unpickling."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.housekeep.preferences import PARTS, from_ranks


ALLOWED = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""The globals that a pickle of arrays, lists and strings needs. Nothing else is imported."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise ValueError(f"the pickle asks for {module}.{name}, which arrays of ranks and names do not need")
        return super().find_class(module, name)


def read_pickle(data: bytes, source: str = "data.npy") -> dict[str, Any]:
    """The dict in an object array of NumPy, as `numpy.save` writes it, unpickled without importing anything but NumPy's
    own arrays.

    **Raises:** `ValueError` for another kind of file, or a pickle that asks for more.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{source} is no .npy file: {error}") from None
    if not dtype.hasobject or shape not in ((), (1,)):
        raise ValueError(f"{source} holds {dtype} {list(shape)}; one pickled dict is needed")
    try:
        content = _Reader(file).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
        raise ValueError(f"{source}: the pickle is damaged ({error})") from None
    content = np.asarray(content, object).reshape(-1)[0]
    if not isinstance(content, dict):
        raise ValueError(f"{source} holds a {type(content).__name__}; a dict with {', '.join(PARTS)} is needed")
    return content


def convert_annotations(source: str | Path, target: str | Path, *, allow_pickle: bool = False) -> Path:
    """Convert Housekeep's annotations into the file that the option `preferences` takes.

    **Arguments:** `source`, `data.npy` of Housekeep's repository (`cos_eor/scripts/orm/amt_data`); `target`, a name
    that ends in `.npz`; `allow_pickle`, must be true: the source is a pickle. Only NumPy's own arrays are unpickled.
    **Returns:** the target's path. Ranks are stored as int8.
    **Raises:** `ValueError` without `allow_pickle`, for other names, and for a file of another content or shape.
    """
    source, target = Path(source), Path(target)
    if not allow_pickle:
        raise ValueError(f"{source.name} is a pickle: pass allow_pickle=True if you trust its source")
    if target.suffix != ".npz":
        raise ValueError(f"the target is {target.name}; a name that ends in .npz is needed")
    data = read_pickle(source.read_bytes(), source.name)
    lacking = [part for part in PARTS if part not in data]
    if lacking:
        raise ValueError(f"{source.name} lacks {lacking[0]!r} (it has {', '.join(map(str, data))})")
    ranks = np.asarray(data["ranks"])
    objects, places = ([str(name) for name in np.asarray(data[part]).reshape(-1)] for part in PARTS[1:])
    from_ranks(ranks, objects, places, source.name)
    largest = np.abs(ranks.astype(np.int64)).max()
    if largest > np.iinfo(np.int8).max:
        raise ValueError(f"{source.name}: a rank of {largest} does not fit int8")
    np.savez_compressed(target, ranks=ranks.astype(np.int8), objects=objects, room_receptacles=places)
    return target
