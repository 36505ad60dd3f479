"""The distribution that tokens are drawn from, by hand; and stop strings, against looking for them in the text."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import FastTokenizer, WordTokenizer
from llmrl_jax.lm.sampling import NEUTRAL, SamplingConfig, largest, process, sample_tokens
from llmrl_jax.lm.stops import StopStrings, token_bytes


# Probabilities 8, 4, 2, 1, 1 of 16, in another order.
LOGITS = np.log(np.array([2.0, 8.0, 1.0, 4.0, 1.0], np.float32))[None, None]
GONE = -np.inf


def processed(logits=LOGITS, seen=None, **options):
    return np.asarray(process(jnp.asarray(logits, jnp.float32), seen, SamplingConfig(1, **options)))[0, 0]


def kept(**options):
    return np.flatnonzero(np.isfinite(processed(**options))).tolist()


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [0, 1, 3]),
        ({"top_k": 4}, [0, 1, 2, 3, 4]),  # the fourth and the fifth are equal
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.01}, [1]),
        ({"top_p": 0.49}, [1]),
        ({"top_p": 0.51}, [1, 3]),
        ({"top_p": 0.8}, [0, 1, 3]),
        ({"top_p": 0.9}, [0, 1, 2, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 2, "top_p": 0.65}, [1]),  # 8 of 12 are left to it
        ({"top_k": 2, "top_p": 0.68}, [1, 3]),
        ({"min_p": 0.2}, [0, 1, 3]),
        ({"min_p": 0.3}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"temperature": 2.0, "min_p": 0.4}, [0, 1, 3]),  # ratios 1/2, 1, 0.35, 0.71, 0.35
        ({"temperature": 0.5, "top_p": 0.7}, [1]),  # 64 of 86
        ({"temperature": 0.0, "top_k": 1}, [0, 1, 2, 3, 4]),  # greedy: nothing to remove
    ],
    ids=str,
)
def test_what_is_kept(options, want):
    assert kept(**options) == want
    if options.get("temperature") != 0.0:
        assert kept(**{k: jnp.full(1, v) for k, v in options.items()}) == want


def test_the_kth_largest_for_any_k():
    values = np.random.default_rng(0).normal(size=(6, 2, 50)).astype(np.float32)
    values[1] = np.round(values[1])  # ties, 0 and -0
    values[2] *= 1e30
    values[3, 0, ::3] = -np.inf
    for k in (1, 2, 25, 50):
        got = largest(jnp.asarray(values), jnp.full((6, 1, 1), k))
        np.testing.assert_array_equal(got[..., 0], np.sort(values)[..., -k])


def test_top_k_of_each_row_is_one_program():
    rows = jnp.asarray(np.repeat(LOGITS, 4, axis=0))
    program = jax.jit(lambda x, k: process(x, None, SamplingConfig(1, top_k=k)))
    for each in ([0, 1, 2, 99], [0, 0, 0, 0], [3, 3, 4, 0]):
        got = program(rows, jnp.array(each))
        for row, k in zip(got, each):
            np.testing.assert_array_equal(row[0], processed(top_k=k))
    assert program._cache_size() == 1


def test_temperature_divides_and_what_is_kept_keeps_its_logit():
    got = processed(temperature=0.5, top_k=2)
    np.testing.assert_allclose(got, [GONE, 2 * np.log(8), GONE, 2 * np.log(4), GONE], rtol=1e-6)


def test_repetition_penalty_divides_the_positive_and_multiplies_the_negative():
    seen = jnp.array([[[True, True, False, False]]])
    logits = np.array([[[3.0, -3.0, 3.0, -3.0]]])
    np.testing.assert_allclose(processed(logits, seen, repetition_penalty=1.5), [2, -4.5, 3, -3])
    np.testing.assert_allclose(processed(logits, seen, repetition_penalty=1.5, temperature=0.5), [4, -9, 6, -6])


def test_options_of_each_row():
    rows = jnp.asarray(np.repeat(LOGITS, 4, axis=0))
    config = SamplingConfig(1, temperature=jnp.array([1.0, 2.0, 1.0, 0.0]), top_p=jnp.array([1.0, 1.0, 0.51, 1.0]))
    got = np.asarray(process(rows, None, config))[:, 0]
    np.testing.assert_allclose(got[0], LOGITS[0, 0], rtol=1e-6)
    np.testing.assert_allclose(got[1], LOGITS[0, 0] / 2, rtol=1e-6)
    np.testing.assert_array_equal(np.isfinite(got[2]), [False, True, False, True, False])
    tokens, log_probs = sample_tokens(jnp.asarray(got)[:, None], jax.random.split(jax.random.key(0), (4, 1)), config)
    assert tokens[3, 0] == 1 and log_probs[3, 0] == 0
    np.testing.assert_allclose(np.exp(log_probs[2, 0]), [8 / 12, 4 / 12][int(tokens[2, 0] == 3)], rtol=1e-5)


def test_draws_follow_what_is_left():
    config = SamplingConfig(1, top_k=3)
    many = jnp.broadcast_to(process(jnp.asarray(LOGITS), None, config), (1, 20_000, 5))
    tokens, _ = sample_tokens(many, jax.random.split(jax.random.key(1), (1, 20_000)), config)
    counts = np.bincount(np.asarray(tokens)[0], minlength=5)
    want = np.array([2, 8, 0, 4, 0]) / 14 * 20_000
    assert not counts[[2, 4]].any()
    statistic = ((counts - want)[[0, 1, 3]] ** 2 / want[[0, 1, 3]]).sum()
    assert statistic < 13.8  # chi-square of 2 degrees of freedom, p = 0.001


def test_greedy_takes_the_first_of_equals():
    config = SamplingConfig(1, temperature=0.0)
    tokens, log_probs = sample_tokens(
        jnp.array([[[0.0, 2.0, 2.0]]]), jax.random.split(jax.random.key(0), (1, 1)), config
    )
    assert tokens[0, 0] == 1 and log_probs[0, 0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens.*0.*1"),
        ({"samples": 0}, "samples.*0"),
        ({"temperature": -0.5}, "temperature.*-0.5; 0.*1e-06"),
        ({"temperature": float("nan")}, "temperature.*nan"),
        ({"temperature": float("inf")}, "temperature.*inf"),
        ({"top_k": -1}, "top_k.*-1.*0"),
        ({"top_p": 0.0}, r"top_p.*0.0.*0, 1\]"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": np.array([0.5, 1.5])}, "top_p.*1.5"),
        ({"min_p": -0.1}, "min_p.*-0.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty.*0.0.*0.001.*1000"),
    ],
    ids=str,
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**{"max_new_tokens": 4, **options})


def test_numbers_are_static_and_arrays_are_not():
    config = SamplingConfig(4, temperature=0.7, top_p=jnp.float32(0.9))
    fixed, traced = config.split()
    assert hash(fixed) == hash(SamplingConfig(4, temperature=0.7)) and list(traced) == ["top_p"]
    assert jax.jit(lambda c: c.split()[1])(config).keys() == set(NEUTRAL)
    assert dataclasses.replace(config, top_p=1.0) == fixed


def byte_level(*merged):
    """GPT-2's kind: a token for each byte, a few longer ones, an added one, and a hole in the ids."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    names = sorted(pre_tokenizers.ByteLevel.alphabet()) + list(merged)
    backend = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end of text|>"])
    return FastTokenizer(backend)


