"""Functions of the user's own, by the name of their file or module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import expanded


def load_function(name: str, kind: str, instead: str = "") -> Callable[..., Any]:
    """A function by `FILE.py:FUNCTION` or `package.module:FUNCTION`, which is executed.

    **Arguments:** `kind`, what it is, and `instead`, what else could be named, for messages.
    **Raises:** `ValueError` for a name of another form, a missing function, or an error in the user's file or module,
    also of its imports; `FileNotFoundError`; `ModuleNotFoundError` without such a module."""
    location, _, function = name.rpartition(":")
    if not location or not function:
        raise ValueError(f"the {kind} is {name!r}; FILE.py:FUNCTION is needed{instead}")
    if location.endswith(".py"):
        path = expanded(location)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path} to take the {kind} {function!r} from")
        module_name = f"_llmrl_{kind}_{path.stem}"
        spec: Any = importlib.util.spec_from_file_location(module_name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # where dataclasses and pickle look for it
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, Exception | SystemExit):
                raise _failed(path, kind, function, error) from error
            raise
    else:
        try:
            module = importlib.import_module(location)
        except (Exception, SystemExit) as error:
            missing = isinstance(error, ModuleNotFoundError) and f"{location}.".startswith(f"{error.name}.")
            if not (missing or location.startswith(".")):  # an import in the module, or any other error of its own
                raise _failed(location, kind, function, error) from error
            raise ModuleNotFoundError(
                f"there is no module {location!r} to take the {kind} {function!r} from; give FILE.py:FUNCTION, or a "
                "module that Python finds"
            ) from error
    loaded = getattr(module, function, None)
    if not callable(loaded):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"{location} has no function {function!r}{nearest(function, names)}")
    return loaded


def _failed(location: str | Path, kind: str, function: str, error: BaseException) -> ValueError:
    """The error of a file or module that failed when it was imported."""
    line = str(error).split("\n")[0]
    return ValueError(
        f"{location} raised {type(error).__name__} when it was executed to take the {kind} {function!r} from it: "
        f"{line}; correct the file"
    )
