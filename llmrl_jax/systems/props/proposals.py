"""Proposals of a language model: the strict grammar of a reply, and queries that are repeated with its errors.

Every attempt is recorded, and failures are handled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llmrl_jax.chat import ChatError, ChatModel, ChatReply, ChatRequest, ContextExceeded, Message, strip_thinking
from llmrl_jax.chat.protocol import outcomes_of
from llmrl_jax.core.checks import Checked, NonNegativeInt, PositiveInt
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format, Row, Trajectory


# --- the grammar of a reply -------------------------------------------------------------------------------------------


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
_SEPARATOR = re.compile(r"[\s,;]*")
REPAIR = (
    "Your reply could not be read: {error}\nAnswer the same request again, in the form that was asked for, "
    "and with nothing else."
)
"""The message after a reply that cannot be parsed."""
_PUBLISHED = re.compile(r"params\[(\d+)\]:\s*([+-]?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Problem:
    """Reason why a reply, or a proposal in it, was rejected."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class ParsedReply:
    """A parsed reply."""

    proposals: tuple[tuple[float, ...], ...]
    """Accepted proposals, in the reply's order."""
    problems: tuple[Problem, ...] = ()
    """Problems to report to the model; empty if all requested proposals were accepted."""
    notes: tuple[str, ...] = ()
    """Changes and omissions made according to the grammar's options."""
    explanation: str = ""
    """The lines that are not proposals."""


class InvalidReply(ValueError):
    """A reply that does not match the grammar; the message is for the model."""

    def __init__(self, parsed: ParsedReply):
        self.parsed = parsed
        messages = [problem.message for problem in parsed.problems]
        ending = f"; and {len(messages) - NAMED} more" if len(messages) > NAMED else ""
        super().__init__("; ".join(messages[:NAMED]) + ending)


@dataclass(frozen=True)
class Grammar(Checked):
    """The format of a reply: `proposals` groups of `params[i]: v`, each with every `i` below `num_params` once.

    Assignments are separated by commas, semicolons, white space or line ends; `=` is accepted for `:`. A line with
    anything other than assignments and a label is prose, unless it begins like an assignment. A group ends when it is
    complete, at prose, and when the next line sets one of its parameters again.
    """

    num_params: PositiveInt
    low: float
    """The box of every parameter, bounds included."""
    high: float
    decimals: NonNegativeInt
    """0: integers."""
    proposals: PositiveInt = 1
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
        super().__post_init__()
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; low must be at most high")

    @classmethod
    def for_policy(cls, policy: Policy, **options: Any) -> Grammar:
        """The grammar of a policy's parameters. A non-integer action is rejected, not rounded.

        **Arguments:** `policy`; `options`, other fields."""
        if policy.kind == "table":
            options = {"finer": "reject", **options}
        return cls(policy.num_params, policy.low, policy.high, policy.decimals, **options)


def parse(text: str, grammar: Grammar, evaluated: Collection[tuple[str, ...]] = ()) -> ParsedReply:
    """Parse a reply.

    **Arguments:** `text`; `grammar`; `evaluated`, the policies evaluated so far, as written by `Format.texts`.
    **Returns:** the parsed reply, including its problems; nothing is raised.
    """
    text = strip_thinking(text)
    if grammar.compat == "paper":
        return _published(text, grammar)
    form = Format()
    groups, prose = _groups(text, grammar.num_params)
    notes: list[str] = []
    complete = [group for group in groups if not group.problem]
    if grammar.proposals <= len(complete) < len(groups):
        notes.append(f"{len(groups) - len(complete)} lines that begin like a proposal were left out")
        groups = complete
    if len(groups) > grammar.proposals:
        notes.append(f"{len(groups)} proposals were made; the {grammar.take} {grammar.proposals} were taken")
        groups = groups[: grammar.proposals] if grammar.take == "first" else groups[-grammar.proposals :]
    proposals: list[tuple[float, ...]] = []
    problems: list[Problem] = []
    used = set(evaluated)
    for number, group in enumerate(groups, 1):
        name = f"proposal {number}: " if grammar.proposals > 1 else ""
        params, wrong, changes = _check(group, grammar)
        if not wrong and grammar.repeated == "reject" and form.texts(params) in used:
            wrong = [Problem("repeated", f"{form.params(params)} was proposed before; propose something else")]
        notes += [name + note for note in changes]
        problems += [Problem(problem.reason, name + problem.message) for problem in wrong]
        if not wrong:
            proposals.append(params)
            used.add(form.texts(params))
    if not groups:
        ending = f"params[{grammar.num_params - 1}]: number"
        line = f"params[0]: number; ...; {ending}" if grammar.num_params > 1 else ending
        problems.append(Problem("none", f'the reply has no line of the form "{line}"'))
    elif len(groups) < grammar.proposals:
        problems.append(Problem("few", f"the reply has {len(groups)} proposals, not {grammar.proposals}"))
    return ParsedReply(tuple(proposals), tuple(problems), tuple(notes), "\n".join(prose).strip())


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


