"""The hand-written program of progress, on moves whose values are computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llmrl_jax.advice.sandbox import admit
from llmrl_jax.systems.bkrl.scripted import BABYAI_PROGRAMS


EMPTY, WALL, BALL = 1, 2, 6


@pytest.fixture(scope="module")
def said():
    program = admit(BABYAI_PROGRAMS[1], {"image": view(), "direction": np.int32(0)}, window=3, actions=7)

    def value(views, actions):
        past, direction = np.stack(views[:-1]), np.zeros(3, np.int32)
        given = {"image": past, "direction": direction}
        total, parts = program({"image": views[-1], "direction": np.int32(0)}, given, np.array(actions, np.int32))
        return float(total), {name: float(part) for name, part in parts.items()}

    return value


def view(*balls, wall=False):
    cells = np.full((7, 7, 3), (EMPTY, 0, 0), np.int32)
    for x, y in balls:
        cells[x, y, 0] = BALL
    if wall:
        cells[3, 5, 0] = WALL
    return cells


def test_ground_that_is_covered_counts(said):
    total, parts = said([view()] * 4, [2, 2, 2])
    assert parts == {"covered": 1, "towards": 0, "reached": 0, "idle": 0} and total == pytest.approx(3)
    assert said([view()] * 4, [2, 1, 2])[1]["covered"] == pytest.approx(2 / 3)  # around a corner
    assert said([view(wall=True)] * 4, [2, 2, 2])[0] == 0
    assert said([view()] * 4, [-1, -1, 3])[0] == pytest.approx(-0.3)  # the start of an episode, and picking up nothing


def test_an_object_counts_when_it_is_reached_and_not_while_the_agent_stays(said):
    total, parts = said([view((3, 3)), view((3, 4)), view((3, 5)), view((3, 5))], [2, 2, 2])
    assert parts == {"covered": pytest.approx(2 / 3), "towards": 2, "reached": 1, "idle": 0}
    assert total == pytest.approx(2 + 1.6 + 2)
    assert said([view((3, 5))] * 4, [2, 2, 2])[0] == 0
    back = [view((3, 5)), view(), view((3, 4)), view((3, 5))]
    assert said(back, [1, 0, 2])[1]["reached"] == 0  # it stood there before
