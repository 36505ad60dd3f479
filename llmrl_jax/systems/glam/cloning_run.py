"""Behaviour-cloning runs: the implementation of `llmrl glam clone`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

import envs_jax
from llmrl_jax import lm
from llmrl_jax.agents.babyai_demonstrations import babyai_steps, read_demos, text_id, write_demos
from llmrl_jax.agents.demonstrations import play_episodes
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.core.files import replacing
from llmrl_jax.data.parquet import arrow
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.run import info
from llmrl_jax.run.folder import begin, check_folder, opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.build import Glam, build
from llmrl_jax.systems.glam.cloning import PRESETS, UNREAD, Taught, check, policy_weights, taught
from llmrl_jax.systems.glam.config import EMBEDDED, GlamConfig
from llmrl_jax.systems.glam.prior import save_prior
from llmrl_jax.systems.glam.runs import HELD_OUT, load_run, random_evaluation, success_table, summarise, task_names
from llmrl_jax.systems.glam.settings import CloneRun
from llmrl_jax.tuning import Packed, make_evaluation, make_sft, pack
from llmrl_jax.workflows.tuning import write_tuned


def usual(config: GlamConfig) -> GlamConfig:
    """The cloning preset with the nearest RL settings, none of which cloning reads."""

    def changed(preset: GlamConfig) -> int:
        return sum(getattr(config, name) != getattr(preset, name) for name in UNREAD)

    return min((glam for glam, _ in PRESETS.values()), key=changed)


def player(config: CloneRun) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The demonstrator: the agent in the level with unscaled rewards, its weights, and the metadata for the file of
    demonstrations."""
    here: dict[str, Any] = {"env": text_id(config.glam.env), "reward_scale": 1.0}
    if not config.from_run:
        return make_agent(replace(config.glam, agent="bot", **here)), (), (), {"player": "bot"}
    folder = Path(config.from_run)
    saved, _, state, update = load_run(folder, config.checkpoint)
    facts = {"player": folder.name, "agent": saved.glam.agent, "update": update, "greedy": config.greedy}
    return make_agent(replace(saved.glam, **here)), state.params, state.frozen, facts


def demonstrations(config: CloneRun, folder: Path) -> Path:
    """The file of demonstrations: the given one, one generated now, or one generated before a resume."""
    if config.demos:
        return Path(config.demos)
    path = folder / "demos.parquet"
    if path.exists() and config.run.resume:
        return path
    agent, params, frozen, about = player(config)
    name = about["player"] if config.from_run else "the bot"
    print(f"{config.clone.read} steps are played by {name} in {config.glam.env}", flush=True)
    started = time.monotonic()
    world: Any = envs_jax.make(text_id(config.glam.env))[0]
    seed, see = config.run.seed, babyai_steps(world)
    played = play_episodes(agent, params, frozen, seed=seed, episodes=config.episodes, see=see, greedy=config.greedy)
    facts = {**about, "versions": info.versions()}
    written = write_demos(path, played, world, seed=config.run.seed, facts=facts, pairs=config.clone.read)
    if not written.kept:
        path.unlink()
        raise ValueError(f"{name} succeeded in none of {written.played} episodes: there is nothing to imitate")
    seconds = time.monotonic() - started
    print(
        f"{written.steps} steps of {written.kept} successes among {written.played} episodes ({seconds:.1f} s)",
        flush=True,
    )
    return path


def _judge(glam: Glam, episodes: int, seed: int) -> Callable[[Any], dict[str, dict[str, float]]]:
    """Sampled and greedy evaluation of the fine-tuned policy, on the episodes of `llmrl glam eval`."""
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    if not episodes:
        return lambda state: {}
    play = make_evaluator(glam.env, glam.env_params, glam.policy, episodes=episodes)
    ways = {"sampled": False, "greedy": True}
    return lambda state: {
        way: summarise(play(*policy_weights(glam, state), key, greedy=greedy), task_names(glam))
        for way, greedy in ways.items()
    }


def _write(folder: Path, config: CloneRun, glam: Glam, state: Any) -> list[str]:
    """Write the model as a folder for `--model`, and the adapters separately if there are any."""
    base, tokenizer, model = config.glam.model, glam.tokenizer, glam.policy.model
    ends = () if base == EMBEDDED else lm.end_tokens(base, tokenizer)
    written = [write_tuned(folder, base, model, state, tokenizer, None, ends)]  # type: ignore[arg-type]
    if model.lora is None:
        return written
    whole = gather(lm.merge(lm.dequantize(state.frozen["base"]["params"]), state.params, model.lora))
    if jax.process_index() == 0:
        with replacing(folder / "model") as draft:
            save_prior(draft, glam, whole, ends)
    return [*written, "model"]


