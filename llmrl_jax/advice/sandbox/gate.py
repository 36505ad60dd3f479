"""The static gate: a program's syntax tree against a whitelist. What is not named here is refused; nothing runs."""

from __future__ import annotations

import ast
import math

from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.limits import DEFAULT, Limits
from llmrl_jax.advice.sandbox.syntax import (
    LARGEST,
    check_size,
    dotted,
    is_docstring,
    known,
    parse,
    root,
    rounds,
    stored,
)
from llmrl_jax.advice.sandbox.tables import (
    BUILTINS,
    CONSTANTS,
    DATA,
    DTYPES,
    FUNCTIONS,
    KEYWORDS,
    METHODS,
    UPDATES,
    VALUE_TYPES,
)  # fmt: skip


MAIN = "compute_potential"
"""The function that a program defines, of `obs`, `past_obs` and `past_actions`."""
_EXPONENT = 64
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift,
    ast.RShift, ast.MatMult, ast.And, ast.Or, ast.Not, ast.Invert, ast.UAdd, ast.USub, ast.Eq, ast.NotEq, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn, ast.Load, ast.Store,
)  # fmt: skip
_WORDS = {
    "Import": "imports: jnp, lax and jax.nn are there already",
    "ImportFrom": "imports: jnp, lax and jax.nn are there already",
    "While": "while loops: use a for loop over range(number)",
    "Lambda": "lambda: define a function at the top level",
    "ClassDef": "classes",
    "Try": "try",
    "TryStar": "try",
    "With": "with",
    "JoinedStr": "f-strings",
    "NamedExpr": "the operator :=",
    "Starred": "starred expressions",
    "Raise": "raise",
    "Assert": "assert",
    "Delete": "del",
    "Global": "global",
    "Nonlocal": "nonlocal",
    "Yield": "generators",
    "YieldFrom": "generators",
    "Set": "sets: use a tuple",
    "SetComp": "set comprehensions: use a list comprehension",
    "DictComp": "dict comprehensions: write the dict out, with literal names",
    "Match": "match",
    "Break": "break: a loop runs through its range; use jnp.where",
    "AsyncFunctionDef": "async functions",
    "AsyncFor": "async loops",
    "AsyncWith": "async with",
    "Await": "await",
}


def check(source: str, limits: Limits = DEFAULT) -> ast.Module:
    """Parse a program and refuse what the whitelist does not name.

    **Returns:** its syntax tree.
    **Raises:** `SandboxError`, in milliseconds.
    """
    if len(source) > limits.source:
        raise SandboxError(f"the program has {len(source):,} characters; at most {limits.source:,} are allowed")
    tree = parse(source)
    check_size(tree, source, limits)
    _Gate(source, tree, limits).check()
    return tree


