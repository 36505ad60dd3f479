"""A row of the table of bad inputs, and the small runs that rows damage. See `tests/cli/test_bad_input.py`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from llmrl_jax import lm
from llmrl_jax.cli import main as cli
from llmrl_jax.core import config as configs
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.glam.config import TrainConfig
from llmrl_jax.systems.props.config import PropsRun
from tests.lm_random import random_variables


@dataclass(frozen=True)
class Row:
    """One bad input: a command line, and the error that it must give."""

    name: str
    """What is wrong, for the test's name; unique in its module."""
    argv: str
    """The command line after `llmrl`, split as a shell does. `{tmp}` is the row's own empty folder, also the current
    folder; `{NAME}` is a copy in it of what `PREPARED[NAME]` made."""
    error: str
    """A regular expression for the one line of the error: it names the value and the remedy."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files to write first: path below `{tmp}` -> contents. They may change a copy (`cartpole/config.json`)."""
    prepare: Callable[[Path], object] | None = None
    """Called with `{tmp}` after that, for what `files` cannot say."""
    compiles: str = ""
    """A regular expression for the programs that may be compiled before the error is known (`jit(init)`); empty: none.
    """
    writes: bool = False
    """Whether the command may write below `{tmp}` before the error is known: only where the error is of writing."""
    code: int = 2
    """The exit code; 1: a run that failed."""

    def needs(self) -> list[str]:
        """The names in `PREPARED` that the row uses."""
        used = set(re.findall(r"\{(\w+)\}", self.argv)) | {path.split("/")[0] for path in self.files}
        return [name for name in PREPARED if name in used]

    def made(self, tmp: Path, prepared: Callable[[str], Path]) -> list[str]:
        """Prepare the row in `tmp`. **Returns:** its command line."""
        places = {"tmp": str(tmp)}
        for name in self.needs():
            places[name] = str(shutil.copytree(prepared(name), tmp / name))
        for path, content in self.files.items():
            (tmp / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp / path).write_bytes(content if isinstance(content, bytes) else content.encode())
        if self.prepare is not None:
            self.prepare(tmp)
        return [re.sub(r"\{(\w+)\}", lambda match: places[match[1]], arg) for arg in shlex.split(self.argv)]


# --- what rows start from ---------------------------------------------------------------------------------------------


def _model(place: Path) -> None:
    """A language model of a few words, with untrained weights."""
    tokenizer = lm.WordTokenizer.from_texts(["red green blue sky grass blood what colour is ?"])
    config = lm.LlamaConfig(16, 8, 16, 1, 2, 1, max_position_embeddings=24, eos_token_id=tokenizer.eos_id)
    lm.save_hf(place, config, random_variables(lm.Llama(config))["params"])
    tokenizer.save(place)


def _data(place: Path) -> None:
    """Rows to fine-tune on: `rows.jsonl`."""
    facts = {"sky": "blue", "grass": "green", "blood": "red"}
    rows = [{"prompt": f"what colour is {thing} ?", "response": f" {colour}"} for thing, colour in facts.items()]
    place.mkdir()
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


CARTPOLE = (
    "--env CartPole-v1 --network.hidden 4 --ppo.num-envs 4 --ppo.num-steps 4 --ppo.minibatches 2 --ppo.pool-size 4 "
    "--ppo.epochs 1 --eval-episodes 2 --run.progress off"
)
"""The flags of a PPO run of 16 steps an update."""


def _no_update(learner: Any, state: Any, capacity: int) -> tuple[Any, float]:
    """A program in place of a chunk of updates: the state stays as it is."""
    names = {"loss": 0.5, "entropy": 0.6, "episodes": 1.0, "episode_return": 9.0, **dict.fromkeys(learner.bounds, 0.0)}
    rows = {name: np.full(capacity, value, np.float32) for name, value in names.items()}
    return lambda state, frozen, n: (state, rows), 0.0


def _cartpole(place: Path) -> None:
    """PPO in CartPole, 3 updates, with a checkpoint and a line of metrics after each; no update is computed."""
    flags = "--steps 48 --run.log-every 1 --run.checkpoint-every 1 --run.keep 3"
    with (
        mock.patch("llmrl_jax.run.loop.compile_chunk", _no_update),
        mock.patch("llmrl_jax.run.loop.plots.learning_curve"),
        mock.patch("llmrl_jax.workflows.rl_training.evaluation", lambda made, episodes: lambda state, key: {}),
    ):
        command = f"rl train {CARTPOLE} {flags} --run.out {place.parent} --run.name {place.name}"
        assert cli.main(shlex.split(command)) == 0


def _props(place: Path) -> None:
    """A search that was begun: `config.json`, and `nim-0/log.jsonl` with one line."""
    (place / "nim-0").mkdir(parents=True)
    config = PropsRun(tasks=("nim",), run=BaseRunConfig(place.name, str(place.parent)))
    configs.save_config(config, place / "config.json")
    (place / "nim-0" / "log.jsonl").write_text(json.dumps({"round": 0}) + "\n")


def _glam(place: Path) -> None:
    """A GLAM run of 3 updates, as far as its settings and its log."""
    place.mkdir()
    configs.save_config(TrainConfig(run=RunConfig(place.name, str(place.parent))), place / "config.json")
    lines = [
        {"kind": "train", "update": i, "updates": 1, "steps": 16 * i, "seconds": i, "steps_per_second": 16.0}
        for i in (1, 2, 3)
    ]
    scores = {"success": 0.5, "episode_return": 0.4, "episodes": 8.0}
    (place / "metrics.jsonl").write_text("".join(json.dumps(line | scores) + "\n" for line in lines))


PREPARED: dict[str, Callable[[Path], None]] = {
    "model": _model,
    "data": _data,
    "cartpole": _cartpole,
    "props": _props,
    "glam": _glam,
}
"""Name -> what makes a folder at a path that does not exist. Made once per process, and copied for each row."""
