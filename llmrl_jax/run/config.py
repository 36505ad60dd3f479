"""How a run is kept: the options that every run has."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from pathlib import Path

from llmrl_jax.core.config import FREE


@dataclass(frozen=True)
class RunConfig:
    """How a run is kept: where it writes, how often, and whether it continues an earlier one."""

    name: str = field(default="", metadata=FREE)
    """Name of the run; it writes to `<out>/<name>/`. Empty: the command's own name and the time."""
    out: str = field(default="runs", metadata=FREE)
    """Folder that holds all runs."""
    seed: int = 0
    """Seed of every random number of the run; non-negative."""
    log_every: int = field(default=1, metadata=FREE)
    """Updates per line of `metrics.jsonl`."""
    eval_every: int = field(default=0, metadata=FREE)
    """Updates between evaluations; 0: none while training."""
    checkpoint_every: int = field(default=50, metadata=FREE)
    """Updates between checkpoints; 0: only at the end and when interrupted."""
    keep: int = field(default=2, metadata=FREE)
    """Newest checkpoints to keep; at least 1."""
    best: str = field(default="", metadata=FREE)
    """Metric (as `metrics.jsonl` spells it) whose highest checkpoint is kept as well; empty: none."""
    resume: bool = field(default=False, metadata=FREE)
    """Continue the run `<out>/<name>` from its newest checkpoint, bit for bit."""
    resume_from: int = field(default=-1, metadata=FREE)
    """With `resume`: the checkpoint to continue from, by its update number; later ones are discarded. -1: newest."""
    max_seconds: float = field(default=0.0, metadata=FREE)
    """Time budget in seconds of training, compilation left out; the run saves and stops there. 0: none."""
    tensorboard: bool = field(default=False, metadata=FREE)
    """Write TensorBoard event files beside `metrics.jsonl` (extra `track`)."""
    wandb: str = field(default="", metadata=FREE)
    """Weights & Biases project to log to (extra `track`); empty: off."""
    progress: typing.Literal["auto", "bar", "lines", "off"] = field(default="auto", metadata=FREE)
    """What the terminal shows: a live bar, a line per log, nothing; `auto`: the bar on a terminal, else lines."""
    compilation_cache: str = field(default="", metadata=FREE)
    """Folder of the persistent compilation cache, or `off`. Empty: as set already (the command line sets
    `~/.cache/llmrl_jax`, or `LLMRL_COMPILATION_CACHE`)."""

    def __post_init__(self):
        at_least = {"seed": 0, "log_every": 1, "eval_every": 0, "checkpoint_every": 0, "keep": 1, "resume_from": -1}
        for name, low in {**at_least, "max_seconds": 0}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if self.name and (Path(self.name).name != self.name or self.name in (".", "..")):
            raise ValueError(f"the run's name {self.name!r} must be one folder's name (`out` says where it lies)")
        if self.resume and not self.name:
            raise ValueError("resume needs the name of the run to continue")
        if self.resume_from >= 0 and not self.resume:
            raise ValueError(f"resume_from {self.resume_from} has a meaning only with resume")


def use_compilation_cache(folder: str) -> None:
    """Keep compiled programs in `folder` between processes (`off`: do not). Called by runs, never by an import."""
    import jax

    if folder == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