class _Gate:
    """Visits every node once. Each method handles one kind; a kind without a method is refused."""

    def __init__(self, source: str, tree: ast.Module, limits: Limits):
        self.source, self.tree, self.limits = source, tree, limits
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.constants = stored([node for node in tree.body if not isinstance(node, ast.FunctionDef)])
        self.known: set[str] = set()  # names of values where the visit is
        self.product = 1

    def refuse(self, node: ast.AST, reason: str) -> SandboxError:
        return SandboxError(reason, getattr(node, "lineno", None), self.source)

    def check(self) -> None:
        for i, node in enumerate(self.tree.body):
            if isinstance(node, ast.FunctionDef):
                self.function(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self.known = self.constants
                self.visit(node)
            elif not (i == 0 and is_docstring(node)):
                word = _WORDS.get(type(node).__name__, "at the top level, anything but functions and constants")
                raise self.refuse(node, f"not allowed: {word}")
        if MAIN not in self.functions:
            raise SandboxError(f"it defines no function {MAIN}(obs, past_obs, past_actions)")
        arguments = self.functions[MAIN].args
        if len(arguments.args) != 3 or arguments.defaults:
            reason = f"{MAIN} takes {len(arguments.args)} arguments; exactly obs, past_obs, past_actions are needed"
            raise self.refuse(self.functions[MAIN], reason)

    def function(self, node: ast.FunctionDef) -> None:
        if sum(isinstance(each, ast.FunctionDef) and each.name == node.name for each in self.tree.body) > 1:
            raise self.refuse(node, f"the function {node.name} is defined twice")
        a = node.args
        if node.decorator_list:
            raise self.refuse(node.decorator_list[0], "decorators are not allowed")
        if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs:
            raise self.refuse(node, "only plain parameters are allowed: no *, ** or /")
        if not all(isinstance(default, ast.Constant) for default in a.defaults):
            raise self.refuse(node, "a default of a parameter must be a literal number")
        self.name(node, node.name, stored=True, function=True)
        for each in (*a.args, *a.defaults):
            if isinstance(each, ast.arg):
                self.name(each, each.arg, stored=True)
                self.annotation(each.annotation)
            else:
                self.visit(each)
        self.annotation(node.returns)
        self.known = self.constants | {each.arg for each in a.args} | stored(node.body)
        for statement in node.body[1:] if is_docstring(node.body[0]) else node.body:
            self.visit(statement)

    def annotation(self, node: ast.expr | None) -> None:
        """Annotations are dropped, so their names need no meaning; anything that could run is refused."""
        for part in ast.walk(node) if node else ():
            fine = isinstance(
                part, ast.Name | ast.Attribute | ast.Subscript | ast.Tuple | ast.BinOp | ast.BitOr | ast.Load
            )
            if not fine and not (isinstance(part, ast.Constant) and part.value in (None, ...)):
                raise self.refuse(node, "an annotation may only name types")  # type: ignore[arg-type]
            if isinstance(part, ast.Name | ast.Attribute):
                self.underscore(part, part.id if isinstance(part, ast.Name) else part.attr)

    def underscore(self, node: ast.AST, name: str) -> None:
        if name.startswith("_") or not name.isascii():
            raise self.refuse(node, f"the name {name[:60]!r} is not allowed: names begin with a letter, and are ASCII")

    def name(self, node: ast.AST, name: str, stored: bool = False, function: bool = False) -> None:
        self.underscore(node, name)
        taken = name in BUILTINS or name in ("jax", "jnp", "lax") or (name in self.functions and not function)
        if stored and taken:
            raise self.refuse(node, f"{name} has a meaning already; choose another name")

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, _OPERATORS):
            return
        method = getattr(self, type(node).__name__, None)
        if method is None:
            word = _WORDS.get(type(node).__name__, f"{type(node).__name__}")
            raise self.refuse(node, f"not allowed: {word}")
        method(node)

    def children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self.visit(child)

    Return = If = IfExp = BoolOp = UnaryOp = Compare = Tuple = List = Slice = children

    def Pass(self, node: ast.Pass) -> None:
        pass

    def FunctionDef(self, node: ast.FunctionDef) -> None:
        raise self.refuse(node, "functions inside functions are not allowed: define helpers at the top level")

    def Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Name | ast.Attribute):
            self.visit(node.value)  # for the more exact reason
        elif type(node.value).__name__ in _WORDS:
            self.visit(node.value)
        raise self.refuse(node, "an expression whose value is not used is not allowed")

    def Constant(self, node: ast.Constant) -> None:
        value = node.value
        if value is None or value is ... or isinstance(value, bool):
            return
        if isinstance(value, str | bytes):
            raise self.refuse(node, "strings are allowed only as names of components and of the observation's parts")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise self.refuse(node, f"an integer is larger than {LARGEST:,}")
        if isinstance(value, complex) or not math.isfinite(value):
            raise self.refuse(node, "numbers are finite and real; use jnp.inf for infinity")

    def Name(self, node: ast.Name) -> None:
        self.name(node, node.id, stored=isinstance(node.ctx, ast.Store))
        if isinstance(node.ctx, ast.Store) or node.id in self.known or node.id in VALUE_TYPES:
            return
        if node.id in self.functions or node.id in BUILTINS:
            raise self.refuse(node, f"{node.id} can only be called, not passed or stored")
        remedy = (
            "use jnp"
            if node.id in ("np", "numpy")
            else "only jnp, lax, jax.nn, a few builtins and your own names exist"
        )
        raise self.refuse(node, f"the name {node.id[:60]!r} is unknown here: {remedy}")

    def Attribute(self, node: ast.Attribute) -> None:
        self.underscore(node, node.attr)
        name = known(node)
        if name is not None:
            if name not in CONSTANTS and name not in DTYPES:
                said = (
                    "can only be called" if name in FUNCTIONS else "is not allowed: it is not in the list of functions"
                )
                raise self.refuse(node, f"{dotted(node)} {said}"[:200])
        elif not isinstance(node.ctx, ast.Load):
            raise self.refuse(node, "attributes cannot be changed")
        elif node.attr in METHODS | UPDATES:
            raise self.refuse(node, f"the method {node.attr} can only be called")
        elif node.attr not in DATA:
            raise self.refuse(node, self.no_attribute(node.attr))
        else:
            self.visit(node.value)

    @staticmethod
    def no_attribute(name: str) -> str:
        remedies = {
            "item": "; a traced array has no plain value: compute with the array itself",
            "append": "; use a list comprehension, or jnp.stack",
            "copy": "; arrays never change, so no copy is needed",
        }
        return f"the attribute {name[:60]!r} is not allowed{remedies.get(name, '')}"

    def Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        text = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        if text:
            self.key(node.slice)
        elif isinstance(node.ctx, ast.Store):
            raise self.refuse(node, "arrays and lists cannot be changed in place: use x = x.at[index].set(value)")
        else:
            self.visit(node.slice)

    def key(self, node: ast.expr) -> None:
        value = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(value, str) or not 0 < len(value) <= 64 or not value.isprintable():
            raise self.refuse(node, "a key must be a literal string of 1 to 64 printable characters")

    def Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values):
            if key is None:
                raise self.refuse(node, "** is not allowed in a dict")
            self.key(key)
            self.visit(value)

    def BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Pow | ast.LShift):
            right = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
            number = right.value if isinstance(right, ast.Constant) else 0
            nested = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Pow | ast.LShift)
            if nested or (isinstance(number, int | float) and number > _EXPONENT):
                raise self.refuse(node, f"an exponent is too large; at most {_EXPONENT} is allowed")
        self.children(node)

    def Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.target(target)

    def AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.refuse(
                node, "only names can be changed by an operator such as +=: use x = x.at[index].add(value)"
            )
        self.BinOp(ast.copy_location(ast.BinOp(node.target, node.op, node.value), node))

    def AnnAssign(self, node: ast.AnnAssign) -> None:
        self.annotation(node.annotation)
        if node.value is None or not isinstance(node.target, ast.Name):
            raise self.refuse(node, "an annotated assignment needs a name and a value")
        self.visit(node.value)
        self.target(node.target)

    def target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for part in node.elts:
                if not isinstance(part, ast.Name):
                    raise self.refuse(node, "values are unpacked into plain names only")
        elif not isinstance(node, ast.Name | ast.Subscript):
            raise self.refuse(node, "a value is assigned to a name, or to a literal key of a dict")
        self.children(node) if isinstance(node, ast.Tuple | ast.List) else self.visit(node)

    def For(self, node: ast.For) -> None:
        if node.orelse:
            raise self.refuse(node, "a loop has no else")
        before = self.product
        self.loop(node, node.iter, node.target)
        for statement in node.body:
            self.visit(statement)
        self.product = before

    def ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> None:
        before, outside = self.product, self.known
        self.known = self.known | stored([g.target for g in node.generators])
        for generator in node.generators:
            if generator.is_async:
                raise self.refuse(node, "async comprehensions are not allowed")
            self.loop(node, generator.iter, generator.target)
            for condition in generator.ifs:
                self.visit(condition)
        self.visit(node.elt)
        self.product, self.known = before, outside

    GeneratorExp = ListComp

    def loop(self, node: ast.AST, source: ast.expr, target: ast.expr) -> None:
        """What is iterated over: a range, a literal, or pairs of such. What is not a literal is bounded by `guards`."""
        self.pattern(target)
        called = source.func.id if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) else None
        if called not in ("range", "enumerate", "zip", "reversed") and not isinstance(
            source, ast.Tuple | ast.List | ast.Name
        ):
            raise self.refuse(node, "a loop runs over range(number), a tuple, enumerate or zip")
        self.visit(source)
        count = rounds(source)
        if count > self.limits.loop:
            raise self.refuse(node, f"a loop of {count:,} rounds; at most {self.limits.loop} are allowed")
        self.product *= max(count, 1)
        if self.product > self.limits.unrolled:
            reason = f"nested loops run {self.product:,} times; at most {self.limits.unrolled:,} are allowed"
            raise self.refuse(node, reason + ": use operations on whole arrays")

    def pattern(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for part in node.elts:
                self.pattern(part)
        elif isinstance(node, ast.Name):
            self.name(node, node.id, stored=True)
        else:
            raise self.refuse(node, "a loop assigns to names only")

    def Continue(self, node: ast.Continue) -> None:
        pass

    def Call(self, node: ast.Call) -> None:
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)
        if isinstance(node.func, ast.Name):
            self.underscore(node.func, node.func.id)
            if node.func.id not in self.functions and node.func.id not in BUILTINS:
                self.visit(node.func)
                raise self.refuse(node, f"{node.func.id} is not a function that may be called")
            names = (
                None
                if node.func.id in self.functions or node.func.id == "dict"
                else frozenset(("start", "key", "default"))
            )
        elif isinstance(node.func, ast.Attribute):
            self.called(node.func)
            names = KEYWORDS
        else:
            self.visit(node.func)
            raise self.refuse(node, "only named functions and methods of arrays may be called")
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refuse(node, "** is not allowed in a call")
            self.underscore(node, keyword.arg)
            if names is not None and keyword.arg not in names:
                raise self.refuse(node, f"the keyword argument {keyword.arg[:60]!r} is not allowed")

    def called(self, node: ast.Attribute) -> None:
        self.underscore(node, node.attr)
        name = known(node)
        if name is not None:
            if name not in FUNCTIONS and name not in DTYPES:
                said = dotted(node) or name
                for part in said.split("."):
                    self.underscore(node, part)
                raise self.refuse(node, f"{said[:100]} is not allowed: it is not in the list of functions")
            return
        if node.attr not in METHODS and node.attr not in UPDATES:
            if dotted(node) is not None:
                self.visit(root(node))
            raise self.refuse(node, self.no_attribute(node.attr))
        self.visit(node.value)
