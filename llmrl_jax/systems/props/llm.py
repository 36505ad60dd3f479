"""ProPS and ProPS+: the language model is the optimizer (props reference, sections 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import jax
from jaxtyping import Array, Float

from llmrl_jax.chat import ChatModel, Message
from llmrl_jax.core.checks import at_least
from llmrl_jax.systems.props.history import Format, HistoryView, Row, Trajectory, estimate_tokens
from llmrl_jax.systems.props.parser import Grammar, parse
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import ProposalPrompt
from llmrl_jax.systems.props.proposals import Asking, Record, as_candidates, ask_until_read, best_of, rows_of


Repeat = Literal["best", "last"]
"""best: the policy with the highest return so far. last: the last evaluated one, as in the fine-tuning repository
(there silently)."""


@dataclass(frozen=True)
class HostState:
    """State of an optimizer that queries a model, determined by the key and the results passed to `tell`."""

    key: jax.Array
    rounds: int = 0
    """Number of calls of `tell`."""
    rows: tuple[Row, ...] = ()
    """All evaluated policies, in order."""
    failures: int = 0
    """Consecutive iterations without a proposal."""
    record: Record | None = None
    """Record of the last `ask`, for the run's log."""

    def iteration(self, warmup: int) -> int:
        """The next iteration, from 1; 0: the warm-up."""
        return self.rounds + (warmup == 0)


class HostOptimizer:
    """Base class of optimizers that query a model: the random warm-up, and the handling of results.

    `ask` and `tell` run on the host. `ask` returns `[P, n]` with `P` the number of proposals, which may be smaller than
    requested and is 0 after a `skip`; such a round is passed to `tell` as well, with empty arrays. To resume, start
    from `init` and `replay` every round of the log.
    """

    name: str
    policy: Policy
    warmup: int

    def init(self, key: jax.Array) -> HostState:
        """The state before the first candidate, for a typed PRNG `key`."""
        return HostState(key)

    def ask(self, state: HostState) -> tuple[Float[Array, "P n"], HostState]:
        """The next candidates: first the warm-up's, then the model's. `state.record` describes their origin.

        **Raises:** `NoProposal`, see `Asking`; `ChatError` if the model gives no reply (`state` remains valid);
        `ValueError` after the last iteration stated in prompts.
        """
        iteration = state.iteration(self.warmup)
        if iteration == 0:
            drawn = self.policy.sample(jax.random.fold_in(state.key, 0), self.warmup)
            record: Record = {"optimizer": self.name, "iteration": 0, "outcome": "warmup", "proposals": drawn.tolist()}
            return drawn, replace(state, record=record)
        if iteration > self.iterations:
            raise ValueError(
                f"iteration {iteration} was asked for, but prompts speak of {self.iterations}; raise iterations"
            )
        proposals, record = self._propose(state, iteration, jax.random.fold_in(state.key, state.rounds))
        return as_candidates(proposals, self.policy.num_params), replace(state, record=record)

    def tell(
        self,
        state: HostState,
        params: Float[Array, "P n"],
        values: Float[Array, " P"],
        trajectories: Sequence[Trajectory | None] | None = None,
    ) -> HostState:
        """Add the evaluated candidates to the history.

        **Arguments:** as `Optimizer.tell`; `trajectories`, an episode of each candidate, for prompts that show them.
        **Raises:** `ValueError` for another number of parameters, or values that are not finite.
        """
        rows = rows_of(params, values, self.policy.num_params, trajectories)
        failed = not rows or (state.record is not None and state.record["outcome"] == "repeated")
        return replace(
            state,
            rounds=state.rounds + 1,
            rows=state.rows + rows,
            failures=state.failures + 1 if failed else 0,
            record=None,
        )

    def replay(
        self,
        state: HostState,
        params: Float[Array, "P n"],
        values: Float[Array, " P"],
        record: Record,
        trajectories: Sequence[Trajectory | None] | None = None,
    ) -> HostState:
        """Restore the state after an `ask` and `tell` from the log, without querying the model."""
        return self.tell(replace(state, record=record), params, values, trajectories)

    def observe(self, state: HostState, params: Float[Array, "P n"], values: Float[Array, " P"]) -> HostState:
        """Add policies of another optimizer to the history; this does not count as a round."""
        return replace(state, rows=state.rows + rows_of(params, values, self.policy.num_params))

    @property
    def iterations(self) -> int:
        """Number of iterations stated in prompts, without the warm-up."""
        raise NotImplementedError

    def _propose(self, state: HostState, iteration: int, key: jax.Array) -> tuple[list[tuple[float, ...]], Record]:
        """The model's proposals, and the record of the queries."""
        raise NotImplementedError


