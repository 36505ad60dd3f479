"""Suggesters: from an observation to ids of goals, on the device."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from llmrl_jax.systems.ellm.facts import Facts
from llmrl_jax.systems.ellm.goals import find


SuggesterName = Literal["oracle", "chat", "novelty", "uniform", "fixed", "none"]


class Suggester(Protocol):
    """A source of goals."""

    def __call__(self, obs: Any, params: Any, key: jax.Array) -> tuple[Int[Array, " K"], Bool[Array, ""]]:
        """The goals that are suggested in a state.

        **Arguments:** `obs`, of one environment; `params`, a `llmrl_jax.systems.ellm.suggested.SuggestedParams`; `key`.
        **Returns:** ids of goals, -1 in unused places; and whether the state has been answered.
        """
        ...


def oracle(facts: Facts) -> Suggester:
    """The goals that are feasible now (ellm reference, 3.4)."""

    def suggest(obs, params, key):
        return jnp.where(facts.feasible(obs), jnp.arange(len(facts.captions)), -1), jnp.bool_(True)

    return suggest


def novelty(facts: Facts) -> Suggester:
    """Every caption: each counts once in an episode (the published `BaselineModel`)."""

    def suggest(obs, params, key):
        return jnp.arange(len(facts.captions)), jnp.bool_(True)

    return suggest


def uniform(facts: Facts, count: int) -> Suggester:
    """`count` captions drawn at random in every step, with replacement."""

    def suggest(obs, params, key):
        return jax.random.randint(key, (count,), 0, len(facts.captions)), jnp.bool_(True)

    return suggest


def none() -> Suggester:
    """No goals."""

    def suggest(obs, params, key):
        return jnp.full(1, -1), jnp.bool_(True)

    return suggest


def fixed() -> Suggester:
    """Always the goals in the parameters."""

    def suggest(obs, params, key):
        return params.fixed, jnp.bool_(True)

    return suggest


def answered() -> Suggester:
    """The stored answers of a chat model; nothing for a state that it has not been asked about."""

    def suggest(obs, params, key):
        place, known = find(params.answers, obs["key"])
        return jnp.where(known, params.answers.goals[place], -1), known

    return suggest


def make_suggester(name: SuggesterName, facts: Facts, uniform_goals: int) -> Suggester:
    """The suggester of a name."""
    if name == "uniform":
        return uniform(facts, uniform_goals)
    if name in ("oracle", "novelty"):
        return {"oracle": oracle, "novelty": novelty}[name](facts)
    return {"none": none, "fixed": fixed, "chat": answered}[name]()


CATEGORIES = ("good", "poorly_timed", "bad", "nonsensical")
"""Kinds of goals: the oracle has it too; an action that can have an effect, but not now; an action that never has any;
not the name of an action."""


def categories(facts: Facts, obs: Any, goals: Int[Array, " K"]) -> Int[Array, " K"]:
    """The category of each goal in a state, an index into `CATEGORIES`; -1 in unused places."""
    count = len(facts.captions)
    place = jnp.clip(goals, 0, count - 1)
    now, ever = facts.feasible(obs)[place], jnp.asarray(np.asarray(facts.valid))[place]
    kind = jnp.where(goals >= count, 3, jnp.where(now, 0, jnp.where(ever, 1, 2)))
    return jnp.where(goals >= 0, kind, -1).astype(jnp.int32)
