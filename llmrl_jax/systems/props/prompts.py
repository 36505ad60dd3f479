"""The prompts of ProPS, ProPS+ and EvoLLM: their slots, and user templates.

The slots have the published names (props reference, section 3), so that a published template renders here unchanged:
`rank`, `optimum`, `step_size`, `episode_reward_buffer_string`, `step_number`, `episodes`, `actions`, and
`env_description`, the file with a description, which templates of ProPS+ include. Templates of a later fork also use
`num_episodes` (the same as `episodes`), `num_evaluation_episodes`, `buffer_top_k` and `buffer_recent_j`, and
`attempt_idx`, which is 0: here parsing errors are reported in the dialogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from llmrl_jax.core.checks import above, fields_at_least
from llmrl_jax.systems.props.history import HistoryView, Row
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.templates import digits, fill, load, missing, wants


Optimum = Literal["true", "hidden"] | float
"""The largest return in a prompt: the task's own, which is oracle knowledge; none; or a number."""


NO_DESCRIPTION = "it includes env_description, and env_desc_file is empty; name the file with the description"


def told_optimum(choice: Optimum | str, true: float | None) -> float | None:
    """The number stated in a prompt, or None.

    **Raises:** `ValueError` for `"true"` if the task has none, or for another word.
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
    """The requested line, with every index: `params[0]: ; params[1]: ; ...`."""
    return separator.join(f"params[{i}]: " for i in range(num_params)).rstrip()


def span(num_params: int) -> str:
    """`params[0] to params[8]`."""
    return f"params[0] to params[{num_params - 1}]" if num_params > 1 else "params[0]"


@dataclass(frozen=True)
class ProposalPrompt:
    """The prompt of ProPS, or of ProPS+ if there is a description; for numbers, or for actions in a table."""

    policy: Policy
    iterations: int = 400
    """`N` of "iteration k of N"."""
    optimum: float | None = None
    """The largest return, as stated in the prompt; None: stated to be unknown. See `told_optimum`."""
    step_size: float | None = 1.0
    """Exploration step size suggested in the prompt; none for tables."""
    environment: str = ""
    """Description of the environment (`describe.describe`), for ProPS+."""
    explain: bool = True
    """Whether to ask for an explanation; unnecessary for reasoning models."""
    proposals: int = 1
    """Number of proposals to request."""
    evaluation_episodes: int = 20
    """Number of episodes over which f(params) is the mean; the built-in template does not state it."""
    template: Path | None = None
    """A user template instead of the built-in one; it may include others of its folder."""
    template_dir: Path | None = None
    """Folder of `template` and its includes; None: the template's own."""
    env_desc_file: str = ""
    """The file that a published template of ProPS+ includes as `env_description`, relative to that folder."""

    def __post_init__(self):
        fields_at_least(self, 1, "iterations", "proposals", "evaluation_episodes")
        if self.policy.kind != "table":
            above("step_size", self.step_size or 0.0, 0)
        if self.template is not None:  # a missing or invalid template is an error now, not at the first question
            self.render("", 1)

    @cached_property
    def _template(self):
        if self.template is None:
            return load(name="proposal.j2")
        if self.template_dir is None:
            return load(name=self.template.name, folder=self.template.parent)
        return load(name=self.template.as_posix(), folder=self.template_dir)

    @property
    def names_box(self) -> bool:
        """Whether the prompt states the policy's box; a published template has numbers of its own."""
        return self.template is None or {"low", "high"} <= wants(self._template)

    @property
    def actions(self) -> list[int] | None:
        """The valid ids of a parameter, for a table."""
        if self.policy.kind != "table":
            return None
        return list(range(int(self.policy.low), int(self.policy.high) + 1))

    def render(
        self, history: str, iteration: int, *, trajectories: bool = False, view: HistoryView | None = None
    ) -> str:
        """The prompt: one user message, as published.

        **Arguments:** `history`, see `HistoryView.render`; `iteration`, from 1; `trajectories`, whether the history
        contains episodes; `view`, the selection of its rows (None: all rows).
        **Raises:** `ValueError` for a template with an unknown slot.
        """
        shown = (view.top, view.last) if view else (None, None)
        top, last = (0, "all") if shown == (None, None) else (shown[0] or 0, shown[1] or 0)
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
            "actions": None if self.actions is None else [self.actions],
            "environment": self.environment,
            "env_description": self.env_desc_file or missing(NO_DESCRIPTION),
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
