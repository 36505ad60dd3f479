"""The optimizer of a search: built from its settings, and refined by a numeric method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs_jax.env import Environment
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.checks import at_least
from llmrl_jax.systems.props.compat.legacy import LegacyOptimizer, published_grammar
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.describe import describe
from llmrl_jax.systems.props.llm import EvoLLM, HostOptimizer, HostState, LanguageModelOptimizer
from llmrl_jax.systems.props.optimizers import WORST_RETURN, make_numeric
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import HistoryView, ProposalPrompt, Row
from llmrl_jax.systems.props.proposals import Grammar, QuerySettings, Record, best_of
from llmrl_jax.systems.props.tasks import Task


def make_optimizer(
    config: PropsConfig, task: Task, env: Environment, env_params: Any, policy: Policy, model: ChatModel, chat: Any
) -> Any:
    """The optimizer of one search.

    **Arguments:** `env`, `env_params` and `policy`, of the task; `model`, queried by the methods that use one; `chat`,
    `temperature` and `max_tokens` of its replies, by name.
    **Raises:** `ValueError` or `FileNotFoundError` for incompatible settings, before any query.
    """
    if not config.asks:
        return make_numeric(config.method, policy)
    settings = config.task_settings(task)
    reply, templates = config.reply, config.templates
    query = QuerySettings(retries=reply.retries, on_failure=reply.on_failure, failures=reply.failures, **chat)
    description = partial(describe, env, env_params, policy, max_steps=settings.max_steps)
    optimizer: Any
    if config.method == "evollm":
        view = HistoryView(top=10, last=10, order="ascending")
        optimizer = EvoLLM(
            model, policy, settings.iterations, population=config.population, block=config.block,
            view=view if config.history == HistoryView() else config.history, query=query,
            warmup=max(1, settings.warmup),
        )  # fmt: skip
    elif config.method == "legacy":
        optimizer = LegacyOptimizer(
            model,
            policy,
            settings.iterations,
            environment=description(hints=config.hints, hide=config.hide),
            templates=templates,
            grammar=published_grammar(policy, **reply.chosen),
            query=query,
            use_replay_buffer=config.use_replay_buffer,
            buffer_rows=config.buffer_rows,
            buffer_episodes=config.buffer_episodes,
            buffer_steps=config.buffer_steps,
            reset_llm_conversation=config.reset_llm_conversation,
        )
    else:
        plus = config.method == "props+"
        prompt = ProposalPrompt(
            policy,
            iterations=settings.iterations,
            optimum=settings.optimum,
            step_size=config.step_size or task.step_in(policy),
            environment=description(hints=config.hints, hide=config.hide) if plus else "",
            explain=config.explain,
            proposals=config.proposals,
            evaluation_episodes=settings.episodes,
            template=templates.llm_si_template_name,
            template_dir=templates.folder,
            env_desc_file=templates.env_desc_file,
        )
        loose = {} if prompt.names_box or policy.kind == "table" else {"beyond": "keep"}
        grammar = Grammar.for_policy(policy, proposals=config.proposals, **(loose | reply.chosen))
        optimizer = LanguageModelOptimizer(
            model, prompt, grammar=grammar, view=config.view(policy), query=query, repeat=reply.repeat,
            warmup=settings.warmup,
        )  # fmt: skip
    if config.polish:
        optimizer = Polished(optimizer, make_numeric(config.polish, policy), rounds=config.polish_rounds)
    return optimizer


# --- refinement by a numeric method -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolishState:
    """State of both optimizers."""

    key: jax.Array
    proposer: HostState
    numeric: Any = None
    """State of the numeric optimizer during polishing."""
    left: int = 0
    """Remaining rounds of polishing; 0: the model is next."""
    cycle: int = 0
    best: Row | None = None
    """The best candidate of this polishing."""
    record: Record | None = None
    """Record of the last `ask`, for the run's log."""


