"""The protocol before ProPS: a dialogue over one matrix, with a system message, and a request to convert a matrix of
the wrong size (`llm-rl_finetune`).

User templates are given by their published option names (`TemplateConfig`). Slots of all: `rows`, `columns`, `shape`
("5x2"), `environment` and `actions` (valid ids of an entry, None for numbers). Of `llm_ui_template_name` also, as
published, `episode_number`, `matrix_string`, `reward` and `replay_buffer_string` (empty without a replay buffer); of
`llm_output_conversion_template_name` also `error`. A `llm_si_template_name` without a `llm_ui_template_name` replaces
it, as published: it is the question of every turn, with its slots, and there is no system message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from llmrl_jax.chat import ChatModel, Message, strip_thinking
from llmrl_jax.core.checks import NonNegativeInt, PositiveInt
from llmrl_jax.systems.props.config import TemplateConfig
from llmrl_jax.systems.props.llm import HostOptimizer, HostState
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format, Row, Trajectory, fill, load, render_rows
from llmrl_jax.systems.props.proposals import (
    NUMBER,
    Grammar,
    InvalidReply,
    ParsedReply,
    Problem,
    QuerySettings,
    ask_until_parsed,
    parse,
)


@dataclass(frozen=True)
class LegacyState(HostState):
    """The history and the dialogue."""

    messages: tuple[Message, ...] = ()
    """The dialogue after the system message."""
    episodes: tuple[Trajectory, ...] = ()
    """Episodes of the last evaluation: the replay buffer, which is cleared before each evaluation."""


def published_grammar(policy: Policy, **options: Any) -> Grammar:
    """Valid numbers of a matrix: any finite number, or integer actions for a table; overridden by `options`."""
    loose = {} if policy.kind == "table" else {"beyond": "keep", "finer": "keep"}
    return Grammar.for_policy(policy, **(loose | {"repeated": "keep"} | options))


@dataclass(frozen=True)
class LegacyOptimizer(HostOptimizer):
    """A dialogue: the matrix and its reward are shown, and a better one is requested.

    The first matrix is random. If a reply cannot be parsed, its conversion is requested, at most `query.retries`
    times; if that fails too, `query.on_failure` applies: "repeat" evaluates the last policy again (as published, there
    silently). Failed turns are not added to the dialogue.
    """

    model: ChatModel
    policy: Policy
    episodes: PositiveInt = 400
    """Number of matrices to request; not stated in any prompt."""
    environment: str = ""
    """Description for the built-in system message (`describe.describe`)."""
    templates: TemplateConfig = field(default_factory=TemplateConfig)
    grammar: Grammar | None = None
    """Valid numbers; None: `published_grammar`."""
    query: QuerySettings = field(default_factory=lambda: QuerySettings(retries=3))
    use_replay_buffer: bool = False
    """Show `buffer_rows` consecutive steps of one random evaluation episode."""
    buffer_rows: PositiveInt = 100
    buffer_episodes: NonNegativeInt = 0
    """Use only this many of the evaluation's last episodes; 0: all."""
    buffer_steps: NonNegativeInt = 0
    """Use only this many of an episode's last steps; 0: all."""
    reset_llm_conversation: bool = False
    """Clear the dialogue before every question. Otherwise it grows without bound, as published."""
    name: str = "legacy"
    warmup: int = field(default=1, init=False)

    def __post_init__(self):
        super().__post_init__()
        size = self.policy.num_params
        if (self.reads.num_params, self.reads.proposals) != (size, 1):
            raise ValueError(f"the grammar is not for one proposal of {size} parameters: {self.grammar}")
        self._system()  # a template that is missing or has an unknown slot is an error now, not at the first question
        self._question(1, Row((0.0,) * self.policy.num_params, 0.0), "")
        self._conversion("")

    @property
    def iterations(self) -> int:
        return self.episodes

    @property
    def reads(self) -> Grammar:
        """The grammar in use."""
        return self.grammar or published_grammar(self.policy)

    def init(self, key: jax.Array) -> LegacyState:
        """The state before the first matrix, for a typed PRNG `key`."""
        return LegacyState(key)

    def tell(
        self,
        state: HostState,
        params: Float[Array, "P n"],
        values: Float[Array, " P"],
        trajectories: Sequence[Trajectory | None] | None = None,
        episodes: Sequence[Trajectory] = (),
    ) -> LegacyState:
        """See `HostOptimizer.tell`; `episodes`, those of the evaluation, which fill the replay buffer.

        **Raises:** `ValueError` if the replay buffer is shown and there are no episodes.
        """
        if self.use_replay_buffer and not episodes and len(values):
            raise ValueError(
                "the replay buffer is to be shown, and no episodes were given; pass the evaluation's episodes"
            )
        dialogue = () if state.record is None else tuple(Message(**m) for m in state.record.get("dialogue", ()))
        after = super().tell(state, params, values, trajectories)
        assert isinstance(after, LegacyState)
        replay = tuple(episodes) if len(values) else after.episodes
        return replace(after, messages=after.messages + dialogue, episodes=replay)

    def _propose(self, state, iteration, key):
        if not state.rows:
            raise ValueError(
                "the dialogue has nothing to begin with: the first matrix had no finite return; start again with "
                "another seed, or a narrower box (policy.low, policy.high)"
            )
        last = state.rows[-1]
        earlier = () if self.reset_llm_conversation else state.messages
        question = self._question(iteration, last, self._buffer(state, key))
        request = self.query.request([*self._system(), *earlier, question], key)

        def convert(parsed) -> str:
            return self._conversion(str(InvalidReply(parsed)))

        evaluated = {Format().texts(row.params) for row in state.rows}
        parses = [lambda reply: parse_matrix(reply, self.policy, self.reads, evaluated)]
        (answer,) = ask_until_parsed(self.model, [request], parses, self.query.retries, convert)
        record = {"optimizer": self.name, "iteration": iteration, "model": self.model.name, **answer.record}
        if not answer.parsed.proposals:
            return self.query.give_up(self.model.name, last, state.failures, record)
        proposals = list(answer.parsed.proposals)
        record |= {"outcome": "proposed", "proposals": [list(p) for p in proposals]}
        return proposals, record | {"dialogue": [asdict(message) for message in answer.messages]}

    @property
    def _slots(self) -> dict[str, Any]:
        """Slots shared by all templates."""
        rows, columns = matrix_shape(self.policy)
        shape = {"rows": rows, "columns": columns, "shape": f"{rows}x{columns}"}
        return {**shape, "environment": self.environment, "actions": self.policy.actions}

    @property
    def has_system(self) -> bool:
        """Return whether there is a system message."""
        return bool(self.templates.llm_ui_template_name or not self.templates.llm_si_template_name)

    def _fill(self, kind: str, slots: dict[str, Any]) -> str:
        """Fill a template: "system", "update" or "convert"."""
        user = self.templates
        name = {
            "system": user.llm_si_template_name,
            "update": user.llm_ui_template_name or user.llm_si_template_name,
            "convert": user.llm_output_conversion_template_name,
        }[kind]
        template = load(name=name, folder=user.folder) if name else load(name=f"legacy_{kind}.j2")
        return fill(template, self._slots | slots)

    def _system(self) -> list[Message]:
        """The system message, if there is one."""
        return [Message("system", self._fill("system", {}))] if self.has_system else []

    def _question(self, iteration: int, last: Row, replay: str) -> Message:
        slots = {
            "episode_number": iteration,
            "matrix_string": render_matrix(self.policy, last.params),
            "reward": Format().value(last.value),
            "replay_buffer_string": replay,
        }
        return Message("user", self._fill("update", slots))

    def _conversion(self, error: str) -> str:
        return self._fill("convert", {"error": error})

    def _buffer(self, state: LegacyState, key: jax.Array) -> str:
        """Consecutive steps of one of the episodes."""
        if not self.use_replay_buffer:
            return ""
        episode_key, start_key = jax.random.split(jax.random.fold_in(key, 1))
        episodes = state.episodes[-self.buffer_episodes :]
        number = int(jax.random.randint(episode_key, (), 0, len(episodes)))
        first = max(0, len(episodes[number]) - self.buffer_steps) if self.buffer_steps else 0
        episode = episodes[number][first:]
        start = int(jax.random.randint(start_key, (), 0, max(1, len(episode) - self.buffer_rows + 1)))
        lines = render_rows(episode[start : start + self.buffer_rows])
        numbered = [f"{number} | {step} | {line}" for step, line in enumerate(lines, first + start)]
        return "\n".join(["Trajectory | Step | State | Action | Reward", *numbered])


