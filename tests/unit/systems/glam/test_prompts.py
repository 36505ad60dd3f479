"""GLAM's prompt in other words (`agents/base_agent.py`), and equivalent prompts."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import envs_jax
from envs_jax.actions import ChosenActions
from envs_jax.babyai.text import french
from envs_jax.history import PromptHistory
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer
from llmrl_jax.systems.glam.build import EXTRA_ACTIONS, with_actions
from llmrl_jax.systems.glam.posttest import VARIANT_TESTS, NotTestable, PostTest, parse_test, prepare
from llmrl_jax.systems.glam.prompts import (
    ENGLISH,
    REWRITES,
    STRUCTURAL,
    SYNONYMS,
    VARIANTS,
    find_rewrite,
    find_variant,
    glam_prompt,
    rewritten,
    unknown_words,
)
from tests.glam import TINY, WORLD, program


CANONICAL = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")


@pytest.fixture(scope="module")
def world():
    env, params = envs_jax.make("BabyAI-Text/MixedTrainLocal-v0")
    return PromptHistory(env, 3), params


@pytest.fixture(scope="module")
def observations(world):
    """24 environments after 1, 4 and 12 random steps: all tasks, doors, things carried, windows half full."""
    env, params = world
    batch = envs_jax.VectorEnv(env, 24, policy="none")

    @jax.jit
    def play(key):
        obs, state = batch.reset(key, params)

        def step(carry, key):
            _, state = carry
            action = jax.random.randint(key, (24,), 0, 6)
            obs, state, *_ = batch.step(key, state, action, params)
            return (obs, state), obs

        return jax.lax.scan(step, (obs, state), jax.random.split(key, 12))[1]

    seen = jax.tree.map(np.asarray, play(jax.random.key(5)))
    return [jax.tree.map(lambda x, t=t, i=i: x[t, i], seen) for t in (0, 3, 11) for i in range(24)]


@pytest.mark.parametrize(
    "name, said",
    [
        ("no_modification_test", "Goal of the agent: put the red key next to the grey box, You see a yellow ball"),
        (
            "other_name_same_categories",
            "Goal of the agent: put the red chair next to the grey car, You see a yellow table",
        ),
        ("adj_synonym", "Goal of the agent: put the vermilion key next to the silver box, You see a golden ball"),
        ("no_meaning_nouns", "Goal of the agent: put the red dax next to the grey afze, You see a yellow xolo"),
        ("no_meaning_adj", "Goal of the agent: put the faze key next to the sil box, You see a gakul ball"),
        ("no_meaning_words", "Goal of the agent: put the faze dax next to the sil afze, You see a gakul xolo"),
        (
            "change_intro_first_personne_speaker",
            "I would like the agent to: put the red key next to the grey box, You see a yellow ball",
        ),
        (
            "change_intro_first_personne_agent",
            "You have to: put the red key next to the grey box, You see a yellow ball",
        ),
    ],
)
def test_what_each_published_rewrite_says(name, said):
    text = "Goal of the agent: put the red key next to the grey box, You see a yellow ball"
    assert find_rewrite(name)(text) == said


def test_the_french_dictionaries():
    text = "But de l'agent: aller à la clef verte, Tu vois une boîte bleue, une balle violette, une porte grise"
    assert find_rewrite("other_name_same_categories", "french")(text) == (
        "But de l'agent: aller à la chaise verte, Tu vois une voiture bleue, une table violette, une porte grise"
    )
    assert find_rewrite("adj_synonym", "french")("rouge verte bleue violette jaune grise") == (
        "vermilion jade cyan mauve dorée argent"
    )
    assert find_rewrite("no_meaning_words", "french")("clef balle boîte rouge verte bleue violette jaune grise") == (
        "dax xolo afze faze jatu croh vurst gakul sil"
    )
    assert find_rewrite("change_intro_first_personne_speaker", "french")(text).startswith("Je veux que l'agent fasse: ")
    assert find_rewrite("change_intro_first_personne_agent", "french")(text).startswith("Tu dois faire: ")


@pytest.mark.parametrize("language", ["english", "french"])
def test_rewriting_the_phrases_is_rewriting_the_prompt(world, observations, language):
    template = glam_prompt(world[0], language=language)
    changed = dict.fromkeys(REWRITES[language], 0)
    for name, rewrite in REWRITES[language].items():
        other = rewritten(template, rewrite)
        for obs in observations:
            before, after = template.render(obs), other.render(obs)
            assert after == rewrite(before)
            changed[name] += after != before
    assert changed.pop("no_modification_test") == 0
    assert all(changed.values()), f"a rewrite that nothing was tried on: {changed}"


def test_no_published_rewrite_touches_a_name_of_an_action():
    """So that it does not matter whether candidates are rewritten: the published code leaves them as they are."""
    english = (*CANONICAL, *EXTRA_ACTIONS, *(name for names in SYNONYMS.values() for name in names))
    for language, names in {"english": english, "french": tuple(french.ACTIONS.values())}.items():
        for rewrite in REWRITES[language].values():
            assert tuple(map(rewrite, names)) == names


def test_candidates_are_rewritten_with_the_prompt(world):
    from llmrl_jax.systems.glam.prompts import Rewrite

    other = rewritten(glam_prompt(world[0]), Rewrite("up", (("pick up", "take"),)))
    assert other.actions == ("turn left", "turn right", "go forward", "take", "drop", "toggle")


@pytest.mark.slow
def test_a_byte_level_tokenizer_takes_every_rewrite(bpe, observations):
    """Tokens assembled on the device are the tokenizer's own for the rewritten string."""
    env = PromptHistory(envs_jax.make("BabyAI-Text/MixedTrainLocal-v0")[0], 3)
    template = glam_prompt(env)
    rewrite = find_rewrite("no_meaning_words")
    other = rewritten(template, rewrite)
    assert unknown_words(bpe, other) == []
    compiled = other.compile(bpe)
    prompts = jax.jit(other.batched(compiled))
    some = observations[::9]
    tokens, lengths = map(np.asarray, prompts(jax.tree.map(lambda *x: jnp.stack(x), *some)))
    for obs, row, n in zip(some, tokens, lengths, strict=True):
        assert row[:n].tolist() == [bpe.bos_id, *bpe.encode(rewrite(template.render(obs)).rstrip())]


