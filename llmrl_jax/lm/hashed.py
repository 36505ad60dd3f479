"""`HashedEncoder`: text vectors without a sentence encoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np


_WORD = re.compile(r"\w+")


class HashedEncoder:
    """A substitute for a sentence encoder, without semantics.

    A vector holds the signed counts of a text's words and word n-grams, hashed into `dim` entries (Weinberger et al.
    2009) and divided by the L2 norm: texts that share words are similar, synonyms are as far apart as any two words.
    Identical on every machine and in every process. For tests, and to run a system without weights; results with it
    must never be reported as those of a language model.
    """

    def __init__(self, dim: int = 384, ngrams: int = 2):
        """**Arguments:** `dim`, the width, by default MiniLM's; `ngrams`, the longest n-gram of words: 1 ignores word
        order.

        **Raises:** `ValueError` if either is less than 1."""
        if dim < 1 or ngrams < 1:
            raise ValueError(f"dim is {dim} and ngrams {ngrams}; both must be at least 1")
        self.dim, self.ngrams = dim, ngrams
        self.name = f"hashed-{dim}-{ngrams}"

    def __repr__(self) -> str:
        return f"HashedEncoder(dim={self.dim}, ngrams={self.ngrams})"

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """The embeddings float32 `[N, dim]` of `N` texts, of L2 norm 1; zeros for a text without a word.

        Case, punctuation and white space are ignored.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts must be a sequence of strings, not the one string {texts[:40]!r}: put it in a list")
        counts = np.zeros((len(texts), self.dim))
        for row, text in zip(counts, texts):
            words = _WORD.findall(text.casefold())
            for n in range(1, self.ngrams + 1):
                for i in range(len(words) - n + 1):
                    # Words are joined by a space, which no word contains; the highest bit is the sign.
                    digest = blake2b(" ".join(words[i : i + n]).encode(), digest_size=8).digest()
                    number = int.from_bytes(digest, "little")
                    row[(number & (2**63 - 1)) % self.dim] += -1.0 if number >> 63 else 1.0
        norms = np.sqrt(np.square(counts).sum(1, keepdims=True))
        return (counts / np.where(norms > 0, norms, 1.0)).astype(np.float32)
