"""Rewards on text: by hand, from a user's file, and what is no reward is named."""

from __future__ import annotations

import contextlib
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import Generation, WordTokenizer
from llmrl_jax.tuning import REWARDS, DataError, encode_prompt, from_text, load_reward
from llmrl_jax.tuning.rewards import (
    RewardError,
    check_response,
    read_number,
    rewards_named,
    text_reward,
    try_reward,
)


def rate(name, completion, response):
    return REWARDS[name](["?"], [completion], [{"response": response}])[0]


@pytest.mark.parametrize(
    ("name", "completion", "response", "want"),
    [
        ("exact", " blue\n", "blue", 1),
        ("exact", "sky blue", "blue", 0),
        ("contains", "it is blue .", " blue", 1),
        ("contains", "red", "blue", 0),
        ("contains", "red", "", 0),
        ("contains", "red", " \n", 0),
        ("exact", " ", "", 1),
        ("last-number", "2 + 2 = 4", "so #### 4.0", 1),
        ("last-number", "1,024 apples", "1024", 1),
        ("last-number", "it is -3", "3", 0),
        ("last-number", "none", "3", 0),
        ("last-number", "none", "none", 0),
        ("last-number", "it is .50", "50", 0),
        ("last-number", "it is .50", "1/2", 1),
        ("last-number", "3/4", "4", 0),
        ("last-number", "so 50% of them.", "50", 1),
        ("last-number", "0.1", "1e-1", 1),
        ("last-number", "12345678901234567891", "12345678901234567890", 0),
    ],
)
def test_the_named_rewards_by_hand(name, completion, response, want):
    assert rate(name, completion, response) == want


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 4.", "4"),
        ("1. -1,234.5", "-1234.5"),
        ("1,000,000.", "1000000"),
        ("1,2", "2"),  # a list, not a thousand
        ("12,345,6", "6"),
        ("1,0000", "0"),
        ("1e-3", "0.001"),
        ("1.5E+10", "15000000000"),
        ("2e", "2"),
        ("#### -$5.25", "-5.25"),
        ("$-5", "-5"),
        (r"\$5", "5"),
        ("**7**", "7"),
        ("(-3)", "-3"),
        ("\u22127", "-7"),
        ("5-3", "3"),  # a difference
        ("GPT-4", "4"),
        ("-.5", "-0.5"),
        ("and so on...5", "5"),
        ("3/4", "3/4"),
        ("-1 1/2", "-3/2"),
        ("1,234 1/2", "2469/2"),
        ("step 2 13/4", "13/4"),
        ("on 1/2/2024", "2024"),  # a date
        ("3/0", "0"),
        ("50%", "50"),
        ("H2O", "2"),
    ],
)
def test_numbers_by_hand(text, number):
    assert read_number(text) == Fraction(number)
    assert read_number(f"first 17, then {text}") == Fraction(number)


def test_long_numbers_are_exact():
    assert read_number("9" * 5000) == 10**5000 - 1 != read_number("9" * 4999 + "8")
    assert read_number("9" * 5000 + " 1/2") == 10**5000 - Fraction(1, 2)


def test_texts_without_a_number():
    assert [read_number(text) for text in ("", "none", "-", "/", "$", ".")] == [None] * 6


def test_responses_that_no_completion_can_match():
    check_response("exact", {"response": ""}, "f:1")
    check_response("contains", {"response": "a"}, "f:1")
    check_response("last-number", {"response": "a 1"}, "f:1")
    for reward, row, message in (
        ("exact", {}, "f:1.*`response`.*exact"),
        ("contains", {"response": 3}, "f:1 has no `response`"),
        ("contains", {"response": " "}, "f:1.*`response`.*blank"),
        ("last-number", {"response": "five"}, "f:1.*`response` 'five'"),
    ):
        with pytest.raises(ValueError, match=message):
            check_response(reward, row, "f:1")


