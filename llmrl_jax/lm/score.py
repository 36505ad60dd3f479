"""`Candidates`, the continuations that a policy chooses from, and the log-probability of each after each prompt, with
the prompt computed once (GLAM, Carta et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.cache import DecodeState
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.declare import projections
from llmrl_jax.lm.model import AnyArray, Llama
from llmrl_jax.lm.tokens import check_lengths, check_tokens
from llmrl_jax.parallel import constrain


@dataclass(frozen=True)
class Trie:
    """Candidates with common prefixes merged. The last token of a candidate is predicted, not read, so it is a node
    only if it is also an inner token of another candidate."""

    tokens: tuple[int, ...]
    """The token of each of `M` nodes; parents precede their children."""
    depths: tuple[int, ...]
    """Distance from the prompt, 0 for first tokens."""
    ancestors: np.ndarray
    """bool `[M, M]`: node i sees node j, itself included."""
    source: np.ndarray
    """int32 `[A, W]`: the input that predicts token w of candidate a: 0, the last prompt token, or 1 + a node."""


@dataclass(frozen=True)
class Candidates:
    """Token sequences, `A` of them, of at most `W` tokens. Static and hashable: part of the program, not of its data.

    Build one from lists of token ids, or with `Candidates.encode` from strings.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.Candidates.encode(lr.load_tokenizer("tiny"), ["blue", "the sky"]).words
    (1, 2)
    >>> lr.Candidates([[4], [5, 6]]).sequences
    ((4,), (5, 6))
    ```
    """

    sequences: tuple[tuple[int, ...], ...]
    words: tuple[int, ...] = ()
    """Number of words of each candidate, for scores per word; empty: unknown."""

    def __init__(self, sequences: Sequence[Sequence[int]], words: Sequence[int] = ()):
        """**Raises:** `ValueError` if there is no candidate, one has no token, two are the same, or `words` is not one
        positive number for each."""
        tokens = tuple(tuple(index(t) for t in sequence) for sequence in sequences)
        if not tokens:
            raise ValueError("there are no candidates; at least 1 is needed")
        first: dict[tuple[int, ...], int] = {}
        for i, sequence in enumerate(tokens):
            if not sequence:
                raise ValueError(f"candidate {i} is empty; each needs at least 1 token to have a probability")
            if min(sequence) < 0:
                raise ValueError(f"candidate {i} holds the token {min(sequence)}; tokens are at least 0")
            if (before := first.setdefault(sequence, i)) != i:
                raise ValueError(
                    f"candidates {before} and {i} are the same tokens, {list(sequence)}: a choice between them would "
                    "count twice; leave one out, or take a tokenizer that tells them apart"
                )
        if words and (len(words) != len(tokens) or min(words) < 1):
            raise ValueError(f"words are {tuple(words)}; one number of at least 1 is needed for each of {len(tokens)}")
        object.__setattr__(self, "sequences", tokens)
        object.__setattr__(self, "words", tuple(int(n) for n in words))

    @staticmethod
    def encode(tokenizer: Any, texts: Sequence[str]) -> Candidates:
        """Candidates from strings, by a tokenizer's `encode(text) -> list[int]`. Words are separated by spaces.

        **Raises:** as the constructor, for a single string too."""
        if isinstance(texts, str):
            raise ValueError(f"the candidates are the string {texts!r}; a list of strings is needed")
        return Candidates([tokenizer.encode(text) for text in texts], [max(1, len(text.split())) for text in texts])

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def width(self) -> int:
        """Tokens of the longest candidate, `W`."""
        return max(len(s) for s in self.sequences)

    @cached_property
    def tokens(self) -> np.ndarray:
        """int32 `[A, W]`, 0 after each candidate's end."""
        padded = np.zeros((len(self), self.width), np.int32)
        for row, sequence in zip(padded, self.sequences, strict=True):
            row[: len(sequence)] = sequence
        return padded

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 `[A]`."""
        return np.array([len(s) for s in self.sequences], np.int32)

    @cached_property
    def trie(self) -> Trie:
        """Tree of common prefixes."""
        nodes: dict[tuple[int, ...], int] = {}
        source = np.zeros((len(self), self.width), np.int32)
        for a, sequence in enumerate(self.sequences):
            for w in range(1, len(sequence)):
                source[a, w] = 1 + nodes.setdefault(sequence[:w], len(nodes))
        ancestors = np.zeros((len(nodes), len(nodes)), bool)
        for path, i in nodes.items():
            for w in range(1, len(path) + 1):
                ancestors[i, nodes[path[:w]]] = True
        return Trie(tuple(p[-1] for p in nodes), tuple(len(p) - 1 for p in nodes), ancestors, source)


Form = Literal["auto", "tree", "branches", "naive"]
"""The way in which candidates are computed; the scores are the same.

* `tree`: one pass over the prompt and the tree of the candidates' common prefixes.
* `branches`: the prompt once, into a cache, then every candidate token by token, as in sampling: no attention between
  candidates and the logits of one token at a time, for hundreds of candidates.
* `naive`: a full pass for every candidate.
* `auto`: the cheapest one, see `choose_form`.
"""

MASKED = float(np.finfo(np.float32).min) / 2
"""The score of a masked candidate: probability zero, without NaN in gradients or entropies."""


@struct.dataclass
class Scores:
    """Log-probabilities of `A` candidates after `B` prompts, float32."""

    sum: Float[Array, "B A"]
    """The joint log-probability of a candidate's tokens: GLAM's logits, without length normalisation."""
    mean: Float[Array, "B A"]
    """`sum` per token."""
    per_word: Float[Array, "B A"] | None
    """`sum` per word (TWOSOME, 2401.14151); None if the candidates have no word counts."""
    log_probs: Float[Array, "B A W"]
    """Log-probability of each token; 0 after a candidate's end."""
    raw_sum: Float[Array, "B A"]
    """The sum of a candidate's unnormalised logits, the score in GLAM's released code (`LogScoringModuleFn`).
    For compatibility only."""
    hidden: Float[Array, "B D"]
    """The final hidden state of the last prompt token, for a value head."""


def _check(model: Llama, tokens: Any, lengths: Any, prefix: Sequence[int], candidates: Candidates) -> None:
    config, prompt = model.config, len(prefix) + tokens.shape[1]
    longest = prompt + candidates.width
    if longest > config.max_position_embeddings:
        raise ValueError(
            f"a prompt of {prompt} tokens and a candidate of {candidates.width} need {longest} positions; "
            f"the model has {config.max_position_embeddings} (max_position_embeddings)"
        )
    top = int(candidates.tokens.max())
    if top >= config.vocab_size:
        raise ValueError(f"a candidate holds the token {top}; the model's vocabulary ends at {config.vocab_size - 1}")
    check_lengths(lengths, *tokens.shape)
    check_tokens(tokens, lengths, config.vocab_size)
    for token in prefix:
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"the prefix holds the token {token}; the vocabulary is 0 to {config.vocab_size - 1}")


def costs(config: LlamaConfig, prompt: int, candidates: Candidates, prefix: int = 0) -> dict[str, float]:
    """Multiply-adds of each form of `score` for one prompt.

    **Arguments:** `prompt` and `prefix`, tokens; `candidates`.
    **Returns:** the multiply-adds of `tree`, `branches` and `naive` by name.
    """
    layers, width = config.num_hidden_layers, config.hidden_size
    matrices = sum(math.prod(n for _, n in (*p.inputs, *p.outputs)) for p in projections(config).values())
    pair = 2 * config.num_attention_heads * config.size
    head = width * config.vocab_size
    count, longest, nodes = len(candidates), candidates.width, len(candidates.trie.tokens)
    context = prefix + prompt

    def pass_over(tokens: float, pairs: float, predictions: float) -> float:
        return float(layers * (tokens * matrices + pairs * pair) + predictions * head)

    steps = longest - 1
    return {
        "tree": pass_over(prompt + nodes, (prompt + nodes) * (context + nodes), 1 + nodes),
        "branches": pass_over(
            context + count * steps, context * context + count * steps * (context + longest), 1 + count * steps
        ),
        "naive": count * pass_over(context + longest, (context + longest) ** 2, longest),
    }


_PRICE = {"tree": 1.0, "branches": 1.5, "naive": 1.0}
"""Time of a multiply-add of each form relative to `tree`, measured on a CPU (1.3 to 2.6 for `branches`, whose second
pass is short and copies the cache; see `docs/benchmarks.md`)."""


def choose_form(config: LlamaConfig, prompt: int, candidates: Candidates, prefix: int = 0) -> str:
    """Form of `score` with `auto`: the minimum of `costs` times the time of a multiply-add in that form.

    It uses counts and fixed prices instead of a timing, so that a run's bits do not depend on the load of the machine.
    """
    counted = costs(config, prompt, candidates, prefix)
    return min(counted, key=lambda form: counted[form] * _PRICE[form])


def _collect(raw: jax.Array, normaliser: jax.Array, candidates: Candidates, hidden: jax.Array) -> Scores:
    """`Scores` from each token's logit and its log-normaliser, both `[B, A, W]`."""
    real = np.arange(candidates.width) < candidates.lengths[:, None]
    log_probs = jnp.where(real, raw - normaliser, 0.0)
    total = log_probs.sum(-1)
    mean = total / candidates.lengths.astype(np.float32)
    per_word = total / np.asarray(candidates.words, np.float32) if candidates.words else None
    return Scores(total, mean, per_word, log_probs, jnp.where(real, raw, 0.0).sum(-1), hidden)


def _masked(scores: Scores, mask: Any) -> Scores:
    ruled = {
        name: None if (value := getattr(scores, name)) is None else jnp.where(mask, value, MASKED)
        for name in ("sum", "mean", "per_word", "raw_sum")
    }
    return scores.replace(**ruled)


@tracing.default_types
def score(
    model: Llama,
    variables: Any,
    tokens: Int[AnyArray, "B S"],
    lengths: Int[AnyArray, "B"],
    candidates: Candidates,
    prefix: Sequence[int] = (),
    *,
    mask: Bool[AnyArray, "B A"] | None = None,
    form: str = "auto",
    rows: int | None = None,
    widths: Sequence[int] = (),
    shards: int = 1,
) -> Scores:
    """Score every candidate as a continuation of every prompt.

    The prompt is computed once. In the usual form, `tree`, the candidates' tokens, merged into the tree of their common
    prefixes, follow the prompt in the same pass. Each token attends to the prompt and its own ancestors, at the same
    position as in a separate pass. Only the logits that are read are computed. Rows, candidates and padding do not
    affect one another. Differentiable.

    **Arguments:** `model`, `variables` (with `lora` to apply adapters); `tokens`, right-padded prompts; `lengths`, at
    least 1; `candidates`; `prefix`, token ids before every prompt (an instruction, for example), not repeated in
    `tokens`: computed once for the batch, or for each group of `rows`, in the form `tree`; `mask`, the candidates of
    each row: the sums of the others are `MASKED` (all are computed, since the program does not depend on the mask);
    `form`, see `Form`; `rows`, prompts at a time, which must divide `B`: less memory, and on a CPU two to three times
    the speed if activations then fit the cache; the backward pass recomputes each group's forward pass. None computes
    all at once; `widths`, with `rows`: padded lengths shorter than `S`. Prompts are sorted by length, and each group is
    padded to the shortest sufficient width, so that the work depends on the mean length instead of the longest; each
    width is compiled separately. At most `rows` prompts are one group; `shards`, with `widths`: the number of equal
    parts of the batch, in its order, within which prompts are sorted. On a mesh it is the number of devices over which
    rows are split: each has as many rows of every group as the others, and no row leaves its device.
    **Returns:** `Scores`.
    **Raises:** `ValueError` if prompt and candidate exceed the model's positions, a token is not in its vocabulary, a
    length is not that of a prompt, or `rows`, `widths` or `shards` do not fit the batch.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> tokenizer, (model, variables) = lr.load_tokenizer("tiny"), lr.load_model("tiny")
    >>> tokens = jnp.array([tokenizer.encode("what colour is blood ?"), tokenizer.encode("what colour is grass ?")])
    >>> colours = lr.Candidates.encode(tokenizer, ["red", "green", "blue"])
    >>> lengths = jnp.array([5, 5])
    >>> scores = jax.jit(lambda v: lr.score(model, v, tokens, lengths, colours))(variables)
    >>> scores.sum.shape, bool((scores.sum < 0).all())  # log-probabilities in nats
    ((2, 3), True)
    ```
    """
    _check(model, tokens, lengths, prefix, candidates)
    batch = tokens.shape[0]
    if mask is not None:
        if mask.shape != (batch, len(candidates)):
            raise ValueError(
                f"the mask is {mask.shape}, but there are {batch} prompts and {len(candidates)} candidates"
            )
        grouped: Any = {"rows": rows, "widths": widths, "shards": shards}
        scores = score(model, variables, tokens, lengths, candidates, prefix, form=form, **grouped)
        return _masked(scores, mask)
    if form == "auto":
        form = choose_form(model.config, tokens.shape[1], candidates, len(prefix))
    if form not in get_args(Form):
        raise ValueError(
            f"no form {form!r}{nearest(form, list(get_args(Form)))}; there are {', '.join(get_args(Form))}"
        )
    if rows is not None and (rows < batch or widths):
        rows = min(rows, batch)
        if rows < 1 or batch % rows:
            raise ValueError(f"rows is {rows}, which does not divide a batch of {batch}")
        if widths:
            return _score_sorted(model, variables, tokens, lengths, candidates, prefix, rows, widths, shards, form)
        # Every group takes strided rows of the batch, so that rows stay on their devices of a mesh.
        groups = jax.tree.map(lambda x: x.reshape(rows, -1, *x.shape[1:]).swapaxes(0, 1), (tokens, lengths))
        score_group = jax.checkpoint(
            lambda group: score(model, variables, group[0], group[1], candidates, prefix, form=form)
        )
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(batch, *x.shape[2:]), jax.lax.map(score_group, groups))
    if form == "naive":
        return score_naive(model, variables, tokens, lengths, candidates, prefix)
    if form == "branches":
        return _score_branches(model, variables, tokens, lengths, candidates, prefix)
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
    shards: int,
    form: str,
) -> Scores:
    """`score` in groups of prompts of similar length, each padded to the shortest sufficient width."""
    batch, longest = tokens.shape
    if rows % shards:
        raise ValueError(f"shards is {shards}, which does not divide groups of {rows} rows")
    if min(widths) < 1 or max(widths) > longest:
        raise ValueError(f"widths are {tuple(widths)}; they must lie between 1 and the prompts' {longest}")
    sizes = sorted({*widths, longest})

    def score_at_width(width: int):
        return lambda group: score(model, variables, group[0][:, :width], group[1], candidates, prefix, form=form)

    branches = [score_at_width(width) for width in sizes]

    @jax.checkpoint
    def score_group(group):
        return tracing.switch(group[2], branches, group[:2])

    def ordered(x, order):
        """Rows of each shard in an order. `x`, `[shards, batch / shards, ...]`."""
        if shards == 1:  # the same rows, by the gather of earlier versions: sums after it keep their bits
            return jnp.asarray(x)[0][order[0]][None]
        return jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)

    def grouped(x):
        """From the rows of each shard in order to groups, with equally many rows of every shard."""
        x = x.reshape(shards, batch // rows, rows // shards, *x.shape[2:]).swapaxes(0, 1)
        return constrain(x.reshape(-1, rows, *x.shape[3:]), None, "batch", *[None] * (x.ndim - 3))

    def ungrouped(x):
        """The inverse of `grouped`."""
        x = x.reshape(batch // rows, shards, rows // shards, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(shards, batch // shards, *x.shape[3:])

    order = jnp.argsort(jnp.reshape(lengths, (shards, -1)), axis=1)
    groups = jax.tree.map(
        lambda x: grouped(ordered(jnp.reshape(x, (shards, -1, *x.shape[1:])), order)), (tokens, lengths)
    )
    needed = jnp.searchsorted(np.asarray(sizes), tracing.largest_of_runs(jnp.max(groups[1], axis=1)))
    scores = jax.lax.map(score_group, (*groups, needed))
    back = jnp.argsort(order, axis=1)
    return jax.tree.map(lambda x: ordered(ungrouped(x), back).reshape(batch, *x.shape[2:]), scores)


def _with_prefix(prefix: Sequence[int], tokens: Any, lengths: Any) -> tuple[Any, Any]:
    """Prompts with the prefix prepended to each."""
    if not prefix:
        return jnp.asarray(tokens), jnp.asarray(lengths)
    head = jnp.broadcast_to(jnp.asarray(prefix, tokens.dtype), (tokens.shape[0], len(prefix)))
    return jnp.concatenate([head, tokens], axis=1), lengths + len(prefix)


def _score_branches(
    model: Llama, variables: Any, tokens: Any, lengths: Any, candidates: Candidates, prefix: Sequence[int]
) -> Scores:
    """`score` with candidates decoded in parallel from their prompt's cache."""
    tokens, lengths = _with_prefix(prefix, tokens, lengths)
    batch, count, steps = tokens.shape[0], len(candidates), candidates.width - 1
    output: Any = model.apply(variables, tokens, lengths=lengths, cache=tokens.shape[1], at=(lengths - 1)[:, None])
    state = DecodeState.create(output.cache, lengths, count, max(1, steps))
    layers: Any = model.apply(variables, method=Llama.unstacked_weights)
    read, predicted = np.asarray(candidates.tokens.T), np.asarray(candidates.tokens.T)[1:]

    def step(state, inputs):
        token, following = inputs
        rows = jnp.broadcast_to(token, (batch, count))
        hidden, state = model.apply(variables, rows, state, layers=layers, method=Llama.decode)
        logits: Any = model.apply(variables, hidden, method=Llama.head)
        chosen = jnp.take_along_axis(logits, jnp.broadcast_to(following, (batch, count))[..., None], axis=-1)
        return state, (chosen[..., 0], jax.nn.logsumexp(logits, axis=-1))

    first = output.logits[:, 0]
    normaliser = jnp.broadcast_to(jax.nn.logsumexp(first, axis=-1)[:, None], (batch, count))
    raw, norms = first[:, read[0]][..., None], normaliser[..., None]
    if steps:
        _, later = tracing.scan(step, state, (read[:-1], predicted))
        raw, norms = (
            jnp.concatenate([a, jnp.moveaxis(b, 0, -1)], axis=-1) for a, b in zip((raw, norms), later, strict=True)
        )
    return _collect(raw, norms, candidates, output.hidden[:, 0])


