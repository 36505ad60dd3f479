"""GLAM: a language model as the policy, improved by online RL; and its baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from llmrl_jax.options.command import Get, command
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam import published
from llmrl_jax.systems.glam.config import (
    CLONE_PRESETS,
    DEMO_STEPS,
    OF_AGENT,
    OF_TUNING,
    CloneRun,
    PostTestConfig,
    TrainConfig,
    preset,
)


TRAIN_PRESETS = """Starting point: `glam` (published values: all weights, learning rate 1e-6), `glam-lora` (adapters,
1e-4; `--tune lora` or `full` selects between these two), `glam-code` (with the released code's quirks), `demo`; the
ablations `aflan`, `npae`, `npa`, `npe`; the baselines `symbolic` and `drrn`. Where none is named, that of the agent."""


def start_train(get: Get) -> TrainConfig:
    """The settings of the given preset, or of the agent's default preset. Of the published values, those for the given
    kind of tuning."""
    name = get("preset") or OF_AGENT.get(get("agent") or "llm", "glam")
    if name in OF_TUNING.values():
        name = OF_TUNING.get(get("tune") or "", name)
    return TrainConfig(glam=preset(name))


@command(
    TrainConfig,
    start=start_train,
    preset="glam",
    preset_help=TRAIN_PRESETS,
    frequent=(
        *("preset", "env", "model", "agent", "tune", "steps", "seeds", "ppo.num-envs", "ppo.learning-rate"),
        *("num-actions", "mesh", "config", "run.name", "run.seed", "run.resume", "run.eval-every"),
        "run.checkpoint-every",
    ),
    published=published.TRAIN,
)
def train(config: TrainConfig) -> int:
    """Train a language model in BabyAI-Text by PPO, or a baseline by its own algorithm; flags override the preset.

    `--agent symbolic` and `--agent drrn` start from the published settings of these baselines. `--run.resume runs/NAME`
    continues a run with its own settings."""
    from llmrl_jax.systems.glam import train

    train.train(config)
    return 0


CLONING_PRESETS = """Starting point: `bc` (published values, every weight), `bc-lora` (the same with adapters),
`bc-demo` (small)."""


def start_clone(get: Get) -> CloneRun:
    """The settings of a preset."""
    glam, clone = preset(get("preset") or "bc", CLONE_PRESETS)
    return CloneRun(glam=glam, clone=clone)


@command(
    CloneRun,
    start=start_clone,
    preset="bc",
    preset_help=CLONING_PRESETS,
    frequent=(
        *("preset", "env", "model", "demos", "from", "pairs", "epochs", "tune", "sft.batch-size", "sft.learning-rate"),
        *("mesh", "config", "run.name", "run.seed", "run.resume"),
    ),
    published=published.CLONE,
)
def clone(config: CloneRun) -> int:
    """Fine-tune a language model on demonstrations by the bot, from a file or by another run's agent; flags override
    the preset.

    Evaluates before and after, and writes `model/`, for the `--model` of `train` and `test`; with `--tune lora` also
    the adapters as `adapter/`, which peft loads. `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.glam import clone

    clone.clone(config)
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
    from llmrl_jax.systems.glam import eval

    eval.evaluate(folder, episodes=episodes, checkpoint=checkpoint, seed=seed, gif=gif, json=json)


def test(config: Annotated[PostTestConfig, tyro.conf.arg(name="")]) -> None:
    """Run GLAM's post-training tests: other words, actions, levels and French, sampled and greedy, beside random
    actions and compared with the paper.

    Writes the published `test/<env>/return_per_episode/*.npy` and `tests.json` into the folder of each run, and a
    figure, `tests.png`, into the run's `test/`, or into `out` for several runs and other agents. Runs that differ only
    in their seed share a row and a bar."""
    from llmrl_jax.systems.glam import results

    results.post_test(config)


test.published = published.TEST  # type: ignore[attr-defined]


def export(run: tyro.conf.Positional[Path]) -> None:
    """Write a run's metrics as the published code's log.csv, for scripts that plot it.

    Args:
        run: The run's folder, `runs/NAME`.
    """
    from llmrl_jax.core.config import load_config
    from llmrl_jax.systems.glam.train import write_log

    config = load_config(TrainConfig, run / "config.json")
    print(f"{write_log(run, config.glam.reward_scale)} has the columns of the published log.csv")


def demo(
    steps: int = DEMO_STEPS,
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
    from llmrl_jax.systems.glam import demo

    in_interval("steps", steps, STEPS)
    demo.prior_then_ppo(demo.demo_config(steps), demo.DEMO_PRIOR, steps, run, episodes=episodes, command="glam-demo")
    return 0


COMMANDS = {
    "demo": demo,
    "train": train,
    "clone": clone,
    "eval": evaluate,
    "test": test,
    "export": export,
}
