"""Sampling of continuations of prompts, entirely on the device."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs_jax import tracing
from llmrl_jax.lm.cache import Cache, DecodeState, Prefix
from llmrl_jax.lm.model import AnyArray, Llama
from llmrl_jax.lm.sampling import SamplingConfig, log_prob, process, sample_tokens
from llmrl_jax.lm.stops import StopStrings
from llmrl_jax.lm.tokens import FastTokenizer, check_lengths, check_tokens


class Finish(enum.IntEnum):
    """Reasons why a continuation ended."""

    RUNNING = 0
    """It has not ended: only while streaming."""
    LENGTH = 1
    """It has `max_new_tokens` tokens."""
    STOP_TOKEN = 2
    """Its last token is a stop token."""
    STOP_STRING = 3
    """Its last token completed a stop string."""


@struct.dataclass
class Generation:
    """`n` continuations of `B` prompts, of up to `T` tokens. All entries after a continuation's end are 0."""

    tokens: Int[Array, "B n T"]
    """int32. The last one is the stop token, or the one that completed a stop string."""
    lengths: Int[Array, "B n"]
    """int32, at least 1."""
    log_probs: Float[Array, "B n T"]
    """float32: log-probability of each token under the model, `log_softmax(logits)`, without the sampling options. The
    same as from a forward pass over prompt and continuation (to 1e-5 in float32), so the reference of a learner's
    ratio."""
    sampled_log_probs: Float[Array, "B n T"]
    """float32: log-probability of each token under the sampling distribution, with penalty, temperature and truncation,
    normalised over the remaining tokens; 0 if greedy. The same as `log_probs` if no option is set."""
    finish: Int[Array, "B n"]
    """int32, a `Finish`."""

    def texts(
        self, tokenizer: FastTokenizer, stops: StopStrings | None = None, *, start: bool = False
    ) -> list[list[str]]:
        """Continuations as text, on the host, without the stop token and cut before the stop string.

        **Arguments:** `start`, whether each is a text of its own, as a reply in a chat, from whose start some decoders
        drop a space, or else continues its prompt: their texts, joined, are that of all tokens."""
        tokens, finish = np.asarray(self.tokens), np.asarray(self.finish)
        ends = np.asarray(self.lengths) - (finish == Finish.STOP_TOKEN)
        decode = tokenizer.decode if start else tokenizer.decode_continuation
        text = partial(stops.text, tokenizer, start=start) if stops else decode
        return [[text(t[:e]) for t, e in zip(*row)] for row in zip(tokens, ends)]


@struct.dataclass
class State:
    """The carry of the loop over tokens. Growing arrays are written in place."""

    step: Int[Array, ""]
    """Tokens of each continuation so far, including those that have ended."""
    cache: DecodeState
    keys: Key[Array, "B n"]
    seen_tokens: Bool[Array, "B n V"] | None
    """Tokens of prompt and continuation, for a repetition penalty."""
    automaton: Int[Array, "B n"] | None
    """State of the stop strings."""
    output: Generation

    def rows(self, rows: Int[AnyArray, "R"]) -> State:
        """The state of some of the prompts."""
        select = partial(jax.tree.map, lambda x: x[rows])
        fields = {name: select(getattr(self, name)) for name in ("keys", "seen_tokens", "automaton", "output")}
        return dataclasses.replace(self, cache=self.cache.rows(rows), **fields)


