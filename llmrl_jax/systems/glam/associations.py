"""Associations before reading: rows of random tokens in which names have values, and questions for them.

What a prompt's captions say can be guessed in part without finding it (`llmrl_jax.systems.glam.reading`): after 5,000
updates of 32 texts of the mixed task, a small model named the goal's position with 1.2 to 1.6 nats, hardly better than
a guess among five objects. These rows are the same lesson without words, can be answered by reference only, and are a
third as long. After them, objects whose names stand right before the question are found. The goal's, whose name is only
at the beginning, are found after rows that ask for it alone (in 0.96 of the texts, `docs/systems/glam.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmrl_jax.tuning import Example


if TYPE_CHECKING:
    from llmrl_jax.lm.tokens import WordTokenizer


NAMES, VALUES = 20, 40
"""How many tokens a row of associations draws its names from, and how many its values."""
REPEATED, SHORT, BARE = 0.4, 0.3, 0.5
"""The fraction of rows that only repeat, of the others those whose names are single tokens, and the fraction of
questions that are a name alone. All three are easier, and learned first: of names of two tokens alone, the loss stays
near its start for 800 updates of 64 rows in one trial and for more than 1,600 in another; with easier rows for 300 to
400."""


def association(tokens: Sequence[int], draw: np.random.Generator, alone: bool = False) -> Example:
    """A row in which three to seven names of two tokens have values of one to three, all drawn for it.

    It begins as a prompt does: a goal (`goal` and a name), every name with its value after a comma, `end`, and the
    value of the goal's name. Then every name is asked for, in another order: the name and its value, or `goal`, the
    name, up to three other tokens, `end`, and its value. The values that are said again are trained on. Names share
    tokens ("red ball", "red key"), as those of objects do, so both tokens of a name are needed.

    **Arguments:** `tokens`, at least 60 that rows are made of. Some rows are easier (`REPEATED`, `SHORT`): up to 19
    tokens and, after up to 11 others, the same again, all but the first of which are trained on; or names of one token.
    `alone`: a row of two to five names that ends after the goal's value; values are one token, and all are different.
    """
    ids = [int(i) for i in draw.permutation(tokens)[: NAMES + VALUES]]
    if not alone and draw.random() < REPEATED:
        size, between = int(draw.integers(4, 20)), int(draw.integers(12))
        row = [*ids[:size], *ids[NAMES : NAMES + between], *ids[:size]]
        return Example(row, [i > size + between for i in range(len(row))])
    firsts, seconds = ids[: draw.integers(2, 6)], ids[6 : 6 + draw.integers(2, 4)]
    goal, comma, end, values = ids[9], ids[10], ids[11], ids[NAMES:]
    names = [(first, second) for first in firsts for second in seconds]
    count = draw.integers(2, 6) if alone else draw.integers(3, 8)
    chosen = [names[i] for i in draw.permutation(len(names))[:count]]
    if draw.random() < SHORT:
        chosen = [(token,) for token in ids[12 : 12 + len(chosen)]]
    if alone:
        said = {name: [value] for name, value in zip(chosen, values, strict=False)}
    else:
        said = {name: [int(v) for v in draw.choice(values, draw.integers(1, 4))] for name in chosen}
    first = chosen[draw.integers(len(chosen))]
    parts: list[tuple[Iterable[int], bool]] = [((goal, *first), False)]
    parts += [((comma, *name, *value), False) for name, value in said.items()]
    parts += [((end,), False), (said[first], True)]
    for i in () if alone else draw.permutation(len(chosen)):
        others = [int(v) for v in draw.choice(values, draw.integers(4))]
        bare = draw.random() < BARE
        parts += [(chosen[i] if bare else (goal, *chosen[i], *others, end), False), (said[chosen[i]], True)]
    return Example([t for part, _ in parts for t in part], [taught for part, taught in parts for _ in part])


def association_rows(tokenizer: WordTokenizer, count: int, seed: int, alone: float = 0.0) -> list[Example]:
    """`count` rows of a tokenizer's words and spare tokens; a fraction `alone` of them ask for their goal alone.

    **Raises:** `ValueError` if it has too few.
    """
    special = {tokenizer.backend.token_to_id(name) for name in (tokenizer.PAD, tokenizer.EOS)}
    tokens = [i for i in range(tokenizer.vocab_size) if i not in special]
    if len(tokens) < NAMES + VALUES:
        raise ValueError(
            f"reading.associations and reading.goals need {NAMES + VALUES} tokens and the model has {len(tokens)}: "
            "give it spare words (embedded.spare_words), or leave them 0"
        )
    draw = np.random.default_rng(seed)
    return [association(tokens, draw, bool(draw.random() < alone)) for _ in range(count)]
