"""Converting Housekeep's `data.npy`, a pickled dict, into an `.npz` file that is read without unpickling."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from envs_jax.housekeep.preferences import PARTS, from_ranks
from envs_jax.npy import numbers_of, read_objects, texts_of


def convert_annotations(source: str | Path, target: str | Path, *, allow_pickle: bool = False) -> Path:
    """Convert Housekeep's annotations into the file that the option `preferences` takes.

    **Arguments:** `source`, `data.npy` of Housekeep's repository (`cos_eor/scripts/orm/amt_data`); `target`, a name
    that ends in `.npz`; `allow_pickle`, must be true: the source is a pickle. Nothing that it names is called.
    **Returns:** the target's path. Ranks are stored as int8.
    **Raises:** `ValueError` without `allow_pickle`, for other names, and for a file of another content or shape.
    """
    source, target = Path(source), Path(target)
    if not allow_pickle:
        raise ValueError(f"{source.name} is a pickle: pass allow_pickle=True if you trust its source")
    if target.suffix != ".npz":
        raise ValueError(f"the target is {target.name}; a name that ends in .npz is needed")
    content = read_objects(source)
    data = content[0] if len(content) == 1 else content
    if not isinstance(data, dict):
        raise ValueError(f"{source.name} holds a {type(data).__name__}; a dict with {', '.join(PARTS)} is needed")
    if lacking := [part for part in PARTS if part not in data]:
        raise ValueError(f"{source.name} lacks {lacking[0]!r} (it has {', '.join(map(str, data))})")
    arrays = []
    for part, read in zip(PARTS, (numbers_of, texts_of, texts_of)):
        array = read(data[part])
        if array is None:
            kind = "integers" if part == "ranks" else "names"
            raise ValueError(f"{source.name}: {part} is no array of {kind}: download the file again")
        arrays.append(array)
    ranks, objects, places = arrays[0], *(names.reshape(-1) for names in arrays[1:])
    from_ranks(ranks, objects.tolist(), places.tolist(), source.name)
    largest = np.abs(ranks.astype(np.int64)).max()
    if largest > np.iinfo(np.int8).max:
        raise ValueError(f"{source.name}: a rank of {largest} does not fit int8")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            np.savez_compressed(file, ranks=ranks.astype(np.int8), objects=objects, room_receptacles=places)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target