def generate(
    model: Llama,
    variables: Any,
    tokens: Int[AnyArray, "B S"],
    lengths: Int[AnyArray, "B"],
    key: jax.Array,
    config: SamplingConfig,
    *,
    stops: StopStrings | None = None,
    rows: Int[AnyArray, "B"] | None = None,
) -> Generation:
    """Sample continuations of every prompt.

    A prompt is computed once, for any number of continuations. They are then sampled in one `while_loop`, which ends
    with the last of them. It is compiled for each `model`, for the shapes, and for `config` (but not for the values of
    its arrays), and can be called inside another `jit`.

    A row's samples depend only on its key, not on its batch, its padding, or the other samples. (With JAX's default
    keys, threefry. Logits with another batch size may differ in the last bit, because of another order of summation; a
    sample changes only if two tokens tie to that bit.)

    **Arguments:** `model`, `variables` (with `lora` to apply adapters); `tokens`, right-padded prompts; `lengths`, at
    least 1; `key`, one of `jax.random.key`, folded with each row's number, or one per row; `config`; `stops`, strings
    that end a continuation; `rows`, the rows' numbers, by default their indices in the batch.
    **Returns:** `Generation`.
    **Raises:** `ValueError`, before compiling, if prompt and continuation exceed the model's positions, a token of a
    prompt or a stop token is not in the vocabulary, `stops` was built for another vocabulary, or key and rows do not
    fit the batch.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> tokenizer, (model, variables) = lr.load_tokenizer("tiny"), lr.load_model("tiny")
    >>> tokens = jnp.array([tokenizer.encode("what colour is the sky ?")])
    >>> config = lr.lm.SamplingConfig(max_new_tokens=4, samples=3)
    >>> result = lr.generate(model, variables, tokens, jnp.array([6]), jax.random.key(0), config)
    >>> result.tokens.shape
    (1, 3, 4)
    ```
    """
    fixed, traced, keys = _prepare(model, tokens, lengths, key, config, stops, rows)
    return _generate(model, fixed, variables, traced, stops, tokens, lengths, keys)


def stream(
    model: Llama,
    variables: Any,
    tokens: Int[AnyArray, "B S"],
    lengths: Int[AnyArray, "B"],
    key: jax.Array,
    config: SamplingConfig,
    *,
    stops: StopStrings | None = None,
    every: int = 8,
) -> Iterator[Generation]:
    """`generate`, a few tokens at a time: for servers, progress and callbacks.

    The same loop, interrupted every few steps and re-entered with its state donated. It needs no host callback, which a
    compiler may drop or repeat, and the caller can stop early by dropping the iterator.

    **Arguments:** those of `generate` without `rows`; `every`, steps between two results.
    **Returns:** an iterator over the results so far, as NumPy arrays; the last one equals the result of `generate`.
    **Raises:** as `generate`, at the call.
    """
    if every < 1:
        raise ValueError(f"every is {every}; at least 1 step is needed between two results")
    fixed, traced, keys = _prepare(model, tokens, lengths, key, config, stops, None)

    def results() -> Iterator[Generation]:
        until = every
        state = _begin_jit(model, fixed, variables, traced, stops, tokens, lengths, keys)
        while True:
            state = _advance_jit(model, fixed, variables, traced, stops, state, until)
            output = jax.device_get(state.output)
            yield output
            if (output.finish != Finish.RUNNING).all():
                return
            until += every

    return results()


