"""Options of a run's folder, seed and resume, which every run has, and those of the training loop."""

from __future__ import annotations

import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from tyro.constructors import PrimitiveConstructorSpec

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import Checked, In, NonNegativeInt, PositiveInt, check_seed, nearest
from llmrl_jax.core.config import FREE
from llmrl_jax.core.files import expanded


Settings = TypeVar("Settings")


def flag(args: Sequence[str], name: str) -> str | None:
    """The value of a flag on the command line, `--name value` or `--name=value`: empty for a flag without a value, None
    if the flag is absent. The last occurrence counts."""
    last = None
    for i, arg in enumerate(args):
        argument, equals, value = arg.partition("=")
        if argument.replace("_", "-") == name.replace("_", "-"):
            following = args[i + 1] if i + 1 < len(args) and not args[i + 1].startswith("--") else ""
            last = value if equals else following
    return last


def resume_value(text: str) -> bool | str:
    """The value of `--run.resume TEXT`: a folder, or `True` or `False` as in a file."""
    return {"True": True, "False": False}.get(text, text)


Resume = Annotated[
    bool | str,
    PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[RUN]",
        instance_from_str=lambda args: resume_value(args[0]) if args else True,
        is_instance=lambda value: isinstance(value, (bool, str)),
        str_from_instance=lambda value: [str(value)] if value is False or isinstance(value, str) else [],
    ),
]
"""Whether a run continues an earlier one, or the folder of the run to continue. On the command line
`--run.resume RUN`, or `--run.resume` alone."""


def _split(folder: str) -> tuple[str, str]:
    """The folder that holds a run (empty if only the name is given), and the run's name."""
    parent, name = os.path.split(folder.rstrip(os.sep))
    return os.path.split(os.path.abspath(folder)) if name in (".", "..") else (parent, name)


@dataclass(frozen=True)
class BaseRunConfig(Checked):
    """Options that every run has: its folder, its seed, and whether it continues an earlier run."""

    PREFIX: ClassVar[str] = "run."

    name: str = field(default="", metadata=FREE)
    """Name of the run, which writes to `<out>/<name>/`. Empty: the command's name and the time."""
    out: str = field(default="runs", metadata=FREE)
    """Folder that holds all runs."""
    seed: int = 0
    """Seed of every random number of the run, from 0 to 4294967295."""
    resume: Resume = field(default=False, metadata=FREE)
    """The folder of a run to continue, `runs/NAME`, or its name in `out`; the command takes all its settings from it.
    Without a value: the run `<out>/<name>`. `False`: a new run, although a file says otherwise."""

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.resume, str):
            self._take_place_of(self.resume)
        if not -(2**63) <= self.seed < 2**63:  # `check_new` refuses more, which saved settings may hold
            check_seed("--run.seed", self.seed)
        if self.name and (Path(self.name).name != self.name or self.name in (".", "..") or "\0" in self.name):
            raise ValueError(f"--run.name is {self.name!r}; one folder's name is needed (--run.out says where it is)")
        if "\0" in self.out:
            raise ValueError(f"--run.out is {self.out!r}; the path of a folder is needed, without a null character")
        if self.resume and not self.name:
            raise ValueError("--run.resume needs the folder of the run to continue, as in --run.resume runs/NAME")

    def check_new(self) -> None:
        """Check what new runs only must fulfil: earlier versions began runs with other seeds, and those are continued,
        evaluated and compared with what they have. **Raises:** `ValueError`."""
        check_seed("--run.seed", self.seed)

    def _take_place_of(self, folder: str) -> None:
        """Set `name` and `out` from the folder of the run to continue; `resume` is False without one."""
        out, name = _split(folder)
        default_out = next(f.default for f in fields(self) if f.name == "out")
        for part, value, needed in (("name", self.name, name), ("out", self.out, out)):
            if needed and value not in ("", needed, default_out if part == "out" else ""):
                raise ValueError(f"--run.{part} is {value}, but --run.resume is {folder}: leave --run.{part} out")
        object.__setattr__(self, "name", name or self.name)
        object.__setattr__(self, "out", out or self.out)
        object.__setattr__(self, "resume", bool(folder))

    @property
    def folder(self) -> Path:
        """`<out>/<name>`, for a run with a name."""
        return expanded(self.out) / self.name


