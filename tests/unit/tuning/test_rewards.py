"""Rewards on text: by hand, from a user's file, and what is no reward is named."""

from __future__ import annotations

import sys

import pytest

from llmrl_jax.lm import WordTokenizer
from llmrl_jax.tuning import REWARDS, DataError, encode_prompt, load_reward


def rate(name, completion, response):
    return REWARDS[name](["?"], [completion], [{"response": response}])[0]


@pytest.mark.parametrize(
    ("name", "completion", "response", "want"),
    [
        ("exact", " blue\n", "blue", 1),
        ("exact", "sky blue", "blue", 0),
        ("contains", "it is blue .", " blue", 1),
        ("contains", "red", "blue", 0),
        ("last-number", "2 + 2 = 4", "so #### 4.0", 1),
        ("last-number", "1,024 apples", "1024", 1),
        ("last-number", "it is -3", "3", 0),
        ("last-number", "none", "3", 0),
        ("last-number", "none", "none", 0),
    ],
)
def test_the_named_rewards_by_hand(name, completion, response, want):
    assert rate(name, completion, response) == want


def test_a_reward_of_the_users_own(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("def short(prompts, completions, rows):\n    return [1 / (1 + len(c)) for c in completions]\n")
    assert load_reward(f"{file}:short")([""], ["abc"], [{}]) == [0.25]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_reward("mine:short")([""], [""], [{}]) == [1]
    sys.modules.pop("mine")
    with pytest.raises(AttributeError, match="has no function 'shirt'.*short"):
        load_reward(f"{file}:shirt")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*yours\.py"):
        load_reward(f"{tmp_path / 'yours.py'}:short")
    with pytest.raises(ValueError, match=r"no reward 'exakt'.*exact.*FILE\.py:FUNCTION"):
        load_reward("exakt")


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
    with pytest.raises(OSError, match="no licence"):
        load_reward(f"{broken}:length")
    assert "_llmrl_reward_broken" not in sys.modules


def test_what_a_row_asks():
    words = WordTokenizer.from_texts(["what colour is the sky"])
    assert encode_prompt({"prompt": "the sky"}, "f:1", words) == ("the sky", words.encode("the sky"))
    with pytest.raises(DataError, match=r"f:1 has no 'prompt'.*promt"):
        encode_prompt({"promt": "the sky"}, "f:1", words)
    with pytest.raises(DataError, match="f:1: 'prompt' is a int, not text"):
        encode_prompt({"prompt": 3}, "f:1", words)
    with pytest.raises(DataError, match="f:1: the prompt has no token"):
        encode_prompt({"prompt": ""}, "f:1", words)
    with pytest.raises(DataError, match="f:1 has messages, but the model has no chat template"):
        encode_prompt({"messages": [{"role": "user", "content": "the sky"}]}, "f:1", words)