def test_words_that_a_tokenizer_does_not_have(world):
    template = glam_prompt(world[0])
    words = WordTokenizer.from_prompt(template.prompt, template.actions)
    assert unknown_words(words, template) == []
    assert unknown_words(words, rewritten(template, find_rewrite("no_meaning_nouns"))) == ["afze", "dax", "xolo"]
    assert unknown_words(words, glam_prompt(world[0], SYNONYMS["synonym_actions"])) == [
        *("ahead", "move", "release", "rotate", "switch", "take")
    ]
    vocabulary = {"<unk>": 0, **{word: i for i, word in enumerate(words.backend.get_vocab(), 1)}}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    other = rewritten(template, find_rewrite("other_name_same_categories"))
    assert unknown_words(FastTokenizer(backend), other) == ["car", "chair", "table"]


@pytest.mark.slow
def test_extra_actions_do_nothing():
    base, params = envs_jax.make("BabyAI-Text/GoToObjS4-v0")
    env = ChosenActions(base, 6, EXTRA_ACTIONS)
    assert env.action_names == (*CANONICAL, "sleep", "do nothing", "think") and env.action_space(params).n == 9
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    step, plain = jax.jit(env.step), jax.jit(base.step)
    for action in range(9):
        after = step(jax.random.key(1), state, jnp.int32(action), params)[1]
        expected = plain(jax.random.key(1), state, jnp.int32(min(action, 6)), params)[1]
        jax.tree.map(np.testing.assert_array_equal, after, expected)
        if action >= 6:
            jax.tree.map(np.testing.assert_array_equal, after, state.replace(step_count=np.int32(1)))
    few = ChosenActions(base, 3, EXTRA_ACTIONS)
    after = jax.jit(few.step)(jax.random.key(1), state, jnp.int32(3), params)[1]
    jax.tree.map(np.testing.assert_array_equal, after, state.replace(step_count=np.int32(1)))


