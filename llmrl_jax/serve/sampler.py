"""Sampling for several clients in one batch: few programs, and each client gets the text that it would get alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import jax
import numpy as np

from llmrl_jax.lm.cache import Prefix
from llmrl_jax.serve.programs import EVERY, OPTIONS, Programs, make_keys, per_row
from llmrl_jax.serve.reader import Reader
from llmrl_jax.serve.request import Ask, Sample
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
        """The checked request. **Raises:** `ContextOverflow`, or `ValueError` if `n` is more than a batch holds."""
        prompt, limit = len(ask.tokens), self.served.context
        if prompt + ask.how.max_tokens > limit:
            left = limit - prompt
            remedy = f"ask for at most {left} tokens, or shorten the prompt" if left > 0 else "shorten the prompt"
            raise ContextOverflow(
                f"the prompt has {prompt} tokens and max_tokens is {ask.how.max_tokens}: together "
                f"{prompt + ask.how.max_tokens}, and the context is {limit}; {remedy}"
            )
        if ask.how.n > self.max_batch:
            raise ValueError(
                f"n is {ask.how.n}; at most {self.max_batch} continuations are written at a time (max_batch): ask "
                "again with another seed for more"
            )
        return ask

    def group(self, ask: Ask) -> Hashable:
        """The part of the shape that all requests of a batch must share."""
        ladder = self.programs.ladder
        return ladder.samples(ask.how.n), ladder.length(len(ask.tokens))

    def capacity(self, ask: Ask) -> int:
        """How many requests like this one fit into a batch."""
        return max(1, self.max_batch // self.programs.ladder.samples(ask.how.n))

    def batches(self, asks: Sequence[Ask]) -> list[list[int]]:
        """The indices of requests per batch, in the order of each batch's first request."""
        groups: dict[Hashable, list[int]] = {}
        for i, ask in enumerate(asks):
            groups.setdefault(self.group(ask), []).append(i)
        sizes = {name: self.capacity(asks[members[0]]) for name, members in groups.items()}
        return [g[i : i + sizes[name]] for name, g in groups.items() for i in range(0, len(g), sizes[name])]

    def prefix(self, asks: Sequence[Ask]) -> Prefix | None:
        """What all prompts begin with, computed; None if that is not worth a program: less than `SHARED` tokens.

        The last prefix is kept and returned again while all prompts begin with it, so that requests that differ at
        their ends only, asked at different times, share one."""
        prompts = [ask.tokens for ask in asks]
        low, high = min(prompts), max(prompts)  # what these two share, all that are between them in the order have too
        same = next((i for i, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
        same = min(same, min(map(len, prompts)) - 1)  # a token of each is left, after which the first is drawn
        if (old := self._prefix) is not None and same >= old.size and prompts[0][: old.size] == self._shared:
            if len(asks) == 1 or old.size >= 0.75 * same:
                return old
        if len(asks) == 1 or same < SHARED:
            return None
        self._shared = prompts[0][:same]
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
        samples = ladder.samples(asks[0].how.n)
        batch = ladder.rows(len(asks), samples)
        prompt = max(ladder.length(len(ask.tokens)) for ask in asks)
        longest = max(ask.how.max_tokens for ask in asks)
        length = max(prompt, ladder.length(longest)) if prefix is None else prompt
        room = ladder.room(longest, samples, max(length, ladder.length(longest)))
        tokens, lengths = np.zeros((batch, length), np.int32), np.ones(batch, np.int32)
        seeds, rows = np.zeros((2, batch), np.uint32)
        for i, ask in enumerate(asks):
            tokens[i, : len(ask.tokens)], lengths[i] = ask.tokens, len(ask.tokens)
            seeds[i], rows[i] = ask.how.seed % 2**32, ask.row
        options = per_row([{name: getattr(ask.how, name) for name in OPTIONS} for ask in asks], batch)
        # OpenAI allows 0 (the most probable token); ours must be above 0
        options["top_p"] = np.maximum(options["top_p"], np.float32(1e-9))
        decode = self.served.tokenizer.decode
        before = self.served.plain_token if any(ask.how.stop for ask in asks) else None
        single = self.served.byte_tokens
        readers = [[Reader(decode, ask.how, before, single) for _ in range(ask.how.n)] for ask in asks]

        logits, cache = programs.read(tokens[:, :prompt], lengths, prefix)
        state = programs.start(tokens, lengths, make_keys(seeds, rows), options, samples, room, logits, cache, prefix)
        del logits, cache
        lanes = list(range(len(asks)))
        for until in range(EVERY, room + EVERY, EVERY):
            state = programs.advance(state, options, until)
            out = jax.device_get(state.out)
            for lane, i in enumerate(lanes):
                for j, reader in enumerate(readers[i]):
                    of = out.tokens[lane, j], int(out.lengths[lane, j]), out.log_probs[lane, j]
                    reader.read(*of, int(out.finish[lane, j]))
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
