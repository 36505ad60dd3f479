"""What a learner and the host exchange between updates, and that nothing but the answers decides the bits."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core.learner import Exchange
from llmrl_jax.parallel import make_mesh
from llmrl_jax.run import exchange, metrics, pytrees as trees
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunStopped, train
from tests.resume.tiny import ASKED, KEYS, AskingLearner, TinyLearner, evaluate, value_of


def run_config(tmp_path, **options) -> RunConfig:
    return RunConfig(**{"name": "run", "out": str(tmp_path), "progress": "off", "log_every": 3, **options})


class Recorded:
    """`value_of`, with the requests that it got."""

    def __init__(self, fails: int = 0):
        self.asked: list[list[int]] = []
        self.updates: list[int] = []
        self.fails = fails

    def __call__(self, request):
        self.asked.append(request["keys"].tolist())
        self.updates.append(int(request.get("update", -1)))
        if len(self.asked) == self.fails:
            raise RuntimeError("the server is down")
        return value_of(request)


def assert_same(a, b) -> None:
    x, y = trees.named_leaves(a), trees.named_leaves(b)
    assert x.keys() == y.keys()
    for name in x:
        u, v = (jax.random.key_data(leaf) if trees.is_key(leaf) else leaf for leaf in (x[name], y[name]))
        np.testing.assert_array_equal(np.asarray(u), np.asarray(v), err_msg=name)


def whole_run(ahead, folder):
    """18 updates, an exchange after each 4th: the learner without its answer, how it ended, the requests."""
    learner, answer = AskingLearner(ahead=ahead), Recorded()
    return learner, train(dataclasses.replace(learner, answer=answer), run_config(folder), num_updates=18), answer


@pytest.fixture(scope="module")
def waits(tmp_path_factory):
    """A learner that asks and waits."""
    return whole_run(False, tmp_path_factory.mktemp("waits"))


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """A learner whose answers come one exchange later."""
    return whole_run(True, tmp_path_factory.mktemp("ahead"))


@pytest.fixture(params=["waits", "ahead"])
def whole(request):
    return request.getfixturevalue(request.param)


def again(whole, config, answer, updates=18, **options):
    return train(dataclasses.replace(whole[0], answer=answer), config, num_updates=updates, **options)


def test_the_host_is_asked_after_fixed_updates(whole):
    """The answers are in the table; keys that were met since the last exchange are not."""
    learner, done, answer = whole
    assert len(answer.asked) == 4
    if not learner.ahead:
        assert answer.updates == [4, 8, 12, 16]
    else:
        assert answer.asked[0] == [-1] * ASKED, "nothing was gathered before the first exchange"
    keys = [key for request in answer.asked for key in request if key >= 0]
    assert len(keys) == len(set(keys)) > 10, "each is asked for once"
    table = {name: np.asarray(done.state.envs[name]) for name in ("value", "known", "met")}
    assert np.flatnonzero(table["known"]).tolist() == sorted(keys)
    np.testing.assert_array_equal(table["value"][keys], np.sin(np.asarray(keys) + 1.0).astype(np.float32))
    assert table["met"].sum() > len(keys) and not table["value"][~table["known"]].any() and KEYS == len(table["met"])


def test_intervals_and_chunks_do_not_change_the_bits(whole, tmp_path):
    answer = Recorded()
    config = run_config(tmp_path, log_every=5, checkpoint_every=7, eval_every=2, keep=9)
    done = again(whole, config, answer, evaluate=evaluate)
    assert_same(done.state, whole[1].state)
    assert (answer.asked, answer.updates) == (whole[2].asked, whole[2].updates)


def test_other_answers_are_other_bits(waits, tmp_path):
    done = again(waits, run_config(tmp_path), lambda request: {**value_of(request), "value": np.full(ASKED, 0.5)})
    assert (np.asarray(done.state.params["w"]) != np.asarray(waits[1].state.params["w"])).all()


def test_a_run_goes_on_between_exchanges_and_at_one(whole, tmp_path):
    answer = Recorded()
    again(whole, run_config(tmp_path), answer, updates=6)
    again(whole, run_config(tmp_path, resume=True), answer, updates=8)
    assert len(answer.asked) == 1, "there is no exchange after the last update"
    done = again(whole, run_config(tmp_path, resume=True), answer)
    assert_same(done.state, whole[1].state)
    assert answer.asked == whole[2].asked
    lines = [line for line in metrics.read(done.folder / "metrics.jsonl") if line["kind"] == "train"]
    waited = [line["exchange_seconds"] for line in lines]
    assert waited == sorted(waited) and waited[0] == 0 < waited[-1]


@pytest.mark.slow
def test_no_answer_stops_the_run_where_it_can_go_on(whole, tmp_path):
    answer, folder = Recorded(fails=3), tmp_path / "run"
    expected = rf"update 12 .*RuntimeError.*server is down.*update 12;.*--run\.resume {folder}$"
    with pytest.raises(RunStopped, match=expected) as caught:
        again(whole, run_config(tmp_path), answer)
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError) and "\n" not in str(caught.value)
    with Checkpoints(folder, read_only=True) as saved:
        assert saved.updates() == [12]
    train_lines = [x for x in metrics.read(folder / "metrics.jsonl") if x["kind"] == "train"]
    assert [x["update"] for x in train_lines] == [3, 6, 9, 12]
    done = again(whole, run_config(tmp_path, resume=True), answer)
    assert_same(done.state, whole[1].state)
    assert answer.asked == whole[2].asked[:3] + whole[2].asked[2:], "the third was asked for once more"


def test_a_signal_does_not_wait_for_an_answer(waits, tmp_path):
    held = threading.Event()

    def hangs(request):
        if len(answer.asked) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            held.wait(60)
        return answer(request)

    answer, started = Recorded(), time.monotonic()
    done = again(waits, run_config(tmp_path), hangs)
    assert (done.stopped, done.update) == ("SIGTERM", 8) and time.monotonic() - started < 50
    held.set()
    with Checkpoints(done.folder, read_only=True) as saved:
        assert saved.updates() == [8]
    answer = Recorded()
    assert_same(again(waits, run_config(tmp_path, resume=True), answer).state, waits[1].state)
    assert answer.asked == waits[2].asked[1:]


@pytest.mark.slow
def test_the_number_of_devices_does_not_change_what_is_exchanged(waits, tmp_path):
    answer = Recorded()
    learner = dataclasses.replace(waits[0], mesh=make_mesh("data=8"))
    done = again((learner,), run_config(tmp_path), answer)
    assert answer.asked == waits[2].asked
    for name in ("value", "known", "met", "asked"):
        np.testing.assert_array_equal(done.state.envs[name], waits[1].state.envs[name])
    assert len(done.state.envs["position"].sharding.device_set) == 8, "the state keeps its place"
    # cut at an exchange, and continued on one device
    cut = Recorded()
    train(dataclasses.replace(learner, answer=cut), run_config(tmp_path, name="cut"), num_updates=8)
    rest = again(waits, run_config(tmp_path, name="cut", resume=True), cut)
    assert cut.asked == waits[2].asked and int(rest.state.update) == 18


def test_an_answer_comes_while_updates_go_on(tmp_path):
    """The host is asked at the exchange before, and updates do not wait: they are what the answer waits for."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Watched(AskingLearner):
        def update(self, state):
            jax.debug.callback(lambda update: seen.append(int(update)), state.update)
            return super().update(state)

    def waits(request):
        limit = time.monotonic() + 60
        while len(seen) < 4 * asked[0] + 2 and time.monotonic() < limit:
            time.sleep(0.01)
        asked[0] += 1
        return value_of(request)

    asked = [0]
    done = train(Watched(ahead=True, answer=waits), run_config(tmp_path), num_updates=12)
    assert done.update == 12 and asked == [2], "for the exchanges after 4 and 8; there is none after 12"


