"""`llmrl lm sft`: a run of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.tuning import (
    ChatTemplate,
    Packed,
    check_vocabulary,
    encode_row,
    make_evaluation,
    make_sft,
    pack,
    read_rows,
)
from llmrl_jax.workflows.tune.model import load_base, with_template, write_results
from llmrl_jax.workflows.tune.settings import TuneConfig


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
    """
    shape = lm.read_config(config.model)
    if config.length > (positions := shape.max_position_embeddings):
        raise ValueError(f"length is {config.length}, but the model has {positions} positions; take shorter rows")
    folder = lm.locate(config.model)
    tokenizer, (config, template) = load_tokenizer(folder), with_template(config, folder)
    read = partial(read_data, tokenizer=tokenizer, template=template, config=config, vocab_size=shape.vocab_size)
    data = read(config.data)
    held_out = read(Path(config.eval_data)) if config.eval_data else None
    model, variables, mesh = load_base(config, folder)
    updates = max(1, round(config.epochs * (len(data.tokens) // config.sft.batch_size)))
    learner = make_sft(config.sft, model, variables, data, updates, mesh, take=True)
    evaluate = None
    run = config.run
    if held_out is not None:
        evaluate = make_evaluation(model, held_out, config.sft.batch_size, config.sft.head_chunk)
        run = replace(run, eval_every=run.eval_every or updates)
    with opened(config.run, "sft") as out:
        result = run_training(
            learner,
            run,
            num_updates=updates,
            evaluate=evaluate,
            full_config=config,
            folder=out,
            shown={"loss": "loss", "learning_rate": "lr"},
        )
        write_results(result, {"rows": len(data.tokens)}, "tokens", config.model, model, tokenizer, template)
    return result
