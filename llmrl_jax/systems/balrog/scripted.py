"""The scripted player: chance, beside which a model's results stand."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from llmrl_jax.chat import Message, ScriptedAdviser


class ScriptedPlayer(ScriptedAdviser):
    """Replies with one of the listed actions, uniformly at random, in the format that the prompt asks for."""

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """The reply. **Arguments:** as for `ScriptedAdviser`."""
        listed = messages[0].content.split("\n\n")[1]
        action = rng.choice([line.split(": ")[0] for line in listed.splitlines()])
        if "<|ACTION|>" in messages[-1].content:
            return f"<|ACTION|>{action}<|END|>"
        asks = re.search("ACTION: <action>$", messages[-1].content)
        return f"ACTION: {action}" if asks else action
