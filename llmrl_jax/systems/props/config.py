"""ProPS's settings, and the optimizer that they describe."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from envs_jax.env import Environment
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.checks import at_least, fields_at_least, refuse_unread
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
"""The methods that ask a model."""
Method = Literal[
    "props", "props+", "evollm", "legacy", "random_search", "hill_climbing", "ars", "cma_es", "open_es", "cem"
]
"""Who searches: `props`, the language model, which sees numbers only; `props+`, which also reads what the world is;
`evollm`, which names the mean of the next generation; `legacy`, the dialogue over a matrix that came before; or a
numeric method on the same parameters."""


@dataclass(frozen=True)
class PolicyConfig:
    """The policy's form, where it is not the task's."""

    kind: Kind | None = None
    """None: linear with bias, or a table where states are numbered."""
    rank: int = 0
    """Numbers of a `projection`."""
    init: Init | None = None
    """How first policies are drawn; None: as the kind has it."""
    low: float | None = None
    """The box that is searched; None: -6 for linear policies, the actions' ids for tables."""
    high: float | None = None
    decimals: int | None = None
    """Of a parameter in a prompt; None: 1, or 0 for a table."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are set, for `make_policy`."""
        given = {"kind": self.kind, "init": self.init, "low": self.low, "high": self.high, "decimals": self.decimals}
        return {name: v for name, v in given.items() if v is not None} | ({"rank": self.rank} if self.rank else {})


@dataclass(frozen=True)
class ReplyConfig:
    """What a reply may be, and what follows where it is something else."""

    beyond: Literal["reject", "clip", "keep"] | None = None
    """A parameter outside of the box; None: refused, but kept, as published, by `legacy`, and of numbers under a
    template of the user's own that does not name the policy's box (`low` and `high`)."""
    finer: Literal["reject", "round", "keep"] | None = None
    """A number with too many decimals; None: rounded, but refused for a table, and kept by `legacy`, as published."""
    repeated: Literal["reject", "keep"] | None = None
    """A policy that was tried before; None: refused, but kept by `legacy`, as published."""
    take: Literal["first", "last"] = "first"
    """Which proposals, where a reply holds more than were asked for."""
    retries: int = 4
    """How often the reasons go back to the model; published: 5 attempts in all."""
    on_failure: OnFailure = "skip"
    """After that: `skip` the iteration, `repeat` a policy, or `stop`. Each is in the log."""
    repeat: Repeat = "best"
    """Which policy: the `best`, or the `last`, as the fine-tuning repository does; of `legacy` always the last."""
    failures: int = 10
    """Failed iterations in a row after which one more stops the search in any case."""
    compat: Literal["", "paper"] = ""
    """`paper`: the released parser, which checks neither indices nor the box."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are set, for a `Grammar`."""
        named = ("beyond", "finer", "repeated", "take", "compat")
        return {name: value for name in named if (value := getattr(self, name)) is not None}

    def __post_init__(self):
        fields_at_least(self, 0, "retries", "failures", prefix="reply.")
        if self.on_failure != "repeat":
            refuse_unread(self, ("repeat",), f"--reply.on-failure {self.on_failure}", prefix="reply.")


@dataclass(frozen=True)
class TemplateConfig:
    """A user's own prompts, under the published names; empty: ours."""

    template_dir: str = ""
    """Folder of the templates."""
    llm_si_template_name: str = ""
    """ProPS's prompt, or the legacy protocol's system message; without `llm_ui_template_name` its question, as
    published."""
    llm_ui_template_name: str = ""
    """The legacy protocol's question."""
    llm_output_conversion_template_name: str = ""
    """The legacy protocol's request to convert."""
    env_desc_file: str = ""
    """What a published template of ProPS+ includes (`env_description`), relative to `template_dir`."""

    @property
    def folder(self) -> Path | None:
        """`template_dir` as a path."""
        return Path(self.template_dir).expanduser() if self.template_dir else None

    def __post_init__(self):
        given = (self.llm_si_template_name, self.llm_ui_template_name, self.llm_output_conversion_template_name)
        if any(given) and not self.template_dir:
            raise ValueError(f"the template {next(filter(None, given))!r} is named, but no template_dir to find it in")


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
"""Method -> options that mean nothing to it."""


