"""A program's text as a syntax tree, and what can be read off it without running it."""

from __future__ import annotations

import ast
import warnings

from llmrl_jax.advice.sandbox.errors import SandboxError, lines_of
from llmrl_jax.advice.sandbox.limits import Limits
from llmrl_jax.advice.sandbox.tables import ROOTS


LARGEST = 2**31 - 1
"""The largest integer of a program."""


def parse(source: str) -> ast.Module:
    """The syntax tree of a text. **Raises:** `SandboxError` for a text that has none, naming its line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source, "<program>", type_comments=False)
    except SyntaxError as error:
        line = error.lineno if error.lineno and error.lineno > 0 else _line_at(source, source.find("\0"))
        raise SandboxError(f"it is not Python: {error.msg}", line, source) from None
    except (ValueError, OverflowError) as error:
        place = error.start if isinstance(error, UnicodeEncodeError) else source.find("\0")
        raise SandboxError(f"it is not Python: {error}", _line_at(source, place), source) from None
    except (RecursionError, MemoryError):
        raise SandboxError("its expressions are nested too deeply to be parsed", _deep(source), source) from None


def _line_at(source: str, place: int) -> int | None:
    """The line of a character; None for a negative place."""
    return len(lines_of(source[:place])) if place >= 0 else None


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
                ast.parse("\n".join(lines[:middle]), "<program>")
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


def known(node: ast.expr) -> str | None:
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
    every = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in every if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def rounds(node: ast.expr) -> int:
    """Rounds of a loop as far as literals tell; 1 where they do not."""
    if isinstance(node, ast.Tuple | ast.List):
        return len(node.elts)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return 1
    if node.func.id == "range":
        numbers = [_integer(each) for each in node.args]
        if not 1 <= len(numbers) <= 3 or None in numbers or (len(numbers) == 3 and numbers[2] == 0):
            return 1
        return _length(range(*numbers))  # type: ignore[arg-type]
    return min((rounds(each) for each in node.args), default=1)


def _length(numbers: range) -> int:
    """`len`, without its bound."""
    return max(0, -((numbers.start - numbers.stop) // numbers.step))


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    fine = isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if fine else None  # type: ignore[attr-defined]
