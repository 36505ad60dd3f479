from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import logging
import os
import shutil
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.core.config import FREE, load_config
from llmrl_jax.run import checkpoint as restoring, frozen, pytrees as trees
from llmrl_jax.run.checkpoint import CheckpointError, Checkpoints, restore_state
from tests.resume.tiny import Config, TinyLearner


def raw(x):
    return jax.random.key_data(x) if trees.is_key(x) else x


def assert_same(a, b):
    left, right = trees.named_leaves(a), trees.named_leaves(b)
    assert list(left) == list(right)
    for name in left:
        x, y = (raw(v) for v in (left[name], right[name]))
        assert x.dtype == y.dtype, name
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=name)


@pytest.fixture(scope="module")
def states():
    """The tiny learner's state after 0, 1 and 2 updates."""
    learner = TinyLearner()
    update = jax.jit(learner.update)
    found = [trees.settle(learner.init(jax.random.key(3)))]
    for _ in range(2):
        found.append(update(found[-1])[0])
    return found


@pytest.fixture(scope="module")
def written(states, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    with Checkpoints(folder, keep=3, config=Config()) as checkpoints:
        for update, state in enumerate(states):
            checkpoints.save(update, state)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(written, tmp_path / "run")
    return tmp_path / "run"


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)


def test_round_trip(states, written):
    for update, state in enumerate(states):
        for like in (states[0], abstract(state)):
            found, at = restore_state(written, like, update, Config())
            assert at == update
            assert_same(found, state)
    assert restore_state(written, states[0])[1] == 2


def test_frozen_stands_once(written):
    assert (written / "frozen").is_dir()
    names = {p.name for p in (written / "checkpoints" / "1").iterdir()}
    assert {"state", "meta"} <= names and "frozen" not in names


def test_no_pickle(written):
    assert not [p for p in written.rglob("*") if p.is_file() and p.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05")]


def test_description(written):
    with Checkpoints(written, read_only=True) as checkpoints:
        meta = checkpoints.describe(1)
    assert meta["update"] == 1 and meta["identity"]["learning_rate"] == 0.05
    assert meta["versions"]["jax"] == jax.__version__
    assert meta["leaves"]["params.w"]["shape"] == [8, 8] and meta["leaves"]["key"]["dtype"] == "key<fry>"


def test_other_number_of_devices(states, tmp_path):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = trees.settle(TinyLearner(mesh=mesh).init(jax.random.key(3)))
    assert spread.envs["position"].sharding.spec == jax.P("data")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, spread)
        assert checkpoints.describe(0)["mesh"] == {"data": 8}
    alone, _ = restore_state(tmp_path, states[0])
    assert_same(alone, spread)
    assert alone.envs["position"].sharding.device_set == {jax.devices()[0]}
    with Checkpoints(tmp_path / "one") as checkpoints:
        checkpoints.save(0, states[0])
    found, _ = restore_state(tmp_path / "one", spread)
    assert_same(found, states[0])
    assert found.envs["keys"].sharding.spec == jax.P("data")
    assert len(found.params["w"].sharding.device_set) == 8


def test_saving_survives_donation(tmp_path):
    """The next update overwrites the donated state while the files are still being written."""
    learner = TinyLearner(size=512)
    state = trees.settle(learner.init(jax.random.key(0)))
    update = jax.jit(learner.update, donate_argnums=0)
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        kept = []
        for i in range(3):
            kept.append(jax.tree.map(lambda x: x.copy(), state))
            checkpoints.save(i, state)
            # frozen is not donated by the loop, and must not be here
            state = update(state.replace(frozen=jax.tree.map(lambda x: x.copy(), state.frozen)))[0]
            state = state.replace(frozen=kept[-1].frozen)
        checkpoints.wait()
        for i in range(3):
            assert_same(checkpoints.restore(kept[0], i)[0], kept[i])


def test_another_configuration_is_refused_by_name(states, folder):
    other = dataclasses.replace(Config(), learning_rate=0.1, num_updates=99)
    with pytest.raises(CheckpointError, match=r"learning_rate: 0.05 -> 0.1"):
        restore_state(folder, states[0], config=other)
    longer = dataclasses.replace(Config(), num_updates=99, run=dataclasses.replace(Config().run, name="n", keep=9))
    assert restore_state(folder, states[0], config=longer)[1] == 2


@dataclasses.dataclass(frozen=True)
class Inner:
    old: float = 1.0
    new: float = 2.0


