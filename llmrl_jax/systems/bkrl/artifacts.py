"""Knowledge that was written elsewhere, as input of `llmrl bkrl code`, `prefer` and `goals`: a program, answers about
pairs, goals.

The text of a program is converted as text, and passes the sandbox like that of a chat model: it is never run here.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.babyai.constants import COLORS, STATES, TYPES
from envs_jax.env import Environment
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import expanded
from llmrl_jax.data.transitions import DataError
from llmrl_jax.systems.bkrl.collect import EpisodeDataset
from llmrl_jax.systems.bkrl.prompts import TEXT, World


# --- programs ---------------------------------------------------------------------------------------------------------

MAIN, PUBLISHED = "compute_potential", "compute_reward"
LARGEST = 1 << 16
"""Characters of a file that is read as a program; the sandbox takes a quarter of them."""
_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
_CODES = {
    "OBJECT_TO_IDX": {name: i for i, name in enumerate(TYPES)},
    "COLOR_TO_IDX": {name: i for i, name in enumerate(COLORS)},
    "STATE_TO_IDX": {name: i for i, name in enumerate(STATES)},
}
"""The tables that published programs read."""
_ADAPTER = f"""

def {MAIN}(obs, past_obs, past_actions):
    now = jnp.transpose(obs["image"], (2, 0, 1))
    past = jnp.transpose(past_obs["image"], (0, 3, 1, 2))
    return {PUBLISHED}(now, past, past_actions)
"""


class _Converted(ast.NodeTransformer):
    """A published program in the terms of the sandbox: constants in place of tables, `jnp` in place of `np`."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        renamed = {"np": "jnp", "numpy": "jnp"}.get(node.id, node.id)
        return ast.copy_location(ast.Name(renamed, node.ctx), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        table = _CODES.get(node.value.id, {}) if isinstance(node.value, ast.Name) else {}
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(key, str) and key in table:
            return ast.copy_location(ast.Constant(table[key]), node)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        named = node.value.attr if isinstance(node.value, ast.Attribute) and node.attr == "value" else node.attr
        owner = node.value.value if named is not node.attr and isinstance(node.value, ast.Attribute) else node.value
        if isinstance(owner, ast.Name) and owner.id == "Actions" and named in _ACTIONS:
            return ast.copy_location(ast.Constant(_ACTIONS.index(named)), node)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None  # annotations of numpy and typing
        for argument in node.args.args:
            argument.annotation = None
        return self.generic_visit(node)


def program_source(path: str | Path, world: World) -> str:
    """The text of a program in a file, for the sandbox: that of `compute_potential` as it stands; a published
    `compute_reward(obs, past_obs, past_actions)` of BabyAI, whose `obs` is `[3, 7, 7]`, converted.

    **Raises:** `FileNotFoundError`, naming the nearest; `ValueError` for a file that is no text, or without such a
    function, or with the published one in another environment.
    """
    path = expanded(path)
    if not path.is_file():
        hint = nearest(path.name, [p.name for p in path.parent.glob("*.py")])
        raise FileNotFoundError(f"there is no program {path}{hint}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; a program has at most {LARGEST}")
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path} is not a program in Python: {error}") from None
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if MAIN in functions:
        return source
    if PUBLISHED not in functions:
        raise ValueError(f"{path} has no function {MAIN}(obs, past_obs, past_actions) at its top level")
    if world.family != "babyai":
        raise ValueError(f"{path} has the published {PUBLISHED}, which reads images of BabyAI: write {MAIN}")
    kept = [node for node in tree.body if not _is_documentation(node)]
    converted = _Converted().visit(ast.Module(kept, []))
    return ast.unparse(ast.fix_missing_locations(converted)) + _ADAPTER


