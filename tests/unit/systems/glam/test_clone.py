"""Behaviour cloning: from demonstrations in words to rows of tokens, and from these to a model that plays."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import envs_jax
from llmrl_jax import lm
from llmrl_jax.agents.agent import Episode
from llmrl_jax.agents.babyai import DemosError, read_demos, write_demos
from llmrl_jax.cli.main import main
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam import clone
from llmrl_jax.systems.glam.clone import check, cloning_data, windows
from llmrl_jax.systems.glam.config import CLONE_PRESETS, CloneRun, CloningConfig, GlamConfig, preset
from llmrl_jax.tuning import SFTConfig
from tests.glam import FULL, WORLD, program


CONFIG = replace(FULL, history=3, list_actions=True)
WALKS = ([2, 0, 2, 2, 1, 2], [1, 1, 2, 0, 0], [5, 2])
"""Actions of three episodes."""


@pytest.fixture(scope="module")
def glam():
    return program(CONFIG)


@pytest.fixture(scope="module")
def walked(glam):
    """Episodes of given actions, as they are played in the wrapped world: with its observations."""
    env, params = glam.env, glam.env_params
    world, _ = envs_jax.make(WORLD)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    episodes, seen = [], []
    for number, actions in enumerate(WALKS):
        obs, state = reset(jax.random.key(number), params)
        shown = []
        for action in actions:
            shown.append(jax.device_get(obs))
            obs, state, *_ = step(jax.random.key(0), state, np.int32(action), params)
        n, last = len(actions), np.arange(len(actions)) == len(actions) - 1
        episodes.append(
            Episode(
                number=number,
                success=True,
                observed={
                    "mission": np.stack([o["mission"] for o in shown]),
                    "text": np.stack([o["text"][o["count"] - 1] for o in shown]),
                    "direction": np.zeros(n, np.int32),
                    "position": np.zeros((n, 2), np.int32),
                    "max_steps": np.full(n, 16, np.int32),
                },
                action=np.array(actions, np.int32),
                reward=last.astype(np.float32),
                terminated=last,
                truncated=~last & last,
            )
        )
        seen.append(shown)
    return world, episodes, seen


@pytest.fixture
def file(walked, tmp_path):
    world, episodes, _ = walked
    write_demos(tmp_path / "demos.parquet", episodes, world, seed=0, facts={})
    return tmp_path / "demos.parquet"


def test_windows_are_those_of_the_policy(walked):
    _, episodes, seen = walked
    for episode, shown in zip(episodes, seen, strict=True):
        found = windows(episode.observed["mission"][0], episode.observed["text"], episode.action, 3)
        for t, obs in enumerate(shown):
            for name, value in obs.items():
                np.testing.assert_array_equal(found[name][t], value, err_msg=f"{name} of step {t}")
    mission, text = episodes[0].observed["mission"][0], episodes[0].observed["text"]
    alone = windows(mission, text, episodes[0].action, 1)
    assert alone["actions"].shape == (6, 0) and alone["count"].tolist() == [1] * 6
    np.testing.assert_array_equal(alone["text"][:, 0], text)


def test_rows_are_the_prompt_and_the_action(glam, walked, file):
    """Beside the tokenizer's own for the prompt in words."""
    _, episodes, seen = walked
    rows = cloning_data(glam, file, CloningConfig(held_out=0.0))
    assert rows.episodes == 3 and not rows.held_out and len(rows.train) == 13
    names, tokenizer = glam.prompt.actions, glam.tokenizer
    steps = [(obs, names[a]) for e, shown in zip(episodes, seen) for obs, a in zip(shown, e.action.tolist())]
    for row, (obs, action) in zip(rows.train, steps, strict=True):
        head, answer = tokenizer.encode(glam.prompt.render(obs)), tokenizer.encode(action)
        assert row.tokens == [*head, *answer, tokenizer.eos_id]
        assert row.learn == [False] * len(head) + [True] * (len(answer) + 1)
    plain = cloning_data(glam, file, CloningConfig(held_out=0.0, end=False))
    assert [row.tokens[:-1] for row in rows.train] == [row.tokens for row in plain.train]


def test_the_last_episodes_are_held_out(glam, file):
    rows = cloning_data(glam, file, CloningConfig(held_out=0.34))
    assert (len(rows.train), len(rows.held_out)) == (11, 2)
    rows = cloning_data(glam, file, CloningConfig(pairs=7, held_out=0.0))
    assert (len(rows.train), rows.episodes) == (11, 2), "the episode that reaches the seventh step is whole"
    with pytest.raises(DemosError, match="2.*held_out.*2"):
        cloning_data(glam, file, CloningConfig(pairs=1, held_out=0.9))


