"""Runs that share a program: each as it is alone, resumed exactly; what breaks, differs or is stopped."""

from __future__ import annotations

import functools
import json
import os
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core.learner import Learner
from llmrl_jax.rl.seeds import VmappedState
from llmrl_jax.run import loop
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunStopped, train
from llmrl_jax.workflows import group
from llmrl_jax.workflows.group import run_group
from tests.resume.tiny import TinyLearner, evaluate


class Traced(TinyLearner):
    """The rate is in the state, and not in the program."""

    def init(self, key):
        state = super().init(key)
        return state.replace(envs={**state.envs, "rate": jnp.float32(self.learning_rate)})

    def update(self, state):
        learner = TinyLearner(state.envs["rate"], self.break_at)
        return learner.update(state)


RATES, UPDATES = (0.05, 0.05, 0.2), 12
"""Of the seeds 0, 1, 2."""


def learner_of(tiny):
    return Learner(tiny.init, tiny.update, tiny.steps_per_update, tiny.bounds, shared=("envs.rate",))


def learn(folder, i, results, tiny=None, updates=UPDATES, **options):
    """Make run `i`."""
    config = RunConfig(name=str(i), out=str(folder), seed=i, progress="off", log_every=4, checkpoint_every=6, **options)
    learner = learner_of(Traced(RATES[i]) if tiny is None else tiny)
    try:
        results[i] = train(learner, config, num_updates=updates, evaluate=evaluate)
    except RunStopped:
        return 1
    return 0


def rows(folder, i):
    return [json.loads(line) for line in (folder / str(i) / "metrics.jsonl").read_text().splitlines()]


def assert_equal(one, other, **tolerance):
    def check(a, b):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), **tolerance)

    jax.tree.map(check, one, other)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The folder and results of a group, and the compilations that it took."""
    folder, results, programs = tmp_path_factory.mktemp("whole"), {}, []

    def counted(*inputs):
        programs.append(inputs)
        return compile_chunk(*inputs)

    compile_chunk = group.compile_chunk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "compile_chunk", counted)
        patch.setattr(loop, "plots", SimpleNamespace(learning_curve=lambda *args, **options: None))
        codes = run_group([functools.partial(learn, folder, i, results, eval_every=6) for i in range(3)])
    assert codes == [0, 0, 0] and len(programs) == 1
    return folder, results


def test_each_run_is_as_it_is_alone(complete, tmp_path):
    folder, results = complete
    alone = {}
    assert learn(tmp_path, 2, alone, eval_every=6) == 0
    assert_equal(results[2].state, alone[2].state, rtol=1e-4, atol=1e-5)
    for line, own in zip(rows(folder, 2), rows(tmp_path, 2), strict=True):
        assert line.keys() == own.keys() and line["update"] == own["update"]
        name = "loss" if line["kind"] == "train" else "error"
        assert line[name] == pytest.approx(own[name], rel=1e-4)
    assert len({rows(folder, i)[-2]["loss"] for i in range(3)}) == 3


def test_seconds_are_those_of_the_program(complete):
    """Not those in which a run waits for the evaluation of another one."""
    folder, _ = complete
    seconds = [[line["seconds"] for line in rows(folder, i) if line["kind"] == "train"] for i in range(3)]
    assert seconds[0] == seconds[1] == seconds[2] and seconds[0][0] > 0


def test_a_group_continues_exactly(complete, tmp_path):
    results = {}
    for updates, options in ((6, {}), (UPDATES, {"resume": True})):
        calls = [functools.partial(learn, tmp_path, i, results, updates=updates, **options) for i in range(3)]
        assert run_group(calls) == [0, 0, 0]
    for i, result in complete[1].items():
        assert_equal(result.state, results[i].state, rtol=0)


def test_a_run_that_breaks_down_leaves_the_others(complete, tmp_path, capfd):
    results = {}
    calls = [functools.partial(learn, tmp_path, i, results) for i in (0, 2)]
    broken = functools.partial(learn, tmp_path, 1, results, Broken(0.05))
    assert run_group([calls[0], broken, calls[1]]) == [0, 1, 0]
    for i in (0, 2):
        assert_equal(results[i].state, complete[1][i].state, rtol=1e-4, atol=1e-5)


class Broken(Traced):
    """Its rate becomes nan, in its state alone."""

    def init(self, key):
        state = super().init(key)
        return state.replace(envs={**state.envs, "rate": jnp.float32(jnp.nan)})


def test_a_run_with_another_program_runs_by_itself(complete, tmp_path, capfd):
    results = {}
    calls = [functools.partial(learn, tmp_path, i, results) for i in (0, 2)]
    static = functools.partial(learn, tmp_path, 1, results, TinyLearner(0.05))
    # between the two others, which go on before it wakes
    assert run_group([calls[0], static, calls[1]]) == [0, 0, 0]
    assert "1 of 3" in capfd.readouterr().err
    for i in (0, 2):
        assert_equal(results[i].state, complete[1][i].state, rtol=1e-4, atol=1e-5)
    assert_equal(results[1].state.params, complete[1][1].state.params, rtol=1e-4, atol=1e-5)


def test_programs_are_equal_only_with_equal_constants():
    def learner(scale, offset=1.0):
        inner = jax.jit(lambda x: jax.nn.relu(x) * scale + offset)
        return Learner(lambda key: None, lambda state: (state.replace(params=inner(state.params)), {}), 1)

    state = VmappedState(jnp.ones(3), (), (), jnp.int32(0))
    same, other = (group._program(learner(np.full(3, scale, np.float32)), state) for scale in (2, 2))
    assert same == other
    for different in (
        learner(np.full(3, 3, np.float32)),
        learner(jnp.full(3, 3.0)),
        learner(np.full(3, 2, np.float32), 2.0),
    ):
        assert group._program(different, state) != same
    assert group._program(learner(np.full(3, 2, np.float32)), state.replace(update=jnp.int32(1))) != same


def test_a_signal_stops_all_at_one_update(tmp_path):
    results = {}

    class Signalling(Traced):
        def init(self, key):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().init(key)

    calls = [
        functools.partial(learn, tmp_path, i, results, learner) for i, learner in enumerate((Traced(), Signalling()))
    ]
    assert run_group(calls) == [0, 0]
    assert [(x.stopped, x.update) for x in results.values()] == [("SIGTERM", 4), ("SIGTERM", 4)]
