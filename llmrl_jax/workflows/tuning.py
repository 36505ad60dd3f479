"""Fine-tuning runs, `llmrl lm sft` and `llmrl lm grpo`: their settings, the model, the data, and the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import Checked, Epochs, Needs, PositiveInt, refuse_unread
from llmrl_jax.core.config import FREE
from llmrl_jax.core.files import replacing
from llmrl_jax.kernels.attention import Attention
from llmrl_jax.lm.config import ComputeDtype, dtype_options
from llmrl_jax.lm.source import TEMPLATE
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.parallel import make_mesh
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.tuning import (
    REWARDS,
    ChatTemplate,
    GRPOConfig,
    Packed,
    Prompts,
    SFTConfig,
    check_response,
    check_vocabulary,
    encode_prompt,
    encode_row,
    load_reward,
    make_evaluation,
    make_grpo,
    make_reward_evaluation,
    make_sft,
    pack,
    pad_prompts,
    read_rows,
    rewards_named,
    text_reward,
    try_reward,
)
from llmrl_jax.tuning.grpo import check_grpo
from llmrl_jax.tuning.sft import check_sft
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment


Quantize = Literal["none", "int8", "nf4"]
"""How the frozen base is stored."""


@dataclass(frozen=True, kw_only=True)
class Tuned(Checked):
    """The settings that all fine-tuning runs share."""

    model: str
    """A Hugging Face folder or hub id, a GGUF file, or smollm2-135m (`llmrl doctor` says how to get it)."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: Annotated[lm.LoRAConfig, Needs("tune", "lora")] = field(default_factory=lm.LoRAConfig)
    """The adapters, if `tune` is `lora`."""
    quantize: Quantize = "none"
    """Store the frozen base's matrices in 8.5 (int8) or 4.5 (nf4) bits per weight; with adapters only."""
    dtype: ComputeDtype = "float32"
    """Type of the frozen base and of the computation; trained parameters and the loss are always float32. `mixed`:
    float32, with the factors of products with weights rounded to bfloat16."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but with far less memory."""
    attention: Attention = "auto"
    """How attention is computed: `auto` takes cuDNN's kernel on GPUs and splash attention on TPUs where they can, else
    `recomputed` scores, and on a CPU `saved` ones."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    date: str = ""
    """The date, as in 2026-11-23, for chat templates that write one; empty: that of the start, which a resumed run
    keeps."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=100))

    def __post_init__(self):
        super().__post_init__()
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(
                f"quantize is {self.quantize}, which freezes the base: take --tune lora, or leave --quantize out"
            )
        try:
            datetime.fromisoformat(self.date or "2000-01-01")
        except ValueError as error:
            raise ValueError(f"date is {self.date!r}; a date as in 2026-11-23 is needed") from error


