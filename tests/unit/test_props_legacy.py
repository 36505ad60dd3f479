"""The dialogue over a matrix: a user's own templates, and what of the replay buffer is shown."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from llmrl_jax.chat import ChatReply, Choice, Usage
from llmrl_jax.systems.props.history import Transition
from llmrl_jax.systems.props.legacy import LegacyOptimizer, LegacyTemplates
from llmrl_jax.systems.props.policies import Policy


VALLEY = Policy("linear", 2, 1, False)


class Says:
    """A chat model that says what it is told to, and remembers what it was asked."""

    name = "says"

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def complete(self, requests):
        self.asked += requests
        return [ChatReply((Choice(self.replies.pop(0)),), "says-1", Usage(1, 1)) for _ in requests]


def asked(turns=1, episodes=(), **options):
    """What a model was asked in some turns after the first matrix."""
    replies = ["1, 2, 3\n4", "1\n2\n3"] * turns  # one that has the wrong size, and its conversion
    opt = LegacyOptimizer(Says(*replies), VALLEY, **options)
    params, state = opt.ask(opt.init(jax.random.key(0)))
    for _ in range(turns):
        state = opt.tell(state, params, jnp.array([-5.0]), episodes=episodes)
        params, state = opt.ask(state)
    return [[(message.role, message.content) for message in request.messages] for request in opt.model.asked]


def test_a_system_template_alone_is_every_turn_s_question(tmp_path):
    """The published files without `llm_ui_template_name`."""
    text = "{{ shape }} no {{ episode_number }}: {{ matrix_string }} earns {{ reward }}, {{ replay_buffer_string }}."
    (tmp_path / "si.j2").write_text(text)
    templates = LegacyTemplates(tmp_path, llm_si_template_name="si.j2")
    first, _, second, _ = asked(2, templates=templates)
    assert [role for role, _ in first] == ["user"] and first[0][1].startswith("3x1 no 1: Weights:\n")
    assert first[0][1].endswith(" earns -5.00, .")
    assert [role for role, _ in second] == ["user", "assistant", "user", "assistant", "user"]
    assert second[-1][1] == "3x1 no 2: Weights:\n1\n2\nBias:\n3 earns -5.00, ."
    _, _, alone, _ = asked(2, templates=templates, reset_llm_conversation=True)
    assert [role for role, _ in alone] == ["user"]


def test_a_user_s_question_has_our_system_message(tmp_path):
    (tmp_path / "ui.j2").write_text("{{ reward }} in {{ environment }}")
    templates = LegacyTemplates(tmp_path, llm_ui_template_name="ui.j2")
    (system, question), _ = asked(templates=templates, environment="A valley.")
    assert system[0] == "system" and "A valley." in system[1] and question == ("user", "-5.00 in A valley.")


@pytest.mark.parametrize("key", ["llm_si_template_name", "llm_ui_template_name", "llm_output_conversion_template_name"])
def test_an_unfit_template_is_named_before_anything_is_asked(tmp_path, key):
    (tmp_path / "bad.j2").write_text("{{ nobody }}")
    templates = LegacyTemplates(tmp_path, **{key: "bad.j2"})
    with pytest.raises(ValueError, match="'bad.j2' cannot be filled: 'nobody' is undefined"):
        LegacyOptimizer(Says(), VALLEY, templates=templates)


EPISODES = [tuple(Transition((float(n),), (float(t),), 0.0) for t in range(90 + n)) for n in range(6)]


def test_a_replay_buffer_can_be_bounded():
    for bounds, kept, least in (
        ({}, {0, 1, 2, 3, 4, 5}, 0),
        ({"buffer_episodes": 2}, {4, 5}, 0),
        ({"buffer_episodes": 9}, {0, 1, 2, 3, 4, 5}, 0),
        ({"buffer_steps": 20}, {0, 1, 2, 3, 4, 5}, 20),
        ({"buffer_steps": 200, "buffer_episodes": 1}, {5}, 95),
    ):
        seen = set()
        questions = asked(12, EPISODES, use_replay_buffer=True, reset_llm_conversation=True, buffer_rows=10, **bounds)
        for _, question in [messages[-1] for messages in questions[::2]]:
            rows = [row.split(" | ") for row in question.splitlines() if row.count(" | ") == 4][1:]
            episode, first = int(float(rows[0][2])), int(rows[0][1])
            seen.add(episode)
            assert [int(row[1]) for row in rows] == [int(row[3]) for row in rows] == list(range(first, first + 10))
            assert int(rows[0][0]) == episode - min(kept) and first >= len(EPISODES[episode]) - (least or 200)
        assert seen <= kept and len(seen) > len(kept) // 2
    with pytest.raises(ValueError, match="buffer_steps is -1; it must be at least 0"):
        LegacyOptimizer(Says(), VALLEY, buffer_steps=-1)