@dataclasses.dataclass(frozen=True)
class Since:
    """A configuration that has grown: an option, one of an inner part, and a whole part."""

    steps: int
    rate: float = 0.5
    inner: Inner = Inner(old=3.0)
    part: Inner = dataclasses.field(default_factory=lambda: Inner(new=7.0))
    note: str = dataclasses.field(default="", metadata=FREE)


BEFORE = {"steps": 4, "inner.old": 3.0}


def test_an_older_configuration_is_completed_as_its_file_is(tmp_path):
    """By the same defaults: an inner part's own for a part that was there, the outer one's for a part that was not."""
    assert configs.completed(BEFORE, Since(4)) == configs.identity(Since(4, inner=Inner(3.0, 2.0)))
    (tmp_path / "config.json").write_text(json.dumps({"steps": 4, "inner": {"old": 3.0}}))
    assert configs.completed(BEFORE, Since(4)) == configs.identity(load_config(Since, tmp_path / "config.json"))
    assert configs.completed({}, Since(4)) == {k: v for k, v in configs.identity(Since(4)).items() if k != "steps"}


def test_a_run_of_before_an_option_was_added_goes_on(states, tmp_path):
    with Checkpoints(tmp_path, config=Since(4)) as checkpoints:
        checkpoints.identity = BEFORE  # as an older version wrote it
        checkpoints.save(0, states[0])
    assert restore_state(tmp_path, states[0], config=Since(4))[1] == 0
    assert restore_state(tmp_path, states[0], config=Since(4, note="free"))[1] == 0
    for changed, told in {
        Since(4, rate=0.1): "rate: 0.5 -> 0.1",
        Since(4, part=Inner()): "part.new: 7.0 -> 2.0",
        Since(4, inner=Inner(3.0, 5.0)): "inner.new: 2.0 -> 5.0",
        Since(5): "steps: 4 -> 5",
    }.items():
        with pytest.raises(CheckpointError, match=told):
            restore_state(tmp_path, states[0], config=changed)
    with Checkpoints(tmp_path / "more", config=Since(4)) as checkpoints:
        checkpoints.identity = {**BEFORE, "gone": 1}
        checkpoints.save(0, states[0])
    with pytest.raises(CheckpointError, match="gone: 1 -> absent"):
        restore_state(tmp_path / "more", states[0], config=Since(4))


def test_another_state_is_refused_by_name(states, folder):
    like = states[0].replace(params={"w": jnp.zeros((4, 4)), "new": jnp.zeros(2)})
    with pytest.raises(CheckpointError) as error:
        restore_state(folder, like)
    for part in (
        "params.new is not",
        "params.half is only",
        "params.w is float32[8, 8], not float32[4, 4]",
    ):
        assert part in str(error.value)
    like = states[0].replace(frozen={"target": states[0].frozen["target"]})
    with pytest.raises(CheckpointError, match="frozen.*other leaves.*words"):
        restore_state(folder, like)


