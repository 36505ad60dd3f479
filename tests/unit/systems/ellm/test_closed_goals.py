"""Closed-form suggestions: prompts, answers, the matrix, and a world that is rewarded by it."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

import envs_jax
from llmrl_jax.chat import Budget, Budgeted, BudgetExceeded, Cached, ChatReply, Choice, ReplayMiss
from llmrl_jax.systems.ellm import closed_goals, prompts
from llmrl_jax.systems.ellm.goals import goal_spec_for
from llmrl_jax.systems.ellm.scripted import ScriptedJudge


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
    assert prompts.read_yes(reply) is wanted


def test_the_matrix_by_hand():
    judge = Judge()
    items, places = ("fork", "cup", "sock"), ("kitchen floor", "fridge")
    found = closed_goals.ask_pairs(judge, items, places, {"temperature": 0.0}, samples=4, threshold=0.25)
    np.testing.assert_allclose(found.share, [[0, 1], [0.25, 0.25], [0, 0]])
    assert found.yes.tolist() == [[False, True], [False, False], [False, False]] and found.unreadable == 8
    assert len(judge.asked) == 6 and judge.asked[1].endswith("store a fork in/on the fridge:")
    assert judge.asked[0].count("\n\n") == 4 and "dirty spoon in/on the chair: No" in judge.asked[0]
    with pytest.raises(ValueError, match="threshold.*1.5"):
        closed_goals.ask_pairs(judge, items, places, {}, threshold=1.5)


def test_agreement_by_hand():
    correct = np.array([[True, True], [False, False]])
    judged = np.array([[True, False], [True, True]])
    assert closed_goals.agreement(judged, correct) == {"match": 0.5, "mismatch": 0.0, "precision": 1 / 3}
    assert np.isnan(closed_goals.agreement(judged, ~correct & correct)["match"])
    some = np.array([[True, True], [True, False]])
    assert closed_goals.agreement(judged, correct, some) == {"match": 0.5, "mismatch": 0.0, "precision": 0.5}


@cache
def spec():
    return goal_spec_for(envs_jax.make("Housekeep-Task2-v0")[0])


def test_the_scripted_judge_knows_the_shipped_table():
    """Through the prompt and the parser, its matrix is the oracle's; what it does not know belongs nowhere."""
    found = closed_goals.ask_occurring(ScriptedJudge(), spec(), {}, 1, 0.5)
    np.testing.assert_array_equal(found.yes, spec().correct & spec().occurring[:, None])
    assert found.answered.sum() == 10 * 51 and found.unreadable == 0
    strange = closed_goals.ask_pairs(ScriptedJudge(), ["ray gun"], ["kitchen sink", "moon"], {})
    assert not strange.yes.any() and strange.answered.all()


def test_a_spent_budget_loses_no_answer(tmp_path):
    """What was answered is in the cache: with a larger budget the rest is asked, and nothing twice."""
    items, places = ("fork", "cup", "sock"), ("kitchen floor", "fridge")
    judge = Judge()
    cached = lambda calls: Cached(Budgeted(judge, Budget(calls=calls)), tmp_path / "chat.sqlite")  # noqa: E731
    with pytest.raises(BudgetExceeded, match="3.*6.*--chat.max-calls"):
        closed_goals.ask_pairs(cached(3), items, places, {})
    assert len(judge.asked) == 3
    found = closed_goals.ask_pairs(cached(3), items, places, {})
    assert len(judge.asked) == len(set(judge.asked)) == 6 and found.yes.sum() == 3  # a cup's only sample says yes
    replay = Cached("judge", tmp_path / "chat.sqlite", "replay")
    np.testing.assert_array_equal(closed_goals.ask_pairs(replay, items, places, {}).yes, found.yes)
    with pytest.raises(ReplayMiss, match="0.*'judge'.*fork"):
        closed_goals.ask_pairs(replay, items, places, {"temperature": 0.5})


def test_the_file_of_a_run_is_read_instead_of_asking(tmp_path):
    class Silent(Judge):
        def complete(self, requests):
            raise AssertionError("it was asked")

    class Unsure(Judge):
        def say(self, request, sample):
            return ("Yes", "no", "Hm")[len(self.asked) % 3] if sample == 0 else "Hm"

    first = closed_goals.answers_of_run(tmp_path, Unsure(), spec(), {}, 2, 0.5)
    again = closed_goals.answers_of_run(tmp_path, Silent(), spec(), {}, 2, 0.5)
    for name in ("yes", "share", "answered"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    assert again.unreadable == first.unreadable >= 510 and not again.answered[~spec().occurring].any()
    numbers = closed_goals.pair_counts(again, spec())
    assert numbers["asked"] == 510 and numbers["unreadable"] == first.unreadable and numbers["yes"] == first.yes.sum()
    other = goal_spec_for(envs_jax.make("Housekeep-Task1-v0")[0])
    with pytest.raises(ValueError, match="about 10.*8 objects.*51 places"):
        closed_goals.answers_of_run(tmp_path, Silent(), other, {}, 2, 0.5)


def test_an_answer_needs_few_tokens():
    assert prompts.pair_request("cup", "sink", {"max_tokens": 200}).max_tokens == prompts.PAIR_TOKENS
    assert prompts.pair_request("cup", "sink", {"max_tokens": 4}).max_tokens == 4


def test_housekeep_takes_the_matrix():
    """Its tables have the axes of the answers, and a reply for every pair changes what is suggested."""
    env, params = envs_jax.make("Housekeep-v0")
    shape = (len(env.object_names), len(env.receptacle_names))
    assert params.suggestions.shape == shape == env.correct.shape
    rng = random.Random(0)
    rows = rng.sample(range(shape[0]), 2)
    found = closed_goals.ask_pairs(Judge(), [env.object_names[i] for i in rows], env.receptacle_names, {})
    assert found.yes.shape == (2, shape[1]) and found.yes.dtype == params.suggestions.dtype


class Thinker(Judge):
    """A judge that thinks for 17 tokens before each answer."""

    def __init__(self, thinks=True):
        super().__init__()
        self.thinks, self.limits = thinks, []

    def complete(self, requests):
        self.limits.append([request.max_tokens for request in requests])
        return [ChatReply(tuple(self.cut(r, i) for i in range(r.n)), model=self.name) for r in requests]

    def cut(self, request, sample):
        if request.max_tokens < 17:
            return Choice("<think>Yes? " if self.thinks else "Well, it depends", "length")
        return Choice(f"<think>No?</think>\n\n{self.say(request, sample)}" if self.thinks else "It depends on it")


def test_a_judge_that_thinks_is_given_the_tokens():
    """The first object is asked about again, the others with the longer limit at once."""
    items, places = ("fork", "kite", "frog"), ("kitchen floor", "fridge")
    judge = Thinker()
    found = closed_goals.ask_pairs(judge, items, places, {"max_tokens": 200}, samples=2)
    assert judge.limits == [[16, 16], [200, 200], [200, 200], [200, 200]]
    assert found.yes.tolist() == [[False, True], [True, False], [False, True]] and found.unreadable == 0
    short = Thinker()
    assert closed_goals.ask_pairs(short, items, places, {"max_tokens": 12}).unreadable == 6
    assert short.limits == [[12, 12]] * 3
    vague = Thinker(thinks=False)
    assert closed_goals.ask_pairs(vague, items, places, {"max_tokens": 200}).unreadable == 6
    assert vague.limits == [[16, 16], [200, 200], [16, 16], [16, 16]]
