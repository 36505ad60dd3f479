"""One agent under several equivalent prompts: whether it learnt the task or its prompt.

Language models fine-tuned by RL with one prompt perform worse with others ("prompt overfitting", Aissi et al.,
2410.19920). The environment's words (sentences, missions and actions) stay the same; the surrounding text of the
template and its order change. `llmrl_jax.systems.glam.rewrites` changes the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl_jax.core.checks import nearest


STRUCTURAL: dict[str, dict[str, Any]] = {
    "goal_first": {"goal_first": True},
    "no_action_list": {"actions": ""},
    "bulleted": {
        "observation": " \n Observation {k}:",
        "sentence": (" \n - ", ""),
        "action": " \n Action {k}: ",
    },
}
"""Variants that change the order, omit parts, or use other separators: in any language."""

ENGLISH: dict[str, dict[str, Any]] = {
    "paraphrased": {
        "actions": "Moves that you can make:",
        "goal": "Task that you have to do:",
        "observation": " \n Perception {k}: ",
        "action": "\n Move {k}: ",
    },
    "tagged": {
        "actions": "<actions>",
        "after_actions": " </actions>",
        "goal": "<goal>",
        "after_goal": " </goal>",
        "observation": " \n <observation> ",
        "action": "</observation> \n <action> ",
        "after_action": " </action>",
    },
    "prose": {
        "actions": "In this world you can",
        "after_actions": ".",
        "between": " ",
        "goal": "Your task is to",
        "after_goal": ".",
        "observation": " Look around: ",
        "action": "so you decide to ",
        "after_action": ".",
    },
}
"""Variants with other English text: other labels, XML-like tags, sentences."""

VARIANTS = {**STRUCTURAL, **ENGLISH}
"""The fields of `llmrl_jax.systems.glam.prompt.Wording` that each variant changes."""


def find_variant(name: str, language: str = "english") -> Mapping[str, Any]:
    """The fields of `Wording` that a variant changes; an empty name changes none.

    **Raises:** `KeyError` for an unknown one, with the nearest name; `ValueError` for an English variant in another
    language.
    """
    if not name:
        return {}
    if name not in VARIANTS:
        raise KeyError(f"there is no variant {name!r}{nearest(name, list(VARIANTS))} (there are {', '.join(VARIANTS)})")
    if language != "english" and name in ENGLISH:
        raise ValueError(f"the variant {name} has no words in {language}; those that have: {', '.join(STRUCTURAL)}")
    return VARIANTS[name]
