"""What a compiled program must not contain, in terms of `hlo.read`.

The checks know arrays by their sizes: `rows`, the rows of the batch, is to have a prime factor that no size of the
model has, and `length`, the tokens of a row, is to be a number of which no other size of the program is a multiple.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from llmrl_jax.workflows.memory.hlo import Collective, Contents, Kernel, arrays


Shape = tuple[int, ...]


def decoding_loops(contents: Contents) -> set[str]:
    """The loops over tokens in which a language model decodes, and over layers inside them."""
    return {k.loop for k in contents.kernels if k.loop and "Llama.decode" in k.source}


def weight_copies(contents: Contents, rows: int, size: int) -> list[Kernel]:
    """Kernels of decoding loops with a result of at least `size` numbers that are not numbers for each of the rows:
    only weights are so large, and products read them where they are."""
    loops = decoding_loops(contents)

    def copies(kernel: Kernel) -> bool:
        sizes = [math.prod(shape) for _, shape, _ in arrays(kernel.result)]
        return kernel.loop in loops and any(n >= size and n % rows for n in sizes)

    return [k for k in contents.kernels if copies(k)]


def score_arrays(contents: Contents, length: int) -> list[Kernel]:
    """Kernels that write an array with a number for each pair of tokens of a row."""

    def pairs(shape: Shape) -> bool:
        return sum(n % length == 0 for n in shape) > 1

    return [k for k in contents.kernels if any(pairs(shape) for _, shape, _ in arrays(k.result))]


def activations(contents: Contents, rows: int, width: int) -> list[Collective]:
    """Exchanges of floating-point arrays with at least `width` numbers for each of the rows, or for each of a device's
    rows if a size of the model is a multiple of the number of devices. Only an embedding that is split over devices
    may send what it has looked up."""
    return [
        c
        for c in contents.collectives
        if "Llama.embed" not in c.source and any(k[0] in "bf" and _of_rows(s, rows, width) for k, s in _shapes(c))
    ]


def repeated_rows(contents: Contents, rows: int) -> list[Collective]:
    """Exchanges of arrays with numbers for each of the rows inside the loops of an update, over steps, tokens and
    gradient steps. What an update has recorded is sent once, to be shuffled; only an embedding that is split over
    devices is looked up by all of them."""
    return [
        c
        for c in contents.collectives
        if " > " in c.loop and "Llama.embed" not in c.source and any(_of_rows(s, rows, 1) for _, s in _shapes(c))
    ]


def gradient(contents: Contents) -> int:
    """The most numbers that the devices sum in one run of a loop inside the update, over gradient steps."""
    numbers: Counter[str] = Counter()
    for exchange in contents.collectives:
        if exchange.op == "all-reduce" and " > " in exchange.loop:
            numbers[exchange.loop] += sum(math.prod(shape) for _, shape in _shapes(exchange))
    return max(numbers.values(), default=0)


def _shapes(exchange: Collective) -> Iterator[tuple[str, Shape]]:
    return ((kind, shape) for kind, shape, _ in arrays(exchange.result))


def _of_rows(shape: Shape, rows: int, width: int) -> bool:
    size = math.prod(shape)
    return size >= rows * width and size % rows == 0
