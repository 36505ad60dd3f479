"""Sampling of the next token: the options, the processed distribution, and the sampled token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs_jax import tracing


NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The options that may be traced, with their neutral values."""


EXTREMES = {"temperature": (1e-6, 1e6), "repetition_penalty": (1e-3, 1e3)}
"""Outside of these, logits that are divided in float32 may become infinite or zero."""


def _in_range(value: Any, name: str) -> Any:
    low, high = EXTREMES[name]
    return (value >= low) & (value <= high)


def _concrete(value: Any) -> np.ndarray | None:
    """The value of an option, None if it is traced (or a placeholder of a `jax.tree.map`)."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, int | float | np.ndarray | np.generic | jax.Array):
        return None
    return np.asarray(value)


@struct.dataclass
class SamplingConfig:
    """Options of `generate`. The options of the distribution apply in transformers' order: repetition penalty,
    temperature, top-k, top-p, min-p.

    These five may be numbers, which are compiled in, or arrays, `[]` or one per row `[B]`, which are traced: then one
    program serves all values, and skips at run time what no row of the batch asks for. With numbers only, a config is
    hashable and can be a static argument of `jax.jit`.
    """

    max_new_tokens: int = struct.field(pytree_node=False)
    """`T`: maximum number of tokens of a continuation, including its stop token."""
    temperature: float | Array = 1.0
    """Divides the logits. 0 is greedy: the most probable token, the first of equals."""
    top_k: int | Array = 0
    """Keep the `k` most probable tokens, and any ties with the last of them. 0 keeps all."""
    top_p: float | Array = 1.0
    """Keep the most probable tokens until their probabilities sum to this (Holtzman et al. 2019), and any ties with
    the last of them. 1 keeps all."""
    min_p: float | Array = 0.0
    """Keep tokens whose probability is at least this fraction of the largest (Nguyen et al. 2024). 0 keeps all."""
    repetition_penalty: float | Array = 1.0
    """Divide positive logits of tokens in the prompt or the continuation by this, and multiply negative ones (Keskar et
    al. 2019). 1 has no effect; above 1 tokens repeat less."""
    samples: int = struct.field(pytree_node=False, default=1)
    """`n`: continuations of each prompt."""
    stop_tokens: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    """Tokens that end a continuation, as its last token. None means the model's `eos_token_id`, if any."""

    def __post_init__(self):
        for name in ("max_new_tokens", "samples"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        temperatures, penalties = (f"from {low:g} to {high:g}" for low, high in EXTREMES.values())
        limits: dict[str, tuple[Any, str]] = {
            "temperature": (
                lambda x: (x == 0) | _in_range(x, "temperature"),
                f"0, which is greedy, or {temperatures} is needed",
            ),
            "top_k": (lambda x: x >= 0, "give a number of tokens, or 0 to keep all"),
            "top_p": (lambda x: (x > 0) & (x <= 1), "it must lie in (0, 1], where 1 keeps all tokens"),
            "min_p": (lambda x: (x >= 0) & (x <= 1), "it must lie in [0, 1], where 0 keeps all tokens"),
            "repetition_penalty": (
                lambda x: _in_range(x, "repetition_penalty"),
                f"{penalties} is needed, where 1 changes nothing",
            ),
        }
        for name, (fits, expected) in limits.items():
            value = _concrete(getattr(self, name))
            if value is not None and not np.all(fits(value)):
                raise ValueError(f"{name} is {getattr(self, name)}; {expected}")
        if self.stop_tokens is not None:
            object.__setattr__(self, "stop_tokens", tuple(int(t) for t in self.stop_tokens))

    def split(self) -> tuple[SamplingConfig, dict[str, Any]]:
        """`(fixed, traced)`: a hashable config without arrays, and the arrays by name."""
        traced = {name: v for name in NEUTRAL if not isinstance(v := getattr(self, name), int | float)}
        numbers: dict[str, Any] = {name: NEUTRAL[name] for name in traced}
        return dataclasses.replace(self, **numbers), traced

    @property
    def greedy(self) -> bool:
        """Return whether decoding is greedy, without random samples."""
        return isinstance(self.temperature, int | float) and self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Return whether the distribution depends on the tokens so far through a repetition penalty."""
        return not _equals(self.repetition_penalty, 1.0)


def _equals(value: Any, number: float) -> bool:
    return isinstance(value, int | float) and value == number


def _per_row(value: Any) -> Any:
    """An option, broadcastable against `[B, n, V]`; a number unchanged."""
    if isinstance(value, int | float):
        return value
    value = jnp.asarray(value)
    return value.astype(jnp.int32 if jnp.issubdtype(value.dtype, jnp.integer) else jnp.float32).reshape(-1, 1, 1)


def penalise(
    logits: Float[Array, "B n V"], seen_tokens: Bool[Array, "B n V"], penalty: float | Array
) -> Float[Array, "B n V"]:
    """Logits with those of seen tokens reduced."""
    penalty = _per_row(penalty)
    return jnp.where(seen_tokens, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def _nucleus(probs: Float[Array, "*b V"], p: float | Array) -> Float[Array, "*b 1"]:
    """The minimum probability of a token among the most probable ones that sum to `p`.

    A token is among them if the more probable ones sum to less than `p`. The threshold is computed by bisection over
    the bit patterns of float32 from 0 to the largest probability, which have the order of the numbers. That is 31 sums;
    a sort of a vocabulary of 128,000 takes thirty times as long on a CPU.
    """

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        larger = jnp.where(probs > jax.lax.bitcast_convert_type(middle, jnp.float32), probs, 0.0)
        enough = larger.sum(-1, keepdims=True) < p
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    largest = jax.lax.bitcast_convert_type(probs.max(-1, keepdims=True), jnp.int32)
    _, border = tracing.fori_loop(0, 31, halve, (jnp.zeros_like(largest), largest))
    # At 1 nothing may be removed, although the sum of all the others may reach 1 by rounding.
    return jnp.where(p < 1, jax.lax.bitcast_convert_type(border, jnp.float32), 0.0)


def largest(values: Float[Array, "B n V"], k: Int[Array, "B 1 1"]) -> Float[Array, "B n 1"]:
    """The `k`-th largest of each row of values, by bisection over their bit patterns in the order of the numbers.

    That is 32 counts for any `k`; `jax.lax.top_k` compiles a program for each."""

    def ordered(x):  # an involution between the bits of a float and a signed integer of the same order
        return jnp.where(x < 0, x ^ 0x7FFFFFFF, x)

    order = ordered(jax.lax.bitcast_convert_type(values, jnp.int32))

    def halve(_, bounds):
        low, high = bounds
        middle = (low | high) - ((low ^ high) >> 1)  # the mean, rounded up, without overflow
        enough = (order >= middle).sum(-1, keepdims=True) >= k
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)

    int32 = jnp.iinfo(jnp.int32)
    bounds = jnp.full_like(order[..., :1], int32.min), jnp.full_like(order[..., :1], int32.max)
    return jax.lax.bitcast_convert_type(ordered(tracing.fori_loop(0, 32, halve, bounds)[0]), jnp.float32)


def _where_any(active: Bool[Array, "*b"], change: Callable[[jax.Array], jax.Array], logits: jax.Array) -> jax.Array:
    """The changed logits if some row asks for it; otherwise the change is not computed."""
    return tracing.cond(jnp.any(active), change, lambda x: x, logits)


def truncate(logits: Float[Array, "B n V"], config: SamplingConfig) -> Float[Array, "B n V"]:
    """Logits with `-inf` for tokens that top-k, top-p or min-p remove. The most probable one is always kept.

    Each of the three keeps tokens at or above a threshold, so ties are kept together, and the result does not depend on
    the order of the vocabulary.
    """
    k, p = _per_row(config.top_k), _per_row(config.top_p)
    if isinstance(k, jax.Array):
        count = jnp.where(k > 0, jnp.minimum(k, logits.shape[-1]), logits.shape[-1])
        logits = _where_any(k > 0, lambda x: jnp.where(x >= largest(x, count), x, -jnp.inf), logits)
    elif k:
        best = jax.lax.top_k(logits, min(int(k), logits.shape[-1]))[0]
        # The minimum, not the last element: XLA turns a slice of top_k into a full sort.
        logits = jnp.where(logits >= best.min(-1, keepdims=True), logits, -jnp.inf)

    def most_probable(x):
        probs = jax.nn.softmax(x, axis=-1)
        return jnp.where(probs >= _nucleus(probs, p), x, -jnp.inf)

    if isinstance(p, jax.Array):
        logits = _where_any(p < 1, most_probable, logits)
    elif p != 1:
        logits = most_probable(logits)
    if not _equals(config.min_p, 0.0):
        ratio = jnp.log(jnp.asarray(_per_row(config.min_p), jnp.float32))
        logits = jnp.where(logits >= logits.max(-1, keepdims=True) + ratio, logits, -jnp.inf)
    return logits


def process(
    logits: Float[Array, "B n V"], seen_tokens: Bool[Array, "B n V"] | None, config: SamplingConfig
) -> Float[Array, "B n V"]:
    """The logits of the sampling distribution, `-inf` for removed tokens.

    **Arguments:** `logits`, the model's; `seen_tokens`, the tokens of prompt and continuation so far, None without a
    repetition penalty; `config`. At temperature 0 only the order of the logits matters.
    """
    if seen_tokens is not None:
        logits = penalise(logits, seen_tokens, config.repetition_penalty)
    if config.greedy:
        return logits
    temperature = _per_row(config.temperature)
    logits = logits / (
        temperature if isinstance(temperature, int | float) else jnp.where(temperature > 0, temperature, 1.0)
    )
    return truncate(logits, config)


def sample_tokens(
    logits: Float[Array, "B n V"], keys: Key[Array, "B n"], config: SamplingConfig
) -> tuple[Int[Array, "B n"], Float[Array, "B n"]]:
    """A token for each row of processed logits, and its log-probability under them, which is 0 if greedy."""
    most_probable = jnp.argmax(logits, axis=-1)
    if config.greedy:
        return most_probable, jnp.zeros(most_probable.shape, jnp.float32)

    def sample():
        # One key per row, so that the samples of rows are independent.
        tokens = jax.vmap(jax.vmap(jax.random.categorical))(keys, logits)
        return tokens, log_prob(logits, tokens)

    if isinstance(config.temperature, int | float):
        return sample()
    greedy = _per_row(config.temperature)[..., 0] == 0
    zeros = jnp.zeros(most_probable.shape, jnp.float32)
    tokens, log_probs = tracing.cond(jnp.all(greedy), lambda: (most_probable, zeros), sample)
    return jnp.where(greedy, most_probable, tokens), jnp.where(greedy, zeros, log_probs)


def log_prob(logits: Float[Array, "B n V"], tokens: Int[Array, "B n"]) -> Float[Array, "B n"]:
    """The log-probability of a token of each row."""
    chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)
