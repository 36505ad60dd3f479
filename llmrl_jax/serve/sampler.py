"""Sampling for several clients in one batch: few programs, and each client gets the text that it would get alone."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from llmrl_jax import lm
from llmrl_jax.serve.served import Served


EVERY = 8
"""Tokens between two checks on the host: the delay until a stop string or a disconnected client is noticed."""
NARROWEST = 64
"""Smallest padded length of prompts and answers, in tokens."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options of a prompt; see `lm.SamplingConfig`."""

    max_tokens: int
    """Maximum tokens of a continuation, including its stop token."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: float = 1.0
    """0 leaves the most probable token."""
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    """Number of continuations."""
    stop: tuple[str, ...] = ()
    """Strings that end a continuation; they are not included in it."""
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    """Seed of the draws (lowest 32 bits). None: a random seed."""
    pieces: bool = False
    """Whether each token's text is returned with its log-probability."""

    def __post_init__(self) -> None:
        for name, low in (("max_tokens", 1), ("n", 1), ("top_k", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        for name, low, high in (("temperature", 0, math.inf), ("top_p", 0, 1), ("min_p", 0, 1)):
            if not low <= getattr(self, name) <= high or math.isinf(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [{low}, {high}]")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; it must be above 0, and 1 changes nothing"
            )
        if not all(self.stop):
            raise ValueError("stop holds an empty string, which would end every text at once; leave it out")


@dataclass(frozen=True)
class Ask:
    """A prompt and its sampling options."""

    tokens: tuple[int, ...]
    how: Sampling
    row: int = 0
    """Index among the prompts that share a seed. The draws depend on it, and not on the place in a batch."""


@dataclass(frozen=True)
class Sample:
    """A continuation so far."""

    text: str
    """The text before the stop token or stop string. While it grows: the part that later tokens cannot change."""
    count: int
    """Tokens drawn, including the stop token."""
    finish: str
    """`stop`, `length`, or empty while it grows."""
    pieces: tuple[str, ...] = ()
    """The text of each token, if requested; joined, they are `text`."""
    log_probs: tuple[float, ...] = ()
    """Log-probabilities of the tokens under the unmodified model."""


class ContextOverflow(ValueError):
    """Prompt and answer do not fit into the model's context."""


class Sampler:
    """Continues batches of prompts.

    A program is compiled for a batch size, a prompt width and an answer width, each from a short list, so the number of
    programs does not grow with the requests. Temperature, top-p, min-p and the repetition penalty are inputs. Stop
    strings are matched in the text on the host.

    **Arguments:** `served`; `max_batch`, concurrent continuations.
    """

    def __init__(self, served: Served, max_batch: int = 16):
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}; at least 1 continuation at a time is needed")
        self.served, self.max_batch = served, max_batch
        self._model = roomy(served.model)

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
        """The part of the program that all requests of a batch must share, apart from sizes."""
        how = ask.how
        return (
            self._samples(how),
            width(len(ask.tokens), self.served.context),
            how.temperature == 0,
            how.top_k,
            how.top_p < 1 or how.min_p > 0,
            how.repetition_penalty != 1,
        )

    def capacity(self, ask: Ask) -> int:
        """How many requests like this one fit into a batch."""
        return max(1, self.max_batch // self._samples(ask.how))

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
        first, batch = asks[0].how, min(power(len(asks), 4), self.capacity(asks[0]))
        steps = max(width(ask.how.max_tokens, self.served.context) for ask in asks)
        tokens = np.zeros((batch, max(width(len(ask.tokens), self.served.context) for ask in asks)), np.int32)
        lengths = np.ones(batch, np.int32)
        options: dict[str, Any] = {
            name: np.full(batch, getattr(first, name), np.float32)
            for name in ("temperature", "top_p", "min_p", "repetition_penalty")
        }
        seeds, rows = np.zeros((2, batch), np.uint32)
        for i, ask in enumerate(asks):
            tokens[i, : len(ask.tokens)], lengths[i] = ask.tokens, len(ask.tokens)
            seeds[i], rows[i] = ask.how.seed % 2**32, ask.row
            for name, values in options.items():
                values[i] = getattr(ask.how, name)
        # OpenAI allows 0 (the most probable token); ours must be above 0
        options["top_p"] = np.maximum(options["top_p"], np.float32(1e-9))
        if first.temperature == 0:
            options = {"repetition_penalty": options["repetition_penalty"], "temperature": 0.0}
        elif not (first.top_p < 1 or first.min_p > 0):
            del options["top_p"], options["min_p"]
        if first.repetition_penalty == 1:
            del options["repetition_penalty"]
        config = lm.SamplingConfig(
            max_new_tokens=steps,
            top_k=0 if first.temperature == 0 else first.top_k,
            samples=self._samples(first),
            stop_tokens=self.served.stop_tokens,
            **options,
        )
        readers = [[Reader(self.served.tokenizer.decode, ask.how) for _ in range(ask.how.n)] for ask in asks]
        keys = _keys(seeds, rows)
        for out in lm.stream(self._model, self.served.variables, tokens, lengths, keys, config, every=EVERY):
            drawn, log_probs = np.asarray(out.tokens), np.asarray(out.log_probs)
            for i, row in enumerate(readers):
                for j, reader in enumerate(row):
                    reader.read(drawn[i, j], int(out.lengths[i, j]), log_probs[i, j], int(out.finish[i, j]))
            yield [[reader.sample() for reader in row] for row in readers]
            if all(reader.finish for row in readers for reader in row):
                return

    def _samples(self, how: Sampling) -> int:
        return min(power(how.n, 2), self.max_batch)


class Reader:
    """One continuation, as text."""

    def __init__(self, decode: Callable[[Any], str], how: Sampling):
        self._decode, self._how = decode, how
        self.finish = ""
        self._text, self._count = "", 0
        self._ends: list[int] = []
        self._log_probs: list[float] = []

    def read(self, tokens: np.ndarray, length: int, log_probs: np.ndarray, finish: int) -> None:
        """Take the tokens that the device has written so far."""
        how = self._how
        if self.finish:
            return
        before, self._count = self._count, min(length, how.max_tokens)
        by_token = finish == lm.Finish.STOP_TOKEN and length <= how.max_tokens
        content = tokens[: self._count - by_token]
        text = self._decode(content)
        self.finish = "stop" if by_token else "length" if self._count == how.max_tokens else ""
        by_string = any(stop in text for stop in how.stop)
        if by_string:  # the same token for any number of new tokens since the last check
            content = next(c for k in range(before, len(content) + 1) if self._cut(self._decode(c := content[:k])) >= 0)
            text = self._decode(content)
            text = text[: self._cut(text)]
            self.finish, self._count = "stop", len(content)
        self._text = text if self.finish else text[: self._certain(text)]
        if how.pieces:
            self._divide(content, text, by_string)
            self._log_probs = [float(x) for x in log_probs[: len(self._ends)]]

    def sample(self) -> Sample:
        """The samples so far."""
        shown = [end for end in self._ends if end <= len(self._text)]
        pieces = tuple(self._text[a:b] for a, b in zip([0, *shown], shown))
        return Sample(self._text, self._count, self.finish, pieces, tuple(self._log_probs[: len(pieces)]))

    def _cut(self, text: str) -> int:
        """Start of the first stop string; -1 if there is none."""
        return min((at for stop in self._how.stop if (at := text.find(stop)) >= 0), default=-1)

    def _certain(self, text: str) -> int:
        """Length of an unfinished text's final part: without half a character or a possible stop string."""
        end = len(text.rstrip("\ufffd"))
        held = [k for stop in self._how.stop for k in range(1, len(stop)) if text[:end].endswith(stop[:k])]
        return end - max(held, default=0)

    def _divide(self, content: np.ndarray, text: str, by_string: bool) -> None:
        """Where each token's text ends. A character of several tokens belongs to the one that completes it."""
        for k in range(len(self._ends) + 1, len(content) + 1):
            end = len(self._decode(content[:k]).rstrip("\ufffd"))
            self._ends.append(max(end, *self._ends[-1:], 0))
        if by_string:  # tokens with no text left
            ends = zip([0, *self._ends], self._ends)
            self._ends = [min(end, len(text)) for start, end in ends if start < len(text)]
        if self.finish and self._ends:
            self._ends[-1] = len(text)


def power(number: int, base: int) -> int:
    """The least power of a base that is at least a number."""
    found = 1
    while found < number:
        found *= base
    return found


def width(tokens: int, limit: int) -> int:
    """The padded length for a number of tokens: a power of two of at least `NARROWEST`, or the limit."""
    return min(max(power(tokens, 2), NARROWEST), limit)


def roomy(model: lm.Llama) -> lm.Llama:
    """The same model with twice the positions, to allow padding; real tokens stay within the model's own positions.

    Values derived from the number of positions are kept: the original context of scaled RoPE frequencies, and
    `dynamic`, which scales only beyond it."""
    config = model.config
    limit, rope = config.max_position_embeddings, config.rope
    if rope.type in ("llama3", "yarn"):
        rope = dataclasses.replace(rope, original_max_position_embeddings=rope.original(limit))
    return model.clone(config=dataclasses.replace(config, max_position_embeddings=2 * limit, rope=rope))


@jax.jit
def _keys(seeds: jax.Array, rows: jax.Array) -> jax.Array:
    """Each row's key: `fold_in(key(seed), row)`, as in `lm.generate` for a batch under one key."""
    return jax.vmap(lambda seed, row: jax.random.fold_in(jax.random.key(seed), row))(seeds, rows)
