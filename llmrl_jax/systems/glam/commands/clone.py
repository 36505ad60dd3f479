"""`llmrl glam clone`: a language model imitates demonstrations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

import envs_jax
from llmrl_jax import lm
from llmrl_jax.agents.demonstration_file import read_demos, write_demos
from llmrl_jax.agents.demonstrations import play_episodes, text_id
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.core.config import FREE
from llmrl_jax.core.files import replacing
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.flags import flag, resumed
from llmrl_jax.run.folder import begin, held, open_folder, write_summary
from llmrl_jax.run.loop import train as run_training
from llmrl_jax.run.tune.model import write_tuned
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.build import Glam, build
from llmrl_jax.systems.glam.cloning import CloningConfig, acting, check, preset, taught
from llmrl_jax.systems.glam.config import EMBEDDED, GlamConfig
from llmrl_jax.systems.glam.prior import save_prior
from llmrl_jax.systems.glam.runs import HELD_OUT, load_run, success_table, summarise, task_names
from llmrl_jax.tuning import make_evaluation, make_sft, pack


UNREAD = (
    "ppo",
    "symbolic",
    "drrn",
    "reward_scale",
    "stop_value_gradient",
    "competence_coef",
    "stop_competence_gradient",
)
"""Settings of `GlamConfig` that are for learners by reward."""


@dataclass(frozen=True)
class CloneRun:
    """A run of behaviour cloning: who is imitated where, by which model, and how the run is kept."""

    preset: str = field(default="bc", metadata=FREE)
    """Starting point: `bc` (published values, every weight), `bc-lora` (the same with adapters), `bc-demo` (small)."""
    glam: Annotated[GlamConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: preset("bc")[0])
    demos: str = ""
    """Demonstrations to learn from, a file of `llmrl envs demos`; empty: the bot, or the run of `--from`, plays for
    them, and they are kept as `demos.parquet`."""
    from_run: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Folder of a run of `llmrl glam train` whose agent is imitated, where it succeeds; empty: the bot."""
    checkpoint: int = -1
    """With `from`: which checkpoint, by its update; -1: the newest."""
    greedy: bool = False
    """With `from`: the agent takes its likeliest actions instead of samples."""
    episodes: int = 100_000
    """Episodes that are played for demonstrations at most."""
    clone: Annotated[CloningConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: preset("bc")[1])
    eval_episodes: int = field(default=1000, metadata=FREE)
    """Held-out episodes that the model plays before and after, in each way of acting; 0: none."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=0))

    def __post_init__(self):
        if self.demos and self.from_run:
            raise ValueError(f"demos is {self.demos} and from is {self.from_run}: give one of them")
        if not self.from_run and (self.greedy or self.checkpoint != -1):
            raise ValueError("greedy and checkpoint are of the run that is imitated: name it by --from")
        if self.episodes < 1 or self.eval_episodes < 0:
            raise ValueError(
                f"episodes is {self.episodes} and eval_episodes {self.eval_episodes}; at least 1 and 0 are needed"
            )


def _check(config: CloneRun) -> None:
    check(config.glam)
    usual = preset(config.preset)[0]
    unread = [name for name in UNREAD if getattr(config.glam, name) != getattr(usual, name)]
    if unread:
        raise ValueError(f"cloning does not read {', '.join(unread)}: leave them out, they are for `llmrl glam train`")


def _player(config: CloneRun) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Who demonstrates: the agent in the level, paid as the level pays, its weights, and what is to be told of it."""
    here: dict[str, Any] = {"env": text_id(config.glam.env), "reward_scale": 1.0}
    if not config.from_run:
        return make_agent(replace(config.glam, agent="bot", **here)), (), (), {"player": "bot"}
    folder = Path(config.from_run)
    saved, _, state, update = load_run(folder, config.checkpoint)
    told = {"player": folder.name, "agent": saved.glam.agent, "update": update, "greedy": config.greedy}
    return make_agent(replace(saved.glam, **here)), state.params, state.frozen, told


def _demonstrations(config: CloneRun, folder: Path) -> Path:
    """The file to learn from: the one that is named, or what is played now, or was before a resume."""
    if config.demos:
        return Path(config.demos)
    path = folder / "demos.parquet"
    if path.exists() and config.run.resume:
        return path
    agent, params, frozen, told = _player(config)
    name = told["player"] if config.from_run else "the bot"
    print(f"{config.clone.read} steps are played by {name} in {config.glam.env}", flush=True)
    started = time.monotonic()
    played = play_episodes(agent, params, frozen, seed=config.run.seed, episodes=config.episodes, greedy=config.greedy)
    world: Any = envs_jax.make(text_id(config.glam.env))[0]
    facts = {**told, "versions": info.versions()}
    found = write_demos(path, played, world, seed=config.run.seed, facts=facts, pairs=config.clone.read)
    if not found.kept:
        path.unlink()
        raise ValueError(f"{name} succeeded in none of {found.played} episodes: there is nothing to imitate")
    seconds = time.monotonic() - started
    print(f"{found.steps} steps of {found.kept} successes among {found.played} episodes ({seconds:.1f} s)", flush=True)
    return path