@dataclass(frozen=True)
class RunConfig(BaseRunConfig):
    """Options of a training run: where it writes, how often, and whether it continues an earlier run.

    **Raises:** `ValueError` for an option out of range.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> config = lr.RunConfig(name="cartpole", seed=1, checkpoint_every=10)
    >>> str(config.folder)
    'runs/cartpole'
    ```
    """

    log_every: PositiveInt = field(default=1, metadata=FREE)
    """Updates per line of `metrics.jsonl`."""
    eval_every: NonNegativeInt = field(default=0, metadata=FREE)
    """Updates between evaluations; 0: none while training."""
    checkpoint_every: NonNegativeInt = field(default=50, metadata=FREE)
    """Updates between checkpoints; 0: only at the end and when interrupted."""
    keep: PositiveInt = field(default=2, metadata=FREE)
    """Newest checkpoints to keep."""
    best: str = field(default="", metadata=FREE)
    """Metric, named as in `metrics.jsonl`, whose highest checkpoint is kept as well; empty: none."""
    resume_from: Annotated[int, In("[-1, 2147483647]")] = field(default=-1, metadata=FREE)
    """With `resume`: update number of the checkpoint to continue from; later ones are deleted. -1: newest."""
    accept_gaps: bool = field(default=False, metadata=FREE)
    """With `resume`: continue although lines of `metrics.jsonl` are missing or damaged; they are lost."""
    max_seconds: Annotated[float, In("[0, inf]")] = field(default=0.0, metadata=FREE)
    """Time budget in seconds of training, without compilation; then the run saves and stops. 0 or inf: none."""
    tensorboard: bool = field(default=False, metadata=FREE)
    """Write TensorBoard event files beside `metrics.jsonl` (extra `track`)."""
    wandb: str = field(default="", metadata=FREE)
    """Weights & Biases project to log to (extra `track`); empty: off."""
    progress: typing.Literal["auto", "bar", "lines", "off"] = field(default="auto", metadata=FREE)
    """What the terminal shows: a live bar, a line per log, nothing; `auto`: the bar on a terminal, else lines."""
    compilation_cache: str = field(default="", metadata=FREE)
    """Folder of the persistent compilation cache, or `off`. Empty: unchanged (the command line sets
    `~/.cache/llmrl_jax`, or `LLMRL_COMPILATION_CACHE`)."""

    def __post_init__(self):
        super().__post_init__()
        if self.resume_from >= 0 and not self.resume:
            raise ValueError(
                f"--run.resume-from is {self.resume_from}, but no run is resumed: name it with --run.resume, or leave "
                "this out"
            )


def find_run(folder: str | Path) -> Path:
    """The config.json of a run to continue. **Raises** `FileNotFoundError`, naming the nearest run, if there is
    none."""
    folder = expanded(folder)
    if not (folder / "config.json").is_file():
        names = [path.parent.name for path in folder.parent.glob("*/config.json")]
        hint = nearest(folder.name, names) or f": `llmrl runs list {folder.parent}` lists those that are there"
        raise FileNotFoundError(f"there is no run {folder.name!r} in {folder.parent} to resume{hint}")
    return folder / "config.json"


def resumed(kind: type[Settings], folder: str | Path, **changes: Any) -> Settings:
    """Settings with which a run continues: those of its config.json.

    Options that apply to one start only are reset: the checkpoint to continue from, and the time budget.

    **Arguments:** `kind`, a dataclass with a `run`; `folder`, the run's, `runs/NAME`; `changes`, fields of `kind` that
    may change (`llmrl_jax.core.config.FREE`), such as `steps=2_000_000`.
    **Raises:** `FileNotFoundError` if there is no run; `ValueError` for a run of another kind, or a change that a
    resumed run does not allow.
    """
    saved: Any = configs.load_config(kind, find_run(folder))
    reset = {"resume_from": -1, "max_seconds": 0.0} if isinstance(saved.run, RunConfig) else {}
    out, name = _split(str(folder))
    # the folder may have been moved or renamed since config.json was written
    run = replace(saved.run, **reset, name=name, out=out or ".", resume=True)
    settings = replace(saved, run=run, **changes)
    refuse_changes(folder, saved, settings)
    return settings


def refuse_changes(folder: str | Path, saved: Any, config: Any) -> None:
    """**Raises** `ValueError` if a run would continue with other options than its own, naming them."""
    if changed := configs.differences(configs.identity(saved), configs.identity(config)):
        raise ValueError(
            f"the run {folder} was begun with other options: {'; '.join(changed)} (saved -> now); put these back, or "
            "choose another name"
        )


def use_compilation_cache(folder: str) -> None:
    """Keep compiled programs in `folder` between processes (`off`: do not). Called by runs, never by an import."""
    import jax

    if folder == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    path = expanded(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionError(
            f"no compiled program can be kept in {path} ({error.strerror}): choose another folder, or `off`"
        ) from None
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
