"""The compiled programs of a served model, and their compilation before the first request."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax import lm
from llmrl_jax.lm.cache import Prefix
from llmrl_jax.lm.generate import State, advance, read_prefix, read_prompts, start
from llmrl_jax.lm.sampling import NEUTRAL
from llmrl_jax.serve.served import Served


log = logging.getLogger("llmrl_jax.serve")

CHECK_INTERVAL = 8
"""Tokens between two checks on the host: the delay until a stop string or a disconnected client is noticed."""


class Programs:
    """Reading prompts, writing answers, and scoring candidates, each in programs of the ladder's shapes.

    All options of sampling are inputs. A program exists per process for equal models, so that several samplers of one
    model share them.

    **Arguments:** `served`; `max_batch`, of the ladder.
    """

    def __init__(self, served: Served, max_batch: int):
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}; at least 1 continuation at a time is needed")
        self.ladder = Ladder(served.context, max_batch)
        self.model = roomy(served.model)
        self.variables, self._stop_tokens = served.variables, served.stop_tokens
        self._shapes: set[tuple[Any, ...]] = set()

    @property
    def count(self) -> int:
        """Shapes used so far."""
        return len(self._shapes)

    def prefix(self, tokens: np.ndarray) -> Prefix:
        """Compute the common prefix of later batches' prompts. **Arguments:** `tokens`, int32 `[P]`; each length is a
        program of its own, as it is for what is then read after it."""
        self._note("prefixes", tokens.shape)
        return _read_prefix(self.model, self.variables, tokens)

    def read(self, tokens: np.ndarray, lengths: np.ndarray, prefix: Prefix | None = None) -> tuple[jax.Array, lm.Cache]:
        """Compute prompts. **Arguments:** `tokens`, int32 `[B, S]`; `lengths`, int32 `[B]`; `prefix`, which `tokens`
        follow. **Returns:** the logits `[B, 1, V]` after each, and their cache of the capacity `S`."""
        self._note("prompts", (*tokens.shape, *_size(prefix)))
        return _read(self.model, self.variables, tokens, lengths, prefix)

    def start(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        keys: jax.Array,
        options: dict[str, np.ndarray],
        samples: int,
        room: int,
        logits: jax.Array,
        cache: lm.Cache,
        prefix: Prefix | None = None,
    ) -> State:
        """Sample the first tokens. **Arguments:** `tokens`, int32 `[B, T]`, padded to the length of prompt and answer;
        `keys`, one per row; `options`, one value per row for each of `NEUTRAL`; `samples`; `room`, tokens of an answer;
        what `read` returned; `prefix`, which it was given."""
        self._note("answers", (len(tokens), samples, tokens.shape[1], room, *_size(prefix)))
        fixed, traced = self._config(room, samples, options).split()
        if cache.capacity < tokens.shape[1]:
            cache = _widen(cache, tokens.shape[1])
        return _start(self.model, fixed, traced, None, tokens, lengths, keys, logits, cache, prefix)

    def advance(self, state: State, options: dict[str, np.ndarray], until: int) -> State:
        """Write until every answer has ended or has `until` tokens. `state` is donated."""
        _, samples, room = state.output.tokens.shape
        fixed, traced = self._config(room, samples, options).split()
        return _advance(self.model, fixed, self.variables, traced, None, state, until)

    def keep(self, state: State, options: dict[str, np.ndarray], rows: np.ndarray) -> tuple[State, dict[str, Any]]:
        """The state and the options of some rows, for a program of fewer. **Arguments:** `rows`, int32 `[R]`."""
        return _keep(state, rows), {name: value[rows] for name, value in options.items()}

    def score(
        self,
        logits: jax.Array,
        cache: lm.Cache,
        owners: np.ndarray,
        candidates: np.ndarray,
        counts: np.ndarray,
    ) -> jax.Array:
        """The log-probability of each token of candidates.

        **Arguments:** what `read` returned; `owners`, int32 `[R]`, the prompt of each candidate; `candidates`, int32
        `[R, W]`; `counts`, int32 `[R]`, their tokens. **Returns:** float32 `[R, W]`."""
        self._note("candidates", (len(logits), cache.capacity, *candidates.shape))
        return _score(self.model, self.variables, logits, cache, owners, candidates, counts)

    def warm_up(self, report: Callable[[str], None] | None = None) -> int:
        """Compile every program of the ladder. **Arguments:** `report`, called with a line per program before it is
        compiled. **Returns:** the number of programs."""
        started, tasks = time.monotonic(), [*self._tasks()]
        for i, (name, compile_) in enumerate(tasks):
            if report is not None:
                report(f"compiling {i + 1} of {len(tasks)} ({time.monotonic() - started:.0f} s so far): {name}")
            compile_()
        return len(tasks)

    def _config(self, room: int, samples: int, options: dict[str, Any]) -> lm.SamplingConfig:
        return lm.SamplingConfig(room, samples=samples, stop_tokens=self._stop_tokens, **options)

    def _note(self, kind: str, shape: tuple[int, ...]) -> None:
        if (kind, *shape) not in self._shapes:
            self._shapes.add((kind, *shape))
            log.info("first use of the program for %s of the shape %s", kind, "x".join(map(str, shape)))

    def _tasks(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """A description and a compilation of each program of the ladder.

        The programs are lowered for the types that a request would give them, so that it finds them compiled; an
        argument that is left out is another program than the same one as None."""
        model, variables, ladder = self.model, self.variables, self.ladder
        read: dict[tuple[int, int], Any] = {}
        for rows, prompt in ladder.reads():
            prompts = _int32(rows, prompt), _int32(rows)
            read[rows, prompt] = self._placed(jax.eval_shape(partial(read_prompts, model), variables, *prompts))
            yield _task(f"{rows} x prompts of {prompt} tokens", _read, model, variables, *prompts, None)
        for rows, prompt in ladder.reads():
            for length in ladder.lengths[ladder.lengths.index(prompt) + 1 :]:
                yield _task(f"{rows} x prompts from {prompt} to {length} tokens", _widen, read[rows, prompt][1], length)
        for rows, samples, length, room in ladder.answers():
            traced = {name: np.full(rows, value) for name, value in _typed(NEUTRAL).items()}
            fixed, traced = self._config(room, samples, traced).split()
            logits, cache = read[rows, length]
            keys = jax.eval_shape(make_keys, *np.zeros((2, rows), np.uint32))
            inputs = None, _int32(rows, length), _int32(rows), keys, logits, cache
            state = self._placed(jax.eval_shape(partial(start, model, fixed), traced, *inputs))
            name = f"{rows} x {samples} answers of {room} tokens"
            if room < length:
                name += f" after prompts of {length}"
            yield _task(f"{name}: the first token", _start, model, fixed, traced, *inputs, None)
            yield _task(name, _advance, model, fixed, variables, traced, None, state, CHECK_INTERVAL)
            for fewer in ladder.fewer(rows, samples):
                yield _task(f"{fewer} of {name}", _keep, state, _int32(fewer))
        for rows, prompt, count, columns in ladder.scores():
            candidates = _int32(count), _int32(count, columns), _int32(count)
            name = f"{count} candidates of {columns} tokens after {rows} x prompts of {prompt}"
            yield _task(name, _score, model, variables, *read[rows, prompt], *candidates)

    def _placed(self, tree: Any) -> Any:
        """Abstract arrays that are committed to the weights' device if the weights are."""
        leaf = jax.tree.leaves(self.variables)[0]
        if not (isinstance(leaf, jax.Array) and leaf.committed and len(leaf.devices()) == 1):
            return tree
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=leaf.sharding), tree)


