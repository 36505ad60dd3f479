"""Metrics of a run: lines of several updates, and `metrics.jsonl`, which is written, checked and read."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from envs_jax.extras import missing
from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.core.statistics import over_runs
from llmrl_jax.run.config import RunConfig


COUNT = "episodes"
"""The metric with the number of episodes that ended in an update; it weights the metrics of episodes."""

OF_LINES = ("kind", "update", "updates", "steps", "seconds", "steps_per_second", "exchange_seconds")
"""The keys of a line that are not metrics."""


def is_of_episodes(name: str) -> bool:
    """Return whether a metric averages over ended episodes (`success`, `success/<task>`, `episode_return`, ...)."""
    return name.split("/")[0] == "success" or name.startswith("episode_")


def window(rows: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One line of metrics from those of several updates.

    **Arguments:** `rows`, metric name -> one value per update; nan if an update has none.
    **Returns:** means over the values that are not nan; metrics of episodes are weighted by the count `episodes`
    (for `success/<task>` by `episodes/<task>` if that exists), and counts are summed. Beside the metrics of several
    runs, `<run>/<metric>`, there is their mean as `<metric>`, with Student's interval over runs as `<metric>_low` and
    `<metric>_high`.
    """
    if not (runs := by_run(rows)):
        return _window(rows)
    lines = {run: _window(rows_of_run) for run, rows_of_run in runs.items()}
    by_prefix = {f"{run}/{name}": x for run, line in lines.items() for name, x in line.items()}
    return over_runs(list(lines.values()), values=False) | by_prefix


def by_run(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The metrics of several runs in one program (`llmrl_jax.rl.seeds`), by the number of the run and by name; empty if
    there are none."""
    runs: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        run, _, metric = name.partition("/")
        if run.isdecimal():
            runs.setdefault(run, {})[metric] = value
    return runs


def sorted_names(names: Iterable[str]) -> list[str]:
    """Names of metrics in their order, those of one of several runs after all others."""
    return sorted(names, key=lambda name: (name.partition("/")[0].isdecimal(), name))


def _window(rows: Mapping[str, np.ndarray]) -> dict[str, float]:
    line = {}
    for name, values in rows.items():
        head, _, task = name.partition("/")
        if head == COUNT:
            line[name] = float(np.nansum(values))
            continue
        weights = np.ones_like(values, dtype=np.float64)
        count = f"{COUNT}/{task}" if task and f"{COUNT}/{task}" in rows else COUNT
        if is_of_episodes(name) and count in rows:
            weights = np.asarray(rows[count], np.float64)
        keep = ~np.isnan(values) & ~np.isnan(weights) & (weights > 0)
        line[name] = float(np.average(values[keep], weights=weights[keep])) if keep.any() else math.nan
    return line


class JsonLines:
    """`metrics.jsonl`: one JSON object per line, flushed; nan and infinities are null. A `Sink`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._file = self.path.open("a")

    def write(self, line):
        self._file.write(json.dumps({name: _finite(value) for name, value in line.items()}) + "\n")
        self._file.flush()

    def sync(self):
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a file system that cannot sync
                raise

    def close(self):
        self._file.close()


def _finite(value: Any) -> Any:
    """A value of a line as JSON has it."""
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: str | Path, needs: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; an incomplete last line is skipped. null reads as nan.

    **Arguments:** `path`; `needs`, the numbers that each line of training must have (`steps`, `seconds`).
    **Raises:** `ValueError` for a damaged line, naming it; `OSError` if the file cannot be read.
    """
    path, lines = Path(path), []
    for number, text, complete in _texts(path):
        try:
            line = _parsed(text)
        except ValueError:
            if not complete:
                break
            raise _damaged(path, number, text, needs) from None
        lacks = [name for name in needs if not isinstance(line.get(name), (int, float))]
        if lacks and line["kind"] == "train":
            raise _damaged(path, number, text, needs)
        lines.append(line)
    return lines


def _texts(path: Path, content: bytes | None = None) -> Iterator[tuple[int, bytes, bool]]:
    """Each line of a file: its number from 1, its bytes, and whether it ends in a newline, as a complete one does."""
    if content is None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise type(error)(f"{path} cannot be read ({error.strerror}): a file of metrics is needed") from None
    *complete, last = content.split(b"\n")
    for number, text in enumerate(complete, 1):
        yield number, text, True
    if last:
        yield len(complete) + 1, last, False


def _parsed(text: bytes) -> dict[str, Any]:
    """One line. **Raises:** `ValueError` if it is not an object with a `kind` and an `update`."""
    try:
        line = json.loads(text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str) or type(line.get("update")) is not int:
        raise ValueError("not a line of metrics")
    return {name: math.nan if value is None else value for name, value in line.items()}


def _damaged(path: Path, number: int, text: bytes, needs: Sequence[str]) -> ValueError:
    needed = f"a JSON object with {', '.join(('kind', 'update', *needs))} is needed"
    return ValueError(f"{path}:{number} is {_short(text)}; {needed}: put the file back, or delete that line")


def _short(text: bytes, size: int = 60) -> str:
    """The beginning of a line, for messages."""
    return repr(text[:size].decode(errors="backslashreplace")) + ("..." if len(text) > size else "")


def _readable(path: Path, content: bytes | None = None) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines that are not damaged, each as its bytes and its values; none if there is no such file."""
    for _, text, _ in _texts(path, content) if content is not None or path.is_file() else ():
        with contextlib.suppress(ValueError):
            yield text, _parsed(text)


def newest(path: str | Path, size: int = 1 << 20) -> dict[str, dict[str, Any]]:
    """Kind -> its last line in the last `size` bytes of a `metrics.jsonl`, for long files. Skips damaged lines."""
    path = Path(path)
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - size)
        file.seek(start)
        content = file.read()
    if start:
        content = content.partition(b"\n")[2]
    return {line["kind"]: line for _, line in _readable(path, content)}


