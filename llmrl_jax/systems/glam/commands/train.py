"""`llmrl glam train`, `eval` and `demo`."""

from __future__ import annotations

from pathlib import Path

import tyro

from llmrl_jax.options.command import Get, command
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam import presets
from llmrl_jax.systems.glam.settings import TrainConfig


PRESET_HELP = """Starting point: `glam` (published values: all weights, learning rate 1e-6), `glam-lora` (adapters,
1e-4; `--tune lora` or `full` selects between these two), `glam-code` (with the released code's quirks), `demo`; the
ablations `aflan`, `npae`, `npa`, `npe`; the baselines `symbolic` and `drrn`. Where none is named, that of the agent."""


def start(get: Get) -> TrainConfig:
    """The settings of the given preset, or of the agent's default preset. Of the published values, those for the given
    kind of tuning."""
    name = get("preset") or presets.OF_AGENT.get(get("agent") or "llm", "glam")
    if name in presets.OF_TUNING.values():
        name = presets.OF_TUNING.get(get("tune") or "", name)
    return TrainConfig(glam=presets.preset(name))


FREQUENT = (
    *("preset", "env", "model", "agent", "tune", "steps", "seeds", "ppo.num-envs", "ppo.learning-rate"),
    *("num-actions", "mesh", "config", "run.name", "run.seed", "run.resume", "run.eval-every", "run.checkpoint-every"),
)


@command(TrainConfig, start=start, preset="glam", preset_help=PRESET_HELP, frequent=FREQUENT)
def train(config: TrainConfig) -> int:
    """Train a language model in BabyAI-Text by PPO, or a baseline by its own algorithm; flags override the preset.

    `--agent symbolic` and `--agent drrn` start from the published settings of these baselines. `--run.resume runs/NAME`
    continues a run with its own settings."""
    from llmrl_jax.systems.glam import training

    training.train(config)
    return 0


def evaluate(
    folder: tyro.conf.Positional[Path],
    episodes: int = 1000,
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> None:
    """Evaluate a run's checkpoint on held-out episodes: greedy and sampled, per task, with 95% intervals.

    Args:
        folder: The run's folder, `runs/NAME`.
        episodes: Episodes each for sampled and greedy actions.
        checkpoint: Checkpoint, by update number; -1: the newest.
        seed: Seed of the episodes.
        gif: Also write `episode.gif` into the folder.
        json: Print the results as JSON.
    """
    from llmrl_jax.systems.glam import training

    training.evaluate(folder, episodes=episodes, checkpoint=checkpoint, seed=seed, gif=gif, json=json)


def demo(
    steps: int = presets.DEMO_STEPS,
    episodes: int = 1000,
    run: RunConfig = RunConfig(),  # noqa: B008 - frozen
) -> int:
    """Create a small Llama, train a prior by imitation, improve it by PPO, and report the gain from RL. Downloads
    nothing.

    The prior is a stand-in for pre-training: the model imitates text demonstrations of an expert that often acts at
    random. It is saved as an ordinary model folder, from which RL starts.

    Args:
        steps: Number of environment steps of RL.
        episodes: Held-out episodes for each evaluation, before and after.
        run: Settings of the run's folder, checkpoints and logs.
    """
    from llmrl_jax.core.checks import STEPS, in_interval
    from llmrl_jax.run.folder import check_folder
    from llmrl_jax.systems.glam.demo import prior_then_ppo

    check_folder(run)
    in_interval("steps", steps, STEPS)
    prior_then_ppo(presets.demo(steps), presets.DEMO_PRIOR, steps, run, episodes=episodes, command="glam-demo")
    return 0
