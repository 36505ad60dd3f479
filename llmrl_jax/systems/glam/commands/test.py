"""`llmrl glam test`, `compare` and `export`: tests and tables of runs that were trained."""

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
) -> None:
    """Give runs GLAM's post-training tests: other words, actions, levels and French, sampled and greedy, beside the
    paper.

    Writes the published `test/<env>/return_per_episode/*.npy` and `tests.json` into the folder of each run, and a
    picture, `tests.png`: into the run's `test/`, or into `out` where there are several agents. Runs that differ in
    their seed alone are one row and one bar.

    Args:
        runs: Folders of runs, `runs/NAME`.
        model: Also a model that RL never trained (zero-shot, or what `llmrl glam clone` wrote): a folder or hub id. Its
            prompts are those of the first run, or of the preset.
        random: Also an agent that acts uniformly at random.
        bot: Also BabyAI's bot, which plans from what it has seen of the grid.
        preset: Without a run: whose prompts and actions (default: glam).
        env: The world of those tests that name none; empty: the one that the run was trained in, or the preset's.
        tests: What to change, see `llmrl_jax/systems/glam/posttest.py`; parts join with +, as in go_to+french. Empty:
            the published tests.
        variants: The prompt of training beside others that say the same, see `llmrl_jax/systems/glam/variants.py`: in
            place of the published tests, or beside the tests that are named.
        episodes: Episodes of each test and way of acting.
        checkpoint: Which checkpoint of the runs, by its update; -1: the newest.
        seed: Seed of the episodes.
        reuse: Take from tests.json what was played before with the same checkpoint, seed and episodes.
        out: Where results go that belong to no run.
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
    )


def compare(runs: tyro.conf.Positional[tuple[Path, ...]], bar: float = 0.8, out: Path | None = None) -> None:
    """Lay runs side by side: success, steps to a bar, sample efficiency, speed, settings that differ; and a picture.

    Runs that differ in their seed alone are one line.

    Args:
        runs: Folders of runs, `runs/NAME`.
        bar: The success whose first reaching is looked for, averaged over ten lines of metrics.
        out: Where to draw the learning curves, a new file; by default `compare.png`, or `compare-2.png` and so on.
    """
    from llmrl_jax.core.checks import between
    from llmrl_jax.run.report import compare as runs_compared, figures
    from llmrl_jax.systems.glam.settings import TrainConfig

    if not runs:
        raise ValueError("there is nothing to compare: name the folders of runs")
    between("bar", bar, 0, 1, above=True)
    read = [runs_compared.read_run(folder, TrainConfig) for folder in runs]
    print(runs_compared.side_by_side(read, bar, figures.new_file(out, Path("compare.png"))))


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
