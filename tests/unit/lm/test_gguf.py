"""GGUF files: the weights, sizes and tokenizers that went in come out, and every fault is named."""

from __future__ import annotations

import dataclasses
import json
import os
import struct

import gguf
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from llmrl_jax import lm
from llmrl_jax.lm.gguf import read_header
from llmrl_jax.lm.gguf.tokenizer import merges_of
from llmrl_jax.lm.rope import inverse_frequencies
from llmrl_jax.parallel import make_mesh
from llmrl_jax.tuning import ChatTemplate
from tests.gguf_files import metadata, sort_rows, their_name, tokens_of, write
from tests.lm_random import random_variables


CONFIG = lm.LlamaConfig(40, 32, 64, 2, 4, 2, max_position_embeddings=64, rms_norm_eps=1e-5)
TEXT = "Possible action of the agent: turn left.\n You're at 2026, and\n\n  see a red BALL é"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Hugging Face's tensors of each family, by name."""

    def of(config):
        if config not in kept:
            folder = lm.save_hf(
                tmp_path_factory.mktemp("gguf") / "hf", config, random_variables(lm.Llama(config))["params"]
            )
            kept[config] = load_file(folder / "model.safetensors")
        return kept[config]

    kept: dict = {}
    return of


def file_of(path, config, tensors, arch="llama", kind="F32", extra=None, split=0, **changes):
    heads = (config.num_attention_heads, config.kv_heads) if arch == "llama" else (0, 0)
    fields = metadata(config, arch, **changes) | (extra or {})
    return write(path / "model.gguf", tensors, fields, arch=arch, kind=kind, heads=heads, split=split)


def same(params, tensors, config):
    """Return whether the parameters are those tensors."""
    for name, value in written(params, config).items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)


def written(params, config):
    from llmrl_jax.lm import declare
    from llmrl_jax.lm.weights import hf_tensor, layer_names

    leaves, structure = jax.tree.flatten(declare.declare(config), is_leaf=declare.is_leaf)
    return {
        name: hf_tensor(leaf, array, i)
        for leaf, array in zip(leaves, structure.flatten_up_to(params), strict=True)
        for i, name in enumerate(layer_names(leaf))
    }


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"model_type": "mistral", "sliding_window": 32}),
        ("qwen2", {"model_type": "qwen2", "tie_word_embeddings": True}),
        ("qwen3", {"model_type": "qwen3", "head_dim": 16}),
    ],
    ids=["llama", "tied", "mistral", "qwen2", "qwen3"],
)
def test_every_family_is_read(arch, changes, saved, tmp_path):
    """The configuration, and each tensor in Hugging Face's order: what a layer's matrix is, `test_lm_parity` compares
    with transformers."""
    config = dataclasses.replace(CONFIG, **{"head_dim": None, **changes})
    tensors = saved(config)
    window = {f"{arch}__attention__sliding_window": config.sliding_window} if config.sliding_window else {}
    path = file_of(tmp_path, config, tensors, arch, **window)
    model, variables = lm.load(path)
    assert model.config == config
    same(variables["params"], tensors, config)


