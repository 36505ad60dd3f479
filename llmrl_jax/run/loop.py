"""The outer loop on the host: jitted chunks of updates; between them logging, evaluation, checkpoints, exchanges with
the host, and stopping."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from llmrl_jax.core import activity, config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least, nearest
from llmrl_jax.core.learner import Exchange
from llmrl_jax.run import curves as plots, metrics, progress as show, pytrees as trees
from llmrl_jax.run.checkpoint import Checkpoints, line_of
from llmrl_jax.run.chunk import MEMBER, check_bounds, compile_chunk, verdict
from llmrl_jax.run.config import RunConfig, use_compilation_cache
from llmrl_jax.run.exchange import Exchanges, NoAnswer
from llmrl_jax.run.folder import (
    FAILED,
    FINISHED,
    STOPPED,
    Status,
    discard_results,
    held,
    open_folder,
    start_of,
    write_status,
)
from llmrl_jax.run.metrics import JsonLines, Sinks, check_packages, open_trackers
from llmrl_jax.run.signals import StopRequest, hangups_ignored


CHUNK_SECONDS = 2.0
"""The longest chunk in seconds, so that the bar moves and signals are handled (one process and one run only)."""

Evaluate = Callable[[Any, jax.Array], Mapping[str, Any]]
"""`(state, key) -> metrics`, for `train(evaluate=...)`."""


class RunStopped(RuntimeError):
    """Run that cannot continue: a loss is not finite, a bound is exceeded, a checkpoint cannot be written, or an
    exchange failed."""


@dataclass(frozen=True)
class RunResult:
    """Outcome of a run."""

    state: Any
    """The learner's last state."""
    update: int
    """Updates done, including those before a resume."""
    steps: int
    """Units done (`Learner.unit`: environment steps, tokens, episodes), including those before a resume."""
    seconds: float
    """Training time, including that before a resume, without compilation, evaluation, checkpoints and exchanges."""
    compile_seconds: float
    """Time to trace and compile the chunk of updates."""
    stopped: str
    """Why it ended before its last update: `SIGINT`, `SIGTERM`, `time budget`; empty if it did not."""
    folder: Path
    """The run's folder."""

    @property
    def steps_per_second(self) -> float:
        """`steps` per second of training."""
        return self.steps / self.seconds if self.seconds else math.nan

    def facts(self, unit: str = "steps") -> dict[str, Any]:
        """Speed, times and the reason of the end, for `write_summary`. **Arguments:** `unit`, the name of `steps`."""
        return {
            f"{unit}_per_second": round(self.steps_per_second, 1),
            "train_seconds": round(self.seconds, 1),
            "compile_seconds": round(self.compile_seconds, 1),
            "stopped": self.stopped,
        }


