"""The prompts of ProPS, ProPS+ and EvoLLM: the history of evaluated policies, templates, and their slots.

The slots have the published names, so that a published template renders here unchanged:
`rank`, `optimum`, `step_size`, `episode_reward_buffer_string`, `step_number`, `episodes`, `actions`, and
`env_description`, the file with a description, which templates of ProPS+ include. Templates of a later fork also use
`num_episodes` (the same as `episodes`), `num_evaluation_episodes`, `buffer_top_k` and `buffer_recent_j`, and
`attempt_idx`, which is 0: here parsing errors are reported in the dialogue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from llmrl_jax.core.checks import Checked, NonNegativeInt, PositiveInt, above
from llmrl_jax.systems.props.policies import Policy


# --- the history of evaluated policies --------------------------------------------------------------------------------


Values = int | float | tuple[float, ...]
Order = Literal["time", "ascending"]
"""time: in order of evaluation, so that prompts only grow and a server can reuse the prefix. ascending: by ascending
return (EvoLLM's least-to-most)."""

_PIECE = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]|_")


def estimate_tokens(text: str) -> int:
    """Estimate of the number of tokens of a text: one per word, group of three digits, and punctuation mark.

    A parameter of a history row counts as 9 tokens."""
    return sum(1 for _ in _PIECE.finditer(text))


@dataclass(frozen=True)
class Transition:
    """One step of an episode."""

    state: Values
    action: Values
    reward: float


Trajectory = tuple[Transition, ...]
"""An episode, from its first step on."""


@dataclass(frozen=True)
class Row:
    """An evaluated policy."""

    params: tuple[float, ...]
    value: float
    """Its mean return."""
    trajectory: Trajectory | None = None
    """One of the episodes, for prompts that show them."""


@dataclass(frozen=True)
class Grid:
    """EvoLLM's number format: the box is divided into `resolution` equal steps, and each parameter written as an
    integer."""

    low: float
    high: float
    resolution: int = 1000
    """The largest integer; the smallest is 0."""

    def __post_init__(self):
        if not self.low < self.high or not 1 <= self.resolution <= 99_999:  # at most five digits are written
            raise ValueError(
                f"a grid of {self.resolution} steps from {self.low} to {self.high} cannot be; it needs low < high and "
                "1 to 99999 steps"
            )

    def encode(self, params: Sequence[float]) -> tuple[int, ...]:
        """The nearest integers; a parameter beyond the box becomes its bound."""
        share = (np.asarray(params, np.float64) - self.low) / (self.high - self.low)
        return tuple(int(v) for v in np.rint(np.clip(share, 0.0, 1.0) * self.resolution))

    def decode(self, integers: Sequence[float]) -> tuple[float, ...]:
        """The parameters represented by integers."""
        share = np.asarray(integers, np.float64) / self.resolution
        return tuple(float(v) for v in self.low + share * (self.high - self.low))


@dataclass(frozen=True)
class Format:
    """Number format, as published: parameters in five significant digits, returns in two decimals."""

    grid: Grid | None = None
    """If given, parameters are written as integers."""

    def number(self, value: float) -> str:
        """Format one parameter; minus zero becomes zero."""
        return f"{float(value) + 0.0:.5g}"

    def texts(self, params: Sequence[float]) -> tuple[str, ...]:
        """The formatted parameters. Equal for two policies that are indistinguishable in a prompt."""
        return tuple(map(self.number, self.grid.encode(params) if self.grid else params))

    def params(self, params: Sequence[float]) -> str:
        """`params[0]: v; params[1]: v; ...`."""
        return "; ".join(f"params[{i}]: {text}" for i, text in enumerate(self.texts(params)))

    def value(self, value: float) -> str:
        """A return."""
        return f"{value:.2f}"

    def row(self, row: Row) -> str:
        """`params[0]: v; ...; f(params): r`, the published row."""
        return f"{self.params(row.params)}; f(params): {self.value(row.value)}"


