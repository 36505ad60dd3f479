"""Search by a numeric optimizer with a budget of episodes: many seeds in one program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from llmrl_jax.agents.population import Evaluation, Evaluator, episode_keys
from llmrl_jax.core.learner import Learner
from llmrl_jax.systems.props.optimizers import Optimizer, centers, finite


@struct.dataclass
class SearchState:
    """State of a search with `S` seeds, which advance together."""

    keys: Key[Array, " S"]
    optimizer: Any
    """The optimizer's states."""
    best: Float[Array, "S n"]
    """The candidate, or center (see `evaluate_centers`), with the highest mean return."""
    value: Float[Array, " S"]
    """Its mean return. As the maximum of many noisy means it is biased upwards; `judge` is unbiased."""
    steps: Int[Array, " S"]
    """Environment steps of the search."""
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


def make_search(optimizer: Optimizer, evaluate: Evaluator, *, seeds: int = 1, episodes: int = 20) -> Learner:
    """A search as a `Learner`, one iteration per update, for `llmrl_jax.run.loop`, which saves, stops and resumes it.

    Its metrics are `episode_return`, the mean over all candidates, and `best`, the mean over seeds of the highest mean
    return so far. The candidates of one iteration are evaluated in the same episodes, which ranks them with less noise.

    **Arguments:** `optimizer`, a numeric one; `evaluate`, see `make_population_evaluator`; `seeds`, which advance
    together: seed `i` depends only on `fold_in(key, i)`; `episodes`, per candidate.
    """

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

    def draws(k: jax.Array, i: jax.Array) -> Key[Array, " E"]:
        return episode_keys(jax.random.fold_in(jax.random.fold_in(k, 1), i), episodes)

    def update(state: SearchState) -> tuple[SearchState, dict[str, jax.Array]]:
        params, states = jax.vmap(optimizer.ask)(state.optimizer)
        keys = jax.vmap(lambda k: draws(k, state.update))(state.keys)
        played = _evaluated(evaluate, params, keys)
        values = finite(played.mean).reshape(params.shape[:2])
        states = jax.vmap(optimizer.tell)(states, params, values)
        state = _counted(state, params, played).replace(optimizer=states, update=state.update + 1)
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
    return _counted(state, params, _evaluated(evaluate, params, keys))


def judge(evaluate: Evaluator, state: SearchState, final_episodes: int) -> Float[Array, "S F"]:
    """The returns of each seed's best candidate in fresh episodes, not used in the search."""
    fresh = jax.vmap(lambda k: episode_keys(jax.random.fold_in(k, 2), final_episodes))(state.keys)
    return evaluate(state.best, fresh).returns


def _begins(keys: Key[Array, " S"]) -> Key[Array, " S"]:
    """The keys of the seeds' optimizers."""
    return jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys)


def _evaluated(evaluate: Evaluator, params: Float[Array, "S P n"], keys: Key[Array, "S E"]) -> Evaluation:
    """The evaluation of all seeds' candidates as one batch, those of a seed in the same episodes."""
    return evaluate(params.reshape(-1, params.shape[-1]), jnp.repeat(keys, params.shape[1], axis=0))


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
