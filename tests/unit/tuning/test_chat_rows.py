"""Rows of messages: where answers begin, what is learned of them, and what else of a row the chat template reads."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer
from llmrl_jax.tuning import ChatTemplate, DataError, TemplateError, encode_prompt, encode_row, read_rows


USER, GREEN = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "green"}
ONE = [USER, GREEN]
TWO = [*ONE, {"role": "user", "content": "more"}, {"role": "assistant", "content": "red"}]
ENDS = ("<|end|>", "<|text|>", "<s>")


@pytest.fixture(scope="module")
def joining() -> FastTokenizer:
    """Byte-level BPE with tokens of two and three characters, which join a space and what follows it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "g"), ("r", "e"), ("Ġg", "re"), ("Ġ", "r"), ("e", "n"), ("Ċ", "Ċ")]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(ENDS))
    return FastTokenizer(backend, bos_token="<s>", eos_token="<|end|>")


def template(before: str, end: str = "<|end|>", *, marked: bool = False) -> ChatTemplate:
    """`before` stands before every answer and is the generation prompt; `end` stands after it."""
    said = "{{ m.content }}" + end
    said = "{% generation %}" + said + "{% endgeneration %}" if marked else said
    begin = "{{ before }}"
    source = (
        "{%- for m in messages %}{% if m.role == 'assistant' %}" + begin + said + "{% else %}"
        "{{ 'user: ' + m.content + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}" + begin + "{% endif %}"
    )
    return ChatTemplate(source, {"before": before})


def learned(example, tokenizer) -> list[str]:
    """The texts that are learned, each from a token that is not."""
    texts, ids = [], []
    for token, learn in zip([*example.tokens, 0], [*example.learn, False], strict=True):
        if learn:
            ids.append(token)
        elif ids:
            texts.append(tokenizer.decode(ids))
            ids = []
    return texts


# --- where answers begin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("before", ["assistant: ", "assistant:", "assistant:\n", "\n\n"])
def test_an_answer_begins_after_the_tokens_that_the_model_is_asked_with(joining, before, marked):
    how = template(before, marked=marked)
    example = encode_row({"messages": TWO}, "f:1", joining, how)
    assert joining.decode(example.tokens) == how.render(TWO)
    assert learned(example, joining) == ["green<|end|>", "red<|end|>"]
    for upto in (1, 3):
        text, asked = encode_prompt({"messages": TWO[: upto + 1]}, "f:1", joining, how)
        assert example.tokens[: len(asked)] == asked and joining.decode(asked) == text
        assert example.learn[len(asked)] and not example.learn[len(asked) - 1]
    if before == "assistant: ":  # by hand: tokenized as one text, its last space would be joined to the answer
        whole = joining.encode(how.render(ONE))
        assert joining.decode(whole).count(" green") == 1 and joining.encode(" gre")[0] in whole
        assert joining.encode(" gre")[0] not in example.tokens


def test_a_blank_line_that_the_next_turn_joins_is_learned(joining):
    """The token of two newlines holds the end of an answer and the start of what follows it."""
    how = ChatTemplate(
        "{% for m in messages %}{{ m.content + '\n' }}{% if m.role == 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}",
        {},
    )
    assert learned(encode_row({"messages": TWO}, "f:1", joining, how), joining) == ["green\n\n", "red\n\n"]


@pytest.mark.parametrize("kind", ["sentencepiece", "trimmed", "words"])
def test_other_tokenizers(kind, sentencepiece, bpe):
    """A space that is put before a text is not put before an answer; offsets without spaces; words without them."""
    backend = Tokenizer.from_str(bpe.backend.to_str())
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    words = WordTokenizer.from_texts(["user: hi more assistant: green red <|end|>"])
    tokenizer = {
        "sentencepiece": sentencepiece,
        "trimmed": FastTokenizer(backend, eos_token="<|end_of_text|>"),
        "words": words,
    }[kind]
    how = template("assistant: ", " <|end|>")
    said = [USER, {"role": "assistant", "content": "green" if kind == "words" else "green\n    red  "}]
    example = encode_row({"messages": said}, "f:1", tokenizer, how)
    asked = encode_prompt({"messages": said}, "f:1", tokenizer, how)[1]
    assert example.tokens[: len(asked)] == asked
    assert example.learn == [i >= len(asked) for i in range(len(example.tokens))], "spaces within it too"
    assert tokenizer.decode(example.tokens).split() == how.render(said).split()
    if kind != "words":
        assert tokenizer.decode(example.tokens).strip() == how.render(said).strip()
    (head, _), (tail, _) = tokenizer.encode_parts(["user: ", "green"], start=False)
    assert tokenizer.decode(head + tail).strip() == "user: green"


