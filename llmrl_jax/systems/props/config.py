"""Settings of ProPS, and the optimizer built from them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from envs_jax.env import Environment
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.checks import (
    Checked,
    FiniteFloat,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    refuse_unread,
)
from llmrl_jax.core.files import expanded
from llmrl_jax.systems.props.describe import describe
from llmrl_jax.systems.props.evollm import EvoLLM
from llmrl_jax.systems.props.history import HistoryView
from llmrl_jax.systems.props.legacy import LegacyOptimizer, LegacyTemplates, published_grammar
from llmrl_jax.systems.props.llm import LanguageModelOptimizer, Repeat
from llmrl_jax.systems.props.optimizers import NUMERIC, make_numeric
from llmrl_jax.systems.props.parser import Grammar
from llmrl_jax.systems.props.policies import Init, Kind, Policy
from llmrl_jax.systems.props.polish import Polished
from llmrl_jax.systems.props.prompts import ProposalPrompt, told_optimum
from llmrl_jax.systems.props.proposals import Asking, OnFailure
from llmrl_jax.systems.props.tasks import Arm, Task


Asked = Literal["props", "props+", "evollm", "legacy"]
"""Methods that query a language model."""
Method = Literal[
    "props", "props+", "evollm", "legacy", "random_search", "hill_climbing", "ars", "cma_es", "open_es", "cem"
]
"""The search method: `props`, a language model that sees numbers only; `props+`, one that also reads a description of
the environment; `evollm`, one that proposes the mean of the next generation; `legacy`, the earlier dialogue over a
matrix; or a numeric method on the same parameters."""


@dataclass(frozen=True)
class PolicyConfig(Checked):
    """Policy class, where it differs from the task's."""

    PREFIX: ClassVar[str] = "policy."

    kind: Kind | None = None
    """Kind of policy; None: linear with bias, or a table for numbered states."""
    rank: NonNegativeInt = 0
    """Number of parameters of a `projection`."""
    init: Init | None = None
    """Distribution of the initial policies; None: the default of the kind."""
    low: FiniteFloat | None = None
    """Bounds of each parameter; None: -6 and 6 for linear policies, the range of action ids for tables."""
    high: FiniteFloat | None = None
    decimals: Annotated[int, In("[0, 12]")] | None = None
    """Decimals of a parameter in a prompt; None: 1, or 0 for a table."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are set, as keyword arguments of `make_policy`."""
        given = {"kind": self.kind, "init": self.init, "low": self.low, "high": self.high, "decimals": self.decimals}
        return {name: v for name, v in given.items() if v is not None} | ({"rank": self.rank} if self.rank else {})

    def __post_init__(self):
        super().__post_init__()
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"policy.low is {self.low} and policy.high {self.high}; low must be below high")


@dataclass(frozen=True)
class ReplyConfig(Checked):
    """Parsing of the model's replies, and handling of invalid ones."""

    PREFIX: ClassVar[str] = "reply."

    beyond: Literal["reject", "clip", "keep"] | None = None
    """Handling of a parameter outside the bounds; None: `reject`, except that `legacy` keeps it, as published, and so
    do numeric policies with a user template that does not contain the bounds (`low` and `high`)."""
    finer: Literal["reject", "round", "keep"] | None = None
    """Handling of a number with too many decimals; None: `round`, but `reject` for a table, and `keep` for `legacy`, as
    published."""
    repeated: Literal["reject", "keep"] | None = None
    """Handling of a policy that was already evaluated; None: `reject`, but `keep` for `legacy`, as published."""
    take: Literal["first", "last"] = "first"
    """Which proposals to use if a reply contains more than requested."""
    retries: NonNegativeInt = 4
    """Number of retries, each with the reasons of the failure sent to the model; published: 5 attempts in total."""
    on_failure: OnFailure = "skip"
    """Action after the last retry: `skip` the iteration, `repeat` a policy, or `stop`. Each is logged."""
    repeat: Annotated[Repeat, Needs("on_failure", "repeat")] = "best"
    """The policy that `repeat` evaluates again: the `best`, or the `last`, as in the fine-tuning repository; `legacy`
    always uses the last."""
    failures: NonNegativeInt = 10
    """Maximum number of consecutive failed iterations; one more stops the search."""
    compat: Literal["", "paper"] = ""
    """`paper`: the released parser, which checks neither indices nor bounds."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are set, as keyword arguments of `Grammar`."""
        named = ("beyond", "finer", "repeated", "take", "compat")
        return {name: value for name in named if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class TemplateConfig:
    """User templates, under the published option names; empty: the built-in ones."""

    template_dir: str = ""
    """Folder of the templates."""
    llm_si_template_name: str = ""
    """Template of ProPS's prompt, or of the legacy protocol's system message; without `llm_ui_template_name`, of its
    question, as published."""
    llm_ui_template_name: str = ""
    """Template of the legacy protocol's question."""
    llm_output_conversion_template_name: str = ""
    """Template of the legacy protocol's request to convert a reply."""
    env_desc_file: str = ""
    """File included by a published ProPS+ template (`env_description`), relative to `template_dir`."""

    @property
    def folder(self) -> Path | None:
        """`template_dir` as a path."""
        return expanded(self.template_dir) if self.template_dir else None

    def __post_init__(self):
        given = (self.llm_si_template_name, self.llm_ui_template_name, self.llm_output_conversion_template_name)
        if any(given) and not self.template_dir:
            raise ValueError(
                f"the template {next(filter(None, given))!r} is named, but no templates.template_dir to find it in"
            )

    def check(self) -> None:
        """Check what a new or resumed search needs on disk; settings that are only compared need nothing there.

        **Raises:** `ValueError`."""
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"templates.template_dir is {self.template_dir}, which is no folder")


