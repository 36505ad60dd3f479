"""Rows of text: what is learnt and what is only read, and what is said of rows that cannot be used."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.tuning import (
    ChatTemplate,
    DataError,
    Example,
    TemplateError,
    check_vocabulary,
    encode_prompt,
    encode_row,
    pack,
    read_rows,
)
from tests.tokenizer_fixtures import begins_with


@pytest.fixture(scope="module")
def tokenizer():
    """One token for each byte, and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = begins_with("<s>", backend)
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
    backend.add_special_tokens(["</s>"])
    joining = FastTokenizer(backend, eos_token="</s>")
    assert joining.encode("ab") == [2]
    assert encode_row({"prompt": "a", "response": "b"}, "x:1", joining) == Example([0, 1, 3], [False, True, True])


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
    with pytest.raises(DataError, match="message 1"):
        encode_row({"messages": [one, two]}, "x:1", tokenizer, last)
    with pytest.raises(DataError, match="x:1.*refuses"):  # it was not made for an empty start
        encode_row({"messages": [two]}, "x:1", tokenizer, last)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"promt": "a", "response": "b"}, "f:3.*'prompt'.*'promt'"),
        ({"prompt": "a", "response": 4}, "f:3: 'response'.*int"),
        ({"prompt": "a", "response": ""}, "response.*empty"),
        ({"messages": []}, "messages.*list.*one message"),
        ({"messages": [{"content": "x"}]}, "message 0.*role"),
        ({"messages": [{"role": "user", "content": None}]}, "message 0.*text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "f:3.*assistant"),
    ],
)
def test_rows_that_cannot_be_used(tokenizer, template, row, message):
    with pytest.raises(DataError, match=message):
        encode_row(row, "f:3", tokenizer, template)


def test_messages_need_a_template(tokenizer):
    with pytest.raises(DataError, match="chat template"):
        encode_row({"messages": [{"role": "assistant", "content": "x"}]}, "f:3", tokenizer)


def test_reading(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "response": "b"}\n\n{"prompt": "c", "response": "d"}\n')
    assert [name for name, _ in read_rows(file)] == ["rows.jsonl:1", "rows.jsonl:3"]
    file.write_text('{"prompt": 1}\n{"prompt"\n')
    with pytest.raises(DataError, match="rows.jsonl:2.*JSON"):
        list(read_rows(file))
    file.write_text("[1]\n")
    with pytest.raises(DataError, match="rows.jsonl:1.*list"):
        list(read_rows(file))
    with pytest.raises(FileNotFoundError, match="'rows.jsonl'"):
        list(read_rows(tmp_path / "row.jsonl"))
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(DataError, match=".jsonl.*.parquet"):
        list(read_rows(tmp_path / "rows.csv"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"prompt": "caf\u00e9"}\n'.encode("latin-1"),
            r"rows.jsonl:1.*UTF-8 \(the byte 0xe9 at 16\).*-f LATIN1",
        ),
        ('{"prompt": "a"}\n'.encode("utf-16"), "rows.jsonl:1.*UTF-8.*UTF-16.*-f UTF-16"),
        ('{"prompt": "a"}\n'.encode("utf-16-be"), "UTF-16"),
        (b'{}\n{"prompt": "a\xff"}\n', "rows.jsonl:2.*UTF-8"),
        (b'{"a": ' + b"[" * 200_000 + b"\n", "rows.jsonl:1.*JSON: maximum"),
        (b'{"a": ' + b"1" * 5000 + b"}\n", "rows.jsonl:1.*JSON: Exceeds"),
    ],
    ids=["latin-1", "utf-16", "utf-16 without a mark", "second line", "deep", "long number"],
)
def test_files_that_are_no_json_lines_in_utf_8(tmp_path, content, message):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / "rows.jsonl"))


