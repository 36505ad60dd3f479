"""A growing continuation as text: stop strings, and the part that later tokens cannot change."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np

from llmrl_jax import lm
from llmrl_jax.serve.request import Sample, Sampling


class Prefix:
    """The longest proper prefix of a stop string that a growing text ends with (Knuth, Morris and Pratt 1977).

    The table of the string's borders is computed as far as the text has matched it. The cost is therefore linear in the
    text, whatever the length of the string.
    """

    def __init__(self, string: str):
        self._string = string
        self._borders = [0, 0]
        """`_borders[k]`: length of the longest proper border of the first `k` characters."""
        self._text, self._matched = "", 0

    def length(self, text: str) -> int:
        """For a text that starts with the previous one; any other is read from its start."""
        if not text.startswith(self._text):
            self._text, self._matched = "", 0
        for character in text[len(self._text) :]:
            self._step(character)
        self._text = text
        return self._matched

    def _step(self, character: str) -> None:
        string, k = self._string, self._matched
        while k and string[k] != character:
            k = self._border(k)
        k += string[k] == character
        self._matched = k if k < len(string) else self._border(k)

    def _border(self, k: int) -> int:
        borders, string = self._borders, self._string
        while len(borders) <= k:
            n, b = len(borders), borders[-1]
            while b and string[b] != string[n - 1]:
                b = borders[b]
            borders.append(b + (string[b] == string[n - 1]))
        return borders[k]


class Reader:
    """One continuation, as text.

    **Arguments:** `decode`, the tokenizer's; `how`; `before`, a token behind which a continuation is decoded whole
    (`Served.plain_token`), for stop strings that begin with the space that `decode` drops at a text's beginning;
    `byte_tokens`, those that are one byte each (`Served.byte_tokens`): `decode` writes a run of them as characters if
    all of it is UTF-8, else none of it, so the text of a run is certain after its end only.
    """

    def __init__(
        self,
        decode: Callable[[Any], str],
        how: Sampling,
        before: int | None = None,
        byte_tokens: Container[int] = frozenset(),
    ):
        self._decode, self._how, self._before, self._byte_tokens = decode, how, before, byte_tokens
        self.finish = ""
        self._text, self._count = "", 0
        self._before_bytes = 0
        """Tokens before the run of bytes at the text's end."""
        self._prefixes = [Prefix(stop) for stop in how.stop]
        self._ends: list[int] = []
        self._log_probs: list[float] = []

    def read(self, tokens: np.ndarray, length: int, log_probs: np.ndarray, finish: int) -> None:
        """Take the tokens that the device has written so far."""
        how = self._how
        if self.finish:
            return
        before, self._count = min(self._count, self._before_bytes), min(length, how.max_tokens)
        by_token = finish == lm.Finish.STOP_TOKEN and length <= how.max_tokens
        content = tokens[: self._count - by_token]
        dropped, text = self._divided(content)
        self.finish = "stop" if by_token else "length" if self._count == how.max_tokens else ""
        by_string = self._cut(dropped, text) is not None
        if by_string:  # the same token for any number of new tokens since the last check
            shorter = (content[:k] for k in range(before, len(content)))
            content = next((c for c in shorter if self._cut(*self._divided(c)) is not None), content)
            dropped, text = self._divided(content)
            text = text[: self._cut(dropped, text)]
            self.finish, self._count = "stop", len(content)
        self._before_bytes = self._run_starts(content)
        certain = text if self.finish else text[: self._certain(dropped, text, content)]
        if not certain.startswith(self._text):  # a decoder that changes what it wrote: what was sent stays
            certain = self._text + certain[len(self._text) :]
        self._text = certain
        if how.pieces:
            self._divide(content, certain if self.finish else text, by_string)
            self._log_probs = [float(x) for x in log_probs[: len(self._ends)]]

    def sample(self) -> Sample:
        """The samples so far."""
        shown = [end for end in self._ends if end <= len(self._text)]
        pieces = tuple(self._text[a:b] for a, b in zip([0, *shown], shown))
        return Sample(self._text, self._count, self.finish, pieces, tuple(self._log_probs[: len(pieces)]))

    def _divided(self, content: np.ndarray) -> tuple[str, str]:
        """What the tokenizer drops at the beginning, and the text after it."""
        text = self._decode(content)
        if self._before is None or not self._how.stop:
            return "", text
        whole = self._decode([self._before, *content])[len(self._decode([self._before])) :]
        return (whole[: len(whole) - len(text)] if whole.endswith(text) else ""), text

    def _cut(self, dropped: str, text: str) -> int | None:
        """The length of the text before the first stop string; None if there is none."""
        whole = dropped + text
        at = min((at for stop in self._how.stop if (at := whole.find(stop)) >= 0), default=None)
        return None if at is None else max(0, at - len(dropped))

    def _run_starts(self, content: np.ndarray) -> int:
        """How many tokens come before the run of bytes at the end."""
        start = len(content)
        while start and int(content[start - 1]) in self._byte_tokens:
            start -= 1
        return start

    def _certain(self, dropped: str, text: str, content: np.ndarray) -> int:
        """Length of the part of an unfinished text that stays: without half a character, a run of bytes at its end, or
        a possible stop string."""
        end = len(text.rstrip("\ufffd"))
        if self._before_bytes < len(content):
            end = min(end, len(self._decode(content[: self._before_bytes])))
        held = (prefix.length(dropped + text[:end]) for prefix in self._prefixes)
        return max(0, end - max(held, default=0))

    def _divide(self, content: np.ndarray, text: str, by_string: bool) -> None:
        """Where each token's text ends. A character of several tokens belongs to the one that completes it."""
        for k in range(len(self._ends) + 1, len(content) + 1):
            end = len(self._decode(content[:k]).rstrip("\ufffd"))
            self._ends.append(max(end, *self._ends[-1:], 0))
        if by_string:  # tokens with no text left
            ends = zip([0, *self._ends], self._ends)
            self._ends = [min(end, len(text)) for start, end in ends if start < len(text)]
        if self.finish and self._ends:
            self._ends[-1] = len(text)
