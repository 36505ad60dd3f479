"""Tokenizers: made from words, saved and read back, and refused where they would lose text."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from envs_jax.text import Choice, Literal, Phrasebook, Prompt, Tokenizer
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer, load_tokenizer


TEXT = " \n Observation 0: You see a red ball 1 step left, \n Action 0: go forward"


def test_words_keep_their_marks():
    tokenizer = WordTokenizer.from_texts(["turn left, turn \n right", "turn left"])
    assert tokenizer.vocab_size == 6
    assert tokenizer.encode("turn left, turn left") == [5, 3, 5, 2]
    assert tokenizer.encode(" \n ") == []
    assert tokenizer.decode([5, 3, 4]) == "turn left, right"
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (0, 1, None)
    assert tokenizer.encode_batch(["left", "turn right"]) == [[2], [5, 4]]
    assert WordTokenizer.from_texts(["turn left", "turn left, right"]).encode("right turn") == [4, 5]


def test_offsets_are_places_in_the_text(bpe):
    words = WordTokenizer.from_texts(["turn left"], spare=8)
    ids, places = words.encode_with_offsets(" turn \n right, left")
    assert places == [(1, 5), (8, 14), (15, 19)] and ids == words.encode("turn right, left")
    text = "Possible action: très"
    ids, places = bpe.encode_with_offsets(text)
    assert ids == bpe.encode(text) and places[0][0] == 0 and places[-1][1] == len(text)


def test_unknown_words_are_refused():
    tokenizer = WordTokenizer.from_texts(["turn left"])
    with pytest.raises(ValueError, match="'lefty'.*4.*'left'"):
        tokenizer.encode("turn lefty")
    with pytest.raises(ValueError, match="'up'"):
        tokenizer.encode_batch(["turn", "up"])
    with pytest.raises(ValueError, match="one word"):
        WordTokenizer.from_texts([" "])
    with pytest.raises(ValueError, match="word '<pad>'"):
        WordTokenizer.from_texts(["a <pad>"])


@pytest.mark.parametrize("spare", [0, 4])
def test_words_of_two_parts_stay_two(spare):
    tokenizer = WordTokenizer.from_texts(["what colour is the sky blue green ? ,"], spare)
    for part in ("blue", ","):
        (head, _), (ids, offsets) = tokenizer.encode_parts(["what colour is ?", part])
        assert head == tokenizer.encode("what colour is ?") and ids == tokenizer.encode(part)
        assert offsets == [(0, len(part))]


def test_word_level_tokenizers_of_others_keep_their_rules(tmp_path):
    backend = tokenizers.Tokenizer(
        models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, "hello": 3}, unk_token="<unk>")
    )
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<pad>", "<eos>", "<unk>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    read = load_tokenizer(tmp_path)
    assert not isinstance(read, WordTokenizer) and read.encode("Hello zebra") == [3, 2]


def test_spare_tokens_stand_for_other_words(tmp_path):
    plain = WordTokenizer.from_texts(["turn left, turn right"])
    spare = WordTokenizer.from_texts(["turn left, turn right"], spare=64)
    assert plain.spare_ids == [] and spare.spare_ids == list(range(5, 69)) and spare.vocab_size == 69
    assert spare.encode("turn right") == plain.encode("turn right"), "words of training keep their tokens"
    first, dax, again, xolo = spare.encode("turn dax dax, xolo")
    assert first == spare.encode("turn")[0] and dax == again != xolo and {dax, xolo} <= set(spare.spare_ids)
    assert spare.encode("right.") == spare.encode("right"), "a mark is lost before a known word is"
    assert spare.encode("left,.") == spare.encode("left,") and spare.encode("?!") == spare.encode("?")
    assert spare.encode("dax" + "!" * 100_000) == [dax] and len(spare.encode("!" * 100_000)) == 1
    assert spare.encode_batch(["xolo.", "dax,:"]) == [[xolo], [dax]]
    # by hand: 8 bytes of BLAKE2b of "dax", big-endian, modulo 64
    assert dax - 5 == int(hashlib.blake2b(b"dax", digest_size=8).hexdigest(), 16) % 64
    spare.save(tmp_path)
    read = load_tokenizer(tmp_path)
    assert isinstance(read, WordTokenizer) and read.spare_ids == spare.spare_ids
    assert read.encode("turn dax") == [first, dax]
    with pytest.raises(ValueError, match="spare.*-1"):
        WordTokenizer.from_texts(["turn"], spare=-1)
    with pytest.raises(ValueError, match="'<spare_0>'"):
        WordTokenizer.from_texts(["turn <spare_0>"], spare=1)


def test_words_of_a_prompt():
    prompt = Prompt(Literal("Action: "), Choice("last", Phrasebook(["turn left", "drop"]), suffix=","))
    tokenizer = WordTokenizer.from_prompt(prompt, ["turn left", "drop"])
    assert tokenizer.decode(range(tokenizer.vocab_size)) == "<pad> <eos> Action: drop drop, left left, turn"


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece", "words"])
def test_saved_tokenizers_are_the_same_again(kind, request, tmp_path):
    words = WordTokenizer.from_texts([TEXT])
    tokenizer: FastTokenizer = words if kind == "words" else request.getfixturevalue(kind)
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(tmp_path / "model")
    again = load_tokenizer(tmp_path / "model")
    assert type(again) is type(tokenizer)
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert again.decode(again.encode(TEXT)).split() == TEXT.split()
    assert load_tokenizer(tmp_path / "model" / "tokenizer.json").encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.slow
def test_saved_tokenizers_are_what_transformers_reads(bpe, sentencepiece, tmp_path):
    from transformers import AutoTokenizer

    for kind in (bpe, sentencepiece):
        kind.save(tmp_path / "model")
        theirs = AutoTokenizer.from_pretrained(tmp_path / "model", trust_remote_code=False)
        assert theirs.encode(TEXT, add_special_tokens=False) == kind.encode(TEXT)
        assert (theirs.bos_token_id, theirs.eos_token_id) == (kind.bos_id, kind.eos_id)


def test_special_tokens_are_those_of_the_files(bpe, tmp_path):
    bpe.save(tmp_path)
    config = {"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": None, "pad_token": "<|end_of_text|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_tokenizer(tmp_path)
    assert (found.bos_id, found.eos_id, found.pad_id) == (0, None, 1)
    assert found.encode("go")[:1] != [0]  # no special token is added
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    with pytest.raises(ValueError, match="bos_token '<s>'"):
        load_tokenizer(tmp_path)


def test_a_home_folder_may_be_abbreviated(bpe, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    bpe.save(tmp_path / "model")
    assert load_tokenizer("~/model").encode("go") == load_tokenizer("~/model/tokenizer.json").encode("go")
    with pytest.raises(FileNotFoundError, match="~/none"):
        load_tokenizer("~/none")


def test_bad_paths_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer.*/none"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"\./none"):
        load_tokenizer("./none")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json.*tokenizers"):
        load_tokenizer(tmp_path)


def test_llama2_rules(sentencepiece):
    assert sentencepiece.backend.encode("go", add_special_tokens=False).tokens[0].startswith("▁")
    newline = sentencepiece.backend.token_to_id("<0x0A>")
    assert newline in sentencepiece.encode("agent: \n Goal")
    assert sentencepiece.decode(sentencepiece.encode("agent: \n Goal")) == "agent: \n Goal"


def test_files_need_no_transformers(bpe, tmp_path, monkeypatch):
    bpe.save(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert load_tokenizer(tmp_path).vocab_size == bpe.vocab_size
