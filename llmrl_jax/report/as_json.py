"""Results as JSON, for `--json`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def values(value: Any) -> Any:
    """A result as JSON values: dataclasses, named tuples and mappings are objects, and numbers that are not finite are
    null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: values(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: values(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {str(name): values(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [values(inner) for inner in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return values(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def text(value: Any) -> str:
    """`values` as text."""
    return json.dumps(values(value), indent=2, ensure_ascii=False, allow_nan=False)
