"""Special tokens of a model folder: from which of its files they come, and those that have no effect."""

from __future__ import annotations

import json

import pytest

from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer, tokenizer_config
from llmrl_jax.tuning import ChatTemplate, DataError, encode_row


TEXT, TURN = "<|begin_of_text|>", "<|end_of_text|>"
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
DECODER = {"added_tokens_decoder": {"1": {"content": TURN, "special": True, **FLAGS}}}


def folder(bpe, path, config, mapped):
    bpe.save(path)
    file = path / "tokenizer_config.json"
    file.unlink()
    if config is not None:
        file.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    if mapped is not None:
        (path / "special_tokens_map.json").write_text(json.dumps(mapped))
    return path


@pytest.mark.parametrize(
    ("config", "mapped", "eos"),
    [
        ({}, {"eos_token": TURN}, TURN),
        ({}, {"eos_token": {"content": TURN, **FLAGS}}, TURN),
        ({}, {"eos_token": {"content": TURN, "special": True, **FLAGS}}, TURN),
        (None, {"eos_token": TURN}, TURN),
        ({"eos_token": TEXT}, {"eos_token": TURN}, TURN),
        ({"eos_token": TEXT}, {"eos_token": None}, None),
        ({"eos_token": TEXT}, {"pad_token": TURN}, TEXT),
        ({"eos_token": None}, {"eos_token": TURN}, TURN),
        ({"eos_token": TEXT}, {}, TEXT),
        ({"eos_token": TEXT, **DECODER}, {"eos_token": TURN}, TEXT),
        (DECODER, {"eos_token": TURN}, None),
        ({"added_tokens_decoder": {}}, {"eos_token": TURN}, None),
        ({"eos_token": {"__type": "AddedToken", "content": TURN, **FLAGS}}, None, TURN),
        ({}, {"eos_token": TURN, "additional_special_tokens": [TEXT, TURN]}, TURN),
        ({}, {"eos_token": TURN, "extra_special_tokens": {"image_token": TEXT}}, TURN),
        ({"bos_token": "", "eos_token": TURN}, None, TURN),
        ({"eos_token": TEXT}, {"eos_token": ""}, None),
        ({"eos_token": TURN, "pad_token": "[PAD]", "unk_token": "<unk>"}, None, TURN),
    ],
)
def test_special_tokens_are_those_of_transformers(bpe, config, mapped, eos, tmp_path):
    from transformers import AutoTokenizer

    path = folder(bpe, tmp_path, config, mapped)
    ours, theirs = load_tokenizer(path), AutoTokenizer.from_pretrained(str(path))
    assert ours.specials["eos_token"] == eos == (theirs.eos_token or None)
    assert ours.eos_id == (None if eos is None else theirs.eos_token_id)
    assert ours.specials["bos_token"] == (theirs.bos_token or None)
    assert ours.specials["pad_token"] == theirs.pad_token
    written = ChatTemplate("{{ eos_token }}", tokenizer_config(path)).render([])
    assert written == (eos or "")
    (path / "chat_template.jinja").write_text("{{ eos_token }}")
    assert ChatTemplate.load(path).render([]) == (eos or "")


def test_padding_that_is_no_token_is_replaced(bpe, tmp_path):
    path = folder(bpe, tmp_path, {"eos_token": TURN, "pad_token": "[PAD]"}, None)
    assert load_tokenizer(path).pad_id == load_tokenizer(path).eos_id == 1
    assert FastTokenizer(bpe.backend, bos_token="", eos_token="", pad_token="").pad_id == 0


@pytest.mark.parametrize(
    ("config", "mapped", "message"),
    [
        ({}, {"eos_token": 3}, "special_tokens_map.json.*eos_token.*3"),
        ({}, {"eos_token": [TURN]}, r"special_tokens_map.json.*eos_token.*\["),
        ({}, [], "special_tokens_map.json.*JSON"),
        (None, {"eos_token": "<eos>"}, "special_tokens_map.json.*eos_token '<eos>'"),
    ],
)
def test_wrong_files_are_named(bpe, config, mapped, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_tokenizer(folder(bpe, tmp_path, config, mapped))


def test_rows_need_an_end_token(bpe, tmp_path):
    tokenizer = load_tokenizer(folder(bpe, tmp_path, {}, None))
    with pytest.raises(DataError, match=r"f:1.*end-of-sequence.*tokenizer_config\.json"):
        encode_row({"prompt": "a", "response": "b"}, "f:1", tokenizer)
    said = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(DataError, match="f:1.*end-of-sequence"):
        encode_row(said, "f:1", tokenizer, ChatTemplate.load(tmp_path, "plain"))
    own = ChatTemplate(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}",
        {},
    )
    assert tokenizer.decode(encode_row(said, "f:1", tokenizer, own).tokens) == "u:a;a:b;", "a template writes its own"
