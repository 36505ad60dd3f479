"""Reading configurations: what is understood, and what is refused by name."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from llmrl_jax.lm import LlamaConfig, LoRAConfig, RopeConfig
from llmrl_jax.lm.rope import inverse_frequencies


BASE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_defaults_follow_from_the_sizes():
    config = LlamaConfig.from_hf({**BASE, "num_key_value_heads": None, "rope_theta": 500000.0})
    assert (config.kv_heads, config.size, config.rope.theta) == (4, 16, 500000.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen4"}, "model_type 'qwen4'.*llama, mistral, qwen2, qwen3.$"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "'LlamaForSequenceClassification'"),
        ({"sliding_window": 8}, "sliding_window.*8.*'llama'"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, "layer_types.*'mistral'"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2}, "uses.*sliding_window"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 2}, "'chunked_attention'"),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention"],
            },
            "1 layers.*2",
        ),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias.*True"),
        ({"model_type": "qwen2", "use_mrope": True}, "use_mrope.*True"),
        ({"attention_bias": True}, "attention_bias.*True"),
        ({"no_rope_layers": [1, 0]}, r"no_rope_layers.*\[1, 0\].*1"),
        ({"no_rope_layer_interval": 4}, "no_rope_layer_interval.*4.*0"),
        ({"attention_multiplier": 0.5}, "attention_multiplier.*0.5.*0.25"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar.*256.*16"),
        ({"residual_multiplier": 0.22}, "residual_multiplier.*0.22.*1"),
        ({"logits_scaling": 8.0}, "logits_scaling.*8.0.*1"),
        ({"scale_depth": 1.4}, "scale_depth.*1.4.*None"),
        ({"dim_model_base": 256}, "dim_model_base.*256.*64"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping.*30.0.*0"),
        ({"clip_qkv": 8.0}, "clip_qkv.*8.0.*None"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size.*8192.*None"),
        ({"use_qk_norm": True}, "use_qk_norm.*True.*False"),
        ({"is_causal": False}, "is_causal.*False.*True"),
        ({"per_layer_config": {"0": {"num_attention_heads": 2}}}, "per_layer_config"),
        (
            {"hidden_activation": "gelu_pytorch_tanh"},
            "hidden_activation.*'gelu_pytorch_tanh'.*'silu'.*'swish'",
        ),
        ({"initializer_range": -1.0}, "initializer_range.*-1.0.*0"),
        ({"hidden_act": "gelu"}, "hidden_act.*'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": None}, "vocab_size.*missing"),
        ({"num_key_value_heads": 3}, "4.*num_key_value_heads 3"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "64.*num_attention_heads 5"),
        ({"head_dim": 7}, "head_dim.*7"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor.*0.5"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
        ({"rope_scaling": {"type": "liner", "factor": 2.0}}, "mean 'linear'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "needs 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "factr": 1}}, "'factr'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.*layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers.*'2'"),
        ({"num_hidden_layers": 1e9}, "num_hidden_layers.*1000000000.0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers.*1000000000.*4096"),
        ({"num_hidden_layers": 0}, "num_hidden_layers.*0.*1"),
        ({"num_hidden_layers": True}, "num_hidden_layers.*True"),
        ({"hidden_size": 64.5}, "hidden_size.*64.5"),
        ({"vocab_size": 10**12}, "vocab_size.*1000000000000"),
        ({"max_position_embeddings": [4]}, r"max_position_embeddings.*\[4\]"),
        ({"head_dim": "16"}, "head_dim.*'16'"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps.*'1e-5'"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps.*nan"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings.*'false'; true.*false"),
        ({"eos_token_id": 100}, r"eos_token_id.*100\b.*vocabulary.*0.*99"),
        ({"eos_token_id": [5, 1000]}, "eos_token_id.*1000"),
        ({"eos_token_id": "2"}, "eos_token_id.*'2'"),
        ({"architectures": "LlamaForCausalLM"}, "architectures.*'LlamaForCausalLM'"),
        ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window.*'yes'; true.*false"),
        ({"model_type": "qwen2", "max_window_layers": 1.5}, "max_window_layers.*1.5"),
        ({"model_type": "mistral", "sliding_window": "4096"}, "sliding_window.*'4096'"),
        ({"model_type": "qwen3", "layer_types": "full_attention"}, "layer_types.*'full_attention'.*list"),
        ({"rope_theta": "1e6"}, "rope_theta.*'1e6'"),
        ({"rope_theta": -1}, "rope_theta.*-1.*0"),
        ({"rope_scaling": "linear"}, "rope_scaling.*'linear'"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_parameters.factor.*'2'"),
    ],
)
def test_what_is_not_implemented_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_hf({**BASE, **change})


WITHOUT_EFFECT = (
    {"attention_dropout": 0.1},
    {"attention_dropout": None},
    {"hidden_dropout": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    {"hidden_act": "swish"},
    {"pretraining_tp": 2},
    {"use_cache": False, "output_attentions": True},
    {"pad_token_id": -1},
    {"no_rope_layers": [1, 1], "no_rope_layer_interval": 4},
    {"attention_multiplier": 0.25, "query_pre_attn_scalar": 16, "residual_multiplier": 1.0, "logits_scaling": 1},
    {"final_logit_softcapping": None, "clip_qkv": None, "use_qk_norm": False},
    {"position_embedding_type": "absolute", "is_encoder_decoder": False, "pruned_heads": {}},
    {"unsloth_version": "2025.1", "auto_map": {}, "id2label": {"0": "A"}, "task_specific_params": None},
    {"rope_scaling": {"type": "default", "finetuned": True}},
    {"original_max_position_embeddings": 16},
)


@pytest.mark.parametrize("fields", WITHOUT_EFFECT, ids=str)
def test_fields_without_effect(fields):
    """None of them changes the logits of transformers' model of these four families."""
    config = LlamaConfig.from_hf({**BASE, **fields})
    assert dataclasses.replace(config, pad_token_id=None) == LlamaConfig.from_hf(BASE)


