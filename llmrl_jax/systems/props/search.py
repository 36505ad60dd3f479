"""A numeric optimizer on a budget of episodes: many seeds, one program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from llmrl_jax.systems.props.evaluate import Evaluator, episode_keys
from llmrl_jax.systems.props.optimizers.base import Optimizer


@struct.dataclass
class Search:
    """What `S` seeds found in `I` iterations of `P` candidates, `E` episodes each."""

    best: Float[Array, "S n"]
    """The candidate with the highest mean return."""
    value: Float[Array, " S"]
    """That mean return. It is the highest of many noisy ones, so it flatters; `final` does not."""
    final: Float[Array, "S F"]
    """Returns of `best` in fresh episodes that took no part in the search."""
    best_curve: Float[Array, "S I"]
    """`value` as it stood after each iteration."""
    mean_curve: Float[Array, "S I"]
    """The mean return of each iteration's candidates."""
    episodes: Int[Array, " I"]
    """Episodes played by one seed up to each iteration."""
    steps: Int[Array, " S"]
    """Environment steps of the search."""


def search(
    optimizer: Optimizer,
    evaluate: Evaluator,
    key: jax.Array,
    *,
    budget: int,
    seeds: int = 1,
    episodes: int = 20,
    common: bool = True,
    final_episodes: int = 100,
) -> Search:
    """Ask, evaluate and tell until the budget is spent; pure, with all seeds advancing in step.

    Wrap it in `jax.jit` with everything but `key` closed over. Seed `i` depends on `fold_in(key, i)` alone.

    **Arguments:** `optimizer`, a numeric one; `evaluate`, see `make_evaluator`; `key`, typed; `budget`, episodes of one
    seed (8,000 as published); `seeds`, `S`; `episodes`, `E`, per candidate; `common`, whether the candidates of one
    iteration play the same episodes, which ranks them with less noise; `final_episodes`, `F`.
    **Raises:** `ValueError` where the budget is below one iteration.
    """
    keys = episode_keys(key, seeds)
    start = jax.vmap(optimizer.init)(jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys))
    shape, _ = jax.eval_shape(optimizer.ask, jax.eval_shape(optimizer.init, key))
    population, size = shape.shape
    iterations = budget // (population * episodes)
    if iterations < 1:
        raise ValueError(
            f"a budget of {budget} episodes is less than one iteration of {optimizer.name}: {population} candidates, "
            f"{episodes} episodes each"
        )

    def played(params: Float[Array, "S P n"], keys):
        """All seeds as one batch of candidates: returns `[S, P]` in the mean, and steps `[S]`."""
        found = evaluate(params.reshape(-1, size), keys.reshape(-1, keys.shape[-1]))
        return found.mean.reshape(params.shape[:2]), jnp.sum(found.lengths.reshape(seeds, -1), axis=1)

    def draws(k, i):
        k = jax.random.fold_in(jax.random.fold_in(k, 1), i)
        if common:
            return jnp.broadcast_to(episode_keys(k, episodes), (population, episodes))
        return jax.vmap(lambda k: episode_keys(k, episodes))(episode_keys(k, population))

    def iterate(carry, i):
        state, best, value, steps = carry
        params, state = jax.vmap(optimizer.ask)(state)
        values, more = played(params, jax.vmap(draws, in_axes=(0, None))(keys, i))
        state = jax.vmap(optimizer.tell)(state, params, values)
        top = jnp.argmax(values, axis=1)
        highest = jnp.take_along_axis(values, top[:, None], axis=1)[:, 0]
        better = highest > value
        candidate = jnp.take_along_axis(params, top[:, None, None], axis=1)[:, 0]
        best, value = jnp.where(better[:, None], candidate, best), jnp.maximum(highest, value)
        return (state, best, value, steps + more), (value, jnp.mean(values, axis=1))

    carry = (start, jnp.zeros((seeds, size)), jnp.full(seeds, -jnp.inf), jnp.zeros(seeds, jnp.int32))
    (_, best, value, steps), curves = jax.lax.scan(iterate, carry, jnp.arange(iterations))
    fresh = jax.vmap(lambda k: episode_keys(jax.random.fold_in(k, 2), final_episodes))(keys)
    return Search(
        best=best,
        value=value,
        final=evaluate(best, fresh).returns,
        best_curve=curves[0].T,
        mean_curve=curves[1].T,
        episodes=jnp.arange(1, iterations + 1) * (population * episodes),
        steps=steps,
    )
