"""Sampling for several clients in one batch: few programs, and each client gets the text that it would get alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import jax
import numpy as np

from llmrl_jax.serve.programs import EVERY, OPTIONS, Programs, make_keys, per_row
from llmrl_jax.serve.reader import Reader
from llmrl_jax.serve.request import Ask, Sample
from llmrl_jax.serve.served import ContextOverflow, Served


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

    def run(self, asks: Sequence[Ask]) -> Iterator[list[list[Sample]]]:
        """Continue the prompts of one batch.

        **Arguments:** `asks`, checked, of one group and at most `capacity` of them.
        **Returns:** an iterator over the samples so far, `n` for every request, until all have finished. Dropping it
        stops the device.
        """
        programs, ladder = self.programs, self.programs.ladder
        samples = ladder.samples(asks[0].how.n)
        batch = ladder.rows(len(asks), samples)
        prompt = max(ladder.length(len(ask.tokens)) for ask in asks)
        longest = max(ask.how.max_tokens for ask in asks)
        length = max(prompt, ladder.length(longest))
        room = ladder.room(longest, samples, length)
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

        logits, cache = programs.read(tokens[:, :prompt], lengths)
        state = programs.start(tokens, lengths, make_keys(seeds, rows), options, samples, room, logits, cache)
        del logits, cache
        for until in range(EVERY, room + EVERY, EVERY):
            state = programs.advance(state, options, until)
            out = jax.device_get(state.out)
            for i, row in enumerate(readers):
                for j, reader in enumerate(row):
                    reader.read(out.tokens[i, j], int(out.lengths[i, j]), out.log_probs[i, j], int(out.finish[i, j]))
            yield [[reader.sample() for reader in row] for row in readers]
            if all(reader.finish for row in readers for reader in row):
                return
