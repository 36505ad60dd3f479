"""The static gate: a program's syntax tree against a whitelist, and the rewritten program.

What the whitelist does not name is refused; nothing runs. A checked tree is rewritten so that every operation passes
through a guard: `a + b` becomes `guard.binary("+", a, b)`, and likewise items, attributes, methods, loops and displays;
`jnp.sum` becomes a name of its own. So the program holds no module, and no value whose attributes it could follow.
Names with a dot cannot be written in Python, so a program cannot reach a guard by its name.
"""

from __future__ import annotations

import ast
import math
import warnings
from types import CodeType
from typing import Any

from llmrl_jax.advice.sandbox.spec import DEFAULT, Limits, SandboxError, lines_of
from llmrl_jax.advice.sandbox.tables import (
    BUILTINS,
    CONSTANTS,
    DATA,
    DTYPES,
    FUNCTIONS,
    KEYWORDS,
    METHODS,
    ROOTS,
    UPDATES,
    VALUE_TYPES,
)  # fmt: skip


MAIN = "compute_potential"
"""The function that a program defines, of `obs`, `past_obs` and `past_actions`."""
FILE = "<program>"
"""The file name of programs, by which their frames are recognised in a traceback."""
LARGEST = 2**31 - 1
"""The largest integer of a program."""
_EXPONENT = 64
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift,
    ast.RShift, ast.MatMult, ast.And, ast.Or, ast.Not, ast.Invert, ast.UAdd, ast.USub, ast.Eq, ast.NotEq, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn, ast.Load, ast.Store,
)  # fmt: skip
_ANNOTATION = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.BinOp, ast.BitOr, ast.Load)
_REFUSED = {
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
        self.scope: set[str] = set()  # names of values at the current node
        self.product = 1

    def refuse(self, node: ast.AST, reason: str) -> SandboxError:
        return SandboxError(reason, getattr(node, "lineno", None), self.source)

    def check(self) -> None:
        for i, node in enumerate(self.tree.body):
            if isinstance(node, ast.FunctionDef):
                self.function(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self.scope = self.constants
                self.visit(node)
            elif not (i == 0 and is_docstring(node)):
                word = _REFUSED.get(type(node).__name__, "at the top level, anything but functions and constants")
                raise self.refuse(node, f"not allowed: {word}")
        if MAIN not in self.functions:
            raise SandboxError(f"it defines no function {MAIN}(obs, past_obs, past_actions)")
        arguments = self.functions[MAIN].args
        if len(arguments.args) != 3 or arguments.defaults:
            reason = f"{MAIN} takes {len(arguments.args)} arguments; exactly obs, past_obs, past_actions are needed"
            raise self.refuse(self.functions[MAIN], reason)

    def function(self, node: ast.FunctionDef) -> None:
        if sum(isinstance(item, ast.FunctionDef) and item.name == node.name for item in self.tree.body) > 1:
            raise self.refuse(node, f"the function {node.name} is defined twice")
        a = node.args
        if node.decorator_list:
            raise self.refuse(node.decorator_list[0], "decorators are not allowed")
        if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs:
            raise self.refuse(node, "only plain parameters are allowed: no *, ** or /")
        if not all(isinstance(default, ast.Constant) for default in a.defaults):
            raise self.refuse(node, "a default of a parameter must be a literal number")
        self.name(node, node.name, stored=True, function=True)
        for item in (*a.args, *a.defaults):
            if isinstance(item, ast.arg):
                self.name(item, item.arg, stored=True)
                self.annotation(item.annotation)
            else:
                self.visit(item)
        self.annotation(node.returns)
        self.scope = self.constants | {item.arg for item in a.args} | stored(node.body)
        for statement in node.body[1:] if is_docstring(node.body[0]) else node.body:
            self.visit(statement)

    def annotation(self, node: ast.expr | None) -> None:
        """Annotations are dropped, so their names need no meaning; anything that could run is refused."""
        for part in ast.walk(node) if node else ():
            if not isinstance(part, _ANNOTATION) and not (isinstance(part, ast.Constant) and part.value in (None, ...)):
                raise self.refuse(node, "an annotation may only name types")  # type: ignore[arg-type]
            if isinstance(part, ast.Name | ast.Attribute):
                self.underscore(part, part.id if isinstance(part, ast.Name) else part.attr)

    def underscore(self, node: ast.AST, name: str) -> None:
        if name.startswith("_") or not name.isascii():
            raise self.refuse(node, f"the name {name[:60]!r} is not allowed: names begin with a letter, and are ASCII")

    def name(self, node: ast.AST, name: str, stored: bool = False, function: bool = False) -> None:
        self.underscore(node, name)
        reserved = name in BUILTINS or name in ("jax", "jnp", "lax") or (name in self.functions and not function)
        if stored and reserved:
            raise self.refuse(node, f"{name} has a meaning already; choose another name")

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, _OPERATORS):
            return
        method = getattr(self, type(node).__name__, None)
        if method is None:
            word = _REFUSED.get(type(node).__name__, f"{type(node).__name__}")
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
        elif type(node.value).__name__ in _REFUSED:
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
        if isinstance(node.ctx, ast.Store) or node.id in self.scope or node.id in VALUE_TYPES:
            return
        if node.id in self.functions or node.id in BUILTINS:
            raise self.refuse(node, f"{node.id} can only be called, not passed or stored")
        exists = "only jnp, lax, jax.nn, a few builtins and your own names exist"
        remedy = "use jnp" if node.id in ("np", "numpy") else exists
        raise self.refuse(node, f"the name {node.id[:60]!r} is unknown here: {remedy}")

    def Attribute(self, node: ast.Attribute) -> None:
        self.underscore(node, node.attr)
        name = qualified(node)
        if name is not None:
            if name not in CONSTANTS and name not in DTYPES:
                called = name in FUNCTIONS
                reason = "can only be called" if called else "is not allowed: it is not in the list of functions"
                raise self.refuse(node, f"{dotted(node)} {reason}"[:200])
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
        before, outside = self.product, self.scope
        self.scope = self.scope | stored([g.target for g in node.generators])
        for generator in node.generators:
            if generator.is_async:
                raise self.refuse(node, "async comprehensions are not allowed")
            self.loop(node, generator.iter, generator.target)
            for condition in generator.ifs:
                self.visit(condition)
        self.visit(node.elt)
        self.product, self.scope = before, outside

    GeneratorExp = ListComp

    def loop(self, node: ast.AST, source: ast.expr, target: ast.expr) -> None:
        """Check the sequence of a loop: a range, a literal, or pairs of such. The others are bounded by `guards`."""
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
            free = node.func.id in self.functions or node.func.id == "dict"
            names = None if free else frozenset(("start", "key", "default"))
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
        name = qualified(node)
        if name is not None:
            if name not in FUNCTIONS and name not in DTYPES:
                spelling = dotted(node) or name
                for part in spelling.split("."):
                    self.underscore(node, part)
                raise self.refuse(node, f"{spelling[:100]} is not allowed: it is not in the list of functions")
            return
        if node.attr not in METHODS and node.attr not in UPDATES:
            if dotted(node) is not None:
                self.visit(root(node))
            raise self.refuse(node, self.no_attribute(node.attr))
        self.visit(node.value)


# --- the syntax tree, and what can be read off it without running it --------------------------------------------------


def parse(source: str) -> ast.Module:
    """The syntax tree of a text. **Raises:** `SandboxError` for a text that has none, naming its line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source, FILE, type_comments=False)
    except SyntaxError as error:
        line = error.lineno if error.lineno and error.lineno > 0 else _line_at(source, source.find("\0"))
        raise SandboxError(f"it is not Python: {error.msg}", line, source) from None
    except (ValueError, OverflowError) as error:
        index = error.start if isinstance(error, UnicodeEncodeError) else source.find("\0")
        raise SandboxError(f"it is not Python: {error}", _line_at(source, index), source) from None
    except (RecursionError, MemoryError):
        raise SandboxError("its expressions are nested too deeply to be parsed", _deep(source), source) from None


def _line_at(source: str, index: int) -> int | None:
    """The line of a character; None for a negative index."""
    return len(lines_of(source[:index])) if index >= 0 else None


def _deep(source: str) -> int:
    """The first line up to which a text is nested too deeply to be parsed, by bisection: adding lines does not make a
    text less deep."""
    lines = lines_of(source)
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse("\n".join(lines[:middle]), FILE)
        except (RecursionError, MemoryError):
            high = middle
            continue
        except (SyntaxError, ValueError, OverflowError):  # it is cut in the middle
            pass
        low = middle
    return high


def check_size(tree: ast.Module, source: str, limits: Limits) -> None:
    """Without recursion, which a deep tree would exhaust."""
    count, level = 0, [tree]
    for _ in range(limits.depth + 1):
        count += len(level)
        if count > limits.nodes:
            raise SandboxError(f"the program has more than {limits.nodes:,} syntax nodes; make it shorter")
        level = [child for node in level for child in ast.iter_child_nodes(node)]  # type: ignore[misc]
        if not level:
            return
    line = next((node.lineno for node in level if hasattr(node, "lineno")), None)
    raise SandboxError(f"expressions and blocks are nested more than {limits.depth} levels deep", line, source)


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute chain whose root is a name; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def qualified(node: ast.expr) -> str | None:
    """The name in `tables` of what an attribute chain names, such as `jnp.sum`; None if its root is another name."""
    name = dotted(node)
    if name is None or name.split(".")[0] not in ("jnp", "lax", "jax"):
        return None
    for root in sorted(ROOTS, key=len, reverse=True):
        if name.startswith(root + "."):
            return ROOTS[root] + name[len(root) :]
    return name


def root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def stored(nodes: list) -> set[str]:
    """Names that are assigned in statements or targets."""
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def rounds(node: ast.expr) -> int:
    """Rounds of a loop as far as literals tell; 1 where they do not."""
    if isinstance(node, ast.Tuple | ast.List):
        return len(node.elts)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return 1
    if node.func.id == "range":
        numbers = [_integer(argument) for argument in node.args]
        if not 1 <= len(numbers) <= 3 or None in numbers or (len(numbers) == 3 and numbers[2] == 0):
            return 1
        return _length(range(*numbers))  # type: ignore[arg-type]
    return min((rounds(argument) for argument in node.args), default=1)


def _length(numbers: range) -> int:
    """`len`, without its bound."""
    return max(0, -((numbers.start - numbers.stop) // numbers.step))


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    fine = isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if fine else None  # type: ignore[attr-defined]


# --- the rewritten program --------------------------------------------------------------------------------------------


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


def _guarded(node: Any, guard: str, *arguments: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(_name(f"guard.{guard}"), list(arguments), []), node)


def _pattern(target: ast.expr) -> Any:
    """The target of a loop as nested tuples; None for a name."""
    return tuple(map(_pattern, target.elts)) if isinstance(target, ast.Tuple | ast.List) else None


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
        visited = [self.visit(statement) for statement in statements]
        return [part for x in visited for part in (x if isinstance(x, list) else [x])]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        value, statements = self.visit(node.value), []
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return ast.copy_location(ast.Assign(node.targets, value), node)
        stored = ast.copy_location(ast.Assign([ast.Name("guard.value", ast.Store())], value), node)
        for target in node.targets:
            statement: ast.stmt
            if isinstance(target, ast.Subscript):
                item = (self.visit(target.value), target.slice, _name("guard.value"))
                statement = ast.Expr(_guarded(node, "store", *item))
            else:
                unpacked: ast.expr = _name("guard.value")
                if isinstance(target, ast.Tuple | ast.List):
                    unpacked = _guarded(node, "unpack", unpacked, ast.Constant(len(target.elts)))
                statement = ast.Assign([target], unpacked)
            statements.append(ast.copy_location(statement, node))
        return [stored, *statements]

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
        node.comparators = [_guarded(node, "operand", self.visit(operand)) for operand in node.comparators]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Call:
        return _guarded(node, "item", self.visit(node.value), self._index(node.slice))

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [part and self.visit(part) for part in (node.lower, node.upper, node.step)]
            return _guarded(node, "slice", *(part or ast.Constant(None) for part in parts))
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._index(part) for part in node.elts], ast.Load()), node)
        return self.visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = qualified(node)
        if name is not None:
            assert name in DTYPES or name in CONSTANTS
            return ast.copy_location(_name(f"value.{name}"), node)
        return _guarded(node, "attribute", self.visit(node.value), ast.Constant(node.attr))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(_name(f"value.{node.id}"), node) if node.id in VALUE_TYPES else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        arguments = [self.visit(argument) for argument in node.args]
        keywords = [ast.keyword(argument.arg, self.visit(argument.value)) for argument in node.keywords]
        function: ast.expr
        if isinstance(node.func, ast.Name):
            function = node.func if node.func.id in self.functions else _name(f"function.{node.func.id}")
        else:
            assert isinstance(node.func, ast.Attribute)
            name = qualified(node.func)
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
        return _guarded(node, "container", node)

    visit_List = visit_Tuple

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        node.values = [self.visit(value) for value in node.values]
        return _guarded(node, "container", node)

    def _looped(self, source: ast.expr, target: ast.expr) -> ast.Call:
        return _guarded(source, "loop", self.visit(source), ast.Constant(_pattern(target)))

    def visit_For(self, node: ast.For) -> ast.For:
        node.iter = self._looped(node.iter, node.target)
        node.body = self._body(node.body)
        return node

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> ast.Call:
        for generator in node.generators:
            generator.iter = self._looped(generator.iter, generator.target)
            generator.ifs = [self.visit(condition) for condition in generator.ifs]
        listed = ast.copy_location(ast.ListComp(self.visit(node.elt), node.generators), node)
        return _guarded(node, "container", listed)

    visit_GeneratorExp = visit_ListComp
