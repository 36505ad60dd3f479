"""A continuation that grows, as text: whole characters, stop strings, the texts of tokens."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.serve import Ask, Sampling
from llmrl_jax.serve.answers import Answer
from llmrl_jax.serve.sampler import Reader, StopPrefix


pytest_plugins = ("tests.serving",)


PIECES = {
    1: b"ab",
    2: "é".encode()[:1],
    3: "é".encode()[1:],
    4: b"cd",
    5: b"STO",
    6: b"Px",
    7: b" S",
    8: "🙂".encode()[:2],
}


def decode(ids):
    return b"".join(PIECES[int(i)] for i in ids).decode("utf-8", "replace")


@pytest.mark.parametrize("cuts", [[9], [1, 2, 3, 4, 5, 6, 9], [2, 5, 9], [3, 9]])
def test_a_text_grows_and_is_never_taken_back(cuts):
    tokens = np.array([1, 2, 3, 7, 4, 5, 6, 1, 1])
    log_probs = -np.arange(9, dtype=np.float32)
    reader = Reader(decode, Sampling(20, stop=("STOP", "zz"), pieces=True))
    seen = []
    for cut in cuts:
        reader.read(tokens, cut, log_probs, 0)
        seen.append(reader.sample())
    assert all(b.text.startswith(a.text) for a, b in itertools.pairwise(seen))
    assert all("".join(s.pieces) == s.text[: len("".join(s.pieces))] for s in seen)
    assert not any("\ufffd" in s.text or "ST" in s.text for s in seen)
    last = seen[-1]
    assert (last.text, last.finish, last.count) == ("abé Scd", "stop", 7)
    assert last.pieces == ("ab", "", "é", " S", "cd") and last.log_probs == (-0.0, -1.0, -2.0, -3.0, -4.0)
    reader.read(tokens, 9, log_probs, 1)  # it has ended, whatever comes
    assert reader.sample() == last


@pytest.mark.parametrize("every", [1, 2, 3, 8])
@pytest.mark.parametrize("stop", [(), ("€a",)])
def test_bytes_of_a_character_do_not_repeat_what_was_sent(served, sentencepiece, every, stop):
    """Llama 2's decoder makes a run of bytes that is no UTF-8 yet to replacement characters, all of it."""
    served = dataclasses.replace(served, tokenizer=sentencepiece)
    assert served.byte_tokens == set(range(3, 259))
    for text, ending in (("go 😀😀€€€€ab\n😀 red", ""), ("go 😀😀€€€€", "\ufffd")):
        tokens = np.array(sentencepiece.encode(text))
        tokens = tokens[: len(tokens) - len(ending)]  # half a character at the end
        whole = sentencepiece.decode(tokens)
        assert whole == text if not ending else whole.endswith("\ufffd" * 19)
        how = Sampling(len(tokens), stop=stop, pieces=True)
        reader = Reader(sentencepiece.decode, how, byte_tokens=served.byte_tokens)
        answer = Answer(served, [Ask((1,), how)], False, "x")
        sent, shown = "", []
        for end in [*range(every, len(tokens), every), len(tokens)]:
            reader.read(tokens, end, np.zeros(len(tokens), np.float32), 0)
            chunks = answer.chunks(0, [reader.sample()])
            sent += "".join(chunk["choices"][0]["text"] for chunk in chunks)
            shown.append(reader.sample())
        assert sent == shown[-1].text == "".join(shown[-1].pieces)
        assert sent == (whole[: whole.index("€a")] if stop and not ending else whole)
        assert all(b.text.startswith(a.text) for a, b in itertools.pairwise(shown))


def test_a_decoder_that_changes_its_text_repeats_nothing(served):
    """As one that cleans up spaces: "is n" and then "isn't"."""
    texts = ["is n", "isn't", "isn't it"]
    how = Sampling(3)
    reader, answer = Reader(lambda ids: texts[len(ids) - 1], how), Answer(served, [Ask((1,), how)], False, "x")
    sent = ""
    for end in (1, 2, 3):
        reader.read(np.array([1, 2, 3]), end, np.zeros(3, np.float32), 0)
        sent += "".join(c["choices"][0]["text"] for c in answer.chunks(0, [reader.sample()]))
    assert sent == reader.sample().text == "is nt it"
    shorter = dataclasses.replace(reader.sample(), text="is")
    assert not answer.chunks(0, [shorter]) and not answer.chunks(0, [reader.sample()])


def test_a_stop_string_may_begin_with_the_space_that_decoding_drops():
    words = {1: "red", 2: "green"}
    spelled = lambda ids: "".join(f" {words[int(i)]}" for i in ids)  # noqa: E731
    reader = Reader(lambda ids: spelled(ids)[1:], Sampling(9, stop=(" green red", " blue")), spelled)
    reader.read(np.array([2, 0, 0]), 1, np.zeros(3, np.float32), 0)
    assert reader.sample().text == ""  # it may become the stop string
    reader.read(np.array([2, 1, 2]), 3, np.zeros(3, np.float32), 0)
    assert (reader.sample().text, reader.sample().count, reader.sample().finish) == ("", 2, "stop")


def test_the_prefix_of_a_stop_string_that_a_text_ends_with():
    draw = random.Random(0)
    for _ in range(300):
        stop = "".join(draw.choices("ab", k=draw.randint(1, 12)))
        prefix, text = StopPrefix(stop), ""
        for _ in range(draw.randint(1, 6)):
            text = text[: len(text) - draw.randint(0, 1)] + "".join(draw.choices("ab", k=draw.randint(0, 9)))
            want = max((k for k in range(len(stop)) if text.endswith(stop[:k])), default=0)
            assert prefix.length(text) == want, (stop, text)
    long = StopPrefix("ab" * 450_000)  # it costs what the text costs
    assert long.length("xabab" * 10) == 4 and len(long._borders) < 10


def test_texts_that_end_in_half_a_character_or_a_token():
    log_probs = np.zeros(4, np.float32)
    reader = Reader(decode, Sampling(2, pieces=True))
    reader.read(np.array([1, 8, 0, 0]), 1, log_probs, 0)
    assert reader.sample().text == "ab" and not reader.finish
    reader.read(np.array([1, 8, 4, 4]), 4, log_probs, 0)  # others of the batch go on
    assert reader.sample().text == "ab\ufffd" and reader.sample().finish == "length"
    assert reader.sample().pieces == ("ab", "\ufffd") and reader.sample().count == 2
    reader = Reader(decode, Sampling(4))
    reader.read(np.array([1, 4, 6, 0]), 3, log_probs, int(lm.Finish.STOP_TOKEN))
    assert reader.sample() == dataclasses.replace(reader.sample(), text="abcd", count=3, finish="stop")
    reader = Reader(decode, Sampling(2))
    reader.read(np.array([1, 4, 6, 0]), 3, log_probs, int(lm.Finish.STOP_TOKEN))  # it came too late
    assert (reader.sample().text, reader.sample().count, reader.sample().finish) == ("abcd", 2, "length")
    held = Reader(decode, Sampling(9, stop=("dST",)))
    held.read(np.array([1, 4, 0, 0]), 2, log_probs, 0)
    assert held.sample().text == "abc"
