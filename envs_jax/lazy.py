"""Lazy imports: names of a package are imported on first use, so that importing the package is fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def attach(
    package: str,
    names: Mapping[str, Sequence[str]],
    modules: Sequence[str] = (),
    *,
    others: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562).

    A name that is also that of its submodule is the name's object, not the module, whichever is imported first.

    **Arguments:** `package`, its `__name__`; `names`, submodule -> the names that the package takes from it, as in an
    import (`load`, `load as load_model`); `modules`, submodules that are attributes themselves; `others`, as `names`
    for modules outside the package, by their full names. For type checkers and documentation, the package repeats the
    names as imports under `TYPE_CHECKING`.
    """
    origin: dict[str, tuple[str, str]] = {}
    full = {f"{package}.{module}": attributes for module, attributes in names.items()} | dict(others or {})
    for module, attributes in full.items():
        for attribute in attributes:
            source, _, alias = attribute.partition(" as ")
            origin[alias or source] = (module, source)
    if namesakes := {name for name, (module, _) in origin.items() if module == f"{package}.{name}"}:
        sys.modules[package].__class__ = _with_namesakes(namesakes)

    def __getattr__(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in origin:
            module, source = origin[name]
            return getattr(importlib.import_module(module), source)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__


def _with_namesakes(names: set[str]) -> type[ModuleType]:
    """The class of a package in which importing the submodule `name` sets the attribute `name` to the module's object
    of that name."""

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if name in names and isinstance(value, ModuleType):
                value = getattr(value, name)
            super().__setattr__(name, value)

    return Package
