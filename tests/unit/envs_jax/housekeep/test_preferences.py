"""The project's table of preferences, and files that replace it."""

from __future__ import annotations

import errno
import json
import pickle

import numpy as np
import pytest

import envs_jax
from envs_jax.housekeep import convert_annotations, load
from envs_jax.housekeep.apartment import KEYS, RECEPTACLES
from envs_jax.housekeep.preferences import SHIPPED, from_ranks, from_rules, shipped


OBJECTS = [f"thing_{i}" for i in range(14)]


def place(name, preferences=None):
    preferences = preferences or shipped()
    column = preferences.objects.index(name)
    return {p for p, right in zip(preferences.places, preferences.correct[:, column]) if right}


def test_the_table_is_large_enough_and_sensible():
    table = shipped()
    assert len(table.objects) >= 100 and len(table.places) >= 60
    assert len(set(table.objects)) == len(table.objects) and len(set(table.places)) == len(table.places)
    assert not (table.correct & table.misplaced).any()
    assert {"kitchen|top_cabinet", "kitchen|dishwasher", "kitchen|sink"} <= place("plate")
    assert not any(p.startswith(("bathroom", "bedroom", "lobby")) for p in place("plate"))
    assert {"living_room|shelf", "bedroom|shelf"} <= place("book") and "kitchen|stove" not in place("book")
    assert "bathroom|shelf" in place("towel") and "living_room|sofa" not in place("towel")
    assert place("shoe") == {"lobby|bottom_cabinet", "lobby|carpet", "corridor|shelf", "bedroom|bottom_cabinet"}
    # the first place of a list is the best one
    column = table.objects.index("shoe")
    assert table.tidy[table.places.index("lobby|bottom_cabinet"), column] == 1
    assert table.tidy[table.places.index("bedroom|bottom_cabinet"), column] == 3


def test_every_object_has_a_place_in_the_apartment():
    env, _ = envs_jax.make("Housekeep-v0")
    assert env.correct.shape == (len(shipped().objects), len(KEYS)) and env.correct.any(1).all()
    distractors = [i for i, receptacle in enumerate(RECEPTACLES) if receptacle.is_distractor]
    assert len(distractors) == 9 and not env.correct[:, distractors].any()
    assert not env.preferences.misplaced[distractors].any()


def annotations(objects=OBJECTS, places=tuple(r.key for r in RECEPTACLES if not r.is_distractor)):
    """Ranks of ten annotators: thing `i` belongs on receptacle `j` if their sum is even, and nowhere else."""
    ranks = np.zeros((len(places), len(objects), 10), np.int64)
    for j in range(len(places)):
        for i in range(len(objects)):
            ranks[j, i] = 2 if (i + j) % 2 == 0 else -3
    return {"ranks": ranks, "objects": list(objects), "room_receptacles": list(places)}


def test_six_of_ten_annotators_decide():
    ranks = np.zeros((2, 2, 10), np.int8)
    ranks[0, 0, :6] = [1, 1, 2, 2, 3, 3]
    ranks[0, 1, :5] = 1  # five are not enough
    ranks[1, 0] = [-1] * 6 + [4] * 4
    ranks[1, 1, :7] = -128
    found = from_ranks(ranks, ["a", "b"], ["x|y", "x|z"])
    assert found.correct.tolist() == [[True, False], [False, False]]
    assert found.misplaced.tolist() == [[False, False], [True, True]]
    assert found.tidy[0, 0] == 2.0 and found.untidy[1].tolist() == [1.0, 128.0]


def test_a_pickle_becomes_a_file_that_replaces_the_table(tmp_path):
    source, target = tmp_path / "data.npy", tmp_path / "own.npz"
    np.save(source, np.array(annotations(), object), allow_pickle=True)
    with pytest.raises(ValueError, match="pass allow_pickle=True"):
        convert_annotations(source, target)
    with pytest.raises(ValueError, match="convert_annotations"):
        load(source)
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        convert_annotations(source, tmp_path / "own.json", allow_pickle=True)
    assert convert_annotations(source, target, allow_pickle=True) == target
    assert sorted(tmp_path.iterdir()) == [source, target]
    with np.load(target) as file:
        assert file["ranks"].dtype == np.int8
        np.testing.assert_array_equal(file["ranks"], annotations()["ranks"])
    env, params = envs_jax.make("Housekeep-v0", preferences=str(target))
    assert env.object_names[3] == "thing 3" and params.suggestions.shape == (14, 51)
    right = {r for r, on in enumerate(env.correct[0]) if on}
    solid = [i for i, receptacle in enumerate(RECEPTACLES) if not receptacle.is_distractor]
    assert right == set(solid[::2])
    with pytest.raises(ValueError, match="task 1.*lemon"):
        envs_jax.make("Housekeep-Task1-v0", preferences=str(target))