_BUFFER = ("buffer_rows", "buffer_episodes", "buffer_steps")
_DIALOGUE = ("use_replay_buffer", *_BUFFER, "reset_llm_conversation")
_ITS_TEMPLATES = ("templates.llm_ui_template_name", "templates.llm_output_conversion_template_name")
_GENERATIONS = ("population", "block")
_WORLD = ("hints", "hide")
_PROMPT = ("optimum", "step_size", "explain", "history")
_NUMERIC = (
    "warmup", "warmup_episodes", "reply", "templates", "polish_rounds", *_PROMPT, *_WORLD, *_GENERATIONS, *_DIALOGUE
)  # fmt: skip
UNREAD: dict[str, tuple[str, ...]] = {
    "props": (*_WORLD, *_GENERATIONS, *_DIALOGUE, *_ITS_TEMPLATES),
    "props+": (*_GENERATIONS, *_DIALOGUE, *_ITS_TEMPLATES),
    "evollm": (
        "optimum", "step_size", "explain", "proposals", "templates", "reply.beyond", "reply.finer", "reply.repeated",
        "reply.take", "reply.compat", "reply.repeat", "history.trajectory_steps", *_WORLD, *_DIALOGUE,
    ),
    "legacy": (
        "warmup", "proposals", "reply.take", "reply.compat", "reply.repeat", "templates.env_desc_file", *_PROMPT,
        *_GENERATIONS,
    ),
    **dict.fromkeys(NUMERIC, _NUMERIC),
}  # fmt: skip
"""Method -> options that it does not read."""


