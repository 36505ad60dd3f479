"""Sentence encoders against Hugging Face's BertModel and BertTokenizer, and a folder that transformers wrote."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from llmrl_jax.lm.encoder_weights import load_encoder
from tests.parity.encoder_cases import CASES, TEXTS, EncoderCase, inputs, torch_model, torch_states


pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_states_and_pooler_are_those_of_transformers(case: EncoderCase, tmp_path):
    tokens, lengths, types = inputs()
    encoder = load_encoder(case.write(tmp_path), pooling="pooler")
    out = jax.jit(encoder.model.apply)(encoder.variables, tokens, lengths, types)
    hidden, pooled = torch_states(case)
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    np.testing.assert_allclose(out.hidden * real[..., None], hidden, atol=TOLERANCE)
    np.testing.assert_allclose(out.pooled, pooled, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_embeddings_of_texts_are_those_of_transformers(case: EncoderCase, tmp_path):
    """Its tokenizer, its model, and the pooling that sentence-transformers would do: all from texts."""
    folder = case.write(tmp_path)
    encoder = load_encoder(folder)
    # A tokenizer.json is read as it is; without one, transformers 5 takes the vocabulary alone.
    how = {"tokenizer_file": str(folder / "tokenizer.json")} if case.fast else {"vocab": str(folder / "vocab.txt")}
    tokenizer = transformers.BertTokenizer(**how, do_lower_case=case.lower)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=encoder.max_length, return_tensors="pt")
    with torch.no_grad():
        hidden = torch_model(case)(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    want = (hidden * mask).sum(1) / mask.sum(1)
    want = torch.nn.functional.normalize(want, dim=1) if case.pooling else want
    assert encoder.normalize == (case.pooling is not None)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), want.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["BertModel", "BertForPreTraining"])
def test_a_folder_that_transformers_wrote_is_read(kind, tmp_path):
    case = CASES[2]
    folder = case.write(tmp_path)
    bare = torch_model(case)
    whole = bare if kind == "BertModel" else transformers.BertForPreTraining(bare.config)
    if whole is not bare:
        whole.bert = bare
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder)
    encoder = load_encoder(folder, pooling="pooler")
    tokens, lengths, types = inputs()
    out = jax.jit(encoder.model.apply)(encoder.variables, tokens, lengths, types)
    np.testing.assert_allclose(out.pooled, torch_states(case)[1], atol=TOLERANCE)
