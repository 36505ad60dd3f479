"""BALROG's agents: the history of an episode, its messages, and the reading of replies.

Four agents differ in the format that they ask for and in its parser. Quirks of the reference are kept; `FIXES` names
the corrections, which are options.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from llmrl_jax.chat import Message, strip_thinking
from llmrl_jax.multiturn import replies
from llmrl_jax.systems.balrog.prompts import FORMATS, VERSIONS, Observation, Version, Wording


AgentName = Literal["naive", "cot", "robust_naive", "robust_cot"]

Fix = Literal["empty", "memory", "thinking", "view", "noop"]
FIXES: dict[str, str] = {
    "empty": "an empty action is recorded in the history as an empty answer, instead of two observations in a row",
    "memory": "`robust_cot` remembers its thoughts as `cot` does, instead of never",
    "thinking": "thoughts in a reply that its server left in the text (`<think>` and others) are no part of the answer",
    "view": "Crafter's view is whole at the left and upper border, instead of empty, and right at the others",
    "noop": "an episode of Crafter begins at its first state, instead of after a hidden Noop",
}
"""Corrections of quirks of the reference."""


@dataclass(frozen=True)
class AgentSettings:
    """An agent: its format, its version's wording, its memory, and corrections."""

    name: AgentName = "naive"
    balrog: Version = "2025-08"
    max_text_history: int = 16
    """Observations, and half of the events, that a prompt has."""
    max_cot_history: int = 1
    """Newest thoughts of `cot` that a prompt has."""
    feedback: bool = True
    """Whether the observation after an invalid reply says so."""
    alternate_roles: bool = False
    """Whether neighbouring messages of one role are joined by a newline."""
    fixes: tuple[Fix, ...] = ()

    @property
    def wording(self) -> Wording:
        """The texts of the version."""
        return VERSIONS[self.balrog]


class Answer(NamedTuple):
    """A reply as an agent reads it."""

    action: str
    reasoning: str | None
    """The whole reply, of agents that think; None for the others."""


def read_reply(name: AgentName, reply: str) -> Answer:
    """The action of a reply: any text, which the environment compares with its actions.

    **Arguments:** `name`, of the agent; `reply`, without white space at its ends."""
    return Answer(replies.FORMATS[name].parse(reply), reply if name in ("cot", "robust_cot") else None)


class _Event(NamedTuple):
    role: Literal["user", "assistant"]
    text: str
    reasoning: str | None = None


class Agent:
    """The agent of one episode. Call `messages` and `read` in turn, once per step.

    **Arguments:** `settings`; `instruction`, the first message."""

    def __init__(self, settings: AgentSettings, instruction: str):
        self.settings, self.instruction = settings, instruction
        self._events: deque[_Event] = deque(maxlen=2 * settings.max_text_history)
        self._answer: Answer | None = None
        thinks = settings.name == "cot" or settings.name == "robust_cot" and "memory" in settings.fixes
        self._thoughts = settings.max_cot_history if thinks else 0

    def messages(self, observation: Observation) -> tuple[Message, ...]:
        """The messages of the next request, from the current observation and the last answer."""
        wording = self.settings.wording
        if self._answer is not None and (self._answer.action or "empty" in self.settings.fixes):
            self._events.append(_Event("assistant", *self._answer))
        self._events.append(_Event("user", observation.text))
        texts, thoughts = len(self._events), self._thoughts
        if wording.hides_texts:
            texts = self.settings.max_text_history
        turns: list[tuple[str, str]] = []
        for i, event in enumerate(reversed(self._events)):
            if event.role == "user":
                lines = ["Current Observation:"] if i == 0 else [wording.label]
                lines += [observation.status] if i == 0 and (observation.status or wording.status_line) else []
                lines += [event.text] if texts > 0 else []
                texts -= 1
                turns.append(("user", "\n".join(lines)))
            elif event.reasoning is not None and thoughts > 0:
                thoughts -= 1
                turns.append(("assistant", f"Previous plan:\n{event.reasoning}"))
            else:
                turns.append(("assistant", event.text))
        turns[0] = ("user", f"{turns[0][1]}\n\n{FORMATS[self.settings.name]}")
        turns.append(("user", self.instruction))
        turns = turns[::-1]
        return tuple(Message(*turn) for turn in (_joined(turns) if self.settings.alternate_roles else turns))

    def read(self, reply: str) -> Answer:
        """The answer in a reply, which becomes a part of the history."""
        text = strip_thinking(reply) if "thinking" in self.settings.fixes else reply
        self._answer = read_reply(self.settings.name, text.strip())
        return self._answer

    def after(self, observation: Observation, action: str, answer: Answer) -> Observation:
        """The observation after `action` was executed, with the feedback on an invalid answer."""
        if action == answer.action or not self.settings.feedback:
            return observation
        feedback = self.settings.wording.feedback.format(action=action, reply=answer.action)
        return observation._replace(text=feedback + observation.text)


def _joined(turns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Turns in which no two neighbours have one role."""
    joined: list[tuple[str, str]] = []
    for role, text in turns:
        if joined and joined[-1][0] == role:
            joined[-1] = (role, f"{joined[-1][1]}\n{text}")
        else:
            joined.append((role, text))
    return joined
