from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.text.english import MISSIONS
from envs_jax.text import Counted, Literal, Phrasebook, Prompt, Slot, Tokenizer, compact
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


@pytest.mark.parametrize("id", ["BabyAI-Text/GoToLocal-v0", "Crafter-Text-CollectDrink"])
def test_a_rendered_caption_is_parsed(id):
    book = envs_jax.make(id)[0].captions["text"]
    for i in range(0, len(book), 7):
        assert book.parse(book.render([i, 0])) == [book.phrases[i], book.phrases[0]]
    assert book.parse("") == []


def test_phrases_with_the_same_beginning_are_parsed():
    text = "put a box on your left next to the red ball, then go to the grey door"
    words = ["put", "a box on your left", "next to", "the red ball,", "then", "go to", "the grey door"]
    assert MISSIONS.parse(text) == words
    with pytest.raises(ValueError, match="babyai.MISSIONS.*'jump to the grey door'"):
        MISSIONS.parse("go to a key and jump to the grey door")


def test_tokens_of_a_book():
    tokenizer = WordTokenizer.from_texts(BOOK.phrases)
    assert isinstance(tokenizer, Tokenizer)
    table = BOOK.tokenize(tokenizer)
    assert table.lengths.tolist() == [2, 3, 3] and table.tokens.shape == (3, 3)
    assert tokenizer.decode(table.tokens[2]) == "the blue key"
    assert table.tokens[0, 2] == tokenizer.pad_id
    with pytest.raises(ValueError, match="word 'to,'"):
        BOOK.tokenize(tokenizer, suffix=",")


@pytest.mark.parametrize(
    ("phrases", "message"),
    [([], "one phrase"), (["a", "a"], "'a'.*twice"), (["a "], "'a '.*white space"), ([""], "''.*empty")],
)
def test_bad_books_are_refused(phrases, message):
    with pytest.raises(ValueError, match=message):
        Phrasebook(phrases)


def test_a_translation_may_say_two_things_alike():
    assert len(Phrasebook(["la balle", "la balle"], distinct=False)) == 2


def test_bad_captions_are_named():
    with pytest.raises(KeyError, match="'the red ball'"):
        BOOK.index("the red bal")
    with pytest.raises(ValueError, match="book.*3.*0.*2"):
        BOOK.render(np.array([0, 3]))
    with pytest.raises(ValueError, match="book.*2 phrases.*1"):
        BOOK.caption(["go to", "go to"], 1)


def test_compact_keeps_order_and_drops_what_does_not_fit():
    rng = np.random.default_rng(0)
    for n, length in ((5, 7), (32, 12), (33, 12), (64, 12), (65, 20), (96, 96), (200, 30)):
        ids = np.where(rng.random((40, n)) < 0.4, rng.integers(0, 900, (40, n)), -1).astype(np.int16)
        ids[0], ids[1], ids[2] = -1, 7, np.where(np.arange(n) == n - 1, 5, -1)
        shorter = np.asarray(jax.jit(jax.vmap(partial(compact, length=length)))(ids))
        assert shorter.dtype == np.int16
        for row, out in zip(ids, shorter):
            kept = row[row >= 0][:length]
            assert out.tolist() == [*kept, *[-1] * (length - len(kept))]


def test_compact_takes_scalars_before_the_rest():
    rng = np.random.default_rng(1)
    heads = np.where(rng.random((40, 35)) < 0.5, rng.integers(0, 900, (40, 35)), -1).astype(np.int16)
    ids = np.where(rng.random((40, 70)) < 0.2, rng.integers(0, 900, (40, 70)), -1).astype(np.int16)
    for h in (1, 31, 32, 35):  # the entries of `ids` begin within a word, or at the start of one
        out = jax.jit(jax.vmap(lambda head, row: compact(row, 50, list(head))))(heads[:, :h], ids)
        for head, row, caption in zip(heads, ids, np.asarray(out)):
            every = np.concatenate([head[:h], row])
            kept = every[every >= 0][:50]
            assert caption.tolist() == [*kept, *[-1] * (50 - len(kept))]


