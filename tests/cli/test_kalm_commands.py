"""`llmrl kalm collect | ground | imagine | train | test`, from the command line to the files, as small as can be."""

from __future__ import annotations

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.clevr import to_published
from envs_jax.metaworld.instructions import NAMES
from llmrl_jax.cli.main import main
from llmrl_jax.core import config as configs
from llmrl_jax.data.masked import read_published, to_masked, write_masked
from llmrl_jax.data.parquet import read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError
from llmrl_jax.lm.encoder_weights import make_encoder
from llmrl_jax.rl.seeds import select_run
from llmrl_jax.systems.kalm import collect, ground, imagine
from llmrl_jax.systems.kalm.collect import greedy_of
from llmrl_jax.systems.kalm.eval import key_of, play_random, rates
from llmrl_jax.systems.kalm.train import get_dataset, sentence_table
from llmrl_jax.systems.kalm.worlds import LEVELS, level_of, metaworld_goals, world_of
from llmrl_jax.workflows.loading import load
from tests.evaluated import check_eval_and_play


SMALL = "--embedded.hidden-size 16 --embedded.layers 1 --embedded.heads 2 --embedded.intermediate-size 16".split()
QUIET = "--run.progress off --run.log-every 1".split()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder with 24 recorded episodes and a model that was grounded in them for two updates."""
    out = tmp_path_factory.mktemp("runs")
    here = ["--run.out", str(out)]
    assert main(["kalm", "collect", "--episodes", "24", "--together", "24", *here, "--run.name", "recorded"]) == 0
    args = ["--data", str(out / "recorded"), *SMALL, "--sft.batch-size", "4", "--epochs", "2", "--held-out", "0.45"]
    assert main(["kalm", "ground", *args, *QUIET, *here, "--run.name", "model"]) == 0
    return out


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_recorded_episodes_begin_and_end_as_they_should(out):
    world, level, data = collect.read_episodes(out / "recorded")
    assert (world.name, level, len(data)) == ("clevr", "real", 24)
    summary = json.loads((out / "recorded" / "summary.json").read_text())
    ends = np.asarray(data.terminated)[np.arange(24), np.asarray(data.length) - 1]
    assert summary["success"] == ends.mean() > 0.5 and summary["steps"] == int(data.length.sum())
    state, after = (np.asarray(x["state"]) for x in (data.obs, data.next_obs))
    for e, length in enumerate(np.asarray(data.length)):
        np.testing.assert_array_equal(after[e, : length - 1], state[e, 1:length])
        goal = np.asarray(data.obs["goal"])[e, 0]
        np.testing.assert_array_equal(world.instructions.goals[int(data.obs["instruction"][e, 0])], goal)
        states = np.concatenate([state[e, :length], after[e, length - 1 : length]])
        _, success = world.rules("real")(goal, states, np.asarray(data.action)[e, :length])
        np.testing.assert_array_equal(success, np.asarray(data.terminated)[e, :length])


def test_a_grounded_model_is_read_as_it_was_written(out):
    found = ground.load_model(out / "model")
    assert found.world.name == "clevr" and found.model.slots.action == 40 and found.model.states == "changes"
    summary = json.loads((out / "model" / "summary.json").read_text())
    assert summary["updates"] > 1 and {"held_out/state", "held_out/action", "held_out/text"} <= summary.keys()
    assert 0 <= summary["held_out/explained"] <= 1
    text = found.world.instructions.texts[-1]
    assert " ".join(found.tokenizer.decode([token]) for token in found.tokenizer.encode(text)) == text
    assert np.isfinite(np.asarray(found.normalizer.std)).all() and found.normalizer.std.shape == (10,)
    with pytest.raises(FileNotFoundError, match="`llmrl kalm ground`"):
        ground.load_model(out / "recorded")


@pytest.mark.slow
def test_grounding_goes_on_where_it_stopped(out):
    args = ["--data", str(out / "recorded"), *SMALL, "--sft.batch-size", "4", "--epochs", "2", "--held-out", "0.45"]
    args += [*QUIET, "--run.out", str(out), "--run.name", "stopped"]
    assert main(["kalm", "ground", *args, "--run.max-seconds", "1e-6"]) == 0
    first = summary_of(out / "stopped")
    assert first["stopped"] and not (out / "stopped" / "grounded").exists()
    assert main(["kalm", "ground", "--run.resume", str(out / "stopped"), "--run.progress", "off"]) == 0
    whole, parts = ground.load_model(out / "model"), ground.load_model(out / "stopped")
    jax.tree.map(np.testing.assert_array_equal, parts.variables, whole.variables)
    assert summary_of(out / "stopped")["held_out/state"] == summary_of(out / "model")["held_out/state"]


@pytest.mark.slow
def test_imagination_goes_on_where_it_stopped(out, monkeypatch):
    args = ["--grounded", str(out / "model"), "--data", str(out / "recorded"), "--level", "easy"]
    args += ["--episodes", "6", "--together", "2", "--run.out", str(out)]
    assert main(["kalm", "imagine", *args, "--run.name", "whole"]) == 0
    write = imagine._write_part

    def interrupted(file, made):
        if file.name == "4-6.npz":
            raise KeyboardInterrupt
        write(file, made.replace(states=made.states + 100.0) if file.name == "0-2.npz" else made)  # to be seen later

    monkeypatch.setattr(imagine, "_write_part", interrupted)
    assert main(["kalm", "imagine", *args, "--run.name", "broken"]) != 0
    assert sorted(file.name for file in (out / "broken" / "parts").iterdir()) == ["0-2.npz", "2-4.npz"]
    monkeypatch.undo()
    assert main(["kalm", "imagine", *args, "--level", "hard", "--run.name", "broken", "--run.resume"]) != 0
    assert main(["kalm", "imagine", "--run.resume", str(out / "broken")]) == 0
    assert not (out / "broken" / "parts").exists()
    whole, found = (collect.read_episodes(out / name, imagined=True)[2] for name in ("whole", "broken"))
    for name in ("action", "reward", "length"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    moved = np.where(np.arange(6) < 2, np.float32(100.0), np.float32(0.0))[:, None, None]
    np.testing.assert_array_equal(found.obs["state"], whole.obs["state"] + moved)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["rephrase", "easy"])
def test_imagined_episodes_are_what_an_agent_learns_from(out, level, tmp_path, capsys):
    here = ["--run.out", str(out)]
    args = ["--grounded", str(out / "model"), "--data", str(out / "recorded"), "--level", level]
    size = ["--episodes", "6", "--together", "4"]
    assert main(["kalm", "imagine", *args, *size, *here, "--run.name", f"imagined-{level}"]) == 0
    world, found, data = collect.read_episodes(out / f"imagined-{level}", imagined=True)
    with pytest.raises(DataError, match="imagined.*kalm collect"):
        collect.read_episodes(out / f"imagined-{level}")
    said = np.asarray(data.obs["instruction"])[:, 0]
    assert found == level and len(data) == 6 and set(said) <= set(world.instructions.sentence_ids(level))
    goals = world.instructions.configuration[said]
    assert len(set(goals.tolist())) == 6  # each goal of the level once before any twice
    real = np.asarray(collect.read_episodes(out / "recorded")[2].obs["state"])[:, 0]
    first = np.asarray(data.obs["state"])[:, 0]
    assert (np.abs(first[:, None] - real[None]).max(-1).min(1) == 0).all()
    summary = summary_of(out / f"imagined-{level}")
    assert 0 <= summary["success"] <= 1 and "impossible/out_of_table" in summary
    if level == "easy":
        assert (np.asarray(data.length) == 1).all() and np.asarray(data.terminated)[:, 0].all()
        return
    recorded, dataset = get_dataset("rephrase_level", out / "recorded", out / "imagined-rephrase", "hashed")
    assert recorded["masks"].sum() == summary_of(out / "recorded")["steps"] and len(dataset["instructions"]) == 6
    hashed = make_encoder("hashed").encode_texts(dataset["instructions"])
    hashed = hashed * np.sqrt(hashed.shape[1])  # as `llmrl kalm train` has them
    np.testing.assert_allclose(dataset["observations"][:, 0], np.concatenate([first, hashed], axis=1), atol=1e-6)
    write_masked(out / "imagined.npy", dataset)
    published = read_published(out / "imagined.npy")
    np.testing.assert_array_equal(published.data.length, data.length)
    assert published.about["instructions"].tolist() == dataset["instructions"]
    assert get_dataset("real", out / "recorded", encoder="hashed")[1] is None
    with pytest.raises(DataError, match="'rephrase'.*'hard'"):
        get_dataset("hard", out / "recorded", out / "imagined-rephrase", "hashed")
    easy = tmp_path / "easy"
    shutil.copytree(out / "recorded", easy)
    (easy / "data.json").write_text((easy / "data.json").read_text().replace("real", "easy"))
    with pytest.raises(DataError, match="'easy'.*'real'"):
        get_dataset("real", easy, encoder="hashed")
    with pytest.raises(ValueError, match="`llmrl kalm imagine`"):
        get_dataset("easy", out / "recorded")
    args = ["--data", str(out / "recorded"), "--imagined", str(out / f"imagined-{level}"), "--encoder", "hashed"]
    small = "--steps 4 --bc.gradient-steps 2 --bc.batch-size 8 --bc.hidden 8 --levels real --eval-episodes 4".split()
    assert main(["kalm", "train", *args, *small, *QUIET, *here, "--run.name", "agent"]) == 0
    shown = capsys.readouterr().out
    tested = json.loads(next((out / "agent").glob("eval-*.json")).read_text())
    chance = rates(play_random(world, ["real"], 4, key_of(0)))
    assert tested["random"] == configs.to_json(chance) and tested["seed"] == 0
    line = next(line for line in shown.splitlines() if line.startswith("real "))
    assert all(f"{found['real']:.3f} [{found['real_low']:.3f}" in line for found in (tested, chance))
    assert tested["episodes"] == 4 and 0 <= tested["real_low"] <= tested["real"] <= tested["real_high"] <= 1
    check_eval_and_play(out / "agent", capsys)
    assert main(["play", str(out / "recorded")]) == 2
    refused = capsys.readouterr().err
    assert "llmrl kalm collect" in refused and "bkrl train" in refused and "rl train" in refused
    # the checkpoint plays the same episodes, under the published name of the level
    assert main(["kalm", "test", str(out / "agent"), "--level", "baseline", "--episodes", "4"]) == 0
    again = json.loads((out / "agent" / "test.json").read_text())
    assert {name: again[name] for name in ("real", "real_low", "real_return", "random")} == {
        name: tested[name] for name in ("real", "real_low", "real_return", "random")
    }


@pytest.mark.slow
def test_an_agent_learns_from_several_levels_with_the_words_of_the_grounded_model(out, capsys):
    args = ["--data", str(out / "recorded"), "--run.out", str(out), "--grounded", str(out / "model")]
    for level in ("rephrase", "easy"):
        size = ["--level", level, "--episodes", "3", "--together", "3", "--run.name", f"few-{level}"]
        assert main(["kalm", "imagine", *args, *size]) == 0
    both = ",".join(str(out / f"few-{level}") for level in ("rephrase", "easy"))
    args = ["--data", str(out / "recorded"), "--imagined", both, "--encoder", str(out / "model"), "--run.out", str(out)]
    small = "--steps 4 --bc.gradient-steps 2 --bc.batch-size 8 --bc.hidden 8 --levels easy --eval-episodes 4".split()
    assert main(["kalm", "train", *args, *small, *QUIET, "--run.name", "reader"]) == 0
    world, state = world_of("clevr"), load(out / "reader").state
    hashed = sentence_table(world, "hashed")
    vectors = ground.sentence_vectors(ground.load_model(out / "model"), world.instructions.texts)
    np.testing.assert_array_equal(state.frozen.table, np.concatenate([hashed, vectors], axis=1))
    sets = [collect.read_episodes(out / f"few-{level}", imagined=True)[2] for level in ("rephrase", "easy")]
    assert [int(size) for size in state.frozen.sizes[1:]] == [int(np.sum(data.length)) for data in sets]
    odd = ["--bc.batch-size", "10", "--run.name", "odd"]
    assert main(["kalm", "train", *args, *small[:4], *odd]) != 0
    assert "2:1:1" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_agents_learn_in_one_program_and_the_first_records_episodes(out, capsys):
    args = [
        "--data",
        str(out / "recorded"),
        "--encoder",
        "hashed",
        *QUIET,
        "--run.out",
        str(out),
        "--run.name",
        "cloned",
    ]
    small = "--steps 2 --bc.gradient-steps 2 --bc.batch-size 8 --bc.hidden 8 --levels easy --eval-episodes 64".split()
    assert main(["kalm", "train", *args, *small, "--seeds", "2"]) == 0
    tested = json.loads(next((out / "cloned").glob("eval-*.json")).read_text())
    assert tested["easy"] == np.mean(tested["easy_agents"]) and len(tested["easy_agents"]) == 2
    assert "(" + ", ".join(f"{rate:.3f}" for rate in tested["easy_agents"]) + ")" in capsys.readouterr().out
    assert main(["kalm", "test", str(out / "cloned"), "--levels", "easy", "--episodes", "64"]) == 0
    again = json.loads((out / "cloned" / "test.json").read_text())
    assert again["easy_agents"] == tested["easy_agents"] and again["easy_low"] == tested["easy_low"]
    here = ["--run.out", str(out), "--run.name", "again"]
    size = "--level easy --episodes 3 --together 3 --noise 0".split()
    assert main(["kalm", "collect", "--agent", str(out / "cloned"), *size, *here]) == 0
    world, level, data = collect.read_episodes(out / "again")
    cloned = load(out / "cloned")
    state, other = (select_run(cloned.state, i) for i in (0, 1))
    assert (np.asarray(state.params["actor"][0]["kernel"]) != np.asarray(other.params["actor"][0]["kernel"])).any()
    obs = jax.tree.map(lambda x: x[:, 0], data.obs)
    frozen = state.frozen.replace(given=())
    found = cloned.experiment.policy.step(state.params, frozen, obs, (), np.zeros(3, bool))[0].mode()
    np.testing.assert_array_equal(data.action[:, 0], found)
    assert main(["kalm", "collect", "--agent", str(out / "model"), *size, *here[:-1], "wrong"]) != 0
    assert "llmrl rl train" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_an_agent_of_online_rl_records_episodes(out, capsys):
    """It sees the goal as a vector; what it records are observations with words, as of any other."""
    here = ["--run.out", str(out), "--run.name"]
    env = ["--env", "CLEVR-Robot-v0?level=easy&obs=goal", "--steps", "16", "--eval-episodes", "2"]
    small = "--ppo.num-envs 4 --ppo.num-steps 4 --ppo.minibatches 1 --ppo.epochs 1 --network.hidden 8".split()
    small += ["--run.progress", "off"]
    assert main(["rl", "train", "--algo", "ppo", *env, *small, *here, "ppo"]) == 0
    size = "--level easy --episodes 3 --together 3 --noise 0 --agent".split()
    assert main(["kalm", "collect", *size, str(out / "ppo"), *here, "of-ppo"]) == 0
    _, _, data = collect.read_episodes(out / "of-ppo")
    assert data.obs["instruction"].shape == (3, 1) and (np.asarray(data.length) == 1).all()
    act = greedy_of(out / "ppo", world_of("clevr"))
    states = jax.vmap(lambda balls, goal: state_of(balls, goal))(data.obs["state"][:, 0], data.obs["goal"][:, 0])
    np.testing.assert_array_equal(data.action[:, 0], act(None, states))
    assert main(["rl", "train", "--algo", "ppo", "--steps", "16", "--eval-episodes", "2", *small, *here, "cart"]) == 0
    assert main(["kalm", "collect", *size, str(out / "cart"), *here, "wrong"]) != 0
    assert "'CartPole-v1'" in capsys.readouterr().err.replace("\n", " ")


def state_of(balls, goal):
    """A state of the world, as far as an observation reads it."""
    env, _ = envs_jax.make("CLEVR-Robot-v0?level=easy")
    empty = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: env.begin(balls, goal, jnp.int32(0))[1]))
    return empty.replace(balls=balls, goal=goal)


@pytest.mark.slow
def test_a_grounded_model_acts_and_one_with_returns_cannot_imagine(out, capsys):
    data = ["--dataset_path", str(out / "recorded"), "--run.out", str(out)]
    args = ["--pattern-num", "0", "--returns", "--epochs", "1", "--sft.batch-size", "4", "--held-out", "0"]
    how = ["--dtype", "mixed", "--run.name", "returns"]
    assert main(["kalm", "ground", *data, *SMALL, *args, *QUIET, *how]) == 0
    found = ground.load_model(out / "returns")
    assert found.model.llama.matmul_dtype == jnp.bfloat16
    assert ground.load_model(out / "model").model.llama.matmul_dtype is None
    assert found.returns is not None and found.model.slots.state == 11
    size = "--levels easy --episodes 3 --together 2".split()
    for name in ("returns", "model"):
        assert main(["kalm", "test", str(out / name), *size]) == 0
        tested = json.loads((out / name / "test.json").read_text())
        assert tested["episodes"] == 3 and round(tested["easy"] * 3, 9) in (0, 1, 2, 3)
        assert tested["random"] == configs.to_json(rates(play_random(world_of("clevr"), ["easy"], 3, key_of(0))))
    args = ["--grounded", str(out / "returns"), "--data", str(out / "recorded"), "--run.out", str(out)]
    assert main(["kalm", "imagine", *args, "--run.name", "wrong"]) != 0
    assert "can act" in capsys.readouterr().err.replace("\n", " ")
    assert main(["kalm", "test", str(out / "recorded"), "--episodes", "3"]) != 0
    assert "llmrl kalm ground" in capsys.readouterr().err.replace("\n", " ")


def test_wrong_folders_and_names_are_refused(out, capsys):
    for args, said in (
        (["kalm", "ground"], "data is"),
        (["kalm", "imagine", "--data", "x"], "grounded is"),
        (
            ["kalm", "imagine", "--grounded", "x", "--data", "x", "--level", "esay"],
            "'esay'",
        ),
        (["kalm", "collect", "--world", "clever"], "'clever'"),
        (["kalm", "train", "--agent", "bcd", "--data", "x"], "'bcd'"),
        (["kalm", "train", "--agent", "ppo", "--data", "x"], "'ppo'"),
        (["kalm", "train", "--data", str(out)], "`llmrl kalm collect`"),
        (
            ["kalm", "train", "--data", "x", "--run.eval-every", "5"],
            "--run.eval-every is 5",
        ),
        (
            ["kalm", "ground", "--data", "x", "--held-out", "0", "--run.eval-every", "5"],
            "--run.eval-every is 5",
        ),
        (
            [
                "kalm",
                "train",
                "--data",
                str(out / "recorded"),
                "--imagined",
                str(out / "recorded"),
                "--encoder",
                "hashed",
            ],
            "`llmrl kalm imagine`",
        ),
        (["kalm", "ground", "--data", str(out / "recorded"), "--length", "32"], "--length"),
        (["kalm", "ground", "--data", "x", "--tune", "lora"], "--tune full"),
    ):
        assert main([*args, "--run.out", str(out), "--run.name", "wrong"]) != 0
        assert said in capsys.readouterr().err.replace("\n", " "), args
    assert not (out / "wrong").exists()
    with pytest.raises(DataError, match="'clevr'.*'metaworld'"):
        collect.read_episodes(out / "recorded", "metaworld")


def test_damaged_folders_are_refused(out, tmp_path, capsys):
    """What a folder of episodes says of itself, and episodes that are not the world's, before anything is learned."""
    shutil.copytree(out / "recorded", folder := tmp_path / "recorded")
    about = folder / "data.json"
    kept = json.loads(about.read_text())
    for text, said in (
        ("{", "`llmrl kalm collect`"),
        ("[]", "damaged"),
        (json.dumps({"level": "real"}), "'world'"),
        (json.dumps(kept | {"world": "clever"}), "'clever'.*'clevr'"),
        (json.dumps(kept | {"level": "rael"}), "'rael'.*'real'"),
    ):
        about.write_text(text)
        with pytest.raises(DataError, match=said):
            collect.read_episodes(folder)
    about.write_text(json.dumps(kept))
    data = read_parquet(folder / "episodes.parquet")

    def observed(name, x):
        return {part: {**getattr(data, part), name: x} for part in ("obs", "next_obs")}

    for changed, said in (
        (observed("state", np.zeros((len(data), 12), np.float32)), r"obs.state.*data.*float32\[12\]"),
        ({"action": np.full(len(data), 45, np.int32)}, "action 45.*step 0.*40 actions"),
        ({"action": np.zeros((len(data), 4), np.float32)}, "integers.*clevr"),
        (
            observed("instruction", np.full(len(data), 99999, np.int32)),
            "obs.instruction.*0.*data.*99999",
        ),
    ):
        write_parquet(folder / "episodes.parquet", data.replace(**changed))
        with pytest.raises(DataError, match=said):
            collect.read_episodes(folder)
    for command in (["ground"], ["train", "--encoder", "hashed"], ["imagine", "--grounded", str(out / "model")]):
        assert main(["kalm", *command, "--data", str(folder), "--run.out", str(tmp_path), "--run.name", "wrong"]) != 0
        assert "obs.instruction of step 0" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "wrong").exists()