def test_rows_of_a_head_are_sorted_by_hand():
    """Entries 0 and 2 of a head of four are rotated together; llama.cpp has them side by side."""
    np.testing.assert_array_equal(sort_rows(np.arange(8)[:, None], 2)[:, 0], [0, 2, 1, 3, 4, 6, 5, 7])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_type_is_decoded(kind, saved, tmp_path):
    tensors = saved(CONFIG)
    path = file_of(tmp_path, CONFIG, tensors, kind=kind)
    model, variables = lm.load(path)
    assert model.config.dtype == {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")
    step = {"F16": 1e-3, "BF16": 8e-3, "Q8_0": 8e-3, "Q5_0": 0.07, "Q5_1": 0.07}.get(kind, 0.15)
    for name, value in written(variables["params"], CONFIG).items():
        want = tensors[name]
        assert np.abs(value - want).max() <= step * np.abs(want).max() and (value.ndim == 1 or (value != want).any())


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_by_hand(kind, tmp_path):
    """Blocks whose weights can be computed on paper: equal scales of 1/32 and codes 0, 1, 2, ... modulo their range."""
    config = lm.LlamaConfig(16, 256, 256, 1, 4, 2, max_position_embeddings=16, tie_word_embeddings=True)
    fan = {"self_attn.k_proj": 128, "self_attn.v_proj": 128}
    bits = {"Q4_K": 4, "Q5_K": 5, "Q6_K": 6}[kind]
    codes = np.arange(256) % 2**bits
    row = block(kind, codes)
    want = (codes - (32 if kind == "Q6_K" else 0)) / 32.0
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for name, value in metadata(config, "llama").items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    names = [n for n in written_names(config) if n != "model.embed_tokens.weight"]
    for name in names:
        if "norm" in name:
            writer.add_tensor(their_name(name), np.ones(256, np.float32))
        else:
            rows = fan.get(name.split("layers.0.")[1].removesuffix(".weight"), 256)
            writer.add_tensor(their_name(name), np.tile(row, (rows, 1)), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.add_tensor("token_embd.weight", np.zeros((16, 256), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _, variables = lm.load(tmp_path / "k.gguf")
    for name, value in written(variables["params"], config).items():
        if value.ndim == 2 and "embed" not in name:
            np.testing.assert_allclose(value, np.broadcast_to(want, value.shape), rtol=1e-6, err_msg=name)


def written_names(config):
    from llmrl_jax.lm import declare
    from llmrl_jax.lm.weights import layer_names

    leaves = jax.tree.leaves(declare.declare(config), is_leaf=declare.is_leaf)
    return [name for leaf in leaves for name in layer_names(leaf)]


def block(kind, codes):
    """The bytes of a block with the scale 1/32 for every weight, from the format's definition."""
    half = np.array([1 / 32], np.float16).view(np.uint8)
    if kind == "Q6_K":
        low, high = codes & 15, codes >> 4
        ql = np.concatenate([low[n : n + 64] | low[n + 64 : n + 128] << 4 for n in (0, 128)])
        qh = np.concatenate([sum(high[n + 32 * i : n + 32 * i + 32] << 2 * i for i in range(4)) for n in (0, 128)])
        return np.concatenate([ql, qh, np.ones(16), half]).astype(np.uint8)
    # Scales of 1 and minima of 0 in eight groups, six bits each: the four last have their low bits in the last bytes.
    scales = np.array([1] * 4 + [0] * 4 + [1] * 4)
    low = np.concatenate([codes[n : n + 32] & 15 | (codes[n + 32 : n + 64] & 15) << 4 for n in range(0, 256, 64)])
    zero = np.zeros(2)
    if kind == "Q4_K":
        return np.concatenate([half, zero, scales, low]).astype(np.uint8)
    high = sum((codes[32 * i : 32 * i + 32] >> 4) << i for i in range(8))
    return np.concatenate([half, zero, scales, high, low]).astype(np.uint8)


@pytest.mark.parametrize("quantize", [None, "int8", "nf4"])
def test_straight_onto_a_mesh(quantize, saved, tmp_path):
    """Divided and quantised as the same weights from a folder are."""
    config = lm.LlamaConfig(16, 64, 128, 2, 4, 2, head_dim=32)
    folder = lm.save_hf(tmp_path / "hf", config, random_variables(lm.Llama(config))["params"])
    mesh = make_mesh("tensor=2", jax.devices()[:2])
    path = file_of(tmp_path, config, saved(config))
    theirs, ours = (lm.load(source, mesh, quantize=quantize)[1] for source in (folder, path))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(lambda x: x.sharding, ours) == jax.tree.map(lambda x: x.sharding, theirs)


def test_rope_settings(saved, tmp_path):
    tensors = saved(CONFIG)
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 16}
    path = file_of(tmp_path, CONFIG, tensors, **{f"llama__{name}": value for name, value in yarn.items()})
    assert lm.read_config(path).rope == lm.RopeConfig(1e4, "yarn", factor=4.0, original_max_position_embeddings=16)
    scaled = {**yarn, "rope__scaling__attn_factor": 0.5, "rope__scaling__yarn_beta_fast": 16.0}
    path = file_of(tmp_path, CONFIG, tensors, **{f"llama__{name}": value for name, value in scaled.items()})
    rope = lm.read_config(path).rope
    assert (rope.attention_factor, rope.beta_fast) == (pytest.approx(0.5 * (0.1 * np.log(4) + 1)), 16.0)


LINEAR, PLAIN = lm.RopeConfig(1e4, "linear", factor=2.0), lm.RopeConfig(1e4)


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"scaling__factor": 2.0}, LINEAR),
        ({"scaling__type": "linear", "scaling__factor": 2.0}, LINEAR),
        ({"scale_linear": 2.0}, LINEAR),
        ({"scaling__factor": 2.0, "scale_linear": 4.0}, LINEAR),
        ({"scaling__factor": 0.0}, PLAIN),
        ({"scaling__factor": 1.0}, PLAIN),
        ({"scaling__type": "linear"}, PLAIN),
        ({"scaling__type": "none", "scaling__factor": 2.0}, PLAIN),
        ({"scaling__type": "none", "scaling__original_context_length": 16, "scaling__finetuned": True}, PLAIN),
        ({"scaling__type": "yarn"}, PLAIN),
        ({"scaling__factor": 2.0, "scaling__yarn_ext_factor": 0.0, "scaling__attn_factor": 1.0}, LINEAR),
        (
            {"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__original_context_length": 0},
            lm.RopeConfig(1e4, "yarn", factor=2.0),
        ),
    ],
    ids=str,
)
def test_rope_scaling_is_what_llama_cpp_takes(fields, rope, saved, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG), **{f"llama__rope__{name}": x for name, x in fields.items()})
    assert lm.read_config(path).rope == rope


