"""Scoring candidates that come with the request.

`lm.score` compiles a program for a set of candidates, which suits actions that are scored a million times. Here the
candidates are data, so a request needs no compilation and clients cannot fill the memory with programs. The numbers are
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax import lm
from llmrl_jax.serve.sampler import ContextOverflow, power, width
from llmrl_jax.serve.served import Served


SHORTEST = 8
"""Smallest padded length of candidates, in tokens."""
AT_ONCE = 4096
"""Maximum candidate tokens in a pass; all their logits are in memory at once."""


@dataclass(frozen=True)
class Pair:
    """A prompt and a candidate."""

    prompt: tuple[int, ...]
    candidate: tuple[int, ...]


class Scorer:
    """Log-probabilities of candidates, each prompt read once in a pass.

    **Arguments:** `served`; `max_batch`, candidates per pass.
    """

    def __init__(self, served: Served, max_batch: int = 16):
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}; at least 1 candidate at a time is needed")
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

    def encode(self, prompt: str | Sequence[int], candidate: str | Sequence[int]) -> Pair:
        """A pair from texts or tokens.

        A candidate's tokens are those that it adds to the prompt's. If the tokenizer merges across the boundary, they
        are those of the candidate alone.

        **Raises:** what `pair` raises, and `ValueError` for a prompt without a token.
        """
        tokens = self.served.encode(prompt) if isinstance(prompt, str) else self.served.check(prompt)
        if not isinstance(candidate, str):
            return self.pair(tokens, candidate)
        whole = self.served.encode(prompt + candidate) if isinstance(prompt, str) else []
        if whole[: len(tokens)] == tokens:
            return self.pair(tokens, whole[len(tokens) :])
        return self.pair(tokens, self.served.tokenizer.encode(candidate))

    def run(self, pairs: Sequence[Pair]) -> Iterator[list[list[float]]]:
        """The log-probability of each token of each candidate, a few pairs at a time, in order."""
        at = 0
        while at < len(pairs):
            widest = max(len(p.candidate) for p in pairs[at : at + self.max_batch])
            size = max(1, min(self.max_batch, AT_ONCE // max(power(widest, 2), SHORTEST)))
            yield self._some(pairs[at : at + size])
            at += size

    def _some(self, pairs: Sequence[Pair]) -> list[list[float]]:
        served = self.served
        prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
        columns = max(SHORTEST, power(max(len(pair.candidate) for pair in pairs), 2))
        tokens = np.zeros((power(len(prompts), 4), width(max(map(len, prompts)), served.context)), np.int32)
        lengths = np.ones(len(tokens), np.int32)
        for i, prompt in enumerate(prompts):
            tokens[i, : len(prompt)], lengths[i] = prompt, len(prompt)
        candidates = np.zeros((power(len(pairs), 4), columns), np.int32)
        counts, owners = np.ones(len(candidates), np.int32), np.zeros(len(candidates), np.int32)
        for i, pair in enumerate(pairs):
            candidates[i, : len(pair.candidate)], counts[i] = pair.candidate, len(pair.candidate)
            owners[i] = prompts.index(pair.prompt)
        found = np.asarray(
            candidate_log_probs(served.model, served.variables, tokens, lengths, owners, candidates, counts)
        )
        return [[float(x) for x in row[: len(pair.candidate)]] for row, pair in zip(found, pairs)]


@partial(jax.jit, static_argnums=0)
def candidate_log_probs(
    model: lm.Llama,
    variables: Any,
    tokens: jax.Array,
    lengths: jax.Array,
    owners: jax.Array,
    candidates: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """Log-probability of each token of `R` candidates `[R, W]` after the prompts `[P, S]` with indices `owners`."""
    (prompts, steps), columns = tokens.shape, candidates.shape[1]
    empty = lm.Cache.create(model.config, prompts, steps + columns, model.dtype)
    read: Any = model.apply(variables, tokens, lengths=lengths, cache=empty, at=lengths[:, None] - 1)
    cache = lm.Cache(
        keys=read.cache.keys[:, owners],
        values=read.cache.values[:, owners],
        positions=read.cache.positions[owners],
        index=read.cache.index,
    )
    out: Any = model.apply(variables, candidates, lengths=counts, cache=cache)
    logits = jnp.concatenate([read.logits[owners], out.logits[:, :-1]], axis=1)
    chosen = jnp.take_along_axis(logits, candidates[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)