def _judge(glam: Glam, episodes: int, seed: int) -> Callable[[Any], dict[str, dict[str, float]]]:
    """Sampled and greedy play of what has been learnt, on the episodes of `llmrl glam eval`."""
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    if not episodes:
        return lambda state: {}
    play = make_evaluator(glam.env, glam.env_params, glam.policy, episodes=episodes)
    ways = {"sampled": False, "greedy": True}
    return lambda state: {
        way: summarise(play(*acting(glam, state), key, greedy=greedy), task_names(glam)) for way, greedy in ways.items()
    }


def _write(folder: Path, config: CloneRun, glam: Glam, state: Any) -> list[str]:
    """The model as a folder for `--model`, and beside it the adapters by themselves where there are any."""
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


def _clone(config: CloneRun) -> int:
    _check(config)
    if config.demos:
        read_demos(config.demos)  # what is wrong with the file is said before anything is made
    glam = build(config.glam)
    folder = open_folder(config.run, "clone")
    first = jax.process_index() == 0
    with held(folder) if first else contextlib.nullcontext():
        if config.run.resume:
            begin(folder, config)
        demos = _demonstrations(config, folder)
    rows = taught(glam, demos, config.clone)
    how, model = config.clone.sft, glam.policy.model
    length = config.clone.length or max(len(row.tokens) for row in (*rows.learn, *rows.held_out))
    data = pack(rows.learn, length, several=config.clone.pack)
    updates = max(1, round(config.clone.epochs * (len(data.tokens) // how.batch_size)))
    print(
        f"{len(rows.learn)} steps to learn and {len(rows.held_out)} held out, of {rows.episodes} episodes, in "
        f"{len(data.tokens)} rows of {length} tokens, {(data.segments > 0).mean():.0%} full",
        flush=True,
    )
    key = jax.random.key(config.run.seed)
    learner = make_sft(how, model, {"params": glam.policy.base(key)}, data, updates, glam.mesh, take=True)
    if first:
        begin(folder, config)  # from here on its demonstrations are found again
    judge = _judge(glam, config.eval_episodes, config.run.seed)
    begun = [learner.init(key)]
    before = judge(begun[0])
    learner = replace(learner, init=lambda key: begun.pop())  # nobody else holds it: its memory is needed
    run, measure = config.run, None
    if rows.held_out:
        held_out = pack(rows.held_out, length, several=config.clone.pack)
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
    values: dict[str, Any] = {
        "env": config.glam.env,
        "demonstrations": str(demos),
        "episodes": rows.episodes,
        "pairs": len(rows.learn),
        "held_out_pairs": len(rows.held_out),
        "updates": result.update,
        "tokens_per_second": round(result.steps_per_second, 1),
        "train_seconds": round(result.seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "stopped": result.stopped,
        "before": before,
    }
    if not result.stopped:
        values |= {"written": _write(folder, config, glam, result.state), "after": judge(result.state)}
        if before:
            rates = {f"{when}, {way}": found for when in ("before", "after") for way, found in values[when].items()}
            print(success_table(rates, task_names(glam)))
        print(f"The model is {folder / 'model'}, for `llmrl glam train --model` and `llmrl glam test --model`")
    write_summary(folder, values)
    print(f"{result.update} updates at {result.steps_per_second:.0f} tokens/s; everything is in {folder}")
    return 0


def _prepare(args: Sequence[str]) -> Callable[..., int]:
    """`clone` with the defaults that the command line asks for: a preset's, or those of the run to resume."""
    chosen = flag(args, "--preset") or "bc"
    glam, cloning = preset(chosen)
    default = resumed(CloneRun, args) or CloneRun(preset=chosen, glam=glam, clone=cloning)

    def run(config: Annotated[CloneRun, tyro.conf.arg(name="")] = default) -> int:
        return _clone(config)

    run.__doc__ = clone.__doc__
    return run


def clone() -> int:
    """Fine-tune a language model on what the bot, a file of demonstrations or another run's agent did; any flag wins
    over the preset.

    Plays before and after, and writes `model/`, which `train` and `test` take as `--model`; with `--tune lora` also the
    adapters, as `adapter/`, which peft loads.

    With `--run.name NAME --run.resume` the settings of that run are taken from its own config.json."""
    raise AssertionError("prepared by _prepare")


clone.prepare = _prepare  # type: ignore[attr-defined]
