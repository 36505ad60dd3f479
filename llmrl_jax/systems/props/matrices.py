"""Parameters as a matrix in text, and back: the layout of the legacy protocol (props reference, section 3.5)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from llmrl_jax.chat import strip_thinking
from llmrl_jax.systems.props.history import Format
from llmrl_jax.systems.props.parser import NUMBER, Grammar, Problem, Reading, parse
from llmrl_jax.systems.props.policies import Policy


_LABEL = re.compile(r"[\s*#`]*(?:weights|bias|matrix|table)[\s*`]*:?[\s*`]*", re.IGNORECASE)
_CUT = re.compile(r"[\s,;|\[\](){}]+")


def matrix_shape(policy: Policy) -> tuple[int, int]:
    """Rows and columns of a policy's matrix: an action per column and an input per row, the bias last; one column if
    parameters have no such structure."""
    columns = 1 if policy.kind in ("table", "projection") else policy.act_size
    return policy.num_params // columns, columns


def render_matrix(policy: Policy, params: Sequence[float], form: Format | None = None) -> str:
    """The matrix, one line per row; for a policy with bias under `Weights:`, with the last row under `Bias:`."""
    rows, columns = matrix_shape(policy)
    texts = (form or Format()).texts(params)
    lines = [", ".join(texts[r * columns : (r + 1) * columns]) for r in range(rows)]
    if policy.kind in ("linear", "sigmoid"):
        lines = ["Weights:", *lines[:-1], "Bias:", lines[-1]]
    return "\n".join(lines)


def find_matrices(text: str) -> list[list[list[str]]]:
    """All blocks of lines that contain only numbers, as texts. A label between weights and bias does not end a block;
    any other line, or another width, does."""
    blocks: list[list[list[str]]] = []
    open_ = False
    for line in text.splitlines():
        if not line.strip() or _LABEL.fullmatch(line):
            continue
        cells = [cell for cell in _CUT.split(line.strip().strip("*`")) if cell]
        if not cells or not all(NUMBER.fullmatch(cell) for cell in cells):
            open_ = False
            continue
        if not open_ or len(blocks[-1][0]) != len(cells):
            blocks.append([])
        blocks[-1].append(cells)
        open_ = True
    return blocks


def parse_matrix(
    text: str, policy: Policy, grammar: Grammar, seen: Collection[tuple[str, ...]] = (), form: Format | None = None
) -> Reading:
    """Parse the matrix of a reply: the last one of the right size.

    **Arguments:** `grammar`, for its valid numbers; `seen` and `form`, as for `parse`.
    """
    rows, columns = matrix_shape(policy)
    blocks = find_matrices(strip_thinking(text))
    right = [block for block in blocks if (len(block), len(block[0])) == (rows, columns)]
    if not right:
        sizes = ", ".join(f"{len(block)}x{len(block[0])}" for block in blocks[-3:])
        one = f"its matrix is {sizes}" if blocks else "it has no matrix"
        held = f"its matrices are {sizes}" if len(blocks) > 1 else one
        return Reading((), (Problem("form", f"{held}, where {rows}x{columns} was asked for"),), (), text)
    cells = np.asarray(right[-1]).ravel().tolist()
    return parse("; ".join(f"params[{i}]: {cell}" for i, cell in enumerate(cells)), grammar, seen, form)