@tracing.default_types
def _prepare(model, tokens, lengths, key, config, stops, rows) -> tuple[SamplingConfig, dict[str, Any], jax.Array]:
    """The static and traced options, and a key per row. Raises all errors that can be detected before compiling."""
    limit, vocab = model.config.max_position_embeddings, model.config.vocab_size
    batch, prompt = tokens.shape
    if prompt + config.max_new_tokens > limit:
        raise ValueError(
            f"prompts padded to {prompt} tokens and max_new_tokens {config.max_new_tokens} need "
            f"{prompt + config.max_new_tokens} positions; the model has {limit} (max_position_embeddings): ask for at "
            f"most {max(limit - prompt, 0)} new tokens, or pad less"
        )
    check_lengths(lengths, batch, prompt)
    check_tokens(tokens, lengths, vocab)
    if config.stop_tokens is None:
        eos = model.config.eos_token_id
        config = dataclasses.replace(config, stop_tokens=() if eos is None else (eos,))
    for token in config.stop_tokens:
        if not 0 <= token < vocab:
            raise ValueError(f"the stop token {token} cannot occur: the model's vocabulary is 0 to {vocab - 1}")
    if stops is not None and stops.table.shape[1] != vocab:
        raise ValueError(
            f"stop strings were built for {stops.table.shape[1]} tokens, the model has {vocab}: give "
            "StopStrings.build the model's vocab_size"
        )
    fixed, traced = config.split()
    for name, value in traced.items():
        if jnp.shape(value) not in ((), (batch,)):
            raise ValueError(f"{name} has shape {jnp.shape(value)}; give one number, or one for each of {batch} rows")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(f"the key has dtype {key.dtype}; give a typed key, of jax.random.key")
    if key.shape not in ((), (batch,)):
        raise ValueError(f"the key has shape {key.shape}; give one, or one for each of {batch} rows")
    if key.shape == ():
        rows = np.arange(batch) if rows is None else rows
        if rows.shape != (batch,):
            raise ValueError(f"rows have shape {rows.shape}; one for each of {batch} prompts is needed")
        return fixed, traced, jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
    if rows is not None:
        raise ValueError("rows number the rows for one key; here each row has a key already: give one or the other")
    return fixed, traced, key


@tracing.default_types
def read_prefix(model, variables, tokens: Int[AnyArray, "P"]) -> Prefix:
    """Compute the tokens that all prompts of later batches begin with."""
    output: Any = model.apply(variables, tokens[None], cache=tokens.shape[0], logits=False)
    return Prefix.create(tokens, output.cache)


@tracing.default_types
def read_prompts(model, variables, tokens, lengths, prefix=None) -> tuple[Float[Array, "B 1 V"], Cache]:
    """The first half of `generate`, in one program for any options of sampling and any length of the continuations.

    **Arguments:** `model`, `variables`, `tokens`, `lengths`: those of `generate`; `prefix`, of `read_prefix`: then
    `tokens` follow it.
    **Returns:** the logits after each prompt, and the keys and values of the prompts, of the capacity `S`.
    """
    last = jnp.asarray(lengths)[:, None] - 1
    output: Any = model.apply(variables, tokens, lengths=lengths, cache=tokens.shape[1], prefix=prefix, at=last)
    return output.logits, output.cache


