"""GLAM: a language model as the policy, improved by online RL; and the baselines that it is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from llmrl_jax.run import config as configs, stats
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.run.commands._clone import clone
from llmrl_jax.run.commands._glam_tests import compare, export, test
from llmrl_jax.run.config import FREE, RunConfig
from llmrl_jax.run.episode import write_episode
from llmrl_jax.run.folder import open_folder, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.glam.agents import Agent, make_agent
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.clone import CloneConfig, make_clone, save_prior
from llmrl_jax.systems.glam.competence import calibration
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.episode import record_episode
from llmrl_jax.systems.glam.evaluate import Episodes, make_evaluator
from llmrl_jax.systems.glam.policy import ScoringPolicy
from llmrl_jax.systems.glam.presets import DEMO, DEMO_CLONE, DEMO_STEPS, OF_AGENT, preset
from llmrl_jax.systems.glam.reading import ReadingConfig, reading_rows
from llmrl_jax.tuning import SFTConfig, make_sft, pack


@dataclass(frozen=True)
class TrainConfig:
    """A run of GLAM: what is learnt, and how the run is kept."""

    preset: str = field(default="glam", metadata=FREE)
    """Starting point: `glam` (published values), `glam-code` (with the released code's quirks), `demo`; the ablations
    `aflan`, `npae`, `npa`, `npe`; the baselines `symbolic` and `drrn`. Where none is named, that of the agent."""
    glam: Annotated[GlamConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: preset("glam"))
    steps: int = field(default=1_500_000, metadata=FREE)
    """Environment steps over all environments, rounded up to whole updates."""
    eval_episodes: int = field(default=200, metadata=FREE)
    """Held-out episodes per evaluation while training (`run.eval_every` says when)."""
    run: RunConfig = field(default_factory=RunConfig)


HELD_OUT = 0x4E1D
"""Folded into the seed for episodes that are not trained on."""


def summarise(episodes: Episodes, tasks: Sequence[str]) -> dict[str, float]:
    """Success with its 95% Wilson interval, return and length, and how true estimates of success were where the policy
    gives any; per task where there are several."""

    def rate(chosen: Any) -> dict[str, float]:
        won = episodes.success[chosen]
        found = stats.wilson(int(won.sum()), int(won.size))
        guessed = {} if episodes.estimate is None else calibration(episodes.estimate[chosen], won)
        return {"success": found.mean, "success_low": found.low, "success_high": found.high, **guessed}

    out = rate(slice(None))
    out["episode_return"] = float(episodes.episode_return.mean())
    out["episode_length"] = float(episodes.episode_length.mean())
    out["episodes"] = float(episodes.success.size)
    if len(tasks) > 1:
        for i, task in enumerate(tasks):
            out |= {f"{task}/{name}": value for name, value in rate(episodes.task == i).items()}
    return out


def _tasks(agent: Agent) -> Sequence[str]:
    return getattr(agent.env.unwrapped, "task_names", ("task",))  # type: ignore[attr-defined]


def _evaluation(agent: Agent, episodes: int) -> Callable[..., dict[str, float]]:
    """`(state, key, greedy=False) -> summary`, one compiled program."""
    run = make_evaluator(agent.env, agent.env_params, agent.policy, episodes=episodes)

    def evaluate(state: Any, key: jax.Array, greedy: bool = False) -> dict[str, float]:
        return summarise(run(state.params, state.frozen, key, greedy=greedy), _tasks(agent))

    return evaluate


def _updates(learner: Any, steps: int) -> int:
    if steps < 1:
        raise ValueError(f"steps is {steps}; at least 1 is needed")
    return -(-steps // learner.steps_per_update)


def _train(config: TrainConfig) -> int:
    agent = make_agent(config.glam)
    learner = agent.learner()
    evaluate = _evaluation(agent, config.eval_episodes) if config.run.eval_every else None
    result = run_training(
        learner,
        config.run,
        num_updates=_updates(learner, config.steps),
        evaluate=evaluate,
        full_config=config,
        command="glam",
    )
    _finish(result)
    return 0


def _finish(result: RunResult) -> None:
    values = {
        "steps": result.steps,
        "steps_per_second": round(result.steps_per_second, 1),
        "train_seconds": round(result.seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "stopped": result.stopped,
    }
    write_summary(result.folder, values)
    print(f"{result.steps} steps at {result.steps_per_second:.0f} steps/s; everything is in {result.folder}")


def _option(args: Sequence[str], name: str) -> str | None:
    """The value of a flag on the command line, `--name value` or `--name=value`."""
    for i, arg in enumerate(args):
        if arg == name and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{name}="):
            return arg.partition("=")[2]
    return None


def _prepare_train(args: Sequence[str]) -> Callable[..., int]:
    """`train` with the defaults that the command line asks for: a preset's, or those of the run to resume."""
    name = _option(args, "--run.name")
    if "--run.resume" in args and name:
        saved = Path(_option(args, "--run.out") or RunConfig().out).expanduser() / name / "config.json"
        default = configs.load_config(TrainConfig, saved)
        default = replace(default, run=replace(default.run, resume=True))
    else:
        chosen = _option(args, "--preset") or OF_AGENT.get(_option(args, "--agent") or "llm", "glam")
        default = TrainConfig(preset=chosen, glam=preset(chosen))

    def train(config: Annotated[TrainConfig, tyro.conf.arg(name="")] = default) -> int:
        return _train(config)

    train.__doc__ = _train_command.__doc__
    return train


def _train_command() -> int:
    """Train a language model in BabyAI-Text by PPO, or a baseline by its own; any flag wins over the preset.

    `--agent symbolic` and `--agent drrn` begin with the published settings of these baselines.

    With `--run.name NAME --run.resume` the settings of that run are taken from its own config.json."""
    raise AssertionError("prepared by _prepare_train")


_train_command.prepare = _prepare_train  # type: ignore[attr-defined]


def _load_run(folder: Path, checkpoint: int) -> tuple[TrainConfig, Any, Any, int]:
    """A finished or interrupted run: its settings, its `Agent` (a `Glam` where that is the language model) and a
    checkpoint's state."""
    config = configs.load_config(TrainConfig, folder / "config.json")
    agent = make_agent(config.glam)
    state = agent.learner().init(jax.random.key(config.run.seed))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    with Checkpoints(folder, config=config, read_only=True) as checkpoints:
        state, update = checkpoints.restore(like, None if checkpoint < 0 else checkpoint)
    return config, agent, state, update


def evaluate(
    folder: tyro.conf.Positional[Path],
    episodes: int = 1000,
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
) -> None:
    """Play held-out episodes with a run's checkpoint: greedy and sampled, per task, with 95% intervals.

    Args:
        folder: The run's folder, `runs/NAME`.
        episodes: Episodes for each way of acting.
        checkpoint: Which checkpoint, by its update; -1: the newest.
        seed: Seed of the episodes.
        gif: Also write `episode.gif` into the folder.
    """
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"there is no run in {folder}: it has no config.json")
    config, agent, state, update = _load_run(folder, checkpoint)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    play = _evaluation(agent, episodes)
    found = {name: play(state, key, greedy) for name, greedy in (("sampled", False), ("greedy", True))}
    print(f"{folder}, checkpoint of update {update}, {config.glam.env}, {episodes} episodes each")
    print(_table(found, _tasks(agent)))
    written = folder / f"eval-{update}.json"
    configs.save_config({"update": update, "env": config.glam.env, "seed": seed, **found}, written)
    if gif:
        _write_gif(agent, state, key, folder)


