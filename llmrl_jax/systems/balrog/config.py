"""Settings of the evaluation on BALROG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

import tyro

from llmrl_jax.core.checks import Checked, NonNegativeInt, PositiveInt, nearest
from llmrl_jax.core.config import FREE
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.balrog.agents import FIXES, AgentName, AgentSettings, Fix
from llmrl_jax.systems.balrog.build import BABYAI_LEVEL, BABYAI_TASKS
from llmrl_jax.systems.balrog.prompts import Version
from llmrl_jax.workflows.chat_model import ChatConfig


BABYAI, CRAFTER = "babyai", "crafter"
TASKS = (*BABYAI_TASKS, CRAFTER)
"""The tasks by name: five of BabyAI, and Crafter."""

_LISTED = "; ".join(f"`{name}`: {about}" for name, about in FIXES.items())
FIX_HELP = f"Corrections of quirks of the reference: {_LISTED}."


@dataclass(frozen=True)
class EvalRun(Checked):
    """Tasks, agent and model of an evaluation. Defaults are the published ones, apart from `seeds`."""

    KIND: ClassVar[str] = "balrog eval"

    tasks: tuple[str, ...] = (BABYAI, CRAFTER)
    """Tasks: `goto`, `pickup`, `open`, `putnext`, `pick_up_seq_go_to`, or all five as `babyai`; `crafter`."""
    episodes: PositiveInt = field(default=10, metadata=FREE)
    """Episodes of each task; published: 10, with standard errors of up to 16 points. A resumed run may have more."""
    agent: AgentName = "naive"
    """Agent: `naive`, the action alone; `cot`, thoughts before it; the `robust` ones ask for tags around the action."""
    balrog: Version = "2025-08"
    """Version of the texts. Differences: wording of feedback and labels, the facing cell, order and plural in
    Crafter's list."""
    max_text_history: PositiveInt = 16
    """Observations that a prompt has."""
    max_cot_history: NonNegativeInt = 1
    """Newest thoughts of `cot` that a prompt has."""
    feedback: bool = True
    """Say in an observation that the reply before it was invalid."""
    alternate_roles: bool = False
    """Join neighbouring messages of one role, for chat templates in which user and assistant must alternate."""
    fixes: Annotated[tuple[Fix, ...], tyro.conf.arg(help=FIX_HELP)] = ()
    """Corrections of quirks of the reference (`agents.FIXES`)."""
    seeds: Literal["own", "same"] = "own"
    """`own`: a seed per episode; `same`: `run.seed` for every episode, as in the reference where a seed is set. Then
    all episodes of a task are one instance."""
    max_steps: NonNegativeInt = 0
    """Steps after which an episode ends; 0: the task's, 64 or 128 in BabyAI and 2,000 in Crafter."""
    chat: ChatConfig = field(default_factory=lambda: ChatConfig(max_tokens=8192))
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        if not self.tasks:
            raise ValueError(f"tasks is empty; name at least one of {', '.join((BABYAI, *TASKS))}")
        for name in self.tasks:
            if name not in (BABYAI, *TASKS):
                names = [BABYAI, *TASKS]
                raise ValueError(f"there is no task {name!r}{nearest(name, names)} (there are {', '.join(names)})")
        unknown = [name for name in self.fixes if name not in get_args(Fix)]
        if unknown:
            raise ValueError(f"there is no correction {unknown[0]!r} (there are {', '.join(FIXES)})")
        if self.agent not in self.settings.wording.agents:
            agents = ", ".join(self.settings.wording.agents)
            raise ValueError(f"BALROG of {self.balrog} has no agent {self.agent!r} (it has {agents}): take a later one")

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks, each once, in BALROG's order."""
        return tuple(name for name in TASKS if name in self.tasks or BABYAI in self.tasks and name != CRAFTER)

    @property
    def settings(self) -> AgentSettings:
        """The settings of an agent."""
        return AgentSettings(
            self.agent,
            self.balrog,
            self.max_text_history,
            self.max_cot_history,
            self.feedback,
            self.alternate_roles,
            self.fixes,
        )


def published_name(task: str) -> str:
    """The name of a task in BALROG's folders."""
    return "default" if task == CRAFTER else f"{BABYAI_LEVEL}/{task}"
