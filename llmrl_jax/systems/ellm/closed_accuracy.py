"""How good the closed-form suggestions of a chat model are: its yes and no beside the table of preferences."""

from __future__ import annotations

from typing import Any

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.run.folder import begin, opened
from llmrl_jax.systems.ellm.closed import ScriptedJudge, counted, judged_line, judgements
from llmrl_jax.systems.ellm.facts import ClosedFacts
from llmrl_jax.systems.ellm.settings import AccuracyRun
from llmrl_jax.workflows.chat_model import make_chat


def closed_accuracy(config: AccuracyRun, facts: ClosedFacts) -> dict[str, Any]:
    """Ask a chat model about all pairs of the world's objects and places, print how often it agrees with the correct
    places, and write `accuracy.json`, and `judgements.json` with every answer.

    **Returns:** the numbers. **Raises:** `ValueError` for options that this does not read; what the chat model raises.
    """
    who = f"{config.ellm.env}, where every pair of an object and a place is asked about,"
    refuse_unread(config, ("from_run", "checkpoint", "states", "episodes", "half"), who)
    refuse_unread(config.ellm, ("goals",), who)
    how = config.ellm.judge
    with opened(config.run, "ellm-accuracy") as folder:
        begin(folder, config)
        chat = make_chat(config.chat, ScriptedJudge(), folder)
        try:
            found = judgements(folder, chat.model, facts, config.chat.sampling, how.samples, how.share)
        finally:
            chat.close()
        numbers, spent = counted(found, facts), chat.spent
        about = {"model": chat.model.name, "env": config.ellm.env, "samples": how.samples, "share": how.share}
        configs.save_config({**about, **numbers, "calls": spent.calls, "usd": spent.usd}, folder / "accuracy.json")
    print(judged_line(numbers, spent.calls))
    print(f"Everything is in {folder}")
    return numbers