def test_published_episodes_are_taken_over(out, tmp_path, capsys):
    """`collect --from FILE`: KALM's own form, written from recorded episodes, comes back as these."""
    world, _, data = collect.read_episodes(out / "recorded")
    codes = np.repeat(to_published(np.asarray(data.obs["goal"])[:, 0])[:, None], data.reward.shape[1], axis=1)
    wordings = np.array([["in their words"] * 54] * 24)
    whole = to_masked(data.replace(obs=data.obs["state"], next_obs=data.next_obs["state"]))
    whole |= {"goals": codes, "instructions": wordings}
    write_masked(tmp_path / "clevr.npy", whole)
    here = ["--run.out", str(tmp_path), "--run.name"]
    assert main(["kalm", "collect", "--from", str(tmp_path / "clevr.npy"), *here, "taken"]) == 0
    _, level, taken = collect.read_episodes(tmp_path / "taken")
    for one, two in ((taken.obs, data.obs), (taken.next_obs, data.next_obs)):
        np.testing.assert_array_equal(one["state"], two["state"])
        np.testing.assert_array_equal(one["goal"], two["goal"])
    np.testing.assert_array_equal(taken.action, data.action)
    np.testing.assert_array_equal(taken.terminated, data.terminated)
    said = np.asarray(taken.obs["instruction"])[:, 0]
    np.testing.assert_array_equal(world.instructions.goals[said], np.asarray(data.obs["goal"])[:, 0])
    assert level == "real" and set(said) <= set(world.instructions.sentence_ids("real"))
    assert summary_of(tmp_path / "taken")["episodes"] == 24
    wide = np.concatenate([whole["observations"], np.zeros((*whole["observations"].shape[:2], 768))], axis=-1)
    for changed, more, why in (
        ({}, ["--level", "hard"], "level hard"),
        ({"goals": None}, [], "'goals'"),
        ({"goals": np.zeros((24, 6))}, [], "level real"),
        ({"observations": wide, "next_observations": None}, [], "`llmrl rl train --data`"),
        ({"actions": whole["actions"] + 40}, [], "40 actions"),
        ({}, ["--noise", "0"], "--noise is 0.0"),
    ):
        write_masked(tmp_path / "wrong.npy", {name: x for name, x in (whole | changed).items() if x is not None})
        assert main(["kalm", "collect", "--from", str(tmp_path / "wrong.npy"), *more, *here, "wrong"]) != 0
        assert why in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "wrong").exists()


