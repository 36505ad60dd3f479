"""Environment ids: `register`, `make`, `ids`."""

from __future__ import annotations

import importlib
import inspect
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from envs_jax.checks import nearest


if TYPE_CHECKING:
    from envs_jax.env import Environment


@dataclass(frozen=True)
class Spec:
    """One registered environment: how to build it, and the keyword arguments that its id stands for."""

    id: str
    entry_point: str
    """`module:function`, imported at the first `make`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    about: str = field(default="", compare=False)
    """A description of the environment in one line."""

    @property
    def family(self) -> str:
        """The package that the environment comes from: `babyai` for those of `envs_jax.babyai`."""
        parts = self.entry_point.partition(":")[0].split(".")
        return parts[1] if parts[0] == "envs_jax" and len(parts) > 1 else parts[0]

    def load(self) -> Callable[..., Environment]:
        module, _, name = self.entry_point.partition(":")
        return getattr(importlib.import_module(module), name)


_SPECS: dict[str, Spec] = {}

SHARED = ("bridges", "physics", "text")
"""Folders of `envs_jax` that contain no environments."""

WORLDS = sorted(
    path.parent.name for path in Path(__file__).parent.glob("*/__init__.py") if path.parent.name not in SHARED
)
"""The folders of environments; importing one registers its ids, and imports no environment."""

BRIDGED = {package: f"envs_jax.bridges.{package}:world" for package in ("brax", "craftax", "gymnax")}
"""Packages whose environments have ids too, `package/name`. `ids` does not list them: each has its own registry."""


_registered = False
"""Whether the folders of environments have been imported, or are being imported."""


def _register_worlds() -> None:
    global _registered
    if not _registered:
        _registered = True  # before the imports, since each of them registers
        try:
            for name in WORLDS:
                importlib.import_module(f"envs_jax.{name}")
        except BaseException:
            _registered = False  # the next call tries again, instead of listing some of the environments
            raise


def register(id: str, entry_point: str, *, about: str = "", **kwargs: Any) -> None:
    """Register an environment under `id`.

    **Arguments:** `id`; `entry_point`, `"package.module:callable"`; `about`, the environment in one line, for lists;
    `kwargs` go to the callable.
    **Raises:** `ValueError` if the id is taken by something else. The environments of `envs_jax` are registered first:
    no other environment can take one of their ids.
    """
    _register_worlds()
    spec = Spec(id, entry_point, kwargs, about)
    existing = _SPECS.get(id, spec)
    if existing != spec:
        options = ", ".join(f"{name}={value!r}" for name, value in existing.kwargs.items())
        raise ValueError(
            f"the id {id!r} is registered already, as {existing.entry_point}{f' ({options})' if options else ''}; "
            f"choose another id for {entry_point}"
        )
    package, slash, _ = id.partition("/")
    if slash and package in BRIDGED:
        raise ValueError(f"the id {id!r} is a world of the package {package}; choose another one for {entry_point}")
    _SPECS.setdefault(id, spec)


def ids(prefix: str = "") -> list[str]:
    """List the registered ids that start with `prefix`, in order of registration."""
    _register_worlds()
    return [id for id in _SPECS if id.startswith(prefix)]


def _import(location: str) -> None:
    """Import a module, or a file by its path, whose folder is then one in which Python looks for modules."""
    if not location.endswith(".py"):
        importlib.import_module(location)
        return
    path = Path(location).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, which an environment's id names before its colon")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: it hides no other module
    file = getattr(importlib.import_module(path.stem), "__file__", None)
    if file is None or Path(file).resolve() != path:
        raise ImportError(f"{path} cannot be imported: a module {path.stem!r} is {file or 'built in'}; rename the file")


def spec(id: str) -> Spec:
    """Specification of an id: registered, `package/name` with a package of `BRIDGED`, or `module:ID` or `FILE.py:ID`,
    of which the module or file is executed, and registers the id.

    **Raises:** `KeyError`, naming the nearest ids, for an unknown id; what the import raises."""
    location, _, name = id.rpartition(":")
    if location:
        _import(location)
        return spec(name)
    package, _, name = id.partition("/")
    if name and package in BRIDGED:
        return Spec(id, BRIDGED[package], {"name": name})
    _register_worlds()
    if id not in _SPECS:
        raise KeyError(
            f"no environment is registered as {id!r}{nearest(id, list(_SPECS))} (`envs_jax.ids()` lists all; your own: "
            f"FILE.py:{id}, with the file that registers it)"
        )
    return _SPECS[id]


def _literal(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


KINDS: Mapping[str, tuple[type, str]] = {
    "bool": (bool, "true or false"),
    "int": (numbers.Integral, "a whole number"),
    "float": (numbers.Real, "a number"),
    "str": (str, "a word"),
}
"""The types of options that are checked, as annotated: the class of their values, and their name in messages."""


def _kind(name: str, accepted: Mapping[str, inspect.Parameter]) -> tuple[type, str]:
    """The entry of `KINDS` for an option; `(object, "")` if its type is not checked."""
    kind = accepted[name].annotation if name in accepted else object
    return KINDS.get(str(getattr(kind, "__name__", kind)), (object, ""))


def _written(name: str, text: str, accepted: Mapping[str, inspect.Parameter]) -> Any:
    """The value of an option of an id; 0 and 1 stand for false and true where an option is one of these."""
    if text in ("0", "1") and _kind(name, accepted)[0] is bool:
        return text == "1"
    return _literal(text)


def _check_types(id: str, options: Mapping[str, Any], accepted: Mapping[str, inspect.Parameter]) -> None:
    """Check options against the annotations of the callable that takes them. **Raises:** `TypeError`."""
    for name, value in options.items():
        expected, description = _kind(name, accepted)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected not in (bool, object)):
            raise TypeError(f"{id!r}: {name} is {value!r}; {description} is needed")


def make(id: str, **kwargs: Any) -> tuple[Environment, Any]:
    """Build an environment and its default parameters.

    **Arguments:** `id`, as the reference package spells it, with optional static options after a question mark
    (`"BabyAI-GoToLocal-v0?room_size=6&num_dists=2"`, `"brax/reacher?backend=spring"`); before a colon a module or file
    that registers it, which is executed (`"corridor.py:Corridor-v0"`); `kwargs`, the same options by keyword, which
    take precedence.
    **Returns:** `(env, params)`.
    **Raises:** `KeyError` for an unknown id, `TypeError` for an unknown option, both with the nearest names, and for an
    option of another type.

    **Example:**

    ```pycon
    >>> import envs_jax
    >>> env, params = envs_jax.make("BabyAI-GoToLocal-v0?num_dists=2")
    >>> sorted(env.observation_space(params).spaces)
    ['direction', 'image', 'mission']
    >>> env.action_names[:3]
    ('turn left', 'turn right', 'go forward')
    ```
    """
    base, _, query = id.partition("?")
    registered = spec(base)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError(f"the options of {id!r} are not NAME=VALUE pairs, joined by &") from None
    build = registered.load()
    accepted = inspect.signature(build).parameters
    options = {**{name: _written(name, text, accepted) for name, text in pairs}, **kwargs}
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        for name in options:
            if name not in accepted:
                raise TypeError(
                    f"{base!r} has no option {name!r}{nearest(name, list(accepted))} (it takes {', '.join(accepted)})"
                )
    _check_types(base, options, accepted)
    env = build(**{**registered.kwargs, **options})
    if "id" not in vars(env):
        env.id = id
    if registered.entry_point.startswith("envs_jax."):  # another package may be registered in this process only
        env.maker = _rebuild, (id, kwargs)
    return env, env.default_params


def _rebuild(id: str, options: dict[str, Any]) -> Environment:
    """The environment of `make`, for copies in other processes."""
    return make(id, **options)[0]
