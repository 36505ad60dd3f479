"""Model folders: what is refused before anything is allocated, and what survives a round trip."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmrl_jax import lm
from llmrl_jax.lm import tensors, weights
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


def test_a_folder_in_the_home_folder(folder, params, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    for read in (lm.load, weights.load_hf):
        jax.tree.map(np.testing.assert_array_equal, read("~/model")[1]["params"], params)


@pytest.mark.parametrize("kind", [pytest.param("qwen2", marks=pytest.mark.slow), "qwen3"])
@pytest.mark.parametrize(("mesh", "ways"), [(None, 1), ("fsdp=4,tensor=2", 8), ("data=2,fsdp=2,tensor=2", 4)])
def test_layer_by_layer_is_all_at_once(mesh, ways, kind, tmp_path, monkeypatch):
    """Biases and norms too; and no more than a device's part of one tensor is staged at a time."""
    config = dataclasses.replace(CONFIG, model_type=kind)
    want = random_variables(lm.Llama(config))["params"]
    folder = lm.save_hf(tmp_path / "m", config, want, max_shard_bytes=5000)
    staged = []
    monkeypatch.setattr(weights, "empty", lambda *args: staged.append(args[0]) or tensors.empty(*args))
    monkeypatch.setattr(weights, "_STAGED", 0)
    _, variables = lm.load(folder, mesh and make_mesh(mesh))
    jax.tree.map(np.testing.assert_array_equal, variables["params"], want)
    assert max(np.prod(shape) for shape in staged) == CONFIG.hidden_size * CONFIG.vocab_size // ways


def test_large_tensors_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "_BLOCK", 100)
    monkeypatch.setattr(tensors, "_PAGES", 64)
    value = np.arange(70 * 9, dtype=np.float32).reshape(70, 9)
    tensors.write_file(tmp_path / "x.safetensors", [("a", tensors.spec("a", value))], [value])
    np.testing.assert_array_equal(load_file(tmp_path / "x.safetensors")["a"], value)
    with closing(tensors.TensorFile(tmp_path / "x.safetensors")) as file:
        for part in ((slice(3, 61), slice(0, 9)), (slice(0, 70), slice(2, 5)), (slice(1, 2), slice(8, 9))):
            out = np.zeros(value[part].shape[::-1], np.float16)
            file.fill("a", out.T, part)
            np.testing.assert_array_equal(out.T, value[part].astype(np.float16))


def test_bfloat16_is_stored_and_read(params, tmp_path):
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    folder = lm.save_hf(tmp_path / "m", CONFIG, low)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    _, variables = lm.load(folder)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.float32)), variables["params"], low)