def _any_process(flag: bool) -> bool:
    """Return whether the flag of any process is set; a collective operation of all processes."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


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
    finish: Callable[[RunResult], None] | None = None,
) -> RunResult:
    """Train a learner, and write the run to its folder.

    Writes `config.json`, `metrics.jsonl`, `checkpoints/`, `frozen/`, `status.json` and `learning_curve.png`. A
    resumed run is bit-identical to an uninterrupted one.

    **Arguments:** `learner`, see `llmrl_jax.core.learner`; `config`; `num_updates`, the updates of the whole run,
    including those before a resume; `evaluate`, called with the state and a key every `eval_every` updates, at the
    start and at the end; `full_config`, the dataclass to write and to compare on resume (None: `config`); `folder`,
    an opened folder to write to (None: that of `config`); `command`, prefix of the name of an unnamed run; `title`,
    before the bar; `shown`, metric -> label beside the bar; `again`, how to continue a stopped run, as its message says
    it (empty: --run.resume with its folder); `finish`, called after the last update, or where the run was stopped: only
    then is it finished, so that one that is killed in its last evaluation is not.
    **Raises:** `RunStopped` naming the update, with the last good checkpoint kept; `CheckpointError` if the
    checkpoint cannot be resumed; `FileExistsError` and `FileNotFoundError`, see `open_folder` and `start_of`;
    `ValueError` for a metric in `config.best` that the run does not have; `BlockingIOError` if another process writes
    this run.
    """
    at_least("num_updates", num_updates, 1)
    if config.compilation_cache:
        use_compilation_cache(config.compilation_cache)
    full_config = config if full_config is None else full_config
    folder = open_folder(config, command) if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hangups_ignored())
        if jax.process_index() == 0:
            stack.enter_context(held(folder))
        check_packages(config)
        _check_best_is_evaluated(config, evaluate is not None and config.eval_every > 0)
        start, note = _checked_start(learner, config, folder, num_updates)
        checkpoints = stack.enter_context(Checkpoints(folder, keep=config.keep, best=config.best, config=full_config))
        if start:
            checkpoints.check(start)
        state, update = _first_state(learner, config, checkpoints)
        before = metrics.last(folder / "metrics.jsonl", update or -1) if config.resume else {}
        _check_best_of_training(learner, config, state, before)
        first = jax.process_index() == 0  # trackers may refuse the run, so they open before files are changed
        sink = open_trackers(folder, config, full_config, update) if first else Sinks([])
        stack.callback(_close_quietly, sink)
        _open_files(config, full_config, folder, checkpoints, update)
        if first:
            sink.sinks.insert(0, JsonLines(folder / "metrics.jsonl"))
        _say((note, *checkpoints.notes))
        leads = first and (MEMBER.get() is None or MEMBER.get().number == 0)
        mode = config.progress if leads else "off"
        title, unit = title or folder.name, learner.unit.split()[-1]
        bar = show.Progress(mode, title, num_updates, update, shown, unit)
        stack.callback(bar.close)
        run = _Run(
            learner,
            config,
            folder=folder,
            checkpoints=checkpoints,
            sink=sink,
            bar=bar,
            evaluate=evaluate,
            num_updates=num_updates,
            again=again or f"continue it with --run.resume {folder}",
            update=update,
            before=before,
        )
        try:
            run.note()
            result = run.run_updates(state)
            run.close()
            if finish is not None:
                finish(result)
            run.note(STOPPED if result.stopped else FINISHED, result.stopped)
            run.draw()
            return result
        except RunStopped as error:
            with contextlib.suppress(OSError):
                run.note(FAILED, str(error))
            raise


def _close_quietly(sink: Sinks) -> None:
    """Close what a failed run left open; it has its reason already."""
    with contextlib.suppress(Exception):
        sink.close()


class _Run:
    """The host's state during a run."""

    def __init__(
        self,
        learner: Any,
        config: RunConfig,
        *,
        folder: Path,
        checkpoints: Checkpoints,
        sink: Sinks,
        bar: show.Progress,
        evaluate: Evaluate | None,
        num_updates: int,
        again: str,
        update: int,
        before: Mapping[str, Mapping[str, Any]],
    ):
        """**Arguments:** as those of `train`; `update`, from which the run continues, or 0; `before`, the last line of
        metrics of each kind up to there."""
        self.learner, self.config, self.folder, self.num_updates = learner, config, folder, num_updates
        self.checkpoints, self.sink, self.bar, self.evaluate = checkpoints, sink, bar, evaluate
        self.again, self.first, self.update, self.saved = again, update, update, update
        self.complete = update or -1
        """The update of the newest checkpoint that is known to be complete; -1: none is."""
        self.seconds = float(before.get("train", {}).get("seconds") or 0.0)
        self.began = self.seconds
        self.pending: list[dict[str, np.ndarray]] = []
        self.latest = metrics.known(before)
        self.evaluated = before.get("eval", {}).get("update", -1)
        self.unscored = update < num_updates and _best_is_unknown(config, before)
        self.speed = math.nan
        self.mark = (update, self.seconds)
        self.exchanges: Exchanges | None = None
        self.member = MEMBER.get()
        self.waited = float(before.get("train", {}).get("exchange_seconds") or 0.0)

    def run_updates(self, state: Any) -> RunResult:
        """Run to the last update, or until the run is stopped."""
        boundaries = _Boundaries(self.config, self.num_updates, self.evaluate is not None, self.learner.exchange)
        stopped = ""
        with StopRequest() as request:
            chunk, compile_seconds = None, 0.0
            if self.update < self.num_updates:
                compiler = compile_chunk if self.member is None else self.member.compile_chunk
                chunk, compile_seconds = compiler(self.learner, state, self.config.log_every)
            else:
                _say([f"{self.folder} has all its {self.update} updates already: ask for more to train on"])
            self.bar.restart_clock(self.update)
            if boundaries.due(boundaries.eval, self.update) and self.evaluated != self.update or self.unscored:
                self._evaluate(state)  # at the start, also if an earlier part of the run ended there
            if self.learner.exchange is not None:
                self.exchanges = Exchanges(self.learner.exchange, state, self.num_updates)
                self.exchanges.prepare(state, self.update)
            while self.update < self.num_updates and not stopped:
                if self.exchanges is not None and self.exchanges.due(self.update):
                    state, stopped = self._exchange(state, self.exchanges, request)
                    if stopped:
                        break
                state, rows = self._advance(chunk, state, boundaries)
                self._check(rows)
                self.bar.advance(self.update, self.speed)
                stopped = self._why_stop(request)
                self._keep(state, boundaries, bool(stopped))
            self._finish_saving()
        if stopped:
            position = f"update {self.saved} of {self.num_updates}"
            self.bar.say(f"stopped by {stopped}: saved at {position} in {self.folder}; {self.again}")
        steps = self.update * self.learner.steps_per_update
        return RunResult(state, self.update, steps, self.seconds, compile_seconds, stopped, self.folder)

    def _keep(self, state: Any, boundaries: _Boundaries, stopped: bool) -> None:
        """Log, evaluate and save as due."""
        save = boundaries.due(boundaries.save, self.update) or self.update == self.num_updates or stopped
        save |= _best_is_evaluated(self.config) and boundaries.due(boundaries.eval, self.update)
        if boundaries.due(boundaries.log, self.update) or save:
            self._log()
        if boundaries.due(boundaries.eval, self.update):
            try:
                self._evaluate(state)
            except Exception:
                with contextlib.suppress(Exception):  # save the progress, then raise the error
                    self._log()  # the log must reach the checkpoint
                    self._save(state)
                    self.checkpoints.wait()
                raise
        if save:
            self._save(state)

    def _exchange(self, state: Any, exchanges: Exchanges, request: StopRequest) -> tuple[Any, str]:
        """Exchange with the host. If that fails, or a signal arrives first, save the state before the exchange.
        **Returns:** the state after it, and why the run must stop (empty: it need not)."""
        try:
            after = exchanges.make(state, self.update, lambda: bool(request.name))
        except NoAnswer as error:
            with contextlib.suppress(Exception):  # the reported reason is the failed exchange
                self._keep_before_exchange(state)
            self._stop(f"the exchange after update {self.update} failed ({error})", error, remedy=f"; {self.again}")
        if after is not None:
            return after, ""
        self._keep_before_exchange(state)
        return state, request.name or "a signal to another process"

    def _keep_before_exchange(self, state: Any) -> None:
        if self.saved != self.update:
            self._log()
            self._save(state)

    def _advance(self, chunk: Any, state: Any, boundaries: _Boundaries) -> tuple[Any, dict[str, np.ndarray]]:
        n = boundaries.next(self.update) - self.update
        if jax.process_count() == 1 and self.member is None:
            rate = self.learner.steps_per_update / self.speed if self.speed == self.speed else math.inf
            n = max(1, min(n, int(CHUNK_SECONDS / rate)))
        started = time.monotonic()
        frozen = state.frozen
        trained, rows = chunk(state.replace(frozen=()), frozen, np.int32(n))
        rows = {name: row[:n] for name, row in jax.device_get(rows).items()}
        shared = None if self.member is None else self.member.spent  # without waiting for the others' evaluations
        spent = time.monotonic() - started if shared is None else shared
        self.seconds += spent
        self.speed = n * self.learner.steps_per_update / max(spent, 1e-9)
        self.update += n
        return trained.replace(frozen=frozen), rows

    def _check(self, rows: dict[str, np.ndarray]) -> None:
        if not self.pending and self.update == self.first + len(next(iter(rows.values()), ())):
            check_bounds(self.learner, list(rows))
        self.pending.append(rows)
        n = len(next(iter(rows.values()), ()))
        reason = verdict(self.learner, rows, self.update - n + 1)
        if reason:
            self._stop(reason)

    def _stop(self, reason: str, cause: Exception | None = None, remedy: str = "") -> NoReturn:
        """End the run with an error that names its last complete checkpoint."""
        try:
            self.checkpoints.wait()
        except Exception as error:  # the reason is known; a failed write leaves older checkpoints intact
            reason += f" (and: {line_of(error)})" if cause is None else ""
        with contextlib.suppress(Exception):  # else use the list in memory
            self.checkpoints.reload()
        last = self.checkpoints.latest()
        last_good = (
            f"its last good checkpoint is that of update {last}" if last is not None else "it has no checkpoint yet"
        )
        raise RunStopped(f"{reason}. The run {self.folder} has stopped; {last_good}{remedy}") from cause

    def _unwritten(self, subject: str, error: Exception) -> NoReturn:
        """End the run, since something could not be written: the disk may be full."""
        reason = str(error) if isinstance(error, OSError) else line_of(error)
        self._stop(f"{subject} could not be written ({reason})", error, remedy=f"; {self.again}")

    def _why_stop(self, request: StopRequest) -> str:
        if self.member is not None:
            request.name = self.member.stop
        if _any_process(bool(request.name)):
            return request.name or "a signal to another process"
        budget = self.config.max_seconds
        if self.update < self.num_updates and _any_process(bool(budget) and self.seconds - self.began >= budget):
            return "time budget"
        return ""

    def _log(self) -> None:
        if not self.pending:
            return
        joined = {name: np.concatenate([rows[name] for rows in self.pending]) for name in self.pending[0]}
        self.pending = []
        n = self.update - self.mark[0]
        rate = n * self.learner.steps_per_update / max(self.seconds - self.mark[1], 1e-9)
        self.mark = (self.update, self.seconds)
        means = metrics.window(joined)
        self.latest.update(means)
        line = {
            "kind": "train",
            "update": self.update,
            "updates": n,
            "steps": self.update * self.learner.steps_per_update,
            "seconds": round(self.seconds, 4),
            "steps_per_second": round(rate, 2),
            **means,
        }
        if self.exchanges is not None:
            line["exchange_seconds"] = round(self.waited + self.exchanges.seconds, 4)
        self._write(line)
        self.bar.report(line, rate)

    def _evaluate(self, state: Any) -> None:
        assert self.evaluate is not None
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), 0x5EED), self.update)
        with doing(f"evaluation after update {self.update}"):
            results = {name: _number(value) for name, value in self.evaluate(state, key).items()}
        named = {f"eval/{name}": value for name, value in results.items() if isinstance(value, float)}
        if _best_is_evaluated(self.config):
            _check_best(self.config, named)
        self.latest.update(named)
        self.evaluated = self.update
        steps = self.update * self.learner.steps_per_update
        line = {"kind": "eval", "update": self.update, "steps": steps, **results}
        self._write(line)
        values = {f"eval/{name}": value for name, value in results.items()}
        self.bar.report({**values, "kind": "eval", "update": self.update}, self.speed)

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self.sink.write(line)
        except OSError as error:
            self._unwritten(f"the metrics of update {self.update}", error)

    def note(self, ended: str = "", reason: str = "") -> None:
        """Write the progress of the run, and how it ended."""
        if jax.process_index() == 0:
            write_status(self.folder, Status(self.update, self.num_updates, ended, reason, self.complete))

    def close(self) -> None:
        """Close the sinks of a run that ended without error."""
        try:
            self.sink.close()
        except OSError as error:
            self._unwritten("the last metrics", error)

    def draw(self) -> None:
        """Draw the learning curve; the run is complete without it."""
        if jax.process_index() == 0:
            try:
                plots.learning_curve(self.folder, unit=self.learner.unit)
            except Exception as error:
                reason = f"the learning curve could not be drawn ({line_of(error)})"
                _say([f"{reason}; `llmrl report {self.folder}` draws one"])

    def _save(self, state: Any) -> None:
        broken = trees.non_finite(getattr(state, "params", ()))
        if broken:
            names = ", ".join(broken[:3])
            self._stop(f"parameters are not finite after update {self.update} ({names}): learning has broken down")
        try:
            self.sink.sync()
        except OSError as error:
            self._unwritten(f"the metrics of update {self.update}", error)
        scores = self.latest  # a checkpoint between two evaluations has no score: the one that was measured is kept
        if self.evaluated != self.update:
            scores = {name: value for name, value in scores.items() if not name.startswith("eval/")}
        try:
            self.checkpoints.save(self.update, state, scores)
        except Exception as error:
            self._unwritten(f"the checkpoint of update {self.update}", error)
        self.complete, self.saved = self.saved or -1, self.update  # it waited for the one before
        try:
            self.note()
        except OSError as error:
            self._unwritten(f"the status of update {self.update}", error)

    def _finish_saving(self) -> None:
        try:
            self.checkpoints.wait()
            self.complete = self.saved or -1
        except Exception as error:
            self._unwritten("the last checkpoint", error)


