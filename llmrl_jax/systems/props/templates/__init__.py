"""Prompt templates and their loading: built-in ones from this folder, a user's from their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np


if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent


def number(value: Any) -> str:
    """A number in few digits."""
    return f"{float(value):.4g}"


def digits(value: Any) -> str:
    """A number with all its digits and without an exponent."""
    return np.format_float_positional(float(value), trim="-")


def missing(why: str) -> Any:
    """An unfilled slot: a template that uses it fails with `why`."""
    from jinja2 import StrictUndefined

    return StrictUndefined(why)


def load(source: str = "", *, name: str = "", folder: str | Path | None = None) -> Template:
    """A template that fails on an unfilled slot.

    Templates run in Jinja's immutable sandbox, with access only to their slots. Lines of block tags are removed from
    built-in templates; a user's templates have Jinja's default white space, so that published ones render as published.

    **Arguments:** `source`, its text, or else `name`, of its file below `folder` (None: the built-in one), from which
    it may include others.
    **Raises:** `FileNotFoundError` for a missing file, with the existing names; `ValueError` for invalid Jinja.
    """
    from jinja2 import FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    ours = folder is None
    folder = HERE if folder is None else Path(folder)
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=ours,
        lstrip_blocks=ours,
        autoescape=False,
    )
    environment.filters["num"] = number
    try:
        return environment.get_template(name) if name else environment.from_string(source)
    except TemplateNotFound as error:
        there = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.j2")) if folder.is_dir() else None
        what = "there is no such folder" if there is None else f"it has {', '.join(there) or 'no *.j2'}"
        raise FileNotFoundError(f"there is no template {error.name!r} in {folder}: {what}") from None
    except TemplateSyntaxError as error:
        raise ValueError(
            f"the template {name or source!r} is not Jinja: {error.message} in line {error.lineno}"
        ) from None


def wants(template: Template) -> set[str]:
    """The slots used in the template's own file, without those of its includes."""
    from jinja2 import meta

    environment, name = template.environment, template.name
    assert environment.loader is not None and name is not None
    source, *_ = environment.loader.get_source(environment, name)
    return meta.find_undeclared_variables(environment.parse(source))


def fill(template: Template, slots: Mapping[str, Any]) -> str:
    """Render the template. **Raises:** `ValueError` for an unknown slot, or access that the sandbox forbids."""
    from jinja2 import TemplateError

    try:
        return template.render(slots).strip()
    except TemplateError as error:
        named = ", ".join(sorted(slots))
        raise ValueError(
            f"the template {template.name or ''!r} cannot be filled: {error}; its slots are {named}"
        ) from None
