"""Runs of searches: their results, and the curves that show them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.props import train as train
from llmrl_jax.systems.props.config import PropsConfig, PropsRun, ReplyConfig
from llmrl_jax.systems.props.scripted import PolicyAdviser
from llmrl_jax.systems.props.study import Study
from llmrl_jax.systems.props.tasks import get
from llmrl_jax.workflows.chat_model import ChatConfig, make_chat
from tests.props_says import Says


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """`draw_curves` of searches of `{task: (bound, number of searches)}`; gives the figure."""
    kept = []
    monkeypatch.setattr(train.figures, "save", lambda figure, path: kept.append(figure) or path)

    def draw(tasks):
        logs, each = {}, []
        for name, (bound, count) in tasks.items():
            for i in range(count):
                path = tmp_path / f"{name}-{i}.jsonl"
                lines = [{"values": [n, n - 1.0], "best": n, "episodes": 20 * n} for n in (1, 2, 3)]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
                logs[path.stem] = path
                each.append(SimpleNamespace(name=name, title=name, bound=bound))
        train.draw_curves(tmp_path / "curves.png", logs, each)
        return kept.pop()

    return draw


def test_the_legend_explains_lines_points_and_bounds_and_names_the_searches(drawn):
    figure = drawn({"nim": (1.0, 2), "swimmer": (None, 1), "pong": (3.0, train.MOST_NAMES + 1)})
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["best so far, a line per search", "best of a round", "largest possible mean"]
    named = [axis.get_legend() and [text.get_text() for text in axis.get_legend().get_texts()] for axis in figure.axes]
    assert named == [["nim-0", "nim-1"], None, None], "one search needs no name, many have no room for theirs"
    only = [text.get_text() for text in drawn({"swimmer": (None, 1)}).legends[0].get_texts()]
    assert "largest possible mean" not in only and len(only) == 2


def searched(folder, config, *replies):
    """The summary of a search of Nim, played on by a model with these replies."""
    model = Says(*replies)
    study = Study(get("nim"), config, 0, model, {"temperature": 1.0, "max_tokens": 2048}, folder)
    chat = make_chat(ChatConfig(), PolicyAdviser(), folder)
    (summary,) = train._search_all([study], PropsRun(tasks=("nim",), search=config), StopRequest(), chat)
    return study, summary


def table_of(actions):
    return "; ".join(f"params[{i}]: {a}" for i, a in enumerate(actions))


def test_a_search_that_stopped_in_its_last_iteration_has_a_new_result_when_it_goes_on(tmp_path):
    reply = ReplyConfig(retries=0, on_failure="stop")
    config = PropsConfig(iterations=2, episodes=2, warmup=0, final_episodes=3, reply=reply)
    _, first = searched(tmp_path, config, table_of([0] * 11), "no proposal")
    assert first["finished"] and first["stopped"] and first["candidates"] == 1
    study, summary = searched(tmp_path, config, table_of([1] * 11))
    assert summary["stopped"] == "" and summary["candidates"] == 2 == study.result.candidates
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["candidates"] == 2
    assert searched(tmp_path, config)[1] == saved, "nothing is left to play"


def test_the_traceback_of_a_failure_goes_when_the_search_goes_on(tmp_path):
    config = PropsConfig(iterations=1, episodes=2, warmup=0, final_episodes=3)
    _, first = searched(tmp_path, config)  # a model without replies
    assert first["stopped"].startswith("IndexError") and "IndexError" in (tmp_path / "error.txt").read_text()
    _, summary = searched(tmp_path, config, table_of([0] * 11))
    assert summary["finished"] and not (tmp_path / "error.txt").exists()
