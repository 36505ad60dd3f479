"""The outer loop on the host: jitted chunks of updates, and between them logs, evaluations, checkpoints, stops."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import nearest
from llmrl_jax.run import leaves as trees, metrics as sinks, progress as show
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.run.config import RunConfig, use_compilation_cache
from llmrl_jax.run.folder import held, open_folder
from llmrl_jax.run.report import curves as plots
from llmrl_jax.run.signals import StopRequest


CHUNK_SECONDS = 2.0
"""How long the host leaves the device alone at most, so that bars move and signals are heard (one process only)."""

Evaluate = Callable[[Any, jax.Array], Mapping[str, Any]]
"""`(state, key) -> metrics`, for `train(evaluate=...)`."""


class RunStopped(RuntimeError):
    """The run cannot go on: a loss is not finite, a bound is exceeded, a checkpoint cannot be written."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    state: Any
    """The learner's last state."""
    update: int
    """Updates done, those before a resume included."""
    steps: int
    """What the learner counts (`Learner.unit`: environment steps, tokens, episodes) done, likewise."""
    seconds: float
    """Time spent training, likewise; compilation, evaluation and checkpoints left out."""
    compile_seconds: float
    """Time to trace and compile the chunk of updates."""
    stopped: str
    """Why it ended before its last update: `SIGINT`, `SIGTERM`, `time budget`; empty when it did not."""
    folder: Path
    """Where its files are."""

    @property
    def steps_per_second(self) -> float:
        """`steps` per second of training."""
        return self.steps / self.seconds if self.seconds else math.nan


def must_be_finite(name: str) -> bool:
    """Whether a metric that is nan or infinite means that learning broke: losses and gradient norms."""
    last = name.split("/")[-1]
    return last.endswith("loss") or "grad_norm" in last


