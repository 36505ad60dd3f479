"""A prior by reading and imitation, then PPO: the workflow of `llmrl glam demo` and of the experiments."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import COUNT, STEPS, in_interval
from llmrl_jax.core.files import replacing, write_whole
from llmrl_jax.run.checkpoint import CheckpointError
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import begin, check_folder, opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.associations import association_rows
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prior import PriorConfig, make_prior, save_prior
from llmrl_jax.systems.glam.reading import ReadingConfig, reading_rows
from llmrl_jax.systems.glam.runs import (
    HELD_OUT,
    evaluation,
    random_evaluation,
    success_table,
    task_names,
    updates_of,
    write_gif,
)
from llmrl_jax.systems.glam.settings import TrainConfig
from llmrl_jax.tuning import Example, SFTConfig, make_sft, pack


ALONE = 0.9
"""Fraction of the rows of the lesson of goals that ask for their goal alone; the others keep what was learned."""


def _blank(config: GlamConfig) -> GlamConfig:
    """The configuration for reading and imitation: the same model with all weights trained and actions scored as
    text."""
    return replace(config, tune="full", init="pretrained", policy="scoring")


def _lesson(name: str, run: RunConfig, folder: Path) -> RunConfig:
    """Run settings of a training phase before RL: a resumable run inside the run's folder. Gaps in its log, which only
    its curve is drawn from, are accepted: `--run.resume-from` means the run's own checkpoints."""
    begun = (folder / name / "config.json").exists()
    return RunConfig(
        name=name,
        out=str(folder),
        seed=run.seed,
        log_every=5,
        progress=run.progress,
        resume=begun,
        accept_gaps=True,
    )


@contextlib.contextmanager
def _lessons_remedy(folder: Path) -> Iterator[None]:
    """Give a damaged checkpoint of a lesson, in `folder`, a remedy that the command has: its flags do not choose a
    lesson's checkpoint."""
    try:
        yield
    except CheckpointError as error:
        if error.__cause__ is None:  # not damaged
            raise
        raise CheckpointError(
            f"a checkpoint in {folder} is damaged ({error.__cause__}): delete that folder, so that this lesson begins "
            "again"
        ) from error


def _again(folder: Path) -> str:
    return f"the same command continues it with --run.resume {folder}"


def _read(glam_config: GlamConfig, config: ReadingConfig, run: RunConfig, folder: Path) -> list[RunResult]:
    """Fine-tune a randomly initialised model on associations and goals, if configured, and on the texts of the reading
    lesson.

    **Returns:** the results of the lessons; of fewer if one was stopped."""
    blank = build(replace(_blank(glam_config), env=config.env))
    done: list[RunResult] = []

    def lesson(name: str, rows: list[Example], updates: int, batch_size: int, final: float) -> None:
        """A lesson, from the weights that the last one left."""
        data = pack(rows, max(len(row.tokens) for row in rows))
        model = blank.policy.model
        model = model.clone(config=replace(model.config, max_position_embeddings=2 * data.tokens.shape[1]))
        variables = dict(jax.jit(model.init)(jax.random.key(run.seed), jax.numpy.zeros((1, 1), jax.numpy.int32)))
        if done:
            variables["params"] = done[-1].state.params
        how = SFTConfig(batch_size, learning_rate=config.learning_rate, warmup=0.05, final_fraction=final, adam_b2=0.98)
        with _lessons_remedy(folder / name):
            result = run_training(
                make_sft(how, model, variables, data, updates, take=True),
                _lesson(name, run, folder),
                num_updates=updates,
                full_config=config,
                title=name,
                shown={"loss": "loss"},
                again=_again(folder),
            )
        done.append(result)

    tokenizer: Any = blank.tokenizer
    for name, updates, batch_size, alone in (
        ("associations", config.associations, 2 * config.batch_size, 0.0),
        ("goals", config.goals, config.batch_size, ALONE),
    ):
        if updates:
            print(f"1/3  a small Llama learns {config.rows} rows of random tokens: {name}", flush=True)
            lesson(name, association_rows(tokenizer, config.rows, run.seed, alone), updates, batch_size, 0.3)
            if done[-1].stopped:
                return done
    print(f"1/3  a small Llama reads {config.rows} texts about {config.env}", flush=True)
    rows = reading_rows(
        blank, config.rows, run.seed, invented=config.invented, questions=config.questions, goal_only=config.goal_only
    )
    lesson("reading", rows, config.updates, config.batch_size, 0.1)
    return done


