"""Scripted advisers of ELLM: rules that answer its prompts as a model would."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np

from llmrl_jax.chat import Message, ScriptedAdviser
from llmrl_jax.systems.ellm.open_goals import OpenGoalSpec
from llmrl_jax.systems.ellm.prompts import QUESTION


class ScriptedSuggester(ScriptedAdviser):
    """Suggests the goals whose needs the prompt's text fulfils. The text has no counts of items, so it takes one of
    each as sufficient: unlike the oracle it suggests a furnace with one stone."""

    def __init__(self, spec: OpenGoalSpec):
        self.spec = spec

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """A bulleted list. **Arguments:** as for `ScriptedAdviser`."""
        state = messages[-1].content.rsplit("\n\n", 1)[-1].split(QUESTION)[0].lower()
        sentences = [part.strip() for part in state.split(".")]
        visible = " ".join(x for x in sentences if x.startswith(("you see", "you are targeting")))
        inventory = next((x for x in sentences if x.startswith("you have")), "")
        sleepy = any(x.startswith("you feel") and "sleepy" in x for x in sentences)
        goals = []
        for goal, (items, sights) in self.spec.rules.items():
            if goal == "sleep" and not sleepy or goal == "place crafting table" and "table" in visible:
                continue
            names = ["plant" if item == "sapling" else item for item in items]
            if all(_contains(inventory, name) for name in names) and all(sight in visible for sight in sights):
                goals.append(goal)
        return "\n".join(f"- {goal.capitalize()}" for goal in goals) or "- Do nothing"


def _contains(text: str, item: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(item)}(?!\w)", text) is not None


class ScriptedJudge(ScriptedAdviser):
    """Answers from the table of preferences that the project ships, whatever the environment's own is; no for an
    object or a place that it does not have."""

    def __init__(self) -> None:
        from envs_jax.housekeep.preferences import shipped

        table = shipped()
        words = lambda text: text.replace("_", " ").replace("|", " ").lower()  # noqa: E731
        pairs = zip(*np.nonzero(table.correct))
        self._yes = {(words(table.objects[i]), words(table.places[k])) for k, i in pairs}

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Yes or no. **Arguments:** as for `ScriptedAdviser`."""
        question = messages[-1].content.rsplit("\n\n", 1)[-1]
        match = re.fullmatch(r"Should you store a (.+) in/on the (.+):", question)
        return "Yes" if match and (match[1].lower(), match[2].lower()) in self._yes else "No"
