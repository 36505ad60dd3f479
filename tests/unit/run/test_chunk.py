"""The program of a run: traced once, and the same for a state that is new and for one that was restored."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from llmrl_jax.rl.precision import exact_rounding
from llmrl_jax.run import chunk
from tests.resume.tiny import TinyLearner


class Counted(TinyLearner):
    """Counts how often its update is traced."""

    traced = 0

    def update(self, state):
        type(self).traced += 1
        return super().update(state)


def test_an_update_is_traced_once_and_a_restored_state_finds_its_program(monkeypatch):
    """In XLA's cache a program is found by its text; a restored array is committed to its device, a new one is not."""
    lowered = []
    compiled = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: (lowered.append(self), compiled(self))[1])
    learner = Counted()
    state = jax.jit(learner.init)(jax.random.key(0))
    restored = jax.device_put(state, jax.devices()[0])
    assert restored.key.committed and not state.key.committed
    program, _ = chunk.compile_chunk(learner, state, 4)
    assert Counted.traced == 1
    chunk.compile_chunk(learner, restored, 4)
    assert lowered[0].as_text() == lowered[1].as_text()
    after, rows = program(state.replace(frozen=()), state.frozen, jnp.int32(2))
    assert int(after.update) == 2 and jnp.isfinite(rows["loss"]).tolist() == [True, True, False, False]


def rounding(x):
    """Change by rounding a square to bfloat16: none, if XLA leaves the rounding out."""
    return (x * x).astype(jnp.float32) - jnp.square(x.astype(jnp.float32))


class Rounding(TinyLearner):
    """Reports `rounding` of a third."""

    compiler_options = exact_rounding(jnp.bfloat16)

    def update(self, state):
        state, metrics = super().update(state)
        return state, metrics | {"rounding": rounding((state.update / 3).astype(jnp.bfloat16))}


def test_a_run_compiles_its_updates_with_the_options_of_the_learner():
    learner = Rounding()
    state = jax.jit(learner.init)(jax.random.key(0))
    program, _ = chunk.compile_chunk(learner, state, 1)
    _, rows = program(state.replace(frozen=()), state.frozen, jnp.int32(1))
    assert rows["rounding"][0] == rounding(jnp.bfloat16(1 / 3)) < -1e-4
