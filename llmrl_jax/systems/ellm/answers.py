"""The oracle's answers as text: data to fine-tune a language model on, and examples for prompts."""

from __future__ import annotations

import json

import numpy as np

from llmrl_jax.core.files import write_whole
from llmrl_jax.systems.ellm import prompts
from llmrl_jax.systems.ellm.accuracy import Met, states_met
from llmrl_jax.systems.ellm.facts import Facts
from llmrl_jax.systems.ellm.settings import AnswersRun


def rows_of(facts: Facts, met: Met, shots: tuple[prompts.Shot, ...]) -> list[dict[str, object]]:
    """A row per state in which the oracle has a goal: the request and the oracle's reply as `messages`, and the state's
    `key`, text and `goals`.

    **Arguments:** `shots`, the examples of the prompt, as for the requests to the tuned model."""
    rows: list[dict[str, object]] = []
    for key, feasible in zip(met.keys.tolist(), met.feasible, strict=True):
        state, goals = facts.describe(key), [facts.captions[i] for i in np.flatnonzero(feasible)]
        if goals:
            asked = prompts.open_ended(state, facts.verbs, shots)
            reply = prompts.bullets(goals)
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
            rows.append({"key": key, "state": state, "goals": goals, "messages": messages})
    return rows


def write_answers(config: AnswersRun) -> int:
    """Write the file of `llmrl ellm answers`. **Returns:** its number of rows.

    **Raises:** what `choose_shots`, `build` and `load_run` raise; `ValueError` for a file of
    another kind, or if no state has an answer."""
    if config.file.suffix != ".jsonl":
        raise ValueError(f"--file is {config.file}; a name that ends in .jsonl is needed")
    goals = config.ellm.goals
    shots = prompts.choose_shots(goals.shots, goals.examples)
    made, met = states_met(config, config.seed)
    rows = rows_of(made.facts, met, shots)
    if not rows:
        raise ValueError(f"no state of {config.episodes} episodes has an answer: play more, with --episodes")
    write_whole(config.file, "".join(json.dumps(row) + "\n" for row in rows))
    without = len(met.keys) - len(rows)
    print(f"{config.file}: {len(rows)} rows; {without} states in which the oracle has no goal are left out")
    return len(rows)