def _is_documentation(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# --- answers about pairs ----------------------------------------------------------------------------------------------


def read_answers(path: str | Path, data: EpisodeDataset, window: int) -> tuple[np.ndarray, list[Any]]:
    """Answers about pairs of windows: JSON lines with `windows`, `[[episode, step], [episode, step]]`, and `second`, 1
    if the second is better, 0 if the first is, 0.5 for a tie; or `forward` and `backward`, as `llmrl bkrl prefer`
    writes them to `preferences.jsonl`.

    **Returns:** the episodes and first steps, int `[2, 2 * pairs]`; the answers, `(forward, backward, margin)` each.
    **Raises:** `FileNotFoundError`; `DataError` for a line of another form, or a window that the episodes lack.
    """
    path = expanded(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there are no preferences {path}{nearest(path.name, [p.name for p in path.parent.glob('*.jsonl')])}"
        )
    starts: list[Any] = []
    answers: list[Any] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        location = f"{path}: line {number}"
        try:
            row = json.loads(line)
            pair = np.asarray(row["windows"])
            if pair.dtype.kind != "i":
                raise TypeError("windows have numbers that are not whole")
            if "second" in row:
                forward, backward, margin = row["second"], 1 - row["second"], None
            else:
                forward, backward, margin = row["forward"], row["backward"], row.get("margin")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f'{location} is not {{"windows": [[episode, step], [episode, step]], "second": 1}} ({error})'
            ) from None
        if pair.shape != (2, 2) or any(x not in (0, 0.5, 1, None) for x in (forward, backward)):
            raise DataError(
                f"{location} has windows of the shape {list(pair.shape)}, or an answer that is not 0, 0.5 or 1"
            )
        for episode, step in pair.tolist():
            if not 0 <= episode < len(data) or not 0 <= step <= int(data.lengths[episode]) - window:
                raise DataError(
                    f"{location} is about step {step} of episode {episode}, where the data have no window of {window} "
                    "actions: give the --data and the --window of the answers"
                )
        starts += pair.tolist()
        answers.append((forward, backward, margin))
    if not answers:
        raise DataError(f"{path} has no line")
    return np.asarray(starts, int).T, answers


# --- goals ------------------------------------------------------------------------------------------------------------

TEXTS, LISTS, INDEX = "trajectory_text.json", "goal_library.json", "goal_index.json"
_STEP = re.compile(r"\s*(?:Step \d+: )?(.*?) ?You choose the action: ([^.]*)\.", re.DOTALL)


def read_goals(folder: str | Path, env: Environment, world: World) -> tuple[list[tuple[Any, Any]], list[list[str]]]:
    """The published files of goals: situations in words, and the goals proposed in each.

    **Returns:** for each situation the phrases of its observations and its verbs; for each its goals.
    **Raises:** `FileNotFoundError`; `DataError` for files of another form, or that say what the environment does not.
    """
    folder = expanded(folder)
    values = []
    for name in (TEXTS, LISTS, INDEX):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"there is no {name} in {folder}; it needs {TEXTS}, {LISTS} and {INDEX}")
        try:
            values.append(json.loads((folder / name).read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{folder / name} is not JSON: {error}") from None
    texts, lists, index = values
    if isinstance(lists, dict) and all(key.isdecimal() for key in lists):
        lists = [lists[key] for key in sorted(lists, key=int)]
    if not isinstance(texts, list) or not isinstance(lists, list) or not isinstance(index, dict):
        raise DataError(f"{folder}: {TEXTS} and {LISTS} are lists, and {INDEX} gives each goal its number")
    if len(texts) != len(lists):
        raise DataError(f"{folder}: {TEXTS} has {len(texts)} situations, and {LISTS} {len(lists)}")
    names = {number: goal for goal, number in index.items() if isinstance(number, int)}
    situations, goals = [], []
    for i, (text, numbers) in enumerate(zip(texts, lists)):
        listed = isinstance(numbers, list) and all(isinstance(n, int) and n in names for n in numbers)
        if not isinstance(text, str) or not listed:
            raise DataError(f"{folder}: situation {i} has no text, or goals that {INDEX} lacks")
        situations.append(_situation(f"{folder / TEXTS}: situation {i}", text, env, world))
        goals.append([names[number] for number in numbers])
    return situations, goals


def _situation(location: str, text: str, env: Environment, world: World) -> tuple[list[list[str]], list[str]]:
    """The phrases of the observations of a window in words, and its verbs: `prompts.caption` read back."""
    before, mark, last = text.strip().removeprefix("Agent history:").partition("Current observation:")
    if not mark:
        raise DataError(f"{location} has no current observation: {text[:200]!r}")
    steps = _STEP.findall(before)
    verbs = [verb.strip() for _, verb in steps]
    if unknown := [verb for verb in verbs if verb not in world.verbs]:
        raise DataError(f"{location} has the action {unknown[0]!r}{nearest(unknown[0], list(world.verbs))}")
    return [_phrases(location, part, env) for part in (*(step for step, _ in steps), last)], verbs


def _phrases(location: str, text: str, env: Environment) -> list[str]:
    """The phrases of an observation in words, with or without a full stop at its end."""
    book = env.captions[TEXT]
    for stripped in (text.strip(), text.strip().removesuffix(".")):
        with contextlib.suppress(ValueError):
            return book.parse(stripped)
    raise DataError(f"{location} says {text.strip()[:200]!r}, which {env.id} does not say")
