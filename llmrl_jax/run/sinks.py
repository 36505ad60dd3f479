"""Where the metrics of a run go: `metrics.jsonl` always, TensorBoard and Weights & Biases on request."""

from __future__ import annotations

import importlib.util
import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envs_jax.extras import missing
from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.run.config import RunConfig


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
        kept = folder / "wandb_id"
        own = kept.read_text() if kept.exists() else uuid.uuid4().hex[:12]
        options: dict[str, Any] = {"name": folder.name, "id": own, "dir": str(folder), "config": config}
        try:
            self._run = wandb.init(project=project, resume="allow", **options)
        except Exception as error:  # no login, no network
            why = " ".join(str(error).split())
            raise ValueError(
                f"--run.wandb is {project!r}, but Weights & Biases refuses ({type(error).__name__}: {why}): "
                "`wandb login` may help; or leave it out"
            ) from error
        if not kept.exists():
            write_whole(kept, own)

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
    for given, flag, package in (
        (config.tensorboard, "--run.tensorboard", "tensorboardX"),
        (config.wandb, "--run.wandb", "wandb"),
    ):
        if given and importlib.util.find_spec(package) is None:
            raise missing(flag, "track", package, otherwise="leave it out")


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