def test_numbers_at_their_bounds():
    assert LlamaConfig.from_hf({**BASE, "initializer_range": 0.0}).initializer_range == 0
    for ends, first in ((-1, None), ([-1, 5], 5), ([5, -1], 5), ([-1], None), ([], None), (None, None)):
        assert LlamaConfig.from_hf({**BASE, "eos_token_id": ends}).eos_token_id == first
    assert LlamaConfig.from_hf({**BASE, "model_type": "qwen3", "qk_norm": True}).qk_norm
    linear = {"type": "linear", "factor": 2.0, "original_max_position_embeddings": 16, "finetuned": True, "x": None}
    assert LlamaConfig.from_hf({**BASE, "rope_scaling": linear}).rope == RopeConfig(type="linear", factor=2.0)
    both = {"rope_scaling": linear, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}
    assert LlamaConfig.from_hf({**BASE, **both}).rope.factor == 2


OTHERS = ("smollm3", "llama4", "llama4_text", "mixtral", "qwen2_moe", "qwen3_moe", "ministral", "mistral3", "qwen3_vl",
          "granite", "gemma", "lama")  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_another_architecture_is_no_typing_error(kind):
    with pytest.raises(ValueError) as caught:
        LlamaConfig.from_hf({**BASE, "model_type": kind})
    assert kind in str(caught.value) and "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(),
        RopeConfig(theta=5e5, type="linear", factor=2.0),
        RopeConfig(type="dynamic", factor=2.0),
        RopeConfig(type="llama3", factor=8.0, original_max_position_embeddings=1024),
        RopeConfig(type="yarn", factor=4.0, original_max_position_embeddings=512, beta_fast=16.0, truncate=False),
    ],
    ids=lambda rope: rope.type,
)
def test_hugging_face_and_back(rope):
    config = LlamaConfig(100, 64, 96, 2, 4, 2, 24, rope=rope, dtype="bfloat16", eos_token_id=2)
    assert LlamaConfig.from_hf(config.to_hf()) == config
    # what transformers 4 reads, and what 5 reads
    for names in (("rope_theta", "rope_scaling"), ("rope_parameters",)):
        fields = {
            name: value for name, value in config.to_hf().items() if not name.startswith("rope_") or name in names
        }
        assert LlamaConfig.from_hf(fields) == config


@pytest.mark.parametrize("nested", [{}, {"original_max_position_embeddings": 512}], ids=["absent", "nested"])
@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear"])
def test_frequencies_are_those_of_transformers(kind, nested):
    """Also where the original length is a field of its own, and after a round trip."""
    transformers = pytest.importorskip("transformers")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    scaling = {"rope_type": kind, "factor": 8.0, **bands, **nested}
    fields = {**BASE, "rope_theta": 1e4, "max_position_embeddings": 4096, "rope_scaling": scaling}
    fields |= {"original_max_position_embeddings": 1024}
    config = LlamaConfig.from_hf(fields)
    for values in (fields, config.to_hf()):
        theirs = llama.LlamaRotaryEmbedding(transformers.LlamaConfig(**values)).inv_freq.numpy()
        np.testing.assert_allclose(inverse_frequencies(config)[0], theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "window", "layers"),
    [
        # As the published folders spell it: Mistral 7B 0.1 and 0.3, Qwen2.5 7B, and what transformers 5 writes.
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, None),
        ({"model_type": "mistral", "sliding_window": None}, None, None),
        ({"model_type": "mistral"}, 4096, None),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0}, None, None),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, 9, None),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9}, None, None),
        # transformers' default, 4,096, needs the flag; null is no window.
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, 4096, None),
        ({"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 1}, 4096, (False, True)),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": None}, None, None),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 4096, None),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": None}, None, None),
        ({"model_type": "qwen2", "max_window_layers": 0}, None, None),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            9,
            (False, True),
        ),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            9,
            (True, False),
        ),
    ],
    ids=str,
)
def test_windows(fields, window, layers):
    config = LlamaConfig.from_hf({**BASE, **fields, "head_dim": 8})
    assert (config.sliding_window, config.sliding_layers) == (window, layers)
    assert LlamaConfig.from_hf(config.to_hf()) == config


