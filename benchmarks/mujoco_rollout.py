"""The raw physics of our evaluations, repeated by `mujoco.rollout`, the C library's batched open-loop rollouts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import rates, seconds
from llmrl_jax.agents.play import begin, rollout
from llmrl_jax.agents.population import vector_actor
from llmrl_jax.systems.props.policies import make_policy


class Recording(NamedTuple):
    """Episodes `B` of one repetition."""

    start: np.ndarray
    """The numbers of the physics after the reset, float64 `[B, size]`."""
    end: np.ndarray
    """Those at the end of the episode."""
    actions: np.ndarray
    """float32 `[B, T, nu]`; those after the end of an episode have no meaning."""
    lengths: np.ndarray
    """int `[B]`, the steps of each episode."""


def record(env: Any, env_params: Any, params: np.ndarray, keys: jax.Array, steps: int) -> Recording:
    """The episodes that our evaluation of `params` plays with `keys` `[P, E]`, of `steps` steps at most."""
    actor = vector_actor(make_policy(env, env_params), jnp.repeat(jnp.asarray(params), keys.shape[1], axis=0))

    @jax.jit
    def play(keys: jax.Array) -> Any:
        pairs = jax.vmap(jax.random.split)(keys.reshape(-1))
        rows = begin(env, env_params, actor, pairs[:, 0], pairs[:, 1])
        last, seen = rollout(
            env, env_params, actor, rows, lambda _, step: {"action": step.action}, steps=steps, max_steps=steps
        )
        return rows.state.physics, last.state.physics, seen["action"], seen["live"]

    start, end, actions, live = jax.tree.map(np.asarray, play(keys))
    decode = env.physics.decode
    return Recording(decode(start), decode(end), np.moveaxis(actions, 0, 1), live.sum(0))


class Replay:
    """The physics of recorded episodes in `mujoco.rollout`, which computes whole batches on threads of its own, in C.

    It takes the actions from the recording, and makes no observations, rewards or terminations. One call computes one
    number of steps for all its rows: so there is a call for each length that an episode has, each with a wait for its
    threads, and the number of time steps is that of the evaluation.
    """

    def __init__(self, physics: Any, recording: Recording):
        import mujoco
        from mujoco import rollout

        self.physics, self.lengths = physics, recording.lengths
        self._mujoco = mujoco
        self._pool = rollout.Rollout(nthread=physics.threads)
        self._data = [mujoco.MjData(physics.model) for _ in range(physics.threads)]
        self._full = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
        starts, warm = self._states(recording.start)
        actions = np.asarray(recording.actions, np.float64)
        self._groups = []
        for length in np.unique(recording.lengths):
            rows = np.flatnonzero(recording.lengths == length)
            control = np.repeat(actions[rows, :length], physics.frame_skip, axis=1)
            self._groups.append((rows, starts[rows], warm[rows], np.ascontiguousarray(control)))

    @property
    def steps(self) -> int:
        """MuJoCo's time steps in one replay."""
        return int(self.lengths.sum()) * self.physics.frame_skip

    def _states(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Full states and warm starts, as `mujoco.rollout` takes them, from the numbers of our physics."""
        model, data = self.physics.model, self._mujoco.MjData(self.physics.model)
        full = np.zeros((len(numbers), self._mujoco.mj_stateSize(model, self._full)))
        warm = np.zeros((len(numbers), model.nv))
        for i, row in enumerate(numbers.copy()):  # a binding that wants writable rows
            self._mujoco.mj_setState(model, data, row, self.physics.spec)
            self._mujoco.mj_getState(model, data, full[i], self._full)
            warm[i] = data.qacc_warmstart
        return full, warm

    def __call__(self) -> None:
        """Compute all time steps; nothing but the physics is computed or stored."""
        for rows, start, warm, control in self._groups:
            self._pool.rollout(
                [self.physics.model] * len(rows),
                self._data,
                start,
                control,
                nstep=control.shape[1],
                initial_warmstart=warm,
                skip_checks=True,
            )

    def ends(self) -> np.ndarray:
        """The full states `[B, n]` at the ends of the episodes."""
        made = np.zeros((len(self.lengths), self._mujoco.mj_stateSize(self.physics.model, self._full)))
        for rows, start, warm, control in self._groups:
            states, _ = self._pool.rollout(self.physics.model, self._data, start, control, initial_warmstart=warm)
            made[rows] = states[:, -1]
        return made

    def check(self, recording: Recording) -> None:
        """**Raises** `AssertionError` unless the replay ends in the recorded places, to the bit."""
        places = slice(1, 1 + self.physics.model.nq + self.physics.model.nv)  # after the time
        np.testing.assert_array_equal(self.ends()[:, places], recording.end[:, : places.stop - 1])


def rollout_samples(env: Any, env_params: Any, params: np.ndarray, keys: jax.Array, steps: int) -> list[float]:
    """Samples of MuJoCo's time steps per second in `mujoco.rollout`, for one repetition of our evaluation."""
    recording = record(env, env_params, params, keys, steps)
    replay = Replay(env.physics, recording)
    replay.check(recording)
    return rates(replay.steps, seconds(replay))