def test_a_reward_of_the_users_own(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("def short(prompts, completions, rows):\n    return [1 / (1 + len(c)) for c in completions]\n")
    assert load_reward(f"{file}:short")([""], ["abc"], [{}]) == [0.25]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_reward("mine:short")([""], [""], [{}]) == [1]
    sys.modules.pop("mine")
    with pytest.raises(ValueError, match="'shirt'.*short"):
        load_reward(f"{file}:shirt")
    for name in ("no_such.module:short", ".relative:short", "no_such_module:short"):
        with pytest.raises(ModuleNotFoundError, match="module.*'short'"):
            load_reward(name)
    (tmp_path / "needs.py").write_text("import no_such_dependency\n")
    with pytest.raises(ValueError, match="ModuleNotFoundError.*No module named 'no_such_dependency'"):
        load_reward("needs:short")
    for source, error in (
        ("x = 1 / 0", "ZeroDivisionError.*division.*correct"),
        ("from math import foo", "ImportError.*'foo'"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit()", "SystemExit"),
    ):
        (tmp_path / "bad_reward.py").write_text(source)
        for where in ("bad_reward", f"{tmp_path}/bad_reward.py"):
            with pytest.raises(ValueError, match=rf"bad_reward(\.py)? .*{error}"):
                load_reward(f"{where}:f")
        assert "bad_reward" not in sys.modules
    with pytest.raises(FileNotFoundError, match=r"yours\.py"):
        load_reward(f"{tmp_path / 'yours.py'}:short")
    with pytest.raises(ValueError, match=r"'exakt'.*exact.*FILE\.py:FUNCTION"):
        load_reward("exakt")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p, c, r: [1.0], r"array of \[1\].*2 texts"),
        (lambda p, c, r: 1.0, r"array of \[\]"),
        (lambda p, c, r: [[1.0], [2.0]], r"array of \[2, 1\]"),
        (lambda p, c, r: ["good", "bad"], "good.*array"),
        (lambda p, c, r: None, r"array of \[\]"),
        (lambda p, c, r: [0.0, 10**400], r"'\[0\.0, 1000.*int"),
        (lambda p, c, r: [0.0, 10**5000], "'a list'.*int"),
        (lambda p, c, r: [1.0, float("nan")], "nan.*''"),
        (lambda p, c, r: [float("inf"), 0.0], "inf.*'4'"),
        (lambda p, c, r: [1 / len(text) for text in c], "ZeroDivisionError: division"),
        (lambda p, c, r: [r[0]["answer"]] * 2, "KeyError: 'answer'"),
    ],
    ids=["short", "scalar", "nested", "text", "none", "huge", "endless", "nan", "inf", "raises", "field"],
)
def test_rewards_that_fail_are_found_on_the_first_row(function, message):
    with pytest.raises(RewardError, match=f"{message}.*first row"):
        try_reward(function, {"prompt": "2+2=", "response": "4"})


def test_a_reward_that_is_sound_is_called_once():
    seen = []
    try_reward(lambda *given: seen.append(given) or [0, True], {"prompt": "a", "response": "b"})
    assert seen == [(["a", "a"], ["b", ""], [{"prompt": "a", "response": "b"}] * 2)]


def test_a_reward_that_fails_inside_a_program_is_named(caplog):
    words = WordTokenizer.from_texts(["go left"])
    tokens = jnp.array([[[2, 3], [3, 1]]])
    out = Generation(tokens, jnp.array([[2, 2]]), 0.0 * tokens, 0.0 * tokens, jnp.array([[1, 2]]))
    for given, message in (("bad", "ValueError.*'left'"), ("left", None)):

        def function(prompts, completions, rows, given=given):
            if "left" in completions and given == "bad":
                raise ValueError("never 'left'")
            return [len(text) for text in completions]

        reward = text_reward(function, words, [{}])
        with pytest.raises(RewardError, match=message) if message else contextlib.nullcontext(), rewards_named(reward):
            np.testing.assert_array_equal(jax.jit(reward)(out, jnp.zeros(1, int)), [[7, 4]])
    for row, texts in (
        ({"prompt": "go"}, [" go left", " left"]),
        ({"prompt": "go", "messages": []}, ["go left", "left"]),
    ):
        seen: list[str] = []
        reward = text_reward(lambda p, c, r, seen=seen: seen.extend(c) or [0.0, 0.0], words, [row])
        jax.block_until_ready(jax.jit(reward)(out, jnp.zeros(1, int)))
        assert seen == texts
    assert caplog.text == "", "JAX logs no traceback beside the error"
    free = from_text(lambda p, c, r: [[np.inf, len(text)] for text in c], words, [{}], shape=(2,))
    np.testing.assert_array_equal(jax.jit(free)(out, jnp.zeros(1, int)), [[[np.inf, 7], [np.inf, 4]]])
    with pytest.raises(KeyError), rewards_named(reward, None):
        raise KeyError("another error")


def test_a_reward_file_may_hold_dataclasses(tmp_path):
    file = tmp_path / "classed.py"
    text = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Length:
    scale: float = 0.5

    def __call__(self, prompts, completions, rows):
        return [self.scale * len(text) for text in completions]

length = Length()
"""
    file.write_text(text)
    assert load_reward(f"{file}:length")([""], ["abc"], [{}]) == [1.5]
    broken = tmp_path / "broken.py"
    broken.write_text("raise OSError('no licence')\n")
    with pytest.raises(ValueError, match=r"broken\.py.*OSError"):
        load_reward(f"{broken}:length")
    assert "_llmrl_reward_broken" not in sys.modules


def test_what_a_row_asks():
    words = WordTokenizer.from_texts(["what colour is the sky"])
    assert encode_prompt({"prompt": "the sky"}, "f:1", words) == ("the sky", words.encode("the sky"))
    with pytest.raises(DataError, match="f:1.*'prompt'.*promt"):
        encode_prompt({"promt": "the sky"}, "f:1", words)
    with pytest.raises(DataError, match="f:1: 'prompt'.*int"):
        encode_prompt({"prompt": 3}, "f:1", words)
    with pytest.raises(DataError, match="f:1.*prompt.*no token"):
        encode_prompt({"prompt": ""}, "f:1", words)
    with pytest.raises(DataError, match="f:1.*messages.*chat template"):
        encode_prompt({"messages": [{"role": "user", "content": "the sky"}]}, "f:1", words)
