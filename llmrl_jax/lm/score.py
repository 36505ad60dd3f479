"""The log-probability of each candidate after each prompt, with the prompt computed once (GLAM, Carta et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from llmrl_jax.lm.candidates import Candidates
from llmrl_jax.lm.model import AnyArray, Llama


@struct.dataclass
class Scores:
    """Log-probabilities of `A` candidates after `B` prompts, float32."""

    sum: Float[Array, "B A"]
    """The joint log-probability of a candidate's tokens: GLAM's logits, without length normalisation."""
    mean: Float[Array, "B A"]
    """The same per token."""
    log_probs: Float[Array, "B A W"]
    """Of each token; 0 after a candidate's end."""
    raw_sum: Float[Array, "B A"]
    """The sum of a candidate's raw logits, never normalised: what GLAM's released code takes for a score
    (glam reference, section 3.1). Nobody else should."""
    hidden: Float[Array, "B D"]
    """The final hidden state of the last prompt token, for a value head."""


def _check(model: Llama, prompt: int, prefix: int, candidates: Candidates) -> None:
    config = model.config
    longest = prefix + prompt + candidates.width
    if longest > config.max_position_embeddings:
        raise ValueError(
            f"a prompt of {prefix + prompt} tokens and a candidate of {candidates.width} need {longest} positions; "
            f"the model has {config.max_position_embeddings} (max_position_embeddings)"
        )
    top = int(candidates.tokens.max())
    if top >= config.vocab_size:
        raise ValueError(f"a candidate holds the token {top}; the model's vocabulary ends at {config.vocab_size - 1}")


def _collect(raw: jax.Array, normaliser: jax.Array, candidates: Candidates, hidden: jax.Array) -> Scores:
    """From each token's logit and its log-normaliser, both `[B, A, W]`."""
    real = np.arange(candidates.width) < candidates.lengths[:, None]
    log_probs = jnp.where(real, raw - normaliser, 0.0)
    total = log_probs.sum(-1)
    mean = total / candidates.lengths.astype(np.float32)
    return Scores(total, mean, log_probs, jnp.where(real, raw, 0.0).sum(-1), hidden)


def score(
    model: Llama,
    variables: Any,
    tokens: Int[AnyArray, "B S"],
    lengths: Int[AnyArray, "B"],
    candidates: Candidates,
    prefix: Sequence[int] = (),
    *,
    rows: int | None = None,
    widths: Sequence[int] = (),
) -> Scores:
    """Score every candidate as a continuation of every prompt, in one pass.

    The prompt is read once. The candidates' tokens, merged into the tree of their common prefixes, follow it in the
    same pass, each seeing the prompt and its own ancestors, at the positions it would have alone. Logits exist only
    where they are read. Rows do not affect one another, nor do candidates, nor does padding. Differentiable.

    **Arguments:** `model`, `variables` (with `lora` where adapters are to act); `tokens`, right-padded prompts;
    `lengths`, at least 1; `candidates`; `prefix`, token ids that stand before every prompt (an instruction, say),
    not repeated in `tokens`: computed once for the batch; `rows`, how many prompts to take at
    a time, which must divide `B`: less memory, and on a CPU two to three times the speed where activations then fit
    the cache; the backward pass computes each group's forward pass again. None takes all at once; `widths`, with
    `rows`: paddings shorter than `S`. Prompts are sorted by length, each group is padded to the shortest of these that
    holds it, so that work follows the mean length rather than the longest; each width is compiled apart. Sorting
    moves rows between the devices of a mesh: leave it out there.
    **Returns:** `Scores`.
    **Raises:** `ValueError` where prompt and candidate do not fit into the model's positions, or `rows` or `widths`
    do not fit the batch.
    """
    _check(model, tokens.shape[1], len(prefix), candidates)
    batch = tokens.shape[0]
    if rows is not None and rows < batch:
        if rows < 1 or batch % rows:
            raise ValueError(f"rows is {rows}, which does not divide a batch of {batch}")
        if widths:
            return _score_sorted(model, variables, tokens, lengths, candidates, prefix, rows, widths)
        # Every group takes rows from all over the batch, so that each device of a mesh keeps its own.
        groups = jax.tree.map(lambda x: x.reshape(rows, -1, *x.shape[1:]).swapaxes(0, 1), (tokens, lengths))
        one = jax.checkpoint(lambda group: score(model, variables, group[0], group[1], candidates, prefix))
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(batch, *x.shape[2:]), jax.lax.map(one, groups))
    trie = candidates.trie
    hidden: Any = model.apply(
        variables,
        tokens,
        lengths,
        trie.tokens,
        trie.depths,
        trie.ancestors,
        tuple(int(t) for t in prefix),
        method=Llama.tree,
    )
    logits: Any = model.apply(variables, hidden, method=Llama.head)
    raw = logits[:, trie.source, candidates.tokens]
    normaliser = jax.nn.logsumexp(logits, axis=-1)[:, trie.source]
    return _collect(raw, normaliser, candidates, hidden[:, 0])


def _score_sorted(
    model: Llama,
    variables: Any,
    tokens: Any,
    lengths: Any,
    candidates: Candidates,
    prefix: Sequence[int],
    rows: int,
    widths: Sequence[int],
) -> Scores:
    """`score` in groups of prompts of like length, each padded to the shortest width that holds it."""
    batch, longest = tokens.shape
    if min(widths) < 1 or max(widths) > longest:
        raise ValueError(f"widths are {tuple(widths)}; they must lie between 1 and the prompts' {longest}")
    sizes = sorted({*widths, longest})

    def at(width: int):
        return lambda group: score(model, variables, group[0][:, :width], group[1], candidates, prefix)

    branches = [at(width) for width in sizes]

    @jax.checkpoint
    def one(group):
        return jax.lax.switch(jnp.searchsorted(np.asarray(sizes), jnp.max(group[1])), branches, group)

    order = jnp.argsort(lengths)
    groups = jax.tree.map(lambda x: jnp.asarray(x)[order].reshape(-1, rows, *x.shape[1:]), (tokens, lengths))
    scores = jax.lax.map(one, groups)
    back = jnp.argsort(order)
    return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:])[back], scores)


def score_naive(
    model: Llama,
    variables: Any,
    tokens: Int[AnyArray, "B S"],
    lengths: Int[AnyArray, "B"],
    candidates: Candidates,
    prefix: Sequence[int] = (),
) -> Scores:
    """What `score` computes, by a whole pass for every candidate: the oracle that it is tested against."""
    _check(model, tokens.shape[1], len(prefix), candidates)
    batch, width = tokens.shape[0], candidates.width
    if prefix:
        head = jnp.broadcast_to(jnp.asarray(prefix, tokens.dtype), (batch, len(prefix)))
        tokens, lengths = jnp.concatenate([head, tokens], axis=1), lengths + len(prefix)
    place = lengths[:, None] + np.arange(width)
    rows = np.arange(batch)[:, None]

    def one(candidate):
        sequence, length = candidate
        whole = jnp.pad(tokens, ((0, 0), (0, width))).at[rows, place].set(sequence)
        out: Any = model.apply(variables, whole, lengths=lengths + length, at=place - 1)
        chosen = jnp.broadcast_to(sequence, place.shape)[..., None]
        raw = jnp.take_along_axis(out.logits, chosen, axis=-1)[..., 0]
        return raw, jax.nn.logsumexp(out.logits, axis=-1), out.hidden[:, 0]

    raw, normaliser, hidden = jax.lax.map(one, (candidates.tokens, candidates.lengths))
    return _collect(raw.swapaxes(0, 1), normaliser.swapaxes(0, 1), candidates, hidden[0])
