"""`llmrl balrog eval`: from the command line to BALROG's files, with a chat server and with the scripted player."""

from __future__ import annotations

import csv
import json

import pytest

from llmrl_jax.cli.main import main
from tests.chat_server import completion, send


pytest_plugins = ("tests.chat_server",)
TASK = "BabyAI-MixedTrainLocal-v0"


def player(replies):
    """Answers of a server, by the number of the observation in the request."""

    def answer(handler, body):
        reply = completion(body)
        reply["choices"][0]["message"]["content"] = replies(body["messages"])
        send(handler, 200, reply)

    return answer


def evaluate(out, *options):
    return main(["balrog", "eval", "--run.out", str(out), "--run.name", "played", *options])


@pytest.mark.slow
def test_a_server_plays(server, tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.always = player(lambda messages: " go forward.\n" if len(messages) % 4 else "I do not know")
    options = ["--tasks", "putnext", "open", "--max-steps", "6", "--episodes", "2"]
    url = f"http://127.0.0.1:{server.server_port}/v1"
    assert evaluate(tmp_path, *options, "--chat.model", "tiny", "--chat.base-url", url) == 0
    folder = tmp_path / "played" / "leaderboard"
    log = json.loads((folder / "babyai" / TASK / "open" / TASK / "open_run_01.json").read_text())
    assert log["num_steps"] == 6 and log["action_frequency"] == {"go forward": 6} and "done" not in log
    assert log["failed_candidates"] == ["I do not know"] * 3 and log["input_tokens"] == 66
    assert log["agent"]["balrog"] == "2025-08" and log["client"]["model_id"] == "tiny"
    with (folder / "babyai" / TASK / "open" / TASK / "open_run_01.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Action"] for row in rows] == ["go forward", "I do not know"] * 3
    assert rows[1]["Observation"].startswith("\n\nYour previous output did not contain a valid action.")
    assert len(server.bodies) == 24
    body = server.bodies[0]
    assert body["max_tokens"] == 8192 and body["temperature"] == 1.0 and body["messages"][0]["role"] == "user"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["environments"]["babyai"]["episodes_played"] == 4 and summary["total_input_tokens"] == 24 * 11

    # more episodes: the first ones are kept, and only the others are asked about
    assert main(["balrog", "eval", "--run.resume", str(tmp_path / "played"), "--episodes", "4"]) == 0
    assert len(server.bodies) == 48
    results = json.loads((tmp_path / "played" / "summary.json").read_text())
    assert results["results"]["open"]["episodes"] == 4 and results["balrog"] == "2025-08" and results["calls"] == 48


def test_without_a_model_chance_plays(tmp_path, capsys):
    assert evaluate(tmp_path, "--tasks", "goto", "--agent", "robust_cot", "--episodes", "4") == 0
    results = json.loads((tmp_path / "played" / "summary.json").read_text())
    row = results["results"]["babyai"]
    assert row["invalid"] == 0 and 0 <= row["progression_low"] <= row["progression"] <= row["progression_high"] <= 1
    assert "scripted-adviser/ScriptedPlayer" in capsys.readouterr().out


def test_settings_that_do_not_fit(tmp_path, capsys):
    assert evaluate(tmp_path, "--tasks", "pick") != 0
    assert evaluate(tmp_path, "--agent", "robust_cot", "--balrog", "2024-11") != 0
    assert not (tmp_path / "played").exists()
    assert "pickup" in capsys.readouterr().err
