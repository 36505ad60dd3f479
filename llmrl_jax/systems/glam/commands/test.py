"""`llmrl glam test`, `compare` and `export`: tests and tables of training runs."""

from __future__ import annotations

from pathlib import Path

import tyro


def test(
    runs: tyro.conf.Positional[tuple[Path, ...]] = (),
    model: str = "",
    random: bool = False,
    bot: bool = False,
    preset: str = "",
    env: str = "",
    tests: tuple[str, ...] = (),
    variants: bool = False,
    episodes: int = 1000,
    checkpoint: int = -1,
    seed: int = 0,
    reuse: bool = False,
    out: Path = Path("runs/tests"),
    json: bool = False,
) -> None:
    """Run GLAM's post-training tests: other words, actions, levels and French, sampled and greedy, beside random
    actions and compared with the paper.

    Writes the published `test/<env>/return_per_episode/*.npy` and `tests.json` into the folder of each run, and a
    figure, `tests.png`, into the run's `test/`, or into `out` for several runs and other agents. Runs that differ only
    in their seed share a row and a bar.

    Args:
        runs: Folders of runs, `runs/NAME`.
        model: Also a model without RL training (zero-shot, or from `llmrl glam clone`): a folder or hub id. Its prompts
            are those of the first run, or of the preset.
        random: Test random actions even if nothing else is tested; they are played beside every other agent.
        bot: Also BabyAI's bot, which plans from the part of the grid it has seen.
        preset: Without a run: the preset of the prompts and actions (default: glam).
        env: Environment of tests without one of their own; empty: the run's training environment, or the preset's.
        tests: Tests by name, see `llmrl_jax/systems/glam/posttest.py`; parts are joined with +, as in go_to+french.
            Empty: the published tests.
        variants: The training prompt and equivalent variants of it, see `llmrl_jax/systems/glam/variants.py`: instead
            of the published tests, or in addition to `tests`.
        episodes: Episodes per test, each for sampled and greedy actions.
        checkpoint: Checkpoint of the runs, by update number; -1: the newest.
        seed: Seed of the episodes.
        reuse: Reuse results in tests.json with the same checkpoint, seed and episodes.
        out: Folder for results that belong to no run.
        json: Print the results as JSON; the line after each test then goes to stderr.
    """
    from llmrl_jax.systems.glam.posttest_run import give_tests

    give_tests(
        runs,
        tests,
        model=model,
        random=random,
        bot=bot,
        preset=preset,
        env=env,
        variants=variants,
        episodes=episodes,
        checkpoint=checkpoint,
        seed=seed,
        reuse=reuse,
        out=out,
        json=json,
    )


def compare(
    runs: tyro.conf.Positional[tuple[Path, ...]], bar: float = 0.8, out: Path | None = None, json: bool = False
) -> None:
    """Compare runs: success, steps to a threshold, sample efficiency, speed and differing settings; and draw a figure.

    Runs that differ only in their seed share a line.

    Args:
        runs: Folders of runs, `runs/NAME`.
        bar: Success threshold, averaged over ten lines of metrics, whose first crossing is reported.
        out: New file for the figure of the learning curves; by default `compare.png`, or `compare-2.png` and so on.
        json: Print the results as JSON.
    """
    from llmrl_jax.core.checks import between
    from llmrl_jax.report import compare as runs_compared, figures
    from llmrl_jax.report.runs import distinct
    from llmrl_jax.systems.glam.settings import TrainConfig

    if not runs:
        raise ValueError("there is nothing to compare: name the folders of runs")
    distinct(runs)
    between("bar", bar, 0, 1, above=True)
    file = figures.new_file(out, Path("compare.png"))
    read = [runs_compared.read_run(folder, TrainConfig) for folder in runs]
    print(runs_compared.side_by_side(read, bar, file, json))


def export(run: tyro.conf.Positional[Path]) -> None:
    """Write a run's metrics as the published code's log.csv, for scripts that plot it.

    Args:
        run: The run's folder, `runs/NAME`.
    """
    from llmrl_jax.core.config import load_config
    from llmrl_jax.systems.glam.results import write_log
    from llmrl_jax.systems.glam.settings import TrainConfig

    config = load_config(TrainConfig, run / "config.json")
    print(f"{write_log(run, config.glam.reward_scale)} has the columns of the published log.csv")