@dataclass(frozen=True)
class PropsConfig:
    """How parameters are searched for. What is 0 or None is as published for the task (props reference, section 5)."""

    method: Method = "props"
    iterations: int = 0
    """Proposals of the model, or rounds as expensive as that of a numeric method; 0: as published, mostly 400."""
    episodes: int = 0
    """Episodes per evaluation; 0: as published, mostly 20."""
    warmup: int | None = None
    """Random policies before the first proposal; None: as published."""
    warmup_episodes: int = 0
    """Episodes for each of them; 0: as many as for the others. The release plays 1, and so mixes noise with means."""
    max_steps: int = 0
    """Steps of an episode; 0: the task's."""
    proposals: int = 1
    """Policies that one reply proposes."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    optimum: str = "true"
    """The largest return, as prompts tell it: `true`, the published one, which is knowledge of an oracle (nothing where
    none is published); `hidden`; or a number."""
    step_size: float = 0.0
    """The step that prompts suggest while exploring; 0: as published."""
    hints: int = 0
    """Of `props+`: 0 none, 1 a rule of behaviour, 2 also what it means for the parameters."""
    hide: bool = False
    """Of `props+`: leave out what anything means."""
    explain: bool = True
    """Ask for an explanation with every proposal; models that reason by themselves need not be asked."""
    history: HistoryView = field(default_factory=HistoryView)
    """Which rows a prompt shows."""
    reply: ReplyConfig = field(default_factory=ReplyConfig)
    templates: TemplateConfig = field(default_factory=TemplateConfig)
    common: bool = True
    """Whether the policies of one evaluation play the same episodes."""
    polish: str = ""
    """A numeric method that searches on from every proposal, `cma_es` say; empty: none."""
    polish_rounds: int = 5
    """Its rounds after each proposal."""
    population: int = 5
    """Of `evollm`: policies in a generation."""
    block: int = 0
    """Of `evollm`: parameters per question; 0: all."""
    use_replay_buffer: bool = False
    """Of `legacy`: show steps of an episode."""
    buffer_rows: int = 100
    """How many of them."""
    buffer_episodes: int = 0
    """Of the last of an evaluation's episodes only, this many; 0: of all. Published: `max_traj_count`."""
    buffer_steps: int = 0
    """Of an episode's last steps only, this many; 0: of all. Published: `max_traj_length`."""
    reset_llm_conversation: bool = False
    """Of `legacy`: forget the dialogue before every question."""
    final_episodes: int = 1000
    """Fresh episodes in which the best policy is judged at the end; while searching it was the luckiest of many."""

    def __post_init__(self):
        known = get_args(Method)
        if self.method not in known:
            raise ValueError(f"method is {self.method!r}; it is one of {', '.join(known)}")
        fields_at_least(self, 0, "iterations", "episodes", "warmup_episodes", "max_steps", "step_size")
        fields_at_least(self, 0, "buffer_episodes", "buffer_steps")
        fields_at_least(self, 1, "proposals", "polish_rounds", "final_episodes", "buffer_rows")
        if self.warmup is not None:
            at_least("warmup", self.warmup, 0)
        refuse_unread(self, UNREAD[self.method], f"the method {self.method}")
        if not self.polish:
            refuse_unread(self, ("polish_rounds",), "a search without --polish")
        if not self.use_replay_buffer:
            refuse_unread(self, _BUFFER, "a search without --use-replay-buffer")
        if self.reply.compat == "paper":
            checked = ("proposals", "reply.beyond", "reply.finer", "reply.repeated")
            remedy = "that is the released parser, which takes one proposal and checks no number"
            refuse_unread(self, checked, "--reply.compat paper", remedy=remedy)
        self._check_polish()
        if self.optimum not in ("true", "hidden") and not re.fullmatch(r"[+-]?\d+(\.\d*)?", self.optimum):
            raise ValueError(f"optimum is {self.optimum!r}; it is 'true', 'hidden' or a number")

    def _check_polish(self) -> None:
        polishers = [name for name in NUMERIC if name != "random_search"]  # which starts nowhere
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
        """Whether a model is asked."""
        return self.method in get_args(Asked)

    def view(self, policy: Policy) -> HistoryView:
        """How prompts show what was tried; see `HistoryView.trajectory_steps`."""
        if self.method not in ("props", "props+"):
            return replace(self.history, trajectory_steps=0)
        if self.history.trajectory_steps is not None:
            return self.history
        shown = self.method == "props+" and policy.kind == "table"
        return replace(self.history, trajectory_steps=200 if shown else 0)

    def arm(self, task: Task) -> Arm:
        """The published numbers of the task for this method, with those that are set here in their place."""
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

    **Arguments:** `env`, `env_params` and `policy`, of the task; `model`, which is asked, for methods that ask one;
    `chat`, `temperature` and `max_tokens` of its replies, by name.
    **Raises:** `ValueError` or `FileNotFoundError` where settings do not go together, before anything is asked.
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
