"""What ELLM needs to know about a world: its captions, which goals make sense now, and the text of a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool

from envs_jax.env import Environment
from llmrl_jax.core.checks import nearest


@dataclass(frozen=True)
class Facts:
    """Facts about a world. Its observation has a `key`, uint32 `[]`, and its `info` the flags that gates read."""

    captions: tuple[str, ...]
    """The captions of transitions: the names of the actions, `A`."""
    valid: Bool[np.ndarray, " A"]
    """Captions of actions that can have an effect in some state."""
    feasible: Callable[[Any], Bool[Array, " A"]]
    """The oracle: from an observation to the actions that a player could do now or nearby. Inside jit."""
    rules: Mapping[str, tuple[Mapping[str, int], tuple[str, ...]]]
    """Goal -> what must be held and what must be in view, for the scripted adviser."""
    synonyms: tuple[tuple[str, str], ...]
    """Pairs of captions that are reached together."""
    achievements: tuple[str, ...]
    """The names of `info["achievements"]`."""
    describe: Callable[[int], str]
    """The sentences of a state's key that reach the prompt, on the host."""
    verbs: tuple[str, ...]
    """The verbs that the prompt lists."""
    tasks: Mapping[str, tuple[str, ...]]
    """The world's single tasks, and the captions of the transitions that they consist of, in their order."""


def facts_of(env: Environment) -> Facts:
    """The facts about a world. **Raises:** `ValueError` for a world without them."""
    if (own := getattr(env.unwrapped, "goal_facts", None)) is not None:
        return own()
    known = {"CrafterText-v1": "llmrl_jax.systems.ellm.crafter"}
    name = env.id.split("?")[0]
    if name not in known:
        raise ValueError(f"ELLM has no goals for the world {env.id!r}{nearest(name, list(known))}: choose {_or(known)}")
    from llmrl_jax.systems.ellm import crafter

    return crafter.facts(env)


def _or(names: Any) -> str:
    return " or ".join(names)


def caption_of(facts: Facts, action: jax.Array, info: dict[str, Any]) -> jax.Array:
    """The caption of a transition: the action that had effect, which is to sleep for a player who is asleep."""
    return info.get("effective_action", action)
