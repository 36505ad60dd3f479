"""Sampling for several clients in one batch: few programs, and each client gets the text that it would get alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from llmrl_jax import lm
from llmrl_jax.lm.cache import Prefix
from llmrl_jax.lm.sampling import NEUTRAL
from llmrl_jax.serve.programs import CHECK_INTERVAL, Programs, make_keys, per_row
from llmrl_jax.serve.request import Ask, Sample, Sampling
from llmrl_jax.serve.served import ContextOverflow, Served


SHARED = 64
"""Tokens that all prompts must begin with to be computed once."""


class Sampler:
    """Continues batches of prompts.

    Batch sizes and lengths come from the ladder of `Programs`, and all options of sampling are inputs, so the number of
    programs does not grow with the requests. Stop strings are matched in the text on the host.

    **Arguments:** `served`; `max_batch`, concurrent continuations; `programs`, those of another sampler or scorer
    of the model.
    """

    def __init__(self, served: Served, max_batch: int = 16, programs: Programs | None = None):
        self.programs = programs or Programs(served, max_batch)
        self.served, self.max_batch = served, max_batch
        self._prefix: Prefix | None = None
        self._shared: tuple[int, ...] = ()

    def check(self, ask: Ask) -> Ask:
        """Checked request. **Raises:** `ContextOverflow`, or `ValueError` if `n` is more than a batch holds."""
        prompt, limit = len(ask.tokens), self.served.context
        if prompt + ask.sampling.max_tokens > limit:
            left = limit - prompt
            remedy = f"ask for at most {left} tokens, or shorten the prompt" if left > 0 else "shorten the prompt"
            raise ContextOverflow(
                f"the prompt has {prompt} tokens and max_tokens is {ask.sampling.max_tokens}: together "
                f"{prompt + ask.sampling.max_tokens}, and the context is {limit}; {remedy}"
            )
        if ask.sampling.n > self.max_batch:
            raise ValueError(
                f"n is {ask.sampling.n}; at most {self.max_batch} continuations are written at a time (max_batch): ask "
                "again with another seed for more"
            )
        return ask

    def group(self, ask: Ask) -> Hashable:
        """Part of the shape that all requests of a batch must share."""
        ladder = self.programs.ladder
        return ladder.samples(ask.sampling.n), ladder.length(len(ask.tokens))

    def capacity(self, ask: Ask) -> int:
        """Number of requests like this one that fit into a batch."""
        return max(1, self.max_batch // self.programs.ladder.samples(ask.sampling.n))

    def batches(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Indices of requests per batch, in the order of each batch's first request."""
        groups: dict[Hashable, list[int]] = {}
        for i, ask in enumerate(asks):
            groups.setdefault(self.group(ask), []).append(i)
        sizes = {name: self.capacity(asks[members[0]]) for name, members in groups.items()}
        return [g[i : i + sizes[name]] for name, g in groups.items() for i in range(0, len(g), sizes[name])]

    def prefix(self, asks: Sequence[Ask]) -> Prefix | None:
        """Common prefix of all prompts, computed; None if that is not worth a program: less than `SHARED` tokens.

        The last prefix is kept and returned again while all prompts begin with it, so that requests that differ at
        their ends only, asked at different times, share one."""
        prompts = [ask.tokens for ask in asks]
        low, high = min(prompts), max(prompts)  # what these two share, all that are between them in the order have too
        common = next((i for i, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
        common = min(common, min(map(len, prompts)) - 1)  # a token of each is left, after which the first is sampled
        if (old := self._prefix) is not None and common >= old.size and prompts[0][: old.size] == self._shared:
            if len(asks) == 1 or old.size >= 0.75 * common:
                return old
        if len(asks) == 1 or common < SHARED:
            return None
        self._shared = prompts[0][:common]
        self._prefix = self.programs.prefix(np.array(self._shared, np.int32))
        return self._prefix

    def run(self, asks: Sequence[Ask], prefix: Prefix | None = None) -> Iterator[list[list[Sample]]]:
        """Continue the prompts of one batch. Those that have ended leave it when a smaller batch holds the others.

        **Arguments:** `asks`, checked, of one group and at most `capacity` of them; `prefix`, of `prefix`: what their
        prompts follow.
        **Returns:** an iterator over the samples so far, `n` for every request, until all have finished. Dropping it
        stops the device.
        """
        programs, ladder = self.programs, self.programs.ladder
        samples = ladder.samples(asks[0].sampling.n)
        batch = ladder.rows(len(asks), samples)
        prompt = max(ladder.length(len(ask.tokens)) for ask in asks)
        longest = max(ask.sampling.max_tokens for ask in asks)
        length = max(prompt, ladder.length(longest)) if prefix is None else prompt
        room = ladder.room(longest, samples, max(length, ladder.length(longest)))
        tokens, lengths = np.zeros((batch, length), np.int32), np.ones(batch, np.int32)
        seeds, rows = np.zeros((2, batch), np.uint32)
        for i, ask in enumerate(asks):
            tokens[i, : len(ask.tokens)], lengths[i] = ask.tokens, len(ask.tokens)
            seeds[i], rows[i] = ask.sampling.seed % 2**32, ask.row
        options = per_row([{name: getattr(ask.sampling, name) for name in NEUTRAL} for ask in asks], batch)
        # OpenAI allows 0 (the most probable token); ours must be above 0
        options["top_p"] = np.maximum(options["top_p"], np.float32(1e-9))
        tokenizer, single = self.served.tokenizer, self.served.byte_tokens
        decode, continuation = tokenizer.decode, tokenizer.decode_continuation
        readers = [
            [
                Reader(decode if ask.start else continuation, ask.sampling, continuation, single)
                for _ in range(ask.sampling.n)
            ]
            for ask in asks
        ]

        logits, cache = programs.read(tokens[:, :prompt], lengths, prefix)
        state = programs.start(tokens, lengths, make_keys(seeds, rows), options, samples, room, logits, cache, prefix)
        del logits, cache
        lanes = list(range(len(asks)))
        for until in range(CHECK_INTERVAL, room + CHECK_INTERVAL, CHECK_INTERVAL):
            state = programs.advance(state, options, until)
            output = jax.device_get(state.output)
            for lane, i in enumerate(lanes):
                for j, reader in enumerate(readers[i]):
                    values = output.tokens[lane, j], int(output.lengths[lane, j]), output.log_probs[lane, j]
                    reader.read(*values, int(output.finish[lane, j]))
            yield [[reader.sample() for reader in row] for row in readers]
            running = [lane for lane, i in enumerate(lanes) if not all(reader.finish for reader in readers[i])]
            if not running:
                return
            if (fewer := ladder.rows(len(running), samples)) < batch:
                # The rest of the rows are copies of one that has ended.
                spare = next(lane for lane in range(batch) if lane not in running)
                chosen = np.array(running + [spare] * (fewer - len(running)), np.int32)
                state, options = programs.keep(state, options, chosen)
                batch, lanes = fewer, [lanes[lane] for lane in running]


# --- a growing continuation as text ---------------------------------------------------------------------------------


class StopPrefix:
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

    **Arguments:** `decode`, the tokenizer's `decode`, or `decode_continuation`; `sampling`; `continuation`, the latter,
    for stop strings that begin with the space that `decode` drops at a text's beginning; `byte_tokens`, those that are
    one byte each (`Served.byte_tokens`): `decode` writes a run of them as characters if all of it is UTF-8, else none
    of it, so the text of a run is certain after its end only.
    """

    def __init__(
        self,
        decode: Callable[[Any], str],
        sampling: Sampling,
        continuation: Callable[[Any], str] | None = None,
        byte_tokens: Container[int] = frozenset(),
    ):
        self._decode, self._sampling, self._byte_tokens = decode, sampling, byte_tokens
        self._continuation = continuation
        self.finish = ""
        self._text, self._count = "", 0
        self._before_bytes = 0
        """Tokens before the run of bytes at the text's end."""
        self._prefixes = [StopPrefix(stop) for stop in sampling.stop]
        self._ends: list[int] = []
        self._log_probs: list[float] = []

    def read(self, tokens: np.ndarray, length: int, log_probs: np.ndarray, finish: int) -> None:
        """Take the tokens that the device has written so far."""
        sampling = self._sampling
        if self.finish:
            return
        before, self._count = min(self._count, self._before_bytes), min(length, sampling.max_tokens)
        by_token = finish == lm.Finish.STOP_TOKEN and length <= sampling.max_tokens
        content = tokens[: self._count - by_token]
        dropped, text = self._divided(content)
        self.finish = "stop" if by_token else "length" if self._count == sampling.max_tokens else ""
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
        if sampling.pieces:
            self._divide(content, certain if self.finish else text, by_string)
            self._log_probs = [float(x) for x in log_probs[: len(self._ends)]]

    def sample(self) -> Sample:
        """The samples so far."""
        ends = [end for end in self._ends if end <= len(self._text)]
        pieces = tuple(self._text[a:b] for a, b in zip([0, *ends], ends))
        return Sample(self._text, self._count, self.finish, pieces, tuple(self._log_probs[: len(pieces)]))

    def _divided(self, content: np.ndarray) -> tuple[str, str]:
        """The text that the tokenizer drops at the beginning, and the text after it."""
        text = self._decode(content)
        if self._continuation is None or self._continuation == self._decode or not self._sampling.stop:
            return "", text
        full = self._continuation(content)
        return (full[: len(full) - len(text)] if full.endswith(text) else ""), text

    def _cut(self, dropped: str, text: str) -> int | None:
        """The length of the text before the first stop string; None if there is none."""
        full = dropped + text
        index = min((index for stop in self._sampling.stop if (index := full.find(stop)) >= 0), default=None)
        return None if index is None else max(0, index - len(dropped))

    def _run_starts(self, content: np.ndarray) -> int:
        """The number of tokens before the run of bytes at the end."""
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
        lengths = (prefix.length(dropped + text[:end]) for prefix in self._prefixes)
        return max(0, end - max(lengths, default=0))

    def _divide(self, content: np.ndarray, text: str, by_string: bool) -> None:
        """Record the end of each token's text. A character of several tokens belongs to the one that completes it."""
        for k in range(len(self._ends) + 1, len(content) + 1):
            end = len(self._decode(content[:k]).rstrip("\ufffd"))
            self._ends.append(max(end, *self._ends[-1:], 0))
        if by_string:  # tokens with no text left
            ends = zip([0, *self._ends], self._ends)
            self._ends = [min(end, len(text)) for start, end in ends if start < len(text)]
        if self.finish and self._ends:
            self._ends[-1] = len(text)