def test_nothing_to_restore(states, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        restore_state(tmp_path / "nowhere", states[0])
    with pytest.raises(FileNotFoundError, match="update 7.*0, 1, 2"):
        restore_state(folder, states[0], 7)
    with Checkpoints(tmp_path / "empty") as empty, pytest.raises(FileNotFoundError, match="/empty/checkpoints"):
        empty.restore(states[0])


DAMAGE = ("truncate data", "flip data", "truncate description", "rename in description", "number in description")
DAMAGE += ("delete data", "delete meta")


# tensorstore's callbacks of a failed read come after orbax has closed its event loop
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_the_last_good_one_offered(states, folder, damage):
    newest = folder / "checkpoints" / "2"
    state_files = [p for p in (newest / "state").rglob("*") if p.is_file() and p.parent.name == "d"]
    if damage == "truncate data":
        for p in state_files:
            p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])
    elif damage == "flip data":
        for p in state_files:
            raw = bytearray(p.read_bytes())
            raw[len(raw) // 2] ^= 0x10
            p.write_bytes(bytes(raw))
    elif damage == "delete data":
        shutil.rmtree(newest / "state")
    elif damage == "truncate description":
        p = newest / "meta" / "metadata"
        p.write_text(p.read_text()[:100])
    elif damage.endswith("in description"):
        p, old, new = newest / "meta" / "metadata", '"update"', '"updbte"'
        if damage.startswith("number"):
            old, new = '"devices": 8', '"devices": 9'
        assert old in p.read_text()
        p.write_text(p.read_text().replace(old, new))
    else:
        shutil.rmtree(newest / "meta")
    with pytest.raises(CheckpointError, match="2.*--checkpoint 1$"):
        restore_state(folder, states[0])
    found, at = restore_state(folder, states[0], 1)  # told to
    assert at == 1
    assert_same(found, states[1])


@pytest.mark.slow
def test_late_errors_of_orbax_print_nothing(monkeypatch, caplog):
    """orbax's closed event loop and tasks only: every other error without a place to go is reported as before."""
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    for _ in range(2):
        restoring.mute_late_errors()
    late, other = (SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "other"))
    sys.unraisablehook(late)
    sys.unraisablehook(other)
    assert reported == [other]
    for of in ("orbax/checkpoint/serialization.py", "ours.py"):
        logging.getLogger("asyncio").error(f"Task exception was never retrieved\nfuture: <Task defined at {of}:1>")
    assert [record.getMessage()[-7:] for record in caplog.records] == ["s.py:1>"]
    caplog.clear()
    for of in ("DATA_LOSS: Error reading [tensorstore_spec='{}']", "ours"):
        error = f"<Future finished exception=ValueError({of!r})>"
        logging.getLogger("asyncio").error(f"Future exception was never retrieved\nfuture: {error}")
    assert [record.getMessage()[-7:] for record in caplog.records] == ["ours')>"]
    caplog.clear()
    for of in ("orbax/checkpoint/serialization.py", "ours.py"):  # a gathering names its file in the traceback only
        _gathered_error(of)
    assert [record.getMessage()[:16] for record in caplog.records] == ["_GatheringFuture"]


def _gathered_error(file: str) -> None:
    """An error of gathered tasks that is never retrieved, raised by code of this file."""
    code = compile("async def write():\n    raise ValueError('the disk is full')", file, "exec")
    names: dict = {}
    exec(code, names)

    async def main():
        asyncio.gather(names["write"](), asyncio.sleep(0))
        await asyncio.sleep(0.01)

    asyncio.run(main())
    gc.collect()


def test_contents_that_changed_are_named(states, folder):
    """Even where the file format notices nothing: the checksum of each leaf does."""
    p = folder / "checkpoints" / "2" / "meta" / "metadata"
    meta = json.loads(p.read_text())
    del meta["sum"]  # as if the file had been written so
    meta["leaves"]["opt.0.mu.w"]["checksum"] ^= 1
    p.write_text(json.dumps(meta))
    with pytest.raises(CheckpointError, match="opt.0.mu.w"):
        restore_state(folder, states[0])


def test_damage_everywhere(states, folder):
    for p in folder.glob("checkpoints/*/meta/metadata"):
        p.write_text("{")
    with pytest.raises(CheckpointError, match=r"checkpoint 2\b.*older"):
        restore_state(folder, states[0])


def test_a_frozen_part_of_another_run_is_noticed(states, folder, tmp_path):
    other = states[0].replace(frozen=jax.tree.map(lambda x: x + 1, states[0].frozen))
    with Checkpoints(tmp_path / "other") as checkpoints:
        checkpoints.save(0, other)
    shutil.rmtree(folder / "frozen")
    shutil.copytree(tmp_path / "other" / "frozen", folder / "frozen")
    with pytest.raises(CheckpointError, match="frozen.target, frozen.words"):
        restore_state(folder, states[0])


def test_a_frozen_part_that_is_the_same_is_not_read_again(tmp_path):
    state = TinyLearner().init(jax.random.key(0))
    other = {**state.frozen, "target": state.frozen["target"] + 1}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(frozen, "read", lambda *args: pytest.fail("read"))
            read, _ = checkpoints.restore(like, fresh=state.frozen)
        assert read.frozen is state.frozen and not checkpoints.notes
        (tmp_path / "frozen" / "d").rename(tmp_path / "frozen" / "e")
        for fresh in ((), other):  # which is read, and is not there
            with pytest.raises(
                CheckpointError,
                match=r"frozen part.*damaged.*--run\.resume",
            ):
                checkpoints.restore(like, fresh=fresh)


