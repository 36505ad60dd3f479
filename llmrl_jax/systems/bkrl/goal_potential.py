"""How near a situation is to the goals that a chat model proposed in similar ones.

Texts are embedded as the normalised sum of the embeddings of their phrases, on the host as on the device: the goals of
the three collected situations that are most similar to what led here are looked up, and the potential is the largest
cosine of one of them and the newest transition, where it exceeds a threshold (bkrl reference, section 6). At the start
of an episode the observation alone takes the place of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from envs_jax.env import Environment
from llmrl_jax.lm.encoder import TextEncoder, summed
from llmrl_jax.rl.shaping import NO_ACTION, Window
from llmrl_jax.systems.bkrl.worlds import TEXT


NEAREST = 3
"""Collected situations whose goals count."""


@dataclass(frozen=True)
class Library:
    """Goals, and the situations in which they were proposed."""

    goals: tuple[str, ...]
    """`G` goals."""
    keys: Float[np.ndarray, "N E"]
    """Embeddings of the situations, of norm 1."""
    of_key: Bool[np.ndarray, "N G"]
    """Which goals were proposed in each."""
    vectors: Float[np.ndarray, "G E"]
    """Embeddings of the goals, of norm 1."""


def action_sentence(verb: str) -> str:
    """How captions name an action (`worlds.caption`)."""
    return f"You choose the action: {verb}."


def unit(x: Any) -> Any:
    """Rows of norm 1; rows of zeros stay."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def by_phrases(encoder: TextEncoder, env: Environment) -> Callable[[Sequence[Any]], Float[np.ndarray, "B E"]]:
    """`embed(texts)` on the host, where a text is a list of phrases and sentences: the normalised sum of their
    embeddings."""
    known: dict[str, np.ndarray] = {}

    def embed(texts: Sequence[Sequence[str]]) -> Float[np.ndarray, "B E"]:
        new = list(dict.fromkeys(part for text in texts for part in text if part not in known))
        if new:
            known.update(zip(new, encoder.encode_texts(new)))
        zero = np.zeros(encoder.encode_texts(["a"]).shape[1], np.float32)
        return unit(np.stack([sum((known[part] for part in text), zero) for text in texts]))

    return embed


def exact(
    query: Float[np.ndarray, "B E"], transition: Float[np.ndarray, "B E"], library: Library, threshold: float
) -> Float[np.ndarray, " B"]:
    """The potential on the host, for embedded texts: the oracle of what runs on the device.

    **Arguments:** `query`, of what led here; `transition`, of the last action and the newest observation.
    """
    found = np.zeros(len(query), np.float32)
    for i, (asked, reached) in enumerate(zip(query, transition)):
        near = np.argsort(-(library.keys @ asked), kind="stable")[:NEAREST]
        goals = library.of_key[near].any(axis=0)
        if goals.any():
            best = float((library.vectors[goals] @ reached).max())
            found[i] = best if best > threshold else 0.0
    return found


def parts_of(window_texts: Sequence[Sequence[str]], verbs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The phrases and sentences of a window: of what led here, and of the newest transition; without an action, of the
    observation twice.

    **Arguments:** `window_texts`, the phrases of each of `K + 1` observations; `verbs`, those of `K` actions.
    """
    *before, newest = window_texts
    if not verbs:
        return [*newest], [*newest]
    *earlier, last = [action_sentence(verb) for verb in verbs]
    return [part for text in before for part in text] + earlier, [last, *newest]


class GoalPotential:
    """The same on the device, by tables, a `llmrl_jax.rl.shaping.Potential`."""

    reads = (TEXT,)

    def __init__(
        self,
        library: Library,
        phrases: Float[np.ndarray, "P E"],
        verbs: Float[np.ndarray, "A E"],
        window: int,
        threshold: float,
    ):
        """**Arguments:** `library`; `phrases`, embeddings of the phrases of the world's text; `verbs`, those of
        sentences about actions; `window`; `threshold`, cosine that must be exceeded."""
        self.window = window
        none = np.zeros((1, verbs.shape[1]), np.float32)
        self.params = {
            "keys": library.keys.T.astype(np.float32),
            "of_key": library.of_key,
            "goals": library.vectors.T.astype(np.float32),
            "phrases": phrases.astype(np.float32),
            "verbs": np.concatenate([none, verbs]).astype(np.float32),
            "threshold": np.float32(threshold),
        }

    def encode(self, params: Any, obs: Any) -> Float[Array, "B E"]:
        return summed(params["phrases"], obs[TEXT])

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        verbs = params["verbs"][window.action - NO_ACTION]
        real = window.action[:, :, None] != NO_ACTION
        led = jnp.sum(jnp.where(real, window.features[:, :-1], 0.0), axis=1) + jnp.sum(verbs[:, :-1], axis=1)
        led = jnp.where(real[:, -1], led, window.features[:, -1])  # at the start nothing led here
        reached = window.features[:, -1] + verbs[:, -1]
        few = min(NEAREST, params["keys"].shape[1])
        near = jax.lax.top_k(jnp.matmul(_unit(led), params["keys"], precision="highest"), few)[1]
        allowed = jnp.any(params["of_key"][near], axis=1)
        cosine = jnp.matmul(_unit(reached), params["goals"], precision="highest")
        best = jnp.max(jnp.where(allowed, cosine, -1.0), axis=1)
        return jnp.where(best > params["threshold"], best, 0.0)


def _unit(x: Float[Array, "B E"]) -> Float[Array, "B E"]:
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))
