"""`llmrl ellm pretrain | finetune | explore | eval | accuracy`, from the command line to the files, in a world of five
cells."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from envs_jax import registry
from llmrl_jax.cli.main import main
from llmrl_jax.run import metrics
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.systems.ellm import prompts
from llmrl_jax.systems.ellm.build import load_run
from tests.evaluated import check_eval_and_play


SMALL = (
    "--env Yard-v0 --encoder hashed --network.width 16 --network.head-hidden --dqn.num-envs 4 --dqn.num-steps 4"
    " --dqn.gradient-steps 1 --dqn.batch-size 8 --dqn.replay-size 160 --dqn.learning-starts 16 --dqn.pool-size 4"
    " --run.progress off --run.log-every 1 --run.checkpoint-every 2 --eval-episodes 4"
).split()
CHAT = ("--suggester", "chat", "--goals.max-states", "32", "--goals.max-goals", "16", "--goals.exchange-every", "1")


@pytest.fixture(scope="module", autouse=True)
def yard():
    """The world, as if it was registered."""
    registry.ids()
    spec = registry.Spec("Yard-v0", "tests.ellm_world:Yard", {}, "A world for tests.")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(registry._SPECS, "Yard-v0", spec)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Six updates of a run with a scripted adviser, which is asked after each."""
    out = tmp_path_factory.mktemp("runs")
    args = [*SMALL, *CHAT, "--run.out", str(out), "--run.name", "whole", "--steps", "96"]
    assert main(["ellm", "pretrain", *args]) == 0
    return out / "whole"


def lines(folder):
    timing = ("seconds", "steps_per_second", "exchange_seconds")
    return [{n: repr(v) for n, v in x.items() if n not in timing} for x in metrics.read(folder / "metrics.jsonl")]


