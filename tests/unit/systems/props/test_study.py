"""One search by every method: its log is whole, and a search goes on from its log alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmrl_jax.chat import Cached, ScriptedAdviser
from llmrl_jax.systems.props.config import PolicyConfig, PropsConfig, ReplyConfig
from llmrl_jax.systems.props.prompts import HistoryView
from llmrl_jax.systems.props.scripted import PolicyAdviser
from llmrl_jax.systems.props.study import Study
from llmrl_jax.systems.props.tasks import get


CHAT = {"temperature": 1.0, "max_tokens": 2048}
SMALL = {"iterations": 4, "episodes": 3, "final_episodes": 5, "max_steps": 30}


def study(folder, config, task="cartpole", seed=0, model=None):
    return Study(get(task), config, seed, model or PolicyAdviser(), CHAT, folder)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("cartpole", {"method": "props", "warmup": 2, "proposals": 2, "polish": "hill_climbing", "polish_rounds": 1}),
        pytest.param(
            "nim",
            {"method": "props+", "warmup": 1, "history": HistoryView(trajectory_steps=5), "max_steps": 10},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cartpole", {"method": "legacy", "use_replay_buffer": True, "buffer_rows": 5}, marks=pytest.mark.slow
        ),
        pytest.param("cartpole", {"method": "random_search", "iterations": 30}, marks=pytest.mark.slow),
        pytest.param("cartpole", {"method": "ars", "iterations": 30}, marks=pytest.mark.slow),
    ],
    ids=["props", "props+", "legacy", "numeric", "centers"],
)
def test_an_interrupted_search_goes_on_to_the_bit(tmp_path, task, options):
    config = PropsConfig(**SMALL | options)
    whole = study(tmp_path / "whole", config, task)
    whole.run()
    part = study(tmp_path / "part", config, task)
    left = iter(range(2))
    part.run(lambda: next(left, None) is None)
    assert 0 < part.result.rounds < whole.result.rounds
    with part.log.open("a") as file:
        file.write('{"round": 2, "par')  # a line that a crash cut off
    again = study(tmp_path / "part", config, task)
    assert again.result == part.result
    assert again.run() == whole.result and again.finished
    lines = [[json.loads(text) for text in s.log.read_text().splitlines()] for s in (whole, again)]
    for a, b in zip(*lines, strict=True):
        for clock in ("ask_seconds", "evaluate_seconds"):
            a.pop(clock), b.pop(clock)
        assert a == b
    assert again.judge() == whole.judge()


def test_a_log_says_what_was_evaluated(tmp_path):
    config = PropsConfig(**SMALL | {"warmup": 2, "warmup_episodes": 1})
    found = study(tmp_path, config).run()
    lines = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [np.shape(line["returns"]) for line in lines] == [(2, 1)] + [(1, 3)] * 4
    assert found.candidates == 6 and found.episodes == 2 + 12 == lines[-1]["episodes"]
    assert found.steps == sum(np.sum(line["lengths"]) for line in lines)
    assert found.value == max(max(line["values"]) for line in lines[1:]) == lines[-1]["best"]
    for line in lines:
        np.testing.assert_allclose(line["values"], np.mean(line["returns"], axis=1), rtol=1e-6)
    assert lines[1]["record"]["prompt"][0]["content"].count("f(params):") == 2
    assert lines[1]["record"]["attempts"][0]["reply"].startswith("params[0]:")


@pytest.mark.slow
def test_a_lucky_episode_of_the_warm_up_is_not_the_best(tmp_path):
    """Among many policies of one episode each, some win; no mean of more episodes is as high."""
    config = PropsConfig(**SMALL | {"warmup": 10, "warmup_episodes": 1, "episodes": 20, "max_steps": 10})
    searched = study(tmp_path, config, "nim", seed=5)
    left = iter(range(1))
    first = searched.run(lambda: next(left, None) is None)
    assert first.short and first.value == 1.0 and searched.judge()["short"]  # the best that there is
    found = searched.run()
    lines = [json.loads(text) for text in searched.log.read_text().splitlines()]
    assert lines[0]["best"] == 1.0 and not found.short
    assert found.value == max(max(line["values"]) for line in lines[1:]) == lines[-1]["best"] < 1.0
    top = max(lines[1:], key=lambda line: max(line["values"]))
    assert list(found.params) == top["params"][0] == list(searched.judge()["params"])
    assert study(tmp_path, config, "nim", seed=5).result == found
    longer = PropsConfig(**SMALL | {"warmup": 10, "warmup_episodes": 5, "iterations": 1, "max_steps": 10})
    more = study(tmp_path / "longer", longer, "nim").run()
    lines = [json.loads(text) for text in (tmp_path / "longer" / "log.jsonl").read_text().splitlines()]
    assert more.value == max(max(line["values"]) for line in lines) and not more.short


def test_the_replay_buffer_holds_the_episodes_that_were_evaluated(tmp_path):
    options = {"method": "legacy", "use_replay_buffer": True, "warmup_episodes": 1, "iterations": 1}
    searched = study(tmp_path, PropsConfig(**SMALL | options))
    searched.run()
    lines = [json.loads(text) for text in searched.log.read_text().splitlines()]
    assert [[len(t) for t in line["replay_buffer"]] for line in lines] == [line["lengths"][0] for line in lines]
    assert [len(line["replay_buffer"]) for line in lines] == [1, 3]
    assert study(tmp_path, searched.config).state.episodes == searched.state.episodes


class Wild(ScriptedAdviser):
    """It proposes numbers whose squares float32 cannot hold, and then others."""

    def advise(self, messages, rng):
        tried = messages[0].content.count("f(params):")
        return "\n".join(f"params[0]: {x}; params[1]: {x}; params[2]: {x}" for x in (tried, "1e30", tried + 0.5))


def test_returns_that_are_not_finite_are_told_to_nobody(tmp_path):
    config = PropsConfig(**SMALL | {"warmup": 1, "proposals": 3, "reply": ReplyConfig(beyond="keep")})
    whole = study(tmp_path / "whole", config, "mountain_car_continuous", model=Wild())
    found = whole.run()
    lines = [json.loads(text) for text in whole.log.read_text().splitlines()]
    assert [len(line["params"]) for line in lines] == [1, 2, 2, 2, 2] and "dropped" not in lines[0]
    assert [len(line["dropped"]) for line in lines[1:]] == [1] * 4
    assert set(lines[1]["dropped"][0]["returns"]) <= {"-inf", "nan"}
    assert all(np.isfinite(line["returns"]).all() for line in lines)
    assert found.candidates == 13 and found.episodes == 39 and np.isfinite(found.value)
    played = [row for line in lines for part in (line, *line.get("dropped", ())) for row in np.ravel(part["lengths"])]
    assert len(played) == 39 and found.steps == sum(played)
    assert "1e+30" not in lines[-1]["record"]["prompt"][0]["content"]
    assert study(tmp_path / "whole", config, "mountain_car_continuous", model=Wild()).result == found


@pytest.mark.slow
def test_the_last_proposal_is_polished_too(tmp_path):
    config = PropsConfig(**SMALL | {"iterations": 1, "warmup": 0, "polish": "cma_es", "polish_rounds": 2})
    searched = study(tmp_path, config, "nim")
    searched.run()
    lines = [json.loads(text) for text in searched.log.read_text().splitlines()]
    assert [line["record"]["outcome"] for line in lines] == ["proposed", "polish", "polish"]
    again = study(tmp_path, config, "nim")
    assert again.finished and again.result == searched.result


def test_the_dialogue_is_polished(tmp_path):
    options = {"method": "legacy", "iterations": 1, "polish": "cem", "polish_rounds": 1}
    found = study(tmp_path, PropsConfig(**SMALL | options)).run()
    assert found.rounds == 4  # the first matrix and the one proposed, each polished


def test_the_dialogue_keeps_to_the_box_where_that_is_asked(tmp_path):
    class Far(ScriptedAdviser):
        def advise(self, messages, rng):
            return "\n".join(["1000, 1000"] * 5)

    rejecting = {"method": "legacy", "iterations": 1, "reply": ReplyConfig(beyond="reject", retries=0)}
    for options, kept in (({"method": "legacy", "iterations": 1}, 1), (rejecting, 0)):
        searched = study(tmp_path / str(kept), PropsConfig(**SMALL | options), model=Far())
        searched.run()
        assert len(json.loads(searched.log.read_text().splitlines()[-1])["params"]) == kept


def test_a_damaged_log_is_left_alone(tmp_path):
    config = PropsConfig(**SMALL | {"warmup": 1})
    log = (searched := study(tmp_path, config)).log
    searched.run()
    lines = log.read_text().splitlines(keepends=True)
    damaged = "".join([lines[0], lines[1][:40] + "\n", *lines[2:]])
    log.write_text(damaged)
    with pytest.raises(ValueError, match="line 2"):
        study(tmp_path, config)
    assert log.read_text() == damaged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "cma_es", "hints": 1}, "hints.*1.*cma_es"),
        ({"method": "evollm", "proposals": 2}, "proposals.*2"),
        ({"method": "evollm", "reply": ReplyConfig(beyond="clip")}, r"reply\.beyond.*clip.*evollm"),
        ({"method": "legacy", "warmup": 3}, "warmup.*3"),
        ({"method": "evollm", "history": HistoryView(trajectory_steps=5)}, "history.trajectory-steps.*5"),
        ({"polish_rounds": 2}, "polish_rounds.*2"),
        ({"method": "legacy", "buffer_rows": 2}, "buffer_rows.*2.*use_replay_buffer"),
        ({"method": "props", "block": 2}, "block.*2"),
        ({"polish": "random_search"}, "polish.*'random_search'.*hill_climbing, ars"),
        ({"reply": ReplyConfig(compat="paper"), "proposals": 4}, "proposals.*4"),
        ({"reply": ReplyConfig(compat="paper", beyond="clip")}, "reply.beyond.*clip.*--reply.compat paper"),
        ({"reply": ReplyConfig(compat="paper", finer="keep")}, "reply.finer.*--reply.compat paper"),
        ({"reply": ReplyConfig(compat="paper", repeated="keep")}, "reply.repeated.*--reply.compat paper"),
        ({"method": "legacy", "use_replay_buffer": True, "polish": "cma_es"}, "polish.*cma_es.*use_replay_buffer"),
    ],
)
def test_options_that_a_method_does_not_read_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PropsConfig(**options)


def test_props_plus_shows_episodes_of_tables_as_published(tmp_path):
    small = SMALL | {"iterations": 1, "warmup": 1, "max_steps": 10}
    for name, method, shown in (("nim", "props+", 200), ("nim", "props", 0), ("cartpole", "props+", 0)):
        searched = study(tmp_path / f"{name}-{method}", PropsConfig(**small, method=method), name)
        assert searched.config.view(searched.policy).trajectory_steps == shown
        searched.run()
        prompt = json.loads(searched.log.read_text().splitlines()[-1])["record"]["prompt"][0]["content"]
        assert ("reward" in prompt.split("f(params):", 1)[1]) == bool(shown) or not shown


class Stubborn(ScriptedAdviser):
    """It says the same, whatever it is asked."""

    def advise(self, messages, rng):
        return "params[0]: 1; params[1]: 2"


def test_a_model_that_cannot_be_read_stops_a_search_with_its_reason(tmp_path):
    config = PropsConfig(**SMALL | {"warmup": 1, "reply": ReplyConfig(retries=1, on_failure="stop")})
    found = study(tmp_path, config, model=Stubborn()).run()
    assert "gave no proposal that could be read in iteration 1" in found.stopped
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert [attempt["problems"][0]["reason"] for attempt in line["record"]["attempts"]] == ["missing", "missing"]
    skipping = PropsConfig(**SMALL | {"warmup": 1, "reply": ReplyConfig(retries=0)})
    found = study(tmp_path / "skip", skipping, model=Stubborn()).run()
    assert found.rounds == 5 and found.candidates == 1 and not found.stopped


def test_a_numeric_search_keeps_to_its_rounds_and_ends_with_its_centers(tmp_path):
    config = PropsConfig(**SMALL | {"method": "ars", "iterations": 30})
    search = study(tmp_path, config)
    found = search.run()
    lines = [json.loads(text) for text in search.log.read_text().splitlines()]
    assert [len(line["params"]) for line in lines] == [8, 8, 8, 2] and found.candidates == 26
    assert [line.get("centers", False) for line in lines] == [False] * 3 + [True]
    np.testing.assert_array_equal(lines[-1]["params"], [np.zeros(10), np.clip(search.state.mean, -6, 6)])


def test_a_search_that_stopped_asks_otherwise_when_it_goes_on(tmp_path):
    """The same question would be answered by a cache with the same reply that could not be read."""
    config = PropsConfig(**SMALL | {"warmup": 1, "reply": ReplyConfig(retries=0, on_failure="stop")})
    model = Stubborn()
    stubborn = Cached(model, tmp_path / "cache")
    for _ in range(2):
        first = study(tmp_path / "search", config, model=stubborn)
        assert "gave no proposal" in first.run().stopped and first.result.candidates == 1
    lines = [json.loads(text) for text in first.log.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 1] and "stopped" in lines[1]
    assert lines[1]["record"]["seed"] != lines[2]["record"]["seed"]
    model.advise = PolicyAdviser().advise  # mended, behind the same cache
    again = study(tmp_path / "search", config, model=stubborn)
    assert not again.run().stopped and again.result.candidates == 5
    assert study(tmp_path / "search", config, model=stubborn).result == again.result


def test_a_log_of_other_settings_is_refused(tmp_path):
    study(tmp_path, PropsConfig(**SMALL | {"method": "random_search"})).run()
    with pytest.raises(ValueError, match="policies.*random_search"):
        study(tmp_path, PropsConfig(**SMALL | {"method": "random_search"}), seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "prop"}, "method.*'prop'"),
        ({"episodes": -1}, "episodes.*-1"),
        ({"polish": "cmaes"}, "polish.*'cmaes'"),
        ({"method": "ars", "polish": "cma_es"}, "polish.*cma_es.*ars"),
        ({"optimum": "much"}, "optimum.*'much'"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        PropsConfig(**options)


def test_a_policy_of_another_kind(tmp_path):
    found = study(tmp_path, PropsConfig(**SMALL | {"policy": PolicyConfig(kind="projection", rank=3), "warmup": 1}))
    assert found.policy.num_params == 3
    with pytest.raises(TypeError, match="'table'"):
        study(tmp_path, PropsConfig(policy=PolicyConfig(kind="table")))


def test_the_dialogue_also_fills_tables(tmp_path):
    config = PropsConfig(**SMALL | {"method": "legacy", "max_steps": 10})
    found = study(tmp_path, config, "nim").run()
    assert found.candidates == 5 and set(found.params) <= {0, 1, 2}
