"""Recorded steps: conversions and statistics by hand, and files that give back what was written, or one clear error."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from llmrl_jax.data.columns import D4RL_NAMES, from_columns, to_columns
from llmrl_jax.data.parquet import read_parquet, write_parquet
from llmrl_jax.data.reading import read_arrays, read_data, write_arrays
from llmrl_jax.data.transitions import (
    DataError,
    Transitions,
    to_trajectories,
    to_transitions,
)


LENGTHS = (3, 1, 2)


def recorded(text=True):
    """Three episodes of 3, 1 and 2 steps; the first is cut, the second ends, the third does both at once."""
    rng = np.random.default_rng(0)
    n = sum(LENGTHS)
    image = rng.integers(0, 255, (n + 1, 2, 2, 3)).astype(np.uint8)
    inner = rng.normal(size=(n + 1, 4)).astype(np.float32)
    return Transitions(
        obs={"image": jnp.asarray(image[:-1]), "deep": {"x": jnp.asarray(inner[:-1])}},
        action=jnp.arange(n, dtype=jnp.int32),
        reward=jnp.asarray([1, 2, 3, 10, -1, 0.5], jnp.float32),
        next_obs={"image": jnp.asarray(image[1:]), "deep": {"x": jnp.asarray(inner[1:])}},
        terminated=jnp.asarray([0, 0, 0, 1, 0, 1], bool),
        truncated=jnp.asarray([0, 0, 1, 0, 0, 1], bool),
        text=jnp.asarray([2, 2, 0, 0, 1, 0], jnp.int32) if text else (),
        goal=jnp.asarray(rng.normal(size=(n, 2, 3)), jnp.float32),
    )


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


# --- conversions ------------------------------------------------------------------------------------------------------


def test_steps_as_episodes_and_back():
    data = recorded()
    episodes = to_trajectories(data, 4)
    assert len(data) == 6 and len(episodes) == 3 and episodes.length.tolist() == list(LENGTHS)
    np.testing.assert_array_equal(episodes.mask, [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
    np.testing.assert_array_equal(episodes.action, [[0, 1, 2, 0], [3, 0, 0, 0], [4, 5, 0, 0]])
    np.testing.assert_array_equal(episodes.obs["image"][2, 1], data.obs["image"][5])
    assert episodes.obs["image"].dtype == jnp.uint8 and not np.any(episodes.obs["image"][1, 1:])
    equal(to_transitions(episodes), data)
    equal(to_trajectories(data).reward, episodes.reward[:, :3])
    np.testing.assert_array_equal(episodes.take(jnp.array([2, 0])).length, [2, 3])


def test_episodes_that_are_not_whole():
    data = recorded()
    open_ended = data.replace(truncated=data.truncated.at[5].set(False), terminated=data.terminated.at[5].set(False))
    with pytest.raises(DataError, match="6 steps"):
        to_trajectories(open_ended)
    with pytest.raises(DataError, match="episode 0.*3 steps.*2"):
        to_trajectories(data, 2)
    episodes = to_trajectories(data)
    with pytest.raises(DataError, match="episode 2.*3 steps.*step 1.*2"):
        to_transitions(episodes.replace(length=jnp.array([3, 1, 3])))
    with pytest.raises(DataError, match="episode 0.*2 steps"):
        to_transitions(episodes.replace(length=jnp.array([2, 1, 2])))
    with pytest.raises(DataError, match="episode 1.*0.*1.*3"):
        to_transitions(episodes.replace(length=jnp.array([3, 0, 2])))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.npz", "folder", "data.parquet"])
def test_what_is_written_is_read_back(tmp_path, name):
    path = tmp_path / name
    write, read = (write_parquet, read_parquet) if name.endswith(".parquet") else (write_arrays, read_arrays)
    data = recorded()
    for _ in range(2):  # the second takes the place of the first
        write(path, data)
    equal(read(path), data)
    write(path, recorded(text=False))
    equal(read(path), recorded(text=False))
    assert [p.name for p in tmp_path.iterdir()] == [name]  # no draft is left
    episodes = to_trajectories(data, 4)
    write(path, episodes)
    equal(read(path), data if name.endswith(".parquet") else episodes)
    with pytest.raises(FileNotFoundError, match=f"'{name}'"):
        read(path.with_name(name.replace("d", "D")))


def test_parquet_has_typed_columns_and_one_row_a_step(tmp_path):
    write_parquet(tmp_path / "a.parquet", recorded())
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert table.column("episode").to_pylist() == [0, 0, 0, 1, 2, 2]
    assert table.column("step").to_pylist() == [0, 1, 2, 0, 0, 1]
    assert table.column("text").to_pylist() == [2, 2, 0, 0, 1, 0]
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["obs.image"].startswith("fixed_size_list<") and types["obs.image"].endswith("uint8>[12]")
    assert (types["reward"], types["terminated"], types["action"], types["text"]) == (
        "float", "bool", "int32", "int32",
    )  # fmt: skip
    facts = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0)
    assert {facts.column(i).compression for i in range(facts.num_columns)} == {"ZSTD"}


def test_files_of_others(tmp_path):
    """D4RL's names, wide types, strings and other columns that nothing reads; parquet with plain lists."""
    theirs = {
        "observations": np.arange(6.0).reshape(3, 2),
        "actions": np.array([5, 6, 7], np.int64),
        "rewards": np.array([0.5, 1, 2]),
        "next_observations": np.arange(6.0).reshape(3, 2) + 1,
        "terminals": np.array([False, True, False]),
        "timeouts": np.array([False, False, True]),
        "infos": np.zeros((7, 7)),
        "goal": np.array(["b", "a", "b"]),
    }
    np.savez(tmp_path / "theirs.npz", **theirs)
    table = pa.table({k: list(x) if x.ndim > 1 else x for k, x in theirs.items() if k != "infos"})
    pyarrow.parquet.write_table(table, tmp_path / "theirs.parquet")
    for data in (
        read_arrays(tmp_path / "theirs.npz", D4RL_NAMES),
        read_parquet(tmp_path / "theirs.parquet", D4RL_NAMES),
    ):
        assert (data.obs.dtype, data.action.dtype, data.reward.dtype) == (jnp.float32, jnp.int32, jnp.float32)
        np.testing.assert_array_equal(data.obs, theirs["observations"])
        assert data.goal == data.text == ()
    np.savez(tmp_path / "both.npz", **theirs, obs=theirs["observations"])
    with pytest.raises(DataError, match="'obs' twice.*'obs(ervations)?'"):
        read_arrays(tmp_path / "both.npz", D4RL_NAMES)


