"""`llmrl bkrl collect | code | prefer | goals | train`, from the command line to the files, in a room of four cells."""

from __future__ import annotations

import contextlib
import io
import json
import random

import numpy as np
import pytest

import envs_jax
from llmrl_jax.chat import Message
from llmrl_jax.cli.main import main
from llmrl_jax.run import metrics
from llmrl_jax.systems.bkrl import collect
from llmrl_jax.systems.bkrl.potentials import on_windows
from llmrl_jax.systems.bkrl.prompts import world_of
from llmrl_jax.systems.bkrl.scripted import ScriptedCoder, ScriptedGoals, ScriptedJudge
from llmrl_jax.systems.bkrl.train import load_potential
from tests.bkrl_world import CRAFTER, crafter_played, world
from tests.chat_server import completion, send
from tests.evaluated import check_eval_and_play


pytest_plugins = ("tests.chat_server",)
ROOM = "?room_size=6&num_dists=2"
TASK = f"BabyAI-Text-GoToLocal-RedBall-S20{ROOM}"
MANY = f"BabyAI-Text-GoToLocal-Pretraining-S20{ROOM}"
SMALL = (
    "--network.hidden 8 --ppo.num-envs 4 --ppo.num-steps 8 --ppo.minibatches 1 --ppo.epochs 1 --ppo.pool-size 4"
    " --run.progress off --run.log-every 1 --run.checkpoint-every 2"
).split()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder with a run of `collect`: four updates, six episodes after every second."""
    out = tmp_path_factory.mktemp("runs")
    rnd = "--rnd.outputs 4 --rnd.hidden 4 --rnd.critic-hidden 4".split()
    args = ["--env", MANY, *SMALL, *rnd, "--steps", "128", "--episodes", "6", "--run.eval-every", "2"]
    assert main(["bkrl", "collect", *args, "--run.out", str(out), "--run.name", "episodes"]) == 0
    return out


def asked(out, command, name, *options):
    data = ["--data", str(out / "episodes"), "--env", MANY]
    return main(["bkrl", command, *data, *options, "--run.out", str(out), "--run.name", name])


@pytest.fixture(scope="module")
def preferred(out):
    model = "--model.width 8 --model.feed-forward 8 --model.hidden 8 --model.epochs 1".split()
    assert asked(out, "prefer", "preferred", "--pairs", "24", "--window", "2", *model) == 0
    return out / "preferred"


def test_episodes_are_collected_at_intervals(out):
    files = sorted(path.name for path in (out / "episodes" / "collected").iterdir())
    assert files == ["update-000000.parquet", "update-000002.parquet", "update-000004.parquet"]
    data = collect.read_episodes(out / "episodes")
    assert len(data) == 18 and {"image", "text", "mission"} <= set(data.obs)
    summary = json.loads((out / "episodes" / "summary.json").read_text())
    assert summary["data"] == data.digest and summary["collected_steps"] == len(data.action)


@pytest.mark.slow
def test_what_collected_is_shown(out, capsys):
    assert main(["play", str(out / "episodes")]) == 0 and "step 1: " in capsys.readouterr().out


def test_preferences_become_a_potential(preferred, out, capsys):
    summary = json.loads((preferred / "summary.json").read_text())
    assert summary["pairs"] == 24 and summary["consistent"] == 1 and summary["calls"] == 48
    assert len((preferred / "preferences.jsonl").read_text().splitlines()) == 24
    assert asked(out, "prefer", "preferred", "--pairs", "24") == 2
    assert "--run.resume" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(preferred, out):
    """Four updates of PPO with the potential of preferences."""
    base = ["--env", TASK, *SMALL, "--alg", "bk-pref", "--potential", str(preferred), "--eval-episodes", "4"]
    args = ["bkrl", "train", *base, "--run.out", str(out)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([*args, "--run.name", "whole", "--steps", "128"]) == 0
    (out / "said.txt").write_text(said.getvalue())
    return args


@pytest.mark.slow
def test_ppo_learns_with_a_potential(whole, out):
    rows = metrics.read(out / "whole" / "metrics.jsonl")
    assert len(rows) == 4 and rows[-1]["shaping_std"] > 0
    model = json.loads((out / "preferred" / "potential.json").read_text())["manifest"]["model"]
    assert f"bk-pref, by {model}: the potential in {out / 'preferred'}" in (out / "said.txt").read_text()
    assert json.loads((out / "whole" / "summary.json").read_text())["potential_model"] == model
    found = json.loads((out / "whole" / "eval-4.json").read_text())["agent"]
    assert 0 <= found["greedy/success_low"] <= found["greedy/success"] <= found["greedy/success_high"] <= 1
    assert found["random/success_low"] <= found["random/success"] <= found["random/success_high"]
    assert {line.split()[0] for line in (out / "said.txt").read_text().splitlines()} >= {"sampled", "greedy", "random"}


@pytest.mark.slow
def test_a_run_with_a_potential_is_evaluated_again_and_shown(whole, out, capsys):
    check_eval_and_play(out / "whole", capsys)


@pytest.mark.slow
def test_two_halves_are_the_whole(whole, out):
    assert main([*whole, "--run.name", "halves", "--steps", "64"]) == 0
    again = ["--run.resume", str(out / "halves"), "--steps", "128", "--run.progress", "off"]
    assert main(["bkrl", "train", *again]) == 0
    rows = [metrics.read(out / name / "metrics.jsonl") for name in ("whole", "halves")]
    assert len(rows[0]) == len(rows[1]) == 4
    for one, two in zip(*rows):
        for name in ("loss", "potential_mean", "shaping_std", "entropy"):
            assert one[name] == two[name], name


def test_goals_become_a_potential(out):
    assert asked(out, "goals", "named", "--situations", "12", "--encoder", "hashed") == 0
    goals = json.loads((out / "named" / "goals.json").read_text())["goals"]
    assert goals and all(goal.startswith(("go to the", "look for")) for goal in goals)
    manifest = json.loads((out / "named" / "potential.json").read_text())["manifest"]
    assert manifest["kind"] == "bk-goal" and np.isfinite(manifest["scale"])


def test_a_program_becomes_a_potential(out):
    """One admission in a child process of its own."""
    assert asked(out, "code", "written", "--rounds", "1", "--candidates", "1", "--tests", "256") == 0
    row = json.loads((out / "written" / "programs.jsonl").read_text())
    assert not row["refused"] and "compute_potential" in row["source"]


OWN = """
def compute_reward(obs, past_obs, past_actions):
    near = np.mean(np.where(obs[0] == OBJECT_TO_IDX["ball"], 1.0, 0.0))
    return near, {"near": near}
