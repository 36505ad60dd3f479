"""The figures of docs/systems/glam.md, drawn from the committed logs in `experiments/results/`.

    python experiments/figures.py

Bands and bars over seeds are Student's intervals (`llmrl_jax.run.report.statistics`): 95% for learning curves, 99% for
the tests, as in the paper.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from llmrl_jax.run.flags import parse
from llmrl_jax.run.report.compare import Run, draw, read_run
from llmrl_jax.run.report.curves import learning_curve
from llmrl_jax.systems.glam.posttest_run import ZERO_SHOT
from llmrl_jax.systems.glam.results import Tested, draw_tests
from llmrl_jax.systems.glam.settings import TrainConfig


ROOT = Path(__file__).resolve().parent
AGENTS = {"LLM-PPO": "llm", "Symbolic-PPO": "symbolic", "DRRN": "drrn"}
KINDS = {"llm": "GFlan-T5", "symbolic": "Symbolic-PPO", "drrn": "DRRN", "prior": ZERO_SHOT}
"""The names of these agents in the paper's table."""
SEEDS = 3

SHOWN = (
    "no_modification_test",
    "other_name_same_categories",
    "no_meaning_words",
    "test_tasks",
    "composition",
    "synonym_actions",
    "go_to",
    "go_to+french",
)
"""The tests of the figure: those with a value in the paper, and `test_tasks`."""


@dataclass(frozen=True)
class Figures:
    """Figures of committed results."""

    results: str = str(ROOT / "results")
    """Folder of the logs."""
    out: str = str(ROOT.parent / "docs" / "images")
    """Folder of the figures."""


def runs_of(folder: Path) -> list[list[Run]]:
    """The runs of an experiment, one list per agent. The first run of `goto_local` (llm, seed 0) is in the folder
    itself.

    **Raises:** `FileNotFoundError` naming a run that is missing."""

    def place(agent: str, seed: int) -> Path:
        path = folder / f"{agent}-{seed}"
        if path.is_dir():
            return path
        if (agent, seed) == ("llm", 0) and (folder / "metrics.jsonl").is_file():
            return folder
        raise FileNotFoundError(f"the run {path} is missing: the figures need {SEEDS} seeds of every agent")

    return [[read_run(place(agent, seed), TrainConfig) for seed in range(SEEDS)] for agent in AGENTS.values()]


def tests_of(folder: Path) -> list[list[Tested]]:
    """The recorded tests of the agents over their seeds, and those of the prior."""

    def read(name: str) -> Tested:
        records = json.loads((folder / f"{name}.json").read_text())
        kind = KINDS[name.partition("-")[0]]
        return Tested(name, kind, folder, {}, {}, "", records={test: records[test] for test in SHOWN})

    return [*([read(f"{agent}-{seed}") for seed in range(SEEDS)] for agent in AGENTS.values()), [read("prior")]]


def main() -> None:
    x = parse(Figures, description=__doc__)
    results, out = Path(x.results), Path(x.out)
    labels = [f"{agent}, {SEEDS} seeds" for agent in AGENTS]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(results / "goto_local" / "metrics.jsonl", folder)
        drawn = learning_curve(folder, title="GoToLocal, seed 0")
        assert drawn is not None
        shutil.copyfile(drawn, out / "goto_local.png")
    draw(runs_of(results / "goto_local"), out / "goto_local_agents.png", labels)
    draw(runs_of(results / "mixed"), out / "mixed.png", labels)
    draw_tests(tests_of(results / "mixed" / "tests"), out / "mixed_tests.png", [*labels, "prior, zero-shot"])


if __name__ == "__main__":
    main()
