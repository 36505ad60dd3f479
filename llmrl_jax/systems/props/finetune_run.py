"""Runs that fine-tune a language model as the optimizer: the implementation of `llmrl props finetune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.loop import RunResult
from llmrl_jax.run.metrics import read as read_metrics
from llmrl_jax.systems.props.finetune import (
    Question,
    Setting,
    encode_question,
    make_questions,
    make_reward,
    make_settings,
)
from llmrl_jax.systems.props.settings import FinetuneRun
from llmrl_jax.systems.props.tasks import get
from llmrl_jax.tuning import ChatTemplate, Prompts, make_grpo, make_reward_evaluation, pad_prompts
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.tuning import load_base, train, with_end_tokens, with_template


DATA = 0xDA7A
"""Folded into the seed for random policies and for the episodes of proposals."""
PARTS = ("soft_format", "hard_format", "policy", "improvement")


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
    """The mean over the training tasks, and the results per task if there are several.

    **Arguments:** `ask`, an evaluation for each index of `settings`."""

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        results = {place: ask[place](state, key) for place in ask}
        learnt = [results[place] for place in range(len(config.data.tasks))]
        values = {name: sum(x[name] for x in learnt) / len(learnt) for name in learnt[0]}
        if len(results) > 1:
            for place, x in results.items():
                values |= {f"{settings[place].task.name}/{name}": value for name, value in x.items()}
        return values

    return evaluate


@dataclass(frozen=True)
class _Data:
    """The training and evaluation data of a run."""

    settings: Sequence[Setting]
    learnt: Sequence[Question]
    prompts: Prompts
    """Training prompts."""
    judged: Mapping[int, list[Question]]
    """Held-out questions by index of `settings`."""
    asked: Mapping[int, Prompts]
    """Their prompts."""


def _make_data(
    config: FinetuneRun, key: jax.Array, tokenizer: FastTokenizer, template: ChatTemplate | None, positions: int
) -> _Data:
    """**Raises:** `ValueError` for prompts that exceed `max_prompt` or the model's maximum length."""
    with doing("playing the policies of the prompts"):
        settings = make_settings(config.data, key)
        learnt, held_out = make_questions(config.data, settings)
    prompts = _encode(config, settings, learnt, tokenizer, template)
    judged = {i: [q for q in held_out if q.setting == i] for i in range(len(settings))}
    asked = {i: _encode(config, settings, questions, tokenizer, template) for i, questions in judged.items()}
    longest = max(p.tokens.shape[1] for p in (prompts, *asked.values()))
    if longest + config.grpo.max_new_tokens > positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens and an answer up to {config.grpo.max_new_tokens} "
            f"(grpo.max_new_tokens): more than the model's {positions} positions"
        )
    for setting in settings:
        print(
            f"{setting.task.title}: {config.data.prompts} prompts; a return of {setting.low:.4g} counts as 0, "
            f"{setting.high:.4g} as 1",
            flush=True,
        )
    return _Data(settings, learnt, prompts, judged, asked)


def finetune(config: FinetuneRun) -> Path:
    """Fine-tune, and write the adapter and the summary into the run's folder. **Returns:** that folder."""
    if not config.model:
        raise ValueError("the model is missing: give --model, a folder, a GGUF file, a hub id or smollm2-135m")
    for name in (*config.data.tasks, *config.data.held_out_tasks):
        get(name).make()  # a missing package is named before the model is loaded and any task is played
    folder = lm.locate(config.model)
    tokenizer, shape = load_tokenizer(folder), lm.read_config(folder)
    config, template = with_template(config, folder)
    data_key, learn_key, judge_key = jax.random.split(jax.random.fold_in(jax.random.key(config.run.seed), DATA), 3)
    data = _make_data(config, data_key, tokenizer, template, shape.max_position_embeddings)
    model, variables, mesh = load_base(config, folder)
    reward = make_reward(config.data, data.settings, data.learnt, tokenizer, learn_key)
    how = with_end_tokens(config.grpo, folder, tokenizer)
    learner = make_grpo(how, model, variables, data.prompts, reward, mesh=mesh, take=True)
    ask = {}
    for i, questions in data.judged.items():
        judge = make_reward(config.data, data.settings, questions, tokenizer, jax.random.fold_in(judge_key, i))
        ask[i] = make_reward_evaluation(how, model, data.asked[i], judge)
    weight = config.data.format_weight
    valid = "valid" if weight == 1 else f"valid x {weight:g}"
    shown = {"reward": "reward", "reward/hard_format": valid, "reward/improvement": "improvement"}
    during = _evaluation(config, data.settings, ask)
    x = Experiment(config, learner, updates=config.updates, during=during, shown=shown, unit="answers")
    return train(x, "props-finetune", partial(_measured, config, data), model, tokenizer, template).folder


def _measured(config: FinetuneRun, data: _Data, result: RunResult) -> dict[str, Any]:
    """The contents of the summary, except for the written files."""
    lines = [line for line in read_metrics(result.folder / "metrics.jsonl") if line["kind"] == "eval"]
    measured = [{n: v for n, v in line.items() if n not in ("kind", "update", "steps")} for line in lines]
    values: dict[str, Any] = {
        "tasks": config.data.tasks,
        "held_out_tasks": config.data.held_out_tasks,
        "prompts": len(data.learnt),
        "held_out_prompts": sum(map(len, data.judged.values())),
        "scales": {s.task.name: [s.low, s.high] for s in data.settings},
        "before": measured[0],
    }
    if result.stopped:
        return values
    values["after"] = measured[-1]
    for name in ("reward", *(f"reward/{part}" for part in PARTS)):
        print(f"held out, {name}: {values['before'][name]:.3f} -> {values['after'][name]:.3f}")
    return values
