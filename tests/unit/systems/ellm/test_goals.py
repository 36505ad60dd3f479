"""The table of suggestions against a dict, strings of goals, masks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm.hashed import HashedEncoder
from llmrl_jax.systems.ellm import goals as g


def keys(*numbers, size):
    return jnp.asarray(np.array([*numbers, *[g.NO_KEY] * (size - len(numbers))], np.uint32))


def test_the_table_is_a_dict():
    """Random insertions in small groups, looked up after each."""
    rng = np.random.default_rng(0)
    table, known = g.start_answers(24, 2, 4), {}
    insert, find, ask_next = jax.jit(g.insert), jax.jit(g.find), jax.jit(g.ask_next)
    universe = rng.integers(0, 2**32 - 1, 40, dtype=np.uint32)
    for _ in range(12):
        met = rng.choice(universe, 4, replace=False)
        table = ask_next(table, jnp.sort(jnp.asarray(met)))
        asked = [int(k) for k in np.asarray(table.pending) if k != g.NO_KEY]
        room = 24 - len(known)
        wanted = sorted(int(k) for k in met if int(k) not in known)
        assert sorted(asked) == wanted[:room]
        answers = np.array([[int(k) % 7, -1] for k in np.asarray(table.pending)], np.int32)
        table = insert(table, table.pending, jnp.asarray(answers))
        known |= {k: k % 7 for k in asked}
        place, found = find(table, jnp.asarray(universe))
        np.testing.assert_array_equal(np.asarray(found), [int(k) in known for k in universe])
        for k, at, there in zip(universe, np.asarray(place), np.asarray(found)):
            assert not there or int(table.goals[at, 0]) == known[int(k)]
    assert len(known) == 24  # it is full, and what had no place is counted
    lost = int(table.counts[g.COUNTS.index("no_place_for_states")])
    assert lost > 0
    assert not bool(find(table, jnp.uint32(g.NO_KEY))[1])


def test_distinct_keys_by_hand():
    found, lost = jax.jit(g.distinct, static_argnums=1)(keys(7, 3, 7, 9, 3, 1, size=8), 3)
    assert np.asarray(found).tolist() == [1, 3, 7] and int(lost) == 1
    found, lost = jax.jit(g.distinct, static_argnums=1)(keys(5, 5, size=3), 6)
    assert np.asarray(found).tolist() == [5, *[g.NO_KEY] * 5] and int(lost) == 0


def test_goals_begin_with_captions():
    captions = ("chop tree", "eat cow", "attack cow")
    made = g.start_goals(captions, (("attack cow", "eat cow"), ("no", "such")), HashedEncoder(), 5)
    assert g.read_names(made.names, int(made.count)) == list(captions)
    np.testing.assert_allclose(np.diag(made.similarity[:, :3]), 1.0, atol=1e-6)
    vectors = HashedEncoder().encode_texts(captions)
    np.testing.assert_allclose(made.similarity[1, 2], vectors[1] @ vectors[2], atol=1e-6)
    assert np.asarray(made.twin).tolist() == [-1, 2, 1, -1, -1]
    assert np.asarray(made.nearest[:3]).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="max_goals is 2.*raise it"):
        g.start_goals(captions, (), HashedEncoder(), 2)


def test_names_survive_as_bytes():
    names = ["chop tree", "trouver l'épée"]
    rows = np.stack([g.name_bytes(name) for name in names])
    assert g.read_names(rows, 2) == names
    with pytest.raises(ValueError, match="65 bytes; at most 64"):
        g.name_bytes("x" * 65)


def test_packed_masks_come_back():
    bits = np.random.default_rng(1).random((3, 139)) < 0.5
    packed = g.packed(jnp.asarray(bits))
    assert packed.shape == (3, 18) and packed.dtype == jnp.uint8
    np.testing.assert_array_equal(g.unpacked(packed, 139), bits)