@pytest.fixture(scope="module")
def cases(out):
    """A file of prompts as published: lists of arrays, with more in it than is read."""
    world = world_of("clevr")
    sentences = np.array(world.instructions.sentence_ids("rephrase"))[[0, 300, 700]]
    goals = world.instructions.goals[sentences]
    _, _, data = collect.read_episodes(out / "recorded")
    observations = [np.repeat(state[None], 21, axis=0) for state in np.asarray(data.obs["state"])[:3, 0]]
    values = {"observations": observations, "goals": list(to_published(goals)), "number_of_objects": 5}
    values |= {"instructions": [("move it",)] * 3, "actions": [np.zeros(20)] * 3}
    np.save(out / "prompts.npy", values, allow_pickle=True)
    return out / "prompts.npy"


@pytest.mark.slow
def test_episodes_are_imagined_from_a_file_of_prompts(out, cases):
    args = ["--model_path", str(out / "model"), "--prompt_path", str(cases), "--level", "rephrase_level"]
    args += ["--episodes", "5", "--batch_size", "5", "--run.out", str(out), "--run.name", "prompted"]
    assert main(["kalm", "imagine", *args]) == 0
    world, level, data = collect.read_episodes(out / "prompted", imagined=True)
    given = collect.read_cases(cases, world, "rephrase", np.random.default_rng(0))
    np.testing.assert_array_equal(np.asarray(data.obs["state"])[:, 0], given.states[[0, 1, 2, 0, 1]])
    np.testing.assert_array_equal(np.asarray(data.obs["goal"])[:, 0], given.goals[[0, 1, 2, 0, 1]])
    assert level == "rephrase" and set(given.instructions) <= set(world.instructions.sentence_ids("rephrase"))


