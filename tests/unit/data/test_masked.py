"""Padded episodes with masks, as KALM and ImagineBench release them: read, written, and refused by name."""

from __future__ import annotations

import jax
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from llmrl_jax.data.masked import read_masked, read_published, to_masked, write_masked
from llmrl_jax.data.reading import read_data
from llmrl_jax.data.transitions import DataError, to_transitions


def arrays(**changed):
    """Three episodes of 2, 4 and 1 steps in rows of 4; the published files pad with anything."""
    rng = np.random.default_rng(0)
    mask = np.arange(4) < np.array([2, 4, 1])[:, None]
    found = {
        "observations": rng.normal(size=(3, 4, 5)),
        "actions": rng.integers(0, 40, (3, 4)).astype(np.int32),
        "rewards": rng.normal(size=(3, 4, 1)),
        "masks": mask[..., None].astype(np.float64),
        "instructions": np.array([["a", "b"]] * 3),
    }
    return {name: x for name, x in {**found, **changed}.items() if x is not None}


def written(path, found):
    if path.suffix == ".npy":
        np.save(path, found, allow_pickle=True)  # as the published programs do
    else:
        write_masked(path, found)
    return path


FORMS = ["data.npy", "data.h5", "data.parquet"]


@pytest.mark.parametrize("name", FORMS)
def test_episodes_are_read(tmp_path, name):
    found = arrays()
    data = read_masked(written(tmp_path / name, found))
    np.testing.assert_array_equal(data.length, [2, 4, 1])
    obs = found["observations"].astype(np.float32)
    np.testing.assert_array_equal(data.obs[1], obs[1])
    np.testing.assert_array_equal(data.obs[0], [*obs[0, :2], *np.zeros((2, 5))])
    np.testing.assert_array_equal(data.next_obs[1, :3], obs[1, 1:])
    np.testing.assert_array_equal(data.next_obs[0, 1], obs[0, 1])  # nothing tells what came after
    # one that fills its row was cut off, and others ended
    np.testing.assert_array_equal(np.asarray(data.terminated).sum(1), [1, 0, 1])
    np.testing.assert_array_equal(np.asarray(data.truncated).sum(1), [0, 1, 0])
    steps = to_transitions(read_data(tmp_path / name))
    assert len(steps) == 7 and steps.action.dtype == np.int32


def test_ends_and_next_observations_of_the_file_count(tmp_path):
    rng = np.random.default_rng(1)
    after, ends = rng.normal(size=(3, 4, 5)), np.zeros((3, 4), bool)
    after[1, 3], ends[1, 3] = 0, True  # published: zeros after the last step
    found = arrays(next_observations=after, terminals=ends, actions=rng.uniform(-1, 1, (3, 4, 2)))
    data = read_masked(written(tmp_path / "data.npy", found))
    np.testing.assert_array_equal(np.asarray(data.terminated).any(1), [False, True, False])
    np.testing.assert_array_equal(data.next_obs[0, 1], after[0, 1].astype(np.float32))
    np.testing.assert_array_equal(data.next_obs[1, 3], found["observations"][1, 3].astype(np.float32))
    assert data.action.shape == (3, 4, 2) and data.action.dtype == np.float32
    for name in ("again.npy", "again.hdf5", "again.parquet"):
        write_masked(tmp_path / name, data)
        jax.tree.map(np.testing.assert_array_equal, read_masked(tmp_path / name), data)
    assert to_masked(data)["rewards"].shape == (3, 4, 1)


def test_a_float_action_is_a_vector_of_one_number(tmp_path):
    columns = arrays(actions=np.linspace(-1, 1, 12).reshape(3, 4))
    data = read_masked(written(tmp_path / "data.npy", columns))
    assert data.action.shape == (3, 4, 1) and data.action.dtype == np.float32
    np.testing.assert_array_equal(data.action[1, :, 0], columns["actions"][1].astype(np.float32))


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"masks": None}, "'masks'.*actions, observations, rewards"),
        ({"masks": np.array([[1, 0, 1, 0], [1] * 4, [1] * 4])}, "mask.*episode 0"),
        ({"masks": np.array([[1] * 4, [0] * 4, [1] * 4])}, "mask.*episode 1"),
        ({"rewards": np.zeros((3, 3))}, r"float64\[3, 3\].*\[3, 4\]"),
        ({"observations": np.zeros((3, 4))}, r"\[3, 4\]; \[episodes, steps, size\]"),
        ({"observations": np.full((3, 4, 5), np.nan)}, "episode 0, step 0"),
        ({"actions": np.zeros((3, 4, 2), int)}, r"actions.*\[3, 4, 2\]"),
        ({"actions": np.zeros((2, 4), int)}, r"\[2, 4\]"),
        ({"next_observations": np.zeros((3, 4, 2))}, "next_observations"),
        ({"rewards": np.array([["x"] * 4] * 3)}, "rewards.*array"),
        ({"terminals": np.eye(3, 4, k=1)}, "episode 1.*step 2"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changed, said):
    with pytest.raises(DataError, match=said):
        read_masked(written(tmp_path / "data.npy", arrays(**changed)))


