"""BabyAI with random actions, including resets: symbolic views only, with captions, and with prompt tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import (
    OURS,
    REPEATS,
    Result,
    Row,
    aim,
    compiled,
    fastest,
    rates,
    run_peer,
    seconds,
    speedup,
    verdict,
)
from benchmarks.processes import peer_rows as process_rows
from benchmarks.python_peers import minigrid_steps
from envs_jax.history import PromptHistory
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.systems.glam.prompts import glam_prompt


TITLE = "BabyAI: environment steps, with and without text, compared with minigrid and JAX grid worlds"

LEVEL = "GoToLocal-v0"
NUM_ENVS, POOL = 1024, 256
BAR, TEXT_BAR = 150, 80

NEAREST = ("navix:Navix-GoToDoor-8x8-v0", "navix:Navix-DoorKey-8x8-v0", "xland-minigrid:MiniGrid-DoorKey-8x8")
"""Levels of other packages, for `peer_grids.py`."""


MINIGRID = "the same observations; a new world at every reset"
VIEW = "view, direction, mission; our pool of resets"
EMITTERS = {"default": "XLA's defaults", "older": "older loop emitters"}
RESETS = {"own": "a new world made for every row in every step", "pool": "our pool of resets around its step"}
LIMITS = {"navix": "no missions, the whole map", "xland-minigrid": "no missions, a view of 7 x 7 through walls"}
"""What the observations of other packages' levels are, as `make` gives them: navix's `symbolic` has every cell of the
map, XLand-MiniGrid's is `transparent_field_of_view`."""


def compiler_options() -> dict[str, Any]:
    """Faster compiler options for a grid world on a CPU: XLA's older loop emitters, removed in jaxlib 0.11."""
    old = jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu"
    return {"xla_cpu_use_fusion_emitters": False} if old else {}


def fast_emitters() -> dict[str, dict[str, Any]]:
    """The compiler options that are faster for our worlds, under their name."""
    return {"older": compiler_options()} if compiler_options() else {"default": {}}


def both_emitters() -> dict[str, dict[str, Any]]:
    """XLA's defaults and, where jaxlib still has them, its older emitters."""
    return {"default": {}} | fast_emitters()


def our_rows(case: str, measured: dict[str, tuple[list[float], float]]) -> list[Row]:
    """Our rows of a case, the fastest first: it is the one that others are compared with.

    **Arguments:** `measured`, samples and compile seconds by the name of the emitters.
    """
    order = sorted(measured, key=lambda name: -statistics.median(measured[name][0]))
    whose = [OURS, *(f"{OURS}, {EMITTERS[name]}" for name in order[1:])]
    notes = [f"{VIEW}; {EMITTERS[order[0]]}", *([VIEW] * len(order[1:]))]
    return [Row(case, who, "steps/s", *measured[name], note) for who, name, note in zip(whose, order, notes)]


def peer_rows(case: str, levels: Sequence[str], sizes: Sequence[int]) -> list[Row]:
    """The rows of other packages' levels, each with its own reset and with ours, by both emitters.

    **Arguments:** `levels`, as `peer_grids.py` names them; `sizes`, its numbers: environments, steps, repetitions,
    worlds of a pool, whether every repetition generates a new pool.
    """
    rows = []
    for who, variants in run_peer("peer_grids.py", *map(str, sizes), *levels).items():
        if "error" in variants:
            rows.append(Row(case, who, "steps/s", [float("nan")], None, variants["error"]))
            continue
        for v in variants:
            note = f"{LIMITS[who.split()[0]]}; {RESETS[v['reset']]}; {EMITTERS[v['emitters']]}"
            rows.append(Row(case, who, "steps/s", v["samples"], v["compile_seconds"], note))
    return rows


PEER_RESETS = (
    "navix has one automatic reset (`step`), XLand-MiniGrid two: on the step that ends an episode "
    "(`GymAutoResetWrapper`, measured here), and on the step after it (`DmEnvAutoResetWrapper`). Batched by `vmap`, "
    "each makes a new world for every row in every step. The rows with our pool use their plain steps. Peers are "
    "compiled with the same options as we are, the samples of their variants alternate, and a ratio is stated against "
    "the fastest variant of a level."
)
PEER_VIEWS = (
    "Observations differ: ours and minigrid's are the 7 x 7 cells in front of the agent that it can see past walls and "
    "closed doors, its direction and its mission; navix's are all cells of the map (7 x 7 to 16 x 16), and "
    "XLand-MiniGrid's 7 x 7 cells whatever stands between. Neither computes what can be seen, nor a mission."
)


