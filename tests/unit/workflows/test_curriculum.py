"""Lessons before RL: associations, reading, imitation, and the order in which a model has them."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from llmrl_jax.lm import WordTokenizer
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam.build import build
from llmrl_jax.workflows import curriculum
from llmrl_jax.workflows.curriculum import (
    PriorConfig,
    ReadingConfig,
    association,
    association_rows,
    imitate,
    invented_names,
    make_prior,
    prior_learning_rates,
    question,
    reading_rows,
)
from tests.glam import FULL, TINY, program


def untrained(env, glam=TINY):
    return build(replace(glam, env=env, tune="full"))


def test_reading_asks_for_what_was_shown():
    """The goal first and unnamed, the nearest of several alike; nothing asked of an empty view."""
    text = (
        "Goal of the agent: go to a red ball Observation 0: You see a wall 2 steps forward, You see a red ball 3 steps "
        "left and 2 steps forward, You see a blue key 1 step right, You see a red ball 4 steps forward, Action 0:"
    )
    rng = np.random.default_rng(0)
    pieces, learn = question(text, rng)
    assert pieces == [" 4 steps forward,", " blue key", " 1 step right,"]
    assert learn == [True, False, True]
    pieces, learn = question(text.replace("go to a red ball", "go to a red box"), rng)
    assert sorted(pieces[::2]) == [" blue key", " red ball"] and learn == [False, True, False, True]
    assert question("Goal of the agent: go to a red ball Observation 0: You see a wall 2 steps forward,", rng) is None
    both = text.replace("go to a red ball", "go to a blue key after you pick up the red ball")
    assert question(both, rng) == ([" 1 step right,", " 4 steps forward,"], [True, True])
    holding = text.replace("Observation 0:", "Observation 0: You carry a blue key,")
    assert question(holding, rng) == ([" 4 steps forward,", " blue key", " 1 step right,"], [True, False, True])
    door = "Goal of the agent: open the grey door Observation 0: You see a closed grey door 2 steps right, Action 0:"
    assert question(door, rng) == ([" 2 steps right,"], [True])
    asked = {" red ball": " 4 steps forward,", " blue key": " 1 step right,"}  # the goal too, and more than once
    asked |= {f" Goal of the agent: go to a{name} Action 0:": where for name, where in asked.items()}
    seen = []
    for pieces, learn in (question(text, rng, questions=6) for _ in range(50)):
        assert pieces[0] == " 4 steps forward," and learn == [True, *[False, True] * 6]
        assert [" Action 0:" in words for words in pieces[1::2]] == [True, False] * 3
        seen += zip(pieces[1::2], pieces[2::2], strict=True)
    assert dict(seen) == asked and all(asked[words] == where for words, where in seen)
    pieces, learn = question(both, rng, questions=3)  # a goal of two objects asks for both
    assert learn == [True, True, False, True, True, False, True, False, True, True]
    one, other = re.fullmatch(
        " Goal of the agent: go to a (.*) after you pick up the (.*) Action 0:", pieces[2]
    ).groups()
    assert pieces[3:5] == [asked[f" {one}"], asked[f" {other}"]] and one != other


def test_an_association_says_every_value_once_before_it_is_asked():
    """Read back by its grammar: goal name, comma name value ..., end, value; then name value or goal name ... value."""
    draw = np.random.default_rng(0)
    tokens = range(7, 90)
    kinds = dict.fromkeys(("repeated", "short", "shared", "other", "bare", "as goals"), 0)
    for row in (association(tokens, draw) for _ in range(400)):
        ids, learn = row.tokens, row.learn
        assert set(ids) <= set(tokens) and len(ids) == len(learn) <= 110
        size = learn.count(True) + 1
        if ids[:size] == ids[-size:]:  # a row that only repeats
            assert learn == [False] * (len(ids) - size + 1) + [True] * (size - 1) and 4 <= size <= 19
            kinds["repeated"] += 1
            continue
        mark, end = ids[0], learn.index(True) - 1
        for width in (1, 2):
            goal, comma = tuple(ids[1 : 1 + width]), ids[1 + width]
            starts = [i for i in range(end) if ids[i] == comma]
            parts = [ids[i + 1 : j] for i, j in zip(starts, [*starts[1:], end], strict=True)]
            values = {tuple(part[:width]): part[width:] for part in parts}
            if goal in values:
                break
        assert 3 <= len(values) <= 7 and all(1 <= len(v) <= 3 for v in values.values())
        assert not any(learn[: end + 1]) and ids[end + 1 :][: len(values[goal])] == values[goal]
        at, asked = end + 1 + len(values[goal]), []
        while at < len(ids):
            answer = learn.index(True, at)
            words, as_goal = ids[at:answer], ids[at] == mark
            name = tuple(words[as_goal : as_goal + width])
            assert words[-1] == ids[end] and len(words) <= width + 5 if as_goal else len(words) == width
            at = answer + len(values[name])
            assert ids[answer:at] == values[name] and all(learn[answer:at])
            asked.append(name)
            kinds["as goals" if as_goal else "bare"] += 1
        assert sorted(asked) == sorted(values), "each is asked for once"
        shared = len({name[0] for name in values}) < len(values) > len({name[-1] for name in values})
        kinds["short" if width == 1 else "shared" if shared else "other"] += 1
    assert 120 < kinds["repeated"] < 200 and 45 < kinds["short"] < 100  # 160 and 72, four standard deviations
    assert kinds["shared"] > 4 * kinds["other"], "one token of a name is rarely enough"
    assert abs(kinds["bare"] - kinds["as goals"]) < 4 * (kinds["bare"] + kinds["as goals"]) ** 0.5


def test_things_go_by_invented_names():
    """A word becomes one spare token wherever it stands, other words stay, and each text draws its own."""
    text = (
        "Goal of the agent: go to a red ball Observation 0: You see a wall 2 steps forward, You see a red ball 4 steps "
        "forward, You see a blue key 1 step right, Action 0: blue key 1 step right,"
    )
    tokenizer = WordTokenizer.from_texts([text], spare=16)
    ids = tokenizer.encode(text)
    draw = np.random.default_rng(3)
    drawn = [invented_names(text, ids, tokenizer, draw) for _ in range(200)]
    by_word = {word: [] for word in ("red", "ball", "blue", "key")}
    for found in drawn:
        other: dict[int, int] = {}
        for old, new in zip(ids, found, strict=True):
            assert other.setdefault(old, new) == new, "one token for a word throughout a text"
        renamed = {tokenizer.backend.id_to_token(old): new for old, new in other.items() if old != new}
        assert set(renamed) <= set(by_word) and set(renamed.values()) <= set(tokenizer.spare_ids)
        assert len(set(renamed.values())) == len(renamed), "two words stay two words"
        for word, tokens in by_word.items():
            tokens.append(renamed.get(word))
    for word, tokens in by_word.items():
        assert 70 < sum(token is not None for token in tokens) < 130, word  # half of 200, 4 standard deviations
        assert len(set(tokens)) == 17, word


def test_reading_lessons_are_checked_first():
    with pytest.raises(ValueError, match="invented.*1.5.*0.*1"):
        ReadingConfig(invented=1.5)
    with pytest.raises(ValueError, match="stride.*0.*1"):
        PriorConfig(stride=0)
    with pytest.raises(ValueError, match="16 spare"):
        reading_rows(program(FULL), ReadingConfig(updates=1, rows=3, invented=0.5), seed=1)
    with pytest.raises(ValueError, match="associations.*5.*updates.*0"):
        ReadingConfig(associations=5)
    few = WordTokenizer.from_texts(["go to a red ball"], spare=16)
    with pytest.raises(ValueError, match="goals.*5.*updates.*0"):
        ReadingConfig(goals=5)
    with pytest.raises(ValueError, match="goal_only.*2.*0.*1"):
        ReadingConfig(goal_only=2)
    with pytest.raises(ValueError, match="60 tokens.*21"):
        association_rows(few, 3, seed=1)


def test_a_row_of_a_goal_alone_ends_with_its_value():
    draw = np.random.default_rng(0)
    sizes = []
    for row in (association(range(90), draw, alone=True) for _ in range(200)):
        *ids, value = row.tokens
        assert row.learn == [False] * len(ids) + [True]
        fits = [{*ids[1 + w : -1 : w + 2]} == {ids[1 + w]} for w in (1, 2)]  # a comma before every name
        width = 1 + fits.index(True)
        said = ids[1 + width : -1]
        names = {tuple(said[i + 1 : i + 1 + width]): said[i + 1 + width] for i in range(0, len(said), width + 2)}
        assert names[tuple(ids[1 : 1 + width])] == value and len(set(names.values())) == len(names)
        sizes.append(len(names))
    assert set(sizes) == {2, 3, 4, 5}


@pytest.mark.slow
def test_reading_comes_before_imitation(tmp_path, monkeypatch):
    """Texts of the world are fine-tuned on, imitation begins with what was read; worlds of other words are refused."""
    blank = program(FULL)
    row = reading_rows(blank, ReadingConfig(rows=3), seed=1)[0]
    text = blank.tokenizer.backend.decode(row.tokens)
    taught = blank.tokenizer.backend.decode([t for t, learn in zip(row.tokens, row.learn, strict=True) if learn])
    assert text.startswith("Goal of the agent: go to ") and "Action 0: " in text
    assert taught and text.endswith(f"Action 0: {taught}"), "one object, the goal: all that follows is learnt"

    reading = ReadingConfig(updates=3, env="BabyAI-Text/GoToObjS4-v0", rows=40, batch_size=8)
    config = PriorConfig(updates=2, batch_size=8, stride=1)
    run = RunConfig(name="r", out=str(tmp_path), progress="off")
    lessons = []  # `imitate` returns them without their states
    train = curriculum.run_training
    monkeypatch.setattr(curriculum, "run_training", lambda *a, **k: (lessons.append(train(*a, **k)), lessons[-1])[1])
    assert [lesson.update for lesson in imitate(untrained, TINY.env, config, run, tmp_path, reading)] == [3, 2]
    read, cloned = lessons
    learner = make_prior(config, blank, read.state.params)
    begun = learner.init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, begun.params["params"], read.state.params)
    for _ in range(2):
        begun, _ = jax.jit(learner.update)(begun)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), begun.params, cloned.state.params)


@pytest.mark.slow
def test_associations_come_before_reading(tmp_path, monkeypatch):
    """The reading lesson begins with the weights that associations left, and other numbers come out than without."""
    glam = replace(TINY, embedded=replace(TINY.embedded, spare_words=64))
    reading = ReadingConfig(updates=2, env="BabyAI-Text/GoToObjS4-v0", rows=40, batch_size=8, associations=3, goals=2)
    begun, make_sft = [], curriculum.make_sft

    def seen(how, model, variables, *rest, **more):
        begun.append(jax.device_get(variables["params"]))
        assert how.batch_size == (16 if len(begun) == 1 else 8)
        return make_sft(how, model, variables, *rest, **more)

    monkeypatch.setattr(curriculum, "make_sft", seen)
    run = RunConfig(name="r", out=str(tmp_path), progress="off")
    lessons, train = [], curriculum.run_training
    monkeypatch.setattr(
        curriculum, "run_training", lambda *a, **k: (lessons.append((k["title"], train(*a, **k))), lessons[-1][1])[1]
    )
    config = PriorConfig(updates=1, batch_size=8, stride=1)
    imitate(lambda env: untrained(env, glam), TINY.env, config, run, tmp_path, reading)
    done = [(title, lesson.update) for title, lesson in lessons]
    assert done == [("associations", 3), ("goals", 2), ("reading", 2), ("imitation", 1)]
    for i in (0, 1):
        jax.tree.map(np.testing.assert_array_equal, begun[i + 1], jax.device_get(lessons[i][1].state.params))
    begun = begun[:2]
    assert max(float(np.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, begun), strict=True)) > 1e-4


def test_a_reading_lesson_in_other_words_is_refused():
    program, other = build(TINY), f"{TINY.env}?describe=faithful"
    curriculum.check_words(TINY.env, program, TINY.env, program)
    with pytest.raises(ValueError, match="environment.*faithful"):
        curriculum.check_words(TINY.env, program, other, build(replace(TINY, env=other)))


def test_a_run_goes_on_with_its_own_lessons(tmp_path):
    imitation = PriorConfig(updates=4)
    for _ in range(2):
        curriculum.note_lessons(tmp_path, ReadingConfig(updates=3), imitation)
    with pytest.raises(ValueError, match=r"reading.questions: 0 -> 5"):
        curriculum.note_lessons(tmp_path, ReadingConfig(updates=3, questions=5), imitation)


def test_step_sizes_by_hand():
    """Two of 20 updates rise to the whole one, which the third has; the last has none."""
    rate = prior_learning_rates(PriorConfig(updates=20, learning_rate=3.0))
    fall = [3 * (1 + math.cos(math.pi * i / 17)) / 2 for i in range(18)]
    np.testing.assert_allclose([float(rate(i)) for i in range(20)], [1, 2, *fall], atol=1e-6)
    assert fall[0] == 3 and fall[-1] == 0


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_few_updates_learn_something(updates):
    rate = prior_learning_rates(PriorConfig(updates=updates))
    assert float(rate(0)) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [({"max_grad_norm": 0.0}, "max_grad_norm.*0.0.*0"), ({"learning_rate": math.inf}, "learning_rate.*inf")],
)
def test_settings_of_a_prior_out_of_range(given, message):
    with pytest.raises(ValueError, match=message):
        PriorConfig(**given)