def test_the_mark_of_utf_8_is_no_text(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes('{"prompt": "é"}\r\n{"prompt": "\u2028"}\r\n'.encode("utf-8-sig"))
    assert [row["prompt"] for _, row in read_rows(tmp_path / "rows.jsonl")] == ["é", "\u2028"]


def test_errors_of_tokenizers_name_the_row(tokenizer, template):
    for row in ({"prompt": "a\ud800", "response": "b"}, {"messages": [{"role": "user", "content": "\ud800"}] * 2}):
        with pytest.raises(DataError, match=r"f:9.*'\\ud800'.*\d+"):
            encode_prompt(row, "f:9", tokenizer, template)
    with pytest.raises(DataError, match="f:9.*text"):
        encode_row({"prompt": "a", "response": "\udfff"}, "f:9", tokenizer)


def test_tokens_that_the_model_does_not_have(tokenizer):
    check_vocabulary([256, 257], "f:2", tokenizer, 258)
    check_vocabulary([], "f:2", tokenizer, 1)
    with pytest.raises(DataError, match=r"f:2.*257 \('</s>'\).*vocabulary.*0.*256"):
        check_vocabulary([256, 257], "f:2", tokenizer, 257)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert [row for _, row in read_rows(tmp_path / "rows.parquet")] == rows
    whole = (tmp_path / "rows.parquet").read_bytes()
    for content in (b"", b'{"prompt": "a"}\n', whole[:-20], whole[:50] + whole[-50:]):
        (tmp_path / "rows.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"rows.parquet.*\(.*\)"):
            list(read_rows(tmp_path / "rows.parquet"))


# --- chat templates ---------------------------------------------------------------------------------------------------


def test_a_template_is_that_of_any_model_that_is_located(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "chat_template.jinja").write_text("x")
    assert ChatTemplate.load("~/model").render([]) == "x"
    with pytest.raises(FileNotFoundError, match="~/none"):
        ChatTemplate.load("~/none")


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
    with pytest.raises(TemplateError, match="refuses.*messages"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_template_in_place_of_the_models_own(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "own", "bos_token": "<s>"}')
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    assert ChatTemplate.load(tmp_path).render(said) == "own"
    assert ChatTemplate.load(tmp_path, "plain").render(said, add_generation_prompt=True) == "Be brief.\n\nHow many?"
    (tmp_path / "mine.jinja").write_text("{{ messages | length }}")
    assert ChatTemplate.load(tmp_path, str(tmp_path / "mine.jinja")).render(said) == "2"
    with pytest.raises(TemplateError, match="'chatml'"):
        ChatTemplate.load(tmp_path, "chatml")
    with pytest.raises(TemplateError, match="'{{{{{{.*plain"):
        ChatTemplate.load(tmp_path, "{" * 5000)


def test_a_template_that_is_not_jinja():
    with pytest.raises(TemplateError, match="Jinja.*1"):
        ChatTemplate("{% for %}", {})
    with pytest.raises(TemplateError, match="Jinja.*'nope'"):
        ChatTemplate("{{ messages | nope }}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
        "{{ messages[0].content * 10 ** 12 }}",
        "{{ [1] * 10 ** 12 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% set ns = namespace(x='abc') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='abc') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    ],
)
def test_templates_end(source, monkeypatch):
    monkeypatch.setattr("llmrl_jax.tuning.sandbox.STEPS", 50_000)
    monkeypatch.setattr("llmrl_jax.tuning.sandbox.LENGTH", 50_000)
    with pytest.raises(TemplateError, match="chat template.*50,000"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "xx"}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ none + 'a' }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ range(10 ** 8) }}", "OverflowError: Range"),
        ("{{ nothing.at.all }}", "'nothing'"),
    ],
)
def test_templates_that_fail_say_so_in_a_line(source, message):
    with pytest.raises(TemplateError, match=message) as found:
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
    assert "\n" not in str(found.value)


def test_bounds_change_nothing_else():
    """By hand: every kind of loop and join that the bounds pass through their filters."""
    source = (
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ none }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}"
        "{% for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}"
        "{% for x in messages | map(attribute='role') %}{{ x[0] }}{% if loop.last %}.{% else %},{% endif %}{% endfor %}"
        "{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 2 * [0] }}{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 2 ** 10 }}{{ 1.5 * 2 }}"
        "{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    want = "1/2False 2/2True a1Nonenone123u,a,u.6abab[0, 0][1, 2]ab10243.001"
    assert ChatTemplate(source, {}).render(said) == want


