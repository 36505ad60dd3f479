"""The shapes of compiled programs: a short ladder of batch sizes and lengths, so that requests meet few programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


NARROWEST = 64
"""Smallest padded length of prompts and answers, in tokens."""
SHORTEST = 8
"""Smallest padded length of candidates to score, in tokens."""
PIECE = 1024
"""Tokens of prompts, and of candidates, in one piece of scoring: other requests run between two pieces."""
LONGEST_WARM = 64
"""Candidates up to this length, in tokens, are compiled by `Ladder.scores`."""


def power(number: int, base: int) -> int:
    """The least power of a base that is at least a number."""
    result = 1
    while result < number:
        result *= base
    return result


def width(tokens: int, limit: int) -> int:
    """The padded length for a number of tokens: a power of two of at least `NARROWEST`, or the limit."""
    return min(max(power(tokens, 2), NARROWEST), limit)


@dataclass(frozen=True)
class Ladder:
    """Batch sizes are powers of 4 up to the largest; lengths are powers of 2 from 64 up to the context.

    A prompt is padded to a length of its own, and computed in a program of that length. Its keys and values are then
    padded to the length of the answer, or the answer to that of the prompt, whichever is longer: so the program that
    writes the answer has one length, `cache`, and not two. Only several answers to a prompt have a length of their own,
    of powers of 4, because their keys and values need memory once per answer.
    """

    context: int
    """Maximum tokens of prompt and answer together."""
    max_batch: int
    """Maximum number of continuations, or of candidates, in a batch."""

    def length(self, tokens: int) -> int:
        """The padded length of a prompt or an answer."""
        return width(tokens, self.context)

    def samples(self, n: int) -> int:
        """The padded number of continuations per prompt."""
        return min(power(n, 4), self.max_batch)

    def rows(self, count: int, samples: int = 1) -> int:
        """The padded number of prompts that have so many continuations each."""
        return min(power(count, 4), max(1, self.max_batch // samples))

    def fewer(self, rows: int, samples: int = 1) -> list[int]:
        """The padded numbers of prompts below a padded number."""
        return [n for n in _distinct(lambda k: self.rows(k, samples), rows) if n < rows]

    def room(self, tokens: int, samples: int, cache: int) -> int:
        """The padded length of an answer of a number of tokens, one of `samples` to a prompt of the length `cache`."""
        return cache if samples == 1 else min(NARROWEST * power(-(-tokens // NARROWEST), 4), cache)

    def columns(self, tokens: int) -> int:
        """The padded length of candidates."""
        return min(max(power(tokens, 8), SHORTEST), max(self.context, SHORTEST))

    def fit(self, width: int) -> int:
        """How many rows of a padded length a piece of scoring has at most."""
        return max(1, min(self.max_batch, PIECE // width))

    def piece(self, count: int, width: int) -> int:
        """The padded number of rows of a piece of scoring."""
        return min(power(count, 4), self.fit(width))

    @property
    def lengths(self) -> list[int]:
        """All padded lengths of prompts and answers."""
        return _distinct(self.length, self.context)

    def reads(self) -> list[tuple[int, int]]:
        """`(rows, prompt)`: the shapes of prompts."""
        shapes = {(rows, length) for rows, _ in self._batches() for length in self.lengths}
        shapes |= {(rows, prompt) for rows, prompt, _, _ in self.scores()}
        return sorted(shapes, key=lambda shape: (shape[1], shape[0]))

    def answers(self) -> list[tuple[int, int, int, int]]:
        """`(rows, samples, cache, room)`: the shapes of answers."""
        return [
            (rows, samples, cache, room)
            for cache in self.lengths
            for rows, samples in self._batches()
            for room in _distinct(lambda k, n=samples, c=cache: self.room(k, n, c), cache)
        ]

    def scores(self) -> list[tuple[int, int, int, int]]:
        """`(rows, prompt, candidates, columns)`: the shapes of scoring, for candidates up to `LONGEST_WARM` tokens."""
        shapes = []
        for prompt in self.lengths:
            for columns in _distinct(self.columns, min(LONGEST_WARM, self.context)):
                for count in _distinct(lambda k, columns=columns: self.piece(k, columns), self.fit(columns)):
                    each = _distinct(lambda k, prompt=prompt: self.piece(k, prompt), min(count, self.fit(prompt)))
                    shapes += [(rows, prompt, count, columns) for rows in each]
        return shapes

    def _batches(self) -> Iterator[tuple[int, int]]:
        for samples in _distinct(self.samples, self.max_batch):
            for rows in _distinct(lambda k, n=samples: self.rows(k, n), max(1, self.max_batch // samples)):
                yield rows, samples


def _distinct(rung, highest: int) -> list[int]:
    """The values of a rung for 1, 2, ... up to the highest, each once."""
    found, number = [], 1
    while number <= highest:
        found.append(rung(number))
        number = found[-1] + 1
    return found
