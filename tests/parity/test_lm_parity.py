"""The Llama against Hugging Face transformers, in float32 over 2,048 tokens: recorded always, live where slow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from tests.parity.lm_cases import LENGTH, Case, covering, matrix, torch_logits


DATA = Path(__file__).parents[1] / "data"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def recorded():
    with np.load(DATA / "lm_logits.npz") as file:
        return dict(file)


def ours(case: Case, folder: Path, **changes) -> np.ndarray:
    model, variables = lm.load(case.write(folder))
    if changes:
        model = lm.Llama(dataclasses.replace(model.config, **changes))
    tokens, positions, at = case.inputs()
    run = jax.jit(lambda v, t, p, a: model.apply(v, t, positions=p, at=a).logits)
    return np.asarray(run(variables, tokens, positions, at))


RECORDED = [
    case if i % 3 == i // 3 % 3 else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(covering())
]
"""In the ordinary run every rope type once, with the bases in turn."""


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_logits_agree_with_what_was_recorded(case, recorded, tmp_path):
    np.testing.assert_allclose(ours(case, tmp_path), recorded[str(case)], atol=TOLERANCE, rtol=0)


def test_a_wrong_base_would_be_seen(recorded, tmp_path):
    case = covering()[1]
    wrong = ours(case, tmp_path, rope=lm.RopeConfig(theta=1e6))
    assert np.abs(wrong - recorded[str(case)]).max() > 100 * TOLERANCE


@pytest.mark.parametrize("case", [covering()[i] for i in (2, 10)], ids=str)
def test_cached_logits_agree_with_what_was_recorded(case, recorded, tmp_path):
    model, variables = lm.load(case.write(tmp_path))
    tokens, positions, at = case.inputs()
    half = LENGTH // 2
    run = jax.jit(
        lambda c, t, p: (lambda out: (out.logits, out.cache))(model.apply(variables, t, positions=p, cache=c))
    )
    cache = lm.Cache.create(model.config, 2, LENGTH)
    first, cache = run(cache, tokens[:, :half], positions[:, :half])
    second, cache = run(cache, tokens[:, half:], positions[:, half:])
    whole = jnp.concatenate([first, second], axis=1)
    got = jnp.take_along_axis(whole, jnp.asarray(at)[..., None], axis=1)
    np.testing.assert_allclose(got, recorded[str(case)], atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(cache.lengths(), positions.max(1) + 1)


def test_both_spellings_of_a_config_are_one():
    file = json.loads((DATA / "lm_configs.json").read_text())
    old, new = lm.LlamaConfig.from_hf(file["v4"]), lm.LlamaConfig.from_hf(file["v5"])
    assert old == new
    assert old.rope == lm.RopeConfig(theta=500000.0, type="llama3", factor=32.0, original_max_position_embeddings=8192)
    assert (old.dtype, old.eos_token_id, old.kv_heads, old.tie_word_embeddings) == ("bfloat16", 128001, 8, True)
    assert lm.LlamaConfig.from_hf(old.to_hf()) == old


@pytest.mark.slow
@pytest.mark.parametrize("case", matrix(), ids=str)
def test_logits_agree_with_transformers(case, tmp_path):
    pytest.importorskip("torch")
    got = ours(case, tmp_path)
    np.testing.assert_allclose(got, torch_logits(case, tmp_path), atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_folders_go_both_ways(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, vocab_size=50, num_key_value_heads=2, rope_theta=5e5)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    tokens = np.arange(20)[None] % 50
    with torch.no_grad():
        want = theirs(torch.tensor(tokens)).logits.numpy()
    model, variables = lm.load(tmp_path / "theirs")
    np.testing.assert_allclose(model.apply(variables, tokens).logits, want, atol=1e-5)
    lm.save_hf(tmp_path / "ours", model.config, variables["params"], max_shard_bytes=20_000)
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours").eval()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls what transformers deprecates
def test_adapters_agree_with_peft(tmp_path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    case = covering()[0]
    config = lm.LoRAConfig(rank=4, alpha=8.0, targets=("q_proj", "o_proj", "down_proj"), rslora=True)
    model, variables = lm.load(case.write(tmp_path), lora=config)
    lora = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["lora"]
    lora = jax.tree.map(lambda x: 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), lora)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = peft.get_peft_model(
        theirs, peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(config.targets), use_rslora=True)
    ).eval()
    state = theirs.state_dict()
    for block, matrices in lora["layers"].items():
        for name, ab in matrices.items():
            for i in range(model.config.num_hidden_layers):
                at = f"base_model.model.model.layers.{i}.{block}.{name}"
                a, b = np.asarray(ab["a"][i]).reshape(-1, 4).T, np.asarray(ab["b"][i]).reshape(4, -1).T
                state[f"{at}.lora_A.default.weight"].copy_(torch.tensor(a.copy()))
                state[f"{at}.lora_B.default.weight"].copy_(torch.tensor(b.copy()))
    tokens = case.inputs()[0][:, :64]
    with torch.no_grad():
        want = theirs(torch.tensor(tokens).long()).logits.numpy()
    got = model.apply({**variables, "lora": lora}, tokens).logits
    np.testing.assert_allclose(got, want, atol=TOLERANCE)
    assert np.abs(model.apply(variables, tokens).logits - want).max() > 0.1
