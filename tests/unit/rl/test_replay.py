"""The replay buffer: against a deque and plain loops, by hand, by frequencies, and over eight devices."""

from __future__ import annotations

import functools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.replay import Priorities, PriorityTree, Replay, descend_tree, importance_weights


def items(*numbers):
    """Items whose leaves all hold the same number."""
    n = np.array(numbers)
    return {
        "a": np.asarray(n, np.float32),
        "b": (np.asarray(np.stack([n, -n], axis=-1), np.int16), np.asarray(n % 2 == 0)),
    }


ITEM = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), items(0))


def held(buffer):
    """The numbers of the items, oldest first; every leaf must agree."""
    size, capacity = int(buffer.size), buffer.items["a"].shape[0]
    order = (int(buffer.next) - size + np.arange(size)) % capacity
    a, (b, even) = (jax.tree.map(lambda x: np.asarray(x)[order], buffer.items[name]) for name in ("a", "b"))
    np.testing.assert_array_equal(b, np.stack([a, -a], axis=-1))
    np.testing.assert_array_equal(even, a % 2 == 0)
    return a.tolist()


def test_the_newest_takes_the_place_of_the_oldest():
    memory = Replay(5)
    add = jax.jit(memory.add)
    buffer = add(memory.init(ITEM), items(0, 1, 2))
    assert held(buffer) == [0, 1, 2] and (int(buffer.next), int(buffer.size)) == (3, 3)
    buffer = add(buffer, items(3, 4, 5, 6))
    np.testing.assert_array_equal(buffer.items["a"], [5, 6, 2, 3, 4])
    assert held(buffer) == [2, 3, 4, 5, 6] and (int(buffer.next), int(buffer.size)) == (2, 5)
    assert jax.tree.map(lambda x: x.dtype, buffer.items) == jax.tree.map(lambda x: x.dtype, ITEM)


def test_it_holds_what_a_deque_holds():
    memory, oracle = Replay(7), deque(maxlen=7)
    buffer, add = memory.init(ITEM), jax.jit(memory.add)
    count = 0
    for n in np.random.default_rng(0).choice([1, 3, 7], 20):
        numbers = range(count, count + n)
        count += n
        buffer = add(buffer, items(*numbers))
        oracle.extend(numbers)
        assert held(buffer) == list(oracle)


def test_samples_are_uniform_over_what_is_held():
    memory = Replay(10)
    buffer = jax.jit(memory.add)(memory.init(ITEM), items(*range(6)))
    draws = 60_000
    sample = jax.jit(lambda buffer, key: memory.get(buffer, memory.draw(buffer, key, draws).index))
    found = sample(buffer, jax.random.key(0))
    numbers = np.asarray(found["a"]).astype(int)
    np.testing.assert_array_equal(found["b"][0][:, 1], -numbers)  # leaves of one item stay together
    counts = np.bincount(numbers, minlength=10)
    assert counts[6:].sum() == 0, "an empty place was sampled"
    deviation = np.sqrt(draws / 6 * 5 / 6)
    assert np.abs(counts[:6] - draws / 6).max() < 4 * deviation
    # neighbours in the batch are independent: as often equal as chance has it
    assert np.mean(numbers[1:] == numbers[:-1]) == pytest.approx(1 / 6, abs=4 * np.sqrt(5 / 36 / draws))
    again, other = sample(buffer, jax.random.key(0)), sample(buffer, jax.random.key(1))
    np.testing.assert_array_equal(again["a"], found["a"])
    assert np.any(np.asarray(other["a"]) != np.asarray(found["a"]))


def test_a_full_memory_is_sampled_whole():
    memory = Replay(4)
    add = jax.jit(memory.add)
    buffer = add(add(memory.init(ITEM), items(0, 1, 2)), items(3, 4, 5))
    drawn = jax.jit(memory.draw, static_argnums=2)(buffer, jax.random.key(0), 200)
    assert set(np.asarray(memory.get(buffer, drawn.index)["a"]).tolist()) == {2.0, 3.0, 4.0, 5.0}