@pytest.mark.parametrize("n", [3, 6, 9])
def test_a_world_that_is_won_by_done_needs_it(n):
    """Further actions would end the episode by "sleep", and without "done" no mission can be accomplished."""
    env, _ = envs_jax.make("BabyAI-Text/GoToObjS4-v0?done_actions=true")
    with pytest.raises(ValueError, match=f"num_actions.*{n}.*7"):
        with_actions(EpisodeStatistics(env), n)
    assert with_actions(EpisodeStatistics(env), 7).action_names[-1] == "done"


def test_wrong_names_are_refused():
    with pytest.raises(KeyError, match="'no_meaning_nouns'"):
        find_rewrite("no_meaning_noun")
    with pytest.raises(KeyError, match="'german'.*french"):
        find_rewrite("adj_synonym", "german")
    base, _ = envs_jax.make("BabyAI-Text/GoToObjS4-v0")
    with pytest.raises(ValueError, match="num_actions.*7.*6"):
        ChosenActions(base, 7, EXTRA_ACTIONS)
    with pytest.raises(ValueError, match="drop.*same name"):
        ChosenActions(base, 6, ("drop",))


# --- equivalent prompts -----------------------------------------------------------------------------------------------


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
def short_env():
    return PromptHistory(envs_jax.make(WORLD)[0], 2)


@pytest.fixture(scope="module")
def obs(short_env):
    """Two observations and the action between them, by hand."""
    space = short_env.observation_space(short_env.default_params).spaces
    books = short_env.unwrapped.books
    text = [books.view.caption(said, space["text"].shape[-1]) for said in (SEEN, SEEN[:1])]
    mission = books.missions.caption(["go to", "the red ball"], space["mission"].shape[-1])
    return {"mission": mission, "text": np.stack(text), "actions": np.array([0], np.int32), "count": np.int32(2)}


@pytest.mark.parametrize(
    "name", [name if i % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(PROMPTS)]
)
def test_each_variant_written_out(short_env, obs, name, bpe):
    """Byte for byte, and as the tokenizer's own tokens, behind Llama-3's regular expression."""
    assert set(PROMPTS) == {"", *VARIANTS}
    prompt = glam_prompt(short_env, history=2, wording=find_variant(name))
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
    with pytest.raises(ValueError, match="names tagged"):
        parse_test("tagged+prose")
    for name in ENGLISH:
        with pytest.raises(ValueError, match=f"French.*{name}"):
            parse_test(f"french+{name}")
        with pytest.raises(ValueError, match=f"{name}.*french.*goal_first"):
            find_variant(name, "french")
    assert all(find_variant(name, "french") is VARIANTS[name] for name in STRUCTURAL)
    with pytest.raises(KeyError, match="'bulleted'"):
        find_variant("buleted")


def test_an_agent_is_given_another_prompt_and_keeps_the_rest(obs):
    glam = program(replace(TINY, list_actions=True, history=2))
    trial = prepare(glam, parse_test("goal_first"))
    batch = jax.tree.map(lambda x: x[None], obs)
    for policy, name in ((trial.policy, "goal_first"), (glam.policy, "")):
        tokens, lengths = jax.jit(policy.prompts)(batch)
        assert glam.tokenizer.decode(np.asarray(tokens)[0, : int(lengths[0])]).split() == PROMPTS[name].split()
    assert trial.policy.candidates == glam.policy.candidates and trial.policy.model is glam.policy.model
    with pytest.raises(NotTestable, match="</action>, </actions>"):
        prepare(glam, parse_test("tagged"))
    short = program()
    for name in ("goal_first", "no_action_list"):
        with pytest.raises(NotTestable, match=f"{name}.*of actions"):
            prepare(short, parse_test(name))
