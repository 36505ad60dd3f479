"""Jinja's sandbox with bounds, for templates that come with a model: a template that never ends is an error."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError as JinjaError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer


STEPS = 5_000_000
"""Iterations of a rendering, where a call counts as `CALL` of them."""
CALL = 10
LENGTH = 1 << 24
"""Characters of a rendering, and of any text that its operators make."""


class Unbounded(JinjaError):
    """A template that exceeds a bound."""


class GenerationBlock(Extension):
    """The block `{% generation %}`, by which templates mark what the assistant says; it renders what it contains."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Bounds(NodeTransformer):
    """Pass what loops iterate over, and what `~` joins, through filters that count."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.Tuple(node.nodes, "load", lineno=node.lineno)
        return nodes.Filter(parts, "joined", [], [], None, None, lineno=node.lineno)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates in transformers, in which a template can only read its arguments, with bounds:
    `STEPS` iterations and texts of `LENGTH` characters. They end every loop and recursion, but do not bound the memory
    of a single filter.

    **Arguments:** `date`, which `strftime_now` writes; None: the time of the rendering.
    """

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self, date: datetime | None = None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock])
        self._spent = threading.local()
        self.filters["tojson"] = _to_json
        self.filters["counted"] = pass_context(lambda context, items: self._counted(items))
        self.filters["joined"] = pass_context(lambda context, parts: _joined(parts))  # with a context: not folded
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: (date or datetime.now()).strftime(form)

    def render(self, template: Any, values: Mapping[str, Any]) -> str:
        """The text of a template. **Raises:** `Unbounded`, and whatever the template raises."""
        self._spent.steps, length, pieces = 0, 0, []
        for piece in template.generate(**values):
            length += len(piece)
            _check_length(length)
            pieces.append(piece)
        return "".join(pieces)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Bounds().visit(source), *args, **kwargs)

    def _spend(self, steps: int) -> None:
        self._spent.steps += steps
        if self._spent.steps > STEPS:
            raise Unbounded(f"it takes more than {STEPS:,} iterations and calls, so it may never end")

    def _counted(self, items: Iterable[Any]) -> Iterable[Any]:
        if isinstance(items, Sized):
            self._spend(len(items))
            return items
        return self._counting(items)

    def _counting(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._spend(1)
            yield item

    def call(self, context: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._spend(CALL)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if isinstance(x, Sized) else None for x in (left, right)]
        if operator == "+" and None not in sizes:
            _check_length(sum(sizes))  # type: ignore[arg-type]
        elif operator == "*" and sizes != [None, None]:
            _check_length((sizes[0] if sizes[0] is not None else left) * (right if sizes[1] is None else sizes[1]))
        elif operator != "+" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            _check_length(bits)
        return super().call_binop(context, operator, left, right)


def _check_length(length: int) -> None:
    if length > LENGTH:
        raise Unbounded(f"it makes a text or a number of more than {LENGTH:,} characters")


def _joined(parts: Iterable[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _to_json(value: Any, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **how)


def _refuse(message: str) -> NoReturn:
    raise JinjaError(message)
