"""Offline RL: gradient steps per second of each algorithm beside d3rlpy's, and their part of the matrix rate."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import (
    OURS,
    REPEATS,
    ROOT,
    Figure,
    Result,
    Row,
    aim,
    compiled,
    rates,
    seconds as timings,
    speedup,
    threads,
    updating,
)
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.kernels import chunked
from llmrl_jax.rl.offline import Context, Offline, OfflineLearner, TrainState, make_offline
from llmrl_jax.rl.offline_data import ActionKind
from llmrl_jax.rl.registry import algorithm


TITLE = "Offline RL: gradient steps, compared with d3rlpy"

OBS, ACTIONS, BATCH = 17, 6, 256
SQUARE = 1024
BAR_RATE, BAR_COMPILE = 60, 5
CASES: dict[str, tuple[str, bool, float]] = {
    "bc": ("BC", False, 5),
    "iql": ("IQL", False, 2.5),
    "td3_bc": ("TD3PlusBC", False, 2.5),
    "awac": ("AWAC", False, 2.5),
    "cql": ("CQL", False, 1.5),
    "bcq": ("BCQ", False, 1.5),
    "bc, discrete": ("DiscreteBC", True, 5),
    "discrete_cql": ("DiscreteCQL", True, 5),
    "discrete_bcq": ("DiscreteBCQ", True, 5),
}
"""Ours -> d3rlpy's name, whether actions are discrete, and the aim: how many times faster."""
SAME = {"DiscreteBCQ": {"share_encoder": False}}
"""Options with which d3rlpy has the networks of ours; its defaults, which compute less, are a row beside. The faster of
both counts."""
STEPS = {"cql": 10, "bcq": 5}
"""Gradient steps of a call, of those that are slow; else 100."""


