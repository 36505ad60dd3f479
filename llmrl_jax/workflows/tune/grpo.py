"""`llmrl lm grpo`: a run of reinforcement learning on text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from llmrl_jax import lm
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.tuning import (
    REWARDS,
    ChatTemplate,
    Prompts,
    check_response,
    check_vocabulary,
    encode_prompt,
    load_reward,
    make_grpo,
    make_reward_evaluation,
    pad_prompts,
    read_rows,
    rewards_named,
    text_reward,
    try_reward,
)
from llmrl_jax.workflows.tune.model import load_base, with_end_tokens, with_template, write_results
from llmrl_jax.workflows.tune.settings import GrpoRun


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
            for place, row in enumerate(read, 1):
                check_response(config.reward, row, f"row {place} of {file}")


def grpo(config: GrpoRun) -> RunResult:
    """Train a language model by rewards, and write the run to its folder, with the adapters or the model.

    **Returns:** how it ended. **Raises:** `ValueError` and `FileNotFoundError` for an unusable model, reward or data.
    """
    reward = load_reward(config.reward)
    folder = lm.locate(config.model)
    tokenizer, (config, template) = load_tokenizer(folder), with_template(config, folder)
    shape = lm.read_config(folder)
    read = partial(
        _read, tokenizer=tokenizer, template=template, longest=config.max_prompt, vocab_size=shape.vocab_size
    )
    rows, prompts = read(config.data)
    held_out = read(Path(config.eval_data)) if config.eval_data else None
    _check(config, rows, prompts, held_out, shape.max_position_embeddings)
    try_reward(reward, rows[0])
    model, variables, mesh = load_base(config, folder)
    stops = lm.StopStrings.build(tokenizer, config.stop, shape.vocab_size) if config.stop else None
    how = with_end_tokens(config.grpo, folder, tokenizer)
    judge = text_reward(reward, tokenizer, rows, stops)
    learner = make_grpo(how, model, variables, prompts, judge, stops=stops, mesh=mesh, take=True)
    run, evaluate, judged = config.run, None, None
    if held_out is not None:
        judged = text_reward(reward, tokenizer, held_out[0], stops)
        evaluate = make_reward_evaluation(how, model, held_out[1], judged, stops=stops)
        run = replace(run, eval_every=run.eval_every or config.updates)
    print(f"{config.data.name}: {len(rows)} prompts of up to {prompts.tokens.shape[1]} tokens", flush=True)
    with opened(config.run, "grpo") as out, rewards_named(judge, judged):
        result = run_training(
            learner,
            run,
            num_updates=config.updates,
            evaluate=evaluate,
            full_config=config,
            folder=out,
            shown={"reward": "reward", "length": "length", "entropy": "entropy"},
        )
        write_results(result, {"prompts": len(rows)}, "completions", config.model, model, tokenizer, template)
    return result
