"""Jinja's sandbox with bounds, for templates that come with a model or a prompt: one that never ends is an error."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Set, Sized, ValuesView
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError as JinjaError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer


STEPS = 5_000_000
"""Iterations of a rendering, where a call counts as `CALL` of them, and other work as given below."""
CALL = 10
OUTPUT_PER_STEP = 32
"""Characters that a template makes or writes, per step: at most 160 million in a rendering, also those it drops."""
INPUT_PER_STEP = 1024
"""Characters that an operator, filter or test is given, per step."""
LENGTH = 1 << 24
"""Characters of a rendering, of any text that a template makes, and of all texts in a container (`ELEMENT`)."""
ELEMENT = 16
"""Characters that each element of a container counts as."""
_CONTAINERS = (list, tuple, Mapping, Set, KeysView, ValuesView, ItemsView)
_SIZED = (str, bytes, *_CONTAINERS)
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


class Unbounded(JinjaError):
    """A template that exceeds a bound."""


class _Namespace(Namespace):
    """Jinja's, which as text shows nothing of what it holds: that may have changed since it was counted."""

    def __repr__(self) -> str:
        return "<Namespace>"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates in transformers, in which a template can only read its arguments, with bounds:
    `STEPS` iterations, and texts and containers of `LENGTH` characters. They end every loop and recursion. Containers
    are counted as they are written out, with multiplicity, so that shared references cannot hide a size that is endless
    to compare, hash or write. Not bounded is the memory of a single filter, or method of a text or number,
    that makes much of little, beyond its numbers, which are at most `LENGTH`.

    **Arguments:** `date`, which `strftime_now` writes; None: the time of the rendering; `options`, of Jinja's
    environment, such as its `loader`. The lines of blocks are removed, unless they say otherwise.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, date: datetime | None = None, **options: Any) -> None:
        options = {"trim_blocks": True, "lstrip_blocks": True, **options}
        super().__init__(extensions=[loopcontrols, GenerationBlock], **options)
        self._spent = threading.local()
        counting: dict[str, Callable[[Any], Any]] = {
            "counted": self._counted,
            "joined": self._joined,
            "written": self._written,
            "output": self._check_output,
            "input": self._check_input,
            "argument": self._check_argument,
        }
        for name, function in counting.items():  # with a context: not folded
            self.filters[name] = pass_context(lambda context, value, function=function: function(value))
        self.filters["tojson"] = _to_json
        self.filters["format"] = _format
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: (date or datetime.now()).strftime(form)
        self.globals["namespace"] = _Namespace
        # The class has methods that change a dictionary; Jinja finds those only on dictionaries themselves.
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        del self.globals["lipsum"]  # random text of any length

    def render(self, template: Any, values: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]] | None]:
        """The text of a template, and where the texts of its `{% generation %}` blocks begin and end in it, in
        characters; None if they cannot be located, as in a macro. **Raises:** `Unbounded`, and whatever the template
        raises."""
        self._spent.steps, self._spent.sizes = 0, {}
        self._spent.length, self._spent.generated = 0, []
        pieces = []
        try:
            for piece in template.generate(**values):
                self._spent.length += len(piece)
                _check_length(self._spent.length)
                pieces.append(piece)
        finally:
            marked, self._spent.generated, self._spent.sizes = self._spent.generated, [], {}
        text = "".join(pieces)
        located = all(text.startswith(part, start) for start, part in marked)
        return text, [(start, start + len(part)) for start, part in marked] if located else None

    def generated(self, text: str) -> None:
        """Record the text of a `{% generation %}` block, which is rendered next."""
        self._spent.generated.append((self._spent.length, text))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(Bounds().visit(source), *args, **kwargs)

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

    def _size(self, value: Any) -> int:
        """Characters of a text, or of all texts in a container, with `ELEMENT` for each element."""
        if isinstance(value, str | bytes):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 0
        cached = self._spent.sizes.get(id(value))
        if cached is not None:
            return cached[1]
        self._spend(CALL + len(value))
        parts = [*value, *value.values()] if isinstance(value, Mapping) else value
        size = ELEMENT * (1 + len(value))
        size += sum(self._size(part) for part in parts if isinstance(part, _SIZED))
        _check_length(size)
        self._spent.sizes[id(value)] = value, size  # the value is kept, so that no other gets its id
        return size

    def _check_output(self, value: Any) -> Any:
        if isinstance(value, str):
            _check_length(len(value))
            self._spend(len(value) // OUTPUT_PER_STEP)
        elif isinstance(value, _CONTAINERS):
            self._size(value)
        return value

    def _check_input(self, value: Any) -> Any:
        self._spend(self._size(value) // INPUT_PER_STEP)
        return value

    def _check_argument(self, value: Any) -> Any:
        """The argument of a filter or method."""
        _check_number(value)
        return self._check_input(value)

    def _written(self, value: Any) -> str:
        self._size(value)
        text = str(value)
        self._spend(len(text) // OUTPUT_PER_STEP)
        return text

    def _joined(self, parts: Iterable[Any]) -> str:
        texts = [self._written(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return self._check_output("".join(texts))

    def call(self, context: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._spend(CALL)
        if isinstance(function, LoopContext) and args:  # the next level of a recursive loop
            args = (self._counted(args[0]), *args[1:])
            self._spend(4 * CALL)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str | bytes | int | float):
            self._check_input(owner)
            for value in (*args, *kwargs.values()):
                self._check_argument(value)
        return self._check_output(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__
        if value.__name__ == "format_map":
            return lambda mapping: _Formatter(self).vformat(text, (), mapping)
        return lambda *args, **kwargs: _Formatter(self).vformat(text, args, kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if isinstance(x, Sized) else None for x in (left, right)]
        if operator == "%":
            if isinstance(left, str | bytes):
                _check_conversions(left, right)
                self._size(right)
        elif operator == "+" and None not in sizes:
            _check_length(sum(sizes))  # type: ignore[arg-type]
        elif operator == "*" and sizes != [None, None]:
            _check_length((sizes[0] if sizes[0] is not None else left) * (right if sizes[1] is None else sizes[1]))
        elif operator != "+" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            _check_length(bits)
        return self._check_output(super().call_binop(context, operator, left, right))


class _Formatter(SandboxedFormatter):
    """The formatter of `str.format`, with bounded widths."""

    def __init__(self, environment: BoundedEnvironment):
        super().__init__(environment)
        self._total = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        self._total += sum(map(_number, re.findall(r"\d+", format_spec)))
        _check_length(self._total)
        return self._add(super().format_field(value, format_spec))

    def _add(self, text: str) -> str:
        self._total += len(text)
        _check_length(self._total)
        return text


def _check_length(length: int) -> None:
    if length > LENGTH:
        raise Unbounded(f"it makes a text, container or number of more than {LENGTH:,} characters")


def _check_number(value: Any) -> None:
    if isinstance(value, int) and value > LENGTH:
        raise Unbounded(f"it gives a filter or method a number of more than {LENGTH:,}")


def _number(digits: str) -> int:
    """A width as it is written; any of more than 9 digits is above every bound."""
    digits = digits.lstrip("0")
    return int(digits or 0) if len(digits) < 10 else 10**9


def _check_conversions(text: str | bytes, args: Any) -> None:
    """Bound what `text % args` makes: the widths that it names, and its values as often as it may use one."""
    form = text if isinstance(text, str) else text.decode("latin-1")
    conversions = _CONVERSION.findall(form)
    values = list(args.values()) if isinstance(args, Mapping) else args if isinstance(args, tuple) else (args,)
    length = len(form) + sum(_number(width) for pair in conversions for width in pair if width not in ("", "*"))
    length += sum(abs(v) for v in values if isinstance(v, int)) if any("*" in pair for pair in conversions) else 0
    longest = max((len(v) for v in values if isinstance(v, str | bytes)), default=0)
    _check_length(length + len(conversions) * longest)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    """Jinja's filter `format`."""
    if args and kwargs:
        raise TypeError("the filter format takes values by position or by name, and not both")
    values: Any = kwargs or args
    _check_conversions(str(value), values)
    return str(value) % values


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` of transformers, with its arguments. (Jinja's own escapes HTML.)"""
    if indent is not None and (indent if isinstance(indent, int) else len(indent)) > 1000:
        raise Unbounded("it indents JSON by more than 1,000 characters")
    options: dict[str, Any] = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators}
    length, parts = 0, []
    for part in json.JSONEncoder(**options, sort_keys=sort_keys).iterencode(value):
        length += len(part)
        _check_length(length)
        parts.append(part)
    return "".join(parts)


def _refuse(message: str) -> NoReturn:
    raise JinjaError(message)


# --- filters that count what a template writes ----------------------------------------------------------------------


_CHEAP = frozenset(("length", "count", "first", "last", "default", "d"))
"""Filters whose work does not grow with what they are given."""


class GenerationBlock(Extension):
    """The block `{% generation %}`, by which templates mark what the assistant says; it renders what it contains, and
    gives the text to the environment's `generated`."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_generated"), [], [], body, lineno=line)

    def _generated(self, caller: Any) -> str:
        text = caller()
        self.environment.generated(text)  # type: ignore[attr-defined]  # of `BoundedEnvironment`
        return text


def _passed(node: Any, name: str) -> nodes.Filter:
    """An expression, or the body of a block (None), through a filter."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno if node else 0)


class Bounds(NodeTransformer):
    """Pass through filters that count: what loops iterate over, what `~` joins, what is written, what is compared,
    tested and filtered, and every text or container that is made."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _passed(node.iter, "counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _passed(nodes.Tuple(node.nodes, "load", lineno=node.lineno), "joined")

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [_passed(part, "written") for part in node.nodes]
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        node.filter = _passed(node.filter, "output")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _passed(node.expr, "input")
        for operand in node.ops:
            operand.expr = _passed(operand.expr, "input")
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        self._check_inputs(node)
        return _passed(node, "output")

    def visit_Test(self, node: nodes.Test) -> nodes.Test:
        self._check_inputs(node)
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.FilterBlock:
        node.body = [self.visit(part) for part in node.body]
        node.filter = self.visit(node.filter)
        return node

    def _check_inputs(self, node: Any) -> None:
        self.generic_visit(node)
        if node.node is not None and node.name not in _CHEAP:
            node.node = _passed(node.node, "input")
        node.args = [_passed(argument, "argument") for argument in node.args]
        for argument in node.kwargs:
            argument.value = _passed(argument.value, "argument")

    def visit_List(self, node: nodes.List | nodes.Tuple) -> Any:
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        self.generic_visit(node)
        return node if constant else _passed(node, "output")

    def visit_Tuple(self, node: nodes.Tuple) -> Any:
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Filter:
        self.generic_visit(node)
        return _passed(node, "output")

    def visit_Getitem(self, node: nodes.Getitem) -> Any:
        self.generic_visit(node)
        return _passed(node, "output") if isinstance(node.arg, nodes.Slice) else node
