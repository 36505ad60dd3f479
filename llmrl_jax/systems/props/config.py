"""Settings of ProPS: of a search, and of each command, as flags and config.json have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import tyro

from llmrl_jax import lm
from llmrl_jax.core.checks import (
    MAX_SEED,
    Checked,
    FiniteFloat,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    at_least,
    between,
    refuse_unread,
)
from llmrl_jax.core.config import FREE
from llmrl_jax.core.files import expanded
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.props.optimizers import NUMERIC
from llmrl_jax.systems.props.policies import Init, Kind, Policy
from llmrl_jax.systems.props.prompts import HistoryView
from llmrl_jax.systems.props.proposals import OnFailure, Repeat
from llmrl_jax.systems.props.tasks import Task, TaskSettings, get
from llmrl_jax.tuning import GRPOConfig
from llmrl_jax.workflows.chat_model import ChatConfig
from llmrl_jax.workflows.tuning import Tuned


ModelMethod = Literal["props", "props+", "evollm", "legacy"]
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
        options = {"kind": self.kind, "init": self.init, "low": self.low, "high": self.high, "decimals": self.decimals}
        return {name: v for name, v in options.items() if v is not None} | ({"rank": self.rank} if self.rank else {})

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
        names = (self.llm_si_template_name, self.llm_ui_template_name, self.llm_output_conversion_template_name)
        if any(names) and not self.template_dir:
            raise ValueError(
                f"the template {next(filter(None, names))!r} is named, but no templates.template_dir to find it in"
            )

    def check(self) -> None:
        """Check what a new or resumed search needs on disk; settings that are only compared need nothing there.

        **Raises:** `ValueError`."""
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"templates.template_dir is {self.template_dir}, which is no folder")


_MODEL = Needs("method", get_args(ModelMethod))
_PROMPT = Needs("method", ("props", "props+"))
_DESCRIPTION = Needs("method", ("props+", "legacy"))
_HISTORY = Needs("method", ("props", "props+", "evollm"))
_UNREAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("props", "props+"), ("templates.llm_ui_template_name", "templates.llm_output_conversion_template_name")
    ),
    "evollm": (
        "reply.beyond", "reply.finer", "reply.repeated", "reply.take", "reply.compat", "reply.repeat",
        "history.trajectory_steps",
    ),
    "legacy": ("reply.take", "reply.compat", "reply.repeat", "templates.env_desc_file"),
}  # fmt: skip
"""Method -> options that it does not read, of parts that it does read."""


@dataclass(frozen=True)
class PropsConfig(Checked):
    """Search settings. 0 or None: the published value of the task."""

    method: Method = "props"
    iterations: NonNegativeInt = 0
    """Number of proposals by the model, or the equivalent budget of a numeric method; 0: as published, usually 400."""
    episodes: NonNegativeInt = 0
    """Episodes per evaluation; 0: as published, usually 20."""
    warmup: Annotated[NonNegativeInt | None, _HISTORY] = None
    """Random policies before the first proposal; None: as published, for `evollm` at least 1."""
    warmup_episodes: Annotated[NonNegativeInt, _MODEL] = 0
    """Episodes per warm-up policy; 0: as many as for other policies. The released code plays 1, which mixes noisy
    returns with means."""
    max_steps: NonNegativeInt = 0
    """Maximum episode length; 0: the task's."""
    proposals: Annotated[PositiveInt, Needs("method", ("props", "props+", *NUMERIC))] = 1
    """Number of policies proposed per reply."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    optimum: Annotated[str, _PROMPT] = "true"
    """Optimal return given in prompts: `true`, the published one, which is oracle knowledge (omitted if none is
    published); `hidden`; or a number."""
    step_size: Annotated[NonNegativeFloat, _PROMPT] = 0.0
    """Exploration step size suggested in prompts; 0: as published."""
    hints: Annotated[int, In("[0, 2]"), _DESCRIPTION] = 0
    """For `props+`: level of hints: 0 none, 1 a rule of behaviour, 2 also its meaning for the parameters."""
    hide: Annotated[bool, _DESCRIPTION] = False
    """For `props+`: omit the meaning of states, actions and rewards."""
    explain: Annotated[bool, _PROMPT] = True
    """Ask for an explanation with every proposal; unnecessary for reasoning models."""
    history: Annotated[HistoryView, _HISTORY] = field(default_factory=HistoryView)
    """Which rows of the history a prompt shows."""
    reply: Annotated[ReplyConfig, _MODEL] = field(default_factory=ReplyConfig)
    templates: Annotated[TemplateConfig, Needs("method", ("props", "props+", "legacy"))] = field(
        default_factory=TemplateConfig
    )
    common: bool = True
    """Evaluate the policies of one iteration on the same episodes (common random numbers)."""
    polish: Annotated[str, _MODEL] = ""
    """Numeric method that refines every proposal, e.g. `cma_es`; empty: none."""
    polish_rounds: Annotated[PositiveInt, Needs("polish")] = 5
    """Rounds of `polish` after each proposal."""
    population: Annotated[PositiveInt, Needs("method", "evollm")] = 5
    """For `evollm`: policies per generation."""
    block: Annotated[NonNegativeInt, Needs("method", "evollm")] = 0
    """For `evollm`: parameters per question; 0: all."""
    use_replay_buffer: Annotated[bool, Needs("method", "legacy")] = False
    """For `legacy`: show steps of an episode (the replay buffer)."""
    buffer_rows: Annotated[PositiveInt, Needs("use_replay_buffer")] = 100
    """Number of steps shown from the replay buffer."""
    buffer_episodes: Annotated[NonNegativeInt, Needs("use_replay_buffer")] = 0
    """Use only the last this many episodes of an evaluation; 0: all. Published as `max_traj_count`."""
    buffer_steps: Annotated[NonNegativeInt, Needs("use_replay_buffer")] = 0
    """Use only the last this many steps of an episode; 0: all. Published as `max_traj_length`."""
    reset_llm_conversation: Annotated[bool, Needs("method", "legacy")] = False
    """For `legacy`: clear the conversation before every question."""
    final_episodes: PositiveInt = 1000
    """Fresh episodes for the final evaluation of the best policy, whose return during the search is biased upwards by
    selection."""

    def __post_init__(self):
        super().__post_init__()
        refuse_unread(self, _UNREAD.get(self.method, ()), f"method {self.method}")
        if self.reply.compat == "paper":
            checked = ("proposals", "reply.beyond", "reply.finer", "reply.repeated")
            remedy = "that is the released parser, which takes one proposal and checks no number"
            refuse_unread(self, checked, "--reply.compat paper", remedy=remedy)
        self._check_polish()
        if self.method == "evollm" and self.warmup is not None:
            at_least("warmup", self.warmup, 1, remedy="evollm begins from evaluated policies")
        if self.optimum not in ("true", "hidden") and not re.fullmatch(r"[+-]?\d+(\.\d*)?", self.optimum):
            raise ValueError(f"optimum is {self.optimum!r}; it is 'true', 'hidden' or a number")

    def _check_polish(self) -> None:
        polishers = [name for name in NUMERIC if name != "random_search"]  # which has no start
        if self.polish and self.polish not in polishers:
            raise ValueError(f"polish is {self.polish!r}; it is one of {', '.join(polishers)}")
        if self.polish and self.use_replay_buffer:
            raise ValueError(
                f"polish is {self.polish}, whose matrices have no episodes for use_replay_buffer to show; leave one of "
                "the two out"
            )

    @property
    def asks(self) -> bool:
        """Return whether the method queries a language model."""
        return self.method in get_args(ModelMethod)

    def view(self, policy: Policy) -> HistoryView:
        """The selection of the history for prompts; see `HistoryView.trajectory_steps`."""
        if self.method not in ("props", "props+"):
            return replace(self.history, trajectory_steps=0)
        if self.history.trajectory_steps is not None:
            return self.history
        shows_steps = self.method == "props+" and policy.kind == "table"
        return replace(self.history, trajectory_steps=200 if shows_steps else 0)

    def task_settings(self, task: Task) -> TaskSettings:
        """The published numbers of the task for this method, overridden by those that are set here."""
        settings = task.plus if self.method == "props+" else task.props
        return TaskSettings(
            optimum=self._optimum(settings.optimum),
            warmup=settings.warmup if self.warmup is None else self.warmup,
            iterations=self.iterations or settings.iterations,
            episodes=self.episodes or settings.episodes,
            max_steps=self.max_steps or settings.max_steps,
        )

    def _optimum(self, published: float | None) -> float | None:
        """The largest return as prompts state it; None: unknown."""
        if not self.asks or self.optimum == "hidden":
            return None
        return published if self.optimum == "true" else float(self.optimum)


# --- settings of the commands -----------------------------------------------------------------------------------------


def _check_searches(config: Any) -> None:
    """Check the options that `PropsRun` and `TableConfig` share.

    **Raises:** `ValueError` naming the option; `KeyError` for an unknown task."""
    seed = config.run.seed
    last = MAX_SEED + 1 - seed if 0 <= seed <= MAX_SEED else MAX_SEED  # a saved run may have another seed
    remedy = f"seeds go up to {MAX_SEED}, from --run.seed {seed}"
    between("seeds", config.seeds, 1, last, remedy=remedy if config.seeds > 1 else "")
    if not config.tasks:
        raise ValueError("tasks is empty; name at least one, or all")
    if config.tasks == ("all",):
        return
    names = [get(name).name for name in config.tasks]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"tasks has {twice[0]!r} twice; name it once (--seeds repeats a search)")


def _with_run(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, in which the fields of `run` are at the top level."""
    old = {name: values[name] for name in ("name", "out", "seed", "resume") if name in values}
    dropped = (*old, "config")
    if not any(name in values for name in dropped) or not isinstance(values.get("run", {}), Mapping):
        return values
    remaining = {name: value for name, value in values.items() if name not in dropped}
    return {**remaining, "run": {**old, **values.get("run", {})}}


