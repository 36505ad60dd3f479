"""`llmrl ellm` in Housekeep from the command line: what is refused, a budget that ends while pairs are asked about, and
the accuracy of answers. Nothing is compiled."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmrl_jax.cli.main import main


PLAIN = ("ellm", "pretrain", "--preset", "housekeep", "--encoder", "hashed", "--run.progress", "off")


@pytest.fixture(scope="module")
def wrong_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("preferences") / "wrong.npz"
    np.savez(path, ranks=np.zeros((3, 4, 10), int), objects=["cup", "fork"], room_receptacles=["kitchen|sink"])
    return path


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--env", "Housekeep-Task5-v0"), "did you mean 'Housekeep-Task4-v0'"),
        (("--env", "Housekeep-v0?preferences={file}"), "[3, 4, 10]"),
        (("--suggester", "fixed", "--fixed", "pick up the lemn"), "did you mean 'pick up the lemon'"),
        (("--suggester", "chat", "--goals.per-state", "3"), "--goals.per-state is 3"),
        (("--suggester", "chat", "--judge.share", "1"), "--judge.share is 1.0"),
        (("--judge.samples", "3"), "--judge.samples is 3"),
        (("--gate", "lenient"), "--gate is lenient"),
        (("--observe", "pixels"), "--observe is pixels"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, wrong_file, args, said):
    args = [arg.format(file=wrong_file) for arg in args]
    assert main([*PLAIN, "--run.out", str(tmp_path), *args]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_budget_that_ends_between_two_answers(tmp_path, capsys):
    """The run has its settings and its record, and says how it goes on."""
    args = ["--suggester", "chat", "--chat.max-calls", "60", "--run.out", str(tmp_path), "--run.name", "poor"]
    assert main([*PLAIN, *args]) == 2
    err = capsys.readouterr().err
    assert "60 of 408 questions" in err and "--chat.max-calls" in err and f"--run.resume {tmp_path / 'poor'}" in err
    assert (tmp_path / "poor" / "config.json").exists() and not (tmp_path / "poor" / "judgements.json").exists()
    assert (tmp_path / "poor" / "chat.jsonl").read_text().count("Should you store a honey dipper in/on the lobby") > 1


@pytest.mark.slow
def test_accuracy_of_the_scripted_adviser(tmp_path, capsys):
    """It answers by the shipped table, which is that of the world: every answer is right."""
    args = ["--env", "Housekeep-Task1-v0", "--run.out", str(tmp_path), "--run.name"]
    assert main(["ellm", "accuracy", *args, "told"]) == 0
    found = json.loads((tmp_path / "told" / "accuracy.json").read_text())
    assert (found["asked"], found["unreadable"], found["calls"]) == (408, 0, 408)
    assert (found["match"], found["mismatch"], found["precision"]) == (1, 1, 1) and found["yes"] > 20
    rows = json.loads((tmp_path / "told" / "judgements.json").read_text())["share_of_yes"]
    assert len(rows) == 8 and sum(sum(row.values()) for row in rows.values()) == found["yes"]
    assert "yes to 100.0% of the correct places" in capsys.readouterr().out
    assert main(["ellm", "accuracy", *args, "some", "--states", "20"]) == 2
    assert "--states is 20" in capsys.readouterr().err