def peer_bars(case: str, ours: Sequence[Row], peers: Sequence[Row]) -> list[str]:
    """A sentence for each level of other packages: our speed in `case` as a multiple of its fastest variant's."""
    bars = []
    for who in dict.fromkeys(row.who for row in peers):
        rows = [row for row in peers if row.who == who]
        ratio, best = speedup(ours, rows), fastest(rows)
        if not math.isnan(ratio.value):
            slower = ": we are slower" if verdict(ratio, 1) == "missed" else ""
            bars.append(f"{case}: {ratio:.2f} times {who}, another level ({best.note}){slower}")
    return bars


def ours(
    id: str,
    num_envs: int,
    steps: int,
    options: dict[str, dict[str, Any]],
    prompt_window: int = 0,
    fresh_pool: int = 0,
) -> dict[str, tuple[list[float], float]]:
    """Samples of steps per second, and compile seconds, by the names of `options`, compiler options. Every leaf of
    every observation enters the carry.

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

    def measure(options: dict[str, Any]) -> tuple[list[float], float]:
        carry = [state, jnp.int32(0)]
        again = lambda *args: rollout(*args)  # noqa: E731 (jax would reuse the trace of the same function)
        program, compile_seconds = compiled(again, jax.random.key(1), *carry, compiler_options=options)
        count = iter(range(10**6))

        def once():
            carry[:] = program(jax.random.fold_in(jax.random.key(2), next(count)), *carry)
            return carry[1]

        return rates(num_envs * steps, seconds(once, repeats=REPEATS + 2)), compile_seconds

    return {name: measure(values) for name, values in options.items()}


def minigrid_rows(id: str, quick: bool) -> list[Row]:
    """minigrid's steps per second, in one process and in as many as there are cores."""
    window = 0.1 if quick else 1.0
    return process_rows(id, "minigrid 3.2.0", "steps/s", minigrid_steps, (id,), window=window, note=MINIGRID)


def run(quick: bool) -> Result:
    """Steps per second: ours, minigrid's, and those of the nearest levels of navix and XLand-MiniGrid."""
    num_envs, steps = (128, 20) if quick else (NUM_ENVS, 200)
    case = f"BabyAI-{LEVEL}"
    rows = our_rows(case, ours(case, num_envs, steps, both_emitters()))
    reference = minigrid_rows(case, quick)
    view = rows[:1]
    rows += reference
    texts = {
        "with captions": (f"BabyAI-Text/{LEVEL}", 0),
        "with captions and a prompt of 1 observation": (f"BabyAI-Text/{LEVEL}", 1),
        "with captions and GLAM's prompt (3 observations)": (f"BabyAI-Text/{LEVEL}", 3),
    }
    if quick:
        texts.popitem()
    bars = [_bar(case, view, reference, BAR)]
    for name, (id, window) in texts.items():
        ((emitters, (samples, took)),) = ours(id, num_envs, steps, fast_emitters(), window).items()
        note = ("tokens by words; " if window else "") + EMITTERS[emitters]
        rows.append(Row(f"{case}, {name}", OURS, "steps/s", samples, took, note))
        bars.append(_bar(f"{case} {name}", rows[-1:], reference, TEXT_BAR))
    peers = peer_rows("nearest JAX levels", NEAREST[-1:] if quick else NEAREST, (num_envs, steps, REPEATS, POOL, 0))
    rows += peers
    bars += peer_bars(case, view, peers)
    notes = [
        f"{num_envs} environments in one scan of {steps} steps; random actions drawn inside; ended episodes are "
        f"replaced from a pool of {POOL} prepared worlds; every part of every observation is added into the carry.",
        PEER_RESETS,
        PEER_VIEWS,
    ]
    return Result(rows, bars, notes)


def _bar(what: str, rows: list[Row], reference: list[Row], bar: float) -> str:
    ratio = speedup(rows, reference)
    return f"{what}: {ratio:.0f} times minigrid without text ({fastest(reference).note}) {aim(ratio, bar)}"