def test_llama_3s_frequencies_become_its_settings(saved, tmp_path):
    rope = lm.RopeConfig(5e5, "llama3", 32.0, 1.0, 4.0, 8192)
    config = dataclasses.replace(CONFIG, head_dim=64, rope=rope)
    plain = inverse_frequencies(dataclasses.replace(config, rope=lm.RopeConfig(5e5)))[0]
    divisors = plain / inverse_frequencies(config)[0]
    assert divisors.min() == 1 and divisors.max() == 32 and ((divisors > 1) & (divisors < 32)).any()
    tensors = saved(config)
    path = file_of(tmp_path, config, tensors | {"rope_freqs.weight": divisors})
    assert lm.read_config(path) == config
    same(lm.load(path)[1]["params"], tensors, config)
    path = file_of(tmp_path, config, tensors | {"rope_freqs.weight": divisors**2})
    with pytest.raises(ValueError, match="rope_freqs.weight.*Llama 3.1.*3.3"):
        lm.read_config(path)


@pytest.mark.parametrize(("kind", "pre"), [("bpe", "llama-bpe"), ("bare", "llama-bpe"), ("sentencepiece", "")])
def test_tokenizers(kind, pre, saved, tmp_path, request):
    tokenizer = request.getfixturevalue(kind)
    path = file_of(tmp_path, CONFIG, saved(CONFIG), extra=tokens_of(tokenizer, pre))
    read = lm.load_tokenizer(path)
    assert read.encode(TEXT) == tokenizer.encode(TEXT) and read.encode_start(TEXT) == tokenizer.encode_start(TEXT)
    assert (read.bos_id, read.eos_id, read.pad_id) == (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    assert read.vocab_size == tokenizer.vocab_size and read.decode(read.encode(TEXT)) == TEXT
    assert read.encode(f"{tokenizer.specials['eos_token']} x")[0] == tokenizer.eos_id, "a control token is one token"


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["You", "'re", " at", " 2026", ",", "\n", "\n", "é"]),
        ("smollm", ["You", "'re", " at", " ", "2", "0", "2", "6", ",", "\n", "\n", "é"]),
        ("qwen2", ["You", "'re", " at", " ", "2", "0", "2", "6", ",\n\n", "é"]),
        ("llama-bpe", ["You", "'re", " at", " ", "202", "6", ",\n\n", "é"]),
        ("tekken", ["You", "'re", " at", " ", "2", "0", "2", "6", ",\n\n", "é"]),
    ],
)
def test_words_of_each_vocabulary(pre, words, bpe, saved, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG), extra=tokens_of(bpe, pre, tokenizer__ggml__add_bos_token=None))
    read = lm.load_tokenizer(path)
    text = "".join(words)
    assert [text[a:b] for _, (a, b) in read.backend.pre_tokenizer.pre_tokenize_str(text)] == words
    assert bool(read.prefix_ids) == (pre in ("llama-bpe", "tekken")), "BOS, where the file does not say"


