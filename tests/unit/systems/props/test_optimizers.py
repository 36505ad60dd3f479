"""Numeric optimizers against hand-made updates, the box, and the runner's bookkeeping."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.agents.population import Evaluation
from llmrl_jax.systems.props import optimizers
from llmrl_jax.systems.props.optimizers import ARS, CEM, CMAES, HillClimbing, OpenES, make_numeric
from llmrl_jax.systems.props.policies import Policy
from tests.props_says import search


LINEAR = Policy("linear", 1, 2, discrete=False)  # 4 parameters in [-6, 6]
TABLE = Policy("table", 6, 3, True, 0.0, 2.0, 0, "box")
TARGET = jnp.asarray([2.0, -1.0, 4.0, 0.5])
KEY = jax.random.key(0)


def bowl(params, keys):
    """-|x - TARGET|^2, in every episode alike."""
    value = -jnp.sum((params - TARGET) ** 2, axis=1, keepdims=True)
    returns = jnp.broadcast_to(value, (params.shape[0], keys.shape[-1]))
    return Evaluation(returns, jnp.full(returns.shape, 3, jnp.int32))


def test_ars_is_the_papers_update():
    ars = ARS(LINEAR, directions=4, top=2, step_size=0.7, noise=0.5)
    start = jnp.asarray([0.1, 0.2, 0.3, 0.4])
    params, state = ars.ask(ars.init(KEY, start))
    values = np.array([1.0, 5.0, 3.0, -9.0, 2.0, -4.0, 4.0, -8.0], np.float32)
    told = ars.tell(state, params, jnp.asarray(values))
    delta = (np.asarray(params[:4]) - np.asarray(start)) / 0.5
    np.testing.assert_allclose(params[4:], start - 0.5 * delta, rtol=1e-5, atol=1e-6)
    # the better of each pair: 2, 5, 4, -8; so pairs 1 and 2 are used
    step = (5 + 4) * delta[1] + (3 - 4) * delta[2]
    expected = start + 0.7 / (2 * np.std([5, -4, 3, 4])) * step
    np.testing.assert_allclose(told.mean, expected, rtol=1e-5)
    plain = ARS(LINEAR, directions=4, top=2, step_size=0.7, noise=0.5, scale=False)
    unscaled = np.clip(start + 0.35 * step, -6, 6)
    np.testing.assert_allclose(plain.tell(state, params, jnp.asarray(values)).mean, unscaled, rtol=1e-5)
    still = ars.tell(state, params, jnp.zeros(8))  # a plateau: no spread to divide by
    np.testing.assert_array_equal(still.mean, start)


def test_ars_counts_directions_as_they_were_cut():
    ars = ARS(LINEAR, directions=1, step_size=1.0, noise=1.0, scale=False)
    state = ars.init(KEY, jnp.full(4, 5.5))
    params = jnp.asarray([[6.0, 6, 6, 6], [4.5, 4.5, 4.5, 4.5]])
    told = ars.tell(state, params, jnp.asarray([0.1, 0.0]))
    np.testing.assert_allclose(told.mean, 5.5 + 0.1 * 0.75, rtol=1e-6)


def test_cem_fits_the_elite():
    cem = CEM(LINEAR, population=6, elite=2, extra_std=0.3)
    params, state = cem.ask(cem.init(KEY))
    told = cem.tell(state, params, jnp.asarray([0.0, 3.0, 1.0, 2.0, -1.0, 0.5]))
    elite = np.asarray(params)[[1, 3]]
    np.testing.assert_allclose(told.mean, elite.mean(0), rtol=1e-5)
    np.testing.assert_allclose(told.std, np.sqrt(elite.var(0) + 0.09), rtol=1e-5)
    still = cem.tell(state, params, jnp.full(6, -200.0))  # a plateau says nothing
    np.testing.assert_array_equal(still.mean, state.mean)
    np.testing.assert_array_equal(still.std, state.std)


def test_cem_on_a_table_moves_probabilities():
    cem = CEM(TABLE, population=4, elite=2, rate=0.5)
    state = cem.init(KEY)
    np.testing.assert_allclose(state.mean, 1 / 3)
    params = jnp.asarray([[0, 1, 2, 0, 0, 0], [0, 2, 2, 1, 0, 0], [1] * 6, [2] * 6], jnp.float32)
    told = cem.tell(state, params, jnp.asarray([2.0, 1.0, 0.0, 0.0]))
    np.testing.assert_allclose(told.mean[0], [1 / 6 + 1 / 2, 1 / 6, 1 / 6], rtol=1e-6)  # both took 0
    np.testing.assert_allclose(told.mean[1], [1 / 6, 1 / 6 + 1 / 4, 1 / 6 + 1 / 4], rtol=1e-6)  # 1 and 2
    kept = cem.init(KEY, params[0])
    np.testing.assert_allclose(kept.mean[2], [1 / 6, 1 / 6, 2 / 3], rtol=1e-6)


def test_hill_climbing_keeps_what_is_at_least_as_good():
    climber = HillClimbing(LINEAR, population=3, std=0.2)
    start = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    params, state = climber.ask(climber.init(KEY, start))
    np.testing.assert_array_equal(params[0], start)
    state = climber.tell(state, params, jnp.asarray([5.0, 5.0, 4.0]))
    np.testing.assert_array_equal(state.best, start)
    params, state = climber.ask(state)
    assert 0 < jnp.abs(params - start).max() < 1.0
    worse = climber.tell(state, params, jnp.asarray([4.0, 4.5, 4.9]))
    np.testing.assert_array_equal(worse.best, start)
    equal = climber.tell(state, params, jnp.asarray([4.0, 5.0, 4.9]))
    np.testing.assert_array_equal(equal.best, params[1])


def test_hill_climbing_on_a_table_changes_one_entry():
    climber = HillClimbing(TABLE, population=200)
    start = jnp.asarray([0.0, 1, 2, 0, 1, 2])
    state = climber.init(KEY, start)
    params, state = climber.ask(climber.tell(state, start[None], jnp.zeros(1)))
    changed = np.asarray(params != start)
    np.testing.assert_array_equal(changed.sum(1), 1)
    assert (changed.sum(0) > 15).all()  # every state's turn
    assert set(np.unique(params)) == {0.0, 1.0, 2.0}


@functools.cache
def settled(name, policy):
    """The runner with that optimizer, compiled: three seeds on the bowl, or on matching 2, 1, 0, 2, 1, 0."""
    evaluate = bowl if policy is LINEAR else match
    run = functools.partial(search, make_numeric(name, policy), evaluate, seeds=3, episodes=2, final_episodes=4)
    return jax.jit(functools.partial(run, budget=1200))(KEY)


def match(params, keys):
    hits = jnp.sum(params == jnp.asarray([2.0, 1, 0, 2, 1, 0]), axis=1, keepdims=True).astype(jnp.float32)
    returns = jnp.broadcast_to(hits, (params.shape[0], keys.shape[-1]))
    return Evaluation(returns, jnp.full(returns.shape, 3, jnp.int32))


SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["hill_climbing", "ars", "cma_es", SLOW("open_es"), SLOW("cem")])
def test_all_find_the_bottom_of_a_bowl(name):
    found, metrics, final = settled(name, LINEAR)
    assert float(found.value.max()) > -1.0
    assert float(found.value.min()) > float(settled("random_search", LINEAR)[0].value.max())
    np.testing.assert_allclose(found.value, -jnp.sum((found.best - TARGET) ** 2, axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(final, jnp.broadcast_to(found.value[:, None], (3, 4)), rtol=1e-5, atol=1e-6)
    assert (jnp.diff(metrics["best"]) >= 0).all() and (metrics["episode_return"] <= metrics["best"] + 1e-5).all()
    assert jnp.unique(found.best, axis=0).shape[0] == 3  # three seeds, three searches


@pytest.mark.parametrize("name", ["cem", SLOW("hill_climbing"), SLOW("cma_es")])
def test_tables_are_searched(name):
    found, *_ = settled(name, TABLE)
    assert float(found.value.max()) == 6.0
    assert set(np.unique(found.best)) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize("name", ["cma_es", "open_es"])
def test_evosax_may_first_be_used_inside_of_a_trace(name):
    optimizer = make_numeric(name, LINEAR)
    jax.eval_shape(optimizer.init, KEY)  # what evosax computes when it is made must not be a tracer of this
    params, _ = optimizer.ask(optimizer.init(KEY))
    assert params.shape[1] == LINEAR.num_params


def test_the_runner_counts():
    # 4 + floor(3 ln 4) = 8 candidates of 2 episodes: 74 iterations and two centers fit into 1,200 episodes
    found, metrics, _ = settled("cma_es", LINEAR)
    assert metrics["best"].shape == (74,) and int(found.update) == 74
    np.testing.assert_array_equal(found.steps, 3 * (1184 + 2 * 2))
    at_random, *_ = settled("random_search", LINEAR)
    np.testing.assert_array_equal(at_random.steps, 3 * 1200)
    alone, *_ = search(make_numeric("random_search", LINEAR), bowl, KEY, budget=1200, episodes=2, final_episodes=4)
    np.testing.assert_array_equal(alone.best[0], at_random.best[0])  # a seed is its own


@pytest.mark.parametrize("name", ["ars", SLOW("cma_es"), SLOW("open_es"), "cem"])
def test_a_search_is_never_worth_less_than_its_first_center(name):
    def spike(params, keys):  # 1 at zero, where linear policies begin, and less than 0 elsewhere
        value = jnp.where((params == 0).all(axis=1), 1.0, -1 - jnp.sum(params**2, axis=1))
        returns = jnp.broadcast_to(value[:, None], (params.shape[0], keys.shape[-1]))
        return Evaluation(returns, jnp.ones(returns.shape, jnp.int32))

    optimizer = make_numeric(name, LINEAR)
    found, metrics, final = search(optimizer, spike, KEY, budget=96, seeds=2, episodes=2, final_episodes=3)
    np.testing.assert_array_equal(found.best, 0)
    np.testing.assert_array_equal(final, 1)
    assert (metrics["best"] < 0).all()


def test_the_last_center_is_a_candidate():
    centers = {
        "ars": lambda state: state.mean,
        "cma_es": lambda state: state.inner.mean,
        "cem": lambda state: state.mean,
    }
    for name, center in centers.items():
        optimizer = make_numeric(name, LINEAR)
        state = optimizer.init(KEY, jnp.asarray([7.0, 1, 1, 1]))
        np.testing.assert_allclose(optimizer.center(state), center(state))
        both = optimizers.centers(optimizer, optimizer.init(KEY), state)
        np.testing.assert_allclose(both, [[0, 0, 0, 0], [6, 1, 1, 1]])  # within the box
    table = make_numeric("cem", TABLE)
    likeliest = table.center(table.init(KEY, jnp.asarray([0.0, 1, 2, 2, 1, 0])))
    np.testing.assert_array_equal(likeliest, [0, 1, 2, 2, 1, 0])
    assert optimizers.centers(make_numeric("random_search", LINEAR), KEY, KEY) is None


@pytest.mark.parametrize("name", ["random_search", "hill_climbing", "ars", "cem", SLOW("cma_es"), SLOW("open_es")])
def test_a_return_that_is_not_a_number_does_not_end_a_search(name):
    def holed(params, keys):
        found = bowl(params, keys)
        return found.replace(returns=jnp.where(params[:, :1] > 3.0, jnp.nan, found.returns))

    found, _, final = search(make_numeric(name, LINEAR), holed, KEY, budget=240, seeds=2, episodes=2, final_episodes=3)
    assert np.isfinite(found.value).all() and np.isfinite(final).all()
    assert (found.best[:, 0] <= 3.0).all() and (found.best != 0).any(axis=1).all()


@pytest.mark.parametrize("kind", [CEM, HillClimbing])
def test_a_table_s_narrower_box(kind):
    narrow = Policy("table", 6, 3, True, 0.0, 1.0, 0, "box")
    optimizer = kind(narrow, population=500)
    start = jnp.zeros(6)
    params, state = optimizer.ask(optimizer.init(KEY, start))
    assert set(np.unique(params)) == {0.0, 1.0}
    if kind is CEM:  # half of the probability on the start, the rest alike
        np.testing.assert_allclose(params.mean(), 0.25, atol=0.03)
    else:  # but for the start itself each differs in one entry
        np.testing.assert_array_equal((params[1:] != start).sum(axis=1), 1)


def test_common_random_numbers():
    seen = []

    def evaluate(params, keys):
        seen.append(keys.shape)
        first = jax.vmap(jax.vmap(jax.random.uniform))(keys)
        return Evaluation(first, jnp.ones(first.shape, jnp.int32))

    _, metrics, _ = search(make_numeric("random_search", LINEAR), evaluate, KEY, budget=160, seeds=2)
    assert seen == [(16, 20), (2, 100)]
    # with the same episodes all eight candidates are worth the same
    np.testing.assert_allclose(metrics["best"], metrics["episode_return"], rtol=1e-6)


@pytest.mark.parametrize("name", ["ars", "cma_es"])
def test_candidates_lie_in_the_box(name):
    optimizer = make_numeric(name, LINEAR)
    assert jnp.abs(optimizer.ask(optimizer.init(KEY, jnp.full(4, 6.0)))[0]).max() == 6


def test_bad_input_is_named():
    with pytest.raises(KeyError, match="'cmaes'.*'cma_es'"):
        make_numeric("cmaes", LINEAR)
    with pytest.raises(ValueError, match="top.*9.*0.*4"):
        ARS(LINEAR, top=9)
    with pytest.raises(ValueError, match="elite.*0.*1.*20"):
        CEM(LINEAR, elite=0)
    with pytest.raises(ValueError, match="open_es: population.*5"):
        OpenES(LINEAR, population=5)
    with pytest.raises(ValueError, match="hill_climbing: std.*-1.0.*0"):
        HillClimbing(LINEAR, std=-1.0)
    with pytest.raises(ValueError, match="100.*cma_es: 8"):
        search(CMAES(LINEAR), bowl, KEY, budget=100)