@pytest.mark.parametrize("damage", ["a bit", "a file", "everything"])
def test_a_damaged_frozen_part_that_was_loaded_again_is_written_again(damage, tmp_path):
    state = TinyLearner().init(jax.random.key(0))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    (broken,) = (tmp_path / "frozen" / "d").iterdir()  # other files are not needed to read the arrays
    if damage == "a bit":  # of the same size
        raw = bytearray(broken.read_bytes())
        raw[len(raw) // 2] ^= 0x10
        broken.write_bytes(bytes(raw))
        os.utime(broken, (0, time.time() + 9))  # not in the second in which it was written
    elif damage == "a file":
        broken.unlink()
    else:
        shutil.rmtree(tmp_path / "frozen")
    named = {"a bit": f"{broken} has changed", "a file": f"{broken} is missing"}.get(damage, "frozen is missing")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.restore(like, fresh=state.frozen)
        (note,) = checkpoints.notes
        assert note.startswith("the files of the frozen part changed (") and f"{named}): it was written again" in note
    assert_same(restore_state(tmp_path, state)[0], state)  # without a model to load again, as an evaluation reads it
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.restore(like, fresh=state.frozen)
        assert not checkpoints.notes


@pytest.mark.parametrize("how", ["copied", "earlier version", "earlier version without sums"])
def test_a_frozen_part_whose_files_look_changed_is_read_once(how, tmp_path, monkeypatch):
    state = TinyLearner().init(jax.random.key(0))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    record = tmp_path / "frozen.json"
    if how == "copied":
        for path in (tmp_path / "frozen").rglob("*"):
            os.utime(path, (9, 9))
    elif how == "earlier version":
        record.write_text(
            json.dumps({name: [facts["size"], 1] for name, facts in json.loads(record.read_text()).items()})
        )
    else:
        record.unlink()
    reads = []
    read = frozen.read
    monkeypatch.setattr(frozen, "read", lambda root, like: reads.append(list(like)) or read(root, like))
    monkeypatch.setattr(frozen, "write", lambda *args: pytest.fail("written"))
    monkeypatch.setattr(frozen, "PORTION_BYTES", 200)  # the target has 256 bytes, the words 10
    for _ in range(2):
        with Checkpoints(tmp_path) as checkpoints:
            assert checkpoints.restore(like, fresh=state.frozen)[0].frozen is state.frozen and not checkpoints.notes
        assert reads == [["target"], ["words"]]


def test_a_part_of_the_frozen_arrays_is_read_in_its_own_shape(states, folder):
    words = states[0].frozen["words"]
    np.testing.assert_array_equal(frozen.read(folder / "frozen", {"words": words})["words"], words)
    with pytest.raises(ValueError, match="shape"):
        frozen.read(folder / "frozen", {"words": jnp.zeros(7, words.dtype)})
    assert frozen.read(folder / "frozen", {}) == {}


@pytest.mark.parametrize("changed", [{"jax": "0.1"}, {"jaxlib": "0.2", "numpy": "1.0"}, {"device": "NVIDIA H100"}, {}])
def test_another_jax_or_device_is_named(states, folder, changed):
    """Programs of another compiler or for another device round differently."""
    path = folder / "checkpoints" / "2" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    del meta["sum"]  # as if the file had been written so
    meta["versions"] |= {name: version for name, version in changed.items() if name != "device"}
    meta |= {name: kind for name, kind in changed.items() if name == "device"}
    path.write_text(json.dumps(meta))
    with Checkpoints(folder, read_only=True) as checkpoints:
        checkpoints.restore(states[0])
    said = {
        "jax": f"(jax 0.1 -> {jax.__version__})",
        "jaxlib": "(jaxlib 0.2 -> ",
        "device": "(device NVIDIA H100 -> cpu (",
    }
    wanted = [said[name] for name in changed if name in said]
    assert len(checkpoints.notes) == len(wanted) and all(text in checkpoints.notes[0] for text in wanted)
    assert not wanted or "may differ in its last bits" in checkpoints.notes[0]


def test_a_frozen_part_without_a_checkpoint_is_written_anew(states, tmp_path):
    """Folder of a run that was killed while it wrote its first checkpoint, and began with other weights."""
    other = states[0].replace(frozen=jax.tree.map(lambda x: x + 1, states[0].frozen))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, other)
    shutil.rmtree(tmp_path / "checkpoints" / "0")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, states[0])
        checkpoints.save(1, states[1])
    assert_same(restore_state(tmp_path, states[0])[0], states[1])