# --- bad data ---------------------------------------------------------------------------------------------------------


def changed(**columns):
    good = to_columns(recorded())
    return {k: x for k, x in {**good, **{k.replace("__", "."): x for k, x in columns.items()}}.items() if x is not None}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": None}, "no reward; it.*--data-names"),
        ({"reward": None, "rewards": np.zeros(6)}, "X.*'rewards'"),
        ({"terminated": None, "truncated": None}, "X .*terminated, truncated"),
        ({"action": np.zeros(5, np.int32)}, r"X.*\[5\].*\[6\]"),
        ({"reward": np.zeros((6, 1), np.float32)}, r"X.*\[6, 1\]; \[steps\]"),
        ({"terminated": np.zeros(6, np.int8)}, "X: terminated.*int8; bool"),
        ({"terminated": np.zeros((6, 1), bool)}, r"X.*\[6, 1\].*\[6\]"),
        ({"reward": np.zeros(6, np.int32)}, "X: reward.*int32; float32"),
        ({"reward": np.array([0, 0, np.nan, 0, 0, 0], np.float32)}, r"X: reward\[2\].*nan"),
        ({"reward": np.array([0, 0, 0, 0, 0, 1e300])}, r"X: reward\[5\].*inf"),
        ({"obs__deep__x": np.full((6, 4), np.inf, np.float32)}, r"X: obs.deep.x\[0, 0\].*inf"),
        ({"next_obs__image": None}, r"X: obs.image.*uint8\[6, 2, 2, 3\].*next_obs.image.*missing"),
        ({"next_obs__image": np.zeros((6, 2, 2), np.uint8)}, r"next_obs.image.*uint8\[6, 2, 2\]"),
        ({"obs": np.zeros((6, 2), np.float32)}, "X.*obs.deep.x beside"),
        ({"action": np.full(6, 2**40)}, "X.*numbers.*int32"),
        ({"action": np.array([[1], [2, 3], 4, 5, 6, 7], object)}, "X: action.*Python"),
        ({"action": np.array(list("abcdef"))}, "X: action.*<U1.*bool"),
    ],
)  # fmt: skip
def test_bad_columns(columns, message):
    with pytest.raises(DataError, match=message):
        from_columns(changed(**columns), "X")


