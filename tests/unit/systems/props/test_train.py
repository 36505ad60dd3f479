"""The curves of searches say what is drawn."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from llmrl_jax.systems.props import train as pictures


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """`draw_curves` of searches of `{task: (bound, number of searches)}`; gives the figure."""
    kept = []
    monkeypatch.setattr(pictures.figures, "save", lambda figure, path: kept.append(figure) or path)

    def draw(tasks):
        logs, each = {}, []
        for name, (bound, count) in tasks.items():
            for i in range(count):
                path = tmp_path / f"{name}-{i}.jsonl"
                lines = [{"values": [n, n - 1.0], "best": n, "episodes": 20 * n} for n in (1, 2, 3)]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
                logs[path.stem] = path
                each.append(SimpleNamespace(name=name, title=name, bound=bound))
        pictures.draw_curves(tmp_path / "curves.png", logs, each)
        return kept.pop()

    return draw


def test_the_legend_explains_lines_points_and_bounds_and_names_the_searches(drawn):
    figure = drawn({"nim": (1.0, 2), "swimmer": (None, 1), "pong": (3.0, pictures.MOST_NAMES + 1)})
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["best so far, a line per search", "best of a round", "largest possible mean"]
    named = [axis.get_legend() and [text.get_text() for text in axis.get_legend().get_texts()] for axis in figure.axes]
    assert named == [["nim-0", "nim-1"], None, None], "one search needs no name, many have no room for theirs"
    only = [text.get_text() for text in drawn({"swimmer": (None, 1)}).legends[0].get_texts()]
    assert "largest possible mean" not in only and len(only) == 2
