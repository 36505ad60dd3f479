"""What a chat template passes through the filters that count, see `llmrl_jax.tuning.sandbox`."""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer


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
        node.filter = _passed(node.filter, "made")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _passed(node.expr, "seen")
        for operand in node.ops:
            operand.expr = _passed(operand.expr, "seen")
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        self._see(node)
        return _passed(node, "made")

    def visit_Test(self, node: nodes.Test) -> nodes.Test:
        self._see(node)
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.FilterBlock:
        node.body = [self.visit(part) for part in node.body]
        node.filter = self.visit(node.filter)
        return node

    def _see(self, node: Any) -> None:
        self.generic_visit(node)
        if node.node is not None and node.name not in _CHEAP:
            node.node = _passed(node.node, "seen")
        node.args = [_passed(each, "given") for each in node.args]
        for each in node.kwargs:
            each.value = _passed(each.value, "given")

    def visit_List(self, node: nodes.List | nodes.Tuple) -> Any:
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        self.generic_visit(node)
        return node if constant else _passed(node, "made")

    def visit_Tuple(self, node: nodes.Tuple) -> Any:
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Filter:
        self.generic_visit(node)
        return _passed(node, "made")

    def visit_Getitem(self, node: nodes.Getitem) -> Any:
        self.generic_visit(node)
        return _passed(node, "made") if isinstance(node.arg, nodes.Slice) else node