def render_rows(trajectory: Trajectory) -> list[str]:
    """The steps as lines `state | action | reward`."""
    return [" | ".join(_values(v) for v in (step.state, step.action, step.reward)) for step in trajectory]


def render_trajectory(trajectory: Trajectory, longest: int) -> str:
    """An episode as lines under a heading, truncated after `longest` steps with a note."""
    lines = ["state | action | reward", *render_rows(trajectory[:longest])]
    if len(trajectory) > longest:
        lines.append(f"({len(trajectory) - longest} more steps)")
    return "\n".join(lines)


def _values(values: Values) -> str:
    return ", ".join(f"{float(v):.5g}" for v in (values if isinstance(values, tuple) else (values,)))


@dataclass(frozen=True)
class HistoryView(Checked):
    """Rows that a prompt shows, and their order. Default: all of them, in order of evaluation.

    `last` and `top` combine: with both, a prompt shows the best rows and the most recent ones.
    """

    PREFIX: ClassVar[str] = "history."

    last: NonNegativeInt | None = None
    """Show only this many of the most recent rows."""
    top: NonNegativeInt | None = None
    """Show only this many of the rows with the highest returns."""
    order: Order = "time"
    tokens: PositiveInt | None = None
    """Maximum number of tokens of the rows (`estimate_tokens`): the oldest selected rows are dropped first, but never
    the best."""
    trajectory_steps: NonNegativeInt | None = None
    """Maximum number of steps of the episode shown below each row that has one; 0: no episodes. None: as published, 200
    for ProPS+ on a table, otherwise no episodes."""

    def __post_init__(self):
        super().__post_init__()
        if (self.last, self.top) in ((0, 0), (0, None), (None, 0)):
            raise ValueError(f"last is {self.last} and top is {self.top}, which shows nothing; let one be 1 or more")

    def select(self, rows: Sequence[Row]) -> list[Row]:
        """The selected rows, before the token limit. Among equal returns the later row ranks higher."""
        chosen = set(range(len(rows)))
        ranked = sorted(chosen, key=lambda i: (rows[i].value, i))
        if self.last is not None or self.top is not None:
            recent, best = self.last or 0, self.top or 0
            chosen = {*range(max(0, len(rows) - recent), len(rows)), *ranked[max(0, len(rows) - best) :]}
        return [rows[i] for i in (ranked if self.order == "ascending" else range(len(rows))) if i in chosen]

    def render(self, rows: Sequence[Row], form: Format | None = None) -> str:
        """The history block of a prompt, one line per row with its episode below; empty without rows.

        **Arguments:** `rows`, in order of evaluation; `form`, of numbers (None: as published, without a grid).
        **Raises:** `ValueError` if even the best of the selected rows does not fit into `tokens`.
        """
        selected = self.select(rows)
        texts = {id(row): self._row(row, form or Format()) for row in selected}
        if self.tokens is not None and selected:
            best = max(enumerate(selected), key=lambda pair: (pair[1].value, pair[0]))[1]
            sizes = {id(row): estimate_tokens(texts[id(row)] + "\n") for row in selected}
            left = sum(sizes.values())
            for row in rows:  # the oldest first
                if left <= self.tokens:
                    break
                if id(row) in texts and row is not best:
                    del texts[id(row)]
                    left -= sizes[id(row)]
            if left > self.tokens:
                raise ValueError(
                    f"the best row alone takes {left} tokens and the history may take {self.tokens}; raise tokens, or "
                    "lower trajectory_steps"
                )
        return "\n".join(texts[id(row)] for row in selected if id(row) in texts)

    def _row(self, row: Row, form: Format) -> str:
        if not self.trajectory_steps or row.trajectory is None:
            return form.row(row)
        return f"{form.row(row)}\n{render_trajectory(row.trajectory, self.trajectory_steps)}"


# --- templates --------------------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES = Path(__file__).with_name("templates")


def number(value: Any) -> str:
    """A number in few digits."""
    return f"{float(value):.4g}"


