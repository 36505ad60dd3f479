"""`llmrl props finetune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro

from llmrl_jax import lm
from llmrl_jax.core.config import FREE
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.flags import flag, resumed
from llmrl_jax.run.folder import write_summary
from llmrl_jax.run.loop import train as run_training
from llmrl_jax.run.metrics import read as read_metrics
from llmrl_jax.run.tune.model import Tuned, with_end_tokens, write_tuned
from llmrl_jax.systems.props.finetune import (
    PUBLISHED,
    FinetuneConfig,
    Question,
    Setting,
    encode_question,
    make_questions,
    make_reward,
    make_settings,
)
from llmrl_jax.tuning import ChatTemplate, GRPOConfig, Prompts, make_grpo, make_reward_evaluation, pad_prompts


DATA = 0xDA7A
"""Folded into the seed for random policies and for the episodes of proposals."""
PARTS = ("soft_format", "hard_format", "policy", "improvement")


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Tuned):
    """A run of fine-tuning: which model, on which tasks, and how the run is kept."""

    preset: Literal["corrected", "published"] = field(default="corrected", metadata=FREE)
    """Starting point: `corrected`, or `published` with what is wrong with it (`FinetuneConfig.compat`)."""
    data: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = field(default_factory=FinetuneConfig)
    lora: lm.LoRAConfig = field(default_factory=lambda: lm.LoRAConfig(rank=8, alpha=32.0, targets=lm.lora.TARGETS))
    """The adapters, where `tune` is `lora`."""
    updates: int = field(default=500, metadata=FREE)
    """Updates; each samples `grpo.prompts` x `grpo.group` answers."""
    max_prompt: int = 2048
    """Tokens of the longest prompt that is taken; a longer one is an error that names its task."""
    grpo: GRPOConfig = field(
        default_factory=lambda: GRPOConfig(prompts=16, group=8, max_new_tokens=256, microbatches=8)
    )
    """The learner."""


def preset(name: str, model: str = "") -> FinetuneRun:
    """A starting point, see `FinetuneRun.preset`.

    `published`: adapters of rank 8 and alpha 32 on all matrices but values and gates; 500 steps of 128 answers, 4 to a
    prompt, which are the published 5 epochs over 3,200 prompts; step size 1e-5; 256 tokens to an answer (props
    reference, section 7). What the reference leaves open is as GRPO was published (2402.03300). Published prompts were
    cut to 512 tokens; here nothing is cut. Left out: the adapters' dropout, the falling step size, and the upload.

    **Arguments:** `model`, a folder or a hub id; it may be filled in later. **Raises:** `ValueError` for another name.
    """
    if name == "corrected":
        return FinetuneRun(model=model)
    if name != "published":
        raise ValueError(f"preset is {name!r}; it is one of corrected, published")
    return FinetuneRun(
        model=model,
        preset="published",
        data=PUBLISHED,
        lora=lm.LoRAConfig(rank=8, alpha=32.0, targets=("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")),
        grpo=GRPOConfig(
            prompts=32, group=4, max_new_tokens=256, microbatches=16, advantage="grpo", aggregate="sequence",
            kl_coef=0.04, learning_rate=1e-5,
        ),
    )  # fmt: skip


def _encode(
    config: FinetuneRun,
    settings: Sequence[Setting],
    questions: Sequence[Question],
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
) -> Prompts:
    tokens = [encode_question(config.data, question, tokenizer, template) for question in questions]
    longest = max(range(len(tokens)), key=lambda i: len(tokens[i]))
    if len(tokens[longest]) > config.max_prompt:
        raise ValueError(
            f"a prompt of {settings[questions[longest].setting].task.name!r} has {len(tokens[longest])} tokens, more "
            f"than --max-prompt {config.max_prompt}: raise it, or lower --history"
        )
    return pad_prompts(tokens, tokenizer.pad_id)


def _evaluation(
    config: FinetuneRun, settings: Sequence[Setting], ask: Mapping[int, Callable[..., dict[str, float]]]
) -> Callable[[Any, jax.Array], dict[str, float]]:
    """The mean over the tasks that are learnt on, and each task by itself where there are several.

    **Arguments:** `ask`, an evaluation for each place in `settings`."""

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        found = {place: ask[place](state, key) for place in ask}
        learnt = [found[place] for place in range(len(config.data.tasks))]
        values = {name: sum(x[name] for x in learnt) / len(learnt) for name in learnt[0]}
        if len(found) > 1:
            for place, x in found.items():
                values |= {f"{settings[place].task.name}/{name}": value for name, value in x.items()}
        return values

    return evaluate


def finetune_model(config: FinetuneRun) -> Path:
    """Fine-tune, and leave adapter and summary. **Returns:** the run's folder."""
    if not config.model:
        raise ValueError("the model is missing: give --model, a folder or a Hugging Face hub id")
    if config.updates < 1:
        raise ValueError(f"updates is {config.updates}; at least 1 is needed")
    folder = lm.locate(config.model)
    tokenizer, template, shape = load_tokenizer(folder), ChatTemplate.load(folder), lm.read_config(folder)
    data_key, learn_key, judge_key = jax.random.split(jax.random.fold_in(jax.random.key(config.run.seed), DATA), 3)
    settings = make_settings(config.data, data_key)
    learnt, held_out = make_questions(config.data, settings)
    prompts = _encode(config, settings, learnt, tokenizer, template)
    judged = {i: [q for q in held_out if q.setting == i] for i in range(len(settings))}
    asked = {i: _encode(config, settings, questions, tokenizer, template) for i, questions in judged.items()}
    longest = max(p.tokens.shape[1] for p in (prompts, *asked.values()))
    if longest + config.grpo.max_new_tokens > shape.max_position_embeddings:
        raise ValueError(
            f"the longest prompt has {longest} tokens and an answer up to {config.grpo.max_new_tokens} "
            f"(grpo.max_new_tokens): more than the model's {shape.max_position_embeddings} positions"
        )
    for setting in settings:
        print(
            f"{setting.task.title}: {config.data.prompts} prompts; a return of {setting.low:.4g} counts as 0, "
            f"{setting.high:.4g} as 1",
            flush=True,
        )
    model, variables, mesh = config.load(folder)
    reward = make_reward(config.data, settings, learnt, tokenizer, learn_key)
    how = with_end_tokens(config.grpo, folder, tokenizer)
    learner = make_grpo(how, model, variables, prompts, reward, mesh=mesh, take=True)
    ask = {}
    for i, questions in judged.items():
        judge = make_reward(config.data, settings, questions, tokenizer, jax.random.fold_in(judge_key, i))
        ask[i] = make_reward_evaluation(how, model, asked[i], judge)
    result = run_training(
        learner,
        replace(config.run, eval_every=config.run.eval_every or config.updates),
        num_updates=config.updates,
        evaluate=_evaluation(config, settings, ask),
        full_config=config,
        command="props-finetune",
        shown={"reward": "reward", "reward/hard_format": "valid", "reward/improvement": "improvement"},
    )
    lines = [line for line in read_metrics(result.folder / "metrics.jsonl") if line["kind"] == "eval"]
    measured = [{n: v for n, v in line.items() if n not in ("kind", "update", "steps")} for line in lines]
    values: dict[str, Any] = {
        "tasks": config.data.tasks,
        "held_out_tasks": config.data.held_out_tasks,
        "prompts": len(learnt),
        "held_out_prompts": len(held_out),
        "scales": {s.task.name: [s.low, s.high] for s in settings},
        "before": measured[0],
        "updates": result.update,
        "answers_per_second": round(result.steps_per_second, 1),
        "train_seconds": round(result.seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "stopped": result.stopped,
    }
    if not result.stopped:
        values["after"] = measured[-1]
        ends = lm.end_tokens(folder, tokenizer)
        values["written"] = write_tuned(result.folder, config.model, model, result.state, tokenizer, template, ends)
        for name in ("reward", *(f"reward/{part}" for part in PARTS)):
            print(f"held out, {name}: {measured[0][name]:.3f} -> {measured[-1][name]:.3f}")
    write_summary(result.folder, values)
    print(f"{result.update} updates at {result.steps_per_second:.1f} answers/s; everything is in {result.folder}")
    return result.folder


def _prepare(args: Sequence[str]) -> Callable[..., int]:
    """`finetune` with the defaults that the command line asks for: a preset's, or those of the run to resume."""
    default = resumed(FinetuneRun, args) or preset(flag(args, "--preset") or "corrected")

    def run(config: Annotated[FinetuneRun, tyro.conf.arg(name="")] = default) -> int:
        finetune_model(config)
        return 0

    run.__doc__ = finetune.__doc__
    return run


def finetune() -> int:
    """Fine-tune a language model as the optimizer: GRPO, rewarded by what the policies that it proposes earn.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`), and the held-out
    reward before and after in `summary.json`. Nothing is uploaded anywhere.

    With `--run.name NAME --run.resume` the settings of that run are taken from its own config.json."""
    raise AssertionError("prepared by _prepare")


finetune.prepare = _prepare  # type: ignore[attr-defined]