@dataclass(frozen=True)
class Polished:
    """After every round of the model (including the warm-up), a numeric optimizer searches around the best proposal for
    some rounds; its best candidate is added to the model's history. After a round without proposals the model is
    queried again."""

    proposer: HostOptimizer
    polisher: Any
    """A numeric `Optimizer` whose `init` takes a `start`."""
    rounds: int = 5
    """Rounds of the numeric optimizer after each round of the model."""

    def __post_init__(self):
        at_least("rounds", self.rounds, 1, remedy="or use the proposer alone")
        if isinstance(self.proposer, LegacyOptimizer) and self.proposer.use_replay_buffer:
            raise ValueError(
                "use_replay_buffer shows episodes of the proposed matrix, beside which polishing puts the value of "
                "another matrix; leave one of the two out"
            )

    @property
    def name(self) -> str:
        """`props, then cma_es`."""
        return f"{self.proposer.name}, then {self.polisher.name}"

    @cached_property
    def _ask(self):
        return jax.jit(self.polisher.ask)

    @cached_property
    def _tell(self):
        return jax.jit(self.polisher.tell)

    def init(self, key: jax.Array) -> PolishState:
        """The state before the first candidate, for a typed PRNG `key`."""
        ours, theirs = jax.random.split(key)
        return PolishState(ours, self.proposer.init(theirs))

    def ask(self, state: PolishState) -> tuple[Float[Array, "P n"], PolishState]:
        """The next candidates, of the model or of the numeric optimizer; raises the errors of the proposer's `ask`."""
        if state.left:
            params, numeric = self._ask(state.numeric)
            record: Record = {"optimizer": self.polisher.name, "cycle": state.cycle, "outcome": "polish"}
            return params, replace(state, numeric=numeric, record=record)
        params, proposer = self.proposer.ask(state.proposer)
        return params, replace(state, proposer=proposer, record=proposer.record)

    def tell(
        self,
        state: PolishState,
        params: Float[Array, "P n"],
        values: Float[Array, " P"],
        **episodes: Any,
    ) -> PolishState:
        """Pass the evaluated candidates to the optimizer that proposed them (`Optimizer.tell`); `episodes`, the other
        arguments of the proposer's `tell`."""
        if state.left:
            return self._polished(state, params, values)
        proposer = self.proposer.tell(state.proposer, params, values, **episodes)
        state = replace(state, proposer=proposer, record=None)
        best = best_of(proposer.rows[len(proposer.rows) - len(values) :])
        if best is None:
            return state
        key = jax.random.fold_in(state.key, state.cycle)
        numeric = self.polisher.init(key, jnp.asarray(best.params, jnp.float32))
        return replace(state, numeric=numeric, left=self.rounds, best=None)

    def _polished(self, state: PolishState, params: Float[Array, "P n"], values: Float[Array, " P"]) -> PolishState:
        numeric = self._tell(state.numeric, params, values)
        top = int(jnp.argmax(values))
        best = Row(tuple(params[top].tolist()), float(values[top]))
        if state.best is not None and state.best.value > best.value:
            best = state.best
        state = replace(state, numeric=numeric, best=best, left=state.left - 1, record=None)
        if state.left:
            return state
        proposer = state.proposer
        if best.value > WORST_RETURN:  # else all returns are non-finite
            polished = jnp.asarray([best.params], jnp.float32)
            proposer = self.proposer.observe(proposer, polished, jnp.asarray([best.value], jnp.float32))
        return replace(state, proposer=proposer, numeric=None, cycle=state.cycle + 1)

    def replay(
        self,
        state: PolishState,
        params: Float[Array, "P n"],
        values: Float[Array, " P"],
        record: Record,
        **episodes: Any,
    ) -> PolishState:
        """Restore the state after an `ask` and `tell` from the log, without querying the model."""
        if state.left:
            _, state = self.ask(state)
        else:
            state = replace(state, proposer=replace(state.proposer, record=record))
        return self.tell(state, params, values, **episodes)