def test_a_missing_tensor_is_named(folder):
    rewrite(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        lm.load(folder)


def test_a_misshapen_tensor_is_named(folder):
    rewrite(folder, lambda t: t.update({"model.norm.weight": np.ones(15, np.float32)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*\(15,\).*\(16,\)"):
        lm.load(folder)


def test_a_tensor_of_integers_is_named(folder):
    rewrite(folder, lambda t: t.update({"model.norm.weight": np.ones(16, np.int8)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*I8"):
        lm.load(folder)


def test_an_unread_tensor_is_named(folder):
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(16, np.float32)}))
    with pytest.raises(ValueError, match=r"q_proj\.bias"):
        lm.load(folder)


def test_a_damaged_file_is_named(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors.*damaged"):
        lm.load(folder)


def edit_index(folder, change):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    change(index["weight_map"])
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


TENSOR = "model.norm.weight"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda f: (f / "model-00002-of-00005.safetensors").unlink(), "model-00002-of-00005"),
        (
            lambda f: edit_index(f, lambda m: m.update({TENSOR: "../x.safetensors"})),
            r"'\.\./x\.safetensors'",
        ),
        (lambda f: edit_index(f, lambda m: m.update({TENSOR: "model.bin"})), r"'model\.bin'"),
        (
            lambda f: edit_index(f, lambda m: m.update({"model.other": "model-00001-of-00005.safetensors"})),
            r"model-00001-of-00005\.safetensors.*model\.other",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{"), r"index\.json.*JSON"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json.*list"),
        (
            lambda f: (f / "model-00003-of-00005.safetensors").write_bytes(b"\x80\x02}q\x00."),
            r"model-00003-of-00005\.safetensors",
        ),
    ],
    ids=["missing", "outside", "pickle", "elsewhere", "index", "config", "not-safetensors"],
)
def test_a_fault_is_named_before_anything_is_allocated(fault, message, params, tmp_path, monkeypatch):
    folder = lm.save_hf(tmp_path / "m", CONFIG, params, max_shard_bytes=5000)
    assert len(list(folder.glob("*.safetensors"))) == 5
    monkeypatch.setattr(weights, "_load_leaf", lambda *args: pytest.fail("something was allocated"))
    fault(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        lm.load(folder)


def test_one_file_is_read_before_an_index_of_others(folder, params, tmp_path):
    """As transformers leaves a folder where a sharded model was saved before, and as it reads it."""
    lm.save_hf(tmp_path / "earlier", CONFIG, jax.tree.map(jnp.zeros_like, params), max_shard_bytes=5000)
    for file in (tmp_path / "earlier").glob("*.safetensors*"):
        file.rename(folder / file.name)
    read = lm.load(folder)[1]["params"]
    assert all(map(np.array_equal, jax.tree.leaves(read), jax.tree.leaves(params)))


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_head_is_the_embedding_to_which_it_is_tied(tmp_path, same, monkeypatch):
    monkeypatch.setattr(weights, "_ROWS", 20)
    config = dataclasses.replace(CONFIG, tie_word_embeddings=True)
    folder = lm.save_hf(tmp_path / "model", config, random_variables(lm.Llama(config))["params"])
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    head = embedding.copy()
    head[-1, 0] += 0 if same else 1
    rewrite(folder, lambda t: t.update({"lm_head.weight": head}))
    if same:
        lm.load(folder)
    else:
        with pytest.raises(ValueError, match=r"lm_head\.weight.*tie_word_embeddings to false"):
            lm.load(folder)


def test_missing_files_are_named(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors.*pytorch_model\.bin"):
        lm.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        lm.load(folder)
    with pytest.raises(FileNotFoundError, match="nowhere'"):
        lm.load(tmp_path / "nowhere")


def test_another_architecture_is_named(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"config\.json: model_type 'mamba'"):
        lm.load(folder)


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args, local_files_only=False, **kwargs):
        raise LocalEntryNotFoundError("not here") if local_files_only else OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(FileNotFoundError, match="'someone/llama'"):
        lm.load("someone/llama")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(tmp_path))
    assert lm.locate("someone/llama") == tmp_path


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("cached", "whole"),
    [
        (["tokenizer.json", "tokenizer_config.json"], False),
        (["config.json", "model.safetensors"], False),
        (["tokenizer_config.json", "config.json", "model-1.safetensors", INDEX], False),
        (["tokenizer_config.json", "config.json", "model-1.safetensors", "model-2.safetensors", INDEX], True),
        (["tokenizer_config.json", "config.json", "model.safetensors"], True),
        (["tokenizer_config.json", "modules.json", "0/config.json", "0/model.safetensors"], True),
        (["adapter_config.json", "adapter_model.safetensors"], True),
    ],
)
def test_a_snapshot_that_is_not_whole_is_downloaded(monkeypatch, tmp_path, cached, whole):
    import huggingface_hub

    for name in cached:
        (tmp_path / "cached" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cached" / name).write_text("{}")
    if INDEX in cached:
        names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        (tmp_path / "cached" / INDEX).write_text(json.dumps({"weight_map": names}))

    def download(*args, local_files_only=False, **kwargs):
        return str(tmp_path / ("cached" if local_files_only else "downloaded"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert lm.locate("someone/llama").name == ("cached" if whole else "downloaded")


def test_saving_is_whole_or_not_at_all(params, tmp_path):
    wrong = {**params, "norm": {"scale": jnp.ones(3)}}
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*\(3,\)"):
        lm.save_hf(tmp_path / "m", CONFIG, wrong)
    assert list(tmp_path.iterdir()) == []
    lm.save_hf(tmp_path / "m", CONFIG, params)
    with pytest.raises(FileExistsError):
        lm.save_hf(tmp_path / "m", CONFIG, params)


def test_a_disk_that_fills_leaves_nothing_behind(params, tmp_path, monkeypatch):
    write = tensors.write_file

    def full(path, *args):
        if "00002" in path.name:
            raise OSError(28, "No space left on device")
        write(path, *args)

    monkeypatch.setattr(weights, "write_file", full)
    with pytest.raises(OSError, match="No space left"):
        lm.save_hf(tmp_path / "m", CONFIG, params, max_shard_bytes=5000)
    assert list(tmp_path.iterdir()) == []


def test_integers_are_not_written(params, tmp_path):
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*int32"):
        lm.save_hf(tmp_path / "m", CONFIG, {**params, "norm": {"scale": np.ones(16, np.int32)}})
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_that_does_not_divide_is_refused_before_reading(folder):
    with pytest.raises(ValueError, match=r"k_proj/kernel.*kv_heads.*2 / 4 = 0\.50"):
        lm.load(folder, make_mesh("tensor=4"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, dtype, value):
    """In any place of a tensor, of every dtype; the largest finite number passes."""
    kind = jnp.dtype(dtype)
    bulk = np.full((3, 5), jnp.finfo(kind).max, kind)
    bulk[0, 0] = jnp.finfo(kind).min
    place = tmp_path / "w.safetensors"
    for at in (None, (0, 1), (2, 4)):
        array = bulk.copy()
        if at is not None:
            array[at] = value
        tensors.write_file(place, [("w", tensors.spec("w", array))], [array])
        with closing(tensors.TensorFile(place)) as file:
            out = np.empty((3, 5), np.float32)
            if at is None:
                file.fill("w", out)
                np.testing.assert_array_equal(out, bulk.astype(np.float32))
            else:
                with pytest.raises(ValueError, match="w.safetensors.*NaN"):
                    file.fill("w", out)


def test_the_name_of_no_model_is_refused(tmp_path):
    for name in ("", " "):
        with pytest.raises(ValueError, match="name.*empty"):
            lm.locate(name)
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(FileNotFoundError, match="not a GGUF"):
        lm.locate(tmp_path / "model.safetensors")


def test_a_runs_folder_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text('{"kind": "lm sft", "version": 1, "model": "base"}')
    with pytest.raises(ValueError, match="lm sft run.*lm convert"):
        lm.read_config(tmp_path)
    (tmp_path / "adapter").mkdir()
    with pytest.raises(ValueError, match="/adapter.*lm convert"):
        lm.read_config(tmp_path)
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="--adapter"):
        lm.read_config(tmp_path / "adapter")
    (tmp_path / "prior").mkdir()
    (tmp_path / "prior" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="/prior.*lm convert"):
        lm.read_config(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="/model$"):
        lm.read_config(tmp_path)