def sentencepiece(words=("▁a", "b", "▁ba", "c▁", "<s>")):
    """Llama 2's kind: marks for spaces, and a token for each byte."""
    import tokenizers
    from tokenizers import decoders, models

    names = [*words, *(f"<0x{b:02X}>" for b in range(256))]
    backend = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>"])
    return FastTokenizer(backend)


def test_the_bytes_of_tokens():
    tokenizer = byte_level("Ġhe", "llo", "ä½")
    spelled = token_bytes(tokenizer, 300)
    ids = {name: tokenizer.backend.token_to_id(name) for name in ("Ġhe", "llo", "ä½", "<|end of text|>")}
    assert [spelled[i] for i in ids.values()] == [b" he", b"llo", b"\xe4\xbd", b"<|end of text|>"]
    assert sorted(spelled[:256]) == [bytes([b]) for b in range(256)] and spelled[299] == b""
    assert token_bytes(sentencepiece(), 9) == [b" a", b"b", b" ba", b"c ", b"<s>", b"\0", b"\1", b"\2", b"\3"]
    words = WordTokenizer.from_texts(["go left"])
    assert token_bytes(words, 5) == [b" <pad>", b" <eos>", b" go", b" left", b""]


@pytest.mark.parametrize("make", [lambda: byte_level("Ġab", "ba", "ab", "aab"), sentencepiece], ids=["bytes", "pieces"])
def test_the_automaton_finds_what_a_search_finds(make):
    """Random tokens, one at a time, against `in` on the text so far, for strings with themselves as borders."""
    tokenizer = make()
    spelled = token_bytes(tokenizer, 270)
    strings = ["aba ", "abab", " b", "é", "aab", "ba\n"]
    stops = StopStrings.build(tokenizer, strings, 270)
    table = np.asarray(stops.table)
    rng = np.random.default_rng(0)
    plain = [i for i, s in enumerate(spelled) if s and set(s) <= set("ab é\n".encode())]
    found = 0
    for _ in range(300):
        state, text = 0, b""
        for token in rng.choice(plain, 12):
            state, text = table[state, token], text + spelled[token]
            assert (state == stops.matched) == any(s.encode() in text for s in strings), text
        found += state == stops.matched
    assert 50 < found < 300
    assert (table[:, 269] == np.arange(len(table))).all(), "a token that is not there changes nothing"