"""


@pytest.mark.slow
def test_knowledge_that_was_written_elsewhere_becomes_a_potential(out, preferred, capsys):
    (out / "code-final.py").write_text(OWN)
    assert asked(out, "code", "own", "--tests", "128", "--window", "2", "--program", str(out / "code-final.py")) == 0
    manifest = json.loads((out / "own" / "potential.json").read_text())["manifest"]
    assert manifest["model"] == str(out / "code-final.py") and manifest["report"]["calls"] == 0
    (out / "bad.py").write_text("def compute_potential(o, p, a):\n    return open('x'), {}\n")
    assert asked(out, "code", "bad", "--tests", "128", "--program", str(out / "bad.py")) == 2
    assert "bad.py" in capsys.readouterr().err
    model = "--model.width 8 --model.feed-forward 8 --model.hidden 8 --model.epochs 1".split()
    labels = str(preferred / "preferences.jsonl")
    assert asked(out, "prefer", "labelled", "--window", "2", "--labels", labels, *model) == 0
    one, two = (json.loads((out / name / "summary.json").read_text()) for name in ("preferred", "labelled"))
    assert two["calls"] == 0
    for name in ("pairs", "ties", "consistent", "agreement"):
        assert one[name] == two[name]
    assert asked(out, "prefer", "wrong", "--pairs", "9", "--labels", labels) == 2


ASKING = {
    "code": ("bk-code", "--rounds 1 --candidates 1 --repairs 0 --tests 64 --window 2"),
    "prefer": (
        "bk-pref",
        "--pairs 20 --window 2 --model.width 4 --model.feed-forward 4 --model.hidden 4 --model.epochs 1",
    ),
    "goals": ("bk-goal", "--situations 8 --window 3 --encoder hashed"),
}
"""The commands that ask, with the kind of their potentials and small settings."""


@pytest.mark.parametrize(
    "command", [command if command == "code" else pytest.param(command, marks=pytest.mark.slow) for command in ASKING]
)
def test_crafter_has_every_potential(command, tmp_path):
    """From collected episodes to a potential that differs between windows."""
    data = crafter_played()
    collect.write_episodes(tmp_path / "episodes" / "a.parquet", data)
    kind, options = ASKING[command]
    args = ["--data", str(tmp_path / "episodes"), "--env", CRAFTER, *options.split(), "--run.out", str(tmp_path)]
    assert main(["bkrl", command, *args, "--run.name", "made"]) == 0
    task = envs_jax.make("Crafter-Text-CollectDrink?view=true&image=none")[0]
    potential = load_potential(tmp_path / "made", task, kind)
    values = on_windows(potential, data.sample(np.random.default_rng(0), 32, potential.window))
    assert np.isfinite(values).all() and values.std() > 0.1


@pytest.mark.slow
def test_ppo_learns_in_crafter(tmp_path):
    """Collection, a program, and PPO with it, in the task of a drink; death is no success."""
    out = ["--run.out", str(tmp_path)]
    rnd = "--rnd.outputs 4 --rnd.hidden 4 --rnd.critic-hidden 4 --episodes 6 --run.eval-every 2".split()
    made = ["--preset", "crafter", *SMALL, *rnd, "--steps", "64", *out, "--run.name", "episodes"]
    assert main(["bkrl", "collect", *made]) == 0
    args = ["--data", str(tmp_path / "episodes"), "--env", CRAFTER, *ASKING["code"][1].split(), *out]
    assert main(["bkrl", "code", *args, "--run.name", "written"]) == 0
    args = ["--alg", "bk-code", "--potential", str(tmp_path / "written"), "--eval-episodes", "8", "--steps", "64"]
    assert main(["bkrl", "train", "--preset", "crafter", *SMALL, *args, *out, "--run.name", "learned"]) == 0
    rows = metrics.read(tmp_path / "learned" / "metrics.jsonl")
    assert len(rows) == 2 and rows[-1]["shaping_std"] > 0
    found = json.loads((tmp_path / "learned" / "eval-2.json").read_text())["agent"]
    for how in ("sampled", "greedy"):  # a success is one point, and there are no others
        assert found[f"{how}/success"] == pytest.approx(found[f"{how}/episode_return"], abs=1e-6)


@pytest.mark.parametrize(
    "command", [command if command == "goals" else pytest.param(command, marks=pytest.mark.slow) for command in ASKING]
)
def test_a_server_takes_the_place_of_the_scripted_adviser(command, out, server, capsys):
    """An OpenAI-compatible one, which gets the same prompts and answers in the same format."""
    adviser = {"code": ScriptedCoder, "prefer": ScriptedJudge, "goals": ScriptedGoals}[command](world_of(world()))

    def reply(handler, body):
        messages = [Message(each["role"], each["content"]) for each in body["messages"]]
        text = adviser.advise(messages, random.Random(0))
        said = completion(body)
        for choice in said["choices"]:
            choice["message"]["content"] = text
        send(handler, 200, said)

    server.always = reply
    kind, options = ASKING[command]
    chat = ["--chat.model", "some-model", "--chat.base-url", f"http://127.0.0.1:{server.server_port}/v1"]
    assert asked(out, command, f"served-{command}", *options.split(), *chat) == 0
    said, spent = capsys.readouterr().out, json.loads((out / f"served-{command}" / "summary.json").read_text())
    assert spent["calls"] == len(server.bodies) > 0 and {body["model"] for body in server.bodies} == {"some-model"}
    assert f"{spent['calls']:,} requests, {spent['tokens']:,} tokens, an unknown price" in said
    assert json.loads((out / f"served-{command}" / "potential.json").read_text())["manifest"]["model"] == "some-model"


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["train", "--alg", "bk-code"], "empty: give the --potential"),
        (["train", "--alg", "none", "--potential", "x"], "nothing reads"),
        (["train", "--alg", "random"], "empty: give the --data"),
        (["train", "--alg", "none", "--shaping.coef", "2"], "shaping"),
        (["train", "--env", "CartPole-v1"], "CartPole-v1"),
        (["train", "--alg", "bk-pref", "--potential", "nowhere"], "in nowhere"),
        (["collect", "--run.eval-every", "0"], "--run.eval-every is 0"),
        (["collect", "--preset", "crafter", "--npy"], "--npy"),
        (["code"], "data is"),
        (["prefer", "--data", "nowhere"], "nowhere"),
        (["goals", "--data", "nowhere", "--window", "1"], "window is 1"),
    ],
)
def test_bad_input_is_refused(args, match, capsys, tmp_path):
    assert main(["bkrl", *args, "--run.out", str(tmp_path / "runs")]) != 0
    assert match in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_potential_of_another_world_is_refused(preferred, capsys, tmp_path):
    crafter = "Crafter-Text-CollectDrink?view=true&image=none"
    args = ["--alg", "bk-pref", "--potential", str(preferred), "--env", crafter, "--run.out", str(tmp_path)]
    assert main(["bkrl", "train", *args]) != 0
    assert "of babyai" in capsys.readouterr().err
