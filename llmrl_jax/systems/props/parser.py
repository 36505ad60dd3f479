"""Parsing of proposals in a reply: a strict grammar, and error messages for the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, get_args

import numpy as np

from llmrl_jax.chat import strip_thinking
from llmrl_jax.systems.props.history import Format
from llmrl_jax.systems.props.policies import Policy


Reason = Literal["none", "few", "form", "number", "index", "twice", "missing", "range", "decimals", "repeated"]
"""none: no proposal. few: fewer than requested. form: other text on the line. number: not a finite number. index: no
such parameter. twice: a parameter set twice. missing: a parameter not set. range: outside the box. decimals: too many.
repeated: evaluated before, or proposed twice."""

LARGEST = float(np.finfo(np.float32).max)
"""Largest parameter: policies are evaluated in float32."""
NAMED = 5
"""Maximum number of parameters, or problems, listed in one sentence."""

_LABEL = re.compile(r"[\s>#*`-]*(?:\d{1,4}[.)][\s*`]*)?(?:[A-Za-z][A-Za-z ]{0,40}\d{0,4}\s*:[\s*`]*)?")
_TARGET = re.compile(r"params\s*\[\s*(-?\d{1,9})\s*\]\s*[:=]\s*", re.IGNORECASE)
NUMBER = re.compile(r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,9})?|nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_BETWEEN = re.compile(r"[\s,;]*")
_PUBLISHED = re.compile(r"params\[(\d+)\]:\s*([+-]?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Problem:
    """Why a reply, or a proposal in it, was rejected."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Reading:
    """A parsed reply."""

    proposals: tuple[tuple[float, ...], ...]
    """Accepted proposals, in the reply's order."""
    problems: tuple[Problem, ...] = ()
    """Problems to report to the model; empty if all requested proposals were accepted."""
    notes: tuple[str, ...] = ()
    """Changes and omissions made according to the grammar's options."""
    explanation: str = ""
    """The lines that are not proposals."""


class UnreadProposals(ValueError):
    """A reply that does not match the grammar; the message is for the model."""

    def __init__(self, reading: Reading):
        self.reading = reading
        messages = [problem.message for problem in reading.problems]
        more = f"; and {len(messages) - NAMED} more" if len(messages) > NAMED else ""
        super().__init__("; ".join(messages[:NAMED]) + more)


@dataclass(frozen=True)
class Grammar:
    """The format of a reply: `proposals` groups of `params[i]: v`, each with every `i` below `num_params` once.

    Assignments are separated by commas, semicolons, white space or line ends; `=` is accepted for `:`. A line with
    anything other than assignments and a label is prose, unless it begins like an assignment. A group ends when it is
    complete, at prose, and when the next line sets one of its parameters again.
    """

    num_params: int
    low: float
    """The box of every parameter, bounds included."""
    high: float
    decimals: int
    """0: integers."""
    proposals: int = 1
    """Number of requested proposals."""
    take: Literal["first", "last"] = "first"
    """Which proposals to use if a reply contains more."""
    beyond: Literal["reject", "clip", "keep"] = "reject"
    """Handling of a parameter outside the box."""
    finer: Literal["reject", "round", "keep"] = "round"
    """Handling of a number with too many decimals."""
    repeated: Literal["reject", "keep"] = "reject"
    """Handling of a policy that was evaluated before, or occurs twice in the reply."""
    compat: Literal["", "paper"] = ""
    """`paper`: the released parser. It reads one line of the reply (`take`), takes numbers in order of appearance,
    ignores indices, and checks only their count; it does not use `low` to `repeated` and `proposals`."""

    def __post_init__(self):
        if self.num_params < 1 or self.proposals < 1 or self.decimals < 0 or not self.low <= self.high:
            raise ValueError(
                f"a grammar of {self.proposals} proposals of {self.num_params} parameters in [{self.low}, {self.high}] "
                f"with {self.decimals} decimals cannot be"
            )
        for name, hint in _CHOICES.items():
            if getattr(self, name) not in get_args(hint):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(get_args(hint))}")

    @classmethod
    def of(cls, policy: Policy, **options: Any) -> Grammar:
        """The grammar of a policy's parameters. A non-integer action is rejected, not rounded.

        **Arguments:** `policy`; `options`, other fields."""
        if policy.kind == "table":
            options = {"finer": "reject", **options}
        return cls(policy.num_params, policy.low, policy.high, policy.decimals, **options)


