"""A run of supervised fine-tuning: what `llmrl lm sft` does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from llmrl_jax import lm
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.folder import write_summary
from llmrl_jax.run.loop import train as run_training
from llmrl_jax.run.tune.model import Tuned, write_tuned
from llmrl_jax.tuning import (
    ChatTemplate,
    Packed,
    SFTConfig,
    encode_row,
    make_evaluation,
    make_sft,
    pack,
    read_rows,
)


@dataclass(frozen=True, kw_only=True)
class TuneConfig(Tuned):
    """A run of supervised fine-tuning: which model, on which text, and how the run is kept."""

    data: Path
    """Rows to learn, .jsonl or .parquet: `prompt` and `response`, or `messages` for the model's chat template."""
    eval_data: str = ""
    """Rows to measure the loss on, at the start, every `run.eval_every` updates and at the end; empty: none."""
    length: int = 512
    """Tokens in a row."""
    pack: bool = True
    """Put several examples into a row; they do not see one another."""
    overflow: Literal["refuse", "cut"] = "refuse"
    """What happens to an example longer than a row: an error that names it, or its end is cut off."""
    epochs: float = 1.0
    """Passes over the rows."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""


def read_data(path: Path, tokenizer: FastTokenizer, template: ChatTemplate | None, config: TuneConfig) -> Packed:
    """The rows of a data file, tokenized and laid into rows of `config.length`."""
    names, examples = [], []
    for name, row in read_rows(path):
        names.append(name)
        examples.append(encode_row(row, name, tokenizer, template))
    packed = pack(examples, config.length, several=config.pack, overflow=config.overflow, names=names)
    real = (packed.segments > 0).mean()
    print(f"{path.name}: {len(examples)} examples in {len(packed.tokens)} rows of {config.length}, {real:.0%} full")
    return packed


def sft(config: Annotated[TuneConfig, tyro.conf.arg(name="")]) -> int:
    """Fine-tune a language model on prompts and responses, or on conversations.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`)."""
    if config.length > lm.read_config(config.model).max_position_embeddings:
        positions = lm.read_config(config.model).max_position_embeddings
        raise ValueError(f"length is {config.length}, but the model has {positions} positions; take shorter rows")
    if config.epochs <= 0:
        raise ValueError(f"epochs is {config.epochs}; a positive number is needed")
    folder = lm.locate(config.model)
    tokenizer, template = load_tokenizer(folder), ChatTemplate.load(folder)
    data = read_data(config.data, tokenizer, template, config)
    held_out = read_data(Path(config.eval_data), tokenizer, template, config) if config.eval_data else None
    model, variables, mesh = config.load(folder)
    updates = max(1, round(config.epochs * (len(data.tokens) // config.sft.batch_size)))
    learner = make_sft(config.sft, model, variables, data, updates, mesh, take=True)
    evaluate = None
    run = config.run
    if held_out is not None:
        evaluate = make_evaluation(model, held_out, config.sft.batch_size, config.sft.head_chunk)
        run = replace(run, eval_every=run.eval_every or updates)
    result = run_training(
        learner,
        run,
        num_updates=updates,
        evaluate=evaluate,
        full_config=config,
        command="sft",
        shown={"loss": "loss", "learning_rate": "lr"},
    )
    values: dict[str, Any] = {
        "rows": len(data.tokens),
        "updates": result.update,
        "tokens_per_second": round(result.steps_per_second, 1),
        "train_seconds": round(result.seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "stopped": result.stopped,
    }
    if not result.stopped:
        ends = lm.end_tokens(folder, tokenizer)
        values["written"] = write_tuned(result.folder, config.model, model, result.state, tokenizer, template, ends)
    write_summary(result.folder, values)
    print(f"{result.update} updates at {result.steps_per_second:.0f} tokens/s; everything is in {result.folder}")
    return 0