class Call:
    """A pickle that calls a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_only_arrays_are_unpickled(tmp_path):
    source = tmp_path / "data.npy"
    pointers = Call(np.ndarray, ((1,), np.dtype("O"), b"A" * 8))
    endless = []
    endless.append(endless)
    for content, message in (
        ({**annotations(), "objects": Call(eval, ("1 + 1",))}, "builtins.eval"),
        ({**annotations(), "ranks": Call(np.ndarray, ((1 << 40,),))}, "ranks"),
        ({**annotations(), "ranks": endless}, "ranks"),
        ({**annotations(), "objects": pointers}, "objects"),
        ({**annotations(), "room_receptacles": [1, 2]}, "room_receptacles"),
        ([1, 2], r"data\.npy.*dict"),
        ([1], r"data\.npy.*int"),
        ({"ranks": np.zeros((1, 1, 10), int)}, "'objects'"),
        (
            {**annotations(), "ranks": np.zeros((3, 2, 10), int)},
            r"\[3, 2, 10\]; \[42, 14, annotators\]",
        ),
        ({**annotations(), "ranks": np.full((42, 14, 10), 300)}, r"data\.npy.*300"),
    ):
        np.save(source, np.array(content, object), allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            convert_annotations(source, tmp_path / "x.npz", allow_pickle=True)
    source.write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match="npy file"):
        convert_annotations(source, tmp_path / "x.npz", allow_pickle=True)
    np.save(source, np.zeros(3))
    with pytest.raises(ValueError, match="float64"):
        convert_annotations(source, tmp_path / "x.npz", allow_pickle=True)


def test_a_conversion_that_fails_leaves_the_target(tmp_path, monkeypatch):
    source, target = tmp_path / "data.npy", tmp_path / "own.npz"
    np.save(source, np.array(annotations(), object), allow_pickle=True)
    target.write_bytes(b"old")

    def interrupted(file, **_):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(OSError, match="space"):
        convert_annotations(source, target, allow_pickle=True)
    assert target.read_bytes() == b"old" and sorted(tmp_path.iterdir()) == [source, target]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": np.zeros((42, 14), np.int8)}, r"\[42, 14\].*\[42, 14, annotators\]"),
        ({"ranks": np.zeros((14, 42, 10), np.int8)}, r"\[14, 42, 10\].*\[42, 14, annotators\]"),
        ({"ranks": np.zeros((42, 14, 10))}, "ranks.*float64"),
        ({"objects": ["a"] * 14}, "'a'.*twice"),
        ({"objects": np.zeros((14, 2), "U1")}, r"objects.*<U1 \[14, 2\]"),
        ({"room_receptacles": [f"place {i}" for i in range(42)]}, r"'place 0'.*room\|receptacle"),
        ({"room_receptacles": [f"attic|box {i}" for i in range(42)]}, r"kitchen\|fridge, kitchen\|bottom_cabinet"),
        ({"ranks": None}, "lacks.*'ranks'"),
        ({"ranks": np.zeros((42, 14, 10), np.int8)}, "0 objects.*10"),
    ],
)
def test_files_of_another_shape(tmp_path, change, message):
    path = tmp_path / "own.npz"
    arrays = {**annotations(), **change}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=message):
        envs_jax.make("Housekeep-v0", preferences=str(path))


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        load(tmp_path / "none.npz")
    for name, content, message in (
        ("a.txt", "", ".json.*.npz.*a.txt"),
        ("a.npz", "no zip", "a.npz.*.npz"),
        ("a.json", "{", "a.json.*JSON"),
        ("b.json", "[]", "b.json"),
        ("c.json", "{}", "'rooms'"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name)


def test_rules_that_contradict_themselves(tmp_path):
    rules = json.loads(SHIPPED.read_text())
    group = rules["groups"]["shoes"]
    for change, message in (
        ({"untidy": ["lobby|bottom_cabinet"]}, r"'shoes'.*lobby\|bottom_cabinet"),
        ({"tidy": ["lobby|roof"]}, r"'lobby\|roof'"),
        ({"tidy": []}, "'shoes'.*tidy"),
        ({"objects": ["book"]}, "'book'.*twice"),
    ):
        with pytest.raises(ValueError, match=message):
            from_rules({**rules, "groups": {**rules["groups"], "shoes": {**group, **change}}})
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**rules, "groups": {**rules["groups"], "shoes": {**group, "tidy": ["bedroom|bed"]}}}))
    env, _ = envs_jax.make("Housekeep-v0", preferences=str(own))
    assert [KEYS[r] for r in np.flatnonzero(env.correct[env.object_names.index("shoe")])] == ["bedroom|bed"]
