"""C MuJoCo under `jit`, `vmap` and `scan`: one host call for a whole batch, whose rows are split over threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.checks import at_least
from envs_jax.physics.interface import Edit, Look, Physics, require
from envs_jax.threads import cores


ROWS = 8
"""The smallest number of rows for which another thread pays off."""
PIECES = 4
"""Chunks of a batch per thread, so that a delayed thread delays little."""


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="mujoco")


class PhysicsC(Physics):
    """A state is uint32 `[size, 2]`, the bits of its float64 numbers: nothing is lost between two steps.

    So a trajectory is bit-identical to that of a C program that keeps one `mjData`. The host is reached by
    `jax.pure_callback`, once for any nesting of `vmap`s, and only runs NumPy and MuJoCo there. Under a mesh with
    automatic axes all rows are computed by one process's call; in a `shard_map` each device makes a call for its own
    rows.
    """

    def __init__(
        self,
        model: Any,
        frame_skip: int,
        read: tuple[str, ...] = (),
        threads: int | None = None,
        fresh: bool = False,
    ):
        """**Arguments:** as of `Physics`; `threads`, the number of threads for a batch (default: the cores of this
        process)."""
        super().__init__(model, frame_skip, read, fresh)
        if threads is not None:
            at_least("threads", threads, 1)
        self.threads = cores() if threads is None else threads
        self._mujoco = require("mujoco")
        self._inputs = self.spec | int(self._mujoco.mjtState.mjSTATE_CTRL)
        self._spare: list[Any] = []

    def begin(self, qpos, qvel, look, *args, mocap=None):
        qpos, qvel, mocap = self._checked(qpos, qvel, mocap)
        blank, ctrl = (jnp.zeros(n, jnp.float32) for n in (self.model.na + self.model.nv, self.model.nu))
        start = jnp.concatenate([qpos, qvel, blank, mocap.ravel()])
        return self._call(self._forward, (start, ctrl), jnp.bool_(True), look, args)

    def advance(self, state, ctrl, going, look, *args, edit=None):
        return self._call(self._step, (state, ctrl), going, look, args, edit)

    def _forward(self, data: Any) -> None:
        self._mujoco.mj_forward(self.model, data)

    def _step(self, data: Any) -> None:
        self._mujoco.mj_step(self.model, data, self.frame_skip)
        if self.fresh:
            self._mujoco.mj_kinematics(self.model, data)

    def _call(
        self,
        run: Callable,
        inputs: tuple[jax.Array, jax.Array],
        going: jax.Array,
        look: Look,
        args: tuple[Any, ...],
        edit: Edit | None = None,
    ) -> Any:
        shapes = self.result_shapes(look, args)
        results = jax.ShapeDtypeStruct((self.size, 2), np.uint32), shapes
        host = functools.partial(self._host, run, look, shapes, **({"edit": edit} if edit else {}))
        return jax.pure_callback(host, results, inputs, going, args, vmap_method="expand_dims")

    def _host(
        self, run: Callable, look: Look, shapes: Any, inputs: Any, going: Any, args: Any, edit: Edit | None = None
    ) -> tuple[np.ndarray, Any]:
        """Advance a batch. Every array has the same number of leading axes, of size 1 for an array that was not
        batched."""
        (state, ctrl), going, args = jax.tree.map(np.asarray, (inputs, going, args))
        axes = going.ndim
        batch = np.broadcast_shapes(*(x.shape[:axes] for x in jax.tree.leaves((inputs, going, args))))
        numbers = self.decode(state) if state.dtype == np.uint32 else state.astype(np.float64)
        before = np.broadcast_to(numbers, (*batch, self.size))
        after = before.copy()
        # MuJoCo's order puts the controls between what a step changes and the mocap bodies
        rows = np.empty((*batch, self._mujoco.mj_stateSize(self.model, self._inputs)))
        ctrl_start = self.size - 3 * self.model.nmocap
        rows[..., :ctrl_start], rows[..., ctrl_start : ctrl_start + self.model.nu] = before[..., :ctrl_start], ctrl
        rows[..., ctrl_start + self.model.nu :] = before[..., ctrl_start:]
        args = jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, args)
        if edit is not None:
            nq, nv = self.model.nq, self.model.nv
            with np.errstate(all="ignore"):  # inactive rows may hold any values
                rows[..., :nq], rows[..., nq : nq + nv], *mocap = edit(np, self.moment(before, {}), *args)
            if mocap:
                rows[..., ctrl_start + self.model.nu :] = mocap[0].reshape(*batch, -1)
        read = {name: np.zeros((*batch, *shape)) for name, shape in self.read.items()}
        chosen = np.flatnonzero(np.broadcast_to(going, batch))
        self._share(run, chosen, [x.reshape(-1, *x.shape[axes:]) for x in (rows, after, *read.values())])
        with np.errstate(all="ignore"):  # inactive rows may hold any values
            result = look(np, self.moment(before, {}), self.moment(after, read), *args)
            result = jax.tree.map(lambda s, x: np.broadcast_to(np.asarray(x, s.dtype), batch + s.shape), shapes, result)
        return self.encode(after), result

    def _share(self, run: Callable, chosen: np.ndarray, arrays: list[np.ndarray]) -> None:
        """Advance the chosen rows of `arrays`, flat, in place, on all threads."""
        pieces = min(self.threads * PIECES, len(chosen) // ROWS) if self.threads > 1 else 1
        if pieces < 2:
            self._run_rows(run, chosen, arrays)
            return
        for _ in _pool(self.threads).map(
            lambda rows: self._run_rows(run, rows, arrays), np.array_split(chosen, pieces)
        ):
            pass

    def _run_rows(self, run: Callable, chosen: np.ndarray, arrays: list[np.ndarray]) -> None:
        """Advance some rows, one after the other, in one `mjData`. MuJoCo releases the GIL in each step."""
        rows, after, *read = arrays
        model, inputs, spec = self.model, self._inputs, self.spec
        set_state, get_state = self._mujoco.mj_setState, self._mujoco.mj_getState
        try:
            data = self._spare.pop()
        except IndexError:
            data = self._mujoco.MjData(model)
        fields = list(zip(read, (getattr(data, name) for name in self.read)))
        for i in chosen.tolist():
            set_state(model, data, rows[i], inputs)
            run(data)
            get_state(model, data, after[i], spec)
            for array, field in fields:
                array[i] = field
        self._spare.append(data)