def test_merges_come_from_scores_by_hand():
    vocabulary = {"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}
    scores = [0.0, 0.0, -1.0, -3.0, -2.0]
    assert merges_of(vocabulary, scores) == [("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a")]


def test_templates_and_ends(bpe, saved, tmp_path):
    said = {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}", "tokenizer.ggml.eot_token_id": 7}
    path = file_of(tmp_path, CONFIG, saved(CONFIG), extra=tokens_of(bpe, "llama-bpe") | said)
    template = ChatTemplate.load(path)
    assert template.render([{"role": "user", "content": "hello"}]) == "<|begin_of_text|>hello"
    assert lm.end_tokens(path, lm.load_tokenizer(path)) == (bpe.eos_id, 7)


def test_conversion(bpe, saved, tmp_path):
    """The folder gives the same model, tokenizer and template; weights in several files, or in another dtype."""
    tensors = saved(CONFIG)
    said = {"tokenizer.chat_template": "{{ messages[0].content }}", "tokenizer.ggml.eot_token_id": 7}
    path = file_of(tmp_path, CONFIG, tensors, kind="Q8_0", extra=tokens_of(bpe, "llama-bpe") | said)
    out = lm.convert(path, tmp_path / "out", max_shard_bytes=20_000)
    assert (out / "model.safetensors.index.json").is_file()
    ours, theirs = lm.load(path), lm.load(out)
    assert ours[0].config == theirs[0].config
    jax.tree.map(np.testing.assert_array_equal, ours[1], theirs[1])
    tokenizer = lm.load_tokenizer(out)
    assert tokenizer.encode_start(TEXT) == bpe.encode_start(TEXT)
    assert ChatTemplate.load(out).source == said["tokenizer.chat_template"]
    assert lm.end_tokens(out, tokenizer) == (bpe.eos_id, 7)
    (out / "chat_template.jinja").unlink()
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    settings = json.loads((out / "tokenizer_config.json").read_text()) | {"chat_template": templates}
    (out / "tokenizer_config.json").write_text(json.dumps(settings))
    half = lm.convert(out, tmp_path / "half", dtype="bfloat16")
    assert ChatTemplate.load(half).source == "d"
    assert lm.read_config(half).dtype == "bfloat16"
    assert os.path.getsize(half / "model.safetensors") < 0.6 * sum(p.stat().st_size for p in out.glob("*.safetensors"))
    with pytest.raises(FileExistsError, match=r"/half\b"):
        lm.convert(out, half)
    settings = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps({**settings, "dtype": "float32", "torch_dtype": "float32"}))
    again = lm.convert(half, tmp_path / "again")  # the dtype of the files, not what the configuration says
    assert lm.read_config(again).dtype == "bfloat16"
    assert (again / "model.safetensors").stat().st_size == (half / "model.safetensors").stat().st_size


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


FAULTS = {
    "cut in the header": (lambda p: cut(p, 300), "cut short within its header"),
    "cut in the weights": (lambda p: cut(p, p.stat().st_size - 100), "is cut short: the tensor .* ends at byte"),
    "not GGUF": (lambda p: p.write_bytes(b"GGML" + p.read_bytes()[4:]), "is not a GGUF file"),
    "empty": (lambda p: p.write_bytes(b""), "is not a GGUF file"),
    "version 1": (lambda p: patch(p, 4, "<I", 1), "is GGUF version 1; supported: 2, 3"),
    "big-endian": (lambda p: patch(p, 4, ">I", 3), "version 3 for big-endian machines"),
    "too many fields": (lambda p: patch(p, 16, "<Q", 2**60), "cut short within its header|the type .* does not know"),
    "too many tensors": (lambda p: patch(p, 8, "<Q", 2**60), "cut short within its header"),
}