def last(path: str | Path, update: int) -> dict[str, dict[str, Any]]:
    """Kind -> its last line up to `update`; empty if there is no such line, or no file. Damaged lines are skipped."""
    return {line["kind"]: line for _, line in _readable(Path(path)) if line["update"] <= update}


def fault(path: str | Path, update: int) -> tuple[str, int]:
    """Return whether the lines of training in a `metrics.jsonl` cover every update up to `update` once, without damage.

    **Returns:** what is wrong, naming the file and the line (empty: nothing), and the update up to which nothing is.
    """
    path, reached = Path(path), 0
    if not path.is_file():
        return f"{path} is missing", 0
    for number, text, complete in _texts(path):
        if reached == update:
            break
        try:
            line = _parsed(text)
        except ValueError:
            if not complete:
                break
            return f"{path}:{number} is damaged ({_short(text)})", reached
        if line["update"] > update:
            break
        if line["kind"] != "train":
            continue
        count = line.get("updates")
        begin = line["update"] - count if type(count) is int else -1
        if begin > reached:
            return f"{path} lacks the lines of updates {reached + 1} to {begin}, before line {number}", reached
        if begin < reached:
            return f"{path}:{number} does not continue from update {reached} ({_short(text)})", reached
        reached = line["update"]
    return ("" if reached == update else f"{path} ends at update {reached}"), reached


def known(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The metrics that `RunConfig.best` may name, from `last` lines; those of evaluations as `eval/<name>`."""
    metrics: dict[str, float] = {}
    for kind, line in lines.items():
        prefix = "" if kind == "train" else f"{kind}/"
        named = {name: value for name, value in line.items() if name not in OF_LINES and isinstance(value, float)}
        metrics |= {f"{prefix}{name}": value for name, value in named.items()}
    return metrics


def truncate(path: str | Path, update: int) -> None:
    """Remove the lines after `update` from a `metrics.jsonl`, and damaged ones: a resumed run writes each line once."""
    path = Path(path)
    if path.exists():
        write_whole(path, b"".join(text + b"\n" for text, line in _readable(path) if line["update"] <= update))


# --- sinks: where metrics go ----------------------------------------------------------------------------------------


@runtime_checkable
class Sink(Protocol):
    """A recorder of metrics, one line at a time."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Record a line: `kind`, `update`, and numbers."""

    def sync(self) -> None:
        """Have the lines written so far survive a power failure, if the sink can."""

    def close(self) -> None:
        """Flush, and close files."""


class TensorBoard:
    """TensorBoard event files, one scalar per metric and kind."""

    def __init__(self, folder: str | Path, first: int = 0):
        """**Arguments:** `folder`, where the event files go; `first`, the update from which a resumed run
        continues: points from there on that were written before are dropped."""
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first)

    def write(self, line):
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "update" and math.isfinite(value):
                self._writer.add_scalar(f"{line['kind']}/{name}", value, line["update"])

    def sync(self):
        self._writer.flush()

    def close(self):
        self._writer.close()


