"""A checked tree, rewritten so that every operation passes through a guard.

`a + b` becomes `guard.binary("+", a, b)`, and likewise items, attributes, methods, loops and displays; `jnp.sum`
becomes a name of its own. So the program holds no module, and no value whose attributes it could follow. Names with a
dot cannot be written in Python, so a program cannot reach a guard by its name.
"""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

from llmrl_jax.advice.sandbox.syntax import known
from llmrl_jax.advice.sandbox.tables import CONSTANTS, DTYPES, FUNCTIONS, VALUE_TYPES


FILE = "<program>"
"""The file name of programs, by which their frames are found in a traceback."""
_SYMBOLS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "BitAnd": "&",
    "BitOr": "|", "BitXor": "^", "LShift": "<<", "RShift": ">>", "MatMult": "@",
}  # fmt: skip


def compiled(tree: ast.Module) -> CodeType:
    """The code of a tree that the gate has checked; its free names are those of `guards.Guards.namespace`."""
    body = [node for node in tree.body if not isinstance(node, ast.Expr)]
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    rewriter = _Rewriter(functions)
    module = ast.Module(rewriter._body(body), type_ignores=[])
    return compile(ast.fix_missing_locations(module), FILE, "exec", dont_inherit=True, optimize=0)


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _guarded(at: Any, guard: str, *arguments: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(_name(f"guard.{guard}"), list(arguments), []), at)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, functions: set[str]):
        self.functions = functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        first = node.body[0]
        if isinstance(first, ast.Expr):  # the docstring
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), first)]
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        node.body = self._body(node.body)
        node.decorator_list = [_name("guard.function")]
        return node

    def _body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, of which one may become several."""
        every = [self.visit(each) for each in statements]
        return [part for each in every for part in (each if isinstance(each, list) else [each])]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        value, statements = self.visit(node.value), []
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return ast.copy_location(ast.Assign(node.targets, value), node)
        held = ast.copy_location(ast.Assign([ast.Name("guard.value", ast.Store())], value), node)
        for target in node.targets:
            each: ast.stmt
            if isinstance(target, ast.Subscript):
                each = ast.Expr(_guarded(node, "store", self.visit(target.value), target.slice, _name("guard.value")))
            else:
                what: ast.expr = _name("guard.value")
                if isinstance(target, ast.Tuple | ast.List):
                    what = _guarded(node, "unpack", what, ast.Constant(len(target.elts)))
                each = ast.Assign([target], what)
            statements.append(ast.copy_location(each, node))
        return [held, *statements]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.Assign:
        assert isinstance(node.target, ast.Name)
        symbol = ast.Constant(_SYMBOLS[type(node.op).__name__])
        value = _guarded(node, "binary", symbol, _name(node.target.id), self.visit(node.value))
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.Call:
        symbol = ast.Constant(_SYMBOLS[type(node.op).__name__])
        return _guarded(node, "binary", symbol, self.visit(node.left), self.visit(node.right))

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        """The first of several comparisons decides by its truth whether the next is made, as in Python."""
        node.left = _guarded(node, "operand", self.visit(node.left))
        node.comparators = [_guarded(node, "operand", self.visit(each)) for each in node.comparators]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Call:
        return _guarded(node, "item", self.visit(node.value), self._index(node.slice))

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [each and self.visit(each) for each in (node.lower, node.upper, node.step)]
            return _guarded(node, "slice", *(each or ast.Constant(None) for each in parts))
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._index(each) for each in node.elts], ast.Load()), node)
        return self.visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = known(node)
        if name is not None:
            assert name in DTYPES or name in CONSTANTS
            return ast.copy_location(_name(f"value.{name}"), node)
        return _guarded(node, "attribute", self.visit(node.value), ast.Constant(node.attr))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(_name(f"value.{node.id}"), node) if node.id in VALUE_TYPES else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        arguments = [self.visit(each) for each in node.args]
        keywords = [ast.keyword(each.arg, self.visit(each.value)) for each in node.keywords]
        function: ast.expr
        if isinstance(node.func, ast.Name):
            function = node.func if node.func.id in self.functions else _name(f"function.{node.func.id}")
        else:
            assert isinstance(node.func, ast.Attribute)
            name = known(node.func)
            if name is None:
                function = _name("guard.method")
                arguments = [self.visit(node.func.value), ast.Constant(node.func.attr), *arguments]
            else:
                assert name in FUNCTIONS or name in DTYPES
                function = _name(f"function.{name}")
        return ast.copy_location(ast.Call(ast.copy_location(function, node), arguments, keywords), node)

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> ast.expr:
        if not isinstance(node.ctx, ast.Load):
            return node
        self.generic_visit(node)
        return _guarded(node, "made", node)

    visit_List = visit_Tuple

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        node.values = [self.visit(value) for value in node.values]
        return _guarded(node, "made", node)

    def visit_For(self, node: ast.For) -> ast.For:
        node.iter = _guarded(node.iter, "loop", self.visit(node.iter))
        node.body = self._body(node.body)
        return node

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> ast.Call:
        for generator in node.generators:
            generator.iter = _guarded(generator.iter, "loop", self.visit(generator.iter))
            generator.ifs = [self.visit(each) for each in generator.ifs]
        made = ast.copy_location(ast.ListComp(self.visit(node.elt), node.generators), node)
        return _guarded(node, "made", made)

    visit_GeneratorExp = visit_ListComp