def test_templates_of_llama_3_2s_kind():
    """The date, the block that marks what the assistant says, and no tools, as transformers gives them."""
    source = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{{- "Today is " + date_string + ".\n" }}
{%- if tools is not none %}{{- raise_exception("no tools here") }}{%- endif %}
{%- for message in messages %}
{{- "<|" + message.role + "|>" }}
{%- if message.role == "assistant" %}
{% generation %}{% set said = message.content | trim %}{{ said }}<|end|>{% endgeneration %}

{%- else %}{{- message.content }}{%- endif %}
{%- endfor %}{{- said is defined }}"""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " hello "}]
    day = datetime.datetime(2024, 7, 26)
    rendered = ChatTemplate(source, {"bos_token": "<s>"}, date=day).render(said)
    assert rendered == "<s>Today is 26 Jul 2024.\n<|user|>hi<|assistant|>hello<|end|>False"
    today = ChatTemplate("{{ strftime_now('%Y') }}", {}).render([])
    assert abs(int(today) - datetime.datetime.now().year) <= 1


@pytest.mark.slow
def test_templates_render_as_in_transformers():
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{%- for m in messages %}\n    {%- if m.role == 'assistant' %}\n{% generation %}\n{{ m.content ~ '!' }}"
        "{% set x = 1 %}\n{% endgeneration %}\n{% else %}\n{{ m.content | tojson }}{{ m.content * 2 }}{% endif %}"
        "{% endfor %}{{ x is defined }}{{ tools is none }}{{ strftime_now('%Y') }}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    said = [{"role": "user", "content": "é<b>"}, {"role": "assistant", "content": "y"}]
    theirs, _ = render_jinja_template([said], chat_template=source, add_generation_prompt=True)
    assert ChatTemplate(source, {}).render(said, add_generation_prompt=True) == theirs[0]


def test_files_of_templates_that_are_wrong_are_named(tmp_path):
    file = tmp_path / "tokenizer_config.json"
    for text, message in (
        ("{", "tokenizer_config.json.*JSON"),
        ('{"chat_template": 3}', "chat_template.*tokenizer_config.json.*int"),
        ('{"chat_template": "x", "bos_token": [1]}', r"tokenizer_config.json.*bos_token.*\[1\]"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            ChatTemplate.load(tmp_path)
    file.write_text('{"chat_template": [3, {"name": "other"}]}')
    assert ChatTemplate.load(tmp_path) is None
    (tmp_path / "chat_template.jinja").write_bytes("é".encode("latin-1"))
    with pytest.raises(TemplateError, match=r"chat_template.jinja.*UTF-8 \(byte 0\)"):
        ChatTemplate.load(tmp_path)


def unreadable():
    """As root may read everything, the error of the system is made here."""
    return mock.patch.object(Path, "open", side_effect=PermissionError(13, "Permission denied"))


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("x")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}')
    with unreadable(), pytest.raises(TemplateError, match="chat_template.jinja.*Permission"):
        ChatTemplate.load(tmp_path)
    with unreadable(), pytest.raises(DataError, match="rows.jsonl.*Permission denied"):
        list(read_rows(tmp_path / "rows.jsonl"))
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with unreadable(), pytest.raises(ValueError, match="tokenizer_config.json.*Permission denied"):
        ChatTemplate.load(tmp_path)
    with pytest.raises(DataError, match="too long"):
        list(read_rows(tmp_path / ("x" * 300 + ".jsonl")))


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
    with pytest.raises(DataError, match="rows.jsonl:7.*9.*8"):
        pack([example(9)], 8, names=["rows.jsonl:7"])
    assert pack([example(9)], 8, overflow="cut").tokens.shape == (1, 8)
    with pytest.raises(DataError, match="example 0: within 2"):
        pack([Example([1, 2, 3], [False, False, True])], 2, overflow="cut")
    with pytest.raises(DataError, match="no example"):
        pack([], 8)
    with pytest.raises(ValueError, match="1 tokens"):
        pack([example(3)], 1)