def _task(name: str, program: Any, *args: Any) -> tuple[str, Callable[[], Any]]:
    return name, lambda: program.lower(*args).compile()


def _size(prefix: Prefix | None) -> tuple[int, ...]:
    return () if prefix is None else (prefix.size,)


def _int32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def _typed(options: dict[str, Any]) -> dict[str, Any]:
    """Options as the programs take them: `top_k` int32, the others float32."""
    return {name: np.asarray(value, np.int32 if name == "top_k" else np.float32) for name, value in options.items()}


def per_row(options: Sequence[dict[str, Any]], rows: int) -> dict[str, np.ndarray]:
    """The options of each request as one array `[rows]` for each of `NEUTRAL`; further rows are greedy, which is the
    cheapest."""
    spare = [NEUTRAL | {"temperature": 0.0}] * (rows - len(options))
    return _typed({name: [row[name] for row in (*options, *spare)] for name in NEUTRAL})


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
def make_keys(seeds: jax.Array, rows: jax.Array) -> jax.Array:
    """Each row's key: `fold_in(key(seed), row)`, as in `lm.generate` for a batch under one key."""
    return jax.vmap(lambda seed, row: jax.random.fold_in(jax.random.key(seed), row))(seeds, rows)


_read = jax.jit(read_prompts, static_argnums=0)
_read_prefix = jax.jit(read_prefix, static_argnums=0)
_start = jax.jit(start, static_argnums=(0, 1))
_advance = jax.jit(advance, static_argnums=(0, 1), donate_argnums=5)
_keep = jax.jit(State.rows)


@partial(jax.jit, static_argnums=1)
def _widen(cache: lm.Cache, capacity: int) -> lm.Cache:
    """A cache of prompts with a larger capacity."""
    padding = capacity - cache.capacity
    keys, values = (jnp.pad(x, ((0, 0), (0, 0), (0, padding), (0, 0), (0, 0))) for x in (cache.keys, cache.values))
    positions = jnp.pad(cache.positions, ((0, 0), (0, padding)), constant_values=-1)
    return dataclasses.replace(cache, keys=keys, values=values, positions=positions)


