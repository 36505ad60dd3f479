"""Lazy imports: names of a package are imported on first use, so that importing the package is fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562).

    **Arguments:** `package`, its `__name__`; `names`, submodule -> the names that the package takes from it; `modules`,
    submodules that are attributes themselves. For type checkers, the package repeats the names as imports under
    `TYPE_CHECKING`.
    """
    home = {name: module for module, attributes in names.items() for name in attributes}

    def __getattr__(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in home:
            return getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