def test_episodes_begin_at_the_cases_of_a_file(cases):
    world = world_of("clevr")
    given = collect.read_cases(cases, world, "rephrase", np.random.default_rng(0))
    env = dataclasses.replace(world, cases=given).make("rephrase")
    obs, _ = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 16), env.default_params)
    which = [int(np.flatnonzero((given.states == state).all(1))[0]) for state in np.asarray(obs["state"])]
    assert set(which) == {0, 1, 2}
    np.testing.assert_array_equal(np.asarray(obs["goal"]), given.goals[which])
    np.testing.assert_array_equal(np.asarray(obs["instruction"]), given.instructions[which])
    with pytest.raises(ValueError, match="rephrase"):
        dataclasses.replace(world, cases=given).make("easy")


@pytest.mark.slow
def test_agents_are_tested_at_the_cases_of_a_file(out, cases, capsys):
    args = ["kalm", "test", str(out / "model"), "--episodes", "3", "--together", "3", "--cases", str(cases)]
    assert main([*args, "--levels", "rephrase"]) == 0
    results = json.loads((out / "model" / "test.json").read_text())
    assert results["cases"] == str(cases) and {"rephrase", "random"} <= set(results)
    assert main(args) == 2
    assert "--levels" in capsys.readouterr().err


def test_files_that_are_no_cases_are_refused(out, tmp_path):
    world, rng = world_of("clevr"), np.random.default_rng(0)
    for name, values in (
        ("none", {"goals": np.zeros((1, 6))}),
        ("narrow", {"observations": np.zeros((2, 9)), "goals": np.zeros((2, 6))}),
        ("nan", {"observations": np.full((2, 10), np.nan), "goals": np.zeros((2, 6))}),
        ("goals", {"observations": np.zeros((2, 10)), "goals": np.zeros((2, 6))}),
    ):
        np.save(tmp_path / f"{name}.npy", values, allow_pickle=True)
        with pytest.raises(DataError, match=name):
            collect.read_cases(tmp_path / f"{name}.npy", world, "real", rng)
    with pytest.raises(DataError, match="metaworld"):
        collect.read_cases(tmp_path / "none.npy", world_of("metaworld"), "real", rng)


def test_published_levels_are_ours():
    names = ("baseline", "rephrase_level", "easy_level", "hard_level")
    assert tuple(level_of(name) for name in names) == LEVELS


def test_tasks_of_published_files_are_ours():
    about = {"env_names": np.array(["reach-v2", "rep-pick-place-wall-v2", "door-lock"])}
    assert [NAMES[i] for i in metaworld_goals(about, "real")[:, 0]] == ["reach", "pick-place-wall", "door-lock"]
    with pytest.raises(DataError, match="env_names.*'basketball'.*KALM's"):
        metaworld_goals({"env_names": np.array(["basketball-v2"])}, "real")
    with pytest.raises(DataError, match="'env_names'"):
        metaworld_goals({}, "real")


@pytest.mark.slow
def test_the_published_test_command(out):
    """Its folder is the value of a flag, and ours has none."""
    args = ["--level", "easy", "--model_path", str(out / "model"), "--episodes", "2", "--together", "2"]
    assert main(["kalm", "test", *args]) == 0
    assert "easy" in json.loads((out / "model" / "test.json").read_text())
