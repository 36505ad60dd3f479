"""Agents of BALROG: replies, quirks, and their corrections."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from envs_jax.crafter import constants as c
from llmrl_jax.chat import Message
from llmrl_jax.systems.balrog.agents import FIXES, Agent, AgentSettings, read_reply
from llmrl_jax.systems.balrog.config import EvalRun, published_name
from llmrl_jax.systems.balrog.prompts import (
    CRAFTER_ACTIONS,
    FORMATS,
    OFF_MAP,
    VERSIONS,
    Observation,
    Scene,
    babyai_instruction,
    crafter_instruction,
    crafter_observation,
)
from llmrl_jax.systems.balrog.scripted import ScriptedPlayer


@pytest.mark.parametrize(
    ("agent", "reply", "action"),
    [
        ("naive", "**Go forward**.", "Go forward"),
        ("naive", "<think>a</think>\ngo", "thinkathink\ngo"),
        ("cot", "1. I go.\nACTION: go forward.", "go forward"),
        ("cot", "ACTION: drop\nACTION: toggle", "toggle"),
        ("cot", "no format", "no format"),
        ("cot", "I am there. ACTION:", ""),
        ("robust_naive", "x <|ACTION|> drop\n<|END|> <|ACTION|>toggle<|END|>", "drop"),
        ("robust_naive", " <|ACTION|>drop ", "<|ACTION|>drop"),
        ("robust_cot", "so <|ACTION|>drop<|END|>", "drop"),
        ("robust_cot", "drop", "Failed to obtain a valid action from the reasoning."),
    ],
)
def test_replies_are_read(agent, reply, action):
    answer = read_reply(agent, reply)
    assert answer == (action, reply if agent in ("cot", "robust_cot") else None)


def contents(agent, observation):
    return [(message.role, message.content) for message in agent.messages(observation)]


def test_an_empty_reply_is_not_remembered_and_its_correction():
    observation = Observation("a wall 1 step forward")
    roles = {}
    for fixes in ((), ("empty",)):
        agent = Agent(AgentSettings(fixes=fixes), "PLAY!")
        agent.messages(observation)
        agent.read("...")
        roles[fixes] = [role for role, _ in contents(agent, observation)]
    assert roles[()] == ["user", "user", "user"]
    assert roles["empty",] == ["user", "user", "assistant", "user"]


def test_a_full_window_begins_with_an_answer():
    agent = Agent(AgentSettings(max_text_history=2), "PLAY!")
    for i in range(4):
        last = contents(agent, Observation(f"state {i}"))
        agent.read(f"go {'abcd'[i]}")
    assert last == [
        ("user", "PLAY!"),
        ("assistant", "go b"),
        ("user", "Observation:\nstate 2"),
        ("assistant", "go c"),
        ("user", f"Current Observation:\nstate 3\n\n{FORMATS['naive']}"),
    ]


def test_thoughts_are_remembered_by_cot_alone_and_by_robust_cot_with_its_correction():
    reply = "I think. <|ACTION|>drop<|END|> ACTION: drop"
    turns = {}
    for name, fixes in (("cot", ()), ("robust_cot", ()), ("robust_cot", ("memory",))):
        agent = Agent(AgentSettings(name, fixes=fixes), "PLAY!")
        for _ in range(3):
            last = contents(agent, Observation("x"))
            agent.read(reply)
        turns[name, fixes] = [text for role, text in last if role == "assistant"]
    assert turns["cot", ()] == ["drop", f"Previous plan:\n{reply}"] == turns["robust_cot", ("memory",)]
    assert turns["robust_cot", ()] == ["drop", "drop"]


def test_thoughts_that_a_server_leaves_in_the_text():
    reply = "<think>toggle?</think>go forward"
    assert Agent(AgentSettings(), "").read(reply).action != "go forward"
    assert Agent(AgentSettings(fixes=("thinking",)), "").read(reply).action == "go forward"


def test_feedback_by_version():
    observation = Observation("a wall 1 step forward")
    texts = {}
    for balrog in VERSIONS:
        agent = Agent(AgentSettings(balrog=balrog), "")
        texts[balrog] = agent.after(observation, "go forward", agent.read("dance")).text
        assert agent.after(observation, "drop", agent.read("drop")) == observation
    assert "'dance'" in texts["2024-11"] and "dance" not in texts["2025-04"] == texts["2025-08"]
    silent = Agent(AgentSettings(feedback=False), "")
    assert silent.after(observation, "go forward", silent.read("dance")) == observation


def test_alternating_roles():
    agent = Agent(AgentSettings(alternate_roles=True), "PLAY!")
    (message,) = agent.messages(Observation("x"))
    assert message.content.startswith("PLAY!\nCurrent Observation:\nx\n\n")
    agent.read("")
    assert [m.role for m in agent.messages(Observation("y"))] == ["user"]


def scene(x=32, y=32, facing=0, **changes):
    """Grass all around, a tree to the left, water above, stone at the far corner."""
    view = np.zeros((9, 7, 2), np.uint8)
    view[..., 0] = c.GRASS
    view[3, 3, 0], view[4, 2, 0], view[8, 6, 0] = c.TREE, c.WATER, c.STONE
    for i, j in np.ndindex(9, 7):
        if not (0 <= x - 4 + i < 64 and 0 <= y - 3 + j < 64):
            view[i, j] = 0
    view[4, 3, 1] = c.SPRITE_PLAYER
    inventory = np.array([9] * 4 + [0] * 12)
    return Scene(view, np.array([x, y]), inventory, facing, False)._replace(**changes)


def seen(version, state, **options):
    return crafter_observation(state, VERSIONS[version], **options).text


def test_crafter_by_version():
    lines = "You see:\n- grass 1 step to your south\n- tree 1 step to your west\n- water 1 step to your north\n"
    stone = "- stone 7 steps to your south-east\n\nYou face tree at your front."
    assert seen("2025-08", scene()) == lines + stone
    early = seen("2025-04", scene())
    assert early.startswith("You see:\n- water 1 steps to your north\n- grass 1 steps")
    assert [seen(version, scene(facing=2)).split()[-4] for version in VERSIONS] == ["grass", "water", "water"]


def test_crafter_at_the_borders():
    for x, y in ((3, 32), (32, 2), (0, 0)):
        for version in VERSIONS:
            assert seen(version, scene(x, y)) == "You see nothing away from you.\n\nYou face nothing at your front."
        assert "stone" in seen("2025-08", scene(x, y), whole_view=True)
    assert "tree" in seen("2025-08", scene(4, 3)) and "stone" not in seen("2025-08", scene(61, 61))
    assert seen("2025-08", scene(63, 32, facing=1)).endswith("nothing at your front.")
    assert seen("2025-04", scene(63, 32, facing=1)) == OFF_MAP
    assert seen("2025-04", scene(63, 32, facing=1), whole_view=True).endswith("nothing at your front.")


def test_crafter_asleep_dead_and_laden():
    asleep = crafter_observation(scene(sleeping=True), VERSIONS["2025-08"])
    assert asleep.text.startswith(
        "You are sleeping, and will not be able take actions until energy is full.\n\n\n\nYou"
    )
    inventory = np.array([0, 1, 2, 3, 0, 5] + [0] * 10)
    dead = crafter_observation(scene(inventory=inventory), VERSIONS["2025-08"])
    assert dead.text.startswith("You died.\n\n\n\nYou see:")
    assert dead.status == (
        "Your status:\n- health: 0/9\n- food: 1/9\n- drink: 2/9\n- energy: 3/9\n\nYour inventory:\n- wood: 5"
    )
    assert asleep.status.endswith("You have nothing in your inventory.")


def test_the_scripted_player_answers_in_every_format():
    for instruction in (babyai_instruction("go to the red ball"), crafter_instruction(VERSIONS["2025-08"])):
        for name in FORMATS:
            agent = Agent(AgentSettings(name), instruction)
            request = agent.messages(Observation("a wall 1 step forward"))
            replies = {ScriptedPlayer().advise(request, random.Random(i)) for i in range(300)}
            actions = {agent.read(reply).action for reply in replies}
            assert len(actions) == (6 if instruction.startswith("You are an agent playing a simple") else 17)
    assert actions == set(CRAFTER_ACTIONS)


def test_settings_are_checked():
    assert EvalRun().names == ("goto", "pickup", "open", "putnext", "pick_up_seq_go_to", "crafter")
    assert EvalRun(tasks=("crafter", "open", "open")).names == ("open", "crafter")
    assert published_name("goto") == "BabyAI-MixedTrainLocal-v0/goto" and published_name("crafter") == "default"
    assert EvalRun().chat.sampling == {"temperature": 1.0, "max_tokens": 8192}
    for wrong in ({"tasks": ("gotoo",)}, {"tasks": ()}, {"agent": "robust_cot", "balrog": "2024-11"}):
        with pytest.raises(ValueError):
            EvalRun(**wrong)
    assert set(FIXES) == {"empty", "memory", "thinking", "view", "noop"}
    assert dataclasses.asdict(EvalRun().settings)["balrog"] == "2025-08"
    assert isinstance(Agent(AgentSettings(), "x").messages(Observation("y"))[0], Message)
