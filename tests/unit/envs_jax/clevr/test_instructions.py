"""The finite instructions of CLEVR-Robot: numbers, texts that name their goals, and goals that can be reached."""

from __future__ import annotations

import collections
import itertools

import jax
import numpy as np
import pytest

from envs_jax.clevr import goals, instructions
from envs_jax.clevr.constants import COLORS, SIDES


BEHIND, LEFT, FRONT, RIGHT = range(4)
NUMBERS = {"real": (80, 54), "rephrase": (80, 10), "easy": (20, 20), "hard": (162, 6)}
"""Goals, and wordings of the first of them."""


@pytest.mark.parametrize("name", instructions.LEVELS)
def test_numbers(name):
    level = instructions.level(name)
    count, wordings = NUMBERS[name]
    per_goal = collections.Counter(level.configurations.tolist())
    assert len(per_goal) == count and per_goal[0] == wordings
    assert len(np.unique(level.goals, axis=0)) == count
    if name == "hard":
        assert [per_goal[160], per_goal[161]] == [20, 20]
        assert level.sizes.tolist() == [480, 480, 20, 20]
    else:
        assert set(per_goal.values()) == {wordings} and level.sizes.tolist() == [count * wordings]
    assert level.goals.shape == (len(level.instructions), goals.WIDTH) and level.goals.dtype == np.int32
    for number in (0, len(level.instructions) // 2, len(level.instructions) - 1):
        instruction = level.instructions[number]
        assert level.book.phrases[number] == instruction.text
        np.testing.assert_array_equal(level.goals[number], instruction.goal)


def test_held_out_wordings_are_apart():
    """No text of one level occurs at another; nor does a wording, once colours are left out."""

    def bare(text: str) -> str:
        for color in COLORS:
            text = text.replace(color, "_")
        return text

    texts = {name: {bare(i.text) for i in instructions.level(name).instructions} for name in instructions.LEVELS}
    for one, two in itertools.combinations(instructions.LEVELS, 2):
        assert not texts[one] & texts[two]
    assert len(texts["real"]) == 18 * 3 * len(SIDES) and len(texts["rephrase"]) == 40 and len(texts["easy"]) == 80


@pytest.mark.parametrize("name", instructions.LEVELS)
def test_texts_name_the_balls_of_their_goals(name):
    for instruction in instructions.level(name).instructions:
        named = {i for triple in goals.triples_of(instruction.goal) for i in (triple[0], triple[2]) if i >= 0}
        if named:
            assert {i for i, color in enumerate(COLORS) if color in instruction.text.split()} | named == {
                i for i, color in enumerate(COLORS) if color in instruction.text
            }
            assert named == {i for i, color in enumerate(COLORS) if color in instruction.text}, instruction.text
        assert not instruction.text.endswith(".")


def test_directions_of_the_held_out_wordings():
    """A wording serves one place: its words for the other three do not occur. (Behind is said by who is in front.)"""
    words = {LEFT: ("left", "west"), RIGHT: ("right", "east")}
    for instruction in instructions.level("rephrase").instructions:
        place = goals.triples_of(instruction.goal)[0][1]
        if place in words:
            assert any(word in instruction.text for word in words[place]) or "rush" in instruction.text
        else:
            assert not any(word in instruction.text for both in words.values() for word in both)


def test_attainable():
    red, blue, green, purple, cyan = range(5)
    assert goals.attainable([(red, BEHIND, blue), (green, LEFT, blue)])
    assert goals.attainable([(red, BEHIND, blue), (green, LEFT, purple)]), "two groups"
    assert not goals.attainable([(red, BEHIND, blue), (red, LEFT, green)]), "red is moved twice"
    assert not goals.attainable([(red, BEHIND, blue), (blue, LEFT, red)]), "a circle"
    assert not goals.attainable([(red, BEHIND, blue), (green, BEHIND, blue)]), "both at one point"
    assert goals.attainable([(red, LEFT, blue), (blue, LEFT, green)])
    assert not goals.attainable([(red, BEHIND, blue), (blue, BEHIND, green), (green, BEHIND, cyan)]), "too deep"
    assert goals.attainable([(red, BEHIND, blue), (blue, BEHIND, green), (cyan, LEFT, purple)])
    assert not goals.attainable([(red, BEHIND, blue), (green, RIGHT, cyan), (cyan, LEFT, green)]), "a circle in a group"


@pytest.mark.parametrize("count", [2, 3])
def test_combinations(count):
    found = goals.combinations(count)
    assert len({frozenset(triples) for triples in found}) == 80
    assert all(len(triples) == count and goals.attainable(triples) for triples in found)
    moved = collections.Counter(triple[0] for triples in found for triple in triples)
    assert min(moved.values()) > 0.5 * max(moved.values()), "every ball is moved about as often"


def test_draws_cover_the_kinds_of_a_level():
    """Hard: two and three relations, line and gathering, a quarter each; 2,000 draws, five standard errors."""
    level = instructions.level("hard")
    drawn = np.asarray(jax.vmap(level.draw)(jax.random.split(jax.random.key(0), 2000)))
    kinds = np.searchsorted(level.starts, drawn, side="right") - 1
    np.testing.assert_allclose(np.bincount(kinds) / 2000, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 2000))
    assert drawn.min() >= 0 and drawn.max() < len(level.book)