def test_what_a_family_leaves_out_is_what_transformers_takes():
    bare = {k: v for k, v in BASE.items() if k != "num_key_value_heads"} | {"num_attention_heads": 32}
    assert LlamaConfig.from_hf(bare).kv_heads == 32
    mistral = LlamaConfig.from_hf({**bare, "model_type": "mistral"})
    assert (mistral.kv_heads, mistral.max_position_embeddings, mistral.qkv_bias) == (8, 131072, False)
    qwen3 = LlamaConfig.from_hf({**bare, "model_type": "qwen3"})
    assert (qwen3.kv_heads, qwen3.size, qwen3.qk_norm, qwen3.max_position_embeddings) == (32, 128, True, 32768)
    assert (mistral.bos_token_id, mistral.eos_token_id, qwen3.eos_token_id) == (1, 2, None)
    assert LlamaConfig.from_hf({**bare, "eos_token_id": None}).eos_token_id is None
    assert LlamaConfig.from_hf({**bare, "eos_token_id": []}).eos_token_id is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_combination_of_fields_is_read_as_transformers_reads_it(kind):
    from transformers import AutoConfig

    base = {**BASE, "model_type": kind, "num_hidden_layers": 30, "max_position_embeddings": 64}
    missing: dict = {}
    choices = {
        "use_sliding_window": (missing, True, False),
        "sliding_window": (missing, None, 16),
        "max_window_layers": (missing, 0, 3),
        "layer_types": (missing, ["full_attention"] * 10 + ["sliding_attention"] * 20),
        "head_dim": (missing, 8),
        "eos_token_id": (missing, None, 3, [4, 5]),
    }
    if kind == "llama":
        del choices["sliding_window"]
    if kind in ("llama", "mistral"):
        del choices["layer_types"]
    compared = 0
    for values in itertools.product(*choices.values()):
        fields = {name: value for name, value in zip(choices, values, strict=True) if value is not missing}
        windowed = kind in ("qwen2", "qwen3") and fields.get("use_sliding_window")
        if "layer_types" in fields and not (windowed and fields.get("sliding_window", 1)):
            continue  # layers with a window that there is not
        theirs = AutoConfig.for_model(**base, **fields)
        ours = LlamaConfig.from_hf({**base, **fields})
        want = getattr(theirs, "sliding_window", None) if kind != "llama" else None
        layers = (
            [want is not None] * 30
            if kind in ("llama", "mistral")
            else [want is not None and name == "sliding_attention" for name in theirs.layer_types]
        )
        slides = ours.sliding_layers or (ours.sliding_window is not None,) * 30
        assert list(slides) == layers and ours.sliding_window == (want if any(layers) else None), fields
        eos = theirs.eos_token_id
        assert ours.eos_token_id == (eos[0] if isinstance(eos, list) else eos)
        assert ours.size == (getattr(theirs, "head_dim", None) or 16)
        compared += 1
    assert compared >= 24


def test_frequencies_by_hand():
    config = LlamaConfig(100, 16, 16, 1, 4, rope=RopeConfig(theta=100.0, type="linear", factor=4.0))
    np.testing.assert_allclose(inverse_frequencies(config)[0], [1 / 4, 0.1 / 4], rtol=1e-6)
    # Wavelengths 2 pi and 20 pi: the first is short for a context of 128 / 4, the second long for 50.
    llama3 = RopeConfig(
        theta=100.0, type="llama3", factor=8.0, low_freq_factor=2.56, original_max_position_embeddings=128
    )
    np.testing.assert_allclose(
        inverse_frequencies(LlamaConfig(100, 16, 16, 1, 4, rope=llama3))[0], [1.0, 0.1 / 8], rtol=1e-6
    )
    yarn = RopeConfig(theta=100.0, type="yarn", factor=4.0, original_max_position_embeddings=128)
    assert inverse_frequencies(LlamaConfig(100, 16, 16, 1, 4, rope=yarn))[1] == pytest.approx(0.1 * math.log(4.0) + 1)


def test_flops_by_hand():
    config = LlamaConfig(10, 8, 16, 3, 2, 1)
    # q and o: 8x8 each, k and v: 8x4 each, the MLP 3 times 8x16, three layers; the head 8x10.
    matrices = 3 * (2 * 64 + 2 * 32 + 3 * 128)
    assert config.matmul_params == matrices + 80
    assert config.flops_per_token(5) == 2 * (matrices + 80) + 2 * 3 * 5 * 2 * 4
    assert config.flops_per_token(5, logits=False) == 2 * matrices + 2 * 3 * 5 * 2 * 4


def test_presets_and_their_neighbours():
    assert LlamaConfig.preset("tiny", 50, num_hidden_layers=1).hidden_size == 64
    with pytest.raises(KeyError, match="'tiny'"):
        LlamaConfig.preset("tinny", 50)


def test_lora_is_checked():
    assert LoRAConfig(rank=4, alpha=8.0).scale == 2.0
    assert LoRAConfig(rank=4, alpha=8.0, rslora=True).scale == 4.0
    with pytest.raises(ValueError, match="'q_proj'"):
        LoRAConfig(targets=("q_prj",))
    with pytest.raises(ValueError, match="rank.*0"):
        LoRAConfig(rank=0)
