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
"""The metric that counts the episodes that ended in an update; metrics of episodes are weighted by it."""

_OF_EPISODES = ("success", "episode_return", "episode_length")
_OF_LINES = ("kind", "update", "updates", "steps", "seconds", "steps_per_second", "exchange_seconds")
"""What a line says of itself, beside the metrics."""


@runtime_checkable
class Sink(Protocol):
    """Something that records one line of metrics at a time."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Record a line: `kind`, `update`, and numbers."""

    def close(self) -> None:
        """Write what is left, and close files."""


def is_of_episodes(name: str) -> bool:
    """Whether a metric averages over ended episodes (`success`, `success/<task>`, `episode_return`, ...)."""
    return name.split("/")[0] in _OF_EPISODES


def window(rows: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One line of metrics from those of several updates.

    **Arguments:** `rows`, metric name -> one value per update; nan where an update has nothing to report.
    **Returns:** means without the nans; metrics of episodes are weighted by the count `episodes` (for `success/<task>`
    by `episodes/<task>` where that exists), and counts are summed.
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
    """`metrics.jsonl`: one JSON object a line, flushed; nan and infinities are null."""

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
    """The lines of a `metrics.jsonl`; a torn last line is left out. null reads as nan."""
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
    """The last line of each kind in the last `size` bytes of a `metrics.jsonl`, by its kind; for long files."""
    if not Path(path).exists():
        return {}
    with Path(path).open("rb") as file:
        start = max(0, file.seek(0, 2) - size)
        file.seek(start)
        content = file.read()
    return {line["kind"]: line for line in _parsed(content.decode(errors="replace").splitlines()[bool(start) :])}


def last(path: str | Path, update: int) -> dict[str, dict[str, Any]]:
    """The last line of each kind up to `update`, by its kind; none where there is none, or no file."""
    lines = read(path) if Path(path).exists() else []
    return {line["kind"]: line for line in lines if line["update"] <= update}


def known(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The metrics that a run goes by (`RunConfig.best`), from `last` lines: those of evaluations as `eval/<name>`."""
    metrics: dict[str, float] = {}
    for kind, line in lines.items():
        prefix = "" if kind == "train" else f"{kind}/"
        named = {name: value for name, value in line.items() if name not in _OF_LINES and isinstance(value, float)}
        metrics |= {f"{prefix}{name}": value for name, value in named.items()}
    return metrics


def truncate(path: str | Path, update: int) -> None:
    """Cut a `metrics.jsonl` back to the lines up to `update`, so that a resumed run writes each line once."""
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
        """**Arguments:** `folder`, where the event files go; `first`, the update with which a resumed run
        continues: points from there on that were written before are dropped.
        **Raises:** `ModuleNotFoundError` with the remedy, where tensorboardX is not installed."""
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
        **Raises:** `ModuleNotFoundError` with the remedy, where wandb is not installed."""
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
        """Close each, once. **Raises:** what the first that cannot be closed raises, when all others are."""
        failed: list[Exception] = []
        while self.sinks:
            try:
                self.sinks.pop(0).close()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]


def open_sinks(folder: Path, config: RunConfig, full_config: Any, update: int) -> Sinks:
    """Where the metrics of a run go.

    **Arguments:** `folder`, the run's; `config`; `full_config`, to show beside the metrics; `update`, from which the
    run continues, or 0.
    **Raises:** `ModuleNotFoundError` where a package for what `config` asks for is not installed.
    """
    sinks: list[Sink] = [JsonLines(folder / "metrics.jsonl")]
    if config.tensorboard:
        sinks.append(TensorBoard(folder / "tensorboard", update + 1 if update else 0))
    if config.wandb:
        sinks.append(WeightsAndBiases(config.wandb, folder, configs.to_json(full_config)))
    return Sinks(sinks)