def imitate(
    glam_config: GlamConfig, prior_config: PriorConfig, run: RunConfig, folder: Path, reading: ReadingConfig
) -> list[RunResult]:
    """Clone the noisy expert, after the reading lesson if configured, and write the model to `folder/prior`.

    **Returns:** the results of the runs without their states; if the last run was stopped, no model is written."""
    blank = build(_blank(glam_config))
    assert isinstance(blank.policy, ScoringPolicy)  # ensured by `_blank`
    done: list[RunResult] = []
    if reading.updates:
        done += _read(glam_config, reading, run, folder)
        if done[-1].stopped:
            return [replace(lesson, state=None) for lesson in done]
    print(f"1/3  a small Llama imitates a noisy expert in {glam_config.env}: the stand-in for pre-training", flush=True)
    base = done[-1].state.params if done else None
    with _lessons_remedy(folder / "imitation"):
        done.append(
            run_training(
                make_prior(prior_config, blank.env, blank.env_params, blank.policy, base),
                _lesson("imitation", run, folder),
                num_updates=prior_config.updates,
                full_config=prior_config,
                title="imitation",
                shown={"loss": "loss", "agreement": "agreement"},
                again=_again(folder),
            )
        )
    if not done[-1].stopped:
        with replacing(folder / "prior") as draft:
            save_prior(draft, blank, done[-1].state.params["params"])
    return [replace(lesson, state=None) for lesson in done]