def data(count: int, discrete: bool) -> dict[str, np.ndarray]:
    """Random steps in episodes of 1,000, as arrays; the peer makes the same ones."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count + 1, OBS), np.float32)
    action = rng.integers(0, ACTIONS, count) if discrete else rng.uniform(-1, 1, (count, ACTIONS)).astype(np.float32)
    ends = np.arange(1, count + 1) % 1000 == 0
    return {"x": x, "action": action, "reward": rng.standard_normal(count, np.float32), "timeouts": ends}


def learner_of(name: str, count: int, discrete: bool, steps: int) -> tuple[OfflineLearner, Offline]:
    """Ours, with the defaults and a batch of 256; discrete BC and BCQ penalise what d3rlpy 2.8.1 does."""
    arrays = {k: jnp.asarray(v) for k, v in data(count, discrete).items()}
    no = jnp.zeros(count, bool)
    x, action, ends = arrays["x"], arrays["action"], arrays["timeouts"]
    made = Transitions(x[:-1], action, arrays["reward"], x[1:], no, ends)
    actions = ActionKind(ACTIONS) if discrete else ActionKind.box(-1.0, 1.0, ACTIONS)
    entry = algorithm(name.partition(",")[0])
    config = dataclasses.replace(entry.config(), batch_size=BATCH, gradient_steps=steps)
    if discrete and hasattr(config, "beta_on"):
        config = dataclasses.replace(config, beta_on="log_probs")
    method = entry.make(config, actions)
    return make_offline(method, config, made, actions), Offline(method, config)


def operations(learner: OfflineLearner, offline: Offline, state: Any) -> float:
    """Floating-point operations of the gradient steps on which every network learns, as XLA counts them.

    XLA counts the body of a loop once, so all batches are one part here."""
    trained = TrainState(state.params, state.target, state.opt_state, state.extra)
    batch = jax.jit(offline.batch)(learner.frozen, jax.random.key(0))
    every = getattr(offline.config, "actor_every", 1)
    counted = []
    for count in range(every):  # a constant count decides which branch is compiled
        context = Context(jax.random.key(0), state.hparams, jnp.int32(count), learner.frozen)
        with mock.patch.object(chunked, "ROWS", 10**9):
            program = jax.jit(lambda t, b, c=context: offline.method.step(t, b, c)).lower(trained, batch).compile()
        cost: Any = program.cost_analysis()
        counted.append(float(cost["flops"]))
    return float(np.mean(counted))


class Peer:
    """d3rlpy in a process of its own, which takes gradient steps for a given time when it is asked to."""

    def __init__(self, count: int):
        python = ROOT / os.environ.get("LLMRL_D3RLPY", ".venv-d3rlpy") / "bin" / "python"
        if not Path(python).exists():
            raise FileNotFoundError(f"d3rlpy's environment {python.parents[1]} is missing; `make bench` builds it")
        cores = len(os.sched_getaffinity(0))
        command = [str(python), str(ROOT / "benchmarks" / "peer_d3rlpy.py"), str(count), str(BATCH), str(cores)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.name = f"{threads(cores)}"

    def rate(self, name: str, seconds: float, options: dict[str, Any] | None = None) -> float:
        """Gradient steps per second over `seconds`, with sampling. **Arguments:** `options`, of d3rlpy's config."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"name": name, "seconds": seconds, "options": options or {}}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"d3rlpy's process ended with {self.process.wait()} at {name}")
        return float(json.loads(line)["rate"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def timed(call: Callable[[], Any], amount: float, seconds: float) -> float:
    """Amounts per second over at least `seconds`."""
    done, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        jax.block_until_ready(call())
        done += amount
    return done / (time.perf_counter() - started)


def measure(name: str, count: int, peer: Peer, seconds: float) -> tuple[list[Row], list[str]]:
    """Rows of ours and d3rlpy's, whose windows alternate, and the targets."""
    theirs, discrete, bar = CASES[name]
    steps = STEPS.get(name, 100)
    learner, offline = learner_of(name, count, discrete, steps)
    state = learner.init(jax.random.key(0))
    update, took = updating(learner, state)
    square = jnp.ones((SQUARE, SQUARE))
    product, _ = compiled(lambda x: x @ x, square)
    flop = operations(learner, offline, state)
    samples: dict[str, list[float]] = {"ours": [], "peer": [], "product": [], "default": []}
    same = SAME.get(theirs, {})
    jax.block_until_ready((update(), product(square)))
    peer.rate(theirs, 0.1, same)
    for _ in range(REPEATS):
        samples["ours"].append(timed(update, steps, seconds))
        samples["product"].append(timed(lambda: product(square), 2.0 * SQUARE**3, seconds / 4))
        samples["peer"].append(peer.rate(theirs, seconds, same))
        if same:
            samples["default"].append(peer.rate(theirs, seconds))
    case, unit = f"{name}, batch {BATCH}", "gradient steps/s"
    rows = [
        Row(case, OURS, unit, samples["ours"], took, f"{flop / 1e6:.0f} MFLOP a step"),
        Row(case, f"d3rlpy 2.8.1, {theirs}", unit, samples["peer"], None, peer.name),
    ]
    if same:
        rows[1] = dataclasses.replace(rows[1], note=f"{peer.name}; share_encoder=False, the networks of ours")
        rows.append(Row(case, f"d3rlpy 2.8.1, {theirs}", unit, samples["default"], None, f"{peer.name}; its defaults"))
    ratio = speedup(rows[:1], rows[1:])
    share = Figure.of([a / b for a, b in zip(samples["ours"], samples["product"])]).scaled(100 * flop)
    bars = [
        f"{case}: {ratio:.2f} times d3rlpy {aim(ratio, bar)}; {share:.0f}% of the matrix rate {aim(share, BAR_RATE)}; "
        f"compiled in {took:.1f} s {aim(took, BAR_COMPILE, below=True)}"
    ]
    return rows, bars


def seeds(count: int, repeats: int) -> Row:
    """IQL on four seeds in one program: gradient steps per second in all."""
    from llmrl_jax.rl.seeds import vmap_learners

    learner, _ = learner_of("iql", count, False, 20)
    four = vmap_learners(learner, 4)
    state = four.init(jax.random.key(0))
    update, took = updating(four, state)
    times = timings(update, repeats=repeats)
    return Row("iql, 4 seeds in one program", OURS, "gradient steps/s", rates(4 * 20, times), took)


def run(quick: bool) -> Result:
    """Each algorithm beside d3rlpy's."""
    count, seconds = (20_000, 0.5) if quick else (1_000_000, 2.5)
    rows: list[Row] = []
    bars: list[str] = []
    peer = Peer(count)
    try:
        for name in CASES:
            more, reached = measure(name, count, peer, seconds)
            rows, bars = rows + more, bars + reached
    finally:
        peer.close()
    rows.append(seeds(count, REPEATS))
    notes = [
        f"{count:,} random steps, {OBS} numbers of observation, {ACTIONS} of action (or {ACTIONS} actions), "
        f"batch {BATCH}, two layers of 256; else the defaults of each library. d3rlpy: `sample_transition_batch` and "
        "`update`, as its `fit` does, without logging; ours: the program of a run. Windows of both alternate.",
        "The operations are XLA's count for one gradient step, elementwise ones included; the matrix rate is that of "
        f"XLA's float32 product of {SQUARE} x {SQUARE} in the same rounds.",
    ]
    return Result(rows, bars, notes)
