"""Rows of text: what is learnt and what is only read, and what is said of rows that cannot be used."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.tuning import ChatTemplate, DataError, Example, TemplateError, encode_row, pack, read_rows


@pytest.fixture(scope="module")
def tokenizer():
    """One token for each byte, and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return FastTokenizer(backend, bos_token="<s>", eos_token="</s>")


CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(CHATML, {"bos_token": "<s>", "eos_token": "</s>"})


def taught(example: Example, tokenizer) -> str:
    return tokenizer.decode([t for t, learn in zip(example.tokens, example.learn, strict=True) if learn])


def test_a_response_and_its_end_are_learnt(tokenizer):
    example = encode_row({"prompt": "2+2=", "response": " 4"}, "x:1", tokenizer)
    assert tokenizer.decode(example.tokens) == "<s>2+2= 4</s>"
    assert taught(example, tokenizer) == " 4</s>"


def test_a_border_that_joins_is_tokenized_apart():
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    joining = FastTokenizer(backend)
    assert joining.encode("ab") == [2]
    assert encode_row({"prompt": "a", "response": "b"}, "x:1", joining) == Example([0, 1], [False, True])


def test_what_the_assistant_says_is_learnt(tokenizer, template):
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "so long"},
    ]
    example = encode_row({"messages": messages}, "x:1", tokenizer, template)
    assert tokenizer.decode(example.tokens) == template.render(messages)
    assert taught(example, tokenizer) == "hello</s>so long</s>"


def test_a_template_that_rewrites_the_past_is_refused(tokenizer):
    last = ChatTemplate("{{ messages[-1]['content'] }}", {})
    one, two = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
    with pytest.raises(DataError, match="rewrites what came before message 1"):
        encode_row({"messages": [one, two]}, "x:1", tokenizer, last)
    with pytest.raises(DataError, match="x:1: the chat template refuses"):  # it was not made for an empty start
        encode_row({"messages": [two]}, "x:1", tokenizer, last)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"promt": "a", "response": "b"}, "f:3 has no 'prompt'; did you mean 'promt'"),
        ({"prompt": "a", "response": 4}, "f:3: 'response' is a int, not text"),
        ({"prompt": "a", "response": ""}, "the response is empty"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"content": "x"}]}, "message 0 has no role"),
        ({"messages": [{"role": "user", "content": None}]}, "message 0 has no text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "the assistant says nothing"),
    ],
)
def test_rows_that_cannot_be_used(tokenizer, template, row, message):
    with pytest.raises(DataError, match=message):
        encode_row(row, "f:3", tokenizer, template)


def test_messages_need_a_template(tokenizer):
    with pytest.raises(DataError, match="no chat template"):
        encode_row({"messages": [{"role": "assistant", "content": "x"}]}, "f:3", tokenizer)


def test_reading(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "response": "b"}\n\n{"prompt": "c", "response": "d"}\n')
    assert [name for name, _ in read_rows(file)] == ["rows.jsonl:1", "rows.jsonl:3"]
    file.write_text('{"prompt": 1}\n{"prompt"\n')
    with pytest.raises(DataError, match=r"rows.jsonl:2 is not JSON: .* at column"):
        list(read_rows(file))
    file.write_text("[1]\n")
    with pytest.raises(DataError, match="rows.jsonl:1 is a list"):
        list(read_rows(file))
    with pytest.raises(FileNotFoundError, match="did you mean 'rows.jsonl'"):
        list(read_rows(tmp_path / "row.jsonl"))
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(DataError, match=r"neither .jsonl nor .parquet"):
        list(read_rows(tmp_path / "rows.csv"))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert [row for _, row in read_rows(tmp_path / "rows.parquet")] == rows


# --- chat templates ---------------------------------------------------------------------------------------------------


def test_templates_of_a_model_folder(tmp_path):
    assert ChatTemplate.load(tmp_path) is None
    config = {"chat_template": "{{ bos_token }}x", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render([]) == "<s>x"
    config["chat_template"] = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render([]) == "d"
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content | tojson }}{% endfor %}")
    assert ChatTemplate.load(tmp_path).render([{"role": "user", "content": "é"}]) == '"é"'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('roles must alternate') }}",
    ],
)
def test_templates_stay_in_their_sandbox(source):
    with pytest.raises(TemplateError, match="refuses these messages"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_template_in_place_of_the_models_own(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "own", "bos_token": "<s>"}')
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    assert ChatTemplate.load(tmp_path).render(said) == "own"
    assert ChatTemplate.load(tmp_path, "plain").render(said, add_generation_prompt=True) == "<s>Be brief.\n\nHow many?"
    (tmp_path / "mine.jinja").write_text("{{ messages | length }}")
    assert ChatTemplate.load(tmp_path, str(tmp_path / "mine.jinja")).render(said) == "2"
    with pytest.raises(TemplateError, match="'chatml' is neither plain nor a file"):
        ChatTemplate.load(tmp_path, "chatml")


def test_a_template_that_is_not_jinja():
    with pytest.raises(TemplateError, match="not Jinja: .* in line 1"):
        ChatTemplate("{% for %}", {})


# --- packing ----------------------------------------------------------------------------------------------------------


def example(size: int, first: int = 10) -> Example:
    return Example(list(range(first, first + size)), [False] + [True] * (size - 1))


def test_packing_by_hand():
    packed = pack([example(3, 10), example(5, 20), example(2, 30), example(4, 40)], 8)
    np.testing.assert_array_equal(packed.tokens, [[20, 21, 22, 23, 24, 10, 11, 12], [40, 41, 42, 43, 30, 31, 0, 0]])
    np.testing.assert_array_equal(packed.positions, [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 1, -1, -1]])
    np.testing.assert_array_equal(packed.segments, [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0, 0]])
    np.testing.assert_array_equal(packed.learn, (packed.positions > 0))
    alone = pack([example(3), example(2)], 4, several=False)
    assert alone.tokens.shape == (2, 4) and alone.segments.max() == 1


def test_packing_loses_nothing():
    random = np.random.default_rng(0)
    examples = [example(int(n), 100 * i) for i, n in enumerate(random.integers(2, 40, 200))]
    packed = pack(examples, 64)
    found = sorted(packed.tokens[packed.segments > 0].tolist())
    assert found == sorted(t for e in examples for t in e.tokens)
    assert packed.tokens.shape[0] <= 1.1 * sum(len(e.tokens) for e in examples) / 64 + 1


def test_what_does_not_fit_is_refused_or_cut():
    with pytest.raises(DataError, match=r"rows.jsonl:7 has 9 tokens, a row 8"):
        pack([example(9)], 8, names=["rows.jsonl:7"])
    assert pack([example(9)], 8, overflow="cut").tokens.shape == (1, 8)
    with pytest.raises(DataError, match="example 0: within 2 tokens there is nothing to learn"):
        pack([Example([1, 2, 3], [False, False, True])], 2, overflow="cut")
    with pytest.raises(DataError, match="no example"):
        pack([], 8)
    with pytest.raises(ValueError, match="rows of 1 tokens"):
        pack([example(3)], 1)