def make_chunk(learner: Any, capacity: int) -> Callable:
    """The function that runs several updates on the device.

    `chunk(state, frozen, n) -> (state, metrics)`: `n` (int32, at most `capacity`) is traced, so any length runs the
    same compiled program and a run gives the same bits however it is cut into chunks. `state` comes without its
    frozen part, which is neither donated nor carried. Metrics have the shape `[capacity]`; rows from `n` on are nan.
    """

    def chunk(state, frozen, n):
        def one(state):
            state, metrics = learner.update(state.replace(frozen=frozen))
            return state.replace(frozen=()), {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

        shapes = jax.eval_shape(one, state)[1]
        for name, x in shapes.items():
            if x.shape:
                raise ValueError(f"the metric {name!r} has shape {x.shape}; a learner's metrics are scalars")
        rows = {name: jnp.full(capacity, jnp.nan, jnp.float32) for name in shapes}

        def body(i, carry):
            state, rows = carry
            state, metrics = one(state)
            return state, {name: row.at[i].set(metrics[name]) for name, row in rows.items()}

        return jax.lax.fori_loop(0, n, body, (state, rows))

    return chunk


def _compile(learner: Any, state: Any, capacity: int) -> tuple[Any, float]:
    started = time.monotonic()
    rest, frozen = state.replace(frozen=()), state.frozen
    kept = jax.tree.map(lambda x: x.sharding, rest)
    jitted = jax.jit(make_chunk(learner, capacity), donate_argnums=0, out_shardings=(kept, None))
    compiled = jitted.lower(rest, frozen, np.int32(1)).compile()
    return compiled, time.monotonic() - started


def _check_bounds(learner: Any, names: list[str]) -> None:
    for name in learner.bounds:
        if name not in names:
            raise ValueError(f"the learner bounds a metric {name!r} that it does not report{nearest(name, names)}")


def _verdict(learner: Any, rows: Mapping[str, np.ndarray], first: int) -> str:
    """Why the run must stop, from the metrics of consecutive updates; empty when it need not."""
    for i in range(len(next(iter(rows.values()), ()))):
        broken = [name for name in rows if must_be_finite(name) and not math.isfinite(rows[name][i])]
        if broken:
            values = ", ".join(f"{name} is {rows[name][i]}" for name in broken)
            return f"{values} at update {first + i}: learning has broken down (a lower learning rate may help)"
        for name, bound in learner.bounds.items():
            if not rows[name][i] <= bound:
                return (
                    f"{name} is {rows[name][i]:.3g} at update {first + i}, above its bound {bound:g}: what the update "
                    "computes disagrees with what the rollout recorded, or the computation is wrong"
                )
    return ""


def _any_process(flag: bool) -> bool:
    """Whether any process says so; all must ask together."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


class _Boundaries:
    """The updates after which the host has something to do."""

    def __init__(self, config: RunConfig, last: int, evaluates: bool):
        self.log, self.save, self.last = config.log_every, config.checkpoint_every, last
        self.eval = config.eval_every if evaluates else 0

    def next(self, update: int) -> int:
        every = [n for n in (self.log, self.save, self.eval) if n]
        return min([self.last, *((update // n + 1) * n for n in every)])

    def due(self, every: int, update: int) -> bool:
        return bool(every) and (update % every == 0 or update == self.last)


def train(
    learner: Any,
    config: RunConfig,
    *,
    num_updates: int,
    evaluate: Evaluate | None = None,
    full_config: Any = None,
    folder: str | Path | None = None,
    command: str = "run",
    title: str = "",
    shown: Mapping[str, str] = show.SHOWN,
    again: str = "",
) -> RunResult:
    """Train a learner, and keep the run in its folder.

    Writes `config.json`, `metrics.jsonl`, `checkpoints/`, `frozen/` and `learning_curve.png`. A run that is resumed
    gives the same bits as one that never stopped.

    **Arguments:** `learner`, see `llmrl_jax.rl.learner`; `config`; `num_updates`, the updates of the whole run,
    those before a resume included; `evaluate`, called with the state and a key every `eval_every` updates, at the
    start and at the end; `full_config`, the dataclass to write and to compare on resume (None: `config`); `folder`,
    where to write, open already (None: by `config`); `command`, what an unnamed run is called after; `title`, before
    the bar; `shown`, metric -> label beside the bar; `again`, what a run that was stopped says of how it goes on
    (empty: by its name and --run.resume).
    **Raises:** `RunStopped` naming the update, with the last good checkpoint kept; `CheckpointError` where resuming
    is refused; `FileExistsError` and `FileNotFoundError`, see `open_folder`; `BlockingIOError` where another process
    writes this run.
    """
    if num_updates < 1:
        raise ValueError(f"num_updates is {num_updates}; at least 1 is needed")
    if config.compilation_cache:
        use_compilation_cache(config.compilation_cache)
    full_config = config if full_config is None else full_config
    folder = open_folder(config, command) if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:
            stack.enter_context(held(folder))
        state: Any = trees.settle(learner.init(jax.random.key(config.seed)))
        checkpoints = stack.enter_context(Checkpoints(folder, keep=config.keep, best=config.best, config=full_config))
        update = 0
        if config.resume and (checkpoints.updates() or config.resume_from >= 0):
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
            fresh = state.frozen
            state = None  # its memory is needed for what is read
            wanted = None if config.resume_from < 0 else config.resume_from
            state, update = checkpoints.restore(like, wanted, fresh)
            del fresh
            checkpoints.discard_after(update)
        kept = update or -1  # nothing, not even the evaluation of update 0, of a run that begins anew
        before = sinks.last(folder / "metrics.jsonl", kept) if config.resume else {}
        if jax.process_index() == 0:
            if config.resume:
                sinks.truncate(folder / "metrics.jsonl", kept)
            configs.save_config(full_config, folder / "config.json")
        run = _Run(learner, config, full_config, folder, checkpoints, evaluate, num_updates, update, before)
        bar = show.Progress(
            config.progress if jax.process_index() == 0 else "off",
            title or folder.name,
            num_updates,
            update,
            shown,
            learner.unit.split()[-1],
        )
        stack.callback(bar.close)
        try:
            result = run.go(state, bar, again or f"go on with --run.name {folder.name} --run.resume")
            run.close()
            return result
        finally:
            with contextlib.suppress(Exception):  # where the run did not end well, the reason is told already
                run.sink.close()


class _Run:
    """The state of the host while a run goes on."""

    def __init__(self, learner, config, full_config, folder, checkpoints, evaluate, num_updates, update, before):
        self.learner, self.config, self.folder = learner, config, folder
        self.checkpoints, self.evaluate, self.num_updates = checkpoints, evaluate, num_updates
        self.first, self.update = update, update
        self.seconds = float(before.get("train", {}).get("seconds") or 0.0)
        self.began = self.seconds
        self.pending: list[dict[str, np.ndarray]] = []
        self.latest = sinks.known(before)
        self.evaluated = before.get("eval", {}).get("update", -1)
        self.speed = math.nan
        self.mark = (update, self.seconds)
        void = update + 1 if update else 0
        self.sink = sinks.Sinks(_sinks(config, full_config, folder, void) if jax.process_index() == 0 else [])

    def go(self, state: Any, bar: show.Progress, again: str) -> RunResult:
        """Run to the end, or until something stops it; `again` says how it goes on then."""
        steps, stopped, saved = self.learner.steps_per_update, "", self.first
        boundaries = _Boundaries(self.config, self.num_updates, self.evaluate is not None)
        with StopRequest() as request:
            chunk, compile_seconds = _compile(self.learner, state, self.config.log_every)
            bar.restart_clock(self.update)
            if boundaries.due(boundaries.eval, self.update) and self.evaluated != self.update:
                self._evaluate(state, bar)  # at the start, and where that ended an earlier part of the run
            while self.update < self.num_updates and not stopped:
                state, rows = self._advance(chunk, state, boundaries)
                self._check(rows)
                bar.advance(self.update, self.speed)
                stopped = self._why_stop(request)
                save = boundaries.due(boundaries.save, self.update) or self.update == self.num_updates or bool(stopped)
                if boundaries.due(boundaries.log, self.update) or save:
                    self._log(bar)
                if boundaries.due(boundaries.eval, self.update):
                    try:
                        self._evaluate(state, bar)
                    except Exception:
                        with contextlib.suppress(Exception):  # what was learnt is kept, and the error told
                            self._save(state)
                            self.checkpoints.wait()
                        raise
                if save:
                    self._save(state)
                    saved = self.update
            self._finish_saving()
        if stopped:
            where = f"update {saved} of {self.num_updates}"
            bar.say(f"stopped by {stopped}: saved at {where} in {self.folder}; {again}")
        if jax.process_index() == 0:
            plots.learning_curve(self.folder, unit=self.learner.unit)
        done = self.update * steps
        return RunResult(state, self.update, done, self.seconds, compile_seconds, stopped, self.folder)

    def _advance(self, chunk: Any, state: Any, boundaries: _Boundaries) -> tuple[Any, dict[str, np.ndarray]]:
        n = boundaries.next(self.update) - self.update
        if jax.process_count() == 1:
            rate = self.learner.steps_per_update / self.speed if self.speed == self.speed else math.inf
            n = max(1, min(n, int(CHUNK_SECONDS / rate)))
        started = time.monotonic()
        frozen = state.frozen
        rest, rows = chunk(state.replace(frozen=()), frozen, np.int32(n))
        rows = {name: row[:n] for name, row in jax.device_get(rows).items()}
        spent = time.monotonic() - started
        self.seconds += spent
        self.speed = n * self.learner.steps_per_update / max(spent, 1e-9)
        self.update += n
        return rest.replace(frozen=frozen), rows

    def _check(self, rows: dict[str, np.ndarray]) -> None:
        if not self.pending and self.update == self.first + len(next(iter(rows.values()), ())):
            _check_bounds(self.learner, list(rows))
        self.pending.append(rows)
        n = len(next(iter(rows.values()), ()))
        why = _verdict(self.learner, rows, self.update - n + 1)
        if why:
            self._stop(why)

    def _stop(self, why: str, cause: Exception | None = None) -> None:
        """End the run, with its last whole checkpoint named."""
        try:
            self.checkpoints.wait()
        except Exception as error:  # the reason is told already; a failed write leaves older checkpoints whole
            why += f" (and: {error})" if cause is None else ""
        with contextlib.suppress(Exception):  # then what is kept in mind must do
            self.checkpoints.reload()
        last = self.checkpoints.latest()
        kept = f"its last good checkpoint is that of update {last}" if last is not None else "it has no checkpoint yet"
        raise RunStopped(f"{why}. The run {self.folder} has stopped; {kept}") from cause

    def _why_stop(self, request: StopRequest) -> str:
        if _any_process(bool(request.name)):
            return request.name or "a signal to another process"
        budget = self.config.max_seconds
        if self.update < self.num_updates and _any_process(bool(budget) and self.seconds - self.began >= budget):
            return "time budget"
        return ""

    def _log(self, bar: show.Progress) -> None:
        if not self.pending:
            return
        joined = {name: np.concatenate([rows[name] for rows in self.pending]) for name in self.pending[0]}
        self.pending = []
        n = self.update - self.mark[0]
        rate = n * self.learner.steps_per_update / max(self.seconds - self.mark[1], 1e-9)
        self.mark = (self.update, self.seconds)
        self.latest.update(sinks.window(joined))
        line = {
            "kind": "train",
            "update": self.update,
            "updates": n,
            "steps": self.update * self.learner.steps_per_update,
            "seconds": round(self.seconds, 4),
            "steps_per_second": round(rate, 2),
            **{name: self.latest[name] for name in joined},
        }
        self._write(line)
        bar.report(line, rate)

    def _evaluate(self, state: Any, bar: show.Progress) -> None:
        assert self.evaluate is not None
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), 0x5EED), self.update)
        found = {name: _number(value) for name, value in self.evaluate(state, key).items()}
        self.latest.update({f"eval/{name}": value for name, value in found.items() if isinstance(value, float)})
        steps = self.update * self.learner.steps_per_update
        line = {"kind": "eval", "update": self.update, "steps": steps, **found}
        self._write(line)
        bar.report({f"eval/{n}": v for n, v in found.items()} | {"kind": "eval", "update": self.update}, self.speed)

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self.sink.write(line)
        except OSError as error:
            self._stop(f"the metrics of update {self.update} could not be written ({error})", error)

    def close(self) -> None:
        """Let go of the sinks of a run that has ended well."""
        try:
            self.sink.close()
        except OSError as error:
            self._stop(f"the last metrics could not be written ({error})", error)

    def _save(self, state: Any) -> None:
        broken = trees.non_finite(getattr(state, "params", ()))
        if broken:
            names = ", ".join(broken[:3])
            self._stop(f"parameters are not finite after update {self.update} ({names}): learning has broken down")
        try:
            self.checkpoints.save(self.update, state, self.latest)
        except Exception as error:
            if self.config.best and self.config.best not in self.latest:
                raise
            self._stop(f"the checkpoint of update {self.update} could not be written ({error})", error)

    def _finish_saving(self) -> None:
        try:
            self.checkpoints.wait()
        except Exception as error:
            self._stop(f"the last checkpoint could not be written ({error})", error)


def _number(value: Any) -> Any:
    """An evaluation's value for a line of JSON: a float, or a list of them."""
    array = np.asarray(jax.device_get(value))
    return float(array) if array.ndim == 0 else array.tolist()


def _sinks(config: RunConfig, full_config: Any, folder: Path, first: int) -> list[sinks.Sink]:
    chosen: list[sinks.Sink] = [sinks.JsonLines(folder / "metrics.jsonl")]
    if config.tensorboard:
        chosen.append(sinks.TensorBoard(folder / "tensorboard", first))
    if config.wandb:
        chosen.append(sinks.WeightsAndBiases(config.wandb, folder, configs.to_json(full_config)))
    return chosen