@tracing.default_types
def start(model, fixed, traced, stops, tokens, lengths, keys, logits, cache, prefix=None) -> State:
    """The state with the first token of every continuation.

    **Arguments:** `fixed` and `traced`, of `SamplingConfig.split`; `stops`; `tokens`, `lengths`, the prompts; `keys`,
    one per row; `logits` and `cache`, of `read_prompts`; the cache may have a larger capacity, as `tokens` then has;
    `prefix`, which `read_prompts` had.
    """
    config = dataclasses.replace(fixed, **traced)
    (batch, prompt), count, capacity = tokens.shape, config.samples, config.max_new_tokens
    seen_tokens = None
    if config.penalises:
        valid = jnp.arange(prompt) < jnp.asarray(lengths)[:, None]
        rows = jnp.arange(batch)[:, None]
        seen_tokens = jnp.zeros((batch, model.config.vocab_size), bool).at[rows, tokens].max(valid)
        if prefix is not None:
            seen_tokens = seen_tokens.at[:, prefix.tokens].set(True)
        seen_tokens = jnp.broadcast_to(seen_tokens[:, None], (batch, count, seen_tokens.shape[-1]))
    shape = (batch, count, capacity)
    state = State(
        step=jnp.zeros((), jnp.int32),
        cache=DecodeState.create(cache, lengths, count, capacity, prefix),
        keys=jax.vmap(lambda k: jax.vmap(partial(jax.random.fold_in, k))(jnp.arange(count)))(keys),
        seen_tokens=seen_tokens,
        automaton=None if stops is None else jnp.zeros((batch, count), jnp.int32),
        output=Generation(
            tokens=jnp.zeros(shape, jnp.int32),
            lengths=jnp.zeros((batch, count), jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            sampled_log_probs=jnp.zeros(shape, jnp.float32),
            finish=jnp.zeros((batch, count), jnp.int32),
        ),
    )
    return _append(config, stops, state, jnp.broadcast_to(logits, (batch, count, logits.shape[-1])))


@tracing.default_types
def _begin(model, fixed, variables, traced, stops, tokens, lengths, keys) -> State:
    """Compute the prompts and sample the first token of every continuation."""
    logits, cache = read_prompts(model, variables, tokens, lengths)
    return start(model, fixed, traced, stops, tokens, lengths, keys, logits, cache)


def _append(config: SamplingConfig, stops: StopStrings | None, state: State, logits: jax.Array) -> State:
    """The state with one more token of every continuation, sampled from the model's logits."""
    output, step = state.output, state.step
    keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(state.keys, step)
    processed = process(logits, state.seen_tokens, config)
    tokens, sampled = sample_tokens(processed, keys, config)
    running = output.finish == Finish.RUNNING
    tokens = jnp.where(running, tokens, 0).astype(jnp.int32)

    def write(old, new):
        return jax.lax.dynamic_update_slice(old, jnp.where(running, new, 0)[..., None], (0, 0, step))

    seen_tokens, automaton = state.seen_tokens, state.automaton
    if seen_tokens is not None:
        batch, count = tokens.shape
        seen_tokens = seen_tokens.at[jnp.arange(batch)[:, None], jnp.arange(count), tokens].max(running)
    finish = jnp.where(step + 1 == config.max_new_tokens, Finish.LENGTH, Finish.RUNNING)
    if stops is not None:
        automaton = stops.table[automaton, tokens].astype(jnp.int32)
        finish = jnp.where(automaton == stops.matched, Finish.STOP_STRING, finish)
    if config.stop_tokens:
        finish = jnp.where(jnp.isin(tokens, np.array(config.stop_tokens)), Finish.STOP_TOKEN, finish)
    return dataclasses.replace(
        state,
        step=step + 1,
        seen_tokens=seen_tokens,
        automaton=automaton,
        output=Generation(
            tokens=write(output.tokens, tokens),
            lengths=output.lengths + running,
            log_probs=write(output.log_probs, log_prob(logits, tokens)),
            sampled_log_probs=write(output.sampled_log_probs, sampled),
            finish=jnp.where(running, finish, output.finish).astype(jnp.int32),
        ),
    )


@tracing.default_types
def advance(model, fixed, variables, traced, stops, state: State, until) -> State:
    """Continue until every continuation has ended or has `until` tokens."""
    config = dataclasses.replace(fixed, **traced)
    layers = model.apply(variables, method=Llama.unstacked_weights)

    def unfinished(state: State):
        return (state.step < until) & jnp.any(state.output.finish == Finish.RUNNING)

    def body(state: State) -> State:
        last = jax.lax.dynamic_index_in_dim(state.output.tokens, state.step - 1, axis=2, keepdims=False)
        hidden, cache = model.apply(variables, last, state.cache, layers=layers, method=Llama.decode)
        logits = model.apply(variables, hidden, method=Llama.head)
        return _append(config, stops, dataclasses.replace(state, cache=cache), logits)

    return tracing.while_loop(unfinished, body, state)


@partial(jax.jit, static_argnums=(0, 1))
@tracing.default_types
def _generate(model, fixed, variables, traced, stops, tokens, lengths, keys) -> Generation:
    state = _begin(model, fixed, variables, traced, stops, tokens, lengths, keys)
    return advance(model, fixed, variables, traced, stops, state, fixed.max_new_tokens).output


_begin_jit = jax.jit(_begin, static_argnums=(0, 1))
_advance_jit = jax.jit(advance, static_argnums=(0, 1), donate_argnums=5)
