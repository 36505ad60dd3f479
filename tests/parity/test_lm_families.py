"""Llama 1 to 3.2, TinyLlama, Mistral, Qwen2, 2.5 and 3 against transformers, in float32: recorded always, live where
slow; and what a window or a bias must not break: caches, scoring, meshes, round trips."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from llmrl_jax import lm
from llmrl_jax.parallel import make_mesh
from tests.lm_random import random_variables
from tests.parity.families import FAMILIES, LENGTH, RECORDED, Family, inputs, torch_logits, torch_model


TOLERANCE = 1e-4
BY_NAME = {family.name: family for family in FAMILIES}
WINDOWED = lm.LlamaConfig(
    32, 16, 24, 3, 4, 2, model_type="qwen3", sliding_window=5, sliding_layers=(True, False, True)
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDED) as file:
        return dict(file)


def ours(model: lm.Llama, variables) -> np.ndarray:
    tokens, positions, at = inputs()
    run = jax.jit(lambda v, t, p, a: model.apply(v, t, positions=p, at=a).logits)
    return np.asarray(run(variables, tokens, positions, at))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_logits_agree_with_what_was_recorded(family: Family, recorded, tmp_path):
    got = ours(*lm.load(family.write(tmp_path)))
    np.testing.assert_allclose(got, recorded[family.name], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral-window", {"sliding_window": None}),
        ("mistral-window", {"sliding_window": 25}),
        ("qwen2-window", {"sliding_layers": (True, True, False)}),
        ("qwen3-window", {"sliding_layers": None}),
    ],
    ids=str,
)
def test_a_wrong_window_would_be_seen(name, change, recorded, tmp_path):
    model, variables = lm.load(BY_NAME[name].write(tmp_path))
    wrong = lm.Llama(dataclasses.replace(model.config, **change))
    assert np.abs(ours(wrong, variables) - recorded[name]).max() > 50 * TOLERANCE


@pytest.mark.parametrize(("name", "leaf"), [("qwen2", "bias"), ("qwen3", "scale")])
def test_an_unread_bias_or_norm_would_be_seen(name, leaf, recorded, tmp_path):
    model, variables = lm.load(BY_NAME[name].write(tmp_path))
    attention = variables["params"]["layers"]["self_attn"]
    for matrix in ("k_proj", "v_proj") if leaf == "bias" else ("k_norm",):
        attention[matrix] = {**attention[matrix], leaf: jnp.full_like(attention[matrix][leaf], leaf == "scale")}
    assert np.abs(ours(model, variables) - recorded[name]).max() > 50 * TOLERANCE


@pytest.mark.parametrize("name", ["mistral-window", "qwen3-window"])
def test_a_cache_respects_the_window(name, recorded, tmp_path):
    model, variables = lm.load(BY_NAME[name].write(tmp_path))
    tokens, positions, at = inputs()
    run = jax.jit(
        lambda c, t, p: (lambda out: (out.logits, out.cache))(model.apply(variables, t, positions=p, cache=c))
    )
    cache, parts = lm.Cache.create(model.config, 2, LENGTH), []
    for i in range(0, LENGTH, LENGTH // 3):
        part, cache = run(cache, tokens[:, i : i + LENGTH // 3], positions[:, i : i + LENGTH // 3])
        parts.append(part)
    got = jnp.take_along_axis(jnp.concatenate(parts, axis=1), jnp.asarray(at)[..., None], axis=1)
    np.testing.assert_allclose(got, recorded[name], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("unroll", [None, 1])
def test_scores_respect_the_window(unroll):
    """Prefix, prompt and candidates each reach across the window of 5; the oracle is a plain pass over the whole."""
    model = lm.Llama(WINDOWED, unroll=unroll)
    variables = random_variables(model)
    candidates = lm.Candidates([[3, 4], [3, 5], [6], [3, 4, 7, 8, 9, 1, 2]])
    tokens = np.random.default_rng(1).integers(0, 32, (3, 9)).astype(np.int32)
    lengths = np.array([9, 1, 4], np.int32)
    prefix = (11, 12, 3, 4, 8, 1, 30)
    got = jax.jit(lambda v: lm.score(model, v, tokens, lengths, candidates, prefix))(variables)
    want = jax.jit(lambda v: lm.score_naive(model, v, tokens, lengths, candidates, prefix))(variables)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), got, want)
    if unroll:
        whole = lm.Llama(dataclasses.replace(WINDOWED, sliding_window=None, sliding_layers=None), unroll=unroll)
        other = jax.jit(lambda v: lm.score(whole, v, tokens, lengths, candidates, prefix))(variables)
        assert np.abs(other.sum - want.sum).max() > 0.01


@pytest.mark.parametrize("name", ["llama32", "mistral-window", "qwen2-window", "qwen3-window"])
def test_what_is_written_is_what_was_read(name, tmp_path):
    family = BY_NAME[name]
    model, variables = lm.load(family.write(tmp_path / "theirs"), make_mesh("fsdp=2,tensor=2"))
    lm.save_hf(tmp_path / "ours", model.config, variables["params"])
    wrote = load_file(tmp_path / "ours" / "model.safetensors")
    want = family.weights()
    assert set(wrote) == set(want)
    for tensor, value in want.items():
        np.testing.assert_array_equal(wrote[tensor], value)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["architectures"] == [f"{family.kind.capitalize()}ForCausalLM"]
    assert lm.LlamaConfig.from_hf(config) == dataclasses.replace(model.config, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_logits_agree_with_transformers(family: Family, tmp_path):
    pytest.importorskip("torch")
    got = ours(*lm.load(family.write(tmp_path)))
    np.testing.assert_allclose(got, torch_logits(torch_model(tmp_path)), atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_folders_go_both_ways(family: Family, tmp_path):
    """A folder that transformers wrote is read here; one written here is read there, as the same model."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    auto = transformers.AutoModelForCausalLM
    theirs = auto.from_pretrained(family.write(tmp_path / "seed"), dtype=torch.float32).eval()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    tokens = inputs()[0]
    with torch.no_grad():
        want = theirs(torch.tensor(tokens).long()).logits.numpy()
    model, variables = lm.load(tmp_path / "theirs", make_mesh("fsdp=2"))
    np.testing.assert_allclose(jax.jit(model.apply)(variables, tokens).logits, want, atol=TOLERANCE)
    lm.save_hf(tmp_path / "ours", model.config, variables["params"], max_shard_bytes=60_000)
    back = auto.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert type(back) is type(theirs)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    with torch.no_grad():
        np.testing.assert_array_equal(back(torch.tensor(tokens).long()).logits.numpy(), want)
