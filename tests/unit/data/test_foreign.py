"""Files of other libraries: D4RL, Minari, robomimic, d3rlpy read by value, others refused by name."""

from __future__ import annotations

import json
import pickle

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from llmrl_jax.data.columns import from_columns, parse_names
from llmrl_jax.data.reading import read_data, read_hdf5, write_arrays
from llmrl_jax.data.transitions import DataError, to_trajectories


N = 7
TERMINAL, TIMEOUT = 2, 5
"""Episodes of 3 steps (terminal), of 3 (timed out), and one step after which recording stopped."""


def flat(**changes):
    """D4RL's columns; an observation is the number of its step."""
    steps = np.arange(N)
    found = {
        "observations": np.stack([steps, -steps], 1).astype(np.float64),
        "actions": np.linspace(-1, 1, N).astype(np.float32)[:, None],
        "rewards": steps / 10,
        "terminals": steps == TERMINAL,
        "timeouts": steps == TIMEOUT,
    }
    return {name: x for name, x in {**found, **changes}.items() if x is not None}


AFTER = np.stack([np.arange(1, N + 1), -np.arange(1, N + 1)], 1).astype(np.float64)
AFTER[[TERMINAL, TIMEOUT]] = 100, -100  # which no step begins with


def hdf5(path, columns):
    with h5py.File(path, "w") as file:
        for name, x in columns.items():
            file[name] = x
    return path


def write(path, columns):
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table({k: list(x) if x.ndim > 1 else x for k, x in columns.items()}), path)
    else:
        hdf5(path, columns)
    return path


FORMS = ["data.hdf5", "data.npz", "data.parquet"]


def flags(data):
    return [np.flatnonzero(x).tolist() for x in (data.terminated, data.truncated)]


def test_numbers_may_have_the_order_of_bytes_of_other_machines():
    columns = {"obs": [[1.0], [2.0]], "action": [0, 1], "reward": [0.0, 1.0], "next_obs": [[2.0], [3.0]]}
    arrays = {name: np.array(values, ">i4" if name == "action" else ">f4") for name, values in columns.items()}
    ends = {"terminated": np.array([False, True]), "truncated": np.zeros(2, bool)}
    data = from_columns(arrays | ends, "data.npz")
    assert data.obs.dtype == np.float32 and data.action.tolist() == [0, 1] and data.next_obs.tolist() == [[2.0], [3.0]]


