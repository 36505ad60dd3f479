"""Prompts: the text of templates, their tokens inside jit, and what is refused when they are built."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.history import PromptHistory
from envs_jax.text import (
    Block,
    Choice,
    Limit,
    Literal,
    Phrasebook,
    Prompt,
    PromptError,
    Slot,
    compiled as compiled_module,
)
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer
from llmrl_jax.systems.glam.prompts import glam_prompt


COLORS = Phrasebook(["red", "green", "very dark blue"], name="colors")
ACTIONS = Phrasebook(["turn left", "drop"], name="actions")


LAST = Literal("\n Action: ")


def template() -> Prompt:
    return Prompt(
        Literal("Colors: "),
        Slot("first", COLORS, 3),
        LAST,
        Block(
            "more",
            (Choice("action", ACTIONS), Literal(" \n Colors: "), Slot("second", COLORS, 2), Literal("\n Action: ")),
        ),
    )


def filled(first, more=False, action=-1, second=(-1, -1)):
    ids = np.array([*first, *[-1] * (3 - len(first))], np.int16)
    return {"first": ids, "more": np.bool_(more), "action": np.int32(action), "second": np.array(second, np.int16)}


CASES = [
    filled([0]),
    filled([]),
    filled([2, 2, 2]),
    filled([1, 0], True, 1, (2, -1)),
    filled([], True, 0, (-1, -1)),
    filled([2, 2, 2], True, 0, (2, 2)),
]


def test_the_text_of_a_template():
    prompt = template()
    assert prompt.render(CASES[0]) == "Colors: red, \n Action: "
    assert prompt.render(CASES[1]) == "Colors: \n Action: "
    assert (
        prompt.render(CASES[3], tail=False)
        == "Colors: green, red, \n Action: drop \n Colors: very dark blue, \n Action:"
    )
    assert set(prompt.names) == {"first", "more", "action", "second"}


@pytest.mark.parametrize(
    "kind, heal, bos",
    [
        *(("bpe", heal, bos) for heal in (True, False) for bos in (True, False)),
        ("sentencepiece", True, True),
        ("sentencepiece", False, True),
        ("words", True, False),
    ],
)
def test_tokens_inside_jit_are_those_of_the_text(request, kind, heal, bos):
    prompt = template()
    words = WordTokenizer.from_prompt(prompt)
    tokenizer: FastTokenizer = words if kind == "words" else request.getfixturevalue(kind)
    compiled = prompt.compile(tokenizer, heal=heal, bos=bos)
    tokens, lengths = jax.jit(jax.vmap(compiled))(jax.tree.map(lambda *rows: np.stack(rows), *CASES))
    assert tokens.shape == (len(CASES), compiled.max_length) and tokens.dtype == np.int32 == lengths.dtype
    for case, row, n in zip(CASES, np.asarray(tokens), lengths):
        whole = [tokenizer.bos_id] * bos + tokenizer.encode(prompt.render(case, tail=not heal))
        assert row[:n].tolist() == whole == compiled.tokens(case)
        assert (row[n:] == tokenizer.pad_id).all()
    # the last case is the longest
    assert int(max(lengths)) == compiled.max_length == sum(compiled.longest().values())


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_blocks_of_positions_leave_no_part_out(bpe, monkeypatch, size):
    """However positions are cut into blocks, every part that can reach a block is looked for there, and few others."""
    monkeypatch.setattr(compiled_module, "BLOCK", size)
    compiled = template().compile(bpe, bos=True)
    random = np.random.default_rng(size)
    cases = [
        filled(random.integers(0, 3, random.integers(0, 4)), random.integers(2), random.integers(2), pair)
        for pair in [(-1, -1), (0, -1), (1, 2), (2, 2)] * 8
    ]
    assert compiled.verify(jax.tree.map(lambda *rows: np.stack(rows), *cases)) == 32
    if size == 1:
        assert len(compiled._blocks) == compiled.max_length and sum(map(len, compiled._blocks)) < 0.7 * 9 * len(
            compiled._blocks
        )


def test_a_phrase_behind_padding_is_reported(bpe):
    compiled = template().compile(bpe)
    broken = CASES[0] | {"first": np.array([-1, 0, -1], np.int16)}
    assert int(jax.jit(compiled)(broken)[1]) > compiled.max_length


def test_answers_take_the_white_space_with_them(bpe):
    prompt, answers = template(), ACTIONS.phrases
    healed, own = (prompt.compile(bpe, heal=heal).candidates(answers) for heal in (True, False))
    for i, answer in enumerate(answers):
        assert healed.tokens[i, : healed.lengths[i]].tolist() == bpe.encode(" " + answer)
        assert own.tokens[i, : own.lengths[i]].tolist() == bpe.encode(answer)
    with pytest.raises(PromptError, match="answer ''"):
        prompt.compile(bpe, heal=False).candidates([""])


def test_limits_tighten_the_bound_and_untrue_ones_show():
    words = WordTokenizer.from_texts(["a red green very dark blue"])

    def length(size, *limits):
        prompt = Prompt(Literal("a"), Slot("x", COLORS, size, prefix=" ", suffix="", limits=limits))
        return prompt.compile(words), [-1] * size

    assert length(3)[0].max_length == 1 + 9
    assert length(3, Limit((2,), 1))[0].max_length == 1 + 3 + 1 + 1
    assert length(3, Limit((2,), 1), Limit((0, 1), 1))[0].max_length == 1 + 3 + 1
    compiled, _ = length(3, Limit((2,), 0))
    assert compiled.max_length == 1 + 3
    tokens, n = jax.jit(compiled)({"x": np.array([2, 2, 2], np.int16)})
    assert int(n) == 10 > compiled.max_length == tokens.shape[0]
    compiled, _ = length(1)
    _, n = jax.jit(compiled)({"x": np.array([0, -1, -1], np.int16)})
    assert int(n) == 2  # a wider caption is welcome
    _, n = jax.jit(compiled)({"x": np.array([0, 1, -1], np.int16)})
    assert int(n) > compiled.max_length  # but not a fuller one
    with pytest.raises(PromptError, match="'x'.*overlap"):
        length(3, Limit((1, 2), 1), Limit((2,), 1))


def test_the_head_is_what_every_prompt_begins_with(bpe):
    compiled = template().compile(bpe)
    assert list(compiled.head) == [*bpe.prefix_ids, *bpe.encode("Colors:")]
    assert all(compiled.tokens(slots)[: len(compiled.head)] == list(compiled.head) for slots in CASES)
    assert list(template().compile(bpe, bos=False).head) == bpe.encode("Colors:")
    words = WordTokenizer.from_texts(["a b c red green very dark blue"])

    def head(*parts):
        return [words.decode([i]) for i in Prompt(*parts).compile(words, bos=False).head]

    maybe = Slot("x", COLORS, 2, prefix=" ", suffix="")
    assert head(Literal("a b"), Choice("c", COLORS, prefix=" ")) == ["a", "b"]
    assert head(Literal("a b"), maybe) == ["a"], "one token is left, as the slot may be empty"
    assert head(Literal("a b"), Block("more", (Literal(" c"),)), Literal(" c")) == ["a", "b"]
    assert head(maybe, Literal(" a")) == []


def test_a_prompt_that_does_not_fit_is_refused_or_reported(bpe):
    prompt = template()
    needed = prompt.compile(bpe).max_length
    assert prompt.compile(bpe, needed + 50).max_length == needed  # room is no reason to pad
    with pytest.raises(PromptError, match=rf"{needed} tokens.*first.*{needed - 1}"):
        prompt.compile(bpe, needed - 1)
    compiled = prompt.compile(bpe, needed - 1, overflow="report")
    tokens, n = jax.jit(compiled)(CASES[-1])
    assert int(n) == needed and tokens.tolist() == compiled.tokens(CASES[-1])[:-1]
    assert int(jax.jit(compiled)(CASES[0])[1]) < needed
    with pytest.raises(ValueError, match="'cut'"):
        prompt.compile(bpe, overflow="cut")


def test_a_tokenizer_that_merges_across_phrases_is_refused(greedy):
    with pytest.raises(PromptError, match="border.*'.*red,'"):
        template().compile(greedy)


def test_a_border_without_white_space_is_refused(bpe):
    prompt = Prompt(Literal("Colo"), Slot("x", Phrasebook(["rs"]), 1, suffix=""))
    with pytest.raises(PromptError, match="between 'Colo'.*'rs'"):
        prompt.compile(bpe)


def test_verify_names_what_differs(bpe):
    compiled = template().compile(bpe)
    assert compiled.verify(jax.tree.map(lambda *rows: np.stack(rows), *CASES)) == len(CASES)
    row = compiled._rows[compiled._plan[1]]
    row[0] = row[0] + 1
    with pytest.raises(PromptError, match="differ.*'Colors"):
        compiled.verify(CASES[:1])
    short = template().compile(bpe, 9, overflow="report")
    assert short.verify(CASES[:1]) == 1  # the host's tokens are whole
    with pytest.raises(PromptError, match="assembled for 'Colors: "):
        short.verify(jax.tree.map(lambda *rows: np.stack(rows), *CASES))


def test_bad_templates_are_refused():
    with pytest.raises(PromptError, match="'x'.*' '.*''"):
        Prompt(Literal("a "), Slot("x", COLORS, 1, suffix=""))
    with pytest.raises(PromptError, match="'b'.*absent"):
        Prompt(Literal("a "), Block("b", (Literal("c"),)))
    with pytest.raises(PromptError, match="'x'.*slot.*choice"):
        Prompt(Literal("a"), Slot("x", COLORS, 1, prefix=" ", suffix=""), Literal(" "), Choice("x", ACTIONS))
    with pytest.raises(PromptError, match="no text"):
        Prompt(Literal(" \n"))
    with pytest.raises(PromptError, match="'x'.*0.*1"):
        Prompt(Literal("a "), Slot("x", COLORS, 0))


def test_bad_slots_are_named(bpe):
    prompt = template()
    compiled = prompt.compile(bpe)
    with pytest.raises(KeyError, match="'second'"):
        prompt.render({name: value for name, value in CASES[0].items() if name != "second"})
    with pytest.raises(KeyError, match="'action'"):
        compiled({name: value for name, value in CASES[0].items() if name != "action"})
    with pytest.raises(ValueError, match="phrase 3.*0.*2"):
        prompt.render(filled([3]))
    with pytest.raises(ValueError, match="phrase -1"):
        prompt.render(filled([0], True))
    with pytest.raises(TypeError, match=r"at least \[3\]"):
        compiled({**CASES[0], "first": np.zeros((4, 3), np.int16)})
    with pytest.raises(PromptError, match="bos.*tokenizer"):
        prompt.compile(WordTokenizer.from_prompt(prompt), bos=True)


# GLAM's prompt.


@pytest.fixture(scope="module")
def played():
    """Observations of a world with doors, sequences and a history, `[B, ...]`, and the environment."""
    env, params = envs_jax.make("BabyAI-Text/MixedTrainLocal-v0")
    env = PromptHistory(env, 3)

    def play(key):
        obs, state = env.reset(key, params)

        def step(carry, t):
            obs, state = carry
            k = jax.random.fold_in(key, t)
            new, state, *_ = env.step(k, state, jax.random.randint(k, (), 0, 6), params)
            return (new, state), obs

        return jax.lax.scan(step, (obs, state), np.arange(8))[1]

    obs = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 16))
    return env, jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), obs)


def glam_by_hand(env, obs, actions, **_):
    """The template of GLAM, concatenated as `agents/base_agent.py` does."""
    prompt = "Possible action of the agent:" + ",".join(f" {a}" for a in actions)
    prompt += f" \n Goal of the agent: {env.describe(obs)['mission']}"
    for k in range(int(obs["count"])):
        said = env.describe({**obs, "count": np.int32(k + 1)})["text"]
        prompt += f" \n Observation {k}: " + "".join(f"{s}, " for s in said.split(", ") if s) + f"\n Action {k}: "
        if k < int(obs["count"]) - 1:
            prompt += actions[obs["actions"][k]]
    return prompt


def test_glams_prompt_is_byte_exact(played):
    env, batch = played
    glam = glam_prompt(env)
    assert glam.actions == ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
    lengths = set()
    for i in range(0, len(batch["count"]), 5):
        obs = {name: value[i] for name, value in batch.items()}
        assert glam.render(obs) == glam_by_hand(env, obs, glam.actions)
        lengths.add(int(obs["count"]))
    assert lengths == {1, 2, 3}


@pytest.mark.parametrize(
    "kind",
    ["bpe", pytest.param("sentencepiece", marks=pytest.mark.slow), pytest.param("words", marks=pytest.mark.slow)],
)
def test_glams_prompt_in_every_kind_of_tokenizer(played, kind, request):
    env, batch = played
    glam = glam_prompt(env)
    words = WordTokenizer.from_prompt(glam.prompt, glam.actions)
    tokenizer: FastTokenizer = words if kind == "words" else request.getfixturevalue(kind)
    compiled = glam.compile(tokenizer)
    tokens, lengths = map(np.asarray, jax.jit(glam.batched(compiled))(batch))
    start = [tokenizer.bos_id] if tokenizer.bos_id is not None else []
    for i in range(len(lengths)):
        text = glam.prompt.render(glam.slots({name: value[i] for name, value in batch.items()}), tail=False)
        assert tokens[i, : lengths[i]].tolist() == start + tokenizer.encode(text)
    assert lengths.max() <= compiled.max_length
    legacy = glam.compile(tokenizer, heal=False)
    assert legacy.verify([glam.slots({name: value[i] for name, value in batch.items()}) for i in range(3)]) == 3
    table = compiled.candidates(glam.actions)
    for action, row, n in zip(glam.actions, table.tokens, table.lengths):
        assert start + tokenizer.encode(text + " " + action) == [*tokens[i, : lengths[i]], *row[:n]]


def test_the_demos_prompt_is_short():
    env, _ = envs_jax.make("BabyAI-Text/GoToLocalS6N2-v0")
    glam = glam_prompt(env, history=1, list_actions=False)
    compiled = glam.compile(WordTokenizer.from_prompt(glam.prompt, glam.actions))
    # 8 fixed words, "go to the red ball", two objects of 12 words, three walls of 7
    assert compiled.longest() == {"fixed text": 8, "mission": 5, "text_0": 45} and compiled.max_length == 58
    assert not re.search("Possible|turn", " ".join(unit.texts[0] for unit in glam.prompt.units))


def test_options_of_glams_prompt(played):
    env, batch = played
    obs = {name: value[7] for name, value in batch.items()}
    longer = glam_prompt(env, ["turn left", "turn right", "go forward", "pick up", "drop", "toggle", "sleep"])
    assert longer.render(obs).startswith("Possible action of the agent: turn left, turn right,")
    assert ", toggle, sleep \n Goal" in longer.render(obs)
    short = glam_prompt(env, list_actions=False)
    assert short.render(obs).startswith("Goal of the agent: ")
    said = glam_prompt(env, language="french").render(obs)
    assert said.startswith("Actions possibles pour l'agent: tourner à gauche, ") and " \n But de l'agent: " in said
    assert "Observation 0: Tu " in said


def test_bad_options_of_glams_prompt(played):
    env, _ = played
    with pytest.raises(ValueError, match="'francais'"):
        glam_prompt(env, language="francais")
    with pytest.raises(ValueError, match="2.*PromptHistory.*3"):
        glam_prompt(env, history=2)
    with pytest.raises(ValueError, match="history.*0.*1"):
        glam_prompt(env, history=0)
    with pytest.raises(ValueError, match=r"\['drop', 'drop'\]"):
        glam_prompt(env, ["drop", "drop"])
    with pytest.raises(TypeError, match="BabyAI-Text/"):
        glam_prompt(envs_jax.make("BabyAI-GoToLocal-v0")[0])
    with pytest.raises(PromptError, match="text_0"):
        glam = glam_prompt(env)
        glam.compile(WordTokenizer.from_prompt(glam.prompt, glam.actions), 128)
