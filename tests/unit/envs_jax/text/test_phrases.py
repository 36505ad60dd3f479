from __future__ import annotations

import jax
import numpy as np
import pytest

from envs_jax.text import Phrasebook, Tokenizer, compact
from llmrl_jax.lm.tokens import WordTokenizer


BOOK = Phrasebook(["go to", "the red ball", "the blue key"], separator=" ", name="book")


def test_captions_and_phrases_are_inverse():
    caption = BOOK.caption(["go to", "the blue key"], 4)
    assert caption.dtype == np.int16 and caption.tolist() == [0, 2, -1, -1]
    assert BOOK.phrases_of(caption) == ["go to", "the blue key"]
    assert BOOK.render(caption) == "go to the blue key"
    assert BOOK.render(caption, ", ") == "go to, the blue key"
    assert BOOK.render(np.array([-1, 1, -1])) == "the red ball"
    assert len(BOOK) == 3 and BOOK.index("the red ball") == 1


def test_tokens_of_a_book():
    tokenizer = WordTokenizer.from_texts(BOOK.phrases)
    assert isinstance(tokenizer, Tokenizer)
    table = BOOK.tokenize(tokenizer)
    assert table.lengths.tolist() == [2, 3, 3] and table.tokens.shape == (3, 3)
    assert tokenizer.decode(table.tokens[2]) == "the blue key"
    assert table.tokens[0, 2] == tokenizer.pad_id
    with pytest.raises(ValueError, match="'to,' is not among"):
        BOOK.tokenize(tokenizer, suffix=",")


@pytest.mark.parametrize(
    ("phrases", "message"), [([], "at least one"), (["a", "a"], "twice"), (["a "], "white space"), ([""], "empty")]
)
def test_bad_books_are_refused(phrases, message):
    with pytest.raises(ValueError, match=message):
        Phrasebook(phrases)


def test_a_translation_may_say_two_things_alike():
    assert len(Phrasebook(["la balle", "la balle"], distinct=False)) == 2


def test_bad_captions_are_named():
    with pytest.raises(KeyError, match="did you mean 'the red ball'"):
        BOOK.index("the red bal")
    with pytest.raises(ValueError, match="id 3; ids run from 0 to 2"):
        BOOK.render(np.array([0, 3]))
    with pytest.raises(ValueError, match="do not fit"):
        BOOK.caption(["go to", "go to"], 1)


def test_compact_keeps_order_and_drops_what_does_not_fit():
    rng = np.random.default_rng(0)
    for n in (5, 32, 33, 64):
        ids = np.where(rng.random((40, n)) < 0.4, rng.integers(0, 900, (40, n)), -1).astype(np.int16)
        ids[0], ids[1] = -1, 7
        found = np.asarray(jax.jit(jax.vmap(lambda row: compact(row, 12)))(ids))
        assert found.dtype == np.int16
        for row, out in zip(ids, found):
            kept = row[row >= 0][:12]
            assert out.tolist() == [*kept, *[-1] * (12 - len(kept))]
    with pytest.raises(ValueError, match="at most 64"):
        compact(np.zeros(65, np.int16), 3)
