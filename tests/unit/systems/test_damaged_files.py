"""Files of earlier work that are damaged: each is named, with a remedy that the command has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.core.learner import Learner
from llmrl_jax.run.checkpoint import CheckpointError
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.run.folder import start_of
from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.glam import results
from llmrl_jax.systems.glam.config import PostTestConfig
from llmrl_jax.systems.props import table, train as searches
from llmrl_jax.systems.props.config import PropsConfig, PropsRun, TemplateConfig
from llmrl_jax.systems.props.study import Study, fault
from llmrl_jax.systems.props.tasks import get
from llmrl_jax.workflows import curriculum


def begun(folder: Path) -> None:
    """A run of 3 updates whose log has only the last of them."""
    (folder / "checkpoints" / "3").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"kind": "train", "update": 3, "updates": 1}\n')


# --- runs inside a run, which no flag of --run reaches ----------------------------------------------------------------


def test_a_gap_in_the_log_of_a_lesson_stops_nothing(tmp_path, monkeypatch):
    begun(tmp_path / "imitation")
    with pytest.raises(ValueError, match="--run.resume-from|--run.accept-gaps"):  # a run of its own has these
        start_of(tmp_path / "imitation", RunConfig("imitation", str(tmp_path), resume=True))

    def train(learner, run, **options):
        start, note = start_of(run.folder, run)
        assert start == 3 and "this gap was accepted" in note
        raise InterruptedError

    monkeypatch.setattr(curriculum, "run_training", train)
    with pytest.raises(InterruptedError):
        lesson(tmp_path, "imitation")


def lesson(folder: Path, name: str) -> None:
    learner = Learner(lambda key: key, lambda state: (state, {}), 1)
    curriculum.train_lesson(name, learner, None, 3, RunConfig("a", str(folder)), folder, ())


def test_a_damaged_checkpoint_of_a_lesson_names_its_folder(tmp_path, monkeypatch):
    def train(learner, run, **options):
        try:
            raise ValueError("two bytes")
        except ValueError as why:
            raise CheckpointError("checkpoint 3 is damaged: use it with --run.resume-from 2") from why

    monkeypatch.setattr(curriculum, "run_training", train)
    with pytest.raises(CheckpointError, match="reading.*two bytes") as raised:
        lesson(tmp_path, "reading")
    assert "--run.resume-from" not in str(raised.value)

    def refuse(learner, run, **options):
        raise CheckpointError("another configuration")

    monkeypatch.setattr(curriculum, "run_training", refuse)
    with pytest.raises(CheckpointError, match="^another configuration$"):
        lesson(tmp_path, "reading")


def by_numbers(folder):
    asked = {"method": "random_search", "seed": 0, "seeds": 2, "budget": 200, "final_episodes": 2}
    return table._search_numerically(get("nim"), asked, folder, StopRequest())


def test_a_gap_in_the_log_of_a_tables_search_stops_nothing(tmp_path, monkeypatch):
    begun(tmp_path / "nim")
    seen = []

    def train(learner, run, **options):
        seen.append(start_of(run.folder, run))
        raise InterruptedError

    monkeypatch.setattr(table, "run_training", train)
    with pytest.raises(InterruptedError):
        by_numbers(tmp_path / "nim")
    assert seen[0][0] == 3 and "accepted" in seen[0][1]


def test_a_damaged_checkpoint_of_a_table_names_again(tmp_path, monkeypatch):
    def train(learner, run, **options):
        raise CheckpointError("checkpoint 3 is damaged; no older one is whole")

    monkeypatch.setattr(table, "run_training", train)
    with pytest.raises(CheckpointError, match="--again --tasks nim --methods random_search"):
        by_numbers(tmp_path / "nim")


# --- records ----------------------------------------------------------------------------------------------------------


def test_the_record_of_the_committed_table_is_read():
    rows = table._rows(Path(__file__).parents[3] / "docs" / "systems")
    assert len(rows) > 10 and all(row["seed"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "props-table.json.*JSON"),
        ("{}", r"props-table\.json.*list"),
        ("[]", r"props-table\.json.*list"),
        ('{"rows": [5]}', "1.*`rows`.*5"),
        ('{"rows": [{"task": "nim"}]}', "1.*`rows`"),
    ],
)
def test_the_record_of_a_table_is_checked(tmp_path, content, message):
    (tmp_path / "props-table.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        table._rows(tmp_path)


LINE = {
    "round": 0, "params": [[1.0, 2]], "values": [0.5], "returns": [[0.0, 1.0]], "lengths": [[3, 4]], "record": {},
    "best": 0.5, "episodes": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({}, ""),
        ({"dropped": [{"params": [0, 0], "returns": ["nan"], "lengths": [2]}]}, ""),
        ({"dropped": [{"params": [0, 0]}]}, "numbers of the episodes in `returns`"),
        ({"dropped": 5}, "a list of objects in `dropped`"),
        ({"round": "a"}, "an object with the number of its `round`"),
        ({"params": 5}, "a list of each of `params`, `values`, `returns` and `lengths`"),
        ({"values": []}, "one of each of `params`, `values`, `returns` and `lengths` for every policy"),
        ({"params": [[1.0]]}, "and 2 for each of `params`"),
        ({"values": ["a"]}, "a number for each of `values`"),
        ({"lengths": [["a"]]}, "numbers of the episodes in `lengths`"),
        ({"record": None}, "the `record` of the queries"),
        ({"best": None}, "numbers in `best` and `episodes`"),
    ],
)
def test_what_a_line_of_a_search_lacks(change, lacking):
    assert lacking in fault(LINE | change, 2, asks=True) and bool(lacking) == bool(fault(LINE | change, 2, True))


def test_lines_of_other_kinds():
    assert fault(5, 2, True) and fault({}, 2, True) and fault({"round": 0}, 2, False)
    assert not fault({"round": 0, "stopped": "why"}, 2, True) and not fault(LINE | {"record": None}, 2, False)


def test_a_result_that_is_no_object_is_judged_again(tmp_path):
    (tmp_path / searches.RESULT).write_text("5")

    class Done(Study):
        done = True

        def __init__(self):
            self.folder = tmp_path

    assert searches._finished(Done()) is None


@pytest.mark.parametrize("content", ["[]", "5", '{"go_to": 5}'])
def test_the_records_of_tests_are_checked(tmp_path, content):
    path = tmp_path / "tests.json"
    assert results._saved(path) == {}
    path.write_text(content)
    with pytest.raises(ValueError, match="tests.json"):
        results._saved(path)


def test_a_summary_of_something_else_beside_a_model_is_no_clones(tmp_path):
    (tmp_path / "a" / "model").mkdir(parents=True)
    for content, name in ((5, ""), ([], ""), ({}, ""), ({"demonstrations": 3}, "a")):
        (tmp_path / "a" / "summary.json").write_text(json.dumps(content))
        assert results._clone_of(tmp_path / "a" / "model") == name


# --- what is checked only where it is used ----------------------------------------------------------------------------


class Reached(Exception):
    pass


@pytest.mark.parametrize(("options", "checked"), [({}, False), ({"random": True}, True), ({"bot": True}, True)])
def test_one_run_writes_nothing_to_out(tmp_path, monkeypatch, options, checked):
    (tmp_path / "f").write_text("")

    def of_run(*args):
        raise Reached

    monkeypatch.setattr(results, "_of_run", of_run)
    with pytest.raises(NotADirectoryError if checked else Reached):
        results.post_test(PostTestConfig((tmp_path / "run",), out=tmp_path / "f", **options))
    with pytest.raises(NotADirectoryError):  # the picture of several
        results.post_test(PostTestConfig((tmp_path / "run", tmp_path / "other"), out=tmp_path / "f"))


def test_settings_with_templates_are_read_anywhere(tmp_path, monkeypatch):
    """`llmrl runs compare` reads them in another folder than the search ran in."""
    config = PropsRun(
        tasks=("nim",), search=PropsConfig(templates=TemplateConfig("mine")), run=BaseRunConfig("a", str(tmp_path))
    )
    configs.save_config(config, tmp_path / "config.json")
    monkeypatch.chdir(tmp_path)
    assert configs.load_config(PropsRun, tmp_path / "config.json") == config
    with pytest.raises(ValueError, match="templates.template_dir.*mine"):
        searches.run_searches(config)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
