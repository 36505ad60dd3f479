"""A numeric optimizer on a budget of episodes: many seeds, one program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from llmrl_jax.rl.learner import Learner
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


@struct.dataclass
class SearchState:
    """A search under way: `S` seeds, which advance in step."""

    keys: Key[Array, " S"]
    optimizer: Any
    """The optimizer's states."""
    best: Float[Array, "S n"]
    value: Float[Array, " S"]
    steps: Int[Array, " S"]
    update: Int[Array, ""]
    """Iterations that are over."""
    frozen: Any = ()


def population_of(optimizer: Optimizer) -> int:
    """How many candidates a numeric optimizer asks for at a time."""
    return jax.eval_shape(optimizer.ask, jax.eval_shape(optimizer.init, jax.random.key(0)))[0].shape[0]


def iterations_of(optimizer: Optimizer, budget: int, episodes: int) -> int:
    """How many iterations a budget of episodes buys one seed, `episodes` for each candidate.

    **Raises:** `ValueError` where it buys none.
    """
    population = population_of(optimizer)
    if budget < population * episodes:
        raise ValueError(
            f"a budget of {budget} episodes is less than one iteration of {optimizer.name}: {population} candidates, "
            f"{episodes} episodes each"
        )
    return budget // (population * episodes)


def make_search(
    optimizer: Optimizer, evaluate: Evaluator, *, seeds: int = 1, episodes: int = 20, common: bool = True
) -> Learner:
    """A search as a `Learner`, one iteration an update, for `llmrl_jax.run.loop`: saved, stopped, and gone on with.

    Its metrics are `episode_return`, the mean over all candidates, and `best`, the mean over seeds of the highest mean
    return so far. Arguments as of `search`.
    """
    init, iterate = _parts(optimizer, evaluate, seeds, episodes, common)

    def update(state: SearchState) -> tuple[SearchState, dict[str, jax.Array]]:
        state, values = iterate(state)
        return state, {"episode_return": jnp.mean(values), "best": jnp.mean(state.value)}

    return Learner(init, update, seeds * population_of(optimizer) * episodes, unit="episodes")


def judge(evaluate: Evaluator, state: SearchState, final_episodes: int) -> Float[Array, "S F"]:
    """The returns of each seed's best candidate in fresh episodes, which took no part in the search."""
    fresh = jax.vmap(lambda k: episode_keys(jax.random.fold_in(k, 2), final_episodes))(state.keys)
    return evaluate(state.best, fresh).returns


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
    iterations = iterations_of(optimizer, budget, episodes)
    init, iterate = _parts(optimizer, evaluate, seeds, episodes, common)

    def body(state, _):
        state, values = iterate(state)
        return state, (state.value, jnp.mean(values, axis=1))

    state, curves = jax.lax.scan(body, init(key), length=iterations)
    return Search(
        best=state.best,
        value=state.value,
        final=judge(evaluate, state, final_episodes),
        best_curve=curves[0].T,
        mean_curve=curves[1].T,
        episodes=jnp.arange(1, iterations + 1) * (population_of(optimizer) * episodes),
        steps=state.steps,
    )


def _parts(optimizer: Optimizer, evaluate: Evaluator, seeds: int, episodes: int, common: bool) -> tuple[Any, Any]:
    """`init(key) -> SearchState`, and `iterate(state) -> (state, values [S, P])`."""

    def init(key: jax.Array) -> SearchState:
        keys = episode_keys(key, seeds)
        start = jax.vmap(optimizer.init)(jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys))
        size = jax.eval_shape(jax.vmap(optimizer.ask), start)[0].shape[-1]
        return SearchState(
            keys,
            start,
            jnp.zeros((seeds, size)),
            jnp.full(seeds, -jnp.inf),
            jnp.zeros(seeds, jnp.int32),
            jnp.int32(0),
        )

    def draws(k: jax.Array, i: jax.Array, population: int) -> Key[Array, "P E"]:
        k = jax.random.fold_in(jax.random.fold_in(k, 1), i)
        if common:
            return jnp.broadcast_to(episode_keys(k, episodes), (population, episodes))
        return jax.vmap(lambda k: episode_keys(k, episodes))(episode_keys(k, population))

    def iterate(state: SearchState) -> tuple[SearchState, Float[Array, "S P"]]:
        params, told = jax.vmap(optimizer.ask)(state.optimizer)
        population, size = params.shape[1:]
        keys = jax.vmap(lambda k: draws(k, state.update, population))(state.keys)
        # all seeds as one batch of candidates
        found = evaluate(params.reshape(-1, size), keys.reshape(-1, episodes))
        values = found.mean.reshape(params.shape[:2])
        told = jax.vmap(optimizer.tell)(told, params, values)
        top = jnp.argmax(values, axis=1)
        highest = jnp.take_along_axis(values, top[:, None], axis=1)[:, 0]
        candidate = jnp.take_along_axis(params, top[:, None, None], axis=1)[:, 0]
        state = state.replace(
            optimizer=told,
            best=jnp.where((highest > state.value)[:, None], candidate, state.best),
            value=jnp.maximum(highest, state.value),
            steps=state.steps + jnp.sum(found.lengths.reshape(seeds, -1), axis=1),
            update=state.update + 1,
        )
        return state, values

    return init, iterate
