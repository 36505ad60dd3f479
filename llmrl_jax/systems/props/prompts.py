"""The prompts of ProPS, ProPS+ and EvoLLM: what fills their slots, and how a user's own templates take their place.

The slots have the published names (props reference, section 3), so that a published template renders here unchanged:
`rank`, `optimum`, `step_size`, `episode_reward_buffer_string`, `step_number`, `episodes`, `actions`, `env_desc_file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from llmrl_jax.systems.props.history import Row
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.templates import fill, load, number


Optimum = Literal["true", "hidden"] | float
"""What a prompt says of the largest return: the task's own, which is knowledge of an oracle; nothing; or a number."""


def told_optimum(choice: Optimum | str, true: float | None) -> float | None:
    """The number that a prompt tells, or None for nothing.

    **Raises:** `ValueError` for `"true"` where the task has none, or for another word.
    """
    if choice == "true":
        if true is None:
            raise ValueError("optimum is 'true', but the task has no known optimum; use 'hidden' or a number")
        return true
    if choice == "hidden":
        return None
    if isinstance(choice, str):
        raise ValueError(f"optimum is {choice!r}; it is 'true', 'hidden' or a number")
    return float(choice)


def answer_form(num_params: int, separator: str = "; ") -> str:
    """The line that a model is asked for, with every index: `params[0]: ; params[1]: ; ...`."""
    return separator.join(f"params[{i}]: " for i in range(num_params)).rstrip()


def span(num_params: int) -> str:
    """`params[0] to params[8]`."""
    return f"params[0] to params[{num_params - 1}]" if num_params > 1 else "params[0]"


@dataclass(frozen=True)
class ProposalPrompt:
    """ProPS's prompt, or ProPS+'s where there is a description; for numbers, or for actions in a table."""

    policy: Policy
    iterations: int = 400
    """`N` of "iteration k of N"."""
    optimum: float | None = None
    """What the prompt says of the largest return; None: that it is not known. See `told_optimum`."""
    step_size: float | None = 1.0
    """What the prompt suggests while exploring; tables have none."""
    environment: str = ""
    """The description of the world (`describe.describe`), which makes it ProPS+."""
    explain: bool = True
    """Whether to ask for an explanation; models that reason by themselves do not need to be asked."""
    proposals: int = 1
    """How many to ask for."""
    template: Path | None = None
    """A template of the user's own in the place of ours; it may include others of its folder."""
    env_desc_file: str = ""
    """The file that a published template of ProPS+ includes, relative to its folder."""

    def __post_init__(self):
        for name in ("iterations", "proposals"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.policy.kind != "table" and (self.step_size is None or not self.step_size > 0):
            raise ValueError(f"step_size is {self.step_size}; it must be positive for anything but a table")
        _ = self._template  # a template that is missing is an error now, not at the first question

    @cached_property
    def _template(self):
        if self.template is None:
            return load(name="proposal.j2")
        return load(name=self.template.name, folder=self.template.parent)

    @property
    def actions(self) -> list[int] | None:
        """The ids that a parameter may be, for a table."""
        if self.policy.kind != "table":
            return None
        return list(range(int(self.policy.low), int(self.policy.high) + 1))

    def render(self, history: str, iteration: int, *, trajectories: bool = False) -> str:
        """The prompt: one message of the user's, as published.

        **Arguments:** `history`, see `HistoryView.render`; `iteration`, from 1 on; `trajectories`, whether episodes
        stand in the history.
        **Raises:** `ValueError` for a template that wants another slot.
        """
        policy = self.policy
        decimals = policy.decimals
        slots = {
            "rank": policy.num_params,
            "optimum": None if self.optimum is None else number(self.optimum),
            "step_size": self.step_size,
            "episode_reward_buffer_string": history,
            "step_number": iteration,
            "episodes": self.iterations,
            "actions": None if self.actions is None else [self.actions],
            "environment": self.environment,
            "env_desc_file": self.env_desc_file,
            "span": span(policy.num_params),
            "kind": "a number" if decimals else "an integer",
            "low": f"{policy.low:.{decimals}f}",
            "high": f"{policy.high:.{decimals}f}",
            "decimals": decimals,
            "form": answer_form(policy.num_params),
            "proposals": self.proposals,
            "explain": self.explain,
            "trajectories": trajectories,
        }
        return fill(self._template, slots)


@dataclass(frozen=True)
class MeanPrompt:
    """EvoLLM's question: members sorted from the lowest return to the highest, an improved return, and the mean
    wanted."""

    resolution: int
    """Parameters are the integers from 0 to this."""
    iterations: int

    def render(self, history: str, iteration: int, *, size: int, target: str, block: int = 1, blocks: int = 1) -> str:
        """The prompt for one block of parameters.

        **Arguments:** `history`, sorted; `iteration`, from 1 on; `size`, parameters in the block; `target`, the
        return to be reached; `block` of `blocks`, from 1 on.
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
    """The return to ask for: the best so far, and as much again as it is above the median."""
    values = sorted(row.value for row in rows)
    best, median = values[-1], values[len(values) // 2]
    return best + (best - median)
