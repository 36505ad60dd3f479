"""`llmrl rl train --algo NAME --data FILE`: offline runs from files, resumed, evaluated, and what they refuse."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.cli.main import main
from llmrl_jax.core.config import load_config
from llmrl_jax.data.columns import D4RL_NAMES, parse_names
from llmrl_jax.data.reading import read_data, write_arrays
from llmrl_jax.data.transitions import Transitions, to_trajectories
from llmrl_jax.rl.registry import OFFLINE
from llmrl_jax.workflows import rl_training
from tests.evaluated import check_eval_and_play


def steps(n=60, **changes):
    """Steps of Debug-Aim-v0, with actions near the wanted ones; episodes of 20 steps, which time out."""
    rng = np.random.default_rng(0)
    obs = jnp.asarray(rng.uniform(-0.8, 0.8, (n + 1, 1)), jnp.float32)
    action = jnp.clip(obs[:-1] + jnp.asarray(rng.normal(size=(n, 1)) * 0.1, jnp.float32), -1, 1)
    end = jnp.arange(1, n + 1) % 20 == 0
    made = Transitions(obs[:-1], action, 1 - jnp.abs(action - obs[:-1])[:, 0], obs[1:], jnp.zeros(n, bool), end)
    return made.replace(**changes)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "aim.npz"
    write_arrays(path, steps())
    return path


def command(tmp_path, file, *options, algo="bc"):
    base = ["rl", "train", "--algo", algo, "--data", str(file), "--run.out", str(tmp_path), "--run.name", "run"]
    return [*base, "--run.progress", "off", *options]


TINY = ["--bc.hidden", "8", "--bc.gradient-steps", "2", "--bc.batch-size", "4"]


@pytest.mark.slow
def test_a_run_is_kept_evaluated_and_continued_with_its_data_only(tmp_path, capsys, file):
    options = [*TINY, "--imagined", str(file), "--env", "Debug-Aim-v0", "--eval-episodes", "3", "--steps", "8"]
    assert main(command(tmp_path, file, *options)) == 0
    out, folder = capsys.readouterr().out, tmp_path / "run"
    assert "3 held-out episodes each" in out and "8 gradient steps at" in out
    config = load_config(rl_training.settings_class("bc"), folder / "config.json")
    assert (config.KIND, config.algo, config.hyper.batch_size, config.data) == ("rl train", "bc", 4, str(file))
    found = json.loads((folder / "eval-4.json").read_text())
    assert found["greedy/episode_return"] == found["sampled/episode_return"], "BC's actor is deterministic"
    check_eval_and_play(folder, capsys)
    resume = ["rl", "train", "--run.resume", str(folder), "--steps", "12"]
    other = tmp_path / "other.npz"
    write_arrays(other, steps(reward=steps().reward + 1))
    assert main([*resume, "--data", str(other)]) == 2
    assert "given.0.reward" in capsys.readouterr().err
    moved = tmp_path / "moved.npz"  # the file may be moved, or written in another form
    write_arrays(moved, to_trajectories(steps()))
    assert main([*resume, "--data", str(moved)]) == 0
    assert (folder / "eval-6.json").exists()


@pytest.mark.slow
def test_a_run_without_a_world_is_not_evaluated(tmp_path, capsys, file):
    sizes = ["--td3-bc.hidden", "8", "--td3-bc.gradient-steps", "2", "--td3-bc.batch-size", "4", "--steps", "2"]
    assert main(command(tmp_path, file, *sizes, algo="td3+bc")) == 0
    assert "held-out" not in capsys.readouterr().out
    assert not list((tmp_path / "run").glob("eval-*")) and (tmp_path / "run" / "metrics.jsonl").exists()


def test_columns_may_have_the_names_of_d4rl(tmp_path, file):
    columns = {D4RL_NAMES[k]: x for k, x in dict(np.load(file)).items()}
    np.savez(tmp_path / "theirs.npz", **columns)
    jax.tree.map(np.testing.assert_array_equal, read_data(tmp_path / "theirs.npz"), steps())


def test_columns_may_have_other_names(tmp_path, file, capsys):
    theirs = {"obs": "observation.state", "reward": "next.reward", "terminated": "dones"}
    columns = {theirs.get(k, k): x for k, x in dict(np.load(file)).items()}
    np.savez(tmp_path / "theirs.npz", **columns)
    names = ",".join(f"{k}={x}" for k, x in theirs.items())
    jax.tree.map(np.testing.assert_array_equal, read_data(tmp_path / "theirs.npz", parse_names(names)), steps())
    assert main(command(tmp_path, tmp_path / "theirs.npz", *TINY, "--steps", "2", "--data-names", names)) == 0
    assert main(["play", str(tmp_path / "run")]) == main(["eval", str(tmp_path / "run")]) == 2, "without --env"


def test_every_algorithm_has_settings_with_its_name():
    for name in OFFLINE:
        made = rl_training.settings_class(name)()
        assert made.algo == name == made.hyper.NAME
        assert type(made.hyper).__name__.lower() == f"{name.replace('_', '')}config"
    assert rl_training.settings_class("td3+bc") is rl_training.settings_class("td3_bc")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", ""], "bc learns from recorded steps: name them with --data FILE"),
        (["--data", "{}/none.npz"], "there are no data at"),
        (
            ["--data", "{}/steps.csv"],
            "ends in .csv; a .parquet, .npz, .npy, .h5 or .hdf5 file, or a folder",
        ),
        (["--data", "{}/pickled.npz"], "obs holds Python objects, as a pickle"),
        (["--data", "{}/short.npz"], "has no truncated (D4RL: timeouts) and no next_obs"),
        (["--data", "{}/dones.npz"], "has no terminated; it has action, dones, next_obs, obs, reward, truncated"),
        (["--data-names", "observations=obs"], "write obs=observations"),
        (["--data", "{}/nan.npz"], "obs[3, 0] is nan; a finite number is needed"),
        (["--data", "{}/ragged.npz"], "truncated has the shape [59], but reward has [60]"),
        (["--data", "{}/wide.npz"], "action 0 of step 2 of the data is 3; from -1 to 1 is needed"),
        (
            ["--env", "CartPole-v1"],
            "obs of the data is float32[1], but float32[4] in CartPole-v1: the data are of another",
        ),
        (["--data", "{}/far.npz", "--env", "Debug-Aim-v0"], "obs of step 5 of the data is 9, beyond what Debug-Aim-v0"),
        (["--imagined", "{}/two.npz"], "obs of the imagined data is float32[2], but float32[1] in the other data"),
        (["--network.hidden", "8"], "--network.hidden is (8,), but the offline algorithm bc does not read it"),
        (["--run.eval-every", "2"], "--run.eval-every is 2, but there is no world to evaluate in: name --env"),
        (["--bc.beta", "0.1"], "--bc.beta is 0.1, but bc with continuous actions does not read it"),
        (["--algo", "discrete-cql"], "discrete_cql needs discrete actions"),
    ],
)
def test_the_command_line_says_what_is_wrong(options, message, tmp_path, capsys, file):
    columns = {k: np.asarray(v) for k, v in dict(np.load(file)).items()}
    (tmp_path / "steps.csv").touch()
    changed = {
        "pickled": {"obs": np.array([None] * 60, object)},
        "nan": {"obs": np.where(np.arange(60)[:, None] == 3, np.nan, columns["obs"])},
        "ragged": {"truncated": columns["truncated"][1:]},
        "wide": {"action": np.where(np.arange(60)[:, None] == 2, np.float32(3), columns["action"])},
        "far": {"obs": np.where(np.arange(60)[:, None] == 5, np.float32(9), columns["obs"])},
        "two": {name: np.repeat(columns[name], 2, axis=1) for name in ("obs", "next_obs")},
    }
    for name, change in changed.items():
        if any(name in option for option in options):
            np.savez(tmp_path / f"{name}.npz", **{**columns, **change})
    np.savez(tmp_path / "short.npz", **{k: x for k, x in columns.items() if k not in ("next_obs", "truncated")})
    np.savez(tmp_path / "dones.npz", **{{"terminated": "dones"}.get(k, k): x for k, x in columns.items()})
    line = command(tmp_path, file, "--steps", "1", *(option.format(tmp_path) for option in options))
    assert main(line) == 2
    errors = capsys.readouterr().err
    assert message in errors.replace("\n", " ") and "Traceback" not in errors
