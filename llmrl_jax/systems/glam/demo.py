"""A prior by imitation, then PPO: the workflow of `llmrl glam demo` and of the experiments."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core.checks import COUNT, STEPS, in_interval
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import begin, check_folder, opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.glam.build import Glam, build, make_agent
from llmrl_jax.systems.glam.config import DEMO, GlamConfig, TrainConfig
from llmrl_jax.systems.glam.eval import evaluation, random_evaluation, success_table, task_names, write_gif
from llmrl_jax.systems.glam.train import make
from llmrl_jax.workflows import curriculum, experiment as experiments
from llmrl_jax.workflows.curriculum import PriorConfig, ReadingConfig


DEMO_PRIOR = PriorConfig(updates=60, batch_size=64, noise=0.65, seen_only=True)
"""The demo's prior: few updates and a noisy expert leave room for improvement by RL. The expert looks for a goal out of
view by turning left, which one observation can teach; a choice of side by an unseen goal cannot be learnt."""


def demo_config(steps: int) -> GlamConfig:
    """`DEMO`, learning fast and ending with a sharp policy in `steps` environment steps.

    With one observation, a policy that prefers a different turn in different views can turn back and forth forever if
    actions are greedy. A short horizon makes such detours cost more, and a learning rate that falls to zero, without an
    entropy bonus, lets the policy decide.
    """
    sizes = DEMO.ppo
    updates = max(1, -(-steps // (sizes.num_envs * sizes.num_steps)))
    ppo = replace(sizes, gamma=0.9, learning_rate=3e-3, schedule="linear", schedule_updates=updates, entropy_coef=0.0)
    return replace(DEMO, ppo=ppo)


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
    **Returns:** the results, as in `summary.json`; those of a run that a signal stopped have `stopped` only.
    """
    started = time.monotonic()
    check_folder(run)
    in_interval("steps", steps, STEPS)
    in_interval("episodes", episodes, COUNT)

    def untrained(env: str) -> Glam:
        """The model with all weights trained and actions scored as text, for reading and imitation."""
        return build(replace(glam_config, env=env, tune="full", init="pretrained", policy="scoring"))

    if not prior:
        glam = build(glam_config)
        glam.learner()  # raises errors before anything is written
        if reading.updates:
            curriculum.check_words(glam_config.env, glam, reading.env, untrained(reading.env))
    with opened(run, command) as folder:
        model = prior or str(folder / "prior")
        config = TrainConfig(glam=replace(glam_config, model=model), steps=steps, run=run)
        begin(folder, config)
        lessons: list[RunResult] = []
        description = f"the model in {prior}"
        if not prior:
            curriculum.note_lessons(folder, reading, prior_config)
            if not (folder / "prior").exists():
                lessons = curriculum.imitate(untrained, glam_config.env, prior_config, run, folder, reading)
                if lessons[-1].stopped:
                    print(f"Stopped in {lessons[-1].folder.name}, before RL; {curriculum.continuation(folder)}.")
                    return {"stopped": lessons[-1].stopped}
            names = [name for name in ("associations", "goals") if getattr(reading, name)]
            names.append("reading, then imitation" if reading.updates else "imitation")
            description = f"{', '.join(names)} of a noisy expert, the stand-in for pre-training"
        return _improve(config, folder, lessons, {"env": glam_config.env, "prior": description}, episodes, started)


def _improve(
    config: TrainConfig, folder: Path, lessons: list[RunResult], setup: dict[str, Any], episodes: int, started: float
) -> dict[str, Any]:
    """PPO, evaluated on the same held-out episodes every time. **Returns:** as `prior_then_ppo`."""
    print("2/3  PPO improves it: the base is frozen; LoRA adapters and a value head learn", flush=True)
    agent = make_agent(config.glam)
    x, play = make(config, agent), evaluation(agent, episodes)
    key, continuation = x.key(config.run.seed), curriculum.continuation(folder)
    evaluations: dict[int, dict[str, float]] = {}
    summary: dict[str, Any] = {}

    def evaluate(state: Any, _: jax.Array) -> dict[str, float]:
        evaluations[int(state.update)] = results = play(state, key)
        return results

    def facts(result: RunResult) -> dict[str, Any]:
        """The summary, unless a signal stopped the run."""
        if result.stopped.startswith("SIG"):
            print(f"The run stands at step {result.steps}; {continuation}.")
            summary["stopped"] = result.stopped
            return summary
        print(f"3/3  {episodes} held-out episodes, before and after", flush=True)
        state = result.state
        random = random_evaluation(agent, episodes, key)
        # a resumed run has no initial evaluation: the same initial weights are drawn again
        before = evaluations.get(0) or play(x.learner.init(jax.random.key(config.run.seed)), key)
        after = evaluations.get(result.update) or play(state, key)
        greedy = play(state, key, greedy=True)
        write_gif(agent, state.params, state.frozen, jax.random.fold_in(key, 1), folder / "episode.gif")
        compiling = result.compile_seconds + sum(lesson.compile_seconds for lesson in lessons)
        summary.update(
            {
                **setup,
                "random": random,
                "before": before,
                "after": after,
                "after_greedy": greedy,
                "steps": result.steps,
                "steps_per_second": round(result.steps_per_second, 1),
                "rl_seconds": round(result.seconds, 1),
                "imitation_seconds": round(sum(lesson.seconds for lesson in lessons), 1) if lessons else None,
                "compile_seconds": round(compiling, 1),
                "total_seconds": round(time.monotonic() - started, 1),
                "stopped": result.stopped,
            }
        )
        rows = {"random actions": random, "before RL": before, "after RL": after, "after RL, greedy": greedy}
        print(success_table(rows, task_names(agent)))
        return summary

    experiments.train(
        replace(x, during=evaluate, at_ends=True, title="PPO"), folder, facts=facts, at_end=False, again=continuation
    )
    return summary
