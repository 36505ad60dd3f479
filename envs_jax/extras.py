"""Optional dependencies: the extras of the distribution, imported before the work that needs them.

The one place that writes how to install an extra. The distribution is on no package index, so the command is that of
the checkout, where there is one, else of the extra's packages.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "llmrl-jax"


def require(use: str, extra: str, *modules: str, remedy: str = "") -> ModuleType:
    """Import modules of an extra.

    **Arguments:** `use`, that needs them, the subject of the message; `extra`, by name; `remedy`, what else the user
    can do, without a full stop.
    **Returns:** the first module.
    **Raises:** `ModuleNotFoundError` if one of them, or a module that it imports, is missing: `missing`.
    """
    try:
        return [importlib.import_module(module) for module in modules][0]
    except ModuleNotFoundError as error:
        raise missing(use, extra, error.name or modules[0], remedy=remedy) from error


def missing(use: str, extra: str, module: str, *, remedy: str = "") -> ModuleNotFoundError:
    """The error for a missing module: "hdf5 needs h5py, of the extra `data`: pip install -e '/checkout[data]'"."""
    suffix = f"; or {remedy}" if remedy else ""
    return ModuleNotFoundError(
        f"{use} needs {module}, of the extra `{extra}`: {install(extra)}{suffix}", name=module.partition(".")[0]
    )


def install(extra: str) -> str:
    """The command that installs an extra into this environment."""
    source = _checkout()
    if source is not None:
        path, editable = source
        return f"pip install {'-e ' if editable else ''}'{path}[{extra}]'"
    packages = requirements().get(extra)
    if not packages:
        return f"pip install '.[{extra}]' in a checkout of {DISTRIBUTION}"
    return " ".join(["pip install", *(shlex.quote(named(needed)) for needed in packages)])


def named(needed: Requirement) -> str:
    """A requirement as pip takes it, without its marker: `jax[cuda13]>=0.10.2`."""
    inner = f"[{','.join(sorted(needed.extras))}]" if needed.extras else ""
    return f"{needed.name}{inner}{needed.specifier}"


def inside(needed: Requirement) -> list[Requirement]:
    """The requirements that a requirement's extras add, such as `jax[cuda13]`'s plugin; empty without its package."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(needed.name) or [] if needed.extras else []
    except importlib.metadata.PackageNotFoundError:
        return []
    requested = {extra.lower() for extra in needed.extras}
    return [
        inner
        for inner in map(Requirement, lines)
        if inner.marker is not None
        and requested & set(_extras_of(inner))
        and any(inner.marker.evaluate({"extra": extra}) for extra in requested)
    ]


def _extras_of(needed: Requirement) -> list[str]:
    """The extras that a requirement belongs to."""
    return re.findall(r"extra == ['\"]([\w-]+)['\"]", str(needed.marker or ""))


def requirements() -> dict[str, list[Requirement]]:
    """The requirements of every extra, those of this platform and Python; empty without the distribution's metadata."""
    from packaging.requirements import Requirement

    listed: dict[str, list[Requirement]] = {}
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    for needed in map(Requirement, lines):
        for extra in _extras_of(needed):
            part = listed.setdefault(extra, [])
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                part.append(needed)
    return {extra: _expanded(part, listed) for extra, part in listed.items()}


def _expanded(part: list[Requirement], listed: dict[str, list[Requirement]]) -> list[Requirement]:
    """The requirements of an extra, with those of the extras that it is made of, as `all` is."""
    expanded = []
    for needed in part:
        inner = (
            [listed.get(extra, []) for extra in sorted(needed.extras)] if needed.name == DISTRIBUTION else [[needed]]
        )
        expanded += [x for group in inner for x in group if x not in expanded]
    return expanded


def _checkout() -> tuple[Path, bool] | None:
    """The folder of the sources that are in use, or were installed, and whether they are in use; None without one."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    folder = Path(__file__).resolve().parent.parent
    if _is_source(folder):
        return folder, True
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    folder = Path(url2pathname(url.path))
    return (folder, False) if url.scheme == "file" and _is_source(folder) else None


def _is_source(folder: Path) -> bool:
    try:
        return f'name = "{DISTRIBUTION}"' in (folder / "pyproject.toml").read_text()
    except OSError:
        return False