def _line(line: str, position: int) -> tuple[list[tuple[int, str]], Problem | None]:
    """The assignments of a line, up to the first text that is not one."""
    pairs: list[tuple[int, str]] = []
    while position < len(line):
        target = _TARGET.match(line, position)
        if not target:
            return pairs, Problem("form", f"{_quote(line[position:])} stands where only assignments may stand")
        number = NUMBER.match(line, target.end())
        if not number:
            text = _quote(re.split(r"[,;]", line[target.end() :], maxsplit=1)[0])
            return pairs, Problem("number", f"params[{target[1]}] is {text}, which is not a number")
        pairs.append((int(target[1]), number[0]))
        separator = _SEPARATOR.match(line, number.end())
        position = separator.end() if separator else number.end()
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
                requirement = f"at most {grammar.decimals} decimals" if grammar.decimals else "a whole number"
                problems.append(Problem("decimals", f"params[{index}] is {text}; it must be {requirement}"))
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
    significant = written.rstrip("0")
    return max(0, -int(exponent) - (len(written) - len(significant))) if significant else 0


def _published(text: str, grammar: Grammar) -> ParsedReply:
    """See `Grammar.compat`."""
    lines = text.split("\n")
    line = lines[0 if grammar.take == "first" else -1]
    values = tuple(float(value) for _, value in _PUBLISHED.findall(line))
    if len(values) != grammar.num_params:
        message = f"the {grammar.take} line holds {len(values)} parameters, not {grammar.num_params}"
        return ParsedReply((), (Problem("missing", message),), (), text)
    if huge := [i for i, value in enumerate(values) if not abs(value) <= LARGEST]:
        return ParsedReply((), (Problem("number", f"{_names(huge)} is not a finite number in float32"),), (), text)
    return ParsedReply((values,), (), (), "\n".join(lines[1:] if grammar.take == "first" else lines[:-1]).strip())


# --- queries ----------------------------------------------------------------------------------------------------------


OnFailure = Literal["skip", "repeat", "stop"]
"""Handling of an iteration in which no proposal could be parsed after all retries.

* `skip`: the iteration ends without an evaluation.
* `repeat`: the best policy so far is evaluated again (a `skip` if there is none); in the legacy protocol the last one.
* `stop`: `NoProposal` is raised.

Each is recorded.
"""

Repeat = Literal["best", "last"]
"""best: the policy with the highest return so far. last: the last evaluated one, as in the fine-tuning repository
(there silently)."""

Record = dict[str, Any]
"""JSON values: the queries, replies and parsed results of one `ask`."""


class NoProposal(RuntimeError):
    """The model's replies could not be parsed and the search stops; `record` contains them."""

    def __init__(self, message: str, record: Record):
        super().__init__(message)
        self.record = record


@dataclass(frozen=True)
class QuerySettings(Checked):
    """Settings of queries and retries."""

    temperature: float | None = 1.0
    """Sampling temperature; None: the server's default."""
    max_tokens: int = 2048
    """Maximum number of tokens of a reply."""
    retries: NonNegativeInt = 4
    """Number of retries, with the errors, after a reply that cannot be parsed (published: 5 attempts in total)."""
    on_failure: OnFailure = "skip"
    failures: NonNegativeInt = 10
    """More consecutive failed iterations than this always raise `NoProposal`."""

    def request(self, messages: Sequence[Message], key: jax.Array) -> ChatRequest:
        """A request whose seed is derived from a typed key, so that other runs get other samples even through a
        cache."""
        seed = int(jax.random.bits(key, dtype=jnp.uint32)) >> 1
        return ChatRequest(tuple(messages), temperature=self.temperature, max_tokens=self.max_tokens, seed=seed)

    def check_length(self, tokens: int) -> None:
        """**Raises** `ValueError` if `max_tokens` is below that many tokens."""
        if tokens > self.max_tokens:
            raise ValueError(
                f"a reply takes about {tokens} tokens and max_tokens is {self.max_tokens}, which cuts it off; raise it"
            )

    def give_up(
        self, model: str, best: Row | None, failures: int, record: Record
    ) -> tuple[list[tuple[float, ...]], Record]:
        """The candidates, if any, of an iteration without a proposal, and its record with the outcome.

        **Arguments:** `model`, its name; `best`, the row that `repeat` evaluates; `failures`, consecutive failed
        iterations before this one.
        **Raises:** `NoProposal`, see `on_failure` and `failures`.
        """
        if self.on_failure == "stop" or failures >= self.failures:
            before = f" and {failures} failed iterations before it" if failures else ""
            raise NoProposal(
                f"{model} gave no proposal that could be read in iteration {record['iteration']}, after {self.retries} "
                f"retries{before}; the record of this error holds its replies and the reasons",
                {**record, "outcome": "stopped", "proposals": []},
            )
        repeated = [best.params] if self.on_failure == "repeat" and best is not None else []
        outcome = "repeated" if repeated else "skipped"
        return repeated, {**record, "outcome": outcome, "proposals": [list(p) for p in repeated]}