def patch(path, at, form, value):
    raw = bytearray(path.read_bytes())
    struct.pack_into(form, raw, at, value)
    path.write_bytes(raw)


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_files_are_named(fault, saved, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG))
    change, message = FAULTS[fault]
    change(path)
    with pytest.raises(ValueError, match=rf"model\.gguf.*({message})"):
        lm.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": None}, r"lack.*llama\.block_count"),
        ({"llama__block_count": "two"}, r"llama\.block_count.*'two'"),
        ({"llama__block_count": 3}, r"model\.layers\.2"),
        ({"llama__attention__head_count": [4, 2]}, "head_count"),
        ({"llama__rope__dimension_count": 4}, "rope.dimension_count.*4.*8"),
        ({"llama__expert_count": 8}, "llama.expert_count.*8"),
        ({"llama__rope__scaling__type": "longrope"}, r"rope\.scaling\.type.*'longrope'.*none, linear, yarn"),
        ({"llama__rope__scaling__attn_factor": 1.2}, "rope.scaling.attn_factor.*1.2.*1"),
        ({"llama__rope__scaling__yarn_ext_factor": 1.0}, "rope.scaling.yarn_ext_factor.*1.0.*0"),
        ({"llama__rope__scaling__factor": -2.0}, "rope_parameters.factor.*-2.0"),
        ({"llama__rope__freq_base_swa": 5e5}, "rope.freq_base_swa.*500000.0.*10000.0"),
        ({"llama__attention__causal": False}, "llama.attention.causal.*False"),
        ({"llama__attention__scale": 0.5}, r"llama.attention.scale.*0.5.*1 / sqrt\(8"),
        (
            {
                "llama__rope__scaling__type": "yarn",
                "llama__rope__scaling__factor": 2.0,
                "llama__rope__scaling__yarn_ext_factor": 0.5,
            },
            "yarn_ext_factor.*0.5.*1",
        ),
        ({"llama__context_length": 0}, "max_position_embeddings.*0.*1"),
        ({"llama__attention__layer_norm_rms_epsilon": 0.0}, "rms_norm_eps.*0"),
        ({"tokenizer__ggml__tokens": ["a"], "tokenizer__ggml__eos_token_id": 9}, "eos_token_id.*9"),
    ],
)
def test_wrong_metadata_are_named(changes, message, saved, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG), **changes)
    with pytest.raises(ValueError, match=rf"({message})"):
        lm.load(path)


def test_settings_without_effect(saved, tmp_path):
    scales = {"llama__attention__scale": 8**-0.5, "llama__logit_scale": 1.0, "llama__attention__causal": True}
    assert lm.read_config(file_of(tmp_path, CONFIG, saved(CONFIG), **scales)) == CONFIG