ESTIMATES = {"estimate": "estimated beforehand", "brier": "Brier score", "calibration_error": "calibration error"}
"""How `_table` calls what `calibration` found."""


def _table(found: Mapping[str, Mapping[str, float]], tasks: Sequence[str]) -> str:
    """Success by row of `found` and by task, with intervals; below each, how it was estimated beforehand."""
    columns = ["", *(tasks if len(tasks) > 1 else ())]
    header = ["success", "all" if len(tasks) > 1 else tasks[0], *columns[1:]]
    rows = [header]
    for name, values in found.items():
        cells = [name]
        for task in columns:
            prefix = f"{task}/" if task else ""
            rate, low, high = (values[f"{prefix}{part}"] for part in ("success", "success_low", "success_high"))
            cells.append(f"{rate:.3f} [{low:.3f}, {high:.3f}]")
        rows.append(cells)
        for part, said in ESTIMATES.items():
            if part in values:
                guessed = (values[f"{task}/{part}" if task else part] for task in columns)
                rows.append([f"  {said}", *(f"{value:.3f}" for value in guessed)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _write_gif(agent: Agent, state: Any, key: jax.Array, folder: Path) -> None:
    """An episode of a handful of steps, if one of the first few is; else the last of them."""
    for i in range(5):
        frames, success = record_episode(
            agent.env, agent.env_params, agent.policy, state.params, state.frozen, jax.random.fold_in(key, i)
        )
        if len(frames) > 5:
            break
    write_episode(folder / "episode.gif", frames, success, agent.env.action_names)


def demo(
    steps: int = 0,
    episodes: int = 1000,
    max_seconds: float = 0.0,
    run: RunConfig = RunConfig(),  # noqa: B008 - frozen
) -> int:
    """Make a small Llama, give it a prior by imitation, improve it by PPO, and show what RL added. Downloads nothing.

    The prior is a stand-in for pre-training: the model imitates text demonstrations of an expert that often acts at
    random. It is saved as an ordinary model folder, and RL starts from that folder as from any other.

    Args:
        steps: Environment steps of RL; 0: as many as the demo needs.
        episodes: Held-out episodes for each evaluation, before and after.
        max_seconds: Time budget of RL in seconds; 0: none.
        run: How the run is kept.
    """
    run = replace(run, max_seconds=max_seconds or run.max_seconds)
    prior_then_ppo(DEMO, DEMO_CLONE, steps or DEMO_STEPS, run, episodes=episodes, command="glam-demo")
    return 0


def _blank(config: GlamConfig) -> GlamConfig:
    """What reads and imitates before there is a prior: the same model, all of it trained, writing actions as text."""
    return replace(config, tune="full", init="pretrained", policy="scoring")


def _read(glam_config: GlamConfig, config: ReadingConfig, run: RunConfig, folder: Path) -> RunResult:
    """Fine-tune a blank model on the reading lesson's texts."""
    blank = build(replace(_blank(glam_config), env=config.env))
    print(f"1/3  a small Llama reads {config.rows} texts about {config.env}", flush=True)
    rows = reading_rows(blank, config.rows, run.seed, invented=config.invented)
    data = pack(rows, max(len(row.tokens) for row in rows))
    model = blank.policy.model
    model = model.clone(config=replace(model.config, max_position_embeddings=2 * data.tokens.shape[1]))
    variables = jax.jit(model.init)(jax.random.key(run.seed), jax.numpy.zeros((1, 1), jax.numpy.int32))
    how = SFTConfig(
        config.batch_size, learning_rate=config.learning_rate, warmup=0.05, final_fraction=0.1, adam_b2=0.98
    )
    return run_training(
        make_sft(how, model, variables, data, config.updates),
        RunConfig(name="reading", out=str(folder), seed=run.seed, log_every=5, progress=run.progress),
        num_updates=config.updates,
        full_config=config,
        title="reading",
        shown={"loss": "loss"},
    )


def _imitate(
    glam_config: GlamConfig, clone_config: CloneConfig, run: RunConfig, folder: Path, reading: ReadingConfig
) -> list[RunResult]:
    """Clone the noisy expert, after the reading lesson if there is one, and write the model to `folder/prior`.

    **Returns:** the runs; where the last was stopped, nothing was written."""
    blank = build(_blank(glam_config))
    assert isinstance(blank.policy, ScoringPolicy)  # which `_blank` asks for
    done: list[RunResult] = []
    if reading.updates:
        done.append(_read(glam_config, reading, run, folder))
        if done[-1].stopped:
            return done
    print(f"1/3  a small Llama imitates a noisy expert in {glam_config.env}: the stand-in for pre-training", flush=True)
    base = done[-1].state.params if done else None
    done.append(
        run_training(
            make_clone(clone_config, blank.env, blank.env_params, blank.policy, base),
            RunConfig(name="imitation", out=str(folder), seed=run.seed, log_every=5, progress=run.progress),
            num_updates=clone_config.updates,
            full_config=clone_config,
            title="imitation",
            shown={"clone_loss": "loss", "clone_agreement": "agreement"},
        )
    )
    if not done[-1].stopped:
        save_prior(folder / "prior", blank, done[-1].state.params["params"])
    return done


def prior_then_ppo(
    glam_config: GlamConfig,
    clone_config: CloneConfig,
    steps: int,
    run: RunConfig,
    *,
    episodes: int = 1000,
    command: str = "glam",
    prior: str = "",
    reading: ReadingConfig = ReadingConfig(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Imitate, improve by PPO, and measure both: what `llmrl glam demo` and the experiments do.

    **Arguments:** `glam_config`, with the `embedded` model; `clone_config`; `steps` of RL; `run`; `episodes`, held
    out, for each evaluation; `command`, what an unnamed run is called after; `prior`, the folder of a model that was
    cloned before, to leave the imitation out; `reading`, a lesson before imitation.
    **Returns:** what `summary.json` says.
    """
    started = time.monotonic()
    folder = open_folder(run, command)
    lessons: list[RunResult] = []
    if run.resume and (folder / "prior").exists():
        prior = str(folder / "prior")
    if not prior:
        lessons = _imitate(glam_config, clone_config, run, folder, reading)
        if lessons[-1].stopped:
            print(f"Stopped in imitation, before RL; begin anew with another name ({folder} holds what was done).")
            return {"stopped": lessons[-1].stopped}
        prior = str(folder / "prior")
    print("2/3  PPO improves it: the base is frozen; LoRA adapters and a value head learn", flush=True)
    config = TrainConfig(preset="demo", glam=replace(glam_config, model=prior), steps=steps, run=run)
    agent = make_agent(config.glam)
    learner = agent.learner()
    key = jax.random.fold_in(jax.random.key(run.seed), HELD_OUT)
    judge = _evaluation(agent, episodes)
    judged: list[tuple[int, dict[str, float]]] = []

    def judge_same_episodes(state: Any, _: jax.Array) -> dict[str, float]:
        judged.append((int(state.update), judge(state, key)))
        return judged[-1][1]

    updates = _updates(learner, steps)
    result = run_training(
        learner,
        replace(run, eval_every=run.eval_every or updates),
        num_updates=updates,
        evaluate=judge_same_episodes,
        full_config=config,
        folder=folder,
        title="PPO",
    )
    if result.stopped.startswith("SIG"):
        again = f"--run.name {folder.name} --run.resume"
        print(f"The run stands at step {result.steps}; the same command goes on with {again}.")
        return {"stopped": result.stopped}
    print(f"3/3  {episodes} held-out episodes, before and after", flush=True)
    # a resumed run has not seen its own beginning: made anew, it is the same
    begun = None if judged and judged[0][0] == 0 else learner.init(jax.random.key(run.seed))
    before = judged[0][1] if begun is None else judge(begun, key)
    after = judged[-1][1] if judged and judged[-1][0] == result.update else judge(result.state, key)
    greedy = judge(result.state, key, greedy=True)
    _write_gif(agent, result.state, jax.random.fold_in(key, 1), folder)
    taught = "reading, then imitation" if reading.updates else "imitation"
    summary = {
        "env": glam_config.env,
        "prior": f"{taught} of a noisy expert, the stand-in for pre-training",
        "before": before,
        "after": after,
        "after_greedy": greedy,
        "steps": result.steps,
        "steps_per_second": round(result.steps_per_second, 1),
        "rl_seconds": round(result.seconds, 1),
        "imitation_seconds": round(sum(lesson.seconds for lesson in lessons), 1) if lessons else None,
        "compile_seconds": round(result.compile_seconds + sum(lesson.compile_seconds for lesson in lessons), 1),
        "total_seconds": round(time.monotonic() - started, 1),
        "stopped": result.stopped,
    }
    write_summary(folder, summary)
    rows = {"before RL": before, "after RL": after, "after RL, greedy": greedy}
    print(_table(rows, _tasks(agent)))
    print(f"{result.steps} steps of RL at {result.steps_per_second:.0f} steps/s; pictures and numbers are in {folder}")
    return summary


COMMANDS = {
    "demo": demo,
    "train": _train_command,
    "clone": clone,
    "eval": evaluate,
    "test": test,
    "compare": compare,
    "export": export,
}