@dataclass(frozen=True)
class PropsRun(Checked):
    """A run of searches: tasks, method and model."""

    KIND: ClassVar[str] = "props run"
    upgraded = staticmethod(_with_run)

    tasks: tuple[str, ...] = ("mountain_car_continuous",)
    """Tasks, by name (`llmrl props list`) or environment id; `all`: the paper's fifteen."""
    seeds: PositiveInt = 1
    """Searches per task, with the seeds `run.seed`, `run.seed` + 1, ..."""
    search: Annotated[PropsConfig, tyro.conf.arg(name="")] = field(default_factory=PropsConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    video: bool = field(default=False, metadata=FREE)
    """Also write an episode of the best policy of each search as `episode.gif`."""
    workers: Annotated[int, In("[1, 1024]")] = field(default=4, metadata=FREE)
    """Number of concurrent searches, whose requests to a server are concurrent too."""
    print_every: NonNegativeInt = field(default=50, metadata=FREE)
    """Rounds between progress lines of a search; 0: only at its end."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        _check_searches(self)


SCRIPTED = "scripted"
"""Name of the scripted adviser as a method of the table."""
EPISODES = 20
"""Episodes per evaluation in the table, as published."""


@dataclass(frozen=True)
class TableConfig(Checked):
    """Results of several methods on the published tasks, as a page and JSON."""

    KIND: ClassVar[str] = "props table"

    tasks: tuple[str, ...] = field(default=("all",), metadata=FREE)
    """Tasks, by name; `all`: the paper's fifteen."""
    methods: tuple[str, ...] = field(default=(SCRIPTED, "random_search", "ars", "cma_es"), metadata=FREE)
    """`scripted`, the scripted adviser; or numeric methods: random_search, hill_climbing, ars, cma_es, open_es, cem."""
    seeds: PositiveInt = field(default=10, metadata=FREE)
    """Searches per task and method, with the seeds `run.seed`, `run.seed` + 1, ..."""
    budget: Annotated[int, In(f"[{EPISODES}, 2147483647]")] = field(default=8000, metadata=FREE)
    """Episodes per search."""
    final_episodes: Annotated[int, In("[2, 2147483647]")] = field(default=100, metadata=FREE)
    """Fresh episodes for the final evaluation of the best policy of each search."""
    workers: Annotated[int, In("[1, 1024]")] = field(default=2, metadata=FREE)
    """Number of concurrent searches of the scripted adviser."""
    page: Path = field(default=Path("docs/systems"), metadata=FREE)
    """Folder of `props-table.md` and `props-table.json`, to which rows are added."""
    again: bool = field(default=False, metadata=FREE)
    """Repeat these tasks and methods: their earlier results are removed first."""
    run: BaseRunConfig = field(default_factory=lambda: BaseRunConfig(name="props-table"))

    def __post_init__(self):
        super().__post_init__()
        _check_searches(self)
        if not self.methods:
            raise ValueError(f"methods is empty; name at least one, as in --methods {SCRIPTED} cma_es")


# --- fine-tuning ------------------------------------------------------------------------------------------------------


HELD_OUT = 5
"""One prompt in this many is held out: a fifth, as published."""
PUBLISHED_SCALES: Mapping[str, tuple[float, float]] = {"mountain_car_continuous": (-200.0, 100.0), "swimmer": (0, 250)}
"""The returns that the published rewards scale to 0 and 1."""


@dataclass(frozen=True)
class FinetuneConfig(Checked):
    """Prompts and rewards of fine-tuning. The defaults are the corrected form."""

    tasks: tuple[str, ...] = ("mountain_car_continuous", "cartpole")
    """Training tasks, by name (`llmrl props list`) or environment id."""
    held_out_tasks: tuple[str, ...] = ()
    """Tasks used only for evaluation, before and after training."""
    policies: PositiveInt = 4000
    """Number of random policies per task, shown in the prompts."""
    history: PositiveInt = 5
    """Rows of history per prompt; published: 1, which leaves nothing to compare."""
    episodes: PositiveInt = 20
    """Episodes per evaluation of a policy shown in a prompt."""
    judged_episodes: PositiveInt = 20
    """Episodes per evaluation of a proposed policy; published: 1, which rewards luck."""
    eval_prompts: PositiveInt = 128
    """Maximum number of held-out prompts per task in an evaluation."""
    method: Literal["props", "props+"] = "props"
    """`props`: numbers only; `props+`: the prompt also describes the environment."""
    iterations: PositiveInt = 400
    """`N` in the prompt's "iteration 1 of N"."""
    optimum: Literal["true", "hidden"] = "true"
    """Whether prompts state the published optimum, if there is one, which is oracle knowledge."""
    explain: bool = True
    """Ask for an explanation after the proposal."""
    format_weight: NonNegativeFloat = 1.0
    """Weight of each of the two format parts of the reward; published: 1. A valid reply gets their sum even if its
    policy earns nothing, so where good policies are rare, a smaller weight lets them decide what is learnt."""
    compat: Literal["", "paper"] = ""
    """`paper`: data drawn from U(-10, 10), beyond the bounds stated in the prompt; answers in <think> and <policy>
    tags, with unbounded numbers; the published scales, and the published `improvement` with its sign error."""

    def __post_init__(self):
        super().__post_init__()
        if not self.tasks:
            raise ValueError("tasks is empty; name at least one to learn on")
        names = [get(name).name for name in (*self.tasks, *self.held_out_tasks)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the task {twice[0]!r} is named twice among tasks and held_out_tasks; name it once")
        if self.prompts < HELD_OUT:
            raise ValueError(
                f"{self.policies} policies in prompts of {self.history} rows make {self.prompts} prompts of a task; at "
                f"least {HELD_OUT} are needed, one of them held out: raise --policies, or lower --history"
            )
        if self.compat == "paper":
            for name in names:
                if name not in PUBLISHED_SCALES:
                    scaled = ", ".join(PUBLISHED_SCALES)
                    raise ValueError(
                        f"there are no published rewards for {name!r}, only for {scaled}; leave compat out"
                    )

    @property
    def prompts(self) -> int:
        """Number of prompts per task, including held-out ones."""
        return self.policies // self.history


PUBLISHED = FinetuneConfig(tasks=("mountain_car_continuous",), history=1, judged_episodes=1, compat="paper")
"""The published fine-tuning on Mountain Car (continuous)."""


def _without_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, which also holds the name of the preset: drop it."""
    return {name: value for name, value in values.items() if name != "preset"}


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Tuned):
    """A fine-tuning run: model and tasks. `preset(name)` gives published values."""

    KIND: ClassVar[str] = "props finetune"
    upgraded = staticmethod(_without_preset)

    data: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = field(default_factory=FinetuneConfig)
    lora: lm.LoRAConfig = field(default_factory=lambda: lm.LoRAConfig(rank=8, alpha=32.0, targets=lm.lora.TARGETS))
    """The adapters, if `tune` is `lora`."""
    updates: PositiveInt = field(default=500, metadata=FREE)
    """Number of updates; each samples `grpo.prompts` x `grpo.group` answers."""
    max_prompt: PositiveInt = 2048
    """Maximum prompt length in tokens; a longer prompt is an error that names its task."""
    grpo: GRPOConfig = field(
        default_factory=lambda: GRPOConfig(prompts=16, group=8, max_new_tokens=256, microbatches=8)
    )
    """The learner."""


def preset(name: str, model: str = "") -> FinetuneRun:
    """A preset for fine-tuning: `corrected`, or `published` with its errors (`FinetuneConfig.compat`).

    `published`: adapters of rank 8 and alpha 32 on all matrices except values and gates; 500 steps of 128 answers, 4
    per prompt, equal to the published 5 epochs over 3,200 prompts; learning rate 1e-5; 256 tokens per answer
    (`llm-rl_finetune`). Values not published follow the GRPO paper (2402.03300). Published prompts were
    truncated to 512 tokens; here they are not. Not reproduced: dropout in the adapters, the learning-rate decay, and
    the upload.

    **Arguments:** `model`, a folder or a hub id; it may be set later. **Raises:** `ValueError` for another name.
    """
    if name == "corrected":
        return FinetuneRun(model=model)
    if name != "published":
        raise ValueError(f"preset is {name!r}; it is one of corrected, published")
    return FinetuneRun(
        model=model,
        data=PUBLISHED,
        lora=lm.LoRAConfig(rank=8, alpha=32.0, targets=("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")),
        grpo=GRPOConfig(
            prompts=32, group=4, max_new_tokens=256, microbatches=16, advantage="grpo", aggregate="sequence",
            kl_coef=0.04, learning_rate=1e-5,
        ),
    )  # fmt: skip
