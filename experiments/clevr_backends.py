"""CLEVR-Robot's backends beside C MuJoCo: how far balls are from where C puts them, in up to 30 macro-actions.

    python experiments/clevr_backends.py
    python experiments/clevr_backends.py --backends jax --episodes 256

Every episode begins at random places and has random actions, the same for all. C is played by MuJoCo alone, so nothing
of ours is in it but the scene; `moved` is C beside itself, with all starts moved by `--moved` metres.
`<out>/backends.json` has, for each backend, the largest difference of an x or y in every episode, in metres, and the
seconds of compilation and of play.
"""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from commands import command

import envs_jax
from envs_jax.clevr import goal
from envs_jax.clevr.constants import ACTIONS, BALLS, DIRECTIONS, OFFSET, REST_Z, TIME_STEPS
from envs_jax.physics.mjx import compiler_options
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info


CLOSE = 1e-4


@dataclass(frozen=True)
class Experiment:
    """Backends beside C MuJoCo."""

    backends: tuple[Literal["c", "numba", "jax", "mjx", "moved"], ...] = ("c", "moved", "numba", "jax", "mjx")
    """What is compared."""
    episodes: int = 64
    """Episodes."""
    actions: int = 30
    """Macro-actions of an episode, of 40 time steps each."""
    moved: float = 6e-8
    """How far `moved` moves every ball, in metres along x."""
    out: str = "runs/clevr_backends"
    """Folder of the results."""


def alone(model: Any, starts: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The x and y of the balls after each action, `[E, T, 10]`, by MuJoCo. **Arguments:** `starts`, `[E, 5, 2]`;
    `actions`, `[T, E]`."""
    import mujoco

    found = []
    for balls, row in zip(starts, actions.T, strict=True):
        data = mujoco.MjData(model)
        for i, (x, y) in enumerate(balls):
            data.qpos[7 * i : 7 * i + 3] = x, y, np.float32(REST_Z)
        data.qpos[7 * BALLS :] = 0
        mujoco.mj_forward(model, data)
        for action in row:
            ball, way = divmod(int(action), len(DIRECTIONS))
            data.qpos[7 * BALLS :] = data.qpos[7 * ball : 7 * ball + 2] - OFFSET * DIRECTIONS[way]
            data.qvel[6 * BALLS :] = 0
            data.ctrl[:] = np.float32(DIRECTIONS[way])
            mujoco.mj_step(model, data, TIME_STEPS)
            found.append(data.qpos[: 7 * BALLS].reshape(BALLS, 7)[:, :2].reshape(-1).copy())
    return np.array(found).reshape(len(starts), len(actions), 2 * BALLS)


def played(backend: str, starts: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The same by a backend of ours, all episodes at once; seconds of compilation, and of play."""
    env, params = envs_jax.make("CLEVR-Robot-v0", level="hard", backend=backend)
    step = jax.vmap(env.step, in_axes=(None, 0, 0, None))

    def run(starts: jax.Array, actions: jax.Array) -> jax.Array:
        _, states = jax.vmap(lambda balls: env.begin(balls, goal(2), np.int32(0)))(starts)

        def body(states: Any, action: jax.Array) -> tuple[Any, jax.Array]:
            obs, states, *_ = step(jax.random.key(0), states, action, params)
            return states, obs["state"]

        return jax.lax.scan(body, states, actions)[1]

    options = compiler_options() if backend == "mjx" else {}
    arguments = jnp.asarray(starts, jnp.float32), jnp.asarray(actions)
    begun = time.perf_counter()
    program = jax.jit(run, compiler_options=options).lower(*arguments).compile()
    compiled = time.perf_counter()
    found = np.asarray(program(*arguments))
    return np.moveaxis(found, 0, 1), compiled - begun, time.perf_counter() - compiled


def main() -> None:
    x = parse(Experiment, description=__doc__)
    env, params = envs_jax.make("CLEVR-Robot-v0", backend="c")
    keys = jax.random.split(jax.random.key(7), x.episodes)
    obs, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    starts = np.asarray(obs["state"]).reshape(x.episodes, BALLS, 2)
    actions = np.random.default_rng(1).integers(0, ACTIONS, (x.actions, x.episodes)).astype(np.int32)
    expected = alone(env.model, starts, actions)
    results: dict[str, Any] = {"command": command("clevr_backends.py", x), "date": datetime.date.today().isoformat()}
    results |= {"machine": info.stamp("experiments"), "backends": {}}
    for backend in x.backends:
        if backend == "moved":
            found = alone(env.model, starts.astype(np.float64) + np.array([x.moved, 0.0]), actions)
            seconds: dict[str, float] = {}
        else:
            found, compiled, took = played(backend, starts, actions)
            seconds = {"compile_seconds": round(compiled, 1), "seconds": round(took, 2)}
        far = np.abs(found - expected).max((1, 2))
        close = int((far < CLOSE).sum())
        results["backends"][backend] = {"close": close, "median": float(np.median(far)), "largest": float(far.max())}
        results["backends"][backend] |= {**seconds, "distances": [float(f"{d:.3g}") for d in np.sort(far)]}
        write_whole(Path(x.out) / "backends.json", json.dumps(results, indent=1) + "\n")
        print(f"{backend:6} {close} of {x.episodes} within {CLOSE}; median {np.median(far):.1e}, most {far.max():.1e}")


if __name__ == "__main__":
    main()
