"""Model folders: what is refused before anything is allocated, and what survives a round trip."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmrl_jax import lm
from llmrl_jax.parallel import make_mesh
from tests.lm_random import random_variables


CONFIG = lm.LlamaConfig(32, 16, 24, 2, 4, 2, rope=lm.RopeConfig(theta=5e5))


@pytest.fixture(scope="module")
def params():
    return random_variables(lm.Llama(CONFIG))["params"]


@pytest.fixture
def folder(params, tmp_path):
    return lm.save_hf(tmp_path / "model", CONFIG, params)


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("shard", [10**9, 5000], ids=["single", "sharded"])
def test_round_trip_on_a_mesh(params, tmp_path, shard):
    folder = lm.save_hf(tmp_path / "m", CONFIG, params, max_shard_bytes=shard)
    assert (folder / "model.safetensors.index.json").exists() == (shard == 5000)
    model, variables = lm.load(folder, make_mesh("fsdp=4,tensor=2"))
    assert model.config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, variables["params"], params)
    kernel = variables["params"]["layers"]["self_attn"]["q_proj"]["kernel"]
    assert kernel.shape == (2, 16, 4, 4) and kernel.addressable_shards[0].data.shape == (2, 4, 2, 4)


def test_bfloat16_is_stored_and_read(params, tmp_path):
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    folder = lm.save_hf(tmp_path / "m", CONFIG, low)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    _, variables = lm.load(folder)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.float32)), variables["params"], low)


def test_a_missing_tensor_is_named(folder):
    rewrite(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"lack the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        lm.load(folder)


def test_a_misshapen_tensor_is_named(folder):
    rewrite(folder, lambda t: t.update({"model.norm.weight": np.ones(15, np.float32)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(15,\); config\.json asks for \(16,\)"):
        lm.load(folder)


def test_a_tensor_of_integers_is_named(folder):
    rewrite(folder, lambda t: t.update({"model.norm.weight": np.ones(16, np.int8)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is stored as I8"):
        lm.load(folder)


def test_an_unread_tensor_is_named(folder):
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(16, np.float32)}))
    with pytest.raises(ValueError, match=r"q_proj\.bias.*would not read"):
        lm.load(folder)


def test_a_damaged_file_is_named(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
        lm.load(folder)


def test_missing_files_are_named(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors.*pytorch_model\.bin.*converted"):
        lm.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        lm.load(folder)
    with pytest.raises(FileNotFoundError, match="no model folder"):
        lm.load(tmp_path / "nowhere")


def test_another_architecture_is_named(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"config\.json: model_type 'mamba' is not supported"):
        lm.load(folder)


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args, local_files_only=False, **kwargs):
        raise LocalEntryNotFoundError("not here") if local_files_only else OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(FileNotFoundError, match="'someone/llama' is no local folder.*no route.*give its folder"):
        lm.load("someone/llama")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(tmp_path))
    assert lm.locate("someone/llama") == tmp_path


def test_saving_is_whole_or_not_at_all(params, tmp_path):
    wrong = {**params, "norm": {"scale": jnp.ones(3)}}
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(3,\)"):
        lm.save_hf(tmp_path / "m", CONFIG, wrong)
    assert list(tmp_path.iterdir()) == []
    lm.save_hf(tmp_path / "m", CONFIG, params)
    with pytest.raises(FileExistsError):
        lm.save_hf(tmp_path / "m", CONFIG, params)


def test_a_mesh_that_does_not_divide_is_refused_before_reading(folder):
    with pytest.raises(ValueError, match=r"k_proj/kernel, dimension 2 \(kv_heads\) has size 2.*2 / 4 = 0\.50"):
        lm.load(folder, make_mesh("tensor=4"))
