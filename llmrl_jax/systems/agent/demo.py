"""Imitation of an expert that writes, then RL: the workflow of `llmrl agent demo`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.run.folder import begin, check_folder, opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.agent.build import build
from llmrl_jax.systems.agent.clone import lesson, write_model
from llmrl_jax.systems.agent.config import DEMO_CLONE, CloneConfig, TrainConfig
from llmrl_jax.systems.agent.train import conversation, evaluators, make, summarise
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.curriculum import continuation, train_lesson


def demo(config: TrainConfig, clone: CloneConfig = DEMO_CLONE) -> dict[str, Any]:
    """Teach a small Llama to write a thought and an action, improve it by RL, and evaluate both on the same held-out
    episodes. With `run.resume` it continues where it stopped.

    **Arguments:** `config`, with the `embedded` model, e.g. `demo_config(steps)`; `clone`, the imitation before RL.
    **Returns:** the results, as in `summary.json`; those of a run that a signal stopped have `stopped` only.
    """
    started = time.monotonic()
    check_folder(config.run)
    untrained = build(replace(config.agent, tune="full"))
    make(config)  # raises errors before anything is written
    with opened(config.run, "agent-demo") as folder:
        full = replace(config, agent=replace(config.agent, model=str(folder / "model")))
        begin(folder, full)
        _note(folder, clone)
        seconds = None
        if not (folder / "model").exists():
            print(f"1/3  a small Llama imitates a noisy expert that thinks in {config.agent.env}", flush=True)
            learner, updates = lesson(untrained, clone, config.run.seed)
            taught = train_lesson("imitation", learner, clone, updates, config.run, folder, ("loss",))
            if taught.stopped:
                print(f"Stopped before RL; {continuation(folder)}.")
                return {"stopped": taught.stopped}
            write_model(untrained, taught.state, folder)
            seconds = round(taught.seconds, 1)
        return _improve(full, folder, seconds, started)


def _note(folder: Path, clone: CloneConfig) -> None:
    """Note the settings of the imitation, which the run's own settings do not have. **Raises:** `ValueError` if the run
    was begun with others."""
    path, values = folder / "lessons.json", configs.to_json({"imitation": configs.identity(clone)})
    if path.exists() and (changed := configs.differences(configs.read_json(path), values)):
        raise ValueError(f"the run {folder} was begun with another imitation: {'; '.join(changed)} (saved -> now)")
    write_whole(path, json.dumps(values, indent=1) + "\n")


def _improve(config: TrainConfig, folder: Path, imitation: float | None, started: float) -> dict[str, Any]:
    """RL, evaluated on the same held-out episodes before and after. **Returns:** as `demo`."""
    print(f"2/3  {config.algo} improves it: the base is frozen; LoRA adapters and a critic learn", flush=True)
    agent = build(config.agent)
    x = make(config, agent)
    tokens = (config.ppo if config.algo.endswith("ppo") else config.group).episode_tokens
    evaluator = evaluators(agent, tokens)
    key, episodes = x.key(config.run.seed), config.eval_episodes
    results: dict[str, Any] = {}

    def play(state: Any, greedy: bool = False) -> dict[str, float]:
        return summarise(evaluator(episodes)(state.params, state.frozen, key, greedy))

    def facts(result: RunResult) -> dict[str, Any]:
        if result.stopped.startswith("SIG"):
            print(f"The run stands at token {result.steps}; {continuation(folder)}.")
            results["stopped"] = result.stopped
            return results
        print(f"3/3  {episodes} held-out episodes, before and after", flush=True)
        rows: dict[str, Any] = {"random": x.baseline(result.state, key, episodes)["random"]} if x.baseline else {}
        # the weights before RL are drawn again, since the run has others by now
        rows |= {"before": play(x.learner.init(jax.random.key(config.run.seed)))}
        last = evaluator(episodes)(result.state.params, result.state.frozen, key)
        rows |= {"after": summarise(last), "after_greedy": play(result.state, greedy=True)}
        results.update(
            {
                "env": config.agent.env,
                **rows,
                "steps": result.steps,
                "tokens_per_second": round(result.steps_per_second, 1),
                "rl_seconds": round(result.seconds, 1),
                "imitation_seconds": imitation,
                "compile_seconds": round(result.compile_seconds, 1),
                "total_seconds": round(time.monotonic() - started, 1),
                "stopped": result.stopped,
            }
        )
        text = conversation(agent, last)
        write_whole(folder / "episode.txt", text + "\n")
        names = {
            "random": "random actions",
            "before": "before RL",
            "after": "after RL",
            "after_greedy": "after, greedy",
        }
        print(x.report({names[name]: row for name, row in rows.items()}, episodes))
        print(f"An episode, in {folder / 'episode.txt'}:\n{text}")
        return results

    experiments.train(x, folder, facts=facts, at_end=False, again=continuation(folder))
    return results
