"""Range checks: what passes, and the sentence that the rest get."""

import math

import pytest

from envs_jax.checks import above, at_least, between, nearest
from envs_jax.text import PromptError


@pytest.mark.parametrize(
    ("name", "names", "close"),
    [
        ("liner", ["none", "linear", "yarn"], ["linear"]),
        ("esay", ["easy", "real"], ["easy"]),  # neighbours exchanged
        ("qproj", ["q_proj", "k_proj"], ["q_proj"]),
        ("Debug-Cach", ["Debug-Catch-v0", "CartPole-v1"], ["Debug-Catch-v0"]),
        ("smart", ["smartplay", "ellm"], ["smartplay"]),
        ("CartPole-v0", ["CartPole-v1", "Acrobot-v1"], ["CartPole-v1"]),
        ("truncated", ["terminated"], []),
        ("CartPole-v1", ["CrafterText-v1"], []),
        ("longrope", ["none", "linear", "yarn"], []),
        ("learning_rate", ["learner"], []),
        ("", ["a", "ab"], []),
    ],
)
def test_a_name_is_suggested_for_a_typing_error_only(name, names, close):
    assert nearest(name, names) == (f"; did you mean {' or '.join(map(repr, close))}?" if close else "")


def test_what_is_in_range_passes():
    at_least("n", 1, 1)
    at_least("x", 0.0, 0)
    above("x", 1e-9, 0)
    between("x", 0, 0, 1)
    between("x", 1, 0, 1, above=True)
    between("x", 0, 0, 1, below=True)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: at_least("num_envs", 0, 1), "num_envs is 0; at least 1 is needed"),
        (lambda: at_least("rank", 0, 1, remedy="use none"), "rank is 0; at least 1 is needed (use none)"),
        (lambda: at_least("x", math.nan, 0), "x is nan; at least 0 is needed"),
        (lambda: at_least("x", math.inf, 0), "x is inf; a finite number is needed"),
        (lambda: at_least("x", -math.inf, 0), "x is -inf; at least 0 is needed"),
        (lambda: above("lr", 0.0, 0), "lr is 0.0; above 0 is needed"),
        (lambda: above("lr", math.nan, 0), "lr is nan; above 0 is needed"),
        (lambda: between("p", 1.5, 0, 1), "p is 1.5; from 0 to 1 is needed"),
        (lambda: between("p", math.nan, 0, 1), "p is nan; from 0 to 1 is needed"),
        (lambda: between("p", 0, 0, 1, above=True), "p is 0; above 0 and at most 1 is needed"),
        (lambda: between("p", 1, 0, 1, below=True), "p is 1; from 0 to below 1 is needed"),
        (lambda: between("p", 1, 0, 1, above=True, below=True), "p is 1; above 0 and below 1 is needed"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(check, message):
    with pytest.raises(ValueError) as error:
        check()
    assert str(error.value) == message


def test_the_kind_of_error_is_the_callers():
    with pytest.raises(PromptError, match="size.*0.*1"):
        at_least("size", 0, 1, error=PromptError)


def test_what_is_no_number_is_named():
    for check in (lambda: at_least("n", "x", 1), lambda: above("n", "x", 1), lambda: between("n", "x", 0, 1)):
        with pytest.raises(ValueError, match="^n .*'x'"):
            check()
    with pytest.raises(ValueError, match="^n .*None"):
        at_least("n", None, 1)