def test_a_save_without_the_metric_of_the_best_is_the_worst(states, tmp_path):
    """It is kept while it is the newest, and loses to any other later."""
    with Checkpoints(tmp_path, keep=1, best="score") as checkpoints:
        for update, found in enumerate((None, {"score": -5.0}, {"other": 9.0}, {"score": float("nan")})):
            checkpoints.save(update, states[0], found)
            checkpoints.wait()
            assert checkpoints.updates() == [[0], [1], [1, 2], [1, 3]][update]


def test_discard_after(states, folder):
    with Checkpoints(folder, keep=3) as checkpoints:
        checkpoints.discard_after(0)
        assert checkpoints.updates() == [0]


def test_a_save_that_never_finished_does_not_count(states, folder):
    half = folder / "checkpoints" / "3.orbax-checkpoint-tmp"
    shutil.copytree(folder / "checkpoints" / "2", half)
    with Checkpoints(folder, read_only=True) as checkpoints:
        assert checkpoints.latest() == 2
    with Checkpoints(folder) as checkpoints:
        assert checkpoints.latest() == 2
        checkpoints.save(3, states[2])
        checkpoints.wait()
        assert checkpoints.latest() == 3
    assert not half.exists()


def test_checksums():
    x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    base = trees.checksums({"x": x})["x"]
    assert trees.checksums({"x": x.at[1, 2].set(6.0000005)})["x"] != base
    assert trees.checksums({"x": x[:, ::-1]})["x"] != base and trees.checksums({"x": x[::-1]})["x"] != base
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P(None, "data")))
    assert trees.checksums({"x": spread})["x"] == base
    # by hand, of version 1: 1 * 1 + 2 * (1 + 2 * odd), for the words 1 and 2
    odd = 2654435761
    assert trees.checksums({"x": jnp.array([1, 2], jnp.int32)}, 1)["x"] == (1 + 2 * (1 + 2 * odd)) % 2**32


def test_rows_of_equal_sums_that_are_exchanged_change_the_checksum():
    rows = jnp.array([[1, 4, 0], [2, 2, 1], [5, 0, 0], [0, 0, 5]], jnp.int32)
    for order in ([1, 0, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2], [2, 3, 0, 1]):
        other = {"rows": rows[np.array(order)]}
        assert trees.checksums(other, 1) == trees.checksums({"rows": rows}, 1)  # what version 1 does not notice
        assert trees.checksums(other) != trees.checksums({"rows": rows})


def test_a_checkpoint_of_format_1_is_read_and_continued_in_the_current_format(states, written, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(written, old)
    for update in range(3):
        path = old / "checkpoints" / str(update) / "meta" / "metadata"
        meta = json.loads(path.read_text())
        del meta["sum"]  # as if the file had been written so
        rest = trees.named_leaves(states[update].replace(frozen=()))
        sums = trees.checksums({name: raw(x) for name, x in rest.items()}, 1)
        for name, leaf in meta["leaves"].items():
            leaf["checksum"] = sums[name]
        frozen = {name: raw(x) for name, x in trees.named_leaves(states[update].frozen).items()}
        path.write_text(json.dumps({**meta, "format": 1, "frozen": trees.checksums(frozen, 1)}))
    with Checkpoints(old, keep=3, config=Config()) as checkpoints:
        for fresh in ((), states[2].frozen):
            assert_same(checkpoints.restore(states[2], fresh=fresh)[0], states[2])
        checkpoints.save(3, states[2])
        checkpoints.wait()
        assert checkpoints.describe(3)["format"] == 2
        assert_same(checkpoints.restore(states[2], 3)[0], states[2])
        other = {**states[2].frozen, "target": states[2].frozen["target"] + 1}  # other weights: the saved ones are used
        assert_same(checkpoints.restore(states[2], 2, fresh=other)[0], states[2])


def test_a_checkpoint_of_a_later_format_is_refused(states, folder):
    path = folder / "checkpoints" / "2" / "meta" / "metadata"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3, "sum": None}))
    with pytest.raises(CheckpointError, match="format 3.*1.*2"):
        restore_state(folder, states[0])


def test_non_finite_names_leaves():
    tree = {"a": jnp.array([1.0, jnp.inf]), "b": jnp.ones(2), "c": jnp.arange(3), "d": jnp.zeros(0)}
    assert trees.non_finite(tree) == ["a"] and trees.non_finite(()) == []


def test_names_must_differ():
    with pytest.raises(ValueError, match=r"leaves.*'a\.b'"):
        trees.named_leaves({"a": {"b": 1}, "a.b": 2})