def test_nothing_in_a_file_runs(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    np.save(tmp_path / "data.npy", arrays(rewards=Trap()), allow_pickle=True)
    with pytest.raises(DataError, match=r"asks.*'\w+\.\w+'"):
        read_data(tmp_path / "data.npy")
    assert not (tmp_path / "trapped").exists()
    (tmp_path / "data.h5").write_bytes(b"no hdf5")
    with pytest.raises(DataError, match="read as hdf5"):
        read_masked(tmp_path / "data.h5")
    with pytest.raises(FileNotFoundError, match="'data.h5'"):
        read_masked(tmp_path / "date.h5")
    with pytest.raises(DataError, match=r"\.txt; \.npy, \.h5, \.hdf5.*\.parquet"):
        write_masked(tmp_path / "x.txt", {})


@pytest.mark.parametrize("name", FORMS)
def test_what_is_said_of_episodes_is_kept(tmp_path, name):
    goals = np.arange(3 * 4 * 6).reshape(3, 4, 6).astype(np.float32)
    tasks = np.array(["reach-v2", "push-v2", "été"])
    about = read_published(written(tmp_path / name, arrays(goals=goals, env_names=tasks))).about
    np.testing.assert_array_equal(about["instructions"], [["a", "b"]] * 3)
    np.testing.assert_array_equal(about["goals"], goals)
    assert about["env_names"].tolist() == tasks.tolist()
    written(tmp_path / name, arrays(env_names=list(tasks), instructions=["x"] * 3))
    assert read_published(tmp_path / name).about["instructions"].tolist() == ["x"] * 3
    if name != "data.parquet":  # whose rows are episodes
        with pytest.raises(DataError, match="2 episodes.*3"):
            read_published(written(tmp_path / name, arrays(instructions=["x"] * 2)))


def test_texts_do_not_matter_to_those_who_read_none(tmp_path):
    """ImagineBench's own file has 10,000 episodes and the instructions of 6,400; offline RL needs no instructions."""
    for texts in (["x"] * 2, [["x"], ["x", "y"], []]):
        path = written(tmp_path / "data.npy", arrays(instructions=texts))
        assert len(read_data(path)) == 3
        with pytest.raises(DataError, match="instructions"):
            read_published(path)


def test_imagined_episodes_of_the_published_generator_are_read(tmp_path):
    """Masks by another name, and a row of observations more: what the last action of a full row led to."""
    found = arrays(masks=None, observations=np.random.default_rng(2).normal(size=(3, 5, 5)))
    found["action_masks"] = arrays()["masks"]
    data = read_masked(written(tmp_path / "data.npy", found))
    obs = found["observations"].astype(np.float32)
    np.testing.assert_array_equal(data.length, [2, 4, 1])
    np.testing.assert_array_equal(data.obs[1], obs[1, :4])
    np.testing.assert_array_equal(data.next_obs[1], obs[1, 1:])
    np.testing.assert_array_equal(data.next_obs[0, :2], [obs[0, 1], obs[0, 1]])  # the rest of a row is padding


def test_rows_of_imagine_bench_by_hand(tmp_path):
    """The columns as its program reads them: bytes of a row, the shape of the whole, and rows in any order."""
    found = arrays(instructions=None)
    columns = {"row_index": [2, 0, 1], "file_name": ["x"] * 3, "list_instructions": ["c", "a", "b"]}
    for name, x in found.items():
        columns |= {f"{name}_data": [x[i].tobytes() for i in (2, 0, 1)]}
        columns |= {f"{name}_shape": [str(x.shape)] * 3, f"{name}_dtype": [str(x.dtype)] * 3}
    path = tmp_path / "ball_real.parquet"

    def write(**changed):
        parquet.write_table(pa.table({name: x for name, x in (columns | changed).items() if x is not None}), path)
        return path

    read = read_published(write())
    jax.tree.map(np.testing.assert_array_equal, read.data, read_masked(written(tmp_path / "data.npy", found)))
    assert read.about["instructions"].tolist() == ["a", "b", "c"]
    assert read_data(path).reward.shape == (3, 4)
    for changed, said in (
        ({"rewards_data": [b"1234"] * 3}, "0.*4.*32.*float64.4, 1"),
        ({"rewards_dtype": ["O"] * 3}, "row 0.*4 texts"),
        ({"rewards_dtype": ["i4,(9,9)f8"] * 3}, "rewards_dtype.*'i4,.9,9.f8'"),
        ({"rewards_shape": ["(3, -1)"] * 3}, "rewards_shape"),
        ({"rewards_shape": ["(3, 4)", "(3, 4)", "(3, 5)"]}, r"rewards_shape.*\band\b"),
        ({"rewards_dtype": None}, "no column rewards_dtype"),
        ({"masks_data": [None] * 3}, "masks_data.*missing"),
        ({"row_index": [0, 1, 1]}, "row_index.*0.*2"),
    ):
        with pytest.raises(DataError, match=said):
            read_data(write(**changed))
    with pytest.raises(DataError, match="columns a; .*row_index"):
        parquet.write_table(pa.table({"a": [1]}), path)
        read_masked(path)
    path.write_bytes(b"no parquet")
    for read_file in (read_masked, read_data):
        with pytest.raises(DataError, match=r"ball_real\.parquet.*not parquet"):
            read_file(path)
