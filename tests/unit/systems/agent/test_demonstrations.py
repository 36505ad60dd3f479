"""The texts in which an expert's replies are learned are those that the policy sees; its thoughts name the goal."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from llmrl_jax import lm
from llmrl_jax.systems.agent.build import build
from llmrl_jax.systems.agent.clone import Demonstration, make, thought_of, write_model
from llmrl_jax.systems.agent.config import DEMO, CloneConfig, CloneRun
from llmrl_jax.tuning import ChatTemplate


HEAD, OPENING, LATER = [1], [2, 3], [4, 5, 6]
"""Tokens of the head, of an observation that begins an episode, and of one that follows a reply."""


def texts(episode: Demonstration, replies: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    """The tokens of each text of an episode with these replies, and those that are learned."""
    examples = [example for reply in replies for example in episode.turn(HEAD, OPENING, LATER, reply)]
    examples += episode.end()
    return [(x.tokens, [t for t, learn in zip(x.tokens, x.learn, strict=True) if learn]) for x in examples]


def test_an_episode_is_one_text_with_append():
    episode = Demonstration(appends=True, window=0, length=100)
    for _ in range(2):  # the second episode knows nothing of the first
        assert texts(episode, [[7], [8, 9]]) == [([1, 2, 3, 7, 4, 5, 6, 8, 9], [7, 8, 9])]
    assert episode.end() == []


def test_a_text_is_cut_to_whole_turns():
    episode = Demonstration(appends=True, window=0, length=8)
    assert texts(episode, [[7], [8], [9]]) == [([1, 2, 3, 7, 4, 5, 6, 8], [7, 8])]
    # what comes after a turn that does not fit is left out, though it would fit
    assert texts(episode, [[7], [8, 8], [9]]) == [([1, 2, 3, 7], [7])]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (0, [([1, 2, 3, 7], [7]), ([1, 2, 3, 8], [8]), ([1, 2, 3, 9], [9])]),
        (1, [([1, 2, 3, 7], [7]), ([1, 2, 3, 7, 4, 5, 6, 8], [8]), ([1, 4, 5, 6, 8, 4, 5, 6, 9], [9])]),
    ],
)
def test_a_turn_is_a_text_with_reprompt(window, expected):
    episode = Demonstration(appends=False, window=window, length=100)
    for _ in range(2):
        assert texts(episode, [[7], [8], [9]]) == expected


@pytest.mark.parametrize(
    ("appends", "expected"),
    [
        (True, [[1, 2, 3, 7, 4, 5, 6, 8, 4, 5, 6, 9, 4]]),
        # behind the head the marker stays: what comes before it there is no reply
        (False, [[1, 2, 3, 7, 4], [1, 2, 3, 7, 4, 5, 6, 8], [1, 4, 5, 6, 8, 4, 5, 6, 9, 4]]),
    ],
)
def test_a_reply_ends_once(appends, expected):
    """Observations that follow a reply begin with the marker that ends it, 4, with which some replies end."""
    episode = Demonstration(appends, window=0 if appends else 1, length=100, end=4)
    for _ in range(2):
        assert [tokens for tokens, _ in texts(episode, [[7, 4], [8], [9, 4]])] == expected


OBSERVATION = "You see a wall, You see a grey key 3 steps right, You see a red ball 1 step left and 1 step forward"


@pytest.mark.parametrize(
    ("mission", "thought"),
    [
        ("go to the red ball", "red ball left forward"),
        ("go to a grey key", "grey key right"),
        ("go to the red key", "red key nowhere"),
        ("put the red box next to the grey key", "grey key right"),
        ("put the red box next to the blue key", "red box nowhere"),
        ("open the door", "door nowhere"),
        ("pick up a box", "box nowhere"),
        ("pick up the key", "key right"),
        ("go to the red ball after you pick up the grey key", "grey key right"),
        ("go to the red ball, then pick up the grey key", "red ball left forward"),
        ("go to the blue box, then pick up the grey key", "blue box nowhere"),
        ("go to the red ball after you pick up the blue key", "blue key nowhere"),
    ],
)
def test_a_thought_names_the_goal_and_its_directions(mission, thought):
    assert thought_of({"mission": mission, "text": OBSERVATION}) == thought


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("You see a wall 1 step forward, You see a red ball 2 steps forward", "red ball forward blocked"),
        (
            "You see a wall 1 step forward, You see a red ball 1 step left and 1 step forward",
            "red ball left forward blocked",
        ),
        ("You see a wall 1 step forward, You see a red ball 2 steps left", "red ball left"),
        ("You see a blue ball 1 step left, You see a red ball 2 steps left", "red ball left blocked"),
        ("You see a blue ball 1 step left and 1 step forward, You see a red ball 3 steps left", "red ball left"),
        ("You see a red ball 1 step right", "red ball right"),
        ("You see a wall 1 step forward, You see a wall 1 step left", "red ball nowhere blocked"),
        ("You see a wall 2 steps forward, You see a wall 1 step left", "red ball nowhere"),
    ],
)
def test_a_thought_says_whether_something_stands_in_the_way(text, thought):
    assert thought_of({"mission": "go to the red ball", "text": text}) == thought


def test_a_thought_ends_with_a_plan():
    text = {"mission": "go to the red ball", "text": "You see a blue ball 1 step left, You see a red ball 2 steps left"}
    assert thought_of(text, "go forward") == "red ball left blocked so go forward"


def test_a_clone_ends_as_its_base_and_has_its_template(tmp_path):
    drawn = build(replace(DEMO, tune="full"))
    state = SimpleNamespace(params=drawn.policy.base(jax.random.key(0)))
    base, clone = tmp_path / "base" / "model", tmp_path / "clone" / "model"
    write_model(drawn, state, base.parent)
    ends = sorted({drawn.tokenizer.eos_id, 4})
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (base / "chat_template.jinja").write_text("{{ messages[0].content }}")
    taught = build(replace(DEMO, tune="full", model=str(base)))
    write_model(taught, state, clone.parent)
    assert lm.end_tokens(clone, taught.tokenizer) == lm.end_tokens(base, taught.tokenizer) == tuple(ends)
    assert ChatTemplate.load(clone).source == ChatTemplate.load(base).source


def test_a_phrase_of_a_mission_without_a_colour_is_found():
    text = {
        "mission": "open the door",
        "text": "You see a wall 1 step forward, You see a locked green door 1 step right",
    }
    assert thought_of(text, "turn right") == "door right so turn right"


def test_rows_that_cannot_hold_a_text_are_refused_before_the_expert_plays(monkeypatch):
    monkeypatch.setattr("llmrl_jax.systems.agent.clone.demonstrations", lambda *args: pytest.fail("it plays"))
    config = CloneRun(agent=replace(DEMO, tune="full", memory="reprompt"), clone=CloneConfig(episode_tokens=40))
    with pytest.raises(ValueError, match=r"episode_tokens is 40.*--episode-tokens \d+"):
        make(config)
    sft = replace(CloneConfig().sft, head_chunk=100)
    with pytest.raises(ValueError, match="head_chunk is 100.*512"):
        make(replace(config, clone=CloneConfig(episode_tokens=512, sft=sft)))
