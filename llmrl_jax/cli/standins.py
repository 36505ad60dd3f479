"""Help without jax: while a help text is made, heavy packages are replaced by stand-ins that do nothing.

A help text is made from signatures and dataclasses, whose modules import jax, flax and others for the work that they
do later. Importing those takes seconds. Sphinx's `autodoc_mock_imports` has the same problem and the same solution.
Nothing that computes is ever called with stand-ins: the process prints the help and ends.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any


HEAVY = (
    "chex",
    "flax",
    "jax",
    "jaxtyping",
    "matplotlib",
    "mujoco",
    "optax",
    "orbax",
    "rich",
    "safetensors",
    "tokenizers",
    "transformers",
)
"""Packages that have stand-ins, their submodules included."""


class _StandIn:
    """Anything: it has every attribute, and can be called, subscripted, inherited from and used as a decorator."""

    def __init__(self, name: str):
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _StandIn(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # a decorator gives back what it decorates, so that docstrings and fields are found
        return args[0] if len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType)) else self

    def __getitem__(self, item: Any) -> Any:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __pow__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _StandIn(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in HEAVY:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@contextlib.contextmanager
def standins() -> Iterator[Callable[[], None]]:
    """Import heavy packages as stand-ins within the block. Does nothing where one of them has been imported already.

    Yields a function that ends the stand-ins early: modules of this project that were imported stay until the block
    ends (a help text is made from them), but an import of a heavy package no longer finds a stand-in. After the
    block those modules are forgotten too, and importing them gives the real ones.
    """
    if any(name in sys.modules for name in HEAVY):
        yield lambda: None
        return
    before = set(sys.modules)
    finder = _Finder()
    sys.meta_path.insert(0, finder)

    def forget(packages: Sequence[str]) -> None:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in packages:
                del sys.modules[name]

    def end() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        forget(HEAVY)

    try:
        yield end
    finally:
        end()
        forget(("llmrl_jax", "envs_jax"))
