"""Training runs of GLAM and its baselines: the implementation of `llmrl glam train` and `llmrl glam eval`."""

from __future__ import annotations

from pathlib import Path

import jax

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import COUNT, check_seed, in_interval
from llmrl_jax.core.files import check_writable
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.run.report import as_json
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.config import EMBEDDED
from llmrl_jax.systems.glam.runs import (
    HELD_OUT,
    evaluation,
    load_run,
    random_evaluation,
    success_table,
    task_names,
    updates_of,
    write_gif,
)
from llmrl_jax.systems.glam.settings import TrainConfig


def train(config: TrainConfig) -> RunResult:
    """Train an agent, and write the run to its folder.

    **Returns:** the result of the run. **Raises:** what `make_agent` and `llmrl_jax.run.loop.train` raise.
    """
    glam = config.glam
    if (glam.agent, glam.model, glam.tune) == ("llm", EMBEDDED, "lora"):
        print(
            "note: the embedded model is drawn at random, and adapters hardly make up for that: give --model, a folder "
            "or hub id, or --tune full"
        )
    agent = make_agent(config.glam)
    learner = agent.learner()
    with opened(config.run, "glam") as folder:
        result = run_training(
            learner,
            config.run,
            num_updates=updates_of(learner, config.steps),
            evaluate=evaluation(agent, config.eval_episodes) if config.run.eval_every else None,
            full_config=config,
            folder=folder,
        )
        write_summary(folder, {"steps": result.steps, **result.facts()})
    print(f"{result.steps} steps at {result.steps_per_second:.0f} steps/s; everything is in {result.folder}")
    return result


def evaluate(
    folder: Path,
    *,
    episodes: int = 1000,
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> dict[str, dict[str, float]]:
    """Evaluate a run's checkpoint on held-out episodes beside random actions, print the results, and write
    `eval-UPDATE.json`.

    **Arguments:** `folder`, the run's; `episodes`, each for sampled, greedy and random actions; `checkpoint`, by update
    number (-1: newest); `seed`, of the episodes; `gif`, whether to also write an episode; `json`, whether to print the
    results as JSON.
    **Returns:** success, return and length for `sampled`, `greedy` and `random` actions.
    **Raises:** `ValueError` for numbers out of range; what `load_run` raises.
    """
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    check_writable(folder, "the run's folder", folder=True)
    config, agent, state, update = load_run(folder, checkpoint)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    play = evaluation(agent, episodes)
    summaries = {name: play(state, key, greedy) for name, greedy in (("sampled", False), ("greedy", True))}
    summaries["random"] = random_evaluation(agent, episodes, key)
    written = folder / f"eval-{update}.json"
    results = {"update": update, "env": config.glam.env, "seed": seed, **summaries}
    configs.save_config(results, written)
    film = write_gif(agent, state, key, folder) if gif else None
    if json:
        files = {"file": written} | ({"gif": film} if film else {})
        print(as_json.text({"run": folder, "episodes": episodes, **results, **files}))
        return summaries
    print(f"{folder}, checkpoint of update {update}, {config.glam.env}, {episodes} episodes each")
    print(success_table(summaries, task_names(agent)))
    print(f"The results are in {written}")
    if film:
        print(f"The episode is in {film}")
    return summaries