@dataclass(frozen=True)
class Answer:
    """The result of one request and its retries."""

    parsed: ParsedReply
    """The last reply if it has no problems; else the reply with the most accepted proposals."""
    messages: tuple[Message, ...]
    """The messages from the request's last one on, including the last reply without its thoughts."""
    record: Record


def ask_until_parsed(
    model: ChatModel,
    requests: Sequence[ChatRequest],
    parses: Sequence[Callable[[str], ParsedReply]],
    retries: int,
    repair: Callable[[ParsedReply], str] | None = None,
) -> list[Answer]:
    """Query, parse, and query again with the errors if there are problems.

    **Arguments:** `requests`, sent as one batch; `parses`, one parser per request; `retries`; `repair`, the message
    after a reply with problems (None: the problems, and the request to try again). A retry that no longer fits into the
    model's context is not sent: the retries end, which is recorded (`retries_ended`).
    **Raises:** `ChatError` if a request gets no reply.
    """
    repair = repair or (lambda parsed: REPAIR.format(error=InvalidReply(parsed)))
    parsed_replies: list[list[ParsedReply]] = [[] for _ in requests]
    attempts: list[list[Record]] = [[] for _ in requests]
    ended: dict[int, ChatRequest] = {}
    overflows: dict[int, Record] = {}
    waiting = dict(enumerate(requests))
    for _ in range(retries + 1):
        answered = waiting
        waiting = {}
        for i, outcome in zip(answered, outcomes_of(model, list(answered.values()))):
            if isinstance(outcome, ContextExceeded) and parsed_replies[i]:
                overflows[i] = {"retries_ended": str(outcome)}
                continue
            if isinstance(outcome, ChatError):
                raise outcome
            parsed = parses[i](outcome.text)
            parsed_replies[i].append(parsed)
            attempts[i].append(_attempt(outcome, parsed))
            ended[i] = answered[i].with_messages(Message("assistant", strip_thinking(outcome.text) or "(no text)"))
            if parsed.problems:
                waiting[i] = ended[i].with_messages(Message("user", repair(parsed)))
        if not waiting:
            break
    answers = []
    for i, request in enumerate(requests):
        last = parsed_replies[i][-1]
        best = last if not last.problems else max(parsed_replies[i], key=lambda parsed: len(parsed.proposals))
        dialogue = ended[i].messages[len(request.messages) - 1 :]
        prompt = [asdict(message) for message in request.messages]
        record = {"prompt": prompt, "seed": request.seed, "attempts": attempts[i], **overflows.get(i, {})}
        answers.append(Answer(best, dialogue, record))
    return answers


def _attempt(reply: ChatReply, parsed: ParsedReply) -> Record:
    return {
        "reply": reply.text,
        "model": reply.model,
        "finish_reason": reply.choices[0].finish_reason,
        "proposals": [list(params) for params in parsed.proposals],
        "problems": [asdict(problem) for problem in parsed.problems],
        "notes": list(parsed.notes),
        "usage": None if reply.usage is None else asdict(reply.usage),
        "seconds": reply.seconds,
        "cached": bool(reply.cached),
    }


def as_candidates(proposals: Sequence[Sequence[float]], num_params: int) -> Float[Array, "P n"]:
    """Proposals as float32 `[P, n]`; `P` may be 0."""
    return jnp.asarray(np.asarray(proposals, np.float32).reshape(len(proposals), num_params))


def rows_of(
    params: Float[Array, "P n"],
    values: Float[Array, " P"],
    num_params: int,
    trajectories: Sequence[Trajectory | None] | None = None,
) -> tuple[Row, ...]:
    """The arguments of `tell`, as rows.

    **Raises:** `ValueError` for another number of parameters, a return that is not finite, or a list of trajectories of
    another length.
    """
    table, returns = np.asarray(params, np.float32), np.asarray(values, np.float32)
    if table.shape[-1] != num_params or returns.shape != table.shape[:1]:
        raise ValueError(
            f"tell got params of shape {table.shape} and values of shape {returns.shape}; expected [P, {num_params}] "
            "and [P]"
        )
    if not np.isfinite(returns).all() or not np.isfinite(table).all():
        raise ValueError(
            f"tell was given numbers that are not finite: the values are {returns.tolist()}; look at the evaluation"
        )
    if trajectories is None:
        trajectories = [None] * len(returns)
    if len(trajectories) != len(returns):
        raise ValueError(
            f"{len(trajectories)} trajectories were given for {len(returns)} policies; give one, or None, for each"
        )
    return tuple(Row(tuple(map(float, p)), float(v), episode) for p, v, episode in zip(table, returns, trajectories))


def best_of(rows: Sequence[Row]) -> Row | None:
    """The row with the highest return, the latest of them; None without rows."""
    return max(enumerate(rows), key=lambda pair: (pair[1].value, pair[0]))[1] if rows else None
