"""Where metrics go: `metrics.jsonl` always, TensorBoard and Weights & Biases on request."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.run.config import RunConfig


COUNT = "episodes"
"""The metric with the number of episodes that ended in an update; it weights the metrics of episodes."""

_OF_EPISODES = ("success", "episode_return", "episode_length")
_OF_LINES = ("kind", "update", "updates", "steps", "seconds", "steps_per_second", "exchange_seconds")
"""The keys of a line that are not metrics."""


@runtime_checkable
class Sink(Protocol):
    """A recorder of metrics, one line at a time."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Record a line: `kind`, `update`, and numbers."""

    def close(self) -> None:
        """Flush, and close files."""


def is_of_episodes(name: str) -> bool:
    """Whether a metric averages over ended episodes (`success`, `success/<task>`, `episode_return`, ...)."""
    return name.split("/")[0] in _OF_EPISODES


def window(rows: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One line of metrics from those of several updates.

    **Arguments:** `rows`, metric name -> one value per update; nan if an update has none.
    **Returns:** means over the values that are not nan; metrics of episodes are weighted by the count `episodes`
    (for `success/<task>` by `episodes/<task>` if that exists), and counts are summed.
    """
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
    """`metrics.jsonl`: one JSON object per line, flushed; nan and infinities are null."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._file = self.path.open("a")

    def write(self, line):
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in line.items()
        }
        self._file.write(json.dumps(clean) + "\n")
        self._file.flush()

    def close(self):
        self._file.close()


def read(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; an incomplete last line is skipped. null reads as nan."""
    return _parsed(Path(path).read_text().splitlines())


def _parsed(texts: Sequence[str]) -> list[dict[str, Any]]:
    lines = []
    for text in texts:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        lines.append({name: math.nan if value is None else value for name, value in line.items()})
    return lines


def newest(path: str | Path, size: int = 1 << 20) -> dict[str, dict[str, Any]]:
    """Kind -> its last line in the last `size` bytes of a `metrics.jsonl`; for long files."""
    if not Path(path).exists():
        return {}
    with Path(path).open("rb") as file:
        start = max(0, file.seek(0, 2) - size)
        file.seek(start)
        content = file.read()
    lines = _parsed(content.decode(errors="replace").splitlines()[bool(start) :])
    return {line["kind"]: line for line in lines if {"kind", "update"} <= line.keys()}  # others are not ours


def last(path: str | Path, update: int) -> dict[str, dict[str, Any]]:
    """Kind -> its last line up to `update`; empty if there is no such line, or no file."""
    lines = read(path) if Path(path).exists() else []
    return {line["kind"]: line for line in lines if line["update"] <= update}


def known(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The metrics that `RunConfig.best` may name, from `last` lines; those of evaluations as `eval/<name>`."""
    metrics: dict[str, float] = {}
    for kind, line in lines.items():
        prefix = "" if kind == "train" else f"{kind}/"
        named = {name: value for name, value in line.items() if name not in _OF_LINES and isinstance(value, float)}
        metrics |= {f"{prefix}{name}": value for name, value in named.items()}
    return metrics


def truncate(path: str | Path, update: int) -> None:
    """Remove the lines after `update` from a `metrics.jsonl`, so that a resumed run writes each line once."""
    path = Path(path)
    if not path.exists():
        return
    kept: list[str] = []
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if line["update"] <= update:
            kept.append(text + "\n")
    write_whole(path, "".join(kept))


class TensorBoard:
    """TensorBoard event files, one scalar per metric and kind."""

    def __init__(self, folder: str | Path, first: int = 0):
        """**Arguments:** `folder`, where the event files go; `first`, the update from which a resumed run
        continues: points from there on that were written before are dropped.
        **Raises:** `ModuleNotFoundError` with the remedy, if tensorboardX is not installed."""
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("tensorboard needs the extra: pip install 'llmrl-jax[track]'") from error
        self._writer = SummaryWriter(str(folder), purge_step=first)

    def write(self, line):
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "update" and math.isfinite(value):
                self._writer.add_scalar(f"{line['kind']}/{name}", value, line["update"])

    def close(self):
        self._writer.close()


class WeightsAndBiases:
    """A Weights & Biases run; a resumed run continues it by the id kept in `<folder>/wandb_id`."""

    def __init__(self, project: str, folder: str | Path, config: Any = None):
        """**Arguments:** `project`; `folder`, the run's; `config`, JSON values to show beside it.
        **Raises:** `ModuleNotFoundError` with the remedy, if wandb is not installed."""
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("wandb needs the extra: pip install 'llmrl-jax[track]'") from error
        folder = Path(folder)
        kept = folder / "wandb_id"
        if not kept.exists():
            write_whole(kept, uuid.uuid4().hex[:12])
        self._run = wandb.init(
            project=project, name=folder.name, id=kept.read_text(), resume="allow", dir=str(folder), config=config
        )

    def write(self, line):
        numbers = {f"{line['kind']}/{n}": v for n, v in line.items() if isinstance(v, (int, float)) and n != "update"}
        self._run.log(numbers, step=line["update"])

    def close(self):
        self._run.finish()


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]):
        self.sinks = list(sinks)

    def write(self, line: Mapping[str, Any]) -> None:
        for sink in self.sinks:
            sink.write(line)

    def close(self) -> None:
        """Close each sink once. **Raises:** the first error of a sink, after all others are closed."""
        failed: list[Exception] = []
        while self.sinks:
            try:
                self.sinks.pop(0).close()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]


def open_sinks(folder: Path, config: RunConfig, full_config: Any, update: int) -> Sinks:
    """The sinks of a run's metrics.

    **Arguments:** `folder`, the run's; `config`; `full_config`, to show beside the metrics; `update`, from which the
    run continues, or 0.
    **Raises:** `ModuleNotFoundError` if a package that `config` requires is not installed.
    """
    sinks: list[Sink] = [JsonLines(folder / "metrics.jsonl")]
    if config.tensorboard:
        sinks.append(TensorBoard(folder / "tensorboard", update + 1 if update else 0))
    if config.wandb:
        sinks.append(WeightsAndBiases(config.wandb, folder, configs.to_json(full_config)))
    return Sinks(sinks)