_CHOICES = {
    "take": Literal["first", "last"],
    "beyond": Literal["reject", "clip", "keep"],
    "finer": Literal["reject", "round", "keep"],
    "repeated": Literal["reject", "keep"],
    "compat": Literal["", "paper"],
}


def parse(text: str, grammar: Grammar, seen: Collection[tuple[str, ...]] = (), form: Format | None = None) -> Reading:
    """Parse a reply.

    **Arguments:** `text`; `grammar`; `seen`, the policies evaluated so far, as written by `Format.texts`; `form`, their
    format (None: as published, without a grid).
    **Returns:** the parsed reply, including its problems; nothing is raised, see `read`.
    """
    text = strip_thinking(text)
    if grammar.compat == "paper":
        return _published(text, grammar)
    form = form or Format()
    groups, prose = _groups(text, grammar.num_params)
    notes: list[str] = []
    whole = [group for group in groups if not group.problem]
    if len(whole) >= grammar.proposals and len(whole) < len(groups):
        notes.append(f"{len(groups) - len(whole)} lines that begin like a proposal were left out")
        groups = whole
    if len(groups) > grammar.proposals:
        notes.append(f"{len(groups)} proposals were made; the {grammar.take} {grammar.proposals} were taken")
        groups = groups[: grammar.proposals] if grammar.take == "first" else groups[-grammar.proposals :]
    proposals: list[tuple[float, ...]] = []
    problems: list[Problem] = []
    taken = set(seen)
    for number, group in enumerate(groups, 1):
        name = f"proposal {number}: " if grammar.proposals > 1 else ""
        params, wrong, said = _check(group, grammar)
        if not wrong and grammar.repeated == "reject" and form.texts(params) in taken:
            wrong = [Problem("repeated", f"{form.params(params)} was proposed before; propose something else")]
        notes += [name + note for note in said]
        problems += [Problem(problem.reason, name + problem.message) for problem in wrong]
        if not wrong:
            proposals.append(params)
            taken.add(form.texts(params))
    if not groups:
        ending = f"params[{grammar.num_params - 1}]: number"
        wanted = f"params[0]: number; ...; {ending}" if grammar.num_params > 1 else ending
        problems.append(Problem("none", f'the reply has no line of the form "{wanted}"'))
    elif len(groups) < grammar.proposals:
        problems.append(Problem("few", f"the reply has {len(groups)} proposals, not {grammar.proposals}"))
    return Reading(tuple(proposals), tuple(problems), tuple(notes), "\n".join(prose).strip())


@dataclass
class _Group:
    """The assignments of one proposal, as text, and the problems of their lines."""

    pairs: list[tuple[int, str]]
    problem: Problem | None = None
    indices: set[int] = field(default_factory=set)


def _groups(text: str, num_params: int) -> tuple[list[_Group], list[str]]:
    """The proposals of a reply, valid or not, and its prose."""
    groups: list[_Group] = []
    prose: list[str] = []
    open_ = False
    for line in text.splitlines():
        label = _LABEL.match(line)
        start = label.end() if label else 0
        if not _TARGET.match(line, start):
            if line.strip(" \t`*-#"):
                prose.append(line)
                open_ = False
            continue
        pairs, problem = _line(line.rstrip(" \t`*."), start)
        indices = {index for index, _ in pairs}
        if open_ and not groups[-1].indices & indices:
            groups[-1].pairs += pairs
            groups[-1].problem = problem
        else:
            groups.append(_Group(pairs, problem))
        groups[-1].indices |= indices
        open_ = problem is None and len(groups[-1].indices) < num_params
    return groups, prose


