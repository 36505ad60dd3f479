"""Derivative-free search on the published policy classes, at the published budget."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from llmrl_jax.agents.population import make_population_evaluator
from llmrl_jax.systems.props import tasks
from llmrl_jax.systems.props.optimizers import make_numeric
from tests.props_says import search


def found(task, optimizer, seeds, budget=8000):
    env, params, policy = tasks.get(task).make()
    run = functools.partial(search, make_numeric(optimizer, policy), make_population_evaluator(env, params, policy))
    return jax.jit(functools.partial(run, budget=budget, seeds=seeds))(jax.random.key(0))


@pytest.mark.slow
def test_cma_es_balances_the_pole():
    state, _, final = found("cartpole", "cma_es", 5)
    np.testing.assert_array_equal(state.value, 500)  # TRPO: 465, ProPS: 478 (2511.21928)
    assert float(final.mean()) > 495


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "optimizer", "bar"),
    [
        ("cartpole", "ars", 490),
        ("cartpole", "hill_climbing", 450),
        ("mountain_car_continuous", "random_search", 60),  # standing still is a trap for all that climb
        ("frozen_lake", "cma_es", 0.5),
        ("maze", "ars", 0.96),
        ("nim", "hill_climbing", 0.5),
        ("pong", "cma_es", 2.8),  # 2.86 to 3 by the rounding of the processor
    ],
)
def test_others(task, optimizer, bar):
    assert float(found(task, optimizer, 10)[2].mean()) > bar
