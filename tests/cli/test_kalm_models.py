"""`llmrl kalm ground` with a model from a folder: adapters, random weights of its shape, adapters of another base."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.cli.main import main
from llmrl_jax.systems.kalm.ground import FRAMES, load_model
from llmrl_jax.systems.kalm.worlds import world_of


QUIET = "--run.progress off --run.log-every 1".split()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder with recorded episodes, and a model of one layer with a token for each word."""
    out = tmp_path_factory.mktemp("runs")
    assert (
        main(
            [
                "kalm",
                "collect",
                *"--level easy --episodes 24 --together 24 --run.name recorded --run.out".split(),
                str(out),
            ]
        )
        == 0
    )
    words = lm.WordTokenizer.from_texts([*FRAMES, *world_of("clevr").instructions.texts])
    size = -(-words.vocab_size // 8) * 8
    config = lm.LlamaConfig(size, 16, 16, 1, 2, 2, max_position_embeddings=256, eos_token_id=words.eos_id)
    params = jax.jit(lm.Llama(config).init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))["params"]
    lm.save_hf(out / "model", config, params)
    words.save(out / "model")
    return out


def ground(out, name, *more):
    args = ["--data", str(out / "recorded"), "--model", str(out / "model"), "--sft.batch-size", "2", "--epochs", "1"]
    where = ["--held-out", "0", "--run.out", str(out), "--run.name", name]
    return main(["kalm", "ground", *args, *QUIET, *where, *more])


@pytest.mark.slow
@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_adapters_are_grounded_merged_and_imagine(out, init):
    assert ground(out, f"lora-{init}", "--tune", "lora", "--init", init, "--states", "absolute") == 0
    found = load_model(out / f"lora-{init}")
    assert found.model.llama.lora is None and found.model.states == "absolute"
    _, base = lm.load(out / "model")
    own = found.variables["params"]["layers"]["mlp"]["up_proj"]["kernel"]
    same = np.array_equal(own, base["params"]["layers"]["mlp"]["up_proj"]["kernel"])
    assert same == (init == "pretrained")  # adapters are on queries and values alone, unless asked for
    args = ["--grounded", str(out / f"lora-{init}"), "--data", str(out / "recorded"), "--level", "easy"]
    size = ["--episodes", "4", "--together", "4", "--run.out", str(out), "--run.name", f"imagined-{init}"]
    assert main(["kalm", "imagine", *args, *size]) == 0
    assert 0 <= json.loads((out / f"imagined-{init}" / "summary.json").read_text())["success"] <= 1


def test_adapters_alone_are_no_model(out, capsys):
    model, _ = lm.load(out / "model", lora=lm.LoRAConfig(rank=2))
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    folder = lm.save_adapter(out / "adapter", model, variables)
    assert ground(out, "wrong", "--model", str(folder)) != 0
    said = capsys.readouterr().err.replace("\n", " ")
    assert str(folder) in said and "is an adapter" in said and "llmrl lm convert" in said
    assert not (out / "wrong").exists()