def _line(line: str, at: int) -> tuple[list[tuple[int, str]], Problem | None]:
    """The assignments of a line, up to the first text that is not one."""
    pairs: list[tuple[int, str]] = []
    while at < len(line):
        target = _TARGET.match(line, at)
        if not target:
            return pairs, Problem("form", f"{_quote(line[at:])} stands where only assignments may stand")
        number = NUMBER.match(line, target.end())
        if not number:
            rest = _quote(re.split(r"[,;]", line[target.end() :], maxsplit=1)[0])
            return pairs, Problem("number", f"params[{target[1]}] is {rest}, which is not a number")
        pairs.append((int(target[1]), number[0]))
        between = _BETWEEN.match(line, number.end())
        at = between.end() if between else number.end()
    return pairs, None


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."


def _quote(text: str) -> str:
    return repr(_short(text.strip()))


def _names(indices: Sequence[int]) -> str:
    named = ", ".join(f"params[{i}]" for i in indices[:NAMED])
    return named + (f" and {len(indices) - NAMED} more" if len(indices) > NAMED else "")


def _check(group: _Group, grammar: Grammar) -> tuple[tuple[float, ...], list[Problem], list[str]]:
    """A group's parameters, its problems, and its changes."""
    if group.problem:
        return (), [group.problem], []
    problems: list[Problem] = []
    n = grammar.num_params
    indices = [index for index, _ in group.pairs]
    if wrong := sorted({i for i in indices if not 0 <= i < n}):
        problems.append(Problem("index", f"there is no {_names(wrong)}; the indices are 0 to {n - 1}"))
    if twice := sorted(i for i, times in Counter(indices).items() if times > 1):
        problems.append(Problem("twice", f"{_names(twice)} is set more than once"))
    if missing := sorted(set(range(n)) - set(indices)):
        problems.append(
            Problem("missing", f"{n - len(missing)} of {n} parameters are set; {_names(missing)} is missing")
        )
    values: dict[int, float] = {}
    notes: list[str] = []
    for index, text in group.pairs:
        value = float(text)
        if not abs(value) <= LARGEST:
            problems.append(
                Problem("number", f"params[{index}] is {_short(text)}, which is not a finite number in float32")
            )
            continue
        if _decimals(text) > grammar.decimals and grammar.finer != "keep":
            if grammar.finer == "reject":
                most = f"at most {grammar.decimals} decimals" if grammar.decimals else "a whole number"
                problems.append(Problem("decimals", f"params[{index}] is {text}; it must be {most}"))
                continue
            rounded = round(value, grammar.decimals)
            notes.append(f"params[{index}] was rounded from {text} to {rounded:g}")
            value = rounded
        if not grammar.low <= value <= grammar.high and grammar.beyond != "keep":
            if grammar.beyond == "reject":
                message = f"params[{index}] is {text}, outside of [{grammar.low:g}, {grammar.high:g}]"
                problems.append(Problem("range", message))
                continue
            notes.append(f"params[{index}] was clipped from {text} to [{grammar.low:g}, {grammar.high:g}]")
            value = min(max(value, grammar.low), grammar.high)
        values[index] = value
    return tuple(values[i] for i in range(n)) if not problems else (), problems, notes


def _decimals(text: str) -> int:
    """Number of decimals without trailing zeros."""
    _, digits, exponent = Decimal(text).as_tuple()
    written = "".join(map(str, digits))
    kept = written.rstrip("0")
    return max(0, -int(exponent) - (len(written) - len(kept))) if kept else 0


def _published(text: str, grammar: Grammar) -> Reading:
    """See `Grammar.compat`; props reference, section 3.3."""
    lines = text.split("\n")
    line = lines[0 if grammar.take == "first" else -1]
    values = tuple(float(value) for _, value in _PUBLISHED.findall(line))
    if len(values) != grammar.num_params:
        message = f"the {grammar.take} line holds {len(values)} parameters, not {grammar.num_params}"
        return Reading((), (Problem("missing", message),), (), text)
    if huge := [i for i, value in enumerate(values) if not abs(value) <= LARGEST]:
        return Reading((), (Problem("number", f"{_names(huge)} is not a finite number in float32"),), (), text)
    return Reading((values,), (), (), "\n".join(lines[1:] if grammar.take == "first" else lines[:-1]).strip())
