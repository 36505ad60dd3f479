"""What prompts show of what was tried: formats, views, limits."""

from __future__ import annotations

import pytest

from llmrl_jax.systems.props.prompts import (
    Format,
    Grid,
    HistoryView,
    Row,
    Transition,
    estimate_tokens,
    render_trajectory,
)


ROWS = [Row((float(i), -0.5), value) for i, value in enumerate([3.0, 9.0, 1.0, 9.0, 5.0])]
FORM = Format()


def shown(view):
    return [row.params[0] for row in view.select(ROWS)]


def test_the_published_row():
    assert FORM.row(Row((1.23456789, -6.0, 0.1), -87.2149)) == (
        "params[0]: 1.2346; params[1]: -6; params[2]: 0.1; f(params): -87.21"
    )
    assert FORM.texts((-0.0, 123456.0)) == ("0", "1.2346e+05")


def test_a_parameter_takes_the_nine_tokens_of_the_reference():
    rows = [FORM.params([1.2] * n) for n in (3, 4)]
    assert estimate_tokens(rows[1]) - estimate_tokens(rows[0]) == 9
    assert estimate_tokens("; params[3]: 1.2") == 9
    assert estimate_tokens("Hello, w0rld_1234!") == 9  # Hello , w 0 rld _ 123 4 !


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (HistoryView(), [0, 1, 2, 3, 4]),
        (HistoryView(last=2), [3, 4]),
        (HistoryView(last=9), [0, 1, 2, 3, 4]),
        (HistoryView(top=2), [1, 3]),
        (HistoryView(top=1), [3]),  # of equals the later
        (HistoryView(top=2, last=1), [1, 3, 4]),
        (HistoryView(top=0, last=1), [4]),
        (HistoryView(order="ascending"), [2, 0, 4, 1, 3]),
        (HistoryView(top=2, last=2, order="ascending"), [4, 1, 3]),
    ],
)
def test_views(view, expected):
    assert shown(view) == expected


def test_a_limit_of_tokens_drops_the_oldest_but_never_the_best():
    each = estimate_tokens(FORM.row(ROWS[0]) + "\n")
    assert all(estimate_tokens(FORM.row(row) + "\n") == each for row in ROWS)
    texts = HistoryView(tokens=3 * each).render(ROWS[:3] + [Row((7.0, -0.5), 2.0)]).splitlines()
    assert [text.partition(";")[0] for text in texts] == ["params[0]: 1", "params[0]: 2", "params[0]: 7"]
    best = HistoryView(tokens=each).render(ROWS)
    assert best == FORM.row(ROWS[3])
    with pytest.raises(ValueError, match=f"{each} tokens.*{each - 1}"):
        HistoryView(tokens=each - 1).render(ROWS)
    assert HistoryView(tokens=1).render([]) == ""


def test_a_limit_of_tokens_keeps_the_best_of_what_is_shown():
    rows = [*ROWS, Row((5.0, -0.5), 2.0)]  # the best of all is older than the last two
    each = estimate_tokens(FORM.row(rows[0]) + "\n")
    for order in ("time", "ascending"):
        assert HistoryView(last=2, tokens=each, order=order).render(rows) == FORM.row(rows[4])
        with pytest.raises(ValueError, match=f"{each} tokens.*5"):
            HistoryView(last=2, tokens=5, order=order).render(rows)


def test_an_episode_stands_under_its_row():
    episode = (Transition(0, 2, 0.0), Transition(4, 1, -0.0111), Transition(5, 0, 1.0))
    assert render_trajectory(episode, 9).splitlines() == [
        "state | action | reward",
        "0 | 2 | 0",
        "4 | 1 | -0.0111",
        "5 | 0 | 1",
    ]
    row = Row((1.0,), 1.0, episode)
    text = HistoryView(trajectory_steps=1).render([row, Row((2.0,), 0.0)])
    assert text.splitlines() == [
        "params[0]: 1; f(params): 1.00",
        "state | action | reward",
        "0 | 2 | 0",
        "(2 more steps)",
        "params[0]: 2; f(params): 0.00",
    ]
    assert "state" not in HistoryView().render([row])
    assert render_trajectory((Transition((0.5, -1.0), (0.25,), 2.0),), 1).splitlines()[1] == "0.5, -1 | 0.25 | 2"


def test_integers_of_a_grid_by_hand():
    grid = Grid(-6.0, 6.0, 120)
    assert grid.encode([-6.0, 0.0, 0.1, 6.0, 99.0, -99.0]) == (0, 60, 61, 120, 120, 0)
    assert grid.decode([0, 61, 120]) == pytest.approx((-6.0, 0.1, 6.0))
    assert Format(grid=grid).row(Row((0.1, -6.0), 3.0)) == "params[0]: 61; params[1]: 0; f(params): 3.00"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: HistoryView(last=-1), "last.*-1"),
        (lambda: HistoryView(last=0), "last.*0.*top"),
        (lambda: HistoryView(top=0, last=0), "last.*0.*top"),
        (lambda: HistoryView(order="descending"), "order.*'descending'.*time, ascending"),
        (lambda: HistoryView(tokens=0), "tokens.*0"),
        (lambda: Grid(1.0, 1.0), "1000 steps.*1.0.*1.0"),
        (lambda: Grid(0.0, 1.0, 100_000), "1 to 99999"),
    ],
)
def test_what_cannot_be_is_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()