class WeightsAndBiases:
    """A Weights & Biases run; a resumed run continues it by the id kept in `<folder>/wandb_id`."""

    def __init__(self, project: str, folder: str | Path, config: Any = None):
        """**Arguments:** `project`; `folder`, the run's; `config`, JSON values to show beside it.
        **Raises:** `ValueError` if it cannot be used, for example without a login."""
        import wandb

        folder = Path(folder)
        id_file = folder / "wandb_id"
        run_id = id_file.read_text() if id_file.exists() else uuid.uuid4().hex[:12]
        options: dict[str, Any] = {"name": folder.name, "id": run_id, "dir": str(folder), "config": config}
        try:
            # runs that share a program are threads of one process, each with a run of its own
            self._run = wandb.init(project=project, resume="allow", reinit="create_new", **options)
        except Exception as error:  # no login, no network
            reason = " ".join(str(error).split())
            raise ValueError(
                f"--run.wandb is {project!r}, but Weights & Biases refuses ({type(error).__name__}: {reason}): "
                "`wandb login` may help; or leave it out"
            ) from error
        if not id_file.exists():
            write_whole(id_file, run_id)

    def write(self, line):
        numbers = {f"{line['kind']}/{n}": v for n, v in line.items() if isinstance(v, (int, float)) and n != "update"}
        self._run.log(numbers, step=line["update"])

    def sync(self):
        pass  # its own process sends them

    def close(self):
        self._run.finish()


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]):
        self.sinks = list(sinks)

    def write(self, line: Mapping[str, Any]) -> None:
        for sink in self.sinks:
            sink.write(line)

    def sync(self) -> None:
        """Have the lines survive a power failure. **Raises:** `OSError` if they cannot be written."""
        for sink in self.sinks:
            sink.sync()

    def close(self) -> None:
        """Close every sink; a second call does nothing. **Raises:** the first error of a sink, after all others are
        closed."""
        failed: list[Exception] = []
        while self.sinks:
            try:
                self.sinks.pop(0).close()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]


def check_packages(config: RunConfig) -> None:
    """**Raises** `ModuleNotFoundError`, with the remedy, if a package that `config` requires is not installed."""
    for enabled, flag, package in (
        (config.tensorboard, "--run.tensorboard", "tensorboardX"),
        (config.wandb, "--run.wandb", "wandb"),
    ):
        if enabled and importlib.util.find_spec(package) is None:
            raise missing(flag, "track", package, remedy="leave it out")


def open_trackers(folder: Path, config: RunConfig, full_config: Any, update: int) -> Sinks:
    """The sinks of a run's metrics on request, all but `metrics.jsonl`. What can be refused is opened first, so that a
    refused run leaves no event file.

    **Arguments:** `folder`, the run's; `config`; `full_config`, to show beside the metrics; `update`, from which the
    run continues, or 0.
    **Raises:** `ValueError` if Weights & Biases cannot be used; `ModuleNotFoundError` as `check_packages`.
    """
    check_packages(config)
    sinks = Sinks([])
    if config.wandb:
        sinks.sinks.append(WeightsAndBiases(config.wandb, folder, configs.to_json(full_config)))
    if config.tensorboard:
        sinks.sinks.append(TensorBoard(folder / "tensorboard", update + 1 if update else 0))
    return sinks