def test_what_files_cannot_hold(tmp_path):
    none = {name: column[:0] for name, column in to_columns(recorded()).items()}
    with pytest.raises(DataError, match="X .*step.*1"):
        from_columns(none, "X")
    whole = recorded()
    with pytest.raises(DataError, match=r"key 'a\.b'"):
        to_columns(whole.replace(obs={"a.b": whole.reward}, next_obs={"a.b": whole.reward}))


def test_a_damaged_member_of_an_archive(tmp_path):
    path = tmp_path / "data.npz"
    write_arrays(path, recorded())
    content = bytearray(path.read_bytes())
    at = content.index(b"NUMPY") + 100
    content[at : at + 20] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(DataError, match="data.npz"):
        read_arrays(path)


def test_a_pickle_is_refused(tmp_path):
    """KALM's files are pickled dicts in .npy, BK-RL's pickled lists: refused by name, and nothing in them runs."""

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    np.save(tmp_path / "kalm.npy", {"observations": np.zeros(3), "x": Trap()}, allow_pickle=True)
    np.savez(tmp_path / "mixed.npz", **to_columns(recorded()), extra=np.array([Trap(), 1], object))
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "reward.npy", np.array([Trap()]), allow_pickle=True)
    for name, what in (("kalm.npy", "kalm.npy"), ("mixed.npz", "extra"), ("raw.npz", "raw.npz"), ("folder", "reward")):
        with pytest.raises(DataError, match=f"{what}.*pickle"):
            read_arrays(tmp_path / name)
    assert not (tmp_path / "trapped").exists()
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"one.npy.*float64\[3\].*.npz"):
        read_arrays(tmp_path / "one.npy")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "mixed.npz").read_bytes()[:100])
    with pytest.raises(DataError, match="cut.npz"):
        read_arrays(tmp_path / "cut.npz")


def test_bad_writing(tmp_path):
    data = recorded()
    with pytest.raises(DataError, match="a.txt.*.npz"):
        write_arrays(tmp_path / "a.txt", data)
    with pytest.raises(DataError, match=r"end in \.parquet"):
        write_parquet(tmp_path / "a.npz", data)
    with pytest.raises(DataError, match=r"reward\[0\].*nan"):
        write_parquet(tmp_path / "a.parquet", data.replace(reward=data.reward.at[0].set(jnp.nan)))
    with pytest.raises(DataError, match="obs.*list"):
        write_arrays(tmp_path / "a.npz", data.replace(obs=[jnp.zeros(6)]))
    assert list(tmp_path.iterdir()) == []


def test_bad_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, recorded())
    table = pyarrow.parquet.read_table(path)

    def refused(name, values, message):
        i = table.column_names.index(name)
        pyarrow.parquet.write_table(table.set_column(i, name, pa.array(values)), tmp_path / "b.parquet")
        for read in (read_parquet, read_data):
            with pytest.raises(DataError, match=message):
                read(tmp_path / "b.parquet")

    rewards = table.column("reward").to_pylist()
    refused("reward", pa.array([None, *rewards[1:]], pa.float32()), "reward has 1 missing values of 6")
    refused("goal", [[0.0], [1.0, 2.0], *[[0.0]] * 4], "goal has lists of 1 and, in row 1, of 2: one width")
    refused("step", pa.array([0, 2, 1, 0, 0, 1], pa.int32()), "row 1 is step 2 of episode 0, .* it is step 1: an ep")
    refused("episode", pa.array([0, 0, 0, 0, 2, 2], pa.int32()), "row 3 is step 0 of episode 0")
    path.write_text("not parquet")
    with pytest.raises(DataError, match=r"a\.parquet.*not parquet"):
        read_parquet(path)