@tracing.default_types
def score_naive(
    model: Llama,
    variables: Any,
    tokens: Int[AnyArray, "B S"],
    lengths: Int[AnyArray, "B"],
    candidates: Candidates,
    prefix: Sequence[int] = (),
) -> Scores:
    """Same as `score`, with a full pass for every candidate: the reference implementation for its tests."""
    _check(model, tokens, lengths, prefix, candidates)
    batch, width = tokens.shape[0], candidates.width
    tokens, lengths = _with_prefix(prefix, tokens, lengths)
    positions = lengths[:, None] + np.arange(width)
    rows = np.arange(batch)[:, None]

    def score_candidate(candidate):
        sequence, length = candidate
        inputs = jnp.pad(tokens, ((0, 0), (0, width))).at[rows, positions].set(sequence)
        output: Any = model.apply(variables, inputs, lengths=lengths + length, at=positions - 1)
        chosen = jnp.broadcast_to(sequence, positions.shape)[..., None]
        raw = jnp.take_along_axis(output.logits, chosen, axis=-1)[..., 0]
        return raw, jax.nn.logsumexp(output.logits, axis=-1), output.hidden[:, 0]

    raw, normaliser, hidden = jax.lax.map(score_candidate, (candidates.tokens, candidates.lengths))
    return _collect(raw.swapaxes(0, 1), normaliser.swapaxes(0, 1), candidates, hidden[0])