@dataclass(frozen=True, kw_only=True)
class TuneConfig(Tuned):
    """Settings of supervised fine-tuning: model, text and run.

    **Raises:** `ValueError` for an option out of range, or quantised weights that are to be trained.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.TuneConfig(model="tiny", data="rows.jsonl", length=16, lora=lr.LoRAConfig(rank=4)).tune
    'lora'
    ```
    """

    KIND: ClassVar[str] = "lm sft"

    data: Path
    """Training data, .jsonl or .parquet: `prompt` and `response`, or `messages` for the model's chat template."""
    eval_data: str = ""
    """Evaluation data for the loss, at the start, every `run.eval_every` updates and at the end; empty: none."""
    length: PositiveInt = 512
    """Tokens per row."""
    pack: bool = True
    """Pack several examples into a row; they do not attend to one another."""
    overflow: Literal["refuse", "cut"] = "refuse"
    """Handling of an example longer than a row: an error that names it, or truncation of its end."""
    epochs: Epochs = 1.0
    """Passes over the data."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""

    def __post_init__(self):
        super().__post_init__()
        if not self.eval_data:
            refuse_unread(self, ("run.eval_every",), "a run without --eval-data")


@dataclass(frozen=True, kw_only=True)
class GrpoRun(Tuned):
    """Settings of GRPO: model, prompts, reward and run.

    **Raises:** as `TuneConfig`.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> grpo = lr.tuning.GRPOConfig(max_new_tokens=4)
    >>> config = lr.GrpoRun(model="tiny", data="rows.jsonl", reward="exact", grpo=grpo)
    >>> config.updates
    100
    ```
    """

    KIND: ClassVar[str] = "lm grpo"

    data: Path
    """Prompts, .jsonl or .parquet: `prompt`, or `messages` for the model's chat template, and the fields that the
    reward reads."""
    reward: str
    """`exact`, `contains` or `last-number` (against the row's `response`), or your own `FILE.py:FUNCTION`, whose code
    is executed: function(prompts, completions, rows) -> a number for each completion."""
    eval_data: str = ""
    """Prompts to evaluate the reward on, at the start, every `run.eval_every` updates and at the end; empty: none."""
    updates: PositiveInt = field(default=100, metadata=FREE)
    """Updates; each samples `grpo.prompts` x `grpo.group` completions."""
    max_prompt: PositiveInt = 512
    """Maximum number of tokens of a prompt; for a longer one the run fails with its line."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """The learner."""

    def __post_init__(self):
        super().__post_init__()
        if not self.eval_data:
            refuse_unread(self, ("run.eval_every",), "a run without --eval-data")


# --- the model ------------------------------------------------------------------------------------------------------


C = TypeVar("C", bound=Tuned)


def mesh_of(config: Tuned) -> Mesh | None:
    """The mesh of a run; None for one device."""
    return make_mesh(config.mesh) if config.mesh else None


def load_base(config: Tuned, folder: Path, mesh: Mesh | None) -> tuple[lm.Llama, dict[str, Any]]:
    """The model to tune, and its weights on the mesh.

    **Arguments:** `folder`, the local folder of `config.model` (`lm.locate`); `mesh`, see `mesh_of`.
    """
    dtypes = dtype_options(config.dtype)
    adapters = config.lora if config.tune == "lora" else None
    kind = None if config.quantize == "none" else config.quantize
    # updates of 1e-5 would be rounded away in bfloat16
    param_dtype = jnp.dtype(jnp.float32) if config.tune == "full" else dtypes["dtype"]
    model, variables = lm.load(folder, mesh=mesh, dtype=param_dtype, lora=adapters, quantize=kind)
    return model.clone(remat=config.remat, attention=config.attention, **dtypes), variables


def with_template(config: C, folder: Path) -> tuple[C, ChatTemplate | None]:
    """The chat template of a model folder, and the configuration with the date that the template writes, if it writes
    one: a run that is resumed on another day reads the same text."""
    template = ChatTemplate.load(folder)
    if template is None or "strftime_now" not in template.source:
        return config, template
    if not config.date and not config.run.resume:
        config = replace(config, date=date.today().isoformat())
    return config, ChatTemplate.load(folder, date=datetime.fromisoformat(config.date) if config.date else None)


def with_end_tokens(config: GRPOConfig, folder: Path, tokenizer: FastTokenizer) -> GRPOConfig:
    """The configuration with every token that ends a text or a turn of the model, unless it names stop tokens."""
    return config if config.stop_tokens is not None else replace(config, stop_tokens=lm.end_tokens(folder, tokenizer))


def train(
    x: Experiment,
    command: str,
    facts: Callable[[RunResult], Mapping[str, Any]],
    model: lm.Llama,
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
) -> RunResult:
    """Train, and write the tuned model to the run's folder, unless the run was stopped.

    **Arguments:** `x`, with a `model` in its settings; `command`, prefix of the name of an unnamed run; `facts`, for
    the summary; the others as those of `write_tuned`.
    """

    def written(result: RunResult) -> dict[str, Any]:
        values = {**facts(result), "updates": result.update}
        if not result.stopped:
            base = x.config.model
            ends = lm.end_tokens(lm.locate(base), tokenizer)
            values["written"] = write_tuned(result.folder, base, model, result.state, tokenizer, template, ends)
        return values

    with opened(x.config.run, command) as folder:
        return experiments.train(x, folder, facts=written)


def write_tuned(
    folder: Path,
    base: str,
    model: lm.Llama,
    state: Any,
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
    ends: Sequence[int] = (),
) -> str:
    """Write the adapters in peft's format, or the model in transformers' format; replace those of an earlier part of
    the run.

    **Arguments:** `base`, the folder or hub id of the base model; `state`, the learner's last; `ends`, all tokens that
    end a text or a turn of the base (`lm.end_tokens`), if there are more than the one in config.json.
    **Returns:** the name of the folder written inside `folder`.
    """
    name = "model" if model.lora is None else "adapter"
    trained = gather(state.params)
    if jax.process_index():
        return name
    with doing(f"writing {folder / name}"), replacing(folder / name) as draft:
        if model.lora is not None:
            variables = {**state.frozen["base"], "lora": trained}
            lm.save_adapter(draft, model, variables, base=base)
        else:
            lm.save_hf(draft, model.config, trained, end_tokens=ends)
            tokenizer.save(draft)
            if template is not None:
                (draft / TEMPLATE).write_text(template.source, encoding="utf-8")
    return name


# --- llmrl lm sft ---------------------------------------------------------------------------------------------------


def read_data(
    path: Path, tokenizer: FastTokenizer, template: ChatTemplate | None, config: TuneConfig, vocab_size: int
) -> Packed:
    """The rows of a data file, tokenized, checked against the model's vocabulary, and packed or padded to rows of
    `config.length`."""
    names, examples = [], []
    with doing(f"reading {path.name}") as activity:
        for name, row in read_rows(path):
            names.append(name)
            examples.append(encode_row(row, name, tokenizer, template))
            check_vocabulary(examples[-1].tokens, name, tokenizer, vocab_size)
            activity.what = f"reading {path.name}: {len(examples)} examples"
        packed = pack(examples, config.length, several=config.pack, overflow=config.overflow, names=names)
    real = (packed.segments > 0).mean()
    print(f"{path.name}: {len(examples)} examples in {len(packed.tokens)} rows of {config.length}, {real:.0%} full")
    return packed


def sft(config: TuneConfig) -> RunResult:
    """Fine-tune a language model on text, and write the run to its folder, with the adapters or the model.

    **Returns:** how it ended. **Raises:** `ValueError` and `FileNotFoundError` for an unusable model or data.

    **Example:**

    ```pycon
    >>> import json, pathlib, llmrl_jax as lr
    >>> rows = [{"prompt": f"what colour is {thing} ?", "response": " red"} for thing in ("blood", "grass", "the sky")]
    >>> _ = pathlib.Path("rows.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    >>> config = lr.tuning.SFTConfig(batch_size=3)
    >>> options = {"length": 16, "pack": False, "sft": config, "run": lr.RunConfig(name="red")}
    >>> result = lr.sft(lr.TuneConfig(model="tiny", data=pathlib.Path("rows.jsonl"), **options))
    >>> result.update, sorted(path.name for path in result.folder.glob("adapter*/*.safetensors"))
    (1, ['adapter_model.safetensors'])
    ```
    """
    shape = lm.read_config(config.model)
    if config.length > (positions := shape.max_position_embeddings):
        raise ValueError(f"length is {config.length}, but the model has {positions} positions; take shorter rows")
    folder = lm.locate(config.model)
    tokenizer, (config, template) = load_tokenizer(folder), with_template(config, folder)
    read = partial(read_data, tokenizer=tokenizer, template=template, config=config, vocab_size=shape.vocab_size)
    data = read(config.data)
    held_out = read(Path(config.eval_data)) if config.eval_data else None
    updates = max(1, round(config.epochs * (len(data.tokens) // config.sft.batch_size)))
    mesh = mesh_of(config)
    check_sft(config.sft, data, updates, mesh)
    model, variables = load_base(config, folder, mesh)
    learner = make_sft(config.sft, model, variables, data, updates, mesh, take=True)
    evaluate = None
    if held_out is not None:
        evaluate = make_evaluation(model, held_out, config.sft.batch_size, config.sft.head_chunk)
    columns = {"loss": "loss", "learning_rate": "lr"}
    x = Experiment(config, learner, updates=updates, during=evaluate, shown=columns, unit="tokens", at_ends=True)
    return train(x, "sft", lambda result: {"rows": len(data.tokens)}, model, tokenizer, template)


# --- llmrl lm grpo --------------------------------------------------------------------------------------------------


def _read(
    path: Path, tokenizer: FastTokenizer, template: ChatTemplate | None, longest: int, vocab_size: int
) -> tuple[list[dict[str, Any]], Prompts]:
    """The rows of a file, with their rendered prompt under `prompt`, and the prompts' tokens."""
    rows, tokens = [], []
    for name, row in read_rows(path):
        text, ids = encode_prompt(row, name, tokenizer, template)
        check_vocabulary(ids, name, tokenizer, vocab_size)
        if len(ids) > longest:
            raise ValueError(f"{name}: the prompt has {len(ids)} tokens, more than --max-prompt {longest}")
        rows.append({**row, "prompt": text})
        tokens.append(ids)
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows, pad_prompts(tokens, tokenizer.pad_id, rows)


def _check(
    config: GrpoRun,
    rows: list[dict[str, Any]],
    prompts: Prompts,
    held_out: tuple[list[dict[str, Any]], Prompts] | None,
    positions: int,
) -> None:
    """**Raises:** `ValueError` for prompts too long for the model's positions, or rows without what a reward reads."""
    longest = max(p.tokens.shape[1] for p in (prompts, *([held_out[1]] if held_out else [])))
    if longest + config.grpo.max_new_tokens > positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens and a completion up to {config.grpo.max_new_tokens} "
            f"(grpo.max_new_tokens): more than the model's {positions} positions"
        )
    if config.reward in REWARDS:
        for file, read in ((config.data, rows), (config.eval_data, held_out[0] if held_out else [])):
            for row_number, row in enumerate(read, 1):
                check_response(config.reward, row, f"row {row_number} of {file}")


def grpo(config: GrpoRun) -> RunResult:
    """Train a language model by rewards, and write the run to its folder, with the adapters or the model.

    **Returns:** how it ended. **Raises:** `ValueError` and `FileNotFoundError` for an unusable model, reward or data.

    **Example:**

    ```pycon
    >>> import pathlib, llmrl_jax as lr
    >>> _ = pathlib.Path("questions.jsonl").write_text('{"prompt": "what colour is blood ?", "response": "red"}\\n')
    >>> config = lr.tuning.GRPOConfig(prompts=1, group=2, max_new_tokens=4)
    >>> options = {"grpo": config, "run": lr.RunConfig(name="answers")}
    >>> config = lr.GrpoRun(model="tiny", data=pathlib.Path("questions.jsonl"), reward="exact", updates=1, **options)
    >>> result = lr.grpo(config)
    >>> result.update, result.steps  # completions
    (1, 2)
    ```
    """
    reward = load_reward(config.reward)
    folder = lm.locate(config.model)
    shape = lm.read_config(folder)
    tokenizer, (config, template) = load_tokenizer(folder), with_template(config, folder)
    read = partial(
        _read, tokenizer=tokenizer, template=template, longest=config.max_prompt, vocab_size=shape.vocab_size
    )
    rows, prompts = read(config.data)
    held_out = read(Path(config.eval_data)) if config.eval_data else None
    _check(config, rows, prompts, held_out, shape.max_position_embeddings)
    try_reward(reward, rows[0])
    settings, mesh = with_end_tokens(config.grpo, folder, tokenizer), mesh_of(config)
    check_grpo(settings, prompts, mesh, shape.vocab_size)
    stops = lm.StopStrings.build(tokenizer, config.stop, shape.vocab_size) if config.stop else None
    model, variables = load_base(config, folder, mesh)
    judge = text_reward(reward, tokenizer, rows, stops)
    learner = make_grpo(settings, model, variables, prompts, judge, stops=stops, mesh=mesh, take=True)
    evaluate = judged = None
    if held_out is not None:
        judged = text_reward(reward, tokenizer, held_out[0], stops)
        evaluate = make_reward_evaluation(settings, model, held_out[1], judged, stops=stops)
    print(f"{config.data.name}: {len(rows)} prompts of up to {prompts.tokens.shape[1]} tokens", flush=True)
    columns = {"reward": "reward", "length": "length", "entropy": "entropy"}
    x = Experiment(
        config, learner, updates=config.updates, during=evaluate, shown=columns, unit="completions", at_ends=True
    )
    with rewards_named(judge, judged):
        return train(x, "grpo", lambda result: {"prompts": len(rows)}, model, tokenizer, template)