def split_of(path, tensors, **changes):
    """A model of 21 tensors in three files, as the `gguf` package writes them."""
    file_of(path, CONFIG, tensors, split=8, **changes)
    return [path / f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("given", [0, 1, 2])
def test_a_split_model_is_read_from_any_part(given, quantize, saved, bpe, tmp_path):
    tensors = saved(CONFIG)
    parts = split_of(tmp_path, tensors, extra=tokens_of(bpe, "llama-bpe"))
    assert lm.locate(parts[given]) == parts[0]
    model, variables = lm.load(parts[given], quantize=quantize)
    assert model.config == dataclasses.replace(CONFIG, bos_token_id=bpe.bos_id, eos_token_id=bpe.eos_id)
    if quantize is None:
        same(variables["params"], tensors, CONFIG)
    assert lm.load_tokenizer(parts[given]).encode(TEXT) == bpe.encode(TEXT)


def add_fields(path, **fields):
    """Change integer fields of a part in place."""
    raw = bytearray(path.read_bytes())
    for name, value in fields.items():
        name = name.replace("__", ".").encode()
        at = raw.index(name) + len(name)
        form = {2: "<H", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}[struct.unpack_from("<I", raw, at)[0]]
        struct.pack_into(form, raw, at + 4, value)
    path.write_bytes(raw)


SPLITS = {
    "part 2 is missing": (
        lambda p: p[1].unlink(),
        "model-00001-of-00003.gguf is part 1 of a model that is split into 3 files, and .* lacks model-00002-of-00003",
    ),
    "part 1 was renamed": (
        lambda p: p[0].rename(p[0].with_name("model.gguf")),
        "model.gguf is part 1 of .* name does not end in -00001-of-00003.gguf.*merge the parts",
    ),
    "part 2 is part 3": (
        lambda p: p[1].write_bytes(p[2].read_bytes()),
        "model-00002-of-00003.gguf: split.no and split.count are 2 and 3; 1 and 3 are needed in part 2",
    ),
    "part 2 is of two": (
        lambda p: add_fields(p[1], split__count=2),
        "model-00002-of-00003.gguf: .* are 1 and 2; 1 and 3",
    ),
    "fewer tensors": (
        lambda p: add_fields(p[1], split__tensors__count=20),
        "00002-of-00003.gguf: split.tensors.count is 20",
    ),
    "part 3 is cut": (
        lambda p: cut(p[2], p[2].stat().st_size - 9),
        "model-00003-of-00003.gguf is cut short: the tensor",
    ),
    "part 3 is no GGUF": (lambda p: p[2].write_bytes(b"x"), "model-00003-of-00003.gguf is not a GGUF file"),
}


@pytest.mark.parametrize("fault", SPLITS)
def test_faults_of_a_split_model_name_the_part(fault, saved, tmp_path):
    parts = split_of(tmp_path, saved(CONFIG))
    change, message = SPLITS[fault]
    change(parts)
    given = parts[0] if parts[0].exists() else tmp_path / "model.gguf"
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        lm.load(given)


def test_a_tensor_that_is_not_finite_names_its_part(saved, tmp_path):
    tensors = saved(CONFIG)
    parts = split_of(tmp_path, tensors | {"lm_head.weight": np.full_like(tensors["lm_head.weight"], np.nan)})
    holder = next(p for p in parts if struct.pack("<Q", 13) + b"output.weight" in p.read_bytes())
    with pytest.raises(ValueError, match=rf"{holder.name}.*lm_head\.weight.*NaN"):
        lm.load(parts[0])


def test_a_part_of_bytes_is_named(saved, tmp_path):
    raw = file_of(tmp_path, CONFIG, saved(CONFIG)).read_bytes()
    for i, part in enumerate((raw[:9000], raw[9000:]), 1):
        (tmp_path / f"model.gguf.part{i}of2").write_bytes(part)
        with pytest.raises((ValueError, FileNotFoundError), match=f"part{i}of2"):
            lm.load(tmp_path / f"model.gguf.part{i}of2")


def test_odd_metadata_that_are_not_needed(saved, bpe, tmp_path):
    tensors, tokens = saved(CONFIG), tokens_of(bpe, "llama-bpe")
    extra = {"x.nested": [[1, 2], [3]], "x.deep": [[["a"]], [["b", "c"]]], "general.author": "zzname", "x.zzname": 1}
    extra |= {"general.tags": ["zzname", "b"]}
    path = file_of(tmp_path, CONFIG, tensors, extra=extra | tokens)
    path.write_bytes(path.read_bytes().replace(b"zzname", b"zz\xff\xfeme"))
    same(lm.load(path)[1]["params"], tensors, CONFIG)
    assert lm.load_tokenizer(path).encode(TEXT) == bpe.encode(TEXT)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"tokenizer.ggml.merges": [["zzname"]]},
            "tokenizer.ggml.merges",
        ),
        (
            {"tokenizer.ggml.tokens": ["zzname", "b"]},
            "tokenizer.ggml.tokens.*UTF-8",
        ),
        ({"tokenizer.chat_template": "zzname"}, "tokenizer.chat_template.*UTF-8"),
    ],
)
def test_odd_metadata_that_are_needed_are_named(extra, message, saved, bpe, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG), extra=tokens_of(bpe, "llama-bpe") | extra)
    path.write_bytes(path.read_bytes().replace(b"zzname", b"zz\xff\xfeme"))
    with pytest.raises(ValueError, match=rf"model\.gguf.*{message}"):
        lm.load_tokenizer(path)


