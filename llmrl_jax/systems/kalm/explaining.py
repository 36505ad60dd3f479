"""Explanation accuracy: how often a grounded model says which instruction an episode carried out.

Two measures: whether the answer is a sentence for the goal of the episode, word by word, and whether it has the
goal's keywords, as the paper asks (kalm reference, section 6; it does not say which words count).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from llmrl_jax.lm import Cache
from llmrl_jax.systems.kalm import patterns
from llmrl_jax.systems.kalm.grounded import Grounded
from llmrl_jax.systems.kalm.patterns import Episodes, Row, Rows


TOGETHER = 32
"""Episodes that are explained at once."""


def explain(found: Grounded, episodes: Episodes, chosen: Sequence[int], most: int) -> list[str]:
    """What the model says of episodes: its most likely words, up to the end token or `most` tokens."""
    questions = [patterns.question(Row(found.tokenizer), episodes, int(e)) for e in chosen]
    rows, lengths = padded(questions)
    model, tables = found.model, (jnp.asarray(episodes.states), jnp.asarray(episodes.actions))

    @jax.jit
    def answer(variables: Any, rows: Rows, lengths: Any) -> jax.Array:
        text = {name: x for name, x in variables.items() if name != "slots"}
        count, size = rows.tokens.shape
        cache = Cache.create(model.llama.config, count, size + most, model.llama.dtype)
        out: Any = model.llama.apply(
            text,
            rows.tokens,
            lengths=lengths,
            cache=cache,
            at=lengths[:, None] - 1,
            embeddings=model.embed(variables, found.units, rows, tables),
        )

        def say(carry: Any, _: None) -> Any:
            token, cache = carry
            out: Any = model.llama.apply(text, token[:, None], cache=cache)
            return (jnp.argmax(out.logits[:, -1], axis=-1).astype(jnp.int32), out.cache), token

        first = jnp.argmax(out.logits[:, -1], axis=-1).astype(jnp.int32)
        return tracing.scan(say, (first, out.cache), length=most)[1].T

    said: list[str] = []
    together, end = min(TOGETHER, len(questions)), found.tokenizer.eos_id
    for start in range(0, len(questions), together):
        at = np.arange(start, start + together) % len(questions)
        tokens = np.asarray(answer(found.variables, jax.tree.map(lambda x, at=at: x[at], rows), lengths[at]))
        for row in tokens[: len(questions) - start].tolist():
            said.append(found.tokenizer.decode(row[: row.index(end)] if end in row else row).strip())
    return said


def padded(questions: Sequence[Row]) -> tuple[Rows, np.ndarray]:
    """Unfinished rows, padded on the right, and their lengths."""
    lengths = np.array([len(row.tokens) for row in questions], np.int32)

    def table(name: str, kind: type) -> np.ndarray:
        filled: np.ndarray = np.zeros((len(questions), int(lengths.max())), kind)
        for i, row in enumerate(questions):
            filled[i, : lengths[i]] = getattr(row, name)
        return filled

    tokens, index = table("tokens", np.int32), table("index", np.int32)
    blank = np.zeros_like(tokens)
    rows = Rows(
        tokens, table("kind", np.int8), index, blank, blank.astype(bool), blank, blank, np.full((len(tokens), 1), -1)
    )
    return rows, lengths


def accuracy(
    found: Grounded, episodes: Episodes, texts: Sequence[Sequence[str]], chosen: Sequence[int]
) -> dict[str, float]:
    """How often the model says what episodes carried out.

    **Arguments:** `texts`, for every episode the wordings of its goal; `chosen`, the episodes.
    **Returns:** `explained`, the share of answers that are a sentence for the goal; in a world with keywords also
    `keywords`, the share of answers that have all of the goal's, and `keyword`, the mean share that an answer has.
    """
    longest = max(len(found.tokenizer.encode(text)) for e in chosen for text in texts[e])
    said = explain(found, episodes, chosen, longest + 1)
    rates = {"explained": float(np.mean([answer in texts[e] for answer, e in zip(said, chosen)]))}
    keywords = found.world.keywords
    if keywords is not None:
        named = np.array(
            [[a == b for a, b in zip(keywords(answer), keywords(texts[e][0]))] for answer, e in zip(said, chosen)]
        )
        rates |= {"keywords": float(named.all(axis=1).mean()), "keyword": float(named.mean())}
    return rates
