"""The text beside an episode's pictures."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from envs_jax.env import Environment
from envs_jax.text.phrases import Phrasebook
from llmrl_jax.report import video as episode


class Told(Environment):
    """A world of other captions than BabyAI's."""

    captions = {
        "goal": Phrasebook(["eat, then sleep"], name="goal"),
        "inventory": Phrasebook(["2 wood", "1 stone"], separator="; ", name="inventory"),
    }
    episode_captions = ("goal",)
    action_names = ("noop", "sleep")


def test_the_world_says_its_captions_and_how_they_are_joined():
    text = {"inventory": "2 wood; 1 stone", "goal": "eat, then sleep", "status": "day\nhungry"}
    said = ["goal: eat, then sleep", "", "2 wood", "1 stone", "", "day", "hungry"]
    assert episode.text_lines(Told(), text) == said
    assert episode.text_lines(Told(), text, height=3) == [*said[:3], "..."]
    assert episode.text_lines(Told(), text, width=10)[:2] == ["goal: eat,", "   then"]
    assert episode.text_lines(Told(), {}) == []


def test_a_frame_shows_the_text(monkeypatch):
    seen = []
    monkeypatch.setattr(episode, "text_lines", lambda env, text: seen.append(text) or ["a line"])
    picture = np.zeros((4, 4, 3), np.uint8)
    frame = SimpleNamespace(picture=picture, text={"goal": "eat"}, probabilities=np.array([0.25, 0.75]), action=1)
    drawn = episode.draw_frame(Told(), frame, 3, "success")
    assert drawn.shape == (336, 672, 3) and drawn.dtype == np.uint8 and seen == [{"goal": "eat"}]
    monkeypatch.setattr(episode, "text_lines", lambda env, text: [])
    assert (episode.draw_frame(Told(), frame, 3, "success") != drawn).any()
