"""BabyAI with random actions, including resets: symbolic views only, with captions, and with prompt tokens."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, compiled, rates, run_peer, seconds
from envs_jax.history import PromptHistory
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.systems.glam.prompt import glam_prompt


TITLE = "BabyAI: environment steps, with and without text, compared with minigrid and JAX grid worlds"

LEVEL = "GoToLocal-v0"
NUM_ENVS, POOL = 1024, 256
BAR, TEXT_BAR = 150, 80

NEAREST = ("navix:Navix-GoToDoor-8x8-v0", "navix:Navix-DoorKey-8x8-v0", "xland-minigrid:MiniGrid-DoorKey-8x8")
"""Levels of other packages, for `peer_grids.py`."""


def compiler_options() -> dict[str, Any]:
    """Faster compiler options for a grid world on a CPU: XLA's older loop emitters, removed in jaxlib 0.11."""
    old = jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu"
    return {"xla_cpu_use_fusion_emitters": False} if old else {}


def ours(
    id: str, num_envs: int, steps: int, options: dict[str, Any], prompt_window: int = 0, fresh_pool: int = 0
) -> tuple[list[float], float]:
    """Samples of steps per second, and compile seconds. Every leaf of every observation enters the carry.

    `prompt_window`: 0 for the environment's observations; `n` for prompt tokens with a window of `n` observations.
    `fresh_pool`: 0 for a prepared pool; `n` for a pool of `n` levels generated in every rollout.
    """
    env, params = envs_jax.make(id)
    look: Callable[[Any], Any] = lambda obs: obs  # noqa: E731
    if prompt_window:
        env = PromptHistory(env, prompt_window)
        prompt = glam_prompt(env, history=prompt_window, list_actions=prompt_window > 1)
        look = prompt.batched(prompt.compile(WordTokenizer.from_prompt(prompt.prompt, prompt.actions)))
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=fresh_pool or POOL)
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)

    def rollout(key, state, total):
        def body(carry, key):
            state, total = carry
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (num_envs,), 0, len(env.action_names))
            obs, state, reward, terminated, truncated, _ = venv.step(step_key, state, actions, params)
            seen = [*jax.tree.leaves(look(obs)), reward, terminated, truncated]
            return (state, total + sum(jnp.sum(x.astype(jnp.int32)) for x in seen)), None

        if fresh_pool:
            state = venv.refresh(jax.random.fold_in(key, 1), state, params)
        return jax.lax.scan(body, (state, total), jax.random.split(key, steps))[0]

    carry = [state, jnp.int32(0)]
    program, compile_seconds = compiled(rollout, jax.random.key(1), *carry, compiler_options=options)
    count = iter(range(10**6))

    def once():
        carry[:] = program(jax.random.fold_in(jax.random.key(2), next(count)), *carry)
        return carry[1]

    return rates(num_envs * steps, seconds(once, repeats=REPEATS + 2)), compile_seconds


def minigrid(id: str, steps: int) -> list[float]:
    """One minigrid environment with pre-drawn actions; its printed lines are discarded."""
    import gymnasium
    import minigrid  # noqa: F401

    env = gymnasium.make(id).unwrapped
    actions = np.random.default_rng(0).integers(0, 7, (REPEATS + 1, steps)).tolist()
    samples = []
    with contextlib.redirect_stdout(io.StringIO()):
        env.reset(seed=0)
        for row in actions:
            started = time.perf_counter()
            for action in row:
                *_, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            samples.append(steps / (time.perf_counter() - started))
    return samples[1:]


def run(quick: bool) -> Result:
    """Steps per second: ours, minigrid's, and those of the nearest levels of navix and XLand-MiniGrid."""
    num_envs, steps = (128, 20) if quick else (NUM_ENVS, 200)
    case = f"BabyAI-{LEVEL}"
    view, seconds_ = ours(case, num_envs, steps, compiler_options())
    theirs = minigrid(case, 500 if quick else 5000)
    rows = [
        Row(case, OURS, "steps/s", view, seconds_, "view, direction, mission"),
        Row(case, "minigrid 3.2.0", "steps/s", theirs, None, "one process; the same observations"),
    ]
    plain, seconds_ = ours(case, num_envs, steps, {})
    rows.append(Row(case, f"{OURS}, XLA's defaults", "steps/s", plain, seconds_, "as inside a larger program"))
    texts = {
        "with captions": (f"BabyAI-Text/{LEVEL}", 0),
        "with captions and a prompt of 1 observation": (f"BabyAI-Text/{LEVEL}", 1),
        "with captions and GLAM's prompt (3 observations)": (f"BabyAI-Text/{LEVEL}", 3),
    }
    if quick:
        texts.popitem()
    medians = {}
    for name, (id, window) in texts.items():
        samples, seconds_ = ours(id, num_envs, steps, compiler_options(), window)
        rows.append(Row(f"{case}, {name}", OURS, "steps/s", samples, seconds_, "tokens by words" if window else ""))
        medians[name] = rows[-1].median
    if not quick:
        for who, result in run_peer("peer_grids.py", str(num_envs), str(steps), str(REPEATS), *NEAREST).items():
            if "error" in result:
                rows.append(Row(who, who, "steps/s", [float("nan")], None, result["error"]))
            else:
                note = "no missions, no occlusion" if who.startswith("navix") else "no missions"
                rows.append(
                    Row("nearest JAX levels", who, "steps/s", result["samples"], result["compile_seconds"], note)
                )

    def bar(ratio: float, aim: float, what: str) -> str:
        return (
            f"{what}: {ratio:.0f} times minigrid without text (aim: {aim:.0f}, {'met' if ratio >= aim else 'missed'})"
        )

    base = rows[1].median
    bars = [bar(rows[0].median / base, BAR, case)]
    bars += [bar(median / base, TEXT_BAR, f"{case} {name}") for name, median in medians.items()]
    notes = [
        f"{num_envs} environments in one scan of {steps} steps; random actions drawn inside; ended episodes are "
        f"replaced from a pool of {POOL} prepared worlds; every part of every observation is added into the carry.",
        "minigrid steps one environment in Python and generates a new world at every reset.",
    ]
    return Result(rows, bars, notes)
