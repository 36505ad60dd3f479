"""`llmrl lm grpo`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from llmrl_jax import lm
from llmrl_jax.core.config import FREE
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.folder import write_summary
from llmrl_jax.run.loop import train as run_training
from llmrl_jax.run.tune.model import Tuned, with_end_tokens, write_tuned
from llmrl_jax.tuning import (
    REWARDS,
    ChatTemplate,
    GRPOConfig,
    Prompts,
    encode_prompt,
    load_reward,
    make_grpo,
    make_reward_evaluation,
    pad_prompts,
    read_rows,
    text_reward,
)


@dataclass(frozen=True, kw_only=True)
class GrpoRun(Tuned):
    """A run of GRPO: which model, on which prompts, rewarded for what, and how the run is kept."""

    data: Path
    """Prompts, .jsonl or .parquet: `prompt`, or `messages` for the model's chat template, and what the reward reads."""
    reward: str
    """`exact`, `contains` or `last-number` (against the row's `response`), or your own `FILE.py:FUNCTION`, which is
    run: function(prompts, completions, rows) -> a number for each completion."""
    eval_data: str = ""
    """Prompts to measure the reward on, at the start, every `run.eval_every` updates and at the end; empty: none."""
    updates: int = field(default=100, metadata=FREE)
    """Updates; each samples `grpo.prompts` x `grpo.group` completions."""
    max_prompt: int = 512
    """Tokens of the longest prompt that is taken; a longer one is refused by its line."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """The learner."""


def _read(
    path: Path, tokenizer: FastTokenizer, template: ChatTemplate | None, longest: int
) -> tuple[list[dict[str, Any]], Prompts]:
    """The rows of a file, their rendered prompt under `prompt`, and the prompts' tokens."""
    rows, tokens = [], []
    for name, row in read_rows(path):
        text, ids = encode_prompt(row, name, tokenizer, template)
        if len(ids) > longest:
            raise ValueError(f"{name}: the prompt has {len(ids)} tokens, more than --max-prompt {longest}")
        rows.append({**row, "prompt": text})
        tokens.append(ids)
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows, pad_prompts(tokens, tokenizer.pad_id, rows)


def grpo(config: Annotated[GrpoRun, tyro.conf.arg(name="")]) -> int:
    """Improve a language model by rewards on what it writes: GRPO, or REINFORCE with leave-one-out.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`)."""
    if config.updates < 1:
        raise ValueError(f"updates is {config.updates}; at least 1 is needed")
    reward = load_reward(config.reward)
    folder = lm.locate(config.model)
    tokenizer, template = load_tokenizer(folder), ChatTemplate.load(folder)
    shape = lm.read_config(folder)
    rows, prompts = _read(config.data, tokenizer, template, config.max_prompt)
    held_out = _read(Path(config.eval_data), tokenizer, template, config.max_prompt) if config.eval_data else None
    longest = max(p.tokens.shape[1] for p in (prompts, *([held_out[1]] if held_out else [])))
    if longest + config.grpo.max_new_tokens > shape.max_position_embeddings:
        raise ValueError(
            f"the longest prompt has {longest} tokens and a completion up to {config.grpo.max_new_tokens} "
            f"(grpo.max_new_tokens): more than the model's {shape.max_position_embeddings} positions"
        )
    if config.reward in REWARDS:
        for file, read in ((config.data, rows), (config.eval_data, held_out[0] if held_out else [])):
            for place, row in enumerate(read, 1):
                if not isinstance(row.get("response"), str):
                    raise ValueError(f"row {place} of {file} has no `response`, which the reward {config.reward} reads")
    model, variables, mesh = config.load(folder)
    stops = lm.StopStrings.build(tokenizer, config.stop, shape.vocab_size) if config.stop else None
    how = with_end_tokens(config.grpo, folder, tokenizer)
    judge = text_reward(reward, tokenizer, rows, stops)
    learner = make_grpo(how, model, variables, prompts, judge, stops=stops, mesh=mesh, take=True)
    run, evaluate = config.run, None
    if held_out is not None:
        judged = text_reward(reward, tokenizer, held_out[0], stops)
        evaluate = make_reward_evaluation(how, model, held_out[1], judged, stops=stops)
        run = replace(run, eval_every=run.eval_every or config.updates)
    print(f"{config.data.name}: {len(rows)} prompts of up to {prompts.tokens.shape[1]} tokens", flush=True)
    result = run_training(
        learner,
        run,
        num_updates=config.updates,
        evaluate=evaluate,
        full_config=config,
        command="grpo",
        shown={"reward": "reward", "length": "length", "entropy": "entropy"},
    )
    values: dict[str, Any] = {
        "prompts": len(rows),
        "updates": result.update,
        "completions_per_second": round(result.steps_per_second, 1),
        "train_seconds": round(result.seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "stopped": result.stopped,
    }
    if not result.stopped:
        ends = lm.end_tokens(folder, tokenizer)
        values["written"] = write_tuned(result.folder, config.model, model, result.state, tokenizer, template, ends)
    write_summary(result.folder, values)
    print(f"{result.update} updates at {result.steps_per_second:.1f} completions/s; everything is in {result.folder}")
    return 0
