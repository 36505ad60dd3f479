"""Predicates and rewards of CLEVR-Robot, by numbers worked out by hand; NumPy and jax alike."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.clevr import rules
from envs_jax.clevr.goals import GATHER, LINE, PUSH, RELATIONS, goal
from envs_jax.clevr.plausible import implausible


BEHIND, LEFT, FRONT, RIGHT = range(4)
RED, BLUE, GREEN, PURPLE, CYAN = range(5)
SPREAD = np.array([[-0.45, 0.5], [0.0, 0.1], [0.45, 0.5], [-0.45, -0.1], [0.45, -0.1]])
"""No two balls near each other."""


def layout(**places) -> np.ndarray:
    """A state, float64 `[10]`: blue at the origin, the others as given, else far away."""
    balls = SPREAD.copy()
    balls[BLUE] = 0
    for color, place in places.items():
        balls[("red", "blue", "green", "purple", "cyan").index(color)] = place
    return balls.reshape(-1)


def at(degrees: float, distance: float) -> np.ndarray:
    angle = np.deg2rad(degrees)
    return distance * np.array([np.cos(angle), np.sin(angle)])


@pytest.mark.parametrize(
    ("degrees", "place"),
    [
        *((44.9, RIGHT), (45.1, BEHIND), (90, BEHIND), (134.9, BEHIND), (135.1, LEFT), (180, LEFT), (224.9, LEFT)),
        *((225.1, FRONT), (270, FRONT), (314.9, FRONT), (315.1, RIGHT), (0, RIGHT), (359, RIGHT)),
    ],
)
def test_quadrants(degrees, place):
    state = layout(red=at(degrees, 0.3))
    found = [bool(rules.relation_holds(state, RED, p, BLUE)) for p in range(4)]
    assert found == [p == place for p in range(4)]


@pytest.mark.parametrize(
    ("x", "y", "place"), [(0.25, 0.25, BEHIND), (-0.25, 0.25, LEFT), (-0.25, -0.25, FRONT), (0.25, -0.25, RIGHT)]
)
def test_a_diagonal_belongs_to_the_quadrant_that_it_begins(x, y, place):
    """45, 135, 225 and 315 degrees, exactly."""
    for xp, dtype in ((np, np.float64), (jnp, np.float32)):
        state = xp.asarray(layout(red=(x, y)), dtype)
        assert [bool(rules.relation_holds(state, RED, p, BLUE)) for p in range(4)] == [p == place for p in range(4)]


@pytest.mark.parametrize(("distance", "near"), [(0.3899, True), (0.3909, True), (0.3911, False), (0.5, False)])
def test_distance(distance, near):
    assert bool(rules.relation_holds(layout(red=(0, distance)), RED, BEHIND, BLUE)) == near
    assert bool(rules.relation_holds(layout(red=at(63, distance)), RED, BEHIND, BLUE)) == near


def test_components_below_a_millimetre_count_as_zero():
    """At (0.3905, 0.0009) the distance is that of 0.3905 alone; two such components are no direction at all."""
    assert rules.relation_holds(layout(red=(0.39099, 0.0009)), RED, RIGHT, BLUE)
    for place in range(4):
        assert not rules.relation_holds(layout(red=(0.0009, -0.0009)), RED, place, BLUE)
    assert rules.relation_holds(layout(red=(0.0011, -0.0005)), RED, RIGHT, BLUE)


@pytest.mark.parametrize(("degrees", "right"), [(29, True), (-29, True), (31, False), (-31, False), (180, False)])
def test_line(degrees, right):
    """Distances do not matter: five balls at 0.3 and one pair at 0.02; one pair at an angle."""
    balls = np.cumsum([[0, 0], [0.3, 0], [0.02, 0], [0.3, 0.1], [0, 0]], axis=0)
    balls[4] = balls[3] + at(degrees, 0.2)
    state = balls.reshape(-1)
    np.testing.assert_array_equal(rules.in_line(state), [True, True, True, right])
    assert bool(rules.holds(goal(LINE), state)) == right


@pytest.mark.parametrize(("distance", "near"), [(0.324, True), (0.326, False)])
def test_gather(distance, near):
    green = np.array([0.1, 0.1])
    others = {color: green + at(90 * i, 0.3) for i, color in enumerate(("red", "blue", "purple"))}
    state = layout(green=green, cyan=green + at(45, distance), **others)
    np.testing.assert_array_equal(rules.gathered(state), [True, True, True, near])
    assert bool(rules.holds(goal(GATHER), state)) == near


def test_the_sets_of_level_easy():
    """behind {1, 4, 5}, left {2, 5, 7}, front {3, 6, 7}, right {0, 4, 6}: 3 of 40 actions, 7.5%."""
    allowed = {BEHIND: {1, 4, 5}, LEFT: {2, 5, 7}, FRONT: {3, 6, 7}, RIGHT: {0, 4, 6}}
    actions = np.arange(40)
    for ball in range(5):
        for place, ways in allowed.items():
            found = rules.push_by_action(goal(PUSH, [(ball, place, -1)]), actions)
            assert set(np.flatnonzero(found)) == {8 * ball + way for way in ways}


def test_a_step_judged_by_states():
    """0.15 m along the axis of the place, of the ball that was named; of any with `compat`."""
    before = layout()
    for along, right in ((0.149, False), (0.151, True), (-0.2, False)):
        moved = before.reshape(5, 2).copy()
        moved[GREEN] += (-along, 0.3)
        step = goal(PUSH, [(GREEN, LEFT, -1)]), before, moved.reshape(-1)
        assert bool(rules.push_by_state(*step)) == right
        other = goal(PUSH, [(RED, LEFT, -1)]), before, moved.reshape(-1)
        assert not rules.push_by_state(*other)
        assert bool(rules.push_by_state(*other, compat=True)) == right
        assert bool(rules.succeeds(*step, 0, push_test="state")) == right
        assert not rules.succeeds(*step, 8 * RED + 2, push_test="action")
    np.testing.assert_array_equal(rules.stationary(before, moved.reshape(-1)), [True, True, False, True, True])


def test_several_relations_need_all():
    triples = [(RED, BEHIND, BLUE), (GREEN, LEFT, BLUE), (CYAN, RIGHT, BLUE)]
    state = layout(red=(0, 0.3), green=(-0.3, 0), cyan=(0.3, 0))
    broken = layout(red=(0, 0.3), green=(-0.3, 0), cyan=(0.3, -0.4))
    for count in (1, 2, 3):
        assert rules.holds(goal(RELATIONS, triples[:count]), state)
        assert bool(rules.holds(goal(RELATIONS, triples[:count]), broken)) == (count < 3)
    parts, counts = rules.subgoals(goal(RELATIONS, triples), broken)
    np.testing.assert_array_equal(parts, [True, True, False, False])
    np.testing.assert_array_equal(counts, [True, True, True, False])


def test_reward_of_a_relation():
    """Red goes from (0, 0.495) to (0.3, 0.195), whose distances to the point (0, 0.195) are both 0.3: nothing is
    gained. Then it goes to (0, 0.295): 10 x (0.3 - 0.1) and 100. With `compat` the distances are 0.495, 0.3578 and
    0.295."""
    one, two, three = (layout(red=place) for place in ((0, 0.495), (0.3, 0.195), (0, 0.295)))
    g = goal(RELATIONS, [(RED, BEHIND, BLUE)])
    reward, success = rules.label(g, np.stack([one, two]), np.stack([two, three]), np.zeros(2, np.int32))
    np.testing.assert_allclose(reward, [0, 102], atol=1e-5)
    np.testing.assert_array_equal(success, [False, True])
    assert reward.dtype == np.float32
    away = np.hypot(0.3, 0.195)
    reward, _ = rules.label(g, np.stack([one, two]), np.stack([two, three]), 0, rules.Weights(success=0.0), compat=True)
    np.testing.assert_allclose(reward, [10 * (0.495 - away), 10 * (away - 0.295)], rtol=1e-5)


def test_reward_of_a_hard_goal():
    """10 for each part that begins to hold, and the same lost; 100 more at the end."""
    g = goal(RELATIONS, [(RED, BEHIND, BLUE), (GREEN, LEFT, BLUE)])
    none, one, both = layout(), layout(red=(0, 0.3)), layout(red=(0, 0.3), green=(-0.3, 0))
    steps = [(none, one, 10), (one, both, 110), (none, both, 120), (both, one, -10), (one, one, 0)]
    for before, after, expected in steps:
        assert rules.label(g, before, after, 3)[0] == expected
    assert rules.label(goal(PUSH, [(RED, RIGHT, -1)]), none, one, 0, rules.Weights(success=1.0)) == (1.0, True)


def test_progress_cannot_be_collected_twice():
    """Along a closed path of random layouts, rewards without success sum to nothing, for every kind of goal."""
    rng = np.random.default_rng(0)
    path = rng.uniform(-0.5, 0.5, (9, 10))
    kinds = [goal(LINE), goal(GATHER), goal(RELATIONS, [(0, 1, 2)]), goal(RELATIONS, [(0, 1, 2), (3, 0, 4)])]
    goals = np.stack(kinds)[:, None]
    reward, _ = rules.label(goals, path, np.roll(path, -1, axis=0), 0, rules.Weights(success=0.0))
    assert np.abs(reward).max() > 0.1
    np.testing.assert_allclose(reward.sum(axis=1), 0, atol=1e-4)


def test_numpy_and_jax_agree_on_batches():
    """A grid of 4 goals by 64 steps: float32 in both."""
    rng = np.random.default_rng(1)
    states = rng.uniform(-0.35, 0.35, (2, 64, 10)).astype(np.float32)
    actions = rng.integers(0, 40, 64).astype(np.int32)
    goals = np.stack(
        [goal(RELATIONS, [(0, 1, 2)]), goal(RELATIONS, [(0, 1, 2), (3, 0, 4)]), goal(GATHER), goal(PUSH, [(1, 3, -1)])]
    )[:, None]
    for options in ({}, {"push_test": "state"}, {"push_test": "state", "compat": True}):
        mine = rules.label(goals, states[0], states[1], actions, **options)
        theirs = jax.jit(partial(rules.label, **options))(goals, *states, actions)
        assert all(isinstance(x, np.ndarray) for x in mine) and all(isinstance(x, jax.Array) for x in theirs)
        np.testing.assert_allclose(mine[0], theirs[0], atol=1e-4)
        np.testing.assert_array_equal(mine[1], theirs[1])
        assert 0 < mine[1].mean() < 1


def test_numbers_that_are_not_finite_reach_no_goal():
    state = layout(red=(0, 0.3))
    g = goal(RELATIONS, [(RED, BEHIND, BLUE)])
    assert rules.holds(g, state)
    for bad in (np.nan, np.inf):
        broken = state.copy()
        broken[2 * BLUE] = bad
        assert not rules.holds(g, broken)
    broken = state.copy()
    broken[2 * CYAN] = np.nan
    assert rules.holds(g, broken), "a ball that the goal does not name does not matter"


def test_implausible_transitions():
    here = SPREAD.reshape(-1)
    moved = {
        "nothing": ((0, 0), set()),
        "push": ((0.0, -0.24), set()),
        "limit": ((0.0, -0.44), set()),
        "jump": ((0.3, -0.5), {"dynamics"}),
        "wall": ((-0.06, 0.0), {"in_wall"}),
        "beyond": ((-0.2, 0.0), {"in_wall", "out_of_table"}),
        "nan": ((np.nan, 0.0), {"in_wall", "out_of_table", "dynamics", "overlap"}),
    }
    for xp in (np, jnp):
        for name, (step, expected) in moved.items():
            after = SPREAD.copy()
            after[RED] += step
            found = implausible(xp.asarray(here), xp.asarray(after.reshape(-1)))
            assert {what for what, bad in found.items() if bad} == expected, name
    near = SPREAD.copy()
    near[BLUE] = near[RED] + (0.079, 0)
    assert {what for what, bad in implausible(near.reshape(-1), near.reshape(-1)).items() if bad} == {"overlap"}
