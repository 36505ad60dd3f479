"""What every registered algorithm, and every learner of an agent that writes, must do, in the smallest of runs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.rl.registry import ALGORITHMS, algorithm
from llmrl_jax.run.chunk import must_be_finite
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train
from tests.conformance.subjects import LEARNERS


AGENTS = [name for name in LEARNERS if name.startswith("agent, ")]


@pytest.fixture(
    scope="module",
    # agents take longest; one is killed and goes on in tests/resume, and tests/unit/multiturn has their bounds
    params=[*sorted(ALGORITHMS), *(pytest.param(x, marks=pytest.mark.slow) for x in AGENTS)],
)
def learner(request):
    made = LEARNERS[request.param]()
    return dataclasses.replace(made, init=jax.jit(made.init))  # compiled once for all runs


def bits(x):
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def assert_same_bits(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(bits(x), bits(y)), a, b)


def test_states_keep_their_shapes_and_metrics_their_bounds(learner):
    traces = []
    update = jax.jit(lambda state: (traces.append(1), learner.update(state))[1])
    first = learner.init(jax.random.key(0))
    state, metrics = update(first)
    state, again = update(state)
    assert len(traces) == 1, "the second update was traced again: its state has other shapes or types"
    assert jax.tree.structure(first) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(state)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert int(first.update) == 0 and int(state.update) == 2 and learner.steps_per_update > 0
    assert_same_bits(first.frozen, state.frozen)
    for found in (metrics, again):
        assert all(x.dtype == jnp.float32 and x.shape == () for x in found.values())
        assert all(np.isfinite(x) for name, x in found.items() if must_be_finite(name))
        assert all(float(found[name]) <= bound for name, bound in learner.bounds.items())


def test_it_resumes_bit_for_bit(learner, tmp_path):
    """Four updates at once, and the last two again from the files of the second: environments, memory and counters
    included."""

    def run(**options):
        config = RunConfig(name="run", out=str(tmp_path), progress="off", checkpoint_every=2, **options)
        state = train(learner, config, num_updates=4).state
        return state, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()

    whole, before = run()
    resumed, after = run(resume=True, resume_from=2)
    assert len(before) == len(after) == 4
    assert before[:2] == after[:2] and before[2] != after[2], "only the last two were done twice"
    assert int(resumed.update) == 4
    assert_same_bits(whole, resumed)


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match="'ddqn'.*'dqn'"):
        algorithm("ddqn")
