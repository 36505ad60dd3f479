"""What a video shows of an episode, and that it fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import struct
from PIL import Image

from llmrl_jax.agents.play import Episode
from llmrl_jax.lm.encoder import HashedEncoder
from llmrl_jax.report.video import INDENT, MARGIN, PANEL, SIDE, TEXT, Section, draw_panel, fitted, font, scaled
from llmrl_jax.systems.ellm import eval
from llmrl_jax.systems.ellm.open_goals import start_goals
from tests.ellm_world import NAMES, Yard


CHOP, PLACE, BUILD = (NAMES.index(x) for x in ("chop tree", "place table", "build table"))


@struct.dataclass
class State:
    reached: Any
    goals: Any
    earned: Any


def episode():
    """Two steps: a tree is chopped, a table is placed, which also reaches its synonym."""
    reached = np.zeros((3, len(NAMES)), bool)
    reached[1:, CHOP] = reached[2, [PLACE, BUILD]] = True
    goals = np.array([[CHOP, -1, -1], [PLACE, BUILD, -1], [-1, -1, -1]])
    state = State(reached, goals, np.array([0, 1, 2], np.float32))
    text = np.array([[0, -1], [0, 5], [0, -1]], np.int16)
    seen, end = (jax.tree.map(lambda x, part=part: x[part], {"obs": text, "state": state}) for part in (np.s_[:2], 2))
    flags = np.zeros(2, bool), np.array([False, True])
    return Episode(0, True, seen, np.array([CHOP, BUILD]), np.ones(2, np.float32), *flags, end)


def test_what_is_said_about_an_episode():
    yard = Yard()
    played = episode()
    yard.spec = yard.goal_spec()
    yard.describe = lambda text: {"text": yard.captions["text"].render(text), "goals": "as the agent sees them"}
    params = SimpleNamespace(goals=start_goals(NAMES, (("place table", "build table"),), HashedEncoder(), len(NAMES)))
    chop, build, end = eval.frames_of(yard, params, played)
    assert chop.goals == ("chop tree",) and chop.action == chop.reached == "chop tree"
    assert chop.earned == chop.total == 1 and not chop.so_far
    assert build.goals == ("place table", "build table") and build.so_far == ("chop tree",)
    assert build.reached == "build table"  # of both, the one that was done
    assert (end.action, end.reached, end.total, end.so_far) == ("", "", 2.0, ("chop tree", "build table"))
    assert end.captions == (yard.captions["text"].phrases[0],) and len(build.captions) == 2


@pytest.mark.parametrize("count", [1, 40])
def test_lines_fit_the_panel(count):
    """Long lists and long words stay inside their panel, and what is left out is said."""
    words = f"with more words than fit in one line of the panel, {'x' * 80}"
    section = Section("goals", [f"goal {i} {words}" for i in range(count)])
    lines = fitted(section, PANEL)
    assert len(lines) <= section.most and max(font(TEXT).getlength(line) for line in lines) <= PANEL
    assert (count == 1) == (not lines[-1].startswith("… and")) and any(line.startswith(INDENT) for line in lines)
    frame = draw_panel(np.zeros((4, 20, 3), np.uint8), "step 0", [section] * 9, "the end")
    paper = frame[:, -MARGIN:], frame[-MARGIN // 2 :], frame[:MARGIN]
    assert all((x == 255).all() for x in paper) and (frame[MARGIN:-MARGIN, SIDE + MARGIN :] < 255).any()


def test_pictures_fill_their_square():
    small = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    grown = np.asarray(scaled(small, 43))
    np.testing.assert_array_equal(grown, small.repeat(8, 0).repeat(8, 1))  # sharp: a whole number of pixels each
    assert scaled(np.zeros((288, 288, 3), np.uint8)).size == (SIDE, SIDE)
    assert isinstance(scaled(small), Image.Image)


def test_a_run_of_several_seeds_is_evaluated_over_them(tmp_path, monkeypatch):
    calls, config = [], SimpleNamespace(seeds=2)
    monkeypatch.setattr(eval, "load_run", lambda *_: (config, None, None, 3))
    monkeypatch.setattr(eval.run_evaluation, "evaluate", lambda *args, **options: calls.append((args, options)) or {})
    eval.evaluate(tmp_path, episodes=5, seed=4)
    assert calls == [((tmp_path, config), {"episodes": 5, "checkpoint": -1, "seed": 4, "gif": False, "json": False})]
    with pytest.raises(ValueError, match="2 seeds.*--goals"):
        eval.evaluate(tmp_path, goals=("eat plant",))
