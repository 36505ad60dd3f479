"""Collected episodes: windows, files, and the published layout."""

from __future__ import annotations

import numpy as np
import pytest

from llmrl_jax.data.transitions import DataError
from llmrl_jax.systems.bkrl import collect
from llmrl_jax.systems.bkrl.collect import EpisodeDataset, read_npy, write_npy
from llmrl_jax.systems.bkrl.prompts import TEXT, caption, world_of
from tests.bkrl_world import played, world


def small() -> EpisodeDataset:
    """Two episodes: 3 steps that terminate, 2 that are cut; observation `10 * episode + step`."""
    return EpisodeDataset(
        obs={"x": np.array([0, 1, 2, 3, 10, 11, 12], np.int32)},
        action=np.array([5, 6, 7, 8, 9], np.int32),
        reward=np.array([0, 0, 1, 2, 4], np.float32),
        terminated=np.array([0, 0, 1, 0, 0], bool),
        truncated=np.array([0, 0, 0, 0, 1], bool),
        digest="",
    )


def test_windows_by_hand():
    data = small()
    windows = data.windows_at([0, 0, 1], [0, 1, 0], 2, gamma=0.5)
    assert windows.obs["x"].tolist() == [[0, 1, 2], [1, 2, 3], [10, 11, 12]]
    assert windows.action.tolist() == [[5, 6], [6, 7], [8, 9]]
    # the first window is followed by the reward 1; the second by nothing, the third by unknown rewards
    assert windows.return_to_go.tolist() == [1, 0, 0]
    assert windows.has_next.tolist() == [True, False, False]
    assert windows.return_from_start.tolist() == [0.25, 0.5, 4]  # from their first step on
    assert data.windows_at([1], [2], 0).return_from_start.tolist() == [0]
    assert data.returns_to_go(0.5).tolist() == [0.25, 0.5, 1, 4, 4]


def test_windows_are_drawn_from_long_enough_episodes():
    data = small()
    drawn = data.sample(np.random.default_rng(0), 64, 3)
    assert set(drawn.episode.tolist()) == {0} and set(drawn.time.tolist()) == {0}
    drawn = data.sample(np.random.default_rng(0), 256, 1)
    assert {*zip(drawn.episode.tolist(), drawn.time.tolist())} == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}
    assert set(data.sample(np.random.default_rng(0), 64, 1, [1]).episode.tolist()) == {1}
    with pytest.raises(DataError, match="2 episodes.*4 steps"):
        data.sample(np.random.default_rng(0), 1, 4)
    with pytest.raises(DataError, match="1 episodes.*3 steps"):
        data.sample(np.random.default_rng(0), 1, 3, [1])


def test_episodes_for_tests_are_no_others():
    shown, held = played().split(0.2)
    assert not set(shown) & set(held) and len(shown) + len(held) == 12 and len(held) == 2
    with pytest.raises(DataError, match="2 episodes.*5"):
        small().split(0.2)


def test_a_file_gives_back_what_was_written(tmp_path):
    data = played()
    for name, part in (("a", data), ("b", data)):
        collect.write_episodes(tmp_path / f"{name}.parquet", part)
    one, both = collect.read_episodes(tmp_path / "a.parquet"), collect.read_episodes(tmp_path)
    for name, x in data.obs.items():
        np.testing.assert_array_equal(one.obs[name], x)
        np.testing.assert_array_equal(both.obs[name], np.concatenate([x, x]))
    for name in collect.FLAT:
        np.testing.assert_array_equal(getattr(one, name), getattr(data, name))
    assert len(both) == 2 * len(data) and both.digest != one.digest
    collect.write_episodes(tmp_path / "c.parquet", small())
    with pytest.raises(DataError, match="c.parquet"):
        collect.read_episodes(tmp_path)
    with pytest.raises(FileNotFoundError, match="`llmrl bkrl collect`"):
        collect.read_episodes(tmp_path / "..")