def test_an_unknown_architecture_type_and_tensor(saved, tmp_path):
    tensors = saved(CONFIG)
    path = file_of(tmp_path, CONFIG, tensors, arch="qwen4")
    with pytest.raises(ValueError, match=r"'qwen4'.*llama, mistral, qwen2, qwen3\)$"):
        lm.load(path)
    path = file_of(tmp_path, CONFIG, tensors | {"blk.0.attn_rot_embd.weight": np.ones((4, 4), np.float32)})
    with pytest.raises(ValueError, match="blk.0.attn_rot_embd.weight.*'llama'"):
        lm.load(path)
    path = file_of(tmp_path, CONFIG, {n: v for n, v in tensors.items() if n != "model.embed_tokens.weight"})
    with pytest.raises(ValueError, match="token_embd.weight"):
        lm.load(path)
    path = file_of(tmp_path, CONFIG, tensors | {"model.norm.weight": np.full(32, np.nan, np.float32)})
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*NaN"):
        lm.load(path)
    path = file_of(tmp_path, CONFIG, tensors)
    raw = path.read_bytes()
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    patch(path, at, "<I", 16)
    with pytest.raises(ValueError, match="output_norm.weight.*IQ2_XXS.*F32, F16"):
        lm.load(path)
    patch(path, at, "<I", 999)
    with pytest.raises(ValueError, match="type 999"):
        lm.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__ggml__model": "bert"}, "tokenizer 'bert'"),
        ({"tokenizer__ggml__model": None}, "tokenizer.ggml.model"),
        ({"tokenizer__ggml__pre": "smolm"}, "'smolm'"),
        ({"tokenizer__ggml__pre": None}, r"lack.*tokenizer\.ggml\.pre"),
        ({"tokenizer__ggml__merges": ["a b c"]}, "merge 'a b c'"),
        ({"tokenizer__ggml__merges": ["zz qq"]}, "vocabulary.*zz"),
        ({"tokenizer__ggml__token_type": [1]}, "token_type.*1"),
        ({"tokenizer__ggml__tokens": ["a", "b", "a"]}, "token 'a'"),
        ({"tokenizer__ggml__bos_token_id": 100_000}, "bos_token_id.*100000.*vocabulary.*0"),
    ],
)
def test_wrong_tokenizers_are_named(changes, message, bpe, saved, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG), extra=tokens_of(bpe, "llama-bpe", **changes))
    with pytest.raises(ValueError, match=message):
        lm.load_tokenizer(path)


def test_names_of_models(saved, tmp_path, monkeypatch):
    from llmrl_jax.core import packaged

    monkeypatch.setattr(packaged, "LANGUAGE_MODELS", {})
    missing = dataclasses.replace(packaged.SMOLLM2, package="llm_smollm_that_nobody_has")
    monkeypatch.setitem(lm.source.LANGUAGE_MODELS, "smollm2-135m", missing)
    with pytest.raises(ModuleNotFoundError, match=r"smollm2.*--no-deps llm-smollm-that.*==0\.1\.2"):
        lm.load("smollm2-135m")
    with pytest.raises(FileNotFoundError, match="'smollm2-135mm'.*'smollm2-135m'"):
        lm.locate("smollm2-135mm")
    path = file_of(tmp_path, CONFIG, saved(CONFIG))
    with pytest.raises(FileNotFoundError, match="config.json.*model.gguf"):
        lm.load(tmp_path)
    path.rename(tmp_path / "sha256-1234")
    assert lm.read_config(tmp_path / "sha256-1234").hidden_size == 32, "a name without an ending, as Ollama has them"
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="x.txt.*GGUF"):
        lm.locate(tmp_path / "x.txt")
    with pytest.raises(FileNotFoundError, match="sha256-1234"):
        lm.load_adapter(tmp_path / "sha256-1234", lm.Llama(CONFIG), {})


def test_without_the_package(saved, tmp_path, monkeypatch):
    """Floats need no decoder; quantised weights say what to install before anything is read."""
    import sys

    path = file_of(tmp_path, CONFIG, saved(CONFIG), kind="F16")
    (tmp_path / "q").mkdir()
    quantised = file_of(tmp_path / "q", CONFIG, saved(CONFIG), kind="Q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    lm.load(path)
    with pytest.raises(ModuleNotFoundError, match="gguf.*`gguf`"):
        lm.load(quantised)


def test_the_header_is_read_once(saved, tmp_path):
    path = file_of(tmp_path, CONFIG, saved(CONFIG))
    first = read_header(path)
    assert read_header(path) is first
    file_of(tmp_path, CONFIG, saved(CONFIG), llama__context_length=128)
    os.utime(path, ns=(1, 1))
    assert read_header(path).metadata["llama.context_length"] == 128