@dataclass(frozen=True)
class PropsConfig(Checked):
    """Search settings. 0 or None: the published value of the task (props reference, section 5)."""

    method: Method = "props"
    iterations: NonNegativeInt = 0
    """Number of proposals by the model, or the equivalent budget of a numeric method; 0: as published, usually 400."""
    episodes: NonNegativeInt = 0
    """Episodes per evaluation; 0: as published, usually 20."""
    warmup: NonNegativeInt | None = None
    """Random policies before the first proposal; None: as published."""
    warmup_episodes: NonNegativeInt = 0
    """Episodes per warm-up policy; 0: as many as for other policies. The released code plays 1, which mixes noisy
    returns with means."""
    max_steps: NonNegativeInt = 0
    """Maximum episode length; 0: the task's."""
    proposals: PositiveInt = 1
    """Number of policies proposed per reply."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    optimum: str = "true"
    """Optimal return given in prompts: `true`, the published one, which is oracle knowledge (omitted if none is
    published); `hidden`; or a number."""
    step_size: NonNegativeFloat = 0.0
    """Exploration step size suggested in prompts; 0: as published."""
    hints: Annotated[int, In("[0, 2]")] = 0
    """For `props+`: level of hints: 0 none, 1 a rule of behaviour, 2 also its meaning for the parameters."""
    hide: bool = False
    """For `props+`: omit the meaning of states, actions and rewards."""
    explain: bool = True
    """Ask for an explanation with every proposal; unnecessary for reasoning models."""
    history: HistoryView = field(default_factory=HistoryView)
    """Which rows of the history a prompt shows."""
    reply: ReplyConfig = field(default_factory=ReplyConfig)
    templates: TemplateConfig = field(default_factory=TemplateConfig)
    common: bool = True
    """Evaluate the policies of one iteration on the same episodes (common random numbers)."""
    polish: str = ""
    """Numeric method that refines every proposal, e.g. `cma_es`; empty: none."""
    polish_rounds: Annotated[PositiveInt, Needs("polish")] = 5
    """Rounds of `polish` after each proposal."""
    population: PositiveInt = 5
    """For `evollm`: policies per generation."""
    block: NonNegativeInt = 0
    """For `evollm`: parameters per question; 0: all."""
    use_replay_buffer: bool = False
    """For `legacy`: show steps of an episode (the replay buffer)."""
    buffer_rows: Annotated[PositiveInt, Needs("use_replay_buffer")] = 100
    """Number of steps shown from the replay buffer."""
    buffer_episodes: Annotated[NonNegativeInt, Needs("use_replay_buffer")] = 0
    """Use only the last this many episodes of an evaluation; 0: all. Published as `max_traj_count`."""
    buffer_steps: Annotated[NonNegativeInt, Needs("use_replay_buffer")] = 0
    """Use only the last this many steps of an episode; 0: all. Published as `max_traj_length`."""
    reset_llm_conversation: bool = False
    """For `legacy`: clear the conversation before every question."""
    final_episodes: PositiveInt = 1000
    """Fresh episodes for the final evaluation of the best policy, whose return during the search is biased upwards by
    selection."""

    def __post_init__(self):
        super().__post_init__()
        refuse_unread(self, UNREAD[self.method], f"the method {self.method}")
        if self.reply.compat == "paper":
            checked = ("proposals", "reply.beyond", "reply.finer", "reply.repeated")
            remedy = "that is the released parser, which takes one proposal and checks no number"
            refuse_unread(self, checked, "--reply.compat paper", remedy=remedy)
        self._check_polish()
        if self.optimum not in ("true", "hidden") and not re.fullmatch(r"[+-]?\d+(\.\d*)?", self.optimum):
            raise ValueError(f"optimum is {self.optimum!r}; it is 'true', 'hidden' or a number")

    def _check_polish(self) -> None:
        polishers = [name for name in NUMERIC if name != "random_search"]  # which has no start
        if self.polish and self.polish not in polishers:
            raise ValueError(f"polish is {self.polish!r}; it is one of {', '.join(polishers)}")
        if self.polish and not self.asks:
            raise ValueError(f"polish is for methods that ask a model; {self.method} is numeric itself")
        if self.polish and self.use_replay_buffer:
            raise ValueError(
                f"polish is {self.polish}, whose matrices have no episodes for use_replay_buffer to show; leave one of "
                "the two out"
            )

    @property
    def asks(self) -> bool:
        """Whether the method queries a language model."""
        return self.method in get_args(Asked)

    def view(self, policy: Policy) -> HistoryView:
        """How prompts show the history; see `HistoryView.trajectory_steps`."""
        if self.method not in ("props", "props+"):
            return replace(self.history, trajectory_steps=0)
        if self.history.trajectory_steps is not None:
            return self.history
        shown = self.method == "props+" and policy.kind == "table"
        return replace(self.history, trajectory_steps=200 if shown else 0)

    def arm(self, task: Task) -> Arm:
        """The published numbers of the task for this method, overridden by those that are set here."""
        arm = task.plus if self.method == "props+" else task.props
        unknown = not self.asks or self.optimum == "true" and arm.optimum is None
        return Arm(
            optimum=None if unknown else told_optimum(self._optimum, arm.optimum),
            warmup=arm.warmup if self.warmup is None else self.warmup,
            iterations=self.iterations or arm.iterations,
            episodes=self.episodes or arm.episodes,
            max_steps=self.max_steps or arm.max_steps,
        )

    @property
    def _optimum(self) -> Any:
        return self.optimum if self.optimum in ("true", "hidden") else float(self.optimum)


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
    arm = config.arm(task)
    reply, templates = config.reply, config.templates
    asking = Asking(retries=reply.retries, on_failure=reply.on_failure, failures=reply.failures, **chat)
    description = partial(describe, env, env_params, policy, max_steps=arm.max_steps)
    optimizer: Any
    if config.method == "evollm":
        view = HistoryView(top=10, last=10, order="ascending")
        optimizer = EvoLLM(
            model, policy, arm.iterations, population=config.population, block=config.block,
            view=view if config.history == HistoryView() else config.history, asking=asking, warmup=max(1, arm.warmup),
        )  # fmt: skip
    elif config.method == "legacy":
        optimizer = LegacyOptimizer(
            model,
            policy,
            arm.iterations,
            environment=description(hints=config.hints, hide=config.hide),
            templates=LegacyTemplates(
                templates.folder,
                templates.llm_si_template_name,
                templates.llm_ui_template_name,
                templates.llm_output_conversion_template_name,
            ),
            grammar=published_grammar(policy, **reply.chosen),
            asking=asking,
            use_replay_buffer=config.use_replay_buffer,
            buffer_rows=config.buffer_rows,
            buffer_episodes=config.buffer_episodes,
            buffer_steps=config.buffer_steps,
            reset_llm_conversation=config.reset_llm_conversation,
        )
    else:
        plus = config.method == "props+"
        name = templates.llm_si_template_name
        prompt = ProposalPrompt(
            policy,
            iterations=arm.iterations,
            optimum=arm.optimum,
            step_size=config.step_size or task.step or 1.0,
            environment=description(hints=config.hints, hide=config.hide) if plus else "",
            explain=config.explain,
            proposals=config.proposals,
            evaluation_episodes=arm.episodes,
            template=Path(name) if name else None,
            template_dir=templates.folder,
            env_desc_file=templates.env_desc_file,
        )
        loose = {} if prompt.names_box or policy.kind == "table" else {"beyond": "keep"}
        grammar = Grammar.of(policy, proposals=config.proposals, **(loose | reply.chosen))
        optimizer = LanguageModelOptimizer(
            model, prompt, grammar=grammar, view=config.view(policy), asking=asking, repeat=reply.repeat,
            warmup=arm.warmup,
        )  # fmt: skip
    if config.polish:
        optimizer = Polished(optimizer, make_numeric(config.polish, policy), rounds=config.polish_rounds)
    return optimizer
