"""The oracle's answers as data for fine-tuning, as examples of prompts, and their halves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from llmrl_jax.systems.ellm import accuracy, prompts
from llmrl_jax.systems.ellm.accuracy import VisitedStates, of_half, rows_of, visited_states
from llmrl_jax.systems.ellm.config import PIXELS, AccuracyRun, AnswersRun, refuse_other_settings
from llmrl_jax.systems.ellm.open_goals import Asker
from tests.ellm_world import CHOP, DRINK, NAMES, PLACE, Yard


SPEC = Yard().goal_spec()
WOOD_HERE, MIDDLE, WATER = 8 | 0, 2, 4
"""Keys: at the tree with wood, between, at the water."""


def visited(*pairs):
    feasible = np.zeros((len(pairs), len(NAMES)), bool)
    for row, (_, goals) in zip(feasible, pairs, strict=True):
        row[list(goals)] = True
    return VisitedStates(np.array([key for key, _ in pairs], np.uint32), feasible)


def test_the_halves_are_disjoint_and_depend_on_the_key_only():
    keys = np.arange(200, dtype=np.uint32)
    whole = VisitedStates(keys, np.arange(200)[:, None] == np.arange(len(NAMES)))
    training, other = of_half(whole, "training"), of_half(whole, "held-out")
    assert sorted([*training.keys, *other.keys]) == list(keys) and 80 < len(training.keys) < 120
    np.testing.assert_array_equal(training.feasible, whole.feasible[training.keys])
    assert of_half(VisitedStates(keys[::-1], whole.feasible), "training").keys.tolist() == training.keys[::-1].tolist()
    assert 0 in other.keys  # SHA-256 of four zero bytes begins with df, which is odd
    assert of_half(whole, "both") is whole


def test_an_agent_that_sees_pictures_meets_states(monkeypatch, tmp_path):
    """Its world draws them, whether its id says so or not; the key of a state is beside them."""
    worlds = []

    def visit(env, env_params, *rest):
        worlds.append(env)
        return visited((MIDDLE, ()))

    monkeypatch.setattr(accuracy, "visit", visit)
    for env in ("CrafterText-v1", "CrafterText-v1?pixels=36"):
        usual = AccuracyRun().ellm
        ellm = replace(usual, observe=PIXELS.observe, network=PIXELS.network, env=env, encoder="hashed")
        visited_states(AnswersRun(ellm=ellm, file=tmp_path / "answers.jsonl", half="both"), 0)
    seen = [dict(world.observation_space(world.default_params).spaces) for world in worlds]
    assert [parts["image"].shape for parts in seen] == [(84, 84, 4), (36, 36, 4)]
    assert all({"key", "known"} <= set(parts) for parts in seen)


def test_settings_of_training_are_refused(tmp_path):
    for changes in ({"extrinsic": 1.0}, {"threshold": 0.5}, {"gate": "none"}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))}.*random play"):
            visited_states(AnswersRun(ellm=replace(AccuracyRun().ellm, **changes), file=tmp_path / "a.jsonl"), 0)
    chat = replace(AccuracyRun().ellm, env="Housekeep-Task1-v0", threshold=0.5)
    with pytest.raises(ValueError, match=r"threshold is 0\.5.*Housekeep-Task1"):
        accuracy.accuracy(AccuracyRun(ellm=chat))


def test_a_run_that_is_named_has_its_own_settings():
    """Another world or agent beside `--from` is refused; prompts and what the run itself has are not."""
    usual, run = AccuracyRun().ellm, PIXELS
    read = ("encoder", "suggester", "goals")
    for given in (usual, run, replace(usual, goals=replace(usual.goals, shots=0), encoder="hashed")):
        refuse_other_settings(given, usual, run, read)
    dqn = replace(usual.dqn, n_step=2)
    with pytest.raises(ValueError, match="--env.*Yard-v0, --dqn.n-step.*2.*--from"):
        refuse_other_settings(replace(usual, env="Yard-v0", dqn=dqn), usual, run, read)


def test_a_row_has_the_request_and_the_oracles_reply():
    shots = prompts.PUBLISHED[:1]
    rows = rows_of(SPEC, visited((WOOD_HERE, (CHOP, PLACE)), (MIDDLE, ()), (WATER, (DRINK,))), shots)
    assert [(row["key"], row["goals"]) for row in rows] == [(8, ["chop tree", "place table"]), (4, ["drink water"])]
    asked, reply = rows[0]["messages"]
    assert (asked["role"], reply["role"]) == ("user", "assistant")
    assert asked["content"] == prompts.request(SPEC.describe(WOOD_HERE), SPEC.verbs, {}, shots).messages[0].content
    assert reply["content"] == "- Chop tree\n- Place table"
    assert prompts.read_goals(reply["content"]) == rows[0]["goals"]


def test_examples_of_the_prompt_are_published_or_from_a_file(tmp_path):
    assert prompts.choose_shots(2) == prompts.PUBLISHED and prompts.choose_shots(0) == ()
    rows = [{"key": i, "state": f"you see cell {i}.", "goals": ["chop tree", f"go {i}"]} for i in range(5)]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shots = prompts.choose_shots(3, str(file))
    assert [state for state, _ in shots] == ["you see cell 0.", "you see cell 1.", "you see cell 3."]
    text = prompts.open_ended("you see cow.", ("eat",), shots)
    assert text.count(prompts.QUESTION) == 4 and "You see cell 3. What do you do?\n- Chop tree\n- Go 3\n\n" in text
    assert prompts.open_ended("you see cow.", ("eat",), ()).count("\n\n") == 1


def test_the_asker_puts_the_examples_into_the_prompt():
    asked = []

    class Notes:
        name = "notes"

        def complete(self, requests):
            asked.extend(request.messages[0].content for request in requests)
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        Asker(SPEC, None, Notes(), {}, 1, "lines", (("you see fog.", ("do nothing",)),)).goals_of([WATER])
    assert "You see fog. What do you do?\n- Do nothing" in asked[0] and "skeleton" not in asked[0]


@pytest.mark.parametrize(
    ("count", "text", "said"),
    [
        (3, None, "--goals.shots.*3.*2"),
        (2, '{"state": "a", "goals": ["b"]}\n', "1 examples"),
        (1, '{"state": "a"}\n', "line 1"),
        (1, "not json\n", "line 1"),
    ],
)
def test_what_is_no_example_is_named(tmp_path, count, text, said):
    file = tmp_path / "answers.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=said):
        prompts.choose_shots(count, "" if text is None else str(file))
    with pytest.raises(FileNotFoundError, match="--goals.examples"):
        prompts.choose_shots(1, str(tmp_path / "answer.jsonl"))