@dataclass(frozen=True)
class LanguageModelOptimizer(HostOptimizer):
    """ProPS, or ProPS+ if the prompt describes the environment.

    Every iteration is an independent question: a single user message with the history and everything else.
    """

    model: ChatModel
    prompt: ProposalPrompt
    grammar: Grammar | None = None
    """Format of a reply; None: `Grammar.of` the policy, for the number of proposals requested in the prompt."""
    view: HistoryView = field(default_factory=HistoryView)
    form: Format = field(default_factory=Format)
    asking: Asking = field(default_factory=Asking)
    repeat: Repeat = "best"
    """The policy that `asking.on_failure` repeats."""
    warmup: int = 20
    """Number of random policies evaluated first (`Policy.sample`); 0: none."""
    count: Callable[[str], int] = estimate_tokens
    """Counts tokens for `view.tokens`; use a tokenizer's count for a hard limit."""

    def __post_init__(self):
        at_least("warmup", self.warmup, 0)
        if self.repeat not in get_args(Repeat):
            raise ValueError(f"repeat is {self.repeat!r}; it is one of {', '.join(get_args(Repeat))}")
        if self.form.grid is not None:
            raise ValueError("form has a grid, whose integers these prompts do not speak of; it is for EvoLLM")
        asked = (self.policy.num_params, self.prompt.proposals)
        if (self.reads.num_params, self.reads.proposals) != asked:
            raise ValueError(
                f"the prompt asks for {asked[1]} proposals of {asked[0]} parameters, the grammar reads "
                f"{self.reads.proposals} of {self.reads.num_params}; make them the same"
            )
        self.asking.check_length(asked[1] * self.count(self.form.params([self.policy.low] * asked[0])))

    @property
    def name(self) -> str:
        """`props` or `props+`."""
        return "props+" if self.prompt.environment or self.prompt.env_desc_file else "props"

    @property
    def policy(self) -> Policy:
        return self.prompt.policy

    @property
    def iterations(self) -> int:
        return self.prompt.iterations

    @property
    def reads(self) -> Grammar:
        """The grammar in use."""
        return self.grammar or Grammar.of(self.policy, proposals=self.prompt.proposals)

    def _propose(self, state, iteration, key):
        history = self.view.render(state.rows, self.form, self.count)
        shown = bool(self.view.trajectory_steps) and any(row.trajectory is not None for row in state.rows)
        text = self.prompt.render(history, iteration, trajectories=shown, view=self.view)
        seen = {self.form.texts(row.params) for row in state.rows}
        (answer,) = ask_until_read(
            self.model,
            [self.asking.request([Message("user", text)], key)],
            [lambda reply: parse(reply, self.reads, seen, self.form)],
            self.asking.retries,
        )
        reading = answer.reading
        record = {"optimizer": self.name, "iteration": iteration, "model": self.model.name, **answer.record}
        if not reading.proposals:
            again = best_of(state.rows) if self.repeat == "best" else (state.rows or (None,))[-1]
            return self.asking.give_up(self.model.name, again, state.failures, record)
        record |= {
            "outcome": "partial" if reading.problems else "proposed",
            "proposals": [list(params) for params in reading.proposals],
            "explanation": reading.explanation,
        }
        return list(reading.proposals), record
