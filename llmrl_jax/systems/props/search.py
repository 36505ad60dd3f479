"""Search by a numeric optimizer with a budget of episodes: many seeds in one program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from envs_jax import tracing
from llmrl_jax.agents.population import Evaluation, Evaluator, episode_keys
from llmrl_jax.core.learner import Learner
from llmrl_jax.systems.props.optimizers import Optimizer, centers, finite


@struct.dataclass
class Search:
    """Results of `S` seeds after `I` iterations of `P` candidates with `E` episodes each."""

    best: Float[Array, "S n"]
    """The candidate, or center (see `evaluate_centers`), with the highest mean return."""
    value: Float[Array, " S"]
    """Its mean return. As the maximum of many noisy means it is biased upwards; `final` is unbiased."""
    final: Float[Array, "S F"]
    """Returns of `best` in fresh episodes, not used in the search."""
    best_curve: Float[Array, "S I"]
    """`value` after each iteration."""
    mean_curve: Float[Array, "S I"]
    """The mean return of each iteration's candidates."""
    episodes: Int[Array, " I"]
    """Episodes played by one seed up to each iteration."""
    steps: Int[Array, " S"]
    """Environment steps of the search."""


@struct.dataclass
class SearchState:
    """State of a search with `S` seeds, which advance together."""

    keys: Key[Array, " S"]
    optimizer: Any
    """The optimizer's states."""
    best: Float[Array, "S n"]
    value: Float[Array, " S"]
    steps: Int[Array, " S"]
    update: Int[Array, ""]
    """Number of completed iterations."""
    frozen: Any = ()


def population_of(optimizer: Optimizer) -> int:
    """Number of candidates per `ask` of a numeric optimizer."""
    return jax.eval_shape(optimizer.ask, jax.eval_shape(optimizer.init, jax.random.key(0)))[0].shape[0]


def num_final_evaluations(optimizer: Optimizer) -> int:
    """Number of policies evaluated after the last iteration: two centers, or none."""
    state = jax.eval_shape(optimizer.init, jax.random.key(0))
    policies = jax.eval_shape(lambda state: centers(optimizer, state, state), state)
    return 0 if policies is None else policies.shape[0]


def iterations_of(optimizer: Optimizer, budget: int, episodes: int) -> int:
    """Number of iterations per seed within a budget of episodes, with `episodes` per candidate and per center.

    **Raises:** `ValueError` if it is 0.
    """
    population, num_final = population_of(optimizer), num_final_evaluations(optimizer)
    if budget < (population + num_final) * episodes:
        and_centers = f" and {num_final} centers" if num_final else ""
        raise ValueError(
            f"a budget of {budget} episodes is less than one iteration of {optimizer.name}: {population} candidates"
            f"{and_centers}, {episodes} episodes each"
        )
    return (budget - num_final * episodes) // (population * episodes)


def make_search(
    optimizer: Optimizer, evaluate: Evaluator, *, seeds: int = 1, episodes: int = 20, common: bool = True
) -> Learner:
    """A search as a `Learner`, one iteration per update, for `llmrl_jax.run.loop`, which saves, stops and resumes it.

    Its metrics are `episode_return`, the mean over all candidates, and `best`, the mean over seeds of the highest mean
    return so far. Arguments as of `search`.
    """
    init, iterate = _parts(optimizer, evaluate, seeds, episodes, common)

    def update(state: SearchState) -> tuple[SearchState, dict[str, jax.Array]]:
        state, values = iterate(state)
        return state, {"episode_return": jnp.mean(values), "best": jnp.mean(state.value)}

    return Learner(init, update, seeds * population_of(optimizer) * episodes, unit="episodes")


def evaluate_centers(optimizer: Optimizer, evaluate: Evaluator, state: SearchState, episodes: int) -> SearchState:
    """A search after its last iteration, with the optimizer's first and last center also evaluated, if it has them (see
    `optimizers.centers`): either may be the best."""
    first = jax.vmap(optimizer.init)(_begins(state.keys))
    params = jax.vmap(lambda first, last: centers(optimizer, first, last))(first, state.optimizer)
    if params is None:
        return state
    keys = jax.vmap(lambda k: episode_keys(jax.random.fold_in(k, 3), episodes))(state.keys)
    return _counted(state, params, evaluate(*_flat(params, jnp.repeat(keys, params.shape[1], axis=0))))


def judge(evaluate: Evaluator, state: SearchState, final_episodes: int) -> Float[Array, "S F"]:
    """The returns of each seed's best candidate in fresh episodes, not used in the search."""
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
    """Ask, evaluate and tell until the budget is used up, with the optimizer's centers last (see `evaluate_centers`).

    Pure; all seeds advance together. Wrap it in `jax.jit` with everything except `key` closed over. Seed `i` depends
    only on `fold_in(key, i)`.

    **Arguments:** `optimizer`, a numeric one; `evaluate`, see `make_population_evaluator`; `key`, typed; `budget`,
    episodes per seed (8,000 as published); `seeds`, `S`; `episodes`, `E`, per candidate; `common`, whether the
    candidates of one iteration are evaluated on the same episodes, which ranks them with less noise; `final_episodes`,
    `F`.
    **Raises:** `ValueError` if the budget is below one iteration (plus the centers, if there are any).
    """
    iterations = iterations_of(optimizer, budget, episodes)
    init, iterate = _parts(optimizer, evaluate, seeds, episodes, common)

    def body(state, _):
        state, values = iterate(state)
        return state, (state.value, jnp.mean(values, axis=1))

    state, curves = tracing.scan(body, init(key), length=iterations)
    state = evaluate_centers(optimizer, evaluate, state, episodes)
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
        start = jax.vmap(optimizer.init)(_begins(keys))
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
        params, states = jax.vmap(optimizer.ask)(state.optimizer)
        keys = jax.vmap(lambda k: draws(k, state.update, params.shape[1]))(state.keys)
        played = evaluate(*_flat(params, keys.reshape(-1, episodes)))
        values = finite(played.mean).reshape(params.shape[:2])
        states = jax.vmap(optimizer.tell)(states, params, values)
        state = _counted(state, params, played)
        return state.replace(optimizer=states, update=state.update + 1), values

    return init, iterate


def _begins(keys: Key[Array, " S"]) -> Key[Array, " S"]:
    """The keys of the seeds' optimizers."""
    return jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys)


def _flat(params: Float[Array, "S P n"], keys: Key[Array, "SP E"]) -> tuple[Float[Array, "SP n"], Key[Array, "SP E"]]:
    """All seeds as one batch of candidates."""
    return params.reshape(-1, params.shape[-1]), keys


def _counted(state: SearchState, params: Float[Array, "S P n"], played: Evaluation) -> SearchState:
    """The state with the steps of an evaluation added, and its best policies if they are better."""
    values = finite(played.mean).reshape(params.shape[:2])
    top = jnp.argmax(values, axis=1)
    highest = jnp.take_along_axis(values, top[:, None], axis=1)[:, 0]
    candidate = jnp.take_along_axis(params, top[:, None, None], axis=1)[:, 0]
    return state.replace(
        best=jnp.where((highest > state.value)[:, None], candidate, state.best),
        value=jnp.maximum(highest, state.value),
        steps=state.steps + jnp.sum(played.lengths.reshape(params.shape[0], -1), axis=1),
    )
