"""The language model by itself: fine-tune it on text, sample from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro

from llmrl_jax import lm
from llmrl_jax.lm.peft import load_adapter
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.commands._fit import fit
from llmrl_jax.run.commands._grpo import grpo
from llmrl_jax.run.commands._tuned import Quantize, Tuned, write_tuned
from llmrl_jax.run.folder import write_summary
from llmrl_jax.run.loop import train as run_training
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


def generate(
    model: str,
    prompt: Annotated[str, tyro.conf.Positional],
    adapter: str = "",
    quantize: Quantize = "none",
    chat: bool = False,
    samples: int = 1,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop: tuple[str, ...] = (),
    seed: int = 0,
) -> None:
    """Sample continuations of a prompt and print them.

    Args:
        model: A folder with config.json, safetensors and tokenizer.json, or a Hugging Face hub id.
        prompt: The text to go on from.
        adapter: A peft adapter to put on the model: a folder or hub id; empty: none.
        quantize: Keep the matrices in 8.5 (int8) or 4.5 (nf4) bits a weight.
        chat: Put the prompt into the model's chat template, as what the user says.
        samples: Continuations.
        max_new_tokens: Tokens in a continuation, at most.
        temperature: Divides the logits; 0: the likeliest token each time.
        top_k: Draw from the likeliest k tokens; 0: from all.
        top_p: Draw from the fewest likeliest tokens that hold this much probability; 1: from all.
        min_p: Draw from tokens at least this fraction as likely as the likeliest; 0: from all.
        repetition_penalty: Divides or multiplies the logits of tokens that have occurred; 1: none.
        stop: Strings that end a continuation; they are not printed.
        seed: Seed of the draws.
    """
    folder = lm.locate(model)
    tokenizer = load_tokenizer(folder)
    text = prompt
    if chat:
        template = ChatTemplate.load(folder)
        if template is None:
            raise ValueError(f"{model} has no chat template; leave --chat out")
        text = template.render([{"role": "user", "content": prompt}], add_generation_prompt=True)
    start = [] if chat or tokenizer.bos_id is None else [tokenizer.bos_id]
    tokens = start + tokenizer.encode(text)
    if not tokens:
        raise ValueError("the prompt is empty, and the tokenizer has no beginning-of-sequence token to start from")
    llama, variables = lm.load(folder, quantize=None if quantize == "none" else quantize)
    if adapter:
        llama, variables = load_adapter(adapter, llama, variables)
    stops = lm.StopStrings.build(tokenizer, stop, llama.config.vocab_size) if stop else None
    config = lm.SamplingConfig(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        samples=samples,
        stop_tokens=lm.end_tokens(folder, tokenizer),
    )
    rows, lengths = jax.numpy.asarray([tokens]), jax.numpy.asarray([len(tokens)])
    found = lm.generate(llama, variables, rows, lengths, jax.random.key(seed), config, stops=stops)
    for i, continuation in enumerate(found.texts(tokenizer, stops)[0]):
        if samples > 1:
            print(f"--- {i + 1} of {samples}, {lm.Finish(int(found.finish[0, i])).name.lower()}")
        print(continuation)


COMMANDS = {"sft": sft, "grpo": grpo, "generate": generate, "fit": fit}
