"""MJX: MuJoCo's physics as an XLA program, for accelerators."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from envs_jax import tracing
from envs_jax.physics.interface import Physics, require


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Explain errors for a model that MJX does not support, or fails on under this version of jax."""
    try:
        with np.errstate(over="ignore"):  # for two boxes it casts the largest float64 to float32, which is meant
            yield
    except (NotImplementedError, TypeError) as error:
        raise RuntimeError(
            f"mujoco-mjx {importlib.metadata.version('mujoco-mjx')} cannot compute this model under jax "
            f"{jax.__version__} ({error}): update mujoco-mjx, or use physics='c'"
        ) from error


@contextlib.contextmanager
def _single_precision() -> Iterator[None]:
    """float32 throughout: under `jax_enable_x64`, MJX mixes float32 with float64, and fails; and accelerators would
    round the factors of its products to TF32 or bfloat16, by default. Contacts amplify what is lost."""
    with jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield


def compiler_options() -> dict[str, bool]:
    """The `compiler_options` that `jax.jit(f, compiler_options=...)` needs if `f` steps MJX: empty on an accelerator.

    XLA's fusion emitters for CPUs compile long chains of bodies into programs that are up to 1,000 times slower. jaxlib
    below 0.11 can turn them off. Later ones reject the option, and abort if it is in `XLA_FLAGS`.
    """
    version = tuple(map(int, jaxlib.__version__.split(".")[:2]))
    return {"xla_cpu_use_fusion_emitters": False} if version < (0, 11) and tracing.platform() == "cpu" else {}


class PhysicsMjx(Physics):
    """A state is float32 `[size]`.

    Two things differ from C: numbers are float32, so trajectories diverge when contacts amplify the difference; and
    fields are always read at the state that a step reaches, whereas C MuJoCo leaves those of the last stage of its
    Runge-Kutta integrator, or of the last time step, unless it is `fresh`. Products of matrices have float32 factors on
    every device, whatever the process sets, and `jax_enable_x64` is disabled in here.

    On a CPU, give the `jit` around it `compiler_options()`, or use C, which is even faster.
    """

    def __init__(self, model: Any, frame_skip: int, read: tuple[str, ...] = (), line_search: int = 0):
        """**Arguments:** as of `Physics`; `line_search`, the most steps of the constraint solver's line search (0: the
        model's), for which all environments of a batch wait where one needs them.
        **Raises:** `ModuleNotFoundError` without mujoco-mjx, `RuntimeError` for a model that it cannot compute."""
        super().__init__(model, frame_skip, read)
        self._mjx = require("mujoco.mjx")
        with _explained(), _single_precision(), jax.ensure_compile_time_eval():  # this may be the trace of a step
            compiled = self._mjx.put_model(model)
            option = compiled.opt.replace(ls_iterations=line_search or compiled.opt.ls_iterations)
            self._compiled = compiled.replace(opt=option)
            turned = jnp.asarray(model.body_quat[model.body_mocapid >= 0], jnp.float32)
            self._blank = self._mjx.make_data(model).replace(mocap_quat=turned)  # which it leaves at zero

    def begin(self, qpos, qvel, look, *args, mocap=None):
        qpos, qvel, mocap = self._checked(qpos, qvel, mocap)
        with _single_precision():
            with _explained():
                data = self._blank.replace(qpos=qpos, qvel=qvel, mocap_pos=mocap)
                data = self._mjx.forward(self._compiled, data)
            return self._result(data, self.moment(self._numbers(data), {}), data, look, args)

    def advance(self, state, ctrl, going, look, *args, edit=None):
        nq, nv = self.model.nq, self.model.nv
        with _single_precision():
            qpos, qvel, act, warmstart, mocap = jnp.split(state, np.cumsum([nq, nv, self.model.na, nv]))
            if edit is not None:
                qpos, qvel, *moved = edit(jnp, self.moment(state, {}), *args)
                mocap = moved[0] if moved else mocap
            data = self._blank.replace(qpos=qpos, qvel=qvel, act=act, qacc_warmstart=warmstart, ctrl=ctrl)
            data = data.replace(mocap_pos=mocap.reshape(self.model.nmocap, 3))
            with _explained():
                data = tracing.fori_loop(0, self.frame_skip, lambda _, d: self._mjx.step(self._compiled, d), data)
                readable = self._mjx.forward(self._compiled, data) if self.read else data
            after, result = self._result(data, self.moment(state, {}), readable, look, args)
            return jnp.where(going, after, state), result

    def encode(self, numbers):
        return np.asarray(numbers, np.float32)

    def decode(self, state):
        return np.asarray(state, np.float64)

    def _numbers(self, data: Any) -> jax.Array:
        parts = [data.qpos, data.qvel, data.act, data.qacc_warmstart, data.mocap_pos.ravel()]
        return jnp.concatenate(parts).astype(jnp.float32)

    def _result(self, data: Any, before: Any, readable: Any, look: Any, args: tuple[Any, ...]) -> tuple[jax.Array, Any]:
        numbers = self._numbers(data)
        after = self.moment(numbers, {name: getattr(readable, name) for name in self.read})
        result = look(jnp, before, after, *args)
        return numbers, jax.tree.map(lambda s, x: x.astype(s.dtype), self.result_shapes(look, args), result)
