"""Scoring candidates that come with the request.

`lm.score` compiles a program for a set of candidates, which suits actions that are scored a million times. Here the
candidates are data, so a request needs no compilation and clients cannot fill the memory with programs. The numbers are
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from llmrl_jax.serve.programs import Programs
from llmrl_jax.serve.served import ContextOverflow, Served


@dataclass(frozen=True)
class Pair:
    """A prompt and a candidate."""

    prompt: tuple[int, ...]
    candidate: tuple[int, ...]


class Scorer:
    """Log-probabilities of candidates, in pieces of bounded size, so that other requests can run between them.

    **Arguments:** `served`; `max_batch`, candidates per piece; `programs`, see `Sampler`.
    """

    def __init__(self, served: Served, max_batch: int = 16, programs: Programs | None = None):
        self.programs = programs or Programs(served, max_batch)
        self.served, self.max_batch = served, max_batch

    def pair(self, prompt: Sequence[int], candidate: Sequence[int]) -> Pair:
        """**Raises:** `ContextOverflow` if they do not fit, `ValueError` if the candidate has no token or one outside
        the vocabulary."""
        limit, vocab = self.served.context, self.served.model.config.vocab_size
        if not candidate:
            raise ValueError("a candidate is empty; each needs at least 1 token to have a probability")
        if min(candidate) < 0 or max(candidate) >= vocab:
            raise ValueError(f"a candidate holds a token outside of the model's vocabulary of 0 to {vocab - 1}")
        if len(prompt) + len(candidate) > limit:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens and a candidate {len(candidate)}: together "
                f"{len(prompt) + len(candidate)}, and the context is {limit}; shorten one of them"
            )
        return Pair(tuple(prompt), tuple(candidate))

    def encode(
        self, prompt: str | Sequence[int], candidate: str | Sequence[int], tokens: list[int] | None = None
    ) -> Pair:
        """Pair from texts or tokens.

        A candidate's tokens are those of a part after the prompt (`FastTokenizer.encode_parts`); after tokens, those of
        the candidate alone.

        **Arguments:** `prompt`; `candidate`; `tokens`, the prompt's, if they are known already.
        **Raises:** what `pair` raises, and `ValueError` for a prompt without a token.
        """
        if tokens is None:
            tokens = self.served.encode(prompt) if isinstance(prompt, str) else self.served.check(prompt)
        if not isinstance(candidate, str):
            return self.pair(tokens, candidate)
        if not isinstance(prompt, str):
            return self.pair(tokens, self.served.tokenizer.encode(candidate))
        tokenizer = self.served.tokenizer
        joined = self.served.encode(prompt + candidate) if tokenizer.merges else []
        if joined[: len(tokens)] == tokens:
            return self.pair(tokens, joined[len(tokens) :])
        return self.pair(tokens, tokenizer.encode_after(prompt, candidate)[0])

    def run(self, pairs: Sequence[Pair]) -> Iterator[list[list[float]]]:
        """Log-probability of each token of each candidate, a piece at a time, in order.

        Prompts are computed once for all pieces that follow with the same ones."""
        start, read = 0, None
        while start < len(pairs):
            piece = pairs[start : start + self._size(pairs, start)]
            prompts = list(dict.fromkeys(pair.prompt for pair in piece))
            if read is None or read[0] != prompts:
                read = prompts, *self._read(prompts)
            yield self._score(piece, *read)
            start += len(piece)

    def _size(self, pairs: Sequence[Pair], start: int) -> int:
        """The number of pairs in the next piece."""
        ladder, prompts, longest, widest = self.programs.ladder, set(), 0, 0
        for size, pair in enumerate(pairs[start : start + self.max_batch]):
            prompts.add(pair.prompt)
            longest = max(longest, ladder.length(len(pair.prompt)))
            widest = max(widest, ladder.columns(len(pair.candidate)))
            if size and (size >= ladder.fit(widest) or len(prompts) > ladder.fit(longest)):
                return size
        return min(self.max_batch, len(pairs) - start)

    def _read(self, prompts: Sequence[tuple[int, ...]]) -> tuple[jax.Array, Any]:
        ladder = self.programs.ladder
        length = ladder.length(max(map(len, prompts)))
        tokens = np.zeros((ladder.piece(len(prompts), length), length), np.int32)
        lengths = np.ones(len(tokens), np.int32)
        for i, prompt in enumerate(prompts):
            tokens[i, : len(prompt)], lengths[i] = prompt, len(prompt)
        return self.programs.read(tokens, lengths)

    def _score(self, pairs: Sequence[Pair], prompts: list, logits: jax.Array, cache: Any) -> list[list[float]]:
        ladder = self.programs.ladder
        columns = ladder.columns(max(len(pair.candidate) for pair in pairs))
        candidates = np.zeros((ladder.piece(len(pairs), columns), columns), np.int32)
        counts, owners = np.ones(len(candidates), np.int32), np.zeros(len(candidates), np.int32)
        for i, pair in enumerate(pairs):
            candidates[i, : len(pair.candidate)], counts[i] = pair.candidate, len(pair.candidate)
            owners[i] = prompts.index(pair.prompt)
        values = np.asarray(self.programs.score(logits, cache, owners, candidates, counts))
        return [[float(x) for x in row[: len(pair.candidate)]] for row, pair in zip(values, pairs)]