def test_offsets_of_spaces_are_where_they_are(bpe):
    backend = Tokenizer.from_str(bpe.backend.to_str())
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trimmed = FastTokenizer(backend)
    ids, offsets = trimmed.encode_with_offsets("go   on")
    assert trimmed.decode([ids[i] for i, (a, b) in enumerate(offsets) if a < 4 and b > 2]).strip(" ") == ""
    assert all(a < b for a, b in offsets)


def test_plain_messages_end_with_the_end_token(joining, tmp_path):
    plain = ChatTemplate.load(tmp_path, "plain")
    assert learned(encode_row({"messages": ONE}, "f:1", joining, plain), joining) == ["\n\ngreen<|end|>"]


# --- marks of the template --------------------------------------------------------------------------------------------


SAID = "{% generation %}{{ m.content + '<|end|>' }}{% endgeneration %}"
BODY = (
    "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}"
    + SAID
    + "{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}"
)
MARKED = {
    "thinks": BODY + "{% if add_generation_prompt %}assistant:<think>{% endif %}",
    "ends": BODY + "{% if add_generation_prompt %}assistant:{% else %}<|text|>{% endif %}",
    "drops": BODY.replace("m.content + '<", "(m.content if loop.last else m.content[-1:]) + '<")
    + "{% if add_generation_prompt %}assistant:{% endif %}",
    "space": BODY.replace("':' }}", "': ' }}") + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
    "strips": BODY.replace("m.content + '<", "m.content | trim + '<"),
}


