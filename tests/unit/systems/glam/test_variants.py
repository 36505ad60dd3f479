"""One agent under several prompts that say the same."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.history import PromptHistory
from llmrl_jax.agents.evaluate import Episodes
from llmrl_jax.systems.glam import results
from llmrl_jax.systems.glam.config import PostTestConfig
from llmrl_jax.systems.glam.posttest import (
    VARIANT_TESTS,
    NotTestable,
    Outcome,
    PostTest,
    parse_test,
    prepare,
)
from llmrl_jax.systems.glam.prompts import ENGLISH, STRUCTURAL, VARIANTS, find_variant, glam_prompt
from tests.glam import TINY, WORLD, program


LIST = "turn left, turn right, go forward, pick up, drop, toggle"
SEEN = ("You see a wall 2 steps forward", "You see a red ball 1 step left")
PROMPTS = {
    "": f"Possible action of the agent: {LIST} \n Goal of the agent: go to the red ball \n Observation 0: {SEEN[0]}, "
    f"{SEEN[1]}, \n Action 0: turn left \n Observation 1: {SEEN[0]}, \n Action 1: ",
    "goal_first": f"Goal of the agent: go to the red ball \n Possible action of the agent: {LIST} \n Observation 0: "
    f"{SEEN[0]}, {SEEN[1]}, \n Action 0: turn left \n Observation 1: {SEEN[0]}, \n Action 1: ",
    "no_action_list": f"Goal of the agent: go to the red ball \n Observation 0: {SEEN[0]}, {SEEN[1]}, \n Action 0: "
    f"turn left \n Observation 1: {SEEN[0]}, \n Action 1: ",
    "bulleted": f"Possible action of the agent: {LIST} \n Goal of the agent: go to the red ball \n Observation 0: \n - "
    f"{SEEN[0]} \n - {SEEN[1]} \n Action 0: turn left \n Observation 1: \n - {SEEN[0]} \n Action 1: ",
    "paraphrased": f"Moves that you can make: {LIST} \n Task that you have to do: go to the red ball \n Perception 0: "
    f"{SEEN[0]}, {SEEN[1]}, \n Move 0: turn left \n Perception 1: {SEEN[0]}, \n Move 1: ",
    "tagged": f"<actions> {LIST} </actions> \n <goal> go to the red ball </goal> \n <observation> {SEEN[0]}, "
    f"{SEEN[1]}, </observation> \n <action> turn left </action> \n <observation> {SEEN[0]}, </observation> \n "
    "<action> ",
    "prose": f"In this world you can {LIST}. Your task is to go to the red ball. Look around: {SEEN[0]}, {SEEN[1]}, so "
    f"you decide to turn left. Look around: {SEEN[0]}, so you decide to ",
}


@pytest.fixture(scope="module")
def env():
    return PromptHistory(envs_jax.make(WORLD)[0], 2)


@pytest.fixture(scope="module")
def obs(env):
    """Two observations and the action between them, by hand."""
    space = env.observation_space(env.default_params).spaces
    books = env.unwrapped.books
    text = [books.view.caption(said, space["text"].shape[-1]) for said in (SEEN, SEEN[:1])]
    mission = books.missions.caption(["go to", "the red ball"], space["mission"].shape[-1])
    return {"mission": mission, "text": np.stack(text), "actions": np.array([0], np.int32), "count": np.int32(2)}


@pytest.mark.parametrize("name", PROMPTS)
def test_each_variant_written_out(env, obs, name, bpe):
    """Byte for byte, and as the tokenizer's own tokens, behind Llama-3's regular expression."""
    assert set(PROMPTS) == {"", *VARIANTS}
    prompt = glam_prompt(env, history=2, wording=find_variant(name))
    assert prompt.render(obs) == PROMPTS[name]
    compiled = prompt.compile(bpe)
    tokens, n = jax.jit(lambda obs: compiled(prompt.slots(obs)))(obs)
    own = bpe.encode(PROMPTS[name].rstrip())
    assert np.asarray(tokens)[:n].tolist() == [bpe.bos_id, *own]
    table = compiled.candidates(prompt.actions)
    assert table.tokens[0, : table.lengths[0]].tolist() == bpe.encode(" turn left")


def test_variants_are_tests_that_join_with_others():
    assert VARIANT_TESTS == ("no_modification_test", *VARIANTS)
    assert parse_test("tagged") == PostTest("tagged", variant="tagged")
    both = parse_test("adj_synonym+goal_first+composition")
    assert (both.rewrite, both.variant) == ("adj_synonym", "goal_first")
    with pytest.raises(ValueError, match="names tagged and prose: only one variant can be"):
        parse_test("tagged+prose")
    for name in ENGLISH:
        with pytest.raises(ValueError, match=f"in French, in which {name} has no words"):
            parse_test(f"french+{name}")
        with pytest.raises(ValueError, match=f"{name} has no words in french; those that have: goal_first"):
            find_variant(name, "french")
    assert all(find_variant(name, "french") is VARIANTS[name] for name in STRUCTURAL)
    with pytest.raises(KeyError, match="did you mean 'bulleted'"):
        find_variant("buleted")


def test_an_agent_is_given_another_prompt_and_keeps_the_rest(obs):
    glam = program(replace(TINY, list_actions=True, history=2))
    trial = prepare(glam, parse_test("goal_first"))
    batch = jax.tree.map(lambda x: x[None], obs)
    for policy, name in ((trial.policy, "goal_first"), (glam.policy, "")):
        tokens, lengths = jax.jit(policy.prompts)(batch)
        assert glam.tokenizer.decode(np.asarray(tokens)[0, : int(lengths[0])]).split() == PROMPTS[name].split()
    assert trial.policy.candidates == glam.policy.candidates and trial.policy.model is glam.policy.model
    with pytest.raises(NotTestable, match="no token for </action>, </actions>"):
        prepare(glam, parse_test("tagged"))
    short = program()
    for name in ("goal_first", "no_action_list"):
        with pytest.raises(NotTestable, match=f"{name} changes the list of actions, which the prompt of training does"):
            prepare(short, parse_test(name))


def exam(rates, skipped=()):
    records = {}
    for name, rate in rates.items():
        won = np.arange(100) < round(100 * rate)
        played = Episodes(won, won.astype(np.float32), np.full(100, 4, np.int32), np.zeros(100, np.int32))
        records[name] = results.record_of(Outcome(parse_test(name), WORLD, ("a",), ("t",), {"sampled": played}), {})
    records |= {name: {"skipped": "no token"} for name in skipped}
    return results.Tested("r", "GFlan-T5", None, {}, {}, WORLD, records=records)


def test_the_spread_over_prompts_by_hand():
    played = {"no_modification_test": 0.9, "goal_first": 0.8, "bulleted": 0.3, "prose": 0.4}
    agent = exam(played, ("no_action_list", "paraphrased", "tagged"))
    assert results.spread_of([agent]) == (
        "sampled: 0.900 with the prompt of training; with 3 others 0.500 in the mean, 0.300 at the least (bulleted)"
    )
    nothing = exam({"no_modification_test": 0.9}, tuple(VARIANTS))
    assert results.spread_of([nothing]) == ""


def test_files_of_variants_have_names_of_their_own(tmp_path):
    won = np.array([True])
    played = {"sampled": Episodes(won, won.astype(np.float32), won.astype(np.int32), won.astype(np.int32))}
    (path,) = results.write_returns(tmp_path, Outcome(parse_test("tagged+adj_synonym"), WORLD, ("a",), ("t",), played))
    assert path.name == "adj_synonym_tagged.npy"


def test_the_command_takes_variants_in_place_of_the_published_tests_or_beside(monkeypatch, tmp_path):
    asked = []

    def listened(agent, play, tests, reuse, *others):
        asked.append([test.name for test in tests])
        agent.records = exam(dict.fromkeys(asked[-1], 0.5)).records

    monkeypatch.setattr(results, "take", listened)
    monkeypatch.setattr(results, "draw_tests", lambda groups, path: path)
    results.post_test(PostTestConfig(random=True, variants=True, out=tmp_path))
    tests = ("composition", "prose")
    results.post_test(PostTestConfig(tests=tests, random=True, variants=True, out=tmp_path))
    rest = [name for name in VARIANT_TESTS if name != "prose"]
    assert asked == [list(VARIANT_TESTS), ["composition", "prose", *rest]]
