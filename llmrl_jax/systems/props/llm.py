"""ProPS and ProPS+: the language model is the optimizer (Zhou et al., 2511.21928)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.chat import ChatModel, Message
from llmrl_jax.core.checks import Checked, NonNegativeInt, PositiveFloat, PositiveInt
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import (
    Format,
    Grid,
    HistoryView,
    MeanPrompt,
    ProposalPrompt,
    Row,
    Trajectory,
    estimate_tokens,
    improved,
)
from llmrl_jax.systems.props.proposals import (
    Grammar,
    QuerySettings,
    Record,
    Repeat,
    as_candidates,
    ask_until_parsed,
    best_of,
    parse,
    rows_of,
)


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


class HostOptimizer(Checked):
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

        **Raises:** `NoProposal`, see `QuerySettings`; `ChatError` if the model gives no reply (`state` remains valid);
        `ValueError` after the last iteration stated in prompts.
        """
        iteration = state.iteration(self.warmup)
        if iteration == 0:
            samples = self.policy.sample(jax.random.fold_in(state.key, 0), self.warmup)
            record: Record = {
                "optimizer": self.name,
                "iteration": 0,
                "outcome": "warmup",
                "proposals": samples.tolist(),
            }
            return samples, replace(state, record=record)
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
        **episodes: Any,
    ) -> HostState:
        """Restore the state after an `ask` and `tell` from the log, without querying the model; `episodes`, the other
        arguments of `tell`."""
        return self.tell(replace(state, record=record), params, values, **episodes)

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
    """Format of a reply; None: `Grammar.for_policy` the policy, for the number of proposals requested in the prompt."""
    view: HistoryView = field(default_factory=HistoryView)
    query: QuerySettings = field(default_factory=QuerySettings)
    repeat: Repeat = "best"
    """The policy that `query.on_failure` repeats."""
    warmup: NonNegativeInt = 20
    """Number of random policies evaluated first (`Policy.sample`); 0: none."""

    def __post_init__(self):
        super().__post_init__()
        size, proposals = self.policy.num_params, self.prompt.proposals
        if (self.reads.num_params, self.reads.proposals) != (size, proposals):
            raise ValueError(
                f"the prompt asks for {proposals} proposals of {size} parameters, the grammar reads "
                f"{self.reads.proposals} of {self.reads.num_params}; make them the same"
            )
        self.query.check_length(proposals * estimate_tokens(Format().params([self.policy.low] * size)))

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
        return self.grammar or Grammar.for_policy(self.policy, proposals=self.prompt.proposals)

    def _propose(self, state, iteration, key):
        history = self.view.render(state.rows)
        trajectories = bool(self.view.trajectory_steps) and any(row.trajectory is not None for row in state.rows)
        text = self.prompt.render(history, iteration, trajectories=trajectories, view=self.view)
        evaluated = {Format().texts(row.params) for row in state.rows}
        (answer,) = ask_until_parsed(
            self.model,
            [self.query.request([Message("user", text)], key)],
            [lambda reply: parse(reply, self.reads, evaluated)],
            self.query.retries,
        )
        parsed = answer.parsed
        record = {"optimizer": self.name, "iteration": iteration, "model": self.model.name, **answer.record}
        if not parsed.proposals:
            repeated = best_of(state.rows) if self.repeat == "best" else (state.rows or (None,))[-1]
            return self.query.give_up(self.model.name, repeated, state.failures, record)
        record |= {
            "outcome": "partial" if parsed.problems else "proposed",
            "proposals": [list(params) for params in parsed.proposals],
            "explanation": parsed.explanation,
        }
        return list(parsed.proposals), record