@pytest.mark.parametrize(
    ("make", "drops"),
    [
        (lambda: byte_level("Ġab", "ba", "ab"), False),
        (sentencepiece, True),
        (lambda: WordTokenizer.from_texts(["a b ab", "ba c"]), True),
    ],
    ids=["bytes", "pieces", "words"],
)
def test_what_is_matched_is_cut(make, drops):
    """Random continuations, also where one begins with the space that decoders drop: against the tokens' own bytes."""
    tokenizer = make()
    spelled = token_bytes(tokenizer, 270)
    plain = [i for i, s in enumerate(spelled) if s and set(s) <= set(b"ab ")]
    stops = StopStrings.build(tokenizer, [" a", "b b"], 270)
    rng, began = np.random.default_rng(0), 0
    for _ in range(200):
        tokens = rng.choice(plain, rng.integers(0, 5))
        whole = b"".join(spelled[t] for t in tokens).decode()
        at = min((i for s in stops.strings if (i := whole.find(s)) >= 0), default=len(whole))
        dropped = len(whole) - len(tokenizer.decode(tokens))
        assert stops.text(tokenizer, tokens) == whole[:at]
        assert stops.text(tokenizer, tokens, start=True) == whole[dropped : max(at, dropped)]
        began += at == 0 and dropped > 0 and len(tokens) > 0
    assert (began > 5) == drops, "the case that a search in the decoded text misses"


def test_a_character_in_parts_matches_when_it_is_whole():
    tokenizer = byte_level()
    stops = StopStrings.build(tokenizer, ["é!"], 257)
    state = 0
    for byte in "é!".encode():
        assert state != stops.matched
        state = stops.table[state, token_bytes(tokenizer, 257).index(bytes([byte]))]
    assert state == stops.matched


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (["stop"], "'stop'.*4"),
        (["go", "goleft"], "'goleft'"),
        (["left\n"], r"'left\\n'"),
        (["go", ""], "string.*empty"),
        ([], "1 string"),
        ("go", "stop strings.*'go'"),
    ],
    ids=str,
)
def test_stop_strings_that_cannot_occur_are_refused(strings, message):
    with pytest.raises(ValueError, match=message):
        StopStrings.build(WordTokenizer.from_texts(["go left"]), strings, 4)


def test_stop_strings_may_lie_anywhere_in_the_text():
    tokenizer = WordTokenizer.from_texts(["go left"])
    stops = StopStrings.build(tokenizer, ["t g", "eft left", "eos> go"], 4)

    def found(*ids):
        state = 0
        for i in ids:
            state = int(stops.table[state, i])
        return state == stops.matched

    assert found(3, 2) and found(2, 3, 3) and found(1, 2) and not found(3, 1, 3) and not found(2, 2, 3)
    assert stops.cut("go left go") == "go lef" and stops.cut("go go") == "go go"


def test_tokenizers_without_texts_of_tokens_are_refused():
    from tokenizers import decoders

    tokenizer = byte_level()
    tokenizer.backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece.*stop_tokens"):
        StopStrings.build(tokenizer, ["a"], 257)
    tokenizer.backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "x")])
    with pytest.raises(ValueError, match="Fuse.*Replace"):
        StopStrings.build(tokenizer, ["a"], 257)
    tokenizer.backend.decoder = decoders.Sequence([decoders.Strip("a", 1, 0), decoders.Fuse()])
    with pytest.raises(ValueError, match="token 64.*'a'"):
        StopStrings.build(tokenizer, ["a"], 257)
