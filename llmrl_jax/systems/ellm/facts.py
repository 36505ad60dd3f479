"""What ELLM needs to know about a world: its goals, and what it reports.

Goals take one of two forms (Du et al., 2302.06692, section 3). Open-ended: a model writes them as text, and a
transition's caption is the name of the action (`Facts`). Closed-form: a model says yes or no to every goal that the
state offers, and goals are about an object and a place (`ClosedFacts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from envs_jax.env import Environment
from llmrl_jax.core.checks import nearest


@dataclass(frozen=True, kw_only=True)
class WorldFacts:
    """Facts about any world."""

    captions: tuple[str, ...]
    """What goals are shown as to the agent; a set of goals is a mask of these."""
    achievements: tuple[str, ...]
    """The names of `info["achievements"]`."""
    tasks: Mapping[str, tuple[str, ...]]
    """The world's single tasks, and the captions of the transitions that they consist of, in their order."""
    measures: Mapping[str, str] = field(default_factory=dict)
    """Further numbers of `info` whose values at the end of an episode are reported, and what they are called."""
    fixed_start: bool = False
    """Whether every episode begins in the same state, and nothing but the agent's actions changes it."""

    @property
    def actions(self) -> int:
        """How many actions the world has."""
        raise NotImplementedError

    @property
    def single_goals(self) -> tuple[str, ...]:
        """Goals to give an agent one after another."""
        raise NotImplementedError

    def only(self, params: Any, name: str) -> Any:
        """The parameters of the world with goals in which there is one goal, by its name. **Raises:** `ValueError`,
        with the nearest, for an unknown one."""
        raise NotImplementedError

    @property
    def shown(self) -> dict[str, str]:
        """Metrics beside the progress bar, and their labels."""
        first = {"episode_achievements": "achievements"} if self.achievements else {}
        names = list(self.measures.items())[:1]
        return first | {f"episode_{name}": label for name, label in names}


@dataclass(frozen=True, kw_only=True)
class Facts(WorldFacts):
    """Facts about a world with open-ended goals. Its observation has a `key`, uint32 `[]`, and its `info` the flags
    that gates read. Captions are those of transitions, the names of the `A` actions."""

    valid: Bool[np.ndarray, " A"]
    """Captions of actions that can have an effect in some state."""
    feasible: Callable[[Any], Bool[Array, " A"]]
    """The oracle: from an observation to the actions that a player could do now or nearby. Inside jit."""
    rules: Mapping[str, tuple[Mapping[str, int], tuple[str, ...]]]
    """Goal -> what must be held and what must be in view, for the scripted adviser."""
    synonyms: tuple[tuple[str, str], ...]
    """Pairs of captions that are reached together."""
    describe: Callable[[int], str]
    """The sentences of a state's key that reach the prompt, on the host."""
    verbs: tuple[str, ...]
    """The verbs that the prompt lists."""

    @property
    def actions(self) -> int:
        return len(self.captions)

    @property
    def single_goals(self) -> tuple[str, ...]:
        return tuple(name for name, valid in zip(self.captions, self.valid, strict=True) if valid)

    def only(self, params: Any, name: str) -> Any:
        return params.replace(fixed=jnp.array([goal_id(self, name)], jnp.int32))


@dataclass(frozen=True, kw_only=True)
class ClosedFacts(WorldFacts):
    """Facts about a world with closed-form goals: `N` kinds of objects, to be picked up from and put in or on `R`
    places.

    Captions are those of picks, one per object, and those of placements, one per place.
    """

    num_actions: int
    items: tuple[str, ...]
    """The objects, `N`."""
    places: tuple[str, ...]
    """The places, `R`."""
    correct: Bool[np.ndarray, "N R"]
    """The oracle: whether an object belongs in or on a place."""
    occurring: Bool[np.ndarray, " N"]
    """Objects that an episode of this world can have: those that a model is asked about."""
    symbols: tuple[str, ...]
    """The parts of the world's observation that are symbols."""
    features: Callable[[Any], Float[Array, "B D"]]
    """What networks see of the symbols of observations `[B, ...]`."""
    goal_features: Callable[[Any, Any], Float[Array, "B E"]]
    """What networks see of the symbols of observations and of goals, masks of captions `[B, A]`, together."""
    task_id: Callable[[str, str], str]
    """From the id of a world and a task to the id of the world with this task."""

    @property
    def actions(self) -> int:
        return self.num_actions

    @property
    def single_goals(self) -> tuple[str, ...]:
        return tuple(name for name, there in zip(self.captions, self.occurring) if there)  # picks come first

    def only(self, params: Any, name: str) -> Any:
        from llmrl_jax.systems.ellm.pairs import only

        return only(self, params, name)


def goal_id(facts: WorldFacts, name: str) -> int:
    """The id of a goal that is a caption. **Raises:** `ValueError`, with the nearest, for another name."""
    if name not in facts.captions:
        raise ValueError(f"no goal is named {name!r}{nearest(name, list(facts.captions))}; goals are names of actions")
    return facts.captions.index(name)


_KNOWN = {"CrafterText": "crafter", "Housekeep": "housekeep"}
"""Beginnings of ids, and the modules with the facts of these worlds."""


def facts_of(env: Environment) -> Any:
    """The facts about a world: `Facts` or `ClosedFacts`. **Raises:** `ValueError` for a world without them."""
    if (own := getattr(env.unwrapped, "goal_facts", None)) is not None:
        return own()
    name = env.id.split("?")[0]
    family = next((start for start in _KNOWN if name.split("-")[0] == start), None)
    if family is None:
        ids = ["CrafterText-v1", "Housekeep-v0", "Housekeep-Task1-v0", "Housekeep-Macro-v0"]
        raise ValueError(
            f"ELLM has no goals for the world {env.id!r}{nearest(name, ids)}: choose {', '.join(ids[:-1])} or {ids[-1]}"
        )
    return import_module(f"llmrl_jax.systems.ellm.{_KNOWN[family]}").facts(env)


def caption_of(facts: Facts, action: jax.Array, info: dict[str, Any]) -> jax.Array:
    """The caption of a transition: the action that had effect, which is to sleep for a player who is asleep."""
    return info.get("effective_action", action)