# --- EvoLLM -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvoLLM(HostOptimizer):
    """An evolution strategy whose recombination is done by the model, which is asked for the mean of the next
    generation.

    A generation is that mean and normal steps around it, clipped to the box and rounded to the policy's decimals. For a
    table, where rounding would undo such steps, every member except the mean has another action in one entry (different
    entries for different members while there are enough), and with probability `std` in each of the others.
    """

    model: ChatModel
    policy: Policy
    generations: PositiveInt = 100
    population: PositiveInt = 5
    """Candidates per generation, including the mean."""
    std: PositiveFloat = 0.05
    """Standard deviation of the steps, as a fraction of the box's width; for a table a probability."""
    resolution: int = 1000
    """Number of steps into which the box is divided; for a table the number of actions less one."""
    block: NonNegativeInt = 0
    """Parameters per question; 0: all in one."""
    view: HistoryView = field(default_factory=lambda: HistoryView(top=10, last=10, order="ascending"))
    query: QuerySettings = field(default_factory=QuerySettings)
    warmup: PositiveInt = 20
    """Number of random policies evaluated first (`Policy.sample`)."""
    name: str = "evollm"

    def __post_init__(self):
        super().__post_init__()
        if self.view.order != "ascending":
            raise ValueError(f"order is {self.view.order!r}, but the members of EvoLLM are sorted; use 'ascending'")
        size = self.block or self.policy.num_params
        longest = self.form.params([self.policy.high] * min(size, self.policy.num_params))
        self.query.check_length(estimate_tokens(longest))

    @property
    def iterations(self) -> int:
        return self.generations

    @cached_property
    def form(self) -> Format:
        """Integers."""
        low, high = self.policy.low, self.policy.high
        return Format(grid=Grid(low, high, int(high - low) if self.policy.kind == "table" else self.resolution))

    @cached_property
    def blocks(self) -> list[slice]:
        """The parameters of each question."""
        size = self.block or self.policy.num_params
        return [slice(start, start + size) for start in range(0, self.policy.num_params, size)]

    def _propose(self, state, iteration, key):
        grid = self.form.grid
        best = best_of(state.rows)
        if grid is None or best is None:  # the format has a grid
            raise ValueError(
                f"EvoLLM has nothing to begin with: of the warm-up's {self.warmup} policies none had a finite return; "
                "start again with another seed, a larger warmup, or a narrower box (policy.low, policy.high)"
            )
        prompt = MeanPrompt(grid.resolution, self.generations)
        target = self.form.value(improved(self.view.select(state.rows)))
        requests, parses = [], []
        for i, part in enumerate(self.blocks):
            rows = [Row(row.params[part], row.value) for row in state.rows]
            size = len(best.params[part])
            history = self.view.render(rows, self.form)
            text = prompt.render(history, iteration, size=size, target=target, block=i + 1, blocks=len(self.blocks))
            requests.append(self.query.request([Message("user", text)], jax.random.fold_in(key, i)))
            grammar = Grammar(size, 0, grid.resolution, 0, repeated="keep")
            parses.append(lambda reply, grammar=grammar: parse(reply, grammar))
        answers = ask_until_parsed(self.model, requests, parses, self.query.retries)
        unread = [i for i, answer in enumerate(answers) if not answer.parsed.proposals]
        record = {
            "optimizer": self.name,
            "iteration": iteration,
            "model": self.model.name,
            "blocks": [answer.record for answer in answers],
        }
        if unread:
            record["unread"] = unread
            return self.query.give_up(self.model.name, best, state.failures, record)
        mean = [value for answer in answers for value in grid.decode(answer.parsed.proposals[0])]
        candidates = self._around(jnp.asarray(mean, jnp.float32), jax.random.fold_in(key, len(self.blocks)))
        return candidates, {**record, "outcome": "proposed", "mean": mean, "proposals": [list(c) for c in candidates]}

    def _around(self, mean: jax.Array, key: jax.Array) -> list[tuple[float, ...]]:
        """A generation."""
        if self.policy.kind == "table":
            return [tuple(row) for row in self._changed(self.policy.clip(mean), key).tolist()]
        steps = jax.random.normal(key, (self.population, len(mean))).at[0].set(0.0)
        samples = mean + self.std * (self.policy.high - self.policy.low) * steps
        return [tuple(row) for row in self.policy.clip(self.policy.round(samples)).tolist()]

    def _changed(self, mean: Float[Array, " n"], key: jax.Array) -> Float[Array, "P n"]:
        """A generation on a table, the mean first."""
        entry_key, change_key, shift_key = jax.random.split(key, 3)
        low, choices, members = self.policy.low, self.policy.choices, self.population - 1
        entry = jax.random.permutation(entry_key, len(mean))[jnp.arange(members) % len(mean)]
        change = jax.random.uniform(change_key, (members, len(mean))) < self.std
        change = change.at[jnp.arange(members), entry].set(True)
        shift = jax.random.randint(shift_key, change.shape, 1, choices)
        return jnp.concatenate([mean[None], jnp.where(change, (mean - low + shift) % choices + low, mean)])
