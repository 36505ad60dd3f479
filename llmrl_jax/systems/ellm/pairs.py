"""The tables of closed-form goals: which pairs of objects and places are goals, and how similar captions are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.core.checks import nearest, refuse_unread
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.facts import ClosedFacts
from llmrl_jax.systems.ellm.goals import unit_rows
from llmrl_jax.systems.ellm.housekeep import pick_caption, store_caption
from llmrl_jax.systems.ellm.placing import Placing, PlacingParams


def similarities(
    encoder: TextEncoder, facts: ClosedFacts
) -> tuple[Float[np.ndarray, "N N"], Float[np.ndarray, "N R R"]]:
    """The cosines between captions that can meet: of picks with each other, and of placements of the same object.

    Objects that do not occur have zeros: their captions are not encoded.
    """
    count, places = len(facts.items), len(facts.places)
    which = np.flatnonzero(facts.occurring)
    names = [facts.items[i] for i in which]
    picks = unit_rows(np.asarray(encoder.encode_texts([pick_caption(name) for name in names])))
    captions = [store_caption(name, place) for name in names for place in facts.places]
    stores = unit_rows(np.asarray(encoder.encode_texts(captions))).reshape(len(names), places, -1)
    pick, store = np.zeros((count, count), np.float32), np.zeros((count, places, places), np.float32)
    pick[np.ix_(which, which)] = np.minimum(picks @ picks.T, 1.0)
    store[which] = np.minimum(stores @ stores.transpose(0, 2, 1), 1.0)
    return pick, store


def answers_as_goals(
    yes: Bool[np.ndarray, "N R"], known: Bool[np.ndarray, "N R"]
) -> dict[str, Bool[np.ndarray, "N R"]]:
    """Goals from answers to "should it be stored there?": yes is a goal to put it there, no one to pick it up from
    there (ellm reference, 4.4). Where nothing is known there is no goal."""
    return {"pick": known & ~yes, "store": known & yes}


def named_goals(facts: ClosedFacts, names: Sequence[str]) -> dict[str, Bool[np.ndarray, "N R"]]:
    """Goals from their names, such as "pick up the lemon" or "put the lemon in/on the kitchen fridge".

    **Raises:** `ValueError`, with the nearest, for another name.
    """
    picks = {pick_caption(item): i for i, item in enumerate(facts.items)}
    stores = {
        store_caption(item, place): (i, r) for i, item in enumerate(facts.items) for r, place in enumerate(facts.places)
    }
    pick, store = (np.zeros(facts.correct.shape, bool) for _ in range(2))
    for name in names:
        if name in picks:
            pick[picks[name]] = True
        elif name in stores:
            store[stores[name]] = True
        else:
            here = [known for known, i in picks.items() if facts.occurring[i]]
            here += [known for known, (i, _) in stores.items() if facts.occurring[i]]
            raise ValueError(
                f"no goal is named {name!r}{nearest(name, here)}; goals are to pick up an object, or to put it in/on a "
                "receptacle"
            )
    return {"pick": pick, "store": store}


def only(facts: ClosedFacts, params: Any, name: str) -> Any:
    """The parameters of the world with one goal, by its name. **Raises:** as `named_goals`."""
    return params.replace(**{part: jnp.asarray(table) for part, table in named_goals(facts, (name,)).items()})


def goal_tables(config: EllmConfig, facts: ClosedFacts) -> dict[str, Bool[np.ndarray, "N R"]]:
    """The goals of the settings' suggester: `pick` and `store` of `PlacingParams`. Those of a chat model are not known
    before it is asked (`closed.with_judged`)."""
    everything = np.ones(facts.correct.shape, bool)
    if config.suggester == "oracle":
        return answers_as_goals(facts.correct, everything)
    if config.suggester in ("novelty", "uniform"):
        return {"pick": everything, "store": everything}
    return named_goals(facts, config.fixed if config.suggester == "fixed" else ())


def make_placing(config: EllmConfig, env: Environment, facts: ClosedFacts, encoder: TextEncoder) -> Placing:
    """The world with closed-form goals.

    **Arguments:** `env`, the bare world, not batched.
    **Raises:** `ValueError` for options that such goals do not read, and for unknown goals.
    """
    refuse_unread(config, ("gate", "goals"), f"{env.id}, whose goals are closed-form,")
    pick, store = similarities(encoder, facts)
    start = PlacingParams(
        env=(),
        **{name: jnp.asarray(table) for name, table in goal_tables(config, facts).items()},
        pick_similarity=jnp.asarray(pick),
        store_similarity=jnp.asarray(store),
        threshold=jnp.float32(config.threshold),
        intrinsic=jnp.float32(config.intrinsic if config.suggester != "none" else 0.0),
        extrinsic=jnp.float32(config.extrinsic),
    )
    draws = config.uniform_goals if config.suggester == "uniform" else 0
    world = EpisodeStatistics(env)
    return Placing(world, facts, start, keep=_kept(config, env, facts), once=config.once, draws=draws)


def _kept(config: EllmConfig, env: Environment, facts: ClosedFacts) -> tuple[str, ...]:
    """The parts of the world's observation that the agent sees."""
    symbols = facts.symbols if "symbols" in config.observe else ("categories",)
    texts = tuple(env.captions) if "text" in config.observe else ()
    return (*symbols, *texts)
