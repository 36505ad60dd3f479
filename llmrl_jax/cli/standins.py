"""Help without jax: heavy packages are replaced by stand-ins that do nothing while a help text is generated.

A help text is generated from signatures and dataclasses, whose modules import jax, flax and others. Importing those
takes seconds. Sphinx's `autodoc_mock_imports` is the same solution to the same problem. No computation runs with
stand-ins: the process prints the help and ends.
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
"""Packages with stand-ins, including their submodules."""


WITH_METHODS = ("custom_jvp", "custom_vjp", "custom_vmap")
"""Decorators after which the function has methods, as in `f.defvjp(...)`."""


class _StandIn:
    """An object with every attribute, which can be called, subscripted, inherited from and used as a decorator."""

    def __init__(self, name: str):
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _StandIn(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # a decorator returns what it decorates, with its docstring and fields
        if self.__name__ in WITH_METHODS or len(args) != 1 or kwargs:
            return self
        return args[0] if isinstance(args[0], (type, types.FunctionType)) else self

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
    """Import heavy packages as stand-ins within the block. Does nothing if one of them is imported already.

    Yields a function that ends the stand-ins early: imported modules of this project stay until the block ends (the
    help text is generated from them), but heavy packages are no longer imported as stand-ins. After the block those
    modules are removed too, and importing them again gives the real ones.
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
                module = sys.modules.pop(name)
                parent, _, child = name.rpartition(".")
                if getattr(sys.modules.get(parent), child, None) is module:
                    delattr(sys.modules[parent], child)

    def end() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        forget(HEAVY)

    try:
        yield end
    finally:
        end()
        forget(("llmrl_jax", "envs_jax"))
