"""Log-probabilities of given tokens, without all positions' logits in memory at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llmrl_jax.lm import Llama


def token_log_probs(
    model: Llama,
    variables: Any,
    hidden: Float[Array, "B S D"],
    targets: Int[Array, "B S"],
    chunk: int = 0,
    temperature: Any = 1.0,
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Log-probability of each target under the head's softmax, and the softmax's entropy.

    **Arguments:** `model`, `variables`; `hidden`, states after the last norm; `targets`; `chunk`, positions whose
    logits are in memory at once, which must divide `S` (0: all): the backward pass recomputes each chunk's logits, so
    memory is `B x chunk x V` instead of `B x S x V`; `temperature`, which divides the logits.
    **Returns:** both float32, in nats.
    **Raises:** `ValueError` for a chunk that does not divide `S`.
    """

    def log_probs_and_entropy(hidden, targets):
        logits: Any = model.apply(variables, hidden, method=Llama.head)
        logits = logits / temperature
        # without an array of all log-probabilities, which a log-softmax writes and reads once more
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - total
        return chosen, total - jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)

    length = targets.shape[1]
    if not chunk or chunk >= length:
        return log_probs_and_entropy(hidden, targets)
    if length % chunk:
        raise ValueError(f"a chunk of {chunk} positions does not divide {length}")

    def split(x):
        return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    compute_chunk = jax.checkpoint(lambda parts: log_probs_and_entropy(*parts))
    parts = jax.lax.map(compute_chunk, (split(hidden), split(targets)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(targets.shape), parts)