# --- parameters as a matrix in text, and back -------------------------------------------------------------------------


_LABEL = re.compile(r"[\s*#`]*(?:weights|bias|matrix|table)[\s*`]*:?[\s*`]*", re.IGNORECASE)
_CUT = re.compile(r"[\s,;|\[\](){}]+")


def matrix_shape(policy: Policy) -> tuple[int, int]:
    """Rows and columns of a policy's matrix: an action per column and an input per row, the bias last; one column if
    parameters have no such structure."""
    columns = 1 if policy.kind in ("table", "projection") else policy.act_size
    return policy.num_params // columns, columns


def render_matrix(policy: Policy, params: Sequence[float]) -> str:
    """The matrix, one line per row; for a policy with bias under `Weights:`, with the last row under `Bias:`."""
    rows, columns = matrix_shape(policy)
    texts = Format().texts(params)
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
    text: str, policy: Policy, grammar: Grammar, evaluated: Collection[tuple[str, ...]] = ()
) -> ParsedReply:
    """Parse the matrix of a reply: the last one of the right size.

    **Arguments:** `grammar`, for its valid numbers; `evaluated`, as for `parse`.
    """
    rows, columns = matrix_shape(policy)
    blocks = find_matrices(strip_thinking(text))
    right = [block for block in blocks if (len(block), len(block[0])) == (rows, columns)]
    if not right:
        sizes = ", ".join(f"{len(block)}x{len(block[0])}" for block in blocks[-3:])
        single = f"its matrix is {sizes}" if blocks else "it has no matrix"
        actual = f"its matrices are {sizes}" if len(blocks) > 1 else single
        return ParsedReply((), (Problem("form", f"{actual}, where {rows}x{columns} was asked for"),), (), text)
    cells = np.asarray(right[-1]).ravel().tolist()
    return parse("; ".join(f"params[{i}]: {cell}" for i, cell in enumerate(cells)), grammar, evaluated)