def digits(value: Any) -> str:
    """A number with all its digits and without an exponent."""
    return np.format_float_positional(float(value), trim="-")


def _stated(bound: float, decimals: int) -> str:
    """A bound with the decimals of parameters, or with all of its digits if it has more: replies are held to it."""
    text = f"{bound:.{decimals}f}"
    return text if float(text) == bound else digits(bound)


def missing(reason: str) -> Any:
    """An unfilled slot: a template that uses it fails with `reason`."""
    from jinja2 import StrictUndefined

    return StrictUndefined(reason)


def load(source: str = "", *, name: str = "", folder: str | Path | None = None) -> Template:
    """Load a template, which fails on an unfilled slot.

    Templates run in `tuning.sandbox`, with access only to their slots. Lines of block tags are removed from built-in
    templates; a user's templates have Jinja's default white space, so that published ones render as published.

    **Arguments:** `source`, its text, or else `name`, of its file below `folder` (None: the built-in one), from which
    it may include others.
    **Raises:** `FileNotFoundError` for a missing file, with the existing names; `ValueError` for one that is not Jinja.
    """
    from jinja2 import FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError

    from llmrl_jax.tuning.sandbox import BoundedEnvironment

    ours = folder is None
    folder = TEMPLATES if folder is None else Path(folder)
    environment = BoundedEnvironment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=ours, lstrip_blocks=ours
    )
    environment.filters["num"] = number
    try:
        return environment.get_template(name) if name else environment.from_string(source)
    except TemplateNotFound as error:
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.j2")) if folder.is_dir() else None
        contents = "there is no such folder" if files is None else f"it has {', '.join(files) or 'no *.j2'}"
        raise FileNotFoundError(f"there is no template {error.name!r} in {folder}: {contents}") from None
    except TemplateSyntaxError as error:
        raise ValueError(
            f"the template {name or source!r} is not Jinja: {error.message} in line {error.lineno}"
        ) from None
    except Exception as error:  # it is no text, or nested too deeply
        raise ValueError(
            f"the template {name or source!r} cannot be compiled: {type(error).__name__}: {error}"
        ) from error


def slots_of(template: Template) -> set[str]:
    """The slots used in the template's own file, without those of its includes."""
    from jinja2 import meta

    environment, name = template.environment, template.name
    assert environment.loader is not None and name is not None
    source, *_ = environment.loader.get_source(environment, name)
    return meta.find_undeclared_variables(environment.parse(source))


def fill(template: Template, slots: Mapping[str, Any]) -> str:
    """Render the template.

    **Raises:** `ValueError` for an unknown slot, access that the sandbox forbids, more than its bounds, or an operation
    that fails."""
    from jinja2 import TemplateError

    environment: Any = template.environment  # a `BoundedEnvironment`
    try:
        return environment.render(template, slots)[0].strip()
    except Exception as error:
        reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the template {template.name or ''!r} cannot be filled: {reason}; its slots are {', '.join(sorted(slots))}"
        ) from error


# --- prompts ----------------------------------------------------------------------------------------------------------


NO_DESCRIPTION = "it includes env_description, and env_desc_file is empty; name the file with the description"


def answer_form(num_params: int, separator: str = "; ") -> str:
    """The requested line, with every index: `params[0]: ; params[1]: ; ...`."""
    return separator.join(f"params[{i}]: " for i in range(num_params)).rstrip()


def span(num_params: int) -> str:
    """`params[0] to params[8]`."""
    return f"params[0] to params[{num_params - 1}]" if num_params > 1 else "params[0]"