@partial(jax.jit, static_argnums=0)
def _score(
    model: lm.Llama,
    variables: Any,
    logits: jax.Array,
    cache: lm.Cache,
    owners: jax.Array,
    candidates: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    columns = candidates.shape[1]
    wide = _widen(cache, cache.capacity + columns)
    repeated = lm.Cache(wide.keys[:, owners], wide.values[:, owners], wide.positions[owners], wide.index)
    output: Any = model.apply(variables, candidates, lengths=counts, cache=repeated)
    logits = jnp.concatenate([logits[owners], output.logits[:, :-1]], axis=1)
    chosen = jnp.take_along_axis(logits, candidates[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


# --- shapes of compiled programs: few batch sizes and lengths -------------------------------------------------------


NARROWEST = 64
"""Smallest padded length of prompts and answers, in tokens."""
SHORTEST = 8
"""Smallest padded length of candidates to score, in tokens."""
PIECE = 1024
"""Tokens of prompts, and of candidates, in one piece of scoring: other requests run between two pieces."""
LONGEST_WARM = 64
"""Candidates up to this length, in tokens, are compiled by `Ladder.scores`."""


def power(number: int, base: int) -> int:
    """The least power of a base that is at least a number."""
    result = 1
    while result < number:
        result *= base
    return result


def width(tokens: int, limit: int) -> int:
    """The padded length for a number of tokens: a power of two of at least `NARROWEST`, or the limit."""
    return min(max(power(tokens, 2), NARROWEST), limit)


@dataclass(frozen=True)
class Ladder:
    """Batch sizes are powers of 4 up to the largest; lengths are powers of 2 from 64 up to the context.

    A prompt is padded to a length of its own, and computed in a program of that length. Its keys and values are then
    padded to the length of the answer, or the answer to that of the prompt, whichever is longer: so the program that
    writes the answer has one length, `cache`, and not two. Only several answers to a prompt have a length of their own,
    of powers of 4, because their keys and values need memory once per answer.
    """

    context: int
    """Maximum tokens of prompt and answer together."""
    max_batch: int
    """Maximum number of continuations, or of candidates, in a batch."""

    def length(self, tokens: int) -> int:
        """The padded length of a prompt or an answer."""
        return width(tokens, self.context)

    def samples(self, n: int) -> int:
        """The padded number of continuations per prompt."""
        return min(power(n, 4), self.max_batch)

    def rows(self, count: int, samples: int = 1) -> int:
        """The padded number of prompts that have so many continuations each."""
        return min(power(count, 4), max(1, self.max_batch // samples))

    def fewer(self, rows: int, samples: int = 1) -> list[int]:
        """The padded numbers of prompts below a padded number."""
        return [n for n in _distinct(lambda k: self.rows(k, samples), rows) if n < rows]

    def room(self, tokens: int, samples: int, cache: int) -> int:
        """The padded length of an answer of a number of tokens, one of `samples` to a prompt of the length `cache`."""
        return cache if samples == 1 else min(NARROWEST * power(-(-tokens // NARROWEST), 4), cache)

    def columns(self, tokens: int) -> int:
        """The padded length of candidates."""
        return min(max(power(tokens, 8), SHORTEST), max(self.context, SHORTEST))

    def fit(self, width: int) -> int:
        """The maximum number of rows of a padded length in a piece of scoring."""
        return max(1, min(self.max_batch, PIECE // width))

    def piece(self, count: int, width: int) -> int:
        """The padded number of rows of a piece of scoring."""
        return min(power(count, 4), self.fit(width))

    @property
    def lengths(self) -> list[int]:
        """All padded lengths of prompts and answers."""
        return _distinct(self.length, self.context)

    def reads(self) -> list[tuple[int, int]]:
        """`(rows, prompt)`: the shapes of prompts."""
        shapes = {(rows, length) for rows, _ in self._batches() for length in self.lengths}
        shapes |= {(rows, prompt) for rows, prompt, _, _ in self.scores()}
        return sorted(shapes, key=lambda shape: (shape[1], shape[0]))

    def answers(self) -> list[tuple[int, int, int, int]]:
        """`(rows, samples, cache, room)`: the shapes of answers."""
        return [
            (rows, samples, cache, room)
            for cache in self.lengths
            for rows, samples in self._batches()
            for room in _distinct(lambda k, n=samples, c=cache: self.room(k, n, c), cache)
        ]

    def scores(self) -> list[tuple[int, int, int, int]]:
        """`(rows, prompt, candidates, columns)`: the shapes of scoring, for candidates up to `LONGEST_WARM` tokens."""
        shapes = []
        for prompt in self.lengths:
            for columns in _distinct(self.columns, min(LONGEST_WARM, self.context)):
                for count in _distinct(lambda k, columns=columns: self.piece(k, columns), self.fit(columns)):
                    sizes = _distinct(lambda k, prompt=prompt: self.piece(k, prompt), min(count, self.fit(prompt)))
                    shapes += [(rows, prompt, count, columns) for rows in sizes]
        return shapes

    def _batches(self) -> Iterator[tuple[int, int]]:
        for samples in _distinct(self.samples, self.max_batch):
            for rows in _distinct(lambda k, n=samples: self.rows(k, n), max(1, self.max_batch // samples)):
                yield rows, samples


def _distinct(rung, highest: int) -> list[int]:
    """The values of a rung for 1, 2, ... up to the highest, each once."""
    values, number = [], 1
    while number <= highest:
        values.append(rung(number))
        number = values[-1] + 1
    return values
