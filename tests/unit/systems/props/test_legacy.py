"""The dialogue over a matrix: what is asked, a user's own templates, and what of the replay buffer is shown."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from llmrl_jax.systems.props.build import Polished
from llmrl_jax.systems.props.compat.legacy import LegacyOptimizer
from llmrl_jax.systems.props.config import TemplateConfig
from llmrl_jax.systems.props.optimizers import make_numeric
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Transition
from tests.props_says import Says, run


VALLEY = Policy("linear", 2, 1, False)


def asked(turns=1, episodes=(), **options):
    """Messages to a model in some turns after the first matrix."""
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
    templates = TemplateConfig(str(tmp_path), llm_si_template_name="si.j2")
    first, _, second, _ = asked(2, templates=templates)
    assert [role for role, _ in first] == ["user"] and first[0][1].startswith("3x1 no 1: Weights:\n")
    assert first[0][1].endswith(" earns -5.00, .")
    assert [role for role, _ in second] == ["user", "assistant", "user", "assistant", "user"]
    assert second[-1][1] == "3x1 no 2: Weights:\n1\n2\nBias:\n3 earns -5.00, ."
    _, _, alone, _ = asked(2, templates=templates, reset_llm_conversation=True)
    assert [role for role, _ in alone] == ["user"]


def test_a_user_s_question_has_our_system_message(tmp_path):
    (tmp_path / "ui.j2").write_text("{{ reward }} in {{ environment }}")
    templates = TemplateConfig(str(tmp_path), llm_ui_template_name="ui.j2")
    (system, question), _ = asked(templates=templates, environment="A valley.")
    assert system[0] == "system" and "A valley." in system[1] and question == ("user", "-5.00 in A valley.")


@pytest.mark.parametrize("key", ["llm_si_template_name", "llm_ui_template_name", "llm_output_conversion_template_name"])
def test_an_unfit_template_is_named_before_anything_is_asked(tmp_path, key):
    (tmp_path / "bad.j2").write_text("{{ nobody }}")
    templates = TemplateConfig(str(tmp_path), **{key: "bad.j2"})
    with pytest.raises(ValueError, match="'bad.j2'.*'nobody'"):
        LegacyOptimizer(Says(), VALLEY, templates=templates)


def test_the_actions_of_a_prompt_are_those_of_the_box(tmp_path):
    (tmp_path / "si.j2").write_text("{{ actions }}")
    templates = TemplateConfig(str(tmp_path), llm_si_template_name="si.j2")
    table = Policy("table", 2, 4, True, 1.0, 2.0, 0, "box")
    opt = LegacyOptimizer(model := Says("1\n2"), table, templates=templates)
    params, state = opt.ask(opt.init(jax.random.key(0)))
    params, state = opt.ask(opt.tell(state, params, jnp.array([-5.0])))
    assert model.asked[0].messages[0].content == "[1, 2]" and params.tolist() == [[1.0, 2.0]]


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
    with pytest.raises(ValueError, match="buffer_steps.*-1.*0"):
        LegacyOptimizer(Says(), VALLEY, buffer_steps=-1)


LONG = [tuple(Transition((float(t), 0.0), (1.0,), -1.0) for t in range(150))]


def test_a_dialogue_that_shows_episodes_is_not_polished():
    with pytest.raises(ValueError, match="use_replay_buffer.*matrix"):
        Polished(LegacyOptimizer(Says(), VALLEY, use_replay_buffer=True), make_numeric("cem", VALLEY))


def test_the_legacy_dialogue():
    model = Says("Weights:\n1\n2\nBias:\n3", "1\n2", "1, 2, 3", "4\n5\n6\nbetter", "7\n8\n9")
    opt = LegacyOptimizer(model, VALLEY, environment="A valley.", use_replay_buffer=True)
    params, state = opt.ask(opt.init(jax.random.key(0)))
    assert params.shape == (1, 3) and state.record["outcome"] == "warmup"
    with pytest.raises(ValueError, match="no episodes"):
        opt.tell(state, params, jnp.array([-1.0]))
    state = opt.tell(state, params, jnp.array([-1.0]), episodes=LONG)
    params, state = opt.ask(state)
    assert params.tolist() == [[1, 2, 3]]
    system, question = model.asked[0].messages
    assert (
        (system.role, question.role) == ("system", "user") and "A valley." in system.content and "3x1" in system.content
    )
    assert "Reward: -1.00" in question.content and question.content.startswith("Episode 1.")
    lines = question.content.partition("Trajectory | Step | State | Action | Reward\n")[2].splitlines()[:100]
    steps = [int(line.split(" | ")[1]) for line in lines]
    assert steps == list(range(steps[0], steps[0] + 100)) and lines[0] == f"0 | {steps[0]} | {steps[0]}, 0 | 1 | -1"

    state = opt.tell(state, params, jnp.array([-5.0]), episodes=LONG)
    params, state = opt.ask(state)  # two conversions
    assert params.tolist() == [[4, 5, 6]]
    messages = model.asked[3].messages
    assert [m.role for m in messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert "Weights:\n1\n2\nBias:\n3" in messages[3].content and "Reward: -5.00" in messages[3].content
    assert (
        "its matrix is 2x1, where 3x1 was asked for" in messages[5].content
        and "3 lines of 1 number" in messages[5].content
    )
    state = opt.tell(state, params, jnp.array([0.0]), episodes=LONG)
    opt.ask(state)
    assert len(model.asked[4].messages) == 10  # the system, nine turns


def test_the_legacy_dialogue_can_be_forgotten_and_replayed():
    replies = ["1\n2\n3", "4\n5\n6", "7\n8\n9"]
    for reset, length in ((False, 6), (True, 2)):
        opt = LegacyOptimizer(Says(*replies), VALLEY, reset_llm_conversation=reset)
        log: list = []
        whole = run(opt, opt.init(jax.random.key(0)), 3, log)
        opt.ask(whole)
        assert len(opt.model.asked[2].messages) == length
        again = LegacyOptimizer(Says(replies[2]), VALLEY, reset_llm_conversation=reset)
        state = again.init(jax.random.key(0))
        for params, values, record in log:
            state = again.replay(state, jnp.asarray(params), jnp.asarray(values), record)
        again.ask(state)
        assert again.model.asked[0] == opt.model.asked[2]


def test_legacy_templates_are_the_user_s(tmp_path):
    (tmp_path / "ui.j2").write_text("{{ episode_number }}|{{ matrix_string }}|{{ reward }}|{{ replay_buffer_string }}")
    templates = TemplateConfig(str(tmp_path), llm_ui_template_name="ui.j2")
    opt = LegacyOptimizer(Says("1\n2\n3"), VALLEY, templates=templates)
    params, state = opt.ask(opt.init(jax.random.key(0)))
    opt.ask(opt.tell(state, jnp.array([[1.0, 2.0, 3.5]]), jnp.array([4.0])))
    assert opt.model.asked[0].messages[1].content == "1|Weights:\n1\n2\nBias:\n3.5|4.00|"
    with pytest.raises(FileNotFoundError, match="'gone.j2'"):
        LegacyOptimizer(Says(), VALLEY, templates=TemplateConfig(str(tmp_path), llm_si_template_name="gone.j2"))
    with pytest.raises(ValueError, match="'ui.j2'.*templates.template_dir"):
        TemplateConfig(llm_ui_template_name="ui.j2")