def _number(value: Any) -> Any:
    """A value of an evaluation as JSON: a float, or a list of floats."""
    array = np.asarray(jax.device_get(value))
    return float(array) if array.ndim == 0 else array.tolist()


# --- the beginning of a run -----------------------------------------------------------------------------------------


def _first_state(learner: Any, config: RunConfig, checkpoints: Checkpoints) -> tuple[Any, int]:
    """The initial state of training and its update: new, or from a checkpoint."""
    with doing("compiling and computing the initial state"):
        state: Any = trees.settle(learner.init(jax.random.key(config.seed)))
    if not config.resume or not (checkpoints.updates() or config.resume_from >= 0):
        return state, 0
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    fresh = state.frozen
    state = None  # free its memory for the restored state
    with doing("reading the checkpoint"):
        state, update = checkpoints.restore(like, None if config.resume_from < 0 else config.resume_from, fresh)
    return state, update


def _checked_start(learner: Any, config: RunConfig, folder: Path, num_updates: int) -> tuple[int, str]:
    """`start_of`. **Raises** also `ValueError` for a seed that a new run cannot have, or if fewer updates are asked for
    than the run has."""
    if not config.resume:
        config.check_new()
    start, note = start_of(folder, config)
    if start > num_updates:
        reached, requested = (
            f"{n} updates ({n * learner.steps_per_update} {learner.unit})" for n in (start, num_updates)
        )
        raise ValueError(f"{folder} has {reached} already, and {requested} are asked for: ask for more to continue it")
    return start, note