def test_an_unknown_level():
    with pytest.raises(ValueError, match="'rephrased'.*'rephrase'"):
        instructions.level("rephrased")


def test_the_published_code():
    """Red behind blue is (1, 2, 0, 0, 0, 0); hard goals have their type in the sixth number."""
    red_behind_blue = [1, 2, 0, 0, 0, 0]
    cyan_front_of_red = [2, 0, 0, 0, 1, 2]
    one = goals.goal(goals.RELATIONS, [(0, BEHIND, 1)])
    np.testing.assert_array_equal(goals.from_published(red_behind_blue, "real"), one)
    np.testing.assert_array_equal(
        goals.from_published([[0, 0, 1, 0, 0, 3]], "easy"), [goals.goal(goals.PUSH, [(2, RIGHT, -1)])]
    )
    two = goals.from_published([0] * 6 + red_behind_blue + cyan_front_of_red, "hard")
    np.testing.assert_array_equal(two, goals.goal(goals.RELATIONS, [(0, BEHIND, 1), (4, FRONT, 0)]))
    np.testing.assert_array_equal(goals.from_published([0, 0, 0, 0, 0, 2], "hard"), goals.goal(goals.LINE))
    for name in instructions.LEVELS:
        level = instructions.level(name)
        codes = goals.to_published(level.goals)
        assert codes.shape == (len(level.goals), 24 if name == "hard" else 6) and codes.dtype == np.float32
        np.testing.assert_array_equal(goals.from_published(codes, name), level.goals)
    assert len(instructions.level("real").numbers_of(one)) == 54
    assert not len(instructions.level("easy").numbers_of(one))


IMPOSSIBLE = [
    ([4], "kind 4.*0.*3"),
    ([0], "0 triples.*kind 0.*1.*3"),
    ([0, -1, -1, -1, 0, 0, 1], "1 triples.*kind 0.*1.*3.*-1"),
    ([1, 0, 0, 1], "1 triples.*kind 1.*0"),
    ([3, 0, 0, -1, 1, 0, -1], "2 triples.*kind 3.*1"),
    ([0, 7, 0, 1], "ball 7.*0.*4"),
    ([0, 0, 5, 1], "place 5.*0.*3"),
    ([0, 0, 0, 1, 1, 0, 5], "reference 5.*0.*4"),
    ([0, 0, 0, -1], "reference -1.*0.*4"),
    ([3, 0, 0, 1], "reference 1; -1"),
    ([0, 2, 0, 2], "ball 2"),
]
"""Beginnings of codes, which -1 fills up, and what is wrong with them."""


@pytest.mark.parametrize(("code", "message"), IMPOSSIBLE)
def test_impossible_goals(code, message):
    whole = np.array([*code, *[-1] * (goals.WIDTH - len(code))], np.int32)
    for use in (goals.check_goal, goals.to_published):
        with pytest.raises(ValueError, match=f"^goal.*{message}"):
            use(whole)


def test_goals_of_levels_are_possible():
    for name in instructions.LEVELS:
        for code in instructions.level(name).goals:
            goals.check_goal(code)


@pytest.mark.parametrize(
    "other", [goals.goal(goals.PUSH, [(2, RIGHT, -1)]), goals.goal(goals.RELATIONS, [(0, LEFT, 1)])]
)
def test_goals_that_have_no_code_together(other):
    """A type -1, or no type at all, would be written."""
    with pytest.raises(ValueError, match=rf"\[{other[0]}, .*level hard"):
        goals.to_published([goals.goal(goals.LINE), other])
    assert goals.to_published([other]).shape == (1, 6)


@pytest.mark.parametrize(
    ("code", "level", "message"),
    [
        ([1, 2, 0, 0, 0], "real", r"codes.*\[5\]"),
        ([1, 1, 0, 0, 0, 0], "real", "level real.*1, 1 with 2"),
        ([1, 2, 0, 0, 0, 4], "rephrase", "rephrase.*0.*3"),
        ([1, 2, 0, 0, 0, 0], "easy", "easy.*0.*2"),
        ([0, 0, 0, 0, 0, 1] + [1, 2, 0, 0, 0, 0] * 2, "hard", "three"),
        ([0, 0, 0, 0, 0, 7], "hard", "sixth number.*0.*3"),
    ],
)
def test_codes_that_are_no_goal(code, level, message):
    with pytest.raises(ValueError, match=message):
        goals.from_published(code, level)


def test_every_sentence_of_level_real_has_its_keywords():
    level = instructions.level("real")
    for one in level.instructions:
        assert instructions.keywords(one.text) == tuple(one.goal[1:4]), one.text
