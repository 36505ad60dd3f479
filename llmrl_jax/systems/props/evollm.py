"""EvoLLM-style search: the language model recombines a sorted, discretised population into the next mean.

After Lange, Tian and Tang (2402.18381): members are written as integers, sorted by ascending return, and the model is
asked for a mean that reaches an improved return; large policies are split into blocks of parameters, one question each.
Sizes, the standard deviation and the improved return (`prompts.improved`) are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.chat import ChatModel, Message
from llmrl_jax.core.checks import above, at_least, fields_at_least
from llmrl_jax.systems.props.history import Format, Grid, HistoryView, Row, estimate_tokens
from llmrl_jax.systems.props.llm import HostOptimizer
from llmrl_jax.systems.props.parser import Grammar, parse
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import MeanPrompt, improved
from llmrl_jax.systems.props.proposals import Asking, ask_until_read, best_of


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
    generations: int = 100
    population: int = 5
    """Candidates per generation, including the mean."""
    std: float = 0.05
    """Standard deviation of the steps, as a fraction of the box's width; for a table a probability."""
    resolution: int = 1000
    """Number of steps into which the box is divided; for a table the number of actions less one."""
    block: int = 0
    """Parameters per question; 0: all in one."""
    view: HistoryView = field(default_factory=lambda: HistoryView(top=10, last=10, order="ascending"))
    asking: Asking = field(default_factory=Asking)
    warmup: int = 20
    """Number of random policies evaluated first (`Policy.sample`)."""
    count: Callable[[str], int] = estimate_tokens
    name: str = "evollm"

    def __post_init__(self):
        fields_at_least(self, 1, "generations", "population", "warmup")
        above("std", self.std, 0)
        at_least("block", self.block, 0)
        if self.view.order != "ascending":
            raise ValueError(f"order is {self.view.order!r}, but the members of EvoLLM are sorted; use 'ascending'")
        size = self.block or self.policy.num_params
        self.asking.check_length(self.count(self.form.params([self.policy.high] * min(size, self.policy.num_params))))

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
            history = self.view.render(rows, self.form, self.count)
            text = prompt.render(history, iteration, size=size, target=target, block=i + 1, blocks=len(self.blocks))
            requests.append(self.asking.request([Message("user", text)], jax.random.fold_in(key, i)))
            grammar = Grammar(size, 0, grid.resolution, 0, repeated="keep")
            parses.append(lambda reply, grammar=grammar: parse(reply, grammar))
        answers = ask_until_read(self.model, requests, parses, self.asking.retries)
        unread = [i for i, answer in enumerate(answers) if not answer.reading.proposals]
        record = {
            "optimizer": self.name,
            "iteration": iteration,
            "model": self.model.name,
            "blocks": [answer.record for answer in answers],
        }
        if unread:
            record["unread"] = unread
            return self.asking.give_up(self.model.name, best, state.failures, record)
        mean = [value for answer in answers for value in grid.decode(answer.reading.proposals[0])]
        candidates = self._around(jnp.asarray(mean, jnp.float32), jax.random.fold_in(key, len(self.blocks)))
        return candidates, {**record, "outcome": "proposed", "mean": mean, "proposals": [list(c) for c in candidates]}

    def _around(self, mean: jax.Array, key: jax.Array) -> list[tuple[float, ...]]:
        """A generation."""
        if self.policy.kind == "table":
            return [tuple(row) for row in self._changed(self.policy.clip(mean), key).tolist()]
        steps = jax.random.normal(key, (self.population, len(mean))).at[0].set(0.0)
        drawn = mean + self.std * (self.policy.high - self.policy.low) * steps
        return [tuple(row) for row in self.policy.clip(self.policy.round(drawn)).tolist()]

    def _changed(self, mean: Float[Array, " n"], key: jax.Array) -> Float[Array, "P n"]:
        """A generation on a table, the mean first."""
        where, whether, which = jax.random.split(key, 3)
        low, choices, others = self.policy.low, self.policy.choices, self.population - 1
        own = jax.random.permutation(where, len(mean))[jnp.arange(others) % len(mean)]
        change = jax.random.uniform(whether, (others, len(mean))) < self.std
        change = change.at[jnp.arange(others), own].set(True)
        shift = jax.random.randint(which, change.shape, 1, choices)
        return jnp.concatenate([mean[None], jnp.where(change, (mean - low + shift) % choices + low, mean)])
