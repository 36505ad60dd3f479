"""The scripted adviser of ProPS: a local search that reads a prompt and replies in its format. No language model."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmrl_jax.chat import Message, ScriptedAdviser
from llmrl_jax.systems.props.compat.legacy import find_matrices


_FLOAT = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?"
_PARAM = re.compile(rf"params\[(\d+)\]:[ \t]*({_FLOAT})?", re.IGNORECASE)
_VALUE = re.compile(rf"f\(params\):\s*({_FLOAT})", re.IGNORECASE)
_BOX = re.compile(rf"(?:params\[i\]|range)[^\n\[]*\[\s*({_FLOAT}),\s*({_FLOAT})\s*\]", re.IGNORECASE)
_ACTIONS = re.compile(r"one of the integers (\d+(?:, \d+)*)|(?:from|values:?) \[(\d+(?:, \d+)*)\]", re.IGNORECASE)
_INTEGER = re.compile(r"params\[i\] is an integer", re.IGNORECASE)
_DECIMALS = re.compile(r"at most (\d+) decimal", re.IGNORECASE)
_STEP = re.compile(rf"step.size(?: of)?(?: about)?:?\s*({_FLOAT})", re.IGNORECASE)
_COUNT = re.compile(r"with (\d+) lines")
_OPTIMUM = re.compile(rf"(?:largest|optimum|maximum)[^\n]*?(?:about|around)\s*({_FLOAT})", re.IGNORECASE)
_CLOCK = re.compile(r"(?:iteration|generation):?\s*(\d+)\s*(?:of|out of|/)\s*(\d+)", re.IGNORECASE)
_REWARD = re.compile(rf"reward\b[^\n\d+-]*({_FLOAT})", re.IGNORECASE)

TRIES = 200
"""Maximum number of draws for a new candidate; then it is drawn from the whole box, new or not."""


@dataclass(frozen=True)
class _Task:
    """The contents of a prompt."""

    size: int
    low: float
    high: float
    decimals: int
    actions: tuple[int, ...]
    """Valid values of the parameters of a table; empty for real parameters."""
    step: float
    optimum: float | None
    """The largest return, if the prompt states it."""
    progress: float
    """The fraction of completed iterations."""
    tried: tuple[tuple[tuple[float, ...], float], ...]
    """Parameters and their return."""


class PolicyAdviser(ScriptedAdviser):
    """Steps around the best rows of the history, combines them, and sometimes explores elsewhere.

    It uses only the prompt: the rows, the box or the actions, the decimals, the step size, the number of proposals, and
    the iteration. It reads our prompts of ProPS, ProPS+, EvoLLM and the legacy protocol, and templates with the same
    wording.
    """

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        prompts = [message.content for message in messages if message.role == "user"]
        if any(_PARAM.search(prompt) for prompt in prompts):
            return self._assignments(prompts[0], rng)
        return self._matrix(prompts, _actions("\n".join(message.content for message in messages)), rng)

    def _assignments(self, prompt: str, rng: random.Random) -> str:
        task = _read(prompt)
        count = _COUNT.search(prompt)
        tried = {params for params, _ in task.tried}
        lines = []
        for _ in range(int(count[1]) if count else 1):
            params, method = _candidate(task, tried, rng)
            tried.add(params)
            lines.append("; ".join(f"params[{i}]: {_text(v)}" for i, v in enumerate(params)))
        return "\n".join([*lines, "This is a scripted local search, " + method + "."])

    def _matrix(self, prompts: Sequence[str], actions: tuple[int, ...], rng: random.Random) -> str:
        rows = []
        for prompt in prompts:
            blocks, reward = find_matrices(prompt), _REWARD.search(prompt)
            if blocks and reward:
                rows.append(([[float(cell) for cell in line] for line in blocks[0]], float(reward[1])))
        if not rows:
            return "There is neither a history nor a matrix in this prompt."
        width = len(rows[-1][0][0])
        same_shape = [(m, r) for m, r in rows if (len(m), len(m[0])) == (len(rows[-1][0]), width)]
        tried = tuple((tuple(v for line in m for v in line), r) for m, r in same_shape)
        size = len(tried[-1][0])
        reach = max(6.0, *(abs(v) for params, _ in tried for v in params))
        task = _Task(size, -reach, reach, 2, actions, 0.5, None, 0.5, tried)
        params, method = _candidate(task, {params for params, _ in tried}, rng)
        lines = [", ".join(map(_text, params[start : start + width])) for start in range(0, size, width)]
        return "\n".join([*lines, "This is a scripted local search, " + method + "."])


def _actions(prompt: str) -> tuple[int, ...]:
    """Valid values of the parameters of a table; empty for real parameters."""
    match = _ACTIONS.search(prompt)
    return tuple(int(a) for a in (match[1] or match[2]).split(",")) if match else ()


def _text(value: float) -> str:
    return f"{value + 0.0:.10g}"


def _read(prompt: str) -> _Task:
    tried = []
    for line in prompt.splitlines():
        value = _VALUE.search(line)
        if value:
            params = tuple(float(text) for _, text in _PARAM.findall(line) if text)
            tried.append((params, float(value[1])))
    size = 1 + max(int(index) for index, _ in _PARAM.findall(prompt))
    rows = tuple((params, value) for params, value in tried if len(params) == size)
    box, clock = _BOX.search(prompt), _CLOCK.search(prompt)
    low, high = (float(box[1]), float(box[2])) if box else (-6.0, 6.0)
    decimals = _DECIMALS.search(prompt)
    step, optimum = _STEP.search(prompt), _OPTIMUM.search(prompt)
    return _Task(
        size=size,
        low=low,
        high=high,
        decimals=0 if _INTEGER.search(prompt) else int(decimals[1]) if decimals else 1,
        actions=_actions(prompt),
        step=float(step[1]) if step else (high - low) / 12,
        optimum=float(optimum[1]) if optimum else None,
        progress=int(clock[1]) / int(clock[2]) if clock else 0.5,
        tried=rows,
    )


def _candidate(task: _Task, tried: set[tuple[float, ...]], rng: random.Random) -> tuple[tuple[float, ...], str]:
    """A policy that was not evaluated yet, and how it was generated."""
    for _ in range(TRIES):
        params, method = _move(task, rng)
        if params not in tried:
            return params, method
    return _anywhere(task, rng), "a draw from the whole box, since all near draws were tried"


def _anywhere(task: _Task, rng: random.Random) -> tuple[float, ...]:
    if task.actions:
        return tuple(float(rng.choice(task.actions)) for _ in range(task.size))
    return tuple(_fit(task, rng.uniform(task.low, task.high)) for _ in range(task.size))


def _fit(task: _Task, value: float) -> float:
    return round(min(max(value, task.low), task.high), task.decimals) + 0.0


def _move(task: _Task, rng: random.Random) -> tuple[tuple[float, ...], str]:
    ranked = sorted(enumerate(task.tried), key=lambda pair: (-pair[1][1], -pair[0]))
    best = [params for _, (params, _) in ranked[:6]]
    flat = not ranked or ranked[0][1][1] == ranked[-1][1][1]
    if flat or rng.random() < _restlessness(task, ranked[0][1][1]):
        return _look_elsewhere(task, best, rng)
    parent = best[min(int(rng.expovariate(1.2)), len(best) - 1)]
    partner = rng.choice(best)
    if task.actions:
        return _change_actions(task, parent, partner, rng)
    if partner != parent and rng.random() < 0.3:
        reach = rng.uniform(-0.5, 1.0)
        moved = tuple(_fit(task, p + reach * (p - o)) for p, o in zip(parent, partner))
        return moved, "a step along the line between two of the best rows"
    scale = task.step * 2 ** rng.randint(-2, 2)
    chosen = set(rng.sample(range(task.size), min(task.size, 1 + int(rng.expovariate(0.7)))))
    moved = tuple(_fit(task, p + rng.gauss(0, scale)) if i in chosen else p for i, p in enumerate(parent))
    return moved, f"a step of {len(chosen)} parameters from one of the best rows"


def _look_elsewhere(
    task: _Task, best: Sequence[tuple[float, ...]], rng: random.Random
) -> tuple[tuple[float, ...], str]:
    """A draw from the whole box; or one of the best rows, or the middle of the box, with one or two parameters redrawn,
    often to a bound: a linear policy with few weights is a simple rule."""
    draw = rng.random()
    if not best or task.actions or draw < 0.2:
        return _anywhere(task, rng), "a draw from the whole box"
    middle = _fit(task, (task.low + task.high) / 2)
    moved = list(rng.choice(best[:3])) if draw < 0.5 else [middle] * task.size
    chosen = rng.sample(range(task.size), min(task.size, rng.randint(1, 2)))
    for i in chosen:
        bound = rng.choice((task.low, task.high))
        moved[i] = _fit(task, bound if rng.random() < 0.4 else rng.uniform(task.low, task.high))
    source = "one of the best rows" if draw < 0.5 else "the middle of the box"
    return tuple(moved), f"a new draw of {len(chosen)} parameters of {source}"


def _restlessness(task: _Task, best: float) -> float:
    """The probability of a draw from the whole box: a half if the best row misses the stated optimum by more than half
    of it; else small and decreasing."""
    off_target = task.optimum is not None and best < task.optimum - abs(task.optimum) / 2
    return 0.5 if off_target else 0.2 * (1 - task.progress)


def _change_actions(
    task: _Task, parent: Sequence[float], partner: Sequence[float], rng: random.Random
) -> tuple[tuple[float, ...], str]:
    if partner != parent and rng.random() < 0.4:
        mixed = tuple(o if rng.random() < 0.5 else p for p, o in zip(parent, partner))
        return mixed, "a mixture of two of the best rows"
    chosen = set(rng.sample(range(task.size), min(task.size, 1 + int(rng.expovariate(0.9)))))
    moved = tuple(float(rng.choice(task.actions)) if i in chosen else p for i, p in enumerate(parent))
    return moved, f"a change of {len(chosen)} actions from one of the best rows"
