"""Settings of ProPS runs: the contents of config.json and the flags of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from llmrl_jax import lm
from llmrl_jax.core.checks import MAX_SEED, Checked, In, NonNegativeInt, PositiveInt, between
from llmrl_jax.core.config import FREE
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.finetune import PUBLISHED, FinetuneConfig
from llmrl_jax.tuning import GRPOConfig
from llmrl_jax.workflows.chat_model import ChatConfig
from llmrl_jax.workflows.tuning import Tuned


def _check_searches(config: Any) -> None:
    """Check the options that `PropsRun` and `TableConfig` share.

    **Raises:** `ValueError` naming the option."""
    seed = config.run.seed
    last = MAX_SEED + 1 - seed if 0 <= seed <= MAX_SEED else MAX_SEED  # a saved run may have another seed
    remedy = f"seeds go up to {MAX_SEED}, from --run.seed {seed}"
    between("seeds", config.seeds, 1, last, remedy=remedy if config.seeds > 1 else "")
    if not config.tasks:
        raise ValueError("tasks is empty; name at least one, or all")
    if twice := [name for i, name in enumerate(config.tasks) if name in config.tasks[:i]]:
        raise ValueError(f"tasks has {twice[0]!r} twice; name it once (--seeds repeats a search)")


def _with_run(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, in which the fields of `run` are at the top level."""
    old = {name: values[name] for name in ("name", "out", "seed", "resume") if name in values}
    gone = (*old, "config")
    if not any(name in values for name in gone) or not isinstance(values.get("run", {}), Mapping):
        return values
    kept = {name: value for name, value in values.items() if name not in gone}
    return {**kept, "run": {**old, **values.get("run", {})}}


@dataclass(frozen=True)
class PropsRun(Checked):
    """A run of searches: tasks, method and model."""

    KIND: ClassVar[str] = "props run"
    upgraded = staticmethod(_with_run)

    tasks: tuple[str, ...] = ("mountain_car_continuous",)
    """Tasks, by name (`llmrl props list`) or environment id; `all`: the paper's fifteen."""
    seeds: PositiveInt = 1
    """Searches per task, with the seeds `run.seed`, `run.seed` + 1, ..."""
    search: Annotated[PropsConfig, tyro.conf.arg(name="")] = field(default_factory=PropsConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    video: bool = field(default=False, metadata=FREE)
    """Also write an episode of the best policy of each search as `episode.gif`."""
    workers: Annotated[int, In("[1, 1024]")] = field(default=4, metadata=FREE)
    """Number of concurrent searches, whose requests to a server are concurrent too."""
    print_every: NonNegativeInt = field(default=50, metadata=FREE)
    """Rounds between progress lines of a search; 0: only at its end."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        _check_searches(self)


SCRIPTED = "scripted"
"""Name of the scripted adviser as a method of the table."""
EPISODES = 20
"""Episodes per evaluation in the table, as published."""


@dataclass(frozen=True)
class TableConfig(Checked):
    """Results of several methods on the published tasks, as a page and JSON."""

    KIND: ClassVar[str] = "props table"

    tasks: tuple[str, ...] = field(default=("all",), metadata=FREE)
    """Tasks, by name; `all`: the paper's fifteen."""
    methods: tuple[str, ...] = field(default=(SCRIPTED, "random_search", "ars", "cma_es"), metadata=FREE)
    """`scripted`, the scripted adviser; or numeric methods: random_search, hill_climbing, ars, cma_es, open_es, cem."""
    seeds: PositiveInt = field(default=10, metadata=FREE)
    """Searches per task and method, with the seeds `run.seed`, `run.seed` + 1, ..."""
    budget: Annotated[int, In(f"[{EPISODES}, 2147483647]")] = field(default=8000, metadata=FREE)
    """Episodes per search."""
    final_episodes: Annotated[int, In("[2, 2147483647]")] = field(default=100, metadata=FREE)
    """Fresh episodes for the final evaluation of the best policy of each search."""
    workers: Annotated[int, In("[1, 1024]")] = field(default=2, metadata=FREE)
    """Number of concurrent searches of the scripted adviser."""
    page: Path = field(default=Path("docs/systems"), metadata=FREE)
    """Folder of `props-table.md` and `props-table.json`, to which rows are added."""
    again: bool = field(default=False, metadata=FREE)
    """Repeat these tasks and methods: their earlier results are removed first."""
    run: BaseRunConfig = field(default_factory=lambda: BaseRunConfig(name="props-table"))

    def __post_init__(self):
        super().__post_init__()
        _check_searches(self)
        if not self.methods:
            raise ValueError(f"methods is empty; name at least one, as in --methods {SCRIPTED} cma_es")


def _without_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, which also holds the name of the preset: drop it."""
    return {name: value for name, value in values.items() if name != "preset"}


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Tuned):
    """A fine-tuning run: model and tasks. `preset(name)` gives published values."""

    KIND: ClassVar[str] = "props finetune"
    upgraded = staticmethod(_without_preset)

    data: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = field(default_factory=FinetuneConfig)
    lora: lm.LoRAConfig = field(default_factory=lambda: lm.LoRAConfig(rank=8, alpha=32.0, targets=lm.lora.TARGETS))
    """The adapters, if `tune` is `lora`."""
    updates: PositiveInt = field(default=500, metadata=FREE)
    """Number of updates; each samples `grpo.prompts` x `grpo.group` answers."""
    max_prompt: PositiveInt = 2048
    """Maximum prompt length in tokens; a longer prompt is an error that names its task."""
    grpo: GRPOConfig = field(
        default_factory=lambda: GRPOConfig(prompts=16, group=8, max_new_tokens=256, microbatches=8)
    )
    """The learner."""


def preset(name: str, model: str = "") -> FinetuneRun:
    """A preset for fine-tuning: `corrected`, or `published` with its errors (`FinetuneConfig.compat`).

    `published`: adapters of rank 8 and alpha 32 on all matrices except values and gates; 500 steps of 128 answers, 4
    per prompt, equal to the published 5 epochs over 3,200 prompts; learning rate 1e-5; 256 tokens per answer (props
    reference, section 7). Values not given in the reference follow the GRPO paper (2402.03300). Published prompts were
    truncated to 512 tokens; here they are not. Not reproduced: dropout in the adapters, the learning-rate decay, and
    the upload.

    **Arguments:** `model`, a folder or a hub id; it may be set later. **Raises:** `ValueError` for another name.
    """
    if name == "corrected":
        return FinetuneRun(model=model)
    if name != "published":
        raise ValueError(f"preset is {name!r}; it is one of corrected, published")
    return FinetuneRun(
        model=model,
        data=PUBLISHED,
        lora=lm.LoRAConfig(rank=8, alpha=32.0, targets=("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")),
        grpo=GRPOConfig(
            prompts=32, group=4, max_new_tokens=256, microbatches=16, advantage="grpo", aggregate="sequence",
            kl_coef=0.04, learning_rate=1e-5,
        ),
    )  # fmt: skip