def test_an_empty_memory_gives_zeros():
    memory = Replay(3)
    drawn = jax.jit(memory.draw, static_argnums=2)(memory.init(ITEM), jax.random.key(0), 2)
    assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves(memory.get(memory.init(ITEM), drawn.index)))


def test_bad_input():
    with pytest.raises(ValueError, match="capacity.*0.*1"):
        Replay(0)
    memory = Replay(2)
    buffer = memory.init(ITEM)
    with pytest.raises(ValueError, match="3 items.*2"):
        memory.add(buffer, items(0, 1, 2))
    wrong = {**items(0), "a": jnp.zeros((1, 4))}
    with pytest.raises(ValueError, match=r"float32\[1, 4\].*float32\[1\]"):
        memory.add(buffer, wrong)
    with pytest.raises(ValueError, match="int32"):
        memory.add(buffer, {**items(0), "a": jnp.zeros(1, jnp.int32)})


# --- steps in their order ---------------------------------------------------------------------------------------------

ROWS, LENGTH = 3, 8


def history(steps, seed=0):
    """Steps of three environments, leaves `[steps, 3]`; `obs` and `next_obs` say which step it is, of which row."""
    rng = np.random.default_rng(seed)
    obs = np.arange(steps)[:, None] * 10 + np.arange(ROWS)
    ends = rng.random((2, steps, ROWS)) < 0.2
    return Transitions(
        obs={"step": np.asarray(obs, np.int32)},
        action=np.asarray(rng.integers(0, 4, (steps, ROWS)), np.int32),
        reward=np.asarray(rng.integers(-5, 5, (steps, ROWS)), np.float32),
        next_obs={"step": np.asarray(obs + 1000, np.int32)},
        terminated=ends[0],
        truncated=ends[1],
    )


def first_of(steps):
    return jax.tree.map(lambda x: x[0, 0], steps)


ORDERED = Replay(ROWS * LENGTH, rows=ROWS)


@functools.cache
def program(memory, name, *static):
    """A compiled method of a memory, for all tests."""
    return jax.jit(getattr(memory, name), static_argnums=static)


@functools.cache
def filled(steps, chunk):
    """A memory to which steps were added in chunks, and the history."""
    past = history(steps)
    buffer, add = ORDERED.init(first_of(past)), program(ORDERED, "add")
    for t in range(0, steps, chunk):
        buffer = add(buffer, jax.tree.map(lambda x, t=t: x[t : t + chunk], past))
    return buffer, past


def episode_from(past, steps, index, at_most):
    """The steps (time, row) of an episode from a place of the memory on, by a plain loop over the history."""
    slot, row = divmod(int(index), ROWS)
    t = max(t for t in range(steps) if t % LENGTH == slot)  # the last that was written there
    taken = []
    while t < steps and len(taken) < at_most:
        taken.append((t, row))
        if past.terminated[t, row] or past.truncated[t, row]:
            break
        t += 1
    return tuple(zip(*taken))


@pytest.mark.parametrize("steps", [6, 21])  # not yet full, and wrapped around in the middle
def test_n_steps_against_a_plain_loop(steps):
    buffer, past = filled(steps, 3)
    index = np.arange(int(buffer.size))
    for n in (1, 3, LENGTH):
        found, discount = jax.device_get(program(ORDERED, "n_step", 2)(buffer, index, n, 0.5))
        lengths = set()
        for i in range(int(buffer.size)):
            taken = episode_from(past, steps, i, n)
            first, last = (tuple(np.array(taken)[:, k]) for k in (0, -1))
            rewards = past.reward[taken]
            lengths.add(len(rewards))
            assert found.reward[i] == sum(0.5**k * r for k, r in enumerate(rewards))  # halves: exact in binary
            assert discount[i] == 0.5 ** len(rewards)
            assert found.obs["step"][i] == past.obs["step"][first] and found.action[i] == past.action[first]
            assert found.next_obs["step"][i] == past.next_obs["step"][last]
            assert (found.terminated[i], found.truncated[i]) == (past.terminated[last], past.truncated[last])
        assert lengths == {1} if n == 1 else len(lengths) > 1


