"""The language model alone: fine-tune it, sample from it, compute its memory, convert its files."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.options.command import command
from llmrl_jax.workflows.tuning import GrpoRun, Quantize, TuneConfig


TUNING = ("tune", "quantize", "dtype", "mesh", "config", "run.name", "run.seed", "run.resume")
SFT = ("model", "data", "eval-data", "epochs", "length", "sft.batch-size", "sft.learning-rate", *TUNING)
GRPO = (
    *("model", "data", "reward", "eval-data", "updates", "grpo.prompts", "grpo.group", "grpo.max-new-tokens"),
    *("grpo.learning-rate", *TUNING),
)


@command(TuneConfig, frequent=SFT)
def sft(config: TuneConfig) -> int:
    """Fine-tune a language model on prompts and responses, or on conversations.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`).
    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.workflows import tuning as run

    run.sft(config)
    return 0


@command(GrpoRun, frequent=GRPO)
def grpo(config: GrpoRun) -> int:
    """Train a language model by rewards on its completions: GRPO, or REINFORCE with leave-one-out.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`).
    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.workflows import tuning as run

    run.grpo(config)
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
        model: A Hugging Face folder or hub id, a GGUF file, or smollm2-135m (`llmrl doctor` says how to get it).
        prompt: The text to continue.
        adapter: A peft adapter of the model: a folder or hub id; empty: none.
        quantize: Store the matrices in 8.5 (int8) or 4.5 (nf4) bits per weight.
        chat: Put the prompt into the model's chat template, as a message of the user.
        samples: Number of continuations.
        max_new_tokens: Maximum tokens of a continuation.
        temperature: Divides the logits; 0: greedy decoding.
        top_k: Sample from the k most likely tokens; 0: from all.
        top_p: Sample from the smallest set of most likely tokens with this total probability; 1: from all.
        min_p: Sample from tokens with at least this fraction of the highest probability; 0: from all.
        repetition_penalty: Divides or multiplies the logits of tokens that have occurred; 1: none.
        stop: Strings that end a continuation; they are not printed.
        seed: Seed of sampling.
    """
    import jax

    from llmrl_jax import lm
    from llmrl_jax.core.activity import doing
    from llmrl_jax.core.checks import at_least, check_seed
    from llmrl_jax.lm.peft import load_adapter
    from llmrl_jax.lm.tokens import load_tokenizer
    from llmrl_jax.tuning import ChatTemplate

    check_seed("seed", seed)
    at_least("max_new_tokens", max_new_tokens, 1)
    folder = lm.locate(model)
    shape = lm.read_config(folder)
    tokenizer = load_tokenizer(folder)
    if chat:
        template = ChatTemplate.load(folder)
        if template is None:
            raise ValueError(f"{model} has no chat template; leave --chat out")
        _, tokens = template.encode(tokenizer, [{"role": "user", "content": prompt}])
    else:
        tokens = tokenizer.encode_start(prompt)
    if not tokens:
        raise ValueError("the prompt is empty, and the tokenizer has no beginning-of-sequence token to start from")
    room = shape.max_position_embeddings - len(tokens)
    if max_new_tokens > room:
        raise ValueError(
            f"the prompt has {len(tokens)} tokens and max_new_tokens is {max_new_tokens}; the model has "
            f"{shape.max_position_embeddings} positions: ask for at most {max(room, 0)} new tokens"
        )
    stops = lm.StopStrings.build(tokenizer, stop, shape.vocab_size) if stop else None
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
    llama, variables = lm.load(folder, quantize=None if quantize == "none" else quantize)
    if adapter:
        llama, variables = load_adapter(adapter, llama, variables)
    rows, lengths = jax.numpy.asarray([tokens]), jax.numpy.asarray([len(tokens)])
    with doing("compiling and reading the prompt", max_new_tokens, "tokens") as activity:
        for result in lm.stream(llama, variables, rows, lengths, jax.random.key(seed), config, stops=stops):
            activity.what, activity.done = "generating", int(result.lengths.max())
    for i, continuation in enumerate(result.texts(tokenizer, stops, start=chat)[0]):
        if samples > 1:
            print(f"--- {i + 1} of {samples}, {lm.Finish(int(result.finish[0, i])).name.lower()}")
        print(continuation)


@command(WorkloadConfig)
def fit(config: WorkloadConfig) -> int:
    """Compute whether a model fits: memory per device, compiled ahead of time from its config.json, without allocating.

    With --target also for TPUs and GPUs that are absent, and how long a step takes there by the roofline of each
    kernel. The exit code is 1 if it does not fit."""
    if config.compare:
        return _compare(config)
    from llmrl_jax.workflows.memory.config import LANGUAGE
    from llmrl_jax.workflows.memory.fit import advice

    if config.workload in LANGUAGE:
        from llmrl_jax.workflows.memory.fit import fit as of_a_model

        result = of_a_model(config)
    else:
        from llmrl_jax.cli.workloads import fit as of_a_system

        result = of_a_system(config)
    if config.json:
        from llmrl_jax.core.files import json_text
        from llmrl_jax.run.info import commit

        helps = advice(result) if result.fits is False and config.advise and config.workload in LANGUAGE else []
        print(json_text({"commit": commit(), **result.facts(), "advice": helps}))
        return int(result.fits is False)
    print(result.table())
    platform = result.devices.rpartition("(")[2].partition(")")[0]
    print(f"Compiled in {result.seconds:.0f} s. Activations are what XLA plans for {platform}; other devices differ.")
    if result.fits is not False:
        return 0
    if config.advise and config.workload in LANGUAGE:
        lines = advice(result)
        print("What helps:" if lines else "No knob helps: take more or larger devices (--mesh), or a smaller model.")
        print("\n".join(lines))
    return 1


def _compare(config: WorkloadConfig) -> int:
    from llmrl_jax.core.files import json_text
    from llmrl_jax.workflows.memory.roofline import compare, table

    first, second = config.compare
    rows = compare((first, second))
    print(json_text(rows) if config.json else table(rows, (first, second)))
    return 0


def convert(
    model: str,
    out: str,
    adapter: str = "",
    checkpoint: int = -1,
    dtype: Literal["", "float32", "bfloat16", "float16"] = "",
) -> None:
    """Write a model as a Hugging Face folder: config.json, safetensors, tokenizer and chat template.

    Args:
        model: A GGUF file, smollm2-135m, a Hugging Face folder or hub id; or the folder of a run, `runs/NAME`, whose
            policy is a language model, or that tuned one. Adapters are folded into the weights.
        out: The folder to write; it must not exist.
        adapter: A peft adapter of the model: a folder or hub id; empty: none.
        checkpoint: Of a run with a policy, by update number; -1: the newest.
        dtype: Of the weights; empty: that of the files, and float32 for quantised ones.
    """
    from llmrl_jax.core.checks import at_least
    from llmrl_jax.core.files import check_writable
    from llmrl_jax.workflows.export import write_model

    at_least("checkpoint", checkpoint, -1)
    check_writable(out, "--out", folder=True)
    print(f"wrote {write_model(model, out, adapter=adapter, checkpoint=checkpoint, dtype=dtype)}")


COMMANDS = {"sft": sft, "grpo": grpo, "generate": generate, "fit": fit, "convert": convert}
