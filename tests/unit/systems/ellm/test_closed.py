"""Closed-form suggestions: prompts, answers, the matrix, and a world that is rewarded by it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from llmrl_jax.chat import ChatReply, Choice
from llmrl_jax.systems.ellm import closed


class Judge:
    """Says yes to pairs with the same first letter, and to some samples of "cup"; "sock" confuses it."""

    name = "judge"

    def __init__(self):
        self.asked = []

    def complete(self, requests):
        self.asked += [request.messages[0].content for request in requests]
        return [ChatReply(tuple(Choice(self.say(r, i)) for i in range(r.n)), model=self.name) for r in requests]

    def say(self, request, sample):
        item, place = request.messages[0].content.split("store a ")[-1].rstrip(":").split(" in/on the ")
        if item == "sock":
            return "Perhaps"
        if item == "cup":
            return "Yes." if sample == 0 else " no"
        return "Yes" if item[0] == place[0] else "No, never"


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [("Yes", True), (" no.", False), ("**Yes**, it should", True), ("", None), ("Nope", None), ("I say yes", None)],
)
def test_answers(reply, wanted):
    assert closed.read_yes(reply) is wanted


def test_the_matrix_by_hand():
    judge = Judge()
    items, places = ("fork", "cup", "sock"), ("kitchen floor", "fridge")
    found = closed.ask_matrix(judge, items, places, {"temperature": 0.0}, samples=4, threshold=0.25)
    np.testing.assert_allclose(found.share, [[0, 1], [0.25, 0.25], [0, 0]])
    assert found.yes.tolist() == [[False, True], [False, False], [False, False]] and found.unreadable == 8
    assert len(judge.asked) == 6 and judge.asked[1].endswith("store a fork in/on the fridge:")
    assert judge.asked[0].count("\n\n") == 4 and "dirty spoon in/on the chair: No" in judge.asked[0]
    with pytest.raises(ValueError, match="threshold is 1.5"):
        closed.ask_matrix(judge, items, places, {}, threshold=1.5)


def test_agreement_by_hand():
    correct = np.array([[True, True], [False, False]])
    judged = np.array([[True, False], [False, True]])
    assert closed.agreement(judged, correct) == {"match": 0.5, "mismatch": 0.5}
    assert np.isnan(closed.agreement(judged, ~correct & correct)["match"])


def test_housekeep_takes_the_matrix():
    """Its tables have the axes of the answers, and a reply for every pair changes what is suggested."""
    import envs_jax

    env, params = envs_jax.make("Housekeep-v0")
    shape = (len(env.object_names), len(env.receptacle_names))
    assert params.suggestions.shape == shape == env.correct.shape
    rng = random.Random(0)
    rows = rng.sample(range(shape[0]), 2)
    found = closed.ask_matrix(Judge(), [env.object_names[i] for i in rows], env.receptacle_names, {})
    assert found.yes.shape == (2, shape[1]) and found.yes.dtype == params.suggestions.dtype