def test_the_published_layout(tmp_path):
    data, env = played(), world()
    write_npy(tmp_path / "d.npy", data, env)
    back = read_npy(tmp_path / "d.npy", env)
    for name in ("image", "direction", TEXT):
        np.testing.assert_array_equal(back.obs[name], data.obs[name])
    for name in collect.FLAT:
        np.testing.assert_array_equal(getattr(back, name), getattr(data, name))
    first = np.load(tmp_path / "d.npy", allow_pickle=True)[0]
    assert first["image"].shape == (len(first["action"]) + 1, 3, 7, 7) and first["image"].max() <= 1
    assert first["timestep"] == list(range(len(first["action"])))
    assert first["description"][0] == env.captions[TEXT].render(data.obs[TEXT][0])
    array = np.empty(1, object)
    steps = {name: np.array(first[name]) for name in ("action", "reward", "terminated")}
    array[0] = {**first, **steps, "image": list(first["image"]), "direction": [np.int64(x) for x in first["direction"]]}
    np.save(tmp_path / "e.npy", array, allow_pickle=True)  # the same in NumPy's types
    again = read_npy(tmp_path / "e.npy", env)
    np.testing.assert_array_equal(again.obs["image"], data.obs["image"][: len(again.action) + 1])
    np.testing.assert_array_equal(again.action, data.action[: len(again.action)])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda first: {"image": 3}, "published layout"),
        (lambda first: first | {"action": [0]}, "images.*shape|items"),
        (lambda first: first | {"action": [7, *first["action"][1:]]}, "'7'.*'action'.*0.*6"),
        (lambda first: first | {"action": []}, "actions"),
        (lambda first: first | {"action": [0.5, *first["action"][1:]]}, "'0.5'.*'action'"),
        (lambda first: first | {"direction": [4, *first["direction"][1:]]}, "'4'.*'direction'.*0.*3"),
        (lambda first: first | {"reward": first["reward"][1:]}, "13.*'reward'; 14"),
        (lambda first: first | {"reward": [float("nan"), *first["reward"][1:]]}, "'nan'.*'reward'"),
        (lambda first: first | {"image": first["image"] * 10}, r"images.*0.*10.*\[10, 5, 3\]"),
        (lambda first: first | {"image": first["image"][:, :, :6]}, r"\[15, 3, 7, 7\]"),
        (
            lambda first: first | {"terminated": [1, *first["terminated"][1:]]},
            "step 0.*14",
        ),
        (lambda first: first | {"description": ["You see a dragon"] * 15}, "dragon"),
        (lambda first: first | {"infos": Evil()}, r"e\.npy.*'builtins\.eval'"),
        (lambda first: first | {"image": np.zeros(3, "f4,i4")}, "type 'V8'"),
        (lambda first: first | {"image": np.zeros(3, "c8")}, "type 'c8'"),
    ],
)
def test_other_files_are_refused_and_run_nothing(change, match, tmp_path):
    write_npy(tmp_path / "d.npy", played(), world())
    first = np.load(tmp_path / "d.npy", allow_pickle=True)[0]
    array = np.empty(1, object)
    array[0] = change(first)
    np.save(tmp_path / "e.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=match):
        read_npy(tmp_path / "e.npy", world())


class Evil:
    def __reduce__(self):
        return eval, ("1 + 1",)


class Named:
    """A pickle that calls what its names stand for with arguments of its own."""

    def __init__(self, call, args, state=None):
        self.said = (call, args) if state is None else (call, args, state)

    def __reduce__(self):
        return self.said


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (Named(np.dtype, ("O",), (3, "|", None, None, {"x": 1}, -1, -1, 0)), "type.*parts"),
        (Named(np._core.multiarray.scalar, (np.dtype("f8"), b"1234")), "number.*4 bytes"),
        (Named(np._core.multiarray.scalar, (np.dtype("O"), [1])), "number.*damaged"),
        (Named(np._core.multiarray._reconstruct, (0,), (1, (9,), np.dtype("f8"), False, b"1234")), "with 4 bytes"),
        (Named(np._core.multiarray._reconstruct, (0,), (1, (-1,), np.dtype("f8"), False, b"")), r"\(-1,\)"),
        (Named(np._core.multiarray._reconstruct, (0,), 7), "damaged"),
    ],
)
def test_a_pickle_calls_nothing_of_numpy(made, match, tmp_path):
    np.save(tmp_path / "e.npy", np.array([made, 0], object), allow_pickle=True)
    with pytest.raises(DataError, match=match):
        read_npy(tmp_path / "e.npy", world())
    for content, why in ((b"", "npy file"), ((tmp_path / "e.npy").read_bytes()[:-9], "cut|not read")):
        (tmp_path / "f.npy").write_bytes(content)
        with pytest.raises(DataError, match=why):
            read_npy(tmp_path / "f.npy", world())


def test_captions_have_the_published_layout():
    verbs = world_of(world()).verbs
    assert caption(["You see a red ball", "Nothing."], [2], verbs) == (
        "You see a red ball. You choose the action: forward. Current observation: Nothing. "
    )
    assert caption(["A", "B", "C"], [0, 6], verbs) == (
        "Agent history:\nStep 1: A. You choose the action: turn left.\n"
        "Step 2: B. You choose the action: do nothing.\nCurrent observation: C. "
    )