def test_a_count_has_a_phrase_for_every_noun():
    bag = Counted(("wood", "iron"), high=3)
    book = Phrasebook(["You sleep", bag, "The end"])
    assert book.phrases == ("You sleep", "1 wood", "2 wood", "3 wood", "1 iron", "2 iron", "3 iron", "The end")
    ids = jax.jit(lambda counts: bag.ids(counts, book.first(bag)))
    assert ids(np.array([0, 2], np.int8)).tolist() == [-1, 5]
    assert ids(np.array([3, 0])).tolist() == [3, -1]
    assert ids(np.array([7, 1])).tolist() == [3, 4]  # beyond the last count: the last phrase
    few = Counted(("egg",), low=0, high=2, say=lambda n, noun: f"{n or 'no'} {noun}{'' if n == 1 else 's'}")
    assert Phrasebook([few]).phrases == ("no eggs", "1 egg", "2 eggs")
    assert few.ids(np.array([0])).tolist() == [0] and few.ids(np.array([2])).dtype == np.int16
    with pytest.raises(KeyError, match="of egg"):
        book.first(few)
    with pytest.raises(ValueError, match=r"counts.*\[3\].*2 nouns"):
        bag.ids(np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="high.*0.*1"):
        Counted(("wood",), high=0)
    with pytest.raises(ValueError, match="'1 wood'"):
        Phrasebook(["1 wood", bag])
    with pytest.raises(ValueError, match="40000.*int16"):
        Phrasebook([Counted(("wood",), high=40000)])


# A view of 9 x 7 cells and an inventory, as in Crafter.

THINGS = "water stone tree coal iron diamond table furnace cow zombie skeleton plant arrow".split()
ITEMS = "health food drink energy sapling wood stone coal iron diamond wood_pickaxe stone_pickaxe iron_pickaxe".split()
ITEMS += "wood_sword stone_sword iron_sword".split()
BAG = Counted(tuple(ITEMS), say=lambda count, item: f"you have {count} {item}")


def place(x: int, y: int) -> str:
    sides = [(abs(x - 4), "west" if x < 4 else "east"), (abs(y - 3), "north" if y < 3 else "south")]
    return " and ".join(f"{n} {side}" for n, side in sides if n) or "here"


CRAFTER = Phrasebook([*(f"{thing} {place(x, y)}" for thing in THINGS for x in range(9) for y in range(7)), BAG])


def crafter_caption(view: jax.Array, inventory: jax.Array) -> jax.Array:
    """`view`, int8 `[9, 7]`, a place in `THINGS` or -1; `inventory`, int8 `[16]`. int16 `[79]`."""
    seen = jnp.where(view < 0, -1, view.astype(jnp.int16) * 63 + np.arange(63, dtype=np.int16).reshape(9, 7))
    return compact(jnp.concatenate([seen.reshape(-1), BAG.ids(inventory, CRAFTER.first(BAG))]), 63 + len(ITEMS))


def test_a_view_and_an_inventory_are_said_as_python_says_them():
    rng = np.random.default_rng(0)
    view = np.where(rng.random((64, 9, 7)) < 0.7, rng.integers(0, len(THINGS), (64, 9, 7)), -1).astype(np.int8)
    view[0] = 3  # every cell
    view[1] = -1
    inventory = np.where(rng.random((64, 16)) < 0.7, rng.integers(0, 10, (64, 16)), 0).astype(np.int8)
    inventory[0], inventory[1] = 9, 0
    captions = np.asarray(jax.jit(jax.vmap(crafter_caption))(view, inventory))
    for caption, cells, counts in zip(captions, view, inventory):
        said = []
        for x in range(9):
            for y in range(7):
                if cells[x, y] >= 0:
                    said.append(f"{THINGS[cells[x, y]]} {place(x, y)}")
        said += [f"you have {n} {item}" for n, item in zip(counts, ITEMS) if n]
        assert CRAFTER.render(caption) == ", ".join(said)
    assert (captions[0] >= 0).all() and (captions[1] < 0).all()

    prompt = Prompt(Literal("You see: "), Slot("text", CRAFTER, 79), Literal("\n Action:"))
    compiled = prompt.compile(WordTokenizer.from_prompt(prompt))
    assert compiled.verify({"text": captions[:8]}) == 8  # inside jit, on the host, and of the whole text
