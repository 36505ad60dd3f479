"""The replay memory: against a deque, by hand where it wraps, and by the frequencies of what it samples."""

from __future__ import annotations

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.rl.replay import Replay


def items(*numbers):
    """Items whose leaves all tell the same number."""
    n = np.array(numbers)
    return {
        "a": jnp.asarray(n, jnp.float32),
        "b": (jnp.asarray(np.stack([n, -n], axis=-1), jnp.int16), jnp.asarray(n % 2 == 0)),
    }


ITEM = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), items(0))


def held(ring):
    """The numbers of the items, oldest first; every leaf must agree."""
    size, capacity = int(ring.size), ring.items["a"].shape[0]
    order = (int(ring.next) - size + np.arange(size)) % capacity
    a, (b, even) = (jax.tree.map(lambda x: np.asarray(x)[order], ring.items[name]) for name in ("a", "b"))
    np.testing.assert_array_equal(b, np.stack([a, -a], axis=-1))
    np.testing.assert_array_equal(even, a % 2 == 0)
    return a.tolist()


def test_the_newest_takes_the_place_of_the_oldest():
    memory = Replay(5)
    ring = memory.add(memory.init(ITEM), items(0, 1, 2))
    assert held(ring) == [0, 1, 2] and (int(ring.next), int(ring.size)) == (3, 3)
    ring = memory.add(ring, items(3, 4, 5, 6))
    np.testing.assert_array_equal(ring.items["a"], [5, 6, 2, 3, 4])
    assert held(ring) == [2, 3, 4, 5, 6] and (int(ring.next), int(ring.size)) == (2, 5)
    assert jax.tree.map(lambda x: x.dtype, ring.items) == jax.tree.map(lambda x: x.dtype, ITEM)


def test_it_holds_what_a_deque_holds():
    memory, oracle = Replay(7), deque(maxlen=7)
    ring, add = memory.init(ITEM), jax.jit(memory.add)
    count = 0
    for n in np.random.default_rng(0).choice([1, 3, 7], 20):
        numbers = range(count, count + n)
        count += n
        ring = add(ring, items(*numbers))
        oracle.extend(numbers)
        assert held(ring) == list(oracle)


def test_samples_are_uniform_over_what_is_held():
    memory = Replay(10)
    ring = memory.add(memory.init(ITEM), items(*range(6)))
    draws = 60_000
    sample = jax.jit(lambda ring, key: memory.sample(ring, key, draws))
    found = sample(ring, jax.random.key(0))
    numbers = np.asarray(found["a"]).astype(int)
    np.testing.assert_array_equal(found["b"][0][:, 1], -numbers)  # leaves of one item stay together
    counts = np.bincount(numbers, minlength=10)
    assert counts[6:].sum() == 0, "an empty place was sampled"
    deviation = np.sqrt(draws / 6 * 5 / 6)
    assert np.abs(counts[:6] - draws / 6).max() < 4 * deviation
    # neighbours in the batch are independent: as often equal as chance has it
    assert np.mean(numbers[1:] == numbers[:-1]) == pytest.approx(1 / 6, abs=4 * np.sqrt(5 / 36 / draws))
    again, other = sample(ring, jax.random.key(0)), sample(ring, jax.random.key(1))
    np.testing.assert_array_equal(again["a"], found["a"])
    assert np.any(np.asarray(other["a"]) != np.asarray(found["a"]))


def test_a_full_memory_is_sampled_whole():
    memory = Replay(4)
    ring = memory.add(memory.add(memory.init(ITEM), items(0, 1, 2)), items(3, 4, 5))
    found = memory.sample(ring, jax.random.key(0), 200)
    assert set(np.asarray(found["a"]).tolist()) == {2.0, 3.0, 4.0, 5.0}


def test_an_empty_memory_gives_zeros():
    memory = Replay(3)
    found = memory.sample(memory.init(ITEM), jax.random.key(0), 2)
    assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves(found))


def test_bad_input():
    with pytest.raises(ValueError, match="a capacity of 0"):
        Replay(0)
    memory = Replay(2)
    ring = memory.init(ITEM)
    with pytest.raises(ValueError, match="3 items at once do not fit a replay memory of 2"):
        memory.add(ring, items(0, 1, 2))
    wrong = {**items(0), "a": jnp.zeros((1, 4))}
    with pytest.raises(ValueError, match=r"float32\[1, 4\] were added .* float32\[1\] is needed"):
        memory.add(ring, wrong)
    with pytest.raises(ValueError, match="items of int32"):
        memory.add(ring, {**items(0), "a": jnp.zeros(1, jnp.int32)})