def test_demonstrations_that_do_not_fit_are_named(glam, walked, file, tmp_path):
    config = CloningConfig()
    with pytest.raises(DemosError, match="GoToObjS4-v0.*env.*BabyAI-Text/GoToLocal-v0.*--env BabyAI-Text/GoTo"):
        cloning_data(replace(glam, config=replace(CONFIG, env="BabyAI-Text/GoToLocal-v0")), file, config)
    with pytest.raises(DemosError, match="2.*'toggle'.*3.*--num-actions 6"):
        cloning_data(replace(glam, config=replace(CONFIG, num_actions=3)), file, config)
    world, episodes, _ = walked
    faithful = envs_jax.make(f"{WORLD}?describe=faithful")[0]
    faithful.id = WORLD  # a file of other words under the level's name
    stands = np.full_like(episodes[0].observed["text"], -1)
    stands[:, 0] = len(faithful.books.view) - 1
    write_demos(
        tmp_path / "b.parquet",
        [replace(episodes[0], observed={**episodes[0].observed, "text": stands})],
        faithful,
        seed=0,
        facts={},
    )
    with pytest.raises(DemosError, match=r"episode 0.*babyai\.VIEW.*'You stand"):
        cloning_data(glam, tmp_path / "b.parquet", config)
    with pytest.raises(ValueError, match="BabyAI-Text/GoToObjS4-v0.*--no-list-actions"):
        cloning_data(replace(glam, prompt=replace(glam.prompt, lists_offered=True)), file, config)


def test_the_published_values():
    """`clm_behavioral-cloning.py` of GLAM."""
    config, published = preset("bc", CLONE_PRESETS)
    assert (config.tune, config.history, config.list_actions) == ("full", 3, True)
    assert (published.pairs, published.epochs, published.pack) == (400_000, 1.0, False)
    usual = SFTConfig(
        batch_size=64,
        learning_rate=5e-4,
        schedule="cosine",
        warmup=0.01,
        weight_decay=0.0,
        adam_eps=1e-8,
        max_grad_norm=math.inf,
    )
    assert published.sft == usual
    assert preset("bc-lora", CLONE_PRESETS)[0].tune == "lora" and set(CLONE_PRESETS) == {"bc", "bc-lora", "bc-demo"}
    with pytest.raises(KeyError, match="'bc-lora'"):
        preset("bc_lora", CLONE_PRESETS)


