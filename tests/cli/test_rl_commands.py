"""`llmrl rl train`: any algorithm in any world, resumed, from files, and what it refuses."""

from __future__ import annotations

import json

import jax
import pytest

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import play_random
from llmrl_jax.cli.main import main
from llmrl_jax.core.config import load_config
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.registry import ALGORITHMS
from llmrl_jax.workflows import evaluation, rl_training
from llmrl_jax.workflows.loading import load, settings_of


SMALL = {
    "dqn": "--dqn.num-envs 4 --dqn.num-steps 4 --dqn.batch-size 8 --dqn.replay-size 64 --dqn.pool-size 4",
    "ppo": "--ppo.num-envs 4 --ppo.num-steps 4 --ppo.minibatches 2 --ppo.pool-size 4",
}


def command(algo, env, *options):
    base = ["rl", "train", "--algo", algo, "--env", env, "--network.hidden", "8", "--eval-episodes", "6"]
    return [*base, *SMALL[algo].split(), "--run.progress", "off", "--run.log-every", "1", *options]


def play(folder):
    return evaluation.play(folder, settings_of(folder))


def test_a_run_is_kept_evaluated_and_resumed(tmp_path, capsys):
    folder = tmp_path / "small"
    options = ["--run.name", "small", "--run.out", str(tmp_path), "--steps", "3.2e1", "--dqn.gamma", "0.5"]
    assert main(command("dqn", "Taxi-v3", "--network.dueling", *options)) == 0
    out = capsys.readouterr().out
    assert "6 held-out episodes each" in out and "greedy" in out and "sampled" in out
    config = load_config(rl_training.settings_class("dqn"), folder / "config.json")
    assert (config.KIND, config.algo, config.hyper.gamma, config.network.dueling) == ("rl train", "dqn", 0.5, True)
    found = json.loads((folder / "eval-2.json").read_text())
    assert found["greedy/episode_return_low"] <= found["greedy/episode_return"] <= found["greedy/episode_return_high"]
    env, env_params = envs_jax.make("Taxi-v3")
    key = jax.random.fold_in(jax.random.key(0), 0x4E1D)
    chance = play_random(EpisodeStatistics(env), env_params, key, episodes=6)
    assert found["random/episode_return"] == pytest.approx(chance.episode_return.mean())
    assert f"\nrandom    return {chance.episode_return.mean():.2f} [" in out
    assert main(["rl", "train", "--run.resume", str(folder), "--steps", "48"]) == 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3] and (folder / "eval-3.json").exists()
    at_end = (folder / "eval-3.json").read_text()
    capsys.readouterr()
    assert main(["eval", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main(["eval", str(folder), "--episodes", "2"]) == 0 and (folder / "eval-3.json").read_text() == at_end
    assert main(["eval", str(folder), "--episodes", "8"]) == 0
    more = (folder / "eval-3.json").read_text()
    assert main(["rl", "train", "--run.resume", str(folder)]) == 0  # has all its updates, and is evaluated again
    assert (folder / "eval-3.json").read_text() == more != at_end
    (folder / "eval-3.json").write_text("{")  # a damaged one is replaced
    assert main(["eval", str(folder), "--json"]) == 0
    assert (folder / "eval-3.json").read_text() == at_end, "as many episodes as the run's own evaluation, the same"
    assert printed["update"] == 3 and printed["greedy/episode_return"] == json.loads(at_end)["greedy/episode_return"]
    assert main(["eval", str(folder), "--checkpoint", "7"]) == 2
    assert "update 7" in capsys.readouterr().err
    episode = play(folder)
    out = capsys.readouterr().out
    assert f"{len(episode)} steps, return {episode.reward.sum():g}" in out and out.count("step ") == len(episode)
    loaded = load(folder)
    actions, _ = loaded.act(episode.observed["obs"])
    assert loaded.update == 3 and (actions == episode.action).all()
    assert repr(loaded) == f"Loaded('{folder}', update=3)"
    with pytest.raises(ValueError, match=r"obs\[None\]"):  # where a vector is one observation, or several numbers
        loaded.act(episode.observed["obs"][0])
    assert main(["rl", "train", "--run.resume", str(folder), "--dqn.gamma", "0.9"]) == 2
    assert "dqn.gamma: 0.5 -> 0.9" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Debug-Aim-v0", "Debug-Catch-v0"])
def test_other_worlds_are_played(env, tmp_path, capsys):
    """Continuous actions; pictures."""
    options = ["--network.channels", "4"] if env == "Debug-Catch-v0" else []
    run = ["--run.name", "run", "--run.out", str(tmp_path), "--steps", "16"]
    assert main(command("ppo", env, *options, *run)) == 0
    assert "everything is in" in capsys.readouterr().out


@pytest.mark.slow
def test_several_seeds_are_evaluated_compared_and_resumed(tmp_path, capsys, monkeypatch):
    options = ["--run.out", str(tmp_path), "--steps", "64"]
    assert main(command("ppo", "CartPole-v1", *options, "--run.name", "both", "--seeds", "2", "--run.seed", "3")) == 0
    assert main(command("ppo", "CartPole-v1", *options, "--run.name", "alone", "--run.seed", "4")) == 0
    both, alone = (tmp_path / name for name in ("both", "alone"))
    found = json.loads((both / "eval-4.json").read_text())
    own = found["greedy/episode_return_runs"]
    assert len(own) == 2 and found["greedy/episode_return"] == pytest.approx(sum(own) / 2)
    assert "random/episode_return_runs" not in found and "random/episode_return_low" in found
    lines = [[json.loads(line) for line in (x / "metrics.jsonl").read_text().splitlines()] for x in (both, alone)]
    assert [x["1/loss"] for x in lines[0]] == pytest.approx([x["loss"] for x in lines[1]], rel=1e-3, abs=1e-5)
    assert all(x["loss_low"] <= x["loss"] <= x["loss_high"] for x in lines[0])
    at_end = (both / "eval-4.json").read_text()
    assert main(["eval", str(both), "--seed", "3"]) == 0 and (both / "eval-4.json").read_text() == at_end
    assert main(["play", str(both)]) == 0
    with monkeypatch.context() as patched:  # before any episode
        patched.setattr("llmrl_jax.workflows.evaluation.has_picture", lambda env: False)
        patched.setattr("llmrl_jax.workflows.evaluation.restore", lambda *args: pytest.fail("it evaluates"))
        capsys.readouterr()
        assert main(["eval", str(both), "--gif"]) == 2 and "no picture" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["runs", "compare", str(both), str(alone), "--out", str(tmp_path / "a.png"), "--json"]) == 0
    (group, *others) = json.loads(capsys.readouterr().out)["groups"]
    assert len(group["runs"]) == 2 and group["label"] == "both and 1 more seed", "seeds 3 and 4"
    assert [x["runs"] for x in others] == [[str(alone)]], "a repetition of seed 4 is no further sample"
    assert main(["rl", "train", "--run.resume", str(both), "--steps", "80"]) == 0 and (both / "eval-5.json").exists()
    assert main(["rl", "train", "--run.resume", str(both), "--seeds", "3"]) == 2


def test_settings_go_to_a_file_and_back(tmp_path, capsys):
    assert main(["rl", "train", "--algo", "dqn", "--dqn.n-step", "3", "--steps", "1e5", "--print-config"]) == 0
    file = tmp_path / "settings.yaml"
    file.write_text(capsys.readouterr().out)
    assert main(["rl", "train", "--config", str(file), "--dqn.gamma", "0.5", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "algo: dqn" in printed and "n_step: 3" in printed and "gamma: 0.5" in printed and "steps: 100000" in printed


def test_every_algorithm_has_settings_with_its_name():
    for name in ALGORITHMS:
        made = rl_training.settings_class(name)()
        assert made.algo == name and type(made.hyper).__name__.lower() == f"{name.replace('_', '')}config"
    assert rl_training.settings_class("dqn")(dqn=DQNConfig(n_step=2)).hyper.n_step == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--algo", "dqn", "--env", "Debug-Aim-v0"],
            "Debug-Aim-v0",
        ),
        (["--algo", "ddqn"], "'ddqn'"),
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["--algo", "dqn", "--network.memory", "8"], "--network.memory is 8"),
        (["--network.dueling"], "--network.dueling is True"),
        (["--network.hidden", "0"], "network.hidden is 0"),
        (["--algo", "dqn", "--dqn.gamma", "2"], "dqn.gamma is 2.0"),
        (["--steps", "0"], "steps is 0"),
        (["--seeds", "2", "--mesh", "data=1"], "--mesh"),
        (
            ["--seeds", "2", "--run.seed", "4294967295"],
            "4294967296",
        ),
    ],
)
def test_the_command_line_says_what_is_wrong(options, message, tmp_path, capsys):
    assert main(["rl", "train", "--run.out", str(tmp_path), "--run.progress", "off", *options]) == 2
    errors = capsys.readouterr().err
    assert message in errors and "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1 or "Value error" in errors  # tyro's frame around what a field refuses