def prior_then_ppo(
    glam_config: GlamConfig,
    prior_config: PriorConfig,
    steps: int,
    run: RunConfig,
    *,
    episodes: int = 1000,
    command: str = "glam",
    prior: str = "",
    reading: ReadingConfig = ReadingConfig(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Imitate, improve by PPO, and evaluate both, as in `llmrl glam demo` and the experiments. With `run.resume` it
    continues where it stopped.

    **Arguments:** `glam_config`, with the `embedded` model; `prior_config`; `steps` of RL; `run`; `episodes`, held-out
    episodes per evaluation; `command`, prefix of the name of an unnamed run; `prior`, folder of an existing model,
    which replaces imitation; `reading`, a lesson before imitation.
    **Returns:** the contents of `summary.json`.
    """
    started = time.monotonic()
    check_folder(run)
    in_interval("steps", steps, STEPS)
    in_interval("episodes", episodes, COUNT)
    if not prior:
        made = build(glam_config)
        made.learner()  # raises errors before anything is written
        if reading.updates:
            _check_words(made, reading.env)
    with opened(run, command) as folder:
        model = prior or str(folder / "prior")
        config = TrainConfig(glam=replace(glam_config, model=model), steps=steps, run=run)
        begin(folder, config)
        if not prior:
            _keep_lessons(folder, {"reading": reading, "imitation": prior_config})
        lessons: list[RunResult] = []
        if not prior and not (folder / "prior").exists():
            lessons = imitate(glam_config, prior_config, run, folder, reading)
            if lessons[-1].stopped:
                print(f"Stopped in {lessons[-1].folder.name}, before RL; {_again(folder)}.")
                return {"stopped": lessons[-1].stopped}
        names = [name for name in ("associations", "goals") if getattr(reading, name)]
        lesson = ", ".join([*names, "reading, then imitation" if reading.updates else "imitation"])
        said = f"the model in {prior}" if prior else f"{lesson} of a noisy expert, the stand-in for pre-training"
        return _rl(config, folder, lessons, said, episodes, started)


def _check_words(made: Any, reading_env: str) -> None:
    """**Raises** `ValueError` if the words of the reading lesson have other numbers than those of training."""
    tokenizers: list[Any] = [made.tokenizer, build(replace(made.config, env=reading_env)).tokenizer]
    own, other = (one.backend.get_vocab() for one in tokenizers)
    if own != other:
        odd = sorted(set(own) ^ set(other))
        raise ValueError(
            f"the reading lesson's environment {reading_env} has other words than {made.config.env}"
            f"{f' ({odd[0]!r} is in one of them only)' if odd else ''}, so that numbers of tokens would mean others: "
            "give the lesson an environment of the same language and description"
        )


def _keep_lessons(folder: Path, lessons: dict[str, Any]) -> None:
    """Note the settings of the lessons, which the run's own settings do not have. **Raises:** `ValueError` if the run
    was begun with others."""
    path = folder / "lessons.json"
    now = {f"{name}.{option}": x for name, one in lessons.items() for option, x in configs.identity(one).items()}
    if path.exists() and (changed := configs.differences(configs.read_json(path), configs.to_json(now))):
        raise ValueError(
            f"the run {folder} was begun with other lessons: {'; '.join(changed)} (saved -> now); put these back, or "
            "choose another name"
        )
    write_whole(path, json.dumps(configs.to_json(now), indent=1) + "\n")


def _rl(
    config: TrainConfig, folder: Path, lessons: list[RunResult], prior: str, episodes: int, started: float
) -> dict[str, Any]:
    """What follows the prior. **Returns:** as `prior_then_ppo`."""
    print("2/3  PPO improves it: the base is frozen; LoRA adapters and a value head learn", flush=True)
    agent = make_agent(config.glam)
    result, judged = _improve(agent, config, folder, episodes)
    if result.stopped.startswith("SIG"):
        print(f"The run stands at step {result.steps}; {_again(folder)}.")
        return {"stopped": result.stopped}
    print(f"3/3  {episodes} held-out episodes, before and after", flush=True)
    write_gif(agent, result.state, jax.random.fold_in(_held_out_key(config.run), 1), folder / "episode.gif")
    summary = {
        "env": config.glam.env,
        "prior": prior,
        **judged,
        "steps": result.steps,
        "steps_per_second": round(result.steps_per_second, 1),
        "rl_seconds": round(result.seconds, 1),
        "imitation_seconds": round(sum(lesson.seconds for lesson in lessons), 1) if lessons else None,
        "compile_seconds": round(result.compile_seconds + sum(lesson.compile_seconds for lesson in lessons), 1),
        "total_seconds": round(time.monotonic() - started, 1),
        "stopped": result.stopped,
    }
    write_summary(folder, summary)
    rows = {
        "random actions": judged["random"],
        "before RL": judged["before"],
        "after RL": judged["after"],
        "after RL, greedy": judged["after_greedy"],
    }
    print(success_table(rows, task_names(agent)))
    print(f"{result.steps} steps of RL at {result.steps_per_second:.0f} steps/s; pictures and numbers are in {folder}")
    return summary


def _held_out_key(run: RunConfig) -> jax.Array:
    return jax.random.fold_in(jax.random.key(run.seed), HELD_OUT)


def _improve(
    agent: Any, config: TrainConfig, folder: Path, episodes: int
) -> tuple[RunResult, dict[str, dict[str, float]]]:
    """PPO, evaluated on the same held-out episodes every time.

    **Returns:** the result of the run, and the evaluations of random actions, before, after, and after with greedy
    actions; no evaluations if a signal stopped it."""
    run, learner = config.run, agent.learner()
    key, judge = _held_out_key(run), evaluation(agent, episodes)
    judged: dict[int, dict[str, float]] = {}

    def judge_same_episodes(state: Any, _: jax.Array) -> dict[str, float]:
        judged[int(state.update)] = summary = judge(state, key)
        return summary

    updates = updates_of(learner, config.steps)
    result = run_training(
        learner,
        replace(run, eval_every=run.eval_every or updates),
        num_updates=updates,
        evaluate=judge_same_episodes,
        full_config=config,
        folder=folder,
        title="PPO",
        again=_again(folder),
    )
    if result.stopped.startswith("SIG"):
        return result, {}
    # a resumed run has no initial evaluation: the same initial weights are drawn again
    before = judged[0] if 0 in judged else judge(learner.init(jax.random.key(run.seed)), key)
    after = judged[result.update] if result.update in judged else judge(result.state, key)
    chance = random_evaluation(agent, episodes, key)
    after_greedy = judge(result.state, key, greedy=True)
    return result, {"random": chance, "before": before, "after": after, "after_greedy": after_greedy}