def test_what_cannot_be_cloned_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match="agent.*drrn"):
        check(GlamConfig(agent="drrn"))
    with pytest.raises(ValueError, match="policy.*heads"):
        check(GlamConfig(policy="heads"))
    with pytest.raises(ValueError, match="--tune full"):
        check(GlamConfig())
    for wrong in ({"pairs": 0}, {"held_out": 1.0}, {"epochs": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CloningConfig(**wrong)
    run = ["glam", "clone", "--run.out", str(tmp_path), "--run.progress", "off"]
    for flags, said in {
        "--preset bcdemo": "did you mean 'bc-demo'",
        "--ppo.num-envs 8": "--ppo.num-envs is 8",
        "--demos a.parquet --from runs/b": "one of them",
        "--greedy": "--greedy is True",
        "--tune lora": "--tune full",
        "--env BabyAI-GoTo-v0": "'text'",
    }.items():
        assert main([*run, *flags.split()]) == 2, flags
        assert said in capsys.readouterr().err
    assert main([*run, "--preset", "bc-demo", "--demos", str(tmp_path / "none.parquet")]) == 2
    assert "of demonstrations" in capsys.readouterr().err


FLAGS = (
    f"--preset bc-demo --env {WORLD} --embedded.hidden-size 16 --embedded.layers 1 --embedded.heads 2"
    " --embedded.intermediate-size 16 --value-width 8 --score-rows 0 --eval-episodes 64 --run.progress off"
).split()


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def cloned(tmp_path_factory):
    """A small Llama that has imitated the bot."""
    out = tmp_path_factory.mktemp("runs")
    run = ["glam", "clone", *FLAGS, "--pairs", "1200", "--run.out", str(out)]
    assert main([*run, "--run.name", "bot", "--epochs", "4"]) == 0
    return out / "bot"


def test_demonstrations_of_another_attempt_are_not_learnt(file, tmp_path, monkeypatch):
    """A first attempt that failed left its file: only a resume goes on with it."""
    assert file == tmp_path / "demos.parquet"
    glam, cloning = preset("bc-demo", CLONE_PRESETS)
    config = CloneRun(glam=glam, clone=cloning, run=RunConfig(name="x", out=str(tmp_path)))
    monkeypatch.setattr(clone, "player", lambda config: pytest.fail("plays again"))
    with pytest.raises(pytest.fail.Exception, match="plays again"):
        clone.demonstrations(config, tmp_path)
    again = replace(config, run=replace(config.run, resume=True))
    assert clone.demonstrations(again, tmp_path) == tmp_path / "demos.parquet"


@pytest.mark.slow
def test_the_bot_is_imitated_by_command(cloned):
    summary = json.loads((cloned / "summary.json").read_text())
    assert summary["after"]["greedy"]["success"] > 0.9 > 0.5 > summary["before"]["greedy"]["success"]
    assert summary["pairs"] + summary["held_out_pairs"] >= 1200 > summary["held_out_pairs"] > 0
    measured = [line["loss"] for line in lines(cloned) if line["kind"] == "eval"]
    assert measured[-1] < 0.3 * measured[0], "on episodes that were not learnt from"
    assert main(["eval", str(cloned), "--checkpoint", str(summary["updates"])]) == 0, "the data are read again"
    evaluated = json.loads((cloned / f"eval-{summary['updates']}.json").read_text())
    assert {way: evaluated[way] for way in ("sampled", "greedy")} == summary["after"]
    assert evaluated["random"] == summary["random"]
    told, episodes = read_demos(cloned / "demos.parquet")
    assert told["player"] == "bot" and all(demo.success for demo in episodes)


@pytest.mark.slow
def test_a_clone_that_was_stopped_goes_on_with_the_same_bits(cloned, tmp_path):
    demos = ["--demos", str(cloned / "demos.parquet"), "--run.out", str(tmp_path), "--eval-episodes", "0"]
    run = ["glam", "clone", *FLAGS, *demos, "--pairs", "1200", "--epochs", "4"]
    assert main([*run, "--run.name", "whole"]) == 0
    assert main([*run, "--run.name", "cut", "--run.max-seconds", "0.01", "--run.log-every", "5"]) == 0
    assert json.loads((tmp_path / "cut" / "summary.json").read_text())["stopped"] == "time budget"
    assert not (tmp_path / "cut" / "model").exists()
    again = ["glam", "clone", "--run.name", "cut", "--run.out", str(tmp_path), "--run.resume", "--run.max-seconds", "0"]
    assert main(again) == 0
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_what_was_cloned_is_tested_and_trained_on(cloned, tmp_path, capsys):
    model = str(cloned / "model")
    test = ["glam", "test", "--model", model, "--preset", "demo", "--env", WORLD, "--tests", "no_modification_test"]
    assert main([*test, "--episodes", "64", "--out", str(tmp_path / "tests")]) == 0
    said = capsys.readouterr().out
    assert "paper (BC)" in said and (tmp_path / "tests" / "bot" / "test" / "tests.json").exists()
    record = json.loads((tmp_path / "tests" / "bot" / "test" / "tests.json").read_text())["no_modification_test"]
    summary = json.loads((cloned / "summary.json").read_text())
    assert record["greedy"]["success"] == summary["after"]["greedy"]["success"], "the same model on the same episodes"
    train = [
        "glam",
        "train",
        *FLAGS[2:4],
        "--preset",
        "demo",
        "--model",
        model,
        "--value-width",
        "8",
        "--run.out",
        str(tmp_path),
    ]
    ppo = "--ppo.num-envs 4 --ppo.num-steps 4 --ppo.minibatches 2 --ppo.microbatches 1 --ppo.epochs 1 --ppo.pool-size 8"
    assert main([*train, *ppo.split(), "--score-rows", "0", "--steps", "32", "--run.name", "rl"]) == 0
    # and the agent that RL left is imitated in turn, by adapters on the same model
    again = [
        "glam",
        "clone",
        *FLAGS[:4],
        "--model",
        model,
        "--tune",
        "lora",
        "--score-rows",
        "0",
        "--run.progress",
        "off",
    ]
    few = ["--pairs", "300", "--eval-episodes", "16", "--run.out", str(tmp_path), "--run.name", "second"]
    assert main([*again, "--from", str(tmp_path / "rl"), "--greedy", *few]) == 0
    told = read_demos(tmp_path / "second" / "demos.parquet")[0]
    assert (told["player"], told["agent"], told["update"], told["greedy"]) == ("rl", "llm", 2, True)
    folder = tmp_path / "second"
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    base, variables = lm.load(model)
    tuned, adapted = lm.load_adapter(folder / "adapter", base, variables)
    merged, whole = lm.load(folder / "model")
    tokens = np.arange(12, dtype=np.int32)[None]
    np.testing.assert_allclose(
        tuned.apply(adapted, tokens).logits, merged.apply(whole, tokens).logits, atol=2e-5, rtol=2e-5
    )
    assert not np.allclose(base.apply(variables, tokens).logits, merged.apply(whole, tokens).logits, atol=1e-3)