@dataclass(frozen=True)
class ProposalPrompt(Checked):
    """The prompt of ProPS, or of ProPS+ if there is a description; for numbers, or for actions in a table."""

    policy: Policy
    iterations: PositiveInt = 400
    """`N` of "iteration k of N"."""
    optimum: float | None = None
    """The largest return, as stated in the prompt; None: stated to be unknown."""
    step_size: float | None = 1.0
    """Exploration step size suggested in the prompt; none for tables."""
    environment: str = ""
    """Description of the environment (`describe.describe`), for ProPS+."""
    explain: bool = True
    """Whether to ask for an explanation; unnecessary for reasoning models."""
    proposals: PositiveInt = 1
    """Number of proposals to request."""
    evaluation_episodes: PositiveInt = 20
    """Number of episodes over which f(params) is the mean; the built-in template does not state it."""
    template: str = ""
    """Name of a user template in `template_dir`; empty: the built-in one."""
    template_dir: Path | None = None
    """Folder of `template` and its includes."""
    env_desc_file: str = ""
    """The file that a published template of ProPS+ includes as `env_description`, relative to that folder."""

    def __post_init__(self):
        super().__post_init__()
        if self.policy.kind != "table":
            above("step_size", self.step_size or 0.0, 0)
        if self.template:  # a missing or invalid template is an error now, not at the first question
            self.render("", 1)

    @cached_property
    def _template(self):
        return load(name=self.template, folder=self.template_dir) if self.template else load(name="proposal.j2")

    @property
    def names_box(self) -> bool:
        """Return whether the prompt states the policy's box; a published template has numbers of its own."""
        return not self.template or {"low", "high"} <= slots_of(self._template)

    def render(
        self, history: str, iteration: int, *, trajectories: bool = False, view: HistoryView | None = None
    ) -> str:
        """The prompt: one user message, as published.

        **Arguments:** `history`, see `HistoryView.render`; `iteration`, from 1; `trajectories`, whether the history
        contains episodes; `view`, the selection of its rows (None: all rows).
        **Raises:** `ValueError` for a template with an unknown slot.
        """
        limits = (view.top, view.last) if view else (None, None)
        top, last = (0, "all") if limits == (None, None) else (limits[0] or 0, limits[1] or 0)
        policy = self.policy
        decimals = policy.decimals
        slots = {
            "rank": policy.num_params,
            "optimum": None if self.optimum is None else digits(self.optimum),
            "step_size": self.step_size,
            "episode_reward_buffer_string": history,
            "step_number": iteration,
            "episodes": self.iterations,
            "num_episodes": self.iterations,
            "num_evaluation_episodes": self.evaluation_episodes,
            "attempt_idx": 0,
            "buffer_top_k": top,
            "buffer_recent_j": last,
            "actions": None if policy.actions is None else [policy.actions],
            "environment": self.environment,
            "env_description": self.env_desc_file or missing(NO_DESCRIPTION),
            "span": span(policy.num_params),
            "kind": "a number" if decimals else "an integer",
            "low": _stated(policy.low, decimals),
            "high": _stated(policy.high, decimals),
            "decimals": decimals,
            "form": answer_form(policy.num_params),
            "proposals": self.proposals,
            "explain": self.explain,
            "trajectories": trajectories,
        }
        return fill(self._template, slots)


@dataclass(frozen=True)
class MeanPrompt:
    """EvoLLM's question: members sorted by ascending return, an improved return, and a request for the mean."""

    resolution: int
    """Parameters are the integers from 0 to this."""
    iterations: int

    def render(self, history: str, iteration: int, *, size: int, target: str, block: int = 1, blocks: int = 1) -> str:
        """The prompt for one block of parameters.

        **Arguments:** `history`, sorted; `iteration`, from 1; `size`, parameters in the block; `target`, the return to
        reach; `block` of `blocks`, from 1.
        """
        slots = {
            "rank": size,
            "span": span(size),
            "resolution": self.resolution,
            "form": answer_form(size),
            "episode_reward_buffer_string": history,
            "target": target,
            "block": block,
            "blocks": blocks,
            "step_number": iteration,
            "episodes": self.iterations,
        }
        return fill(load(name="evollm.j2"), slots)


def improved(rows: Sequence[Row]) -> float:
    """The return to ask for: the best so far plus its difference from the median."""
    values = sorted(row.value for row in rows)
    best, median = values[-1], values[len(values) // 2]
    return best + (best - median)