def _rows(glam: Glam, config: CloneRun, demos: Path) -> tuple[Taught, Packed, Packed | None, int]:
    """The training data as episodes and as packed rows; the held-out rows, if any; and the number of updates."""
    rows, how = taught(glam, demos, config.clone), config.clone
    length = how.length or max(len(row.tokens) for row in (*rows.learn, *rows.held_out))
    data = pack(rows.learn, length, several=how.pack)
    held_out = pack(rows.held_out, length, several=how.pack) if rows.held_out else None
    print(
        f"{len(rows.learn)} steps to learn and {len(rows.held_out)} held out, of {rows.episodes} episodes, in "
        f"{len(data.tokens)} rows of {length} tokens, {(data.segments > 0).mean():.0%} full",
        flush=True,
    )
    return rows, data, held_out, max(1, round(how.epochs * (len(data.tokens) // how.sft.batch_size)))


def clone(config: CloneRun) -> RunResult:
    """Imitate demonstrations, and write the run to its folder, with the model as `model/`.

    **Returns:** the result of the run.
    **Raises:** `ValueError` for settings that cloning cannot use; what `read_demos`, `taught`, `build` and
    `llmrl_jax.run.loop.train` raise.
    """
    check(config.glam, usual(config.glam))
    arrow()
    if config.demos:
        read_demos(config.demos)  # errors in the file are raised before anything is created
    check_folder(config.run)
    glam = build(config.glam)
    with opened(config.run, "clone") as folder:
        return _clone(config, glam, folder)


def _clone(config: CloneRun, glam: Glam, folder: Path) -> RunResult:
    """Cloning in an opened folder."""
    first = jax.process_index() == 0
    if config.run.resume:
        begin(folder, config)
    demos = demonstrations(config, folder)
    rows, data, held_out, updates = _rows(glam, config, demos)
    model, how = glam.policy.model, config.clone.sft
    key = jax.random.key(config.run.seed)
    learner = make_sft(how, model, {"params": glam.policy.base(key)}, data, updates, glam.mesh, take=True)
    if first:
        begin(folder, config)  # from here on, a resume finds its demonstrations
    judge = _judge(glam, config.eval_episodes, config.run.seed)
    begun = [learner.init(key)]
    before = judge(begun[0])
    learner = replace(learner, init=lambda key: begun.pop())  # no other reference: its memory is needed
    run, measure = config.run, None
    if held_out is not None:
        measure = make_evaluation(model, held_out, how.batch_size, how.head_chunk)
        run = replace(run, eval_every=run.eval_every or updates)
    result = run_training(
        learner,
        run,
        num_updates=updates,
        evaluate=measure,
        full_config=config,
        folder=folder,
        shown={"loss": "loss", "learning_rate": "lr"},
    )
    facts = {
        "env": config.glam.env,
        "demonstrations": str(demos),
        "episodes": rows.episodes,
        "pairs": len(rows.learn),
        "held_out_pairs": len(rows.held_out),
    }
    _finish(config, glam, result, facts, before, judge)
    return result


def _finish(
    config: CloneRun,
    glam: Glam,
    result: RunResult,
    facts: dict[str, Any],
    before: dict[str, dict[str, float]],
    judge: Callable[[Any], dict[str, dict[str, float]]],
) -> None:
    """Write the model, evaluate it, and write the summary."""
    values: dict[str, Any] = {
        **facts,
        "updates": result.update,
        **result.facts("tokens"),
        "before": before,
    }
    folder = result.folder
    if not result.stopped:
        values |= {"written": _write(folder, config, glam, result.state), "after": judge(result.state)}
        if before:
            key = jax.random.fold_in(jax.random.key(config.run.seed), HELD_OUT)
            values["random"] = random_evaluation(glam, config.eval_episodes, key)
            rates = {f"{when}, {way}": summary for when in ("before", "after") for way, summary in values[when].items()}
            rates["random actions"] = values["random"]
            print(success_table(rates, task_names(glam)))
        print(f"The model is {folder / 'model'}, for `llmrl glam train --model` and `llmrl glam test --model`")
    write_summary(folder, values)
    print(f"{result.update} updates at {result.steps_per_second:.0f} tokens/s; everything is in {folder}")
