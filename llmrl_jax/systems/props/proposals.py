"""Queries for proposals: errors are reported to the model, every attempt is recorded, and failures are handled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llmrl_jax.advice.structured import REPAIR
from llmrl_jax.chat import ChatError, ChatModel, ChatReply, ChatRequest, ContextExceeded, Message, strip_thinking
from llmrl_jax.chat.protocol import outcomes_of
from llmrl_jax.core.checks import fields_at_least
from llmrl_jax.systems.props.history import Row, Trajectory
from llmrl_jax.systems.props.parser import Reading, UnreadProposals


OnFailure = Literal["skip", "repeat", "stop"]
"""Handling of an iteration in which no proposal could be parsed after all retries.

* `skip`: the iteration ends without an evaluation.
* `repeat`: the best policy so far is evaluated again (a `skip` if there is none); in the legacy protocol the last one.
* `stop`: `NoProposal` is raised.

Each is recorded.
"""

Record = dict[str, Any]
"""JSON values: the queries, replies and parsed results of one `ask`."""


class NoProposal(RuntimeError):
    """The model's replies could not be parsed and the search stops; `record` contains them."""

    def __init__(self, message: str, record: Record):
        super().__init__(message)
        self.record = record


@dataclass(frozen=True)
class Asking:
    """Settings of queries and retries."""

    temperature: float | None = 1.0
    """Sampling temperature; None: the server's default."""
    max_tokens: int = 2048
    """Maximum number of tokens of a reply."""
    retries: int = 4
    """Number of retries, with the errors, after a reply that cannot be parsed (published: 5 attempts in total)."""
    on_failure: OnFailure = "skip"
    failures: int = 10
    """More consecutive failed iterations than this always raise `NoProposal`."""

    def __post_init__(self):
        fields_at_least(self, 0, "retries", "failures")
        if self.on_failure not in get_args(OnFailure):
            raise ValueError(f"on_failure is {self.on_failure!r}; it is one of {', '.join(get_args(OnFailure))}")

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
        self, who: str, best: Row | None, failures: int, record: Record
    ) -> tuple[list[tuple[float, ...]], Record]:
        """The candidates, if any, of an iteration without a proposal, and its record with the outcome.

        **Arguments:** `who`, the model; `best`, the row that `repeat` evaluates; `failures`, consecutive failed
        iterations before this one.
        **Raises:** `NoProposal`, see `on_failure` and `failures`.
        """
        if self.on_failure == "stop" or failures >= self.failures:
            before = f" and {failures} failed iterations before it" if failures else ""
            raise NoProposal(
                f"{who} gave no proposal that could be read in iteration {record['iteration']}, after {self.retries} "
                f"retries{before}; the record of this error holds its replies and the reasons",
                {**record, "outcome": "stopped", "proposals": []},
            )
        repeated = [best.params] if self.on_failure == "repeat" and best is not None else []
        outcome = "repeated" if repeated else "skipped"
        return repeated, {**record, "outcome": outcome, "proposals": [list(p) for p in repeated]}


@dataclass(frozen=True)
class Answer:
    """The result of one request and its retries."""

    reading: Reading
    """The last reply if it has no problems; else the reply with the most accepted proposals."""
    messages: tuple[Message, ...]
    """The messages from the request's last one on, including the last reply without its thoughts."""
    record: Record


def ask_until_read(
    model: ChatModel,
    requests: Sequence[ChatRequest],
    parses: Sequence[Callable[[str], Reading]],
    retries: int,
    again: Callable[[Reading], str] | None = None,
) -> list[Answer]:
    """Query, parse, and query again with the errors if there are problems.

    **Arguments:** `requests`, sent as one batch; `parses`, one parser per request; `retries`; `again`, the message
    after a reply with problems (None: the problems, and the request to try again). A retry that no longer fits into the
    model's context is not sent: the retries end, which is recorded (`retries_ended`).
    **Raises:** `ChatError` if a request gets no reply.
    """
    again = again or (lambda reading: REPAIR.format(error=UnreadProposals(reading)))
    readings: list[list[Reading]] = [[] for _ in requests]
    attempts: list[list[Record]] = [[] for _ in requests]
    ended: dict[int, ChatRequest] = {}
    overflows: dict[int, Record] = {}
    waiting = dict(enumerate(requests))
    for _ in range(retries + 1):
        answered = waiting
        waiting = {}
        for i, outcome in zip(answered, outcomes_of(model, list(answered.values()))):
            if isinstance(outcome, ContextExceeded) and readings[i]:
                overflows[i] = {"retries_ended": str(outcome)}
                continue
            if isinstance(outcome, ChatError):
                raise outcome
            reading = parses[i](outcome.text)
            readings[i].append(reading)
            attempts[i].append(_attempt(outcome, reading))
            ended[i] = answered[i].then(Message("assistant", strip_thinking(outcome.text) or "(no text)"))
            if reading.problems:
                waiting[i] = ended[i].then(Message("user", again(reading)))
        if not waiting:
            break
    answers = []
    for i, request in enumerate(requests):
        last = readings[i][-1]
        best = last if not last.problems else max(readings[i], key=lambda reading: len(reading.proposals))
        said = ended[i].messages[len(request.messages) - 1 :]
        prompt = [asdict(message) for message in request.messages]
        record = {"prompt": prompt, "seed": request.seed, "attempts": attempts[i], **overflows.get(i, {})}
        answers.append(Answer(best, said, record))
    return answers


def _attempt(reply: ChatReply, reading: Reading) -> Record:
    return {
        "reply": reply.text,
        "model": reply.model,
        "finish_reason": reply.choices[0].finish_reason,
        "proposals": [list(params) for params in reading.proposals],
        "problems": [asdict(problem) for problem in reading.problems],
        "notes": list(reading.notes),
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
