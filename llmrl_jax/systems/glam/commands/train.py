"""`llmrl glam train`, `eval` and `demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import tyro

from llmrl_jax.core import config as configs
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.flags import flag, resumed
from llmrl_jax.run.folder import write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.config import EMBEDDED
from llmrl_jax.systems.glam.demo import prior_then_ppo
from llmrl_jax.systems.glam.presets import DEMO, DEMO_CLONE, DEMO_STEPS, OF_AGENT, preset
from llmrl_jax.systems.glam.runs import (
    HELD_OUT,
    TrainConfig,
    evaluation,
    load_run,
    success_table,
    task_names,
    updates_of,
    write_gif,
)


def _train(config: TrainConfig) -> int:
    glam = config.glam
    if (glam.agent, glam.model, glam.tune) == ("llm", EMBEDDED, "lora"):
        print(
            "note: the embedded model is drawn at random, and adapters hardly make up for that: give --model, a folder "
            "or hub id, or --tune full"
        )
    agent = make_agent(config.glam)
    learner = agent.learner()
    evaluate = evaluation(agent, config.eval_episodes) if config.run.eval_every else None
    result = run_training(
        learner,
        config.run,
        num_updates=updates_of(learner, config.steps),
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


def _prepare_train(args: Sequence[str]) -> Callable[..., int]:
    """`train` with the defaults that the command line asks for: a preset's, or those of the run to resume."""
    chosen = flag(args, "--preset") or OF_AGENT.get(flag(args, "--agent") or "llm", "glam")
    default = resumed(TrainConfig, args) or TrainConfig(preset=chosen, glam=preset(chosen))

    def run(config: Annotated[TrainConfig, tyro.conf.arg(name="")] = default) -> int:
        return _train(config)

    run.__doc__ = train.__doc__
    return run


def train() -> int:
    """Train a language model in BabyAI-Text by PPO, or a baseline by its own; any flag wins over the preset.

    `--agent symbolic` and `--agent drrn` begin with the published settings of these baselines.

    With `--run.name NAME --run.resume` the settings of that run are taken from its own config.json."""
    raise AssertionError("prepared by _prepare_train")


train.prepare = _prepare_train  # type: ignore[attr-defined]


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
    config, agent, state, update = load_run(folder, checkpoint)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    play = evaluation(agent, episodes)
    found = {name: play(state, key, greedy) for name, greedy in (("sampled", False), ("greedy", True))}
    print(f"{folder}, checkpoint of update {update}, {config.glam.env}, {episodes} episodes each")
    print(success_table(found, task_names(agent)))
    written = folder / f"eval-{update}.json"
    configs.save_config({"update": update, "env": config.glam.env, "seed": seed, **found}, written)
    if gif:
        write_gif(agent, state, key, folder)


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
