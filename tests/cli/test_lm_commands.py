"""`llmrl lm`: a small model is fine-tuned from its folder, resumed, asked; what it cannot use is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.cli import main as cli
from llmrl_jax.tuning import GRPOConfig
from llmrl_jax.workflows.tuning import Tuned, load_base, with_end_tokens, write_tuned


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that knows a few words, and rows to learn by heart."""
    root = tmp_path_factory.mktemp("lm")
    tokenizer = lm.WordTokenizer.from_texts(["red green blue sky grass blood what colour is ?"])
    config = lm.LlamaConfig(16, 32, 48, 2, 4, 2, max_position_embeddings=24, eos_token_id=tokenizer.eos_id)
    params = jax.jit(lm.Llama(config).init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    params["lm_head"]["kernel"] *= 20.0
    lm.save_hf(root / "model", config, params)
    tokenizer.save(root / "model")
    facts = {"sky": "blue", "grass": "green", "blood": "red"}
    rows = [{"prompt": f"what colour is {thing} ?", "response": f" {colour}"} for thing, colour in facts.items()]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def tune(folder, *options):
    args = ["lm", "sft", "--model", folder / "model", "--data", folder / "rows.jsonl", "--length", "8", "--no-pack"]
    args += ["--sft.batch-size", "3", "--sft.learning-rate", "0.005", "--run.out", folder / "runs"]
    return cli.main([str(a) for a in [*args, "--run.progress", "off", *options]])


def test_it_learns_is_resumed_and_answers(folder, capsys):
    options = ["--epochs", "200", "--lora.targets", *lm.declare.projections(lm.read_config(folder / "model"))]
    held_out = ["--eval-data", folder / "rows.jsonl"]
    assert tune(folder, *options, *held_out, "--run.name", "whole") == 0
    assert "3 examples in 3 rows of 8" in capsys.readouterr().out
    run = folder / "runs" / "whole"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evals = [line["loss"] for line in lines if line["kind"] == "eval"]
    assert len(evals) == 2 and evals[1] < 0.02 * evals[0]
    assert json.loads((run / "summary.json").read_text())["written"] == "adapter"
    assert (run / "learning_curve.png").stat().st_size > 1000

    ask = ["lm", "generate", "what colour is grass ?", "--model", str(folder / "model"), "--temperature", "0"]
    assert cli.main([*ask, "--adapter", str(run / "adapter"), "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == " green"
    for i, source in enumerate(([run], [folder / "model", "--adapter", run / "adapter"])):
        words = ["lm", "convert", "--out", folder / f"merged-{i}", "--model", *source]
        assert cli.main([str(word) for word in words]) == 0
        assert cli.main([*ask[:4], str(folder / f"merged-{i}"), *ask[5:], "--max-new-tokens", "3"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == " green"
    assert (
        cli.main(
            [*ask, "--adapter", str(run / "adapter"), "--stop", "green", "--samples", "2", "--max-new-tokens", "3"]
        )
        == 0
    )
    assert capsys.readouterr().out.count("stop_string") == 2

    # stopped at once by its time budget, then resumed: the same bits
    assert tune(folder, *options, "--run.name", "cut", "--run.max-seconds", "1e-9") == 0
    assert json.loads((folder / "runs" / "cut" / "summary.json").read_text())["stopped"] == "time budget"
    assert not (folder / "runs" / "cut" / "adapter").exists()
    assert tune(folder, *options, "--run.name", "cut", "--run.resume") == 0
    both = [lm.load_adapter(folder / "runs" / n / "adapter", *lm.load(folder / "model"))[1] for n in ("whole", "cut")]
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.slow
def test_full_tuning_writes_a_model(folder, tmp_path):
    chats = shutil.copytree(folder / "model", tmp_path / "model")
    (chats / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    assert tune(folder, "--tune", "full", "--epochs", "1", "--run.name", "full", "--model", chats) == 0
    written = folder / "runs" / "full" / "model"
    assert lm.load_tokenizer(written).encode("what") == lm.load_tokenizer(folder / "model").encode("what")
    assert (written / "chat_template.jinja").read_text() == (chats / "chat_template.jinja").read_text()
    _, variables = lm.load(written)
    _, base = lm.load(folder / "model")
    assert not np.allclose(variables["params"]["norm"]["scale"], base["params"]["norm"]["scale"], atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", "100"], "length is 100"),
        (["--length", "4"], "rows.jsonl:1 has 7 tokens"),
        (["--epochs", "0"], "epochs is 0"),
        (["--sft.batch-size", "4"], "the 4"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_what_cannot_be(folder, capsys, options, message):
    assert tune(folder, *options, "--run.name", "never") == 2
    assert message in capsys.readouterr().err
    assert not (folder / "runs" / "never").exists()


def test_a_model_without_a_chat_template_is_not_chatted_with(folder, capsys):
    assert cli.main(["lm", "generate", "what", "--model", str(folder / "model"), "--chat"]) == 2
    assert "chat template" in capsys.readouterr().err


def test_a_model_is_converted_and_asked(folder, tmp_path, capsys):
    ask = ["lm", "generate", "what colour is grass ?", "--temperature", "0", "--max-new-tokens", "3", "--model"]
    assert cli.main([*ask, str(folder / "model")]) == 0
    said = capsys.readouterr().out
    out = tmp_path / "converted"
    assert cli.main(["lm", "convert", "--model", str(folder / "model"), "--out", str(out), "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert cli.main([*ask, str(out)]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.slow
def test_every_end_token_that_a_folder_names_ends_a_text(folder, tmp_path, capsys):
    shutil.copytree(folder / "model", tmp_path / "model")
    tokenizer = lm.load_tokenizer(tmp_path / "model")
    ask = ["lm", "generate", "what colour is grass ?", "--model", str(tmp_path / "model"), "--temperature", "0"]
    assert cli.main([*ask, "--max-new-tokens", "1"]) == 0
    word = capsys.readouterr().out.strip()
    (end,) = tokenizer.encode(word)
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 9999, None]}))
    assert lm.end_tokens(tmp_path / "model", tokenizer) == tuple(sorted((end, tokenizer.eos_id)))
    assert cli.main([*ask, "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.strip() == ""
    config = with_end_tokens(GRPOConfig(), tmp_path / "model", tokenizer)
    assert set(config.stop_tokens) == {end, tokenizer.eos_id}
    assert with_end_tokens(GRPOConfig(stop_tokens=(3,)), tmp_path / "model", tokenizer).stop_tokens == (3,)


def test_what_was_tuned_on_takes_the_place_of_what_was_written(folder, tmp_path):
    _, variables = lm.load(folder / "model")
    tokenizer, model = lm.load_tokenizer(folder / "model"), lm.Llama(lm.read_config(folder / "model"))
    for scale in (1.0, 2.0):
        params = jax.tree.map(lambda x, scale=scale: scale * x, variables["params"])
        state = SimpleNamespace(params=params, frozen={"base": {}})
        assert write_tuned(tmp_path, "base", model, state, tokenizer, None, ends=(1, 3)) == "model"
        jax.tree.map(np.testing.assert_array_equal, lm.load(tmp_path / "model")[1]["params"], params)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert lm.load_tokenizer(tmp_path / "model").eos_id == tokenizer.eos_id
    assert lm.end_tokens(tmp_path / "model", tokenizer) == tuple(sorted({1, 3, tokenizer.eos_id}))


def test_weights_that_are_trained_are_float32(folder):
    for tune, kept in (("full", jnp.float32), ("lora", jnp.bfloat16)):
        config = Tuned(model=str(folder / "model"), tune=tune, dtype="bfloat16")
        model, variables = load_base(config, folder / "model", None)
        assert model.dtype == jnp.bfloat16 and model.param_dtype == kept
        assert {leaf.dtype for leaf in jax.tree.leaves(variables["params"])} == {jnp.dtype(kept)}


def reward(folder, *options):
    args = ["lm", "grpo", "--model", folder / "model", "--data", folder / "rows.jsonl", "--reward", "contains"]
    args += ["--grpo.prompts", "3", "--grpo.group", "16", "--grpo.max-new-tokens", "3", "--run.out", folder / "runs"]
    args += ["--grpo.learning-rate", "0.02", "--grpo.temperature", "4", "--tune", "full", "--run.progress", "off"]
    return cli.main([str(a) for a in [*args, *options]])


@pytest.mark.slow
def test_rewards_teach_what_was_never_shown(folder, capsys):
    assert reward(folder, "--updates", "60", "--eval-data", folder / "rows.jsonl", "--run.name", "grpo") == 0
    assert "rows.jsonl: 3 prompts of up to" in capsys.readouterr().out
    run = folder / "runs" / "grpo"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evals = [line["reward"] for line in lines if line["kind"] == "eval"]
    assert len(evals) == 2 and evals[0] < 0.7 and evals[1] > 0.9, evals
    assert json.loads((run / "summary.json").read_text())["written"] == "model"
    ask = ["lm", "generate", "what colour is grass ?", "--model", str(run / "model"), "--temperature", "0"]
    assert cli.main([*ask, "--max-new-tokens", "3"]) == 0
    assert "green" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_rewarding_is_resumed_to_the_bit(folder):
    """Stopped by its time budget and resumed, or ended and extended: the same bits, though the reward is Python."""
    assert reward(folder, "--updates", "4", "--run.name", "r-whole") == 0
    assert reward(folder, "--updates", "4", "--run.name", "r-cut", "--run.max-seconds", "1e-9") == 0
    assert reward(folder, "--updates", "4", "--run.name", "r-cut", "--run.resume") == 0
    assert reward(folder, "--updates", "2", "--run.name", "r-more") == 0
    assert reward(folder, "--updates", "4", "--run.name", "r-more", "--run.resume") == 0
    whole, *others = (lm.load(folder / "runs" / name / "model")[1] for name in ("r-whole", "r-cut", "r-more"))
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, whole, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reward", "exacct"], "'exacct'"),
        (["--max-prompt", "3"], "rows.jsonl:1: the prompt"),
        (["--grpo.max-new-tokens", "30"], "24 positions"),
        (["--updates", "0"], "updates is 0"),
        (["--grpo.prompts", "4"], "3 prompts"),
    ],
)
def test_grpo_names_what_it_cannot_use(folder, capsys, options, message):
    assert reward(folder, *options) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_fit_as_json_has_the_numbers_of_the_table(capsys, monkeypatch):
    from llmrl_jax.workflows.memory import fit, fit as advice
    from llmrl_jax.workflows.memory.config import FitConfig

    parts = {"parameters": (6 << 30, 6 << 30), "program": (3 << 30, None)}
    result = fit.Fit(FitConfig("m"), parts, 10, 5, "1 x H100 (gpu)", 8 << 30, 2.0)
    monkeypatch.setattr(fit, "fit", lambda config: result)
    monkeypatch.setattr(advice, "advice", lambda result: ["--remat saves 1 GiB"])
    assert cli.main(["lm", "fit", "--model", "m", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["parts"]["parameters"] == {"per_device": 6 << 30, "one_copy": 6 << 30}
    assert (printed["total"], printed["fits"], printed["advice"]) == (9 << 30, False, ["--remat saves 1 GiB"])
    assert cli.main(["lm", "fit", "--model", "m"]) == 1
    assert "9.0 GiB\n" in capsys.readouterr().out


def test_fit_compares_two_results_and_compiles_nothing(tmp_path, capsys, monkeypatch):
    from llmrl_jax.workflows.memory import fit
    from llmrl_jax.workflows.memory.config import FitConfig

    results = [
        fit.Fit(FitConfig("m", remat=on), {"program": (n, None)}, 1, 1, "d", None, 2.0)
        for on, n in ((False, 4), (True, 3))
    ]
    monkeypatch.setattr(fit, "fit", lambda config: results.pop(0))
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path in paths:
        cli.main(["lm", "fit", "--model", "m", "--json"])
        Path(path).write_text(capsys.readouterr().out)
    assert cli.main(["lm", "fit", "--json", "--compare", *paths]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["memory"] == [4, 3]
    assert cli.main(["lm", "fit", "--compare", *paths]) == 0
    assert "0.75" in capsys.readouterr().out
    assert cli.main(["lm", "fit", "--compare", paths[0]]) != 0
    assert "two files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "v5q:2x4"], "you mean"),
        (["--workload", "dqn", "--target", "v5e:2x4", "--mesh", "data=4"], "match them"),
        (["--target", "v5e:2x4", "--devices", "8"], "--devices"),
        (["--workload", "dqn", "--target", "v5e:2x4x2"], "v5e:4x4"),
        ([], "--model takes"),
    ],
)
def test_fit_names_what_is_wrong_with_a_target(capsys, options, message):
    assert cli.main(["lm", "fit", *options]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