def test_a_run_leaves_everything_in_its_folder(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 96 and summary["suggestions"]["asked"] > 0 and summary["suggestions"]["malformed"] == 0
    assert summary["chat"]["calls"] == summary["suggestions"]["asked"]
    assert (run / "chat.jsonl").exists() and len(lines(run)) == 6
    written = json.loads((run / "eval-6.json").read_text())
    found, chance = written["agent"], written["random"]
    assert chance.keys() == found.keys() and summary["random"] == chance
    assert found["episodes"] == 4 and 0 <= found["achievements"] <= 3
    assert {"score", "unlocked/collect_wood", "suggested/good", "paid/nonsensical"} <= set(found)


@pytest.mark.slow
def test_two_halves_are_the_whole(run):
    """A run with a chat model, stopped after half and resumed, has the same state to the bit."""
    out = str(run.parent)
    args = [*SMALL, *CHAT, "--run.out", out, "--run.name", "halves", "--steps", "48"]
    assert main(["ellm", "pretrain", *args]) == 0
    assert main(["ellm", "pretrain", "--run.resume", f"{out}/halves", "--steps", "96", "--run.progress", "off"]) == 0
    whole, halves = (leaves(folder) for folder in (run, run.parent / "halves"))
    assert whole.keys() == halves.keys() and any("answers" in name for name in whole)
    for name, x in whole.items():
        np.testing.assert_array_equal(halves[name], x, err_msg=name)
    assert lines(run) == lines(run.parent / "halves")


def leaves(folder):
    import jax

    state = load_run(folder)[2]
    named = jax.tree_util.tree_leaves_with_path(state)
    raw = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return {jax.tree_util.keystr(path): np.asarray(raw(x)) for path, x in named}


@pytest.mark.slow
def test_evaluation_with_single_goals(run, capsys):
    capsys.readouterr()
    args = ["ellm", "eval", str(run), "--episodes", "4", "--goals", "chop tree", "place table", "--gif"]
    assert main(args) == 0
    text = capsys.readouterr().out
    assert "achievements per episode" in text and "goal reached" in text
    found = json.loads((run / "eval-6.json").read_text())
    assert set(found["goals"]) == {"chop tree", "place table"} and {"agent", "greedy", "random"} <= set(found)
    assert (run / "episode.gif").exists()
    assert main(["ellm", "eval", str(run), "--goals", "chop three"]) == 2
    assert "mean 'chop tree'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["linear", "critic"])
def test_finetuning_trains_a_part(run, tune, capsys):
    out, name = run.parent, f"tuned-{tune}"
    args = f"--from {run} --task wood --tune {tune} --steps 64 --run.name {name} --run.out {out} --run.progress off"
    assert main(["ellm", "finetune", *args.split(), "--run.checkpoint-every", "2", "--eval-episodes", "4"]) == 0
    config = json.loads((out / name / "config.json").read_text())
    assert config["ellm"]["dqn"]["epsilon_start"] == 0.5 and config["task"] == "wood" and config["tune"] == tune
    assert (out / name / "summary.json").exists()
    if tune == "linear":  # as of any other run; the slow case looks at it
        return
    more = ["--run.resume", str(out / name), "--steps", "96", "--run.progress", "off"]
    assert main(["ellm", "finetune", *more]) == 0
    assert json.loads((out / name / "summary.json").read_text())["steps"] == 96
    assert json.loads((out / name / "config.json").read_text())["ellm"] == config["ellm"]
    check_eval_and_play(out / name, capsys)


@pytest.mark.slow
def test_learning_from_recorded_play(run, capsys):
    """The agent's play is recorded, given other goals, and learned from; the run serves as a pretrained one."""
    out = run.parent
    args = f"--from {run} --episodes 4 --run.name recorded --run.out {out}"
    assert main(["ellm", "collect", *args.split()]) == 0
    assert json.loads((out / "recorded" / "buffer.json").read_text())["steps"] == 48
    assert main(["ellm", "collect", *args.replace("recorded", "other").split(), "--suggester", "novelty"]) == 2
    assert "--suggester is novelty" in capsys.readouterr().err
    buffer, end = ["--buffer", str(out / "recorded")], ["--run.out", str(out), "--run.progress", "off"]
    args = "--suggester fixed --fixed place\\ table --steps 4 --eval-episodes 4 --run.name learned"
    assert main(["ellm", "offline", *buffer, *shlex.split(args), *end]) == 0
    said = capsys.readouterr().out
    assert "4 episodes, 48 steps; their goals now pay" in said and "4 gradient steps" in said
    check_eval_and_play(out / "learned", capsys)
    config, _, state, update = load_run(out / "learned")
    assert update == 4 and config.ellm.dqn.replay_size == 48 == int(state.replay.size)
    assert config.ellm.suggester == "fixed" and config.ellm.env == "Yard-v0"
    assert main(["ellm", "offline", *buffer, "--env", "Yard-v0?task=wood", *end]) == 2
    assert "Yard-v0?task=wood" in capsys.readouterr().err
    assert main(["ellm", "offline", "--buffer", str(run), *end]) == 2
    assert "llmrl ellm collect" in capsys.readouterr().err


@pytest.mark.slow
def test_exploring_with_a_guide(run, capsys):
    out = run.parent
    args = f"--from {run} --task table --subgoals --steps 64 --run.name explored --run.out {out} --run.progress off"
    assert main(["ellm", "explore", *args.split(), "--eval-episodes", "4"]) == 0
    assert json.loads((out / "explored" / "summary.json").read_text())["steps"] == 64
    check_eval_and_play(out / "explored", capsys)
    assert main(["ellm", "explore", *args.replace("explored", "other").split(), "--intrinsic", "0.5"]) == 2
    assert "--intrinsic is 0.5" in capsys.readouterr().err and not (out / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["explore", "offline"])
def test_two_halves_of_later_runs_are_the_whole(run, command):
    """As above; the checksums are those of every leaf's bits, the memory and the environments included."""
    out = run.parent
    if command == "offline":
        args = f"--from {run} --episodes 4 --run.name halved --run.out {out}"
        assert main(["ellm", "collect", *args.split()]) == 0
        own, half, whole = ["--buffer", str(out / "halved"), "--suggester", "oracle"], "2", "4"
    else:
        own, half, whole = ["--from", str(run), "--task", "table", "--subgoals"], "32", "64"
    end = f"--run.out {out} --run.progress off --run.log-every 1 --run.checkpoint-every 2 --eval-episodes 4".split()
    for name, steps in (("whole", whole), ("halves", half)):
        assert main(["ellm", command, *own, "--steps", steps, "--run.name", f"{command}-{name}", *end]) == 0
    halves, whole_run = out / f"{command}-halves", out / f"{command}-whole"
    assert main(["ellm", command, "--run.resume", str(halves), "--steps", whole, "--run.progress", "off"]) == 0
    assert checksums(halves) == checksums(whole_run) and lines(halves) == lines(whole_run)
    assert len(lines(halves)) == 4


def checksums(folder):
    with Checkpoints(folder, read_only=True) as checkpoints:
        about = checkpoints.describe(checkpoints.latest())
    return about["update"], about["frozen"], {name: leaf["checksum"] for name, leaf in about["leaves"].items()}


def test_accuracy_of_the_scripted_adviser(run, capsys):
    """It answers by the oracle's rules, except for what the text does not say."""
    args = f"--env Yard-v0 --encoder hashed --states 8 --episodes 8 --run.out {run.parent} --run.name told"
    assert main(["ellm", "accuracy", *args.split()]) == 0
    found = json.loads((run.parent / "told" / "accuracy.json").read_text())
    rows = [json.loads(line) for line in (run.parent / "told" / "suggestions.jsonl").read_text().splitlines()]
    assert found["states"] == len(rows) >= 5 and found["unreadable"] == 0
    for row in rows:
        wanted = [goal for goal in row["oracle"] if goal != "build table"]
        assert row["suggested"] == (wanted or ["do nothing"])
    assert 0 < found["suggested/good"] < 1 and found["suggested/nonsensical"] == 0
    assert "poorly timed" in capsys.readouterr().out


def test_answers_of_the_oracle(run, capsys):
    """As data to fine-tune on and as examples: the states and goals that `accuracy` has in the same episodes."""
    file = run.parent / "answers.jsonl"
    args = f"--env Yard-v0 --encoder hashed --states 8 --episodes 8 --file {file} --half both --goals.shots 0"
    assert main(["ellm", "answers", *args.split()]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) >= 2 and f"{len(rows)} rows" in capsys.readouterr().out
    for row in rows:
        assert row["state"] in row["messages"][0]["content"] and "skeleton" not in row["messages"][0]["content"]
        assert prompts.read_goals(row["messages"][1]["content"]) == row["goals"]
    assert main(["ellm", "answers", *args.replace(".jsonl", ".txt").split()]) == 2
    assert "--file is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--threshold", "1.5"], "--threshold is 1.5"),
        (["--suggester", "none"], "no reward"),
        (["--suggester", "fixed"], "--fixed"),
        (["--suggester", "fixed", "--fixed", "chop three"], "did you mean 'chop tree'"),
        (["--uniform-goals", "3"], "--uniform-goals is 3"),
        (["--env", "CartPole-v1"], "'CartPole-v1'"),
        ([*CHAT, "--chat.model", "gpt-4o"], "--chat.base-url"),
        ([*CHAT, "--chat.model", "m", "--chat.cache-mode", "replay", "--chat.cache", "no.sqlite"], "no.sqlite"),
        ([*CHAT[:2], "--goals.max-goals", "3"], "--goals.max-goals is 3"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, args, said):
    assert main(["ellm", "pretrain", *SMALL, "--run.out", str(tmp_path), *args]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


@pytest.mark.slow
def test_an_exhausted_budget_stops_the_run_and_keeps_it(tmp_path, capsys):
    args = [*SMALL, *CHAT, "--run.out", str(tmp_path), "--run.name", "poor", "--steps", "96", "--chat.max-calls", "1"]
    assert main(["ellm", "pretrain", *args]) != 0
    err = capsys.readouterr().err
    assert "calls" in err and "--run.resume" in err and "Traceback" not in err
    with Checkpoints(tmp_path / "poor", read_only=True) as checkpoints:
        assert checkpoints.updates()