@pytest.mark.parametrize("name", FORMS)
def test_next_observations_are_those_of_the_episode(tmp_path, name):
    """Without them, as in most of D4RL's files: steps 5 and 6 have none, so the second episode is cut off at step 4."""
    data = read_data(write(tmp_path / name, flat()))
    np.testing.assert_array_equal(data.obs[:, 0], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(data.next_obs[:, 0], [1, 2, 2, 4, 5])  # a terminal step has its own
    np.testing.assert_allclose(data.reward, [0, 0.1, 0.2, 0.3, 0.4])
    assert flags(data) == [[2], [4]] and data.obs.dtype == data.reward.dtype == np.float32
    assert to_trajectories(data).length.tolist() == [3, 2]


def test_arrays_that_are_no_columns_are_left_out(tmp_path):
    data = read_data(write(tmp_path / "data.npz", flat(gamma=np.float32(0.99), lengths=np.array([4, 3]))))
    assert len(data) == 5 and flags(data) == [[2], [4]]


def test_rewards_may_be_halves(tmp_path):
    data = read_data(write(tmp_path / "data.npz", flat(rewards=np.arange(N, dtype=np.float16))))
    assert data.reward.dtype == np.float32 and data.reward.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", FORMS)
def test_time_outs_are_where_observations_do_not_follow(tmp_path, name):
    """The columns of `qlearning_dataset`: every step is kept, and bootstraps from its own next observation."""
    data = read_data(write(tmp_path / name, flat(timeouts=None, next_observations=AFTER)))
    np.testing.assert_array_equal(data.next_obs, AFTER.astype(np.float32))
    assert flags(data) == [[TERMINAL], [TIMEOUT, N - 1]]
    assert to_trajectories(data).length.tolist() == [3, 3, 1]


def test_columns_that_are_there_count(tmp_path):
    columns = flat(next_observations=AFTER, **{"infos/qpos": AFTER, "metadata/algorithm": np.bytes_("SAC")})
    data = read_data(hdf5(tmp_path / "data.hdf5", columns))
    assert len(data) == N and flags(data) == [[TERMINAL], [TIMEOUT]]


@pytest.mark.parametrize("name", FORMS)
def test_flags_may_be_numbers_and_columns_may_have_an_axis_more(tmp_path, name):
    columns = flat(
        terminals=(np.arange(N) == TERMINAL).astype(np.float32)[:, None],
        timeouts=(np.arange(N) == TIMEOUT).astype(np.int64),
        rewards=np.arange(N)[:, None],
        actions=np.arange(N)[:, None],
    )
    data = read_data(write(tmp_path / name, columns))
    assert data.action.dtype == np.int32 and data.action.shape == (5,) and data.reward.tolist() == [0, 1, 2, 3, 4]
    columns["terminals"] = 2 * columns["terminals"]
    with pytest.raises(DataError, match="terminated"):
        read_data(write(tmp_path / name, columns))


def test_the_last_step_counts_if_it_is_terminal(tmp_path):
    ends = np.arange(N) == N - 1
    data = read_data(write(tmp_path / "data.npz", flat(terminals=ends, timeouts=np.zeros(N))))
    assert len(data) == N and flags(data) == [[N - 1], []] and data.next_obs[-1, 0] == N - 1


def test_a_counter_of_another_library_does_not_number_the_steps_of_episodes(tmp_path):
    columns = flat(next_observations=AFTER, step=np.arange(N), episode=np.zeros(N))
    assert len(read_data(write(tmp_path / "a.parquet", columns))) == N


def test_what_cannot_be_derived_is_refused(tmp_path):
    with pytest.raises(DataError, match="truncated.*next_obs.*--data-names"):
        read_data(write(tmp_path / "data.npz", flat(timeouts=None)))
    with pytest.raises(DataError, match="step.*followed"):
        read_data(write(tmp_path / "data.npz", flat(terminals=np.zeros(N), timeouts=np.ones(N))))
    with pytest.raises(DataError, match="terminated.*actions, dones.*--data-names"):
        read_data(write(tmp_path / "data.hdf5", {**flat(terminals=None), "dones": np.zeros(N)}))
    with pytest.raises(DataError, match="images, labels"):
        read_data(hdf5(tmp_path / "data.h5", {"images": AFTER, "labels": AFTER}))


def test_columns_called_masks_are_no_padding(tmp_path):
    """JaxRL's `masks` are 1 less `terminals`; episodes padded to one length have masks `[episodes, steps]`."""
    data = read_data(hdf5(tmp_path / "data.h5", flat(masks=1.0 - (np.arange(N) == TERMINAL))))
    assert flags(data) == [[2], [4]]


def test_parts_of_observations_are_groups(tmp_path):
    images = np.arange(N * 12, dtype=np.uint8).reshape(N, 2, 2, 3)
    parts = {"observations/image": images, "observations/state": AFTER}
    data = read_data(hdf5(tmp_path / "data.hdf5", {**flat(observations=None), **parts}))
    np.testing.assert_array_equal(data.obs["image"], images[:5])
    np.testing.assert_array_equal(data.next_obs["image"], images[[1, 2, 2, 4, 5]])
    assert data.obs["image"].dtype == np.uint8 and data.next_obs["state"].shape == (5, 2)


def test_d3rlpys_first_form_has_ends_of_any_kind(tmp_path):
    ends = np.isin(np.arange(N), (TERMINAL, TIMEOUT)).astype(np.float32)
    columns = {**flat(timeouts=None, terminals=(np.arange(N) == TERMINAL) * 1.0), "episode_terminals": ends}
    assert flags(read_data(hdf5(tmp_path / "data.h5", {**columns, "version": "1.0"}))) == [[2], [4]]


def test_minari(tmp_path):
    """A row of observations more than steps; more than nine episodes, in the order of their numbers."""
    columns = {}
    for i in range(11):
        columns |= {
            f"episode_{i}/observations/state": 10.0 * i + np.arange(4)[:, None],
            f"episode_{i}/observations/goal": np.full((4, 2), i),
            f"episode_{i}/actions": np.full(3, i % 3),
            f"episode_{i}/rewards": np.full(3, i / 2),
            f"episode_{i}/terminations": np.array([False, False, i == 1]),
            f"episode_{i}/truncations": np.array([False, False, i == 2]),
            f"episode_{i}/infos/x": np.zeros(4),
        }
    folder = tmp_path / "pen-human-v2"
    (folder / "data").mkdir(parents=True)
    file = hdf5(folder / "data" / "main_data.hdf5", columns)
    for path in (folder, file):
        data = read_data(path)
        assert len(data) == 33 and flags(data) == [[5], [2, *range(8, 33, 3)]]
        np.testing.assert_array_equal(data.obs["state"][:7, 0], [0, 1, 2, 10, 11, 12, 20])
        np.testing.assert_array_equal(data.next_obs["state"][:7, 0], [1, 2, 3, 11, 12, 13, 21])
        assert data.action[-1] == 10 % 3 and data.reward[-1] == 5 and data.obs["goal"].dtype == np.int32
    hdf5(file, {**columns, "episode_3/observations/state": np.zeros((3, 1))})
    with pytest.raises(DataError, match="episode_3: obs.state.*3.*3"):
        read_data(file)
    texts = np.array([b"go"] * 4, h5py.string_dtype())
    hdf5(file, {**columns, "episode_0/observations/mission": texts})
    with pytest.raises(DataError, match="episode_0: obs.mission"):
        read_data(file)
    hdf5(file, {**{k: x for k, x in columns.items() if k != "episode_0/actions"}, "episode_0/actions/x": np.zeros(3)})
    with pytest.raises(DataError, match="episode_0.*actions.*x"):
        read_data(file)


def test_robomimic(tmp_path):
    def demo(i, *, after):
        steps = 3.0 * i + np.arange(3)[:, None]
        made = {"obs/eef": steps, "actions": np.full((3, 2), 0.5), "rewards": np.zeros(3), "states": steps}
        made |= {"next_obs/eef": steps + 1} if after else {}
        made["dones"] = np.array([0, 0, i == 0])
        return {f"data/demo_{i}/{name}": x for name, x in made.items()}

    mask = {"mask/train": np.array([b"demo_0"])}
    data = read_data(hdf5(tmp_path / "a.hdf5", demo(0, after=True) | demo(1, after=True) | mask))
    np.testing.assert_array_equal(data.next_obs["eef"][:, 0], [1, 2, 3, 4, 5, 6])
    assert flags(data) == [[2], [5]]
    data = read_data(hdf5(tmp_path / "a.hdf5", demo(0, after=False) | demo(1, after=False)))
    np.testing.assert_array_equal(data.next_obs["eef"][:, 0], [1, 2, 2, 4, 5])
    assert flags(data) == [[2], [4]]
    with pytest.raises(DataError, match=r"demo_0.*actions, states; obs.*dataset_states_to_obs\.py"):
        read_data(hdf5(tmp_path / "a.hdf5", {"data/demo_0/actions": AFTER, "data/demo_0/states": AFTER}))
    no_actions = {name: x for name, x in demo(0, after=True).items() if "actions" not in name}
    with pytest.raises(DataError, match="demo_0.*actions.*needed"):
        read_hdf5(str(hdf5(tmp_path / "a.hdf5", no_actions)))
    with pytest.raises(DataError, match="demo_1: next_obs.eef"):
        read_data(hdf5(tmp_path / "a.hdf5", demo(0, after=False) | demo(1, after=True)))


def test_d3rlpys_buffer(tmp_path):
    """It has no observation after the last step, as D4RL's; discrete actions are `[T, 1]`."""

    def episode(i, over):
        made = {"observations": 3.0 * i + np.arange(3)[:, None], "actions": np.full((3, 1), i), "terminated": over}
        return {f"{name}_{i}": x for name, x in {**made, "rewards": np.full((3, 1), 0.5)}.items()}

    about = {"columns": np.array([b"observations"]), "num_episodes": 2, "version": "2.1"}
    data = read_data(hdf5(tmp_path / "a.h5", about | episode(0, True) | episode(1, False)))
    np.testing.assert_array_equal(data.obs[:, 0], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(data.next_obs[:, 0], [1, 2, 2, 4, 5])
    assert flags(data) == [[2], [4]] and data.action.tolist() == [0, 0, 0, 1, 1] and data.reward.shape == (5,)
    tuples = {k: x for k, x in episode(0, True).items() if k != "observations_0"}
    tuples |= {"observations_0_0": np.zeros((3, 2)), "observations_0_1": np.ones((3, 2, 2), np.uint8)}
    data = read_data(hdf5(tmp_path / "a.h5", {**about, "num_episodes": 1, **tuples}))
    assert data.obs["1"].shape == (3, 2, 2) and data.obs["0"].dtype == np.float32


def test_lerobots_table_is_read_with_names(tmp_path):
    columns = {
        "observation.state": AFTER,
        "action": AFTER / 200,
        "next.reward": np.arange(N) / 10,
        "next.done": np.arange(N) == TERMINAL,
        "episode_index": np.array([4, 4, 4, 5, 5, 5, 6]),
        "timestamp": np.zeros(N),
    }
    path = write(tmp_path / "episode_000000.parquet", columns)
    with pytest.raises(DataError, match=r"obs.*observation\.state.*--data-names"):
        read_data(path)
    names = parse_names("obs=observation.state, reward=next.reward,terminated=next.done,episode=episode_index")
    data = read_data(path, names)
    assert flags(data) == [[2], [4]] and data.next_obs.shape == (5, 2)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    with pytest.raises(DataError, match="LeRobot.*--data-names obs=observation.state"):
        read_data(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("obs", "'obs'; OURS=THEIRS"),
        ("obs=a,obs=b", "'obs' twice"),
        ("observations=obs", "write obs=observations"),
        ("rewrd=r", "'reward'"),
    ],
)
def test_names_that_are_refused(text, message):
    with pytest.raises(DataError, match=message):
        parse_names(text)


@pytest.mark.parametrize("ending", ["npz", "h5", "parquet"])
def test_a_name_that_no_column_has_is_refused(ending, tmp_path):
    """Else the column that was meant would be derived from others, or left out."""
    path = write(tmp_path / f"a.{ending}", flat(next_observations=AFTER))
    assert len(read_data(path, {"next_obs": "next_observations"})) == N
    with pytest.raises(DataError, match="next_observation'.*next_obs.*'next_observations'"):
        read_data(path, {"next_obs": "next_observation"})
    with pytest.raises(DataError, match="'done'"):
        read_data(path, {"episode": "done"})


def test_formats_with_names_of_their_own_take_no_others(tmp_path):
    """robomimic's, and padded episodes; D4RL's names are known to every reader."""
    demo = {"obs/x": np.zeros((3, 2)), "actions": np.zeros((3, 1)), "dense": np.ones(3), "rewards": np.zeros(3)}
    demo = {f"data/demo_0/{name}": x for name, x in {**demo, "dones": np.arange(3) == 2}.items()}
    padded = {"observations": np.zeros((2, 4, 3)), "actions": np.zeros((2, 3, 1)), "rewards": np.zeros((2, 3))}
    for columns in (demo, padded | {"masks": np.ones((2, 3))}):
        path = hdf5(tmp_path / "a.h5", columns)
        assert not read_data(path, {"reward": "rewards"}).reward.any()
        with pytest.raises(DataError, match="reward=dense"):
            read_data(path, {"reward": "dense"})


def test_padded_episodes_of_one_step_are_read_as_they_were_written(tmp_path):
    ones, length = np.ones((5, 1), bool), np.ones(5, np.int32)
    columns = {"obs": np.zeros((5, 1, 2), np.float32), "action": np.zeros((5, 1), np.int32), "length": length}
    columns |= {"next_obs": columns["obs"], "reward": np.ones((5, 1), np.float32), "terminated": ones}
    write_arrays(tmp_path / "a.npz", from_columns(columns | {"truncated": ~ones}, "a"))
    data = read_data(tmp_path / "a.npz")
    assert data.reward.shape == (5, 1) and data.terminated.all() and data.length.tolist() == [1] * 5


def test_names():
    assert parse_names("") == {} and parse_names("obs.image=pixels, reward=r") == {"obs.image": "pixels", "reward": "r"}


def test_other_forms_are_refused_with_a_remedy(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    (tmp_path / "hopper-medium-v2.pkl").write_bytes(pickle.dumps([Trap()]))
    (tmp_path / "data.tfrecord-00000-of-00001").touch()
    for name, file in (("tfds", "dataset_info.json"), ("zarr", ".zgroup"), ("minari", "data/metadata.json")):
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_text(json.dumps({}))
    for name, message in (
        ("hopper-medium-v2.pkl", r"hopper-medium-v2\.pkl.*pickle"),
        ("data.tfrecord-00000-of-00001", "TFRecord"),
        ("tfds", "TFDS.*RLDS"),
        ("zarr", "Zarr store"),
        ("minari", r"without main_data\.hdf5"),
    ):
        with pytest.raises(DataError, match=f"{message}.*np.savez"):
            read_data(tmp_path / name)
    assert not (tmp_path / "trapped").exists()
    (tmp_path / "broken.hdf5").write_bytes(b"no hdf5")
    with pytest.raises(DataError, match="read as hdf5"):
        read_data(tmp_path / "broken.hdf5")
    with pytest.raises(FileNotFoundError, match="'broken.hdf5'"):
        read_data(tmp_path / "brokn.hdf5")


@pytest.mark.parametrize("has_next", [False, True])
def test_an_episode_that_was_left_ends_where_its_number_changes(tmp_path, has_next):
    after = {"next_observations": AFTER} if has_next else {}
    number = np.arange(N) >= 4
    columns = flat(terminals=np.arange(N) == N - 1, timeouts=np.zeros(N), episode=number, **after)
    data = read_data(write(tmp_path / "data.npz", columns))
    assert len(data) == N - (not has_next), "without next_obs the last step before the change has none"
    assert np.flatnonzero(data.truncated).tolist() == ([3] if has_next else [2])
    assert to_trajectories(data).length.tolist() == ([4, N - 4] if has_next else [3, N - 4])


@pytest.mark.parametrize(
    "timeouts", [np.arange(N), np.where(np.arange(N) == 1, np.nan, 0.0), np.zeros((N, 2))], ids=["counts", "nan", "two"]
)
def test_flags_that_are_none_stay_refused_beside_episodes(tmp_path, timeouts):
    columns = flat(timeouts=timeouts, episode=np.zeros((N, 1)), next_observations=AFTER)
    with pytest.raises(DataError, match="truncated"):
        read_data(write(tmp_path / "data.npz", columns))