def test_a_request_that_changes_after_it_was_asked_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Wrong(AskingLearner):
        def request(self, state):
            return {"keys": self.unknown(state.envs)}

    with pytest.raises(RunStopped, match="ahead=True"):
        train(Wrong(ahead=True), run_config(tmp_path), num_updates=8)


def one_exchange(tmp_path, **parts):
    """A run of `TinyLearner` with one exchange, after update 1."""
    given = {
        "request": lambda state: {"x": state.update},
        "answer": lambda request: request,
        "take": lambda state, answer: state,
    }

    class Exchanging(TinyLearner):
        exchange = Exchange(1, **{**given, **parts})

    return train(Exchanging(), run_config(tmp_path), num_updates=2)


def test_what_cannot_be_exchanged_is_refused(tmp_path):
    run = partial(one_exchange, tmp_path)
    with pytest.raises(ValueError, match="exchange.every.*0.*1"):
        Exchange(0, lambda s: {}, lambda r: {}, lambda s, a: s)
    with pytest.raises(ValueError, match="request.*dict"):
        one_exchange(tmp_path / "1", request=lambda state: [state.update])
    with pytest.raises(ValueError, match=r"jax\.random\.key_data"):
        one_exchange(tmp_path / "2", request=lambda state: {"key": state.key})
    with pytest.raises(RunStopped, match="update 1.*list"):
        one_exchange(tmp_path / "3", answer=lambda request: [1])
    with pytest.raises(RunStopped, match="'text'.*<U5.*bool, int.*float"):
        one_exchange(tmp_path / "4", answer=lambda request: {"text": "hello"})
    changed = r"key .*missing.*params\.w.*float32.4, 8. .*float32.8, 8"
    with pytest.raises(ValueError, match=changed):
        run(take=lambda state, answer: state.replace(key=None, params={**state.params, "w": state.params["w"][:4]}))


def test_a_weak_type_and_a_number_of_another_width_are_taken(tmp_path):
    done = one_exchange(
        tmp_path,
        answer=lambda request: {"x": np.float64(0.5), "n": np.int64(3)},
        take=lambda state, answer: state.replace(
            envs={**state.envs, "flag": jnp.full(16, answer["n"] == 3)}, opt=jax.tree.map(lambda x: x, state.opt)
        ),
    )
    assert done.update == 2


def test_messages_between_processes_are_what_was_sent():
    arrays = {"a/b": np.arange(6.0).reshape(2, 3), "n": np.int32(4), "none": np.zeros((0, 2), bool)}
    arrays["file"] = np.asarray(arrays["n"])
    found = exchange._unpacked(exchange._packed(arrays))
    assert list(found) == ["a/b", "n", "none", "file"]
    for name in found:
        np.testing.assert_array_equal(found[name], arrays[name])
        assert found[name].dtype == arrays[name].dtype and found[name].shape == arrays[name].shape
    for other in (None, "the server said\nno"):
        assert exchange._unpacked(exchange._packed(other)) == other