def _say(notes: Iterable[str]) -> None:
    """Print notes about a resumed run to stderr, if it can be written, however its progress is shown."""
    for note in notes:
        if note and jax.process_index() == 0:
            activity.say(f"note: {note}")


def _open_files(config: RunConfig, full_config: Any, folder: Path, checkpoints: Checkpoints, update: int) -> None:
    """Write `config.json`. Of a resumed run also delete what its folder has of later updates: checkpoints, evaluations,
    lines of `metrics.jsonl`, and the summary of the run's end. A restarted run keeps no line, not even the evaluation
    of update 0."""
    if config.resume:
        checkpoints.discard_after(update)
    if jax.process_index() == 0:
        if config.resume:
            discard_results(folder, update)
            metrics.truncate(folder / "metrics.jsonl", update or -1)
        configs.save_config(full_config, folder / "config.json")


# --- the metric whose highest checkpoint is kept --------------------------------------------------------------------


def _best_is_evaluated(config: RunConfig) -> bool:
    """Return whether the metric is one of evaluations, `eval/<name>`."""
    return config.best.startswith("eval/")


def _check_best_is_evaluated(config: RunConfig, evaluates: bool) -> None:
    """**Raises** `ValueError` for a metric of evaluations if the run has none."""
    if _best_is_evaluated(config) and not evaluates:
        raise ValueError(
            f"--run.best is {config.best}, but nothing is evaluated while training: give --run.eval-every, or name a "
            "metric of training"
        )


