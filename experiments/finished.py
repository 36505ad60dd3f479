"""Runs of an experiment: read if they are there with the settings that are asked for, else begun or continued."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from llmrl_jax.core import config as configs
from llmrl_jax.run.config import resumed


def refuse_others(
    file: Path, saved: Mapping[str, Any], now: Mapping[str, Any], instead: str = "choose another --out"
) -> None:
    """**Raises** `ValueError` if a file was made with other settings, whose numbers would enter the table under these.

    **Arguments:** `instead`, what can be done beside putting them back."""
    if changed := configs.differences(*(flatten_dict(dict(values), sep=".") for values in (saved, now))):
        changes = "; ".join(changed)
        raise ValueError(f"{file} was made with other settings: {changes} (there -> now); put these back, or {instead}")


def _decisive(config: Any) -> dict[str, Any]:
    """Settings without those of the run's folder, log and checkpoints."""
    values = configs.to_json(config)
    return values | ({"run": {"seed": values["run"]["seed"]}} if "run" in values else {})


def same_settings(file: Path, config: Any) -> bool:
    """Return whether a file of settings exists, which are then `config`. **Raises:** `ValueError` if it has others."""
    if not file.exists():
        return False
    saved, now = _decisive(configs.load_config(type(config), file)), _decisive(config)
    if now.get("date") == "":  # a run that writes its date into prompts keeps that of its start
        now["date"] = saved["date"]
    refuse_others(file, saved, now)
    return True


def finished(folder: Path, config: Any) -> bool:
    """Return whether a run has ended as it should. **Raises:** what `same_settings` raises."""
    file = folder / "summary.json"
    begun = same_settings(folder / "config.json", config)
    return begun and file.exists() and not json.loads(file.read_text()).get("stopped")


def continued(config: Any) -> Any:
    """Settings with which a run starts: those that it was begun with, to go on; else `config`."""
    folder = config.run.folder
    return resumed(type(config), folder) if (folder / "config.json").exists() else config


def complete(config: Any, run: Callable[[Any], Any]) -> Path:
    """The folder of a run, which `run` begins or continues unless it has ended.

    **Raises:** what `same_settings` raises; `SystemExit` if the run is stopped before its end.
    """
    folder = config.run.folder
    if not finished(folder, config):
        run(continued(config))
        if not finished(folder, config):
            raise SystemExit(f"{folder} was stopped: the same command goes on with it")
    return folder