def test_an_n_step_return_by_hand():
    """Five steps: 1, 2, cut by a time-out; 4, 8, ended; 16 and nothing yet behind it."""
    memory = Replay(5, rows=1)
    column = lambda *x, dtype=np.float32: np.asarray(x, dtype)[:, None]  # noqa: E731
    steps = Transitions(
        obs=column(0, 1, 10, 11, 20),
        action=column(0, 0, 0, 0, 0, dtype=np.int32),
        reward=column(1, 2, 4, 8, 16),
        next_obs=column(1, 2, 11, 12, 21),  # 2 is the observation before the reset to 10
        terminated=column(0, 0, 0, 1, 0, dtype=bool),
        truncated=column(0, 1, 0, 0, 0, dtype=bool),
    )
    buffer = program(memory, "add")(memory.init(first_of(steps)), steps)
    found, discount = program(memory, "n_step", 2)(buffer, np.arange(5), 3, 0.9)
    np.testing.assert_allclose(found.reward, [1 + 0.9 * 2, 2, 4 + 0.9 * 8, 8, 16], rtol=1e-6)
    np.testing.assert_allclose(discount, [0.81, 0.9, 0.81, 0.9, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(found.next_obs, [2, 2, 12, 12, 21])
    np.testing.assert_array_equal(found.terminated, [False, False, True, True, False])
    np.testing.assert_array_equal(found.truncated, [True, True, False, False, False])


def test_rows_and_a_flat_memory_draw_the_same():
    """A memory of rows is the flat one, seen as time x rows: the same key gives the same items, bit for bit."""
    past = history(5)
    flat = Replay(ROWS * LENGTH)
    buffer = program(ORDERED, "add")(ORDERED.init(first_of(past)), past)
    plain = program(flat, "add")(flat.init(first_of(past)), jax.tree.map(lambda x: x.reshape(-1), past))
    assert int(buffer.size) == int(plain.size) == 15
    drawn = [program(memory, "draw", 2)(x, jax.random.key(3), 50) for memory, x in ((ORDERED, buffer), (flat, plain))]
    both = program(ORDERED, "get")(buffer, drawn[0].index), program(flat, "get")(plain, drawn[1].index)
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_can_sample():
    buffer = ORDERED.init(first_of(history(1)))
    assert not ORDERED.can_sample(buffer)
    buffer = program(ORDERED, "add")(buffer, history(2))
    assert ORDERED.can_sample(buffer) and ORDERED.can_sample(buffer, 6) and not ORDERED.can_sample(buffer, 7)


def test_bad_rows():
    with pytest.raises(ValueError, match="10 items.*among 3.*3"):
        Replay(10, rows=3)
    flat = Replay(9)
    buffer = flat.init(first_of(history(1)))
    with pytest.raises(ValueError, match="2-step"):
        flat.n_step(buffer, jnp.zeros(1, jnp.int32), 2, 0.9)
    buffer = ORDERED.init(first_of(history(1)))
    with pytest.raises(ValueError, match="9-step.*8 steps"):
        ORDERED.n_step(buffer, jnp.zeros(1, jnp.int32), 9, 0.9)
    with pytest.raises(ValueError, match="= 0 steps.*1"):
        ORDERED.n_step(buffer, jnp.zeros(1, jnp.int32), 0, 0.9)
    with pytest.raises(ValueError, match="9 steps.*3 environments"):
        ORDERED.add(buffer, history(9))


# --- priorities -------------------------------------------------------------------------------------------------------


def test_priorities_against_numpy():
    """Random changes: what is drawn is what the cumulative sum says, and places without priority are never drawn."""
    rng = np.random.default_rng(0)
    for capacity in (16, 5000):
        table = Priorities(capacity)
        tree, oracle, change = table.init(), np.zeros(capacity), jax.jit(table.set)
        for size in (capacity, capacity // 2 + 1):
            index = rng.choice(capacity, size, replace=False)
            value = rng.integers(0, 4, size)  # integers: their sums are exact
            tree, oracle[index] = change(tree, jnp.asarray(index), jnp.asarray(value, jnp.float32)), value
        count, total, ends = 64, oracle.sum(), np.cumsum(oracle)
        found, probability = jax.jit(table.sample, static_argnums=2)(tree, jax.random.key(1), count)
        ranges = np.arange(count + 1) / count * total
        assert np.all(ends[found] > ranges[:-1] - 0.01) and np.all((ends - oracle)[found] < ranges[1:] + 0.01)
        assert np.all(oracle[np.asarray(found)] > 0)
        np.testing.assert_allclose(probability, oracle[np.asarray(found)] / total, rtol=1e-6)
        assert float(tree.highest) == 3


TABLE, DRAWS = Priorities(2304), 2**15
draw_between = jax.jit(TABLE.draw_between)


def tree_of(priorities):
    levels = [np.asarray(priorities, np.float32).reshape(-1, 16)]
    while len(levels[-1]) > 1:
        sums = levels[-1].sum(axis=1)
        levels.append(np.pad(sums, (0, -len(sums) % 16)).reshape(-1, 16))
    return PriorityTree(tuple(map(jnp.asarray, levels)), jnp.float32(1))


def test_small_priorities_behind_a_large_sum_are_drawn_evenly():
    """In float32, points behind a million are 1/16 apart: of places of 3/64, a quarter would never be drawn."""
    priorities = np.full(2304, 3 / 64)  # whose sums are exact, at a million too
    priorities[:256] = 1e6 * (np.arange(256) == 0)
    low, high = (jnp.full(DRAWS, x, jnp.float32) for x in (1e6, 1e6 + 96))
    found, priority = draw_between(tree_of(priorities), jax.random.key(0), low, high)
    counts = np.bincount(found, minlength=2304)[256:]
    assert counts.sum() == DRAWS and np.all(np.asarray(priority) == 3 / 64)
    # Pearson's statistic, of mean 2047 and deviation 64
    assert abs(np.sum((counts - DRAWS / 2048) ** 2) / (DRAWS / 2048) - 2047) < 5 * 64


def test_draws_have_their_probabilities():
    """Ranges that cut through places and nodes: each place is drawn in proportion to its part of the range."""
    priorities = np.zeros(2304)
    priorities[np.arange(0, 2304, 58)] = np.random.default_rng(2).exponential(size=40)
    total, ranges = priorities.sum(), np.linspace(0, 1, 9)
    low, high = (jnp.asarray(np.repeat(x * total, DRAWS // 8), jnp.float32) for x in (ranges[:-1], ranges[1:]))
    found, priority = draw_between(tree_of(priorities), jax.random.key(4), low, high)
    np.testing.assert_allclose(priority, priorities[np.asarray(found)], rtol=1e-6)
    ends = np.cumsum(priorities)
    for i, rows in enumerate(np.asarray(found).reshape(8, -1)):
        part = np.clip(ends, ranges[i] * total, ranges[i + 1] * total)
        expected = np.diff(part, prepend=ranges[i] * total) * 8 / total * DRAWS / 8
        counts, here = np.bincount(rows, minlength=2304), expected > 1
        assert counts[here].sum() >= len(rows) - 9
        statistic = np.sum((counts - expected)[here] ** 2 / expected[here])
        assert statistic < here.sum() + 5 * (2 * here.sum()) ** 0.5


def test_the_last_place_with_a_priority_takes_what_rounding_puts_behind_it():
    low, offset = jnp.asarray([0.0, 1.0, 7.0]), jnp.asarray([0.5, 2.0, 0.0])
    weights = jnp.zeros((3, 16)).at[:, 2].set(1.0).at[:, 5].set(2.0)
    child, start, weight = jax.jit(descend_tree)(weights, low, offset)
    np.testing.assert_array_equal(child, [2, 5, 5])
    np.testing.assert_allclose(start, [0, 1, 1])
    np.testing.assert_allclose(weight, [1, 2, 2])


def test_a_prioritized_memory():
    memory = Replay(6, rows=2, prioritized=True)
    steps = jax.tree.map(lambda x: x[:, :2], history(2))
    add, draw = program(memory, "add"), program(memory, "draw_prioritized", 2)
    buffer = add(memory.init(first_of(steps)), steps)
    drawn = draw(buffer, jax.random.key(0), 1600)
    assert np.bincount(drawn.index, minlength=6).tolist() == [
        400,
        400,
        400,
        400,
        0,
        0,
    ]  # new: equal priorities, one range each
    np.testing.assert_allclose(drawn.probability, 0.25)
    # 1 : 3 : 0 : 4; place 3 comes twice, and keeps the higher priority
    prioritize = program(memory, "prioritize")
    buffer = prioritize(buffer, np.array([0, 1, 2, 3, 3]), np.array([1.0, 3.0, 0.0, 4.0, 2.0], np.float32))
    drawn = draw(buffer, jax.random.key(0), 1600)
    np.testing.assert_allclose(np.bincount(drawn.index, minlength=6), [200, 600, 0, 800, 0, 0], atol=1)
    np.testing.assert_allclose(
        program(memory, "get")(buffer, drawn.index).obs["step"], np.array([0, 1, 10, 11, 0, 0])[drawn.index]
    )
    # new items get the highest priority so far, 4, also where they take the place of others: 1 : 3 | 0 : 4 | 4 : 4
    buffer = add(buffer, jax.tree.map(lambda x: x[:1], steps))
    drawn = draw(buffer, jax.random.key(0), 1600)
    np.testing.assert_allclose(np.bincount(drawn.index, minlength=6), [100, 300, 0, 400, 400, 400], atol=1)
    # weights by hand: N = 6, P = 1/16, 3/16, 4/16 -> (N P)^-0.5 = 1.63, 0.943, 0.816, over the largest
    weights = importance_weights(jnp.array([1 / 16, 3 / 16, 4 / 16]), buffer.size, 0.5)
    np.testing.assert_allclose(weights, [1, 3**-0.5, 0.5], rtol=1e-6)


# --- many devices -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eight_devices_hold_the_rows_and_draw_the_same():
    mesh = jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3)
    memory = Replay(16 * 32, rows=16, prioritized=True)
    rng = np.random.default_rng(0)
    steps = Transitions(
        obs=jnp.asarray(rng.normal(size=(40, 16, 3)), jnp.float32),
        action=jnp.asarray(rng.integers(0, 4, (40, 16)), jnp.int32),
        reward=jnp.asarray(rng.normal(size=(40, 16)), jnp.float32),
        next_obs=jnp.asarray(rng.normal(size=(40, 16, 3)), jnp.float32),
        terminated=jnp.asarray(rng.random((40, 16)) < 0.1),
        truncated=jnp.asarray(rng.random((40, 16)) < 0.1),
    )

    def sharding(axis):
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, ("data", "fsdp")))

    whole = NamedSharding(mesh, PartitionSpec())

    def run(place, copied):
        def program(steps, key):
            buffer = place(memory.init(first_of(steps)))
            for half in (0, 20):
                buffer = place(memory.add(buffer, jax.tree.map(lambda x, t=half: x[t : t + 20], steps)))
            buffer = place(memory.prioritize(buffer, jnp.arange(100), 0.1 + jnp.arange(100.0) / 7))
            index = copied(memory.draw_prioritized(buffer, key, 64).index)
            return buffer, index, memory.n_step(buffer, index, 3, 0.9)

        return jax.jit(program)

    def placed(buffer):
        return memory.shard(
            buffer,
            lambda tree, axis: jax.lax.with_sharding_constraint(tree, sharding(axis)),
            lambda tree: jax.lax.with_sharding_constraint(tree, whole),
        )

    key = jax.random.key(0)
    one = run(lambda buffer: buffer, lambda x: x)(steps, key)
    split = jax.device_put(steps, sharding(1))
    program = run(placed, lambda x: jax.lax.with_sharding_constraint(x, whole)).lower(split, key).compile()
    eight = program(split, key)
    for leaf in jax.tree.leaves(eight[0].items):
        assert leaf.sharding.is_equivalent_to(sharding(1), leaf.ndim)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight)):
        np.testing.assert_array_equal(a, b)
    # no device ever holds the whole memory: what is gathered is as large as a batch
    text = program.as_text()
    assert "all-reduce" in text and "f32[32,16,3]" not in text
