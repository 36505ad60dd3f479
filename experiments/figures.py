"""The figures of docs/systems/glam-results.md, drawn from the committed logs in `experiments/results/`.

    python experiments/figures.py

Bands and bars over seeds are Student's intervals (`llmrl_jax.core.statistics`): 95% for learning curves, 99% for
the tests, as in the paper.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.options.command import parse
from llmrl_jax.report import figures as reports
from llmrl_jax.report.compare import Run, draw, read_run
from llmrl_jax.run.curves import INK, learning_curve
from llmrl_jax.systems.glam.config import TrainConfig
from llmrl_jax.systems.glam.results import ZERO_SHOT, Tested, draw_tests


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


INITS = {"pretrained": "SmolLM2-135M", "embeddings": "random but for its embeddings", "random": "random weights"}
OTHER_WORDS = {
    "other_name_same_categories": "other nouns",
    "no_meaning_words": "invented words",
    "synonym_actions": "other actions",
}

ASKED = 256
"""Steps that each model was asked about."""


def draw_agreement(file: Path, out: Path) -> Path:
    """Agreement of models with the bot's action (`glam_smollm2.py`): with more imitation, and after it in other words.
    95% intervals (Wilson), and the share of the most frequent action as a line. Models, and other words, are those that
    were asked all of it."""
    rows = json.loads(file.read_text())["rows"]
    pairs = sorted({int(name.split(", ")[1].split()[0]) for name in rows if "steps of imitation" in name})
    own, most = "no_modification_test", f" {pairs[-1]} steps of imitation,"

    def asked(init: str, taught: str) -> dict[str, Any]:
        return rows.get(f"{init},{taught} {ASKED} steps asked, seed 0", {})

    inits = [init for init in INITS if asked(init, most)]
    others = [test for test in OTHER_WORDS if all(test in asked(init, most) for init in inits)]
    shown = [("not trained", "", own)]
    shown += [(f"{n} steps", f" {n} steps of imitation,", own) for n in pairs]
    shown += [(f"{pairs[-1]} steps, {OTHER_WORDS[test]}", most, test) for test in others]
    cells = {init: [asked(init, taught)[test]["agrees"] for _, taught, test in shown] for init in inits}
    line = asked("pretrained", "")["most frequent action"]["agrees"]
    return _bars([name for name, _, _ in shown], cells, "agreement with the bot", out, line)


def draw_success(file: Path, out: Path, seed: int = 0) -> Path:
    """Success of models after PPO, in the words that they know and in others (`glam_smollm2.py`): sampled actions, 99%
    intervals (Wilson)."""
    rows = json.loads(file.read_text())["rows"]
    names = {init: f"{init}, tests, seed {seed}" for init in INITS}
    tested = {init: rows[name][0]["tests"] for init, name in names.items() if name in rows}
    tests = {"no_modification_test": "plain", **OTHER_WORDS}
    shown = [test for test in tests if all(test in found for found in tested.values())]
    cells = {init: [found[test]["sampled"][:3] for test in shown] for init, found in tested.items()}
    return _bars([tests[test] for test in shown], cells, "success after PPO", out)


def _bars(groups: list[str], cells: dict[str, list[list[float]]], said: str, out: Path, line: float = 0.0) -> Path:
    """Bars of models, `(mean, low, high)` for each group; `line`, the share of the most frequent action."""
    figure, axis = reports.new_axis(9.0, 4.2)
    width = 0.8 / len(cells)
    for i, (init, found) in enumerate(cells.items()):
        mean, low, high = np.array(found).T
        places = np.arange(len(groups)) + width * (i - (len(cells) - 1) / 2)
        color = reports.color(list(INITS).index(init))
        axis.bar(places, mean, 0.93 * width, color=color, label=INITS[init])
        axis.errorbar(places, mean, [mean - low, high - mean], fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    if line:
        axis.axhline(line, color=INK, linewidth=0.8, linestyle=":", label="the most frequent action")
    axis.set_xticks(range(len(groups)), groups, rotation=20, ha="right", fontsize=8)
    axis.set_ylim(0, 1.02)
    axis.set_ylabel(said, color=INK)
    figure.legend(frameon=False, fontsize=8.5, loc="outside upper center", ncols=4)
    return reports.save(figure, out)


def draw_curve(run: Path, title: str, out: Path) -> None:
    """The learning curve of a committed run."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(run / "metrics.jsonl", folder)
        drawn = learning_curve(folder, title=title)
        assert drawn is not None
        shutil.copyfile(drawn, out)


def main() -> None:
    x = parse(Figures, description=__doc__)
    results, out = Path(x.results), Path(x.out)
    labels = [f"{agent}, {SEEDS} seeds" for agent in AGENTS]
    draw_curve(results / "goto_local", "GoToLocal, seed 0", out / "goto_local.png")
    draw_curve(results / "mixed" / "goals" / "entropy-0", "the mixed task, LLM-PPO, seed 0", out / "mixed_budget.png")
    draw(runs_of(results / "goto_local"), out / "goto_local_agents.png", labels)
    draw(runs_of(results / "mixed"), out / "mixed.png", labels)
    draw_tests(tests_of(results / "mixed" / "tests"), out / "mixed_tests.png", [*labels, "prior, zero-shot"])
    draw_agreement(results / "glam_smollm2" / "results.json", out / "smollm2_agreement.png")
    draw_agreement(results / "glam_smollm2" / "mixed.json", out / "smollm2_imitation.png")
    draw_success(results / "glam_smollm2" / "mixed.json", out / "smollm2_success.png")
    draw_success(results / "glam_smollm2" / "gotolocal-1.json", out / "smollm2_success_1.png", seed=1)
    draw_agreement(results / "glam_smollm2" / "mixed_task.json", out / "smollm2_mixed_agreement.png")
    draw_success(results / "glam_smollm2" / "mixed_task.json", out / "smollm2_mixed_success.png")


if __name__ == "__main__":
    main()
