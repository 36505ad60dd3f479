"""The scripted adviser of ELLM: rules that answer the prompt as a model would."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from llmrl_jax.chat import Message, ScriptedAdviser
from llmrl_jax.systems.ellm.facts import Facts
from llmrl_jax.systems.ellm.prompts import QUESTION


class ScriptedSuggester(ScriptedAdviser):
    """Suggests the goals whose needs the prompt's text fulfils. The text has no counts of items, so it takes one of
    each as sufficient: unlike the oracle it suggests a furnace with one stone."""

    def __init__(self, facts: Facts):
        self.facts = facts

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """A bulleted list. **Arguments:** as for `ScriptedAdviser`."""
        state = messages[-1].content.rsplit("\n\n", 1)[-1].split(QUESTION)[0].lower()
        sentences = [part.strip() for part in state.split(".")]
        seen = " ".join(x for x in sentences if x.startswith(("you see", "you are targeting")))
        held = next((x for x in sentences if x.startswith("you have")), "")
        sleepy = any(x.startswith("you feel") and "sleepy" in x for x in sentences)
        goals = []
        for goal, (items, sights) in self.facts.rules.items():
            if goal == "sleep" and not sleepy or goal == "place crafting table" and "table" in seen:
                continue
            names = ["plant" if item == "sapling" else item for item in items]
            if all(_has(held, name) for name in names) and all(sight in seen for sight in sights):
                goals.append(goal)
        return "\n".join(f"- {goal.capitalize()}" for goal in goals) or "- Do nothing"


def _has(held: str, item: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(item)}(?!\w)", held) is not None