@pytest.mark.parametrize("messages", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", list(MARKED))
def test_marks_are_the_masks_of_transformers(joining, kind, messages, tmp_path):
    from transformers import PreTrainedTokenizerFast

    joining.save(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path).apply_chat_template(
        messages, chat_template=MARKED[kind], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    how = ChatTemplate(MARKED[kind], joining.specials)
    example = encode_row({"messages": messages}, "f:1", joining, how)
    assert how.marks and joining.decode(example.tokens) == joining.decode(theirs["input_ids"])
    masked = [t for t, mask in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True) if mask]
    if kind == "space":  # there, the mask's first token is that of the space before it, too
        assert joining.decode(masked).startswith(" green")
        assert learned(example, joining) == [m["content"] + "<|end|>" for m in messages if m["role"] == "assistant"]
    else:
        assert example.tokens == theirs["input_ids"]
        assert example.learn == [bool(mask) for mask in theirs["assistant_masks"]]


def test_marks_that_cannot_be_located_are_not_used(joining):
    """In a macro, nothing says where its text will be; the generation prompt does."""
    source = (
        "{% macro said(m) %}assistant: {% generation %}{{ m.content }}<|end|>{% endgeneration %}{% endmacro %}"
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{{ said(m) }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    how = ChatTemplate(source, {})
    assert how.marks and how.render_marked(ONE)[1] is None
    assert learned(encode_row({"messages": ONE}, "f:1", joining, how), joining) == ["green<|end|>"]


def test_marks_stay_in_the_sandbox():
    for source in (
        "{% generation %}{{ ''.__class__.__mro__ }}{% endgeneration %}",
        "{% generation %}{{ messages.append(1) }}{% endgeneration %}",
        "{% generation %}{{ caller.__globals__ }}{% endgeneration %}",
    ):
        with pytest.raises(TemplateError, match="refuses.*messages"):
            ChatTemplate(source, {}).render(ONE)


def test_a_template_that_marks_nothing_of_a_row_is_refused(joining):
    how = ChatTemplate(BODY.replace("== 'assistant'", "== 'model'"), {})
    with pytest.raises(DataError, match="f:1.*no token"):
        encode_row({"messages": ONE}, "f:1", joining, how)


# --- answers that cannot be located, and context ----------------------------------------------------------------------


def test_the_remedies_of_a_refusal_help(joining):
    unmarked = {
        name: MARKED[name].replace("{% generation %}", "").replace("{% endgeneration %}", "") for name in MARKED
    }
    thinks, ends = ChatTemplate(unmarked["thinks"], {}), ChatTemplate(unmarked["ends"], {})
    with pytest.raises(DataError, match="f:1.*generation prompt.*{% generation %}"):
        encode_row({"messages": ONE}, "f:1", joining, thinks)
    asked = thinks.render([USER], add_generation_prompt=True)
    row = {"prompt": asked, "response": "</think>green"}
    assert learned(encode_row(row, "f:1", joining), joining) == ["</think>green<|end|>"]
    assert encode_row(row, "f:1", joining).tokens[:-1] == joining.encode(asked + "</think>green")
    with pytest.raises(DataError, match="f:1.*rewrites message 1.*weight 0"):
        encode_row({"messages": TWO}, "f:1", joining, ends)
    rows = [ONE, [USER, {**GREEN, "weight": 0}, *TWO[2:]]]
    texts = [learned(encode_row({"messages": row}, "f:1", joining, ends), joining) for row in rows]
    assert texts == [["green<|end|>\n<|text|>"], ["red<|end|>\n<|text|>"]]


@pytest.mark.parametrize("marked", [False, True])
def test_answers_of_weight_0_are_context(joining, marked):
    how = template("assistant: ", marked=marked)
    messages = [USER, {**GREEN, "weight": 0}, *TWO[2:3], {**TWO[3], "weight": 1}]
    example = encode_row({"messages": messages}, "f:1", joining, how)
    assert example.tokens == encode_row({"messages": TWO}, "f:1", joining, how).tokens
    assert learned(example, joining) == ["red<|end|>"]
    with pytest.raises(DataError, match="f:1.*every message.*weight 0"):
        encode_row({"messages": [USER, {**GREEN, "weight": 0}]}, "f:1", joining, how)
    with pytest.raises(DataError, match=r"f:1.*message 1.*weight 0\.5"):
        encode_row({"messages": [USER, {**GREEN, "weight": 0.5}]}, "f:1", joining, how)


# --- keys without a value ---------------------------------------------------------------------------------------------


CALLS = (
    "{% for m in messages %}{{ m.role }}{% if 'tool_calls' in m %}{{ m.tool_calls | tojson }}{% endif %}"
    "{% if m.thinking is defined %}{{ m.thinking }}{% endif %}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


@pytest.mark.parametrize("kind", ["row", "jsonl", "parquet"])
def test_a_null_key_is_no_key(joining, kind, tmp_path):
    how = ChatTemplate(CALLS, {})
    row = {"messages": [{**m, "tool_calls": None, "thinking": None, "weight": None} for m in ONE]}
    row |= {"prompt": None, "tools": None, "documents": None, "chat_template_kwargs": None}
    if kind == "jsonl":
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    if kind != "row":
        ((_, row),) = read_rows(tmp_path / f"rows.{kind}")
    assert joining.decode(encode_row(row, "f:1", joining, how).tokens) == "user:hi;assistant:green;"
    assert encode_prompt(row, "f:1", joining, how)[0] == "user:hi;assistant"
    assert how.render(row["messages"]) == "user:hi;assistant:green;"
    pair = {"messages": None, "prompt": "a", "response": "b"}
    assert encode_row(pair, "f:1", joining) == encode_row({"prompt": "a", "response": "b"}, "f:1", joining)
    assert encode_prompt(pair, "f:1", joining)[0] == "a"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_are_rendered_whichever_name_they_have(name):
    """As transformers: templates read `reasoning_content` or `thinking`."""
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.content }}{% endfor %}"
    messages = [{"role": "assistant", "content": "2", name: "one and one"}]
    assert ChatTemplate(source, {}).render(messages) == "one and one|one and one|2"
    both = [{"role": "assistant", "content": "2", "thinking": "a", "reasoning_content": "b"}]
    assert ChatTemplate(source, {}).render(both) == "b|a|2"


def test_calls_of_tools_have_no_null_keys(joining, tmp_path):
    """In JSON the null argument of a call is a value; in parquet every call has the arguments of all of them."""
    how = ChatTemplate(CALLS, {})
    call = {"id": None, "type": "function", "function": {"name": "look", "arguments": {"x": 1, "y": None}}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = encode_row({"messages": [USER, answer]}, "f:1", joining, how)
    shown = '[{"type": "function", "function": {"name": "look", "arguments": {"x": 1, "y": null}}}]'
    assert joining.decode(text.tokens) == f"user:hi;assistant{shown}:;"
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    other = {"function": {"name": "go", "arguments": {"y": "left"}}}
    tools = [{"function": {"name": "look", "parameters": {"x": {"type": "int"}, "y": None}}}]
    rows = [
        {"messages": [USER, answer], "tools": tools, "note": {"a": None}},
        {"messages": [USER, {**answer, "tool_calls": [other]}], "tools": tools, "note": {"a": 1}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read = [row for _, row in read_rows(tmp_path / "rows.parquet")]
    assert read[0]["messages"][1]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"x": 1}}
    assert read[1]["messages"][1]["tool_calls"][0]["function"] == {"name": "go", "arguments": {"y": "left"}}
    assert read[0]["tools"] == [{"function": {"name": "look", "parameters": {"x": {"type": "int"}}}}]
    assert read[0]["note"] == {"a": None}, "columns for a reward are as they are"


# --- columns beside the messages --------------------------------------------------------------------------------------


READS = (
    "{% if tools %}T{{ tools | tojson }};{% endif %}{% if documents %}D{{ documents[0].text }};{% endif %}"
    "{% if think is defined %}K{{ think }};{% endif %}{% for m in messages %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"default": None}}}]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("tools", TOOLS, f"T{json.dumps(TOOLS)};"),
        ("documents", [{"text": "moss"}], "Dmoss;"),
        ("chat_template_kwargs", {"think": False}, "KFalse;"),
        ("tools", [], ""),
        ("chat_template_kwargs", {}, ""),
    ],
)
def test_columns_are_shown_to_the_template(joining, column, value, shown, as_json):
    how = ChatTemplate(READS, {})
    row = {"messages": ONE, column: json.dumps(value) if as_json else value}
    assert joining.decode(encode_row(row, "f:1", joining, how).tokens) == f"{shown}hi;green;"
    assert encode_prompt(row, "f:1", joining, how)[0] == f"{shown}hi;"


@pytest.mark.parametrize(
    ("row", "source", "message"),
    [
        ({"tools": TOOLS}, CALLS, "f:1.*tools.*template"),
        ({"documents": [{"text": "x"}]}, CALLS, "f:1.*documents.*template"),
        ({"chat_template_kwargs": {"thinks": 1}}, READS, "'thinks'.*'think'"),
        ({"chat_template_kwargs": {"messages": []}}, READS, "'messages'"),
        ({"tools": "look"}, READS, "tools.*no JSON"),
        ({"tools": "{}"}, READS, "f:1.*tools.*dict"),
        ({"documents": 3}, READS, "f:1.*documents.*int"),
        ({"chat_template_kwargs": "[1]"}, READS, "f:1: chat_template_kwargs.*list"),
        ({"tools": "[" * 100_000}, READS, "tools.*no JSON"),
    ],
)
def test_columns_that_are_not_shown_are_refused(joining, row, source, message):
    for encode in (encode_row, encode_prompt):
        with pytest.raises(DataError, match=message):
            encode({"messages": ONE, **row}, "f:1", joining, ChatTemplate(source, {}))


def test_columns_of_a_row_without_messages_are_for_the_reward(joining):
    row = {"prompt": "a", "tools": "look", "documents": 3}
    assert encode_prompt(row, "f:1", joining) == ("a", joining.encode("a"))