def _best_is_unknown(config: RunConfig, before: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether no evaluation yet says that the metric exists: then one is made before training, which names a
    misspelt metric.

    **Arguments:** `before`, the last line of metrics of each kind, of a resumed run."""
    return _best_is_evaluated(config) and config.best not in metrics.known(before)


def _check_best_of_training(
    learner: Any, config: RunConfig, state: Any, before: Mapping[str, Mapping[str, Any]]
) -> None:
    """**Raises** `ValueError` if the learner does not report the metric. Compiles nothing; a metric of evaluations is
    checked at the first of them.

    **Arguments:** `state`, the learner's; `before`, the last line of metrics of each kind, of a resumed run."""
    if config.best and not _best_is_evaluated(config):
        reported = jax.eval_shape(learner.update, state)[1]
        _check_best(config, [*metrics.window({name: np.zeros(1) for name in reported}), *metrics.known(before)])


def _check_best(config: RunConfig, names: Iterable[str]) -> None:
    """**Raises** `ValueError` if the metric is not among `names`, naming the nearest, or all."""
    metric_names = sorted(set(names))
    if config.best not in metric_names:
        hint = nearest(config.best, metric_names) or f" (it has {', '.join(metric_names)})"
        raise ValueError(f"--run.best is {config.best}, which is no metric of this run{hint}")


# --- intervals ------------------------------------------------------------------------------------------------------


class _Boundaries:
    """The intervals, in updates, at which a run logs, saves, evaluates and exchanges; 0: never."""

    def __init__(self, config: RunConfig, last: int, evaluates: bool, exchange: Exchange | None):
        """**Arguments:** `config`; `last`, the run's last update; `evaluates`, whether there is an evaluation;
        `exchange`, the learner's."""
        self.log, self.save, self.last = config.log_every, config.checkpoint_every, last
        self.eval = config.eval_every if evaluates else 0
        self.exchange = 0 if exchange is None else exchange.every

    def next(self, update: int) -> int:
        """The first boundary after `update`, at which a chunk of updates ends at the latest."""
        intervals = [n for n in (self.log, self.save, self.eval, self.exchange) if n]
        return min([self.last, *((update // n + 1) * n for n in intervals)])

    def due(self, intervals: int, update: int) -> bool:
        """Return whether work that is due every `intervals` updates and at the end is due after `update`."""
        return bool(intervals) and (update % intervals == 0 or update == self.last)
