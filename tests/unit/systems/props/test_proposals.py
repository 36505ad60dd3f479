"""Reading proposals: the grammar, its policies, and reasons that name what is wrong."""

from __future__ import annotations

import random
import time

import pytest

from llmrl_jax.systems.props.compat.legacy import find_matrices, parse_matrix, render_matrix
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format
from llmrl_jax.systems.props.proposals import Grammar, InvalidReply, parse


THREE = Grammar(3, -6.0, 6.0, 1)
FORM = Format()


def read(text, grammar):
    """Proposals of a reply; raises where anything is wrong with it."""
    parsed = parse(text, grammar)
    if parsed.problems:
        raise InvalidReply(parsed)
    return parsed


def test_what_is_rendered_is_read():
    """parse(render(x)) = x on the grid, whatever separates, decorates, precedes or follows."""
    rng = random.Random(0)
    for trial in range(300):
        n, count = rng.randint(1, 12), rng.randint(1, 3)
        grammar = Grammar(n, -6.0, 6.0, 1, proposals=count)
        sets = [tuple(rng.randint(-60, 60) / 10 for _ in range(n)) for _ in range(count)]
        if len({FORM.texts(x) for x in sets}) < count:
            continue
        separator = rng.choice(["; ", ", ", ";", " ", ";\n", ",\n  "])
        lines = []
        for x in sets:
            order = rng.sample(range(n), n)
            sign = rng.choice([": ", ":", " = ", "="])
            pieces = [f"params[{i}]{sign}{FORM.number(x[i])}" for i in order]
            lines.append(separator.join(pieces) + rng.choice(["", ";", " "]))
        plain = "\n".join(FORM.params(x) for x in sets)
        dressed = rng.choice(["", "<think>params[0]: 9</think>\n"]) + "\n".join(lines) + rng.choice(["", "\nBecause."])
        assert read(plain, grammar).proposals == tuple(sets), trial
        if "\n" not in separator or n > 1 or count == 1:
            assert read(dressed, grammar).proposals == tuple(sets), (trial, dressed)


@pytest.mark.parametrize(
    "text",
    [
        "params[0]: 1, params[1]: -2.5, params[2]: +3.0",
        "PARAMS[0]=1;params[1]=-2.5;params[2]=3",
        "1. `params[0]: 1; params[1]: -2.5; params[2]: 3.0`",
        "**Line 1: params[0]: 1; params[1]: -2.5; params[2]: 3.**",
        "- Proposal 1: params[2]: 3; params[0]: 1.00; params[1]: -25e-1",
        "I think this is good.\nparams[0]: 1; params[1]: -2.5; params[2]: 3\nIt raises params[1]: a bit.",
        "```\nparams[0]: 1\nparams[1]: -2.5\nparams[2]: 3\n```",
        "params[0]: 1; params[1]: -2.5; params[2]: 3.\nparams[0]: is kept, since it was good",
        "<think>params[0]: 5; params[1]: 5; params[2]: 5",
    ],
)
def test_forms_that_are_accepted(text):
    if text.startswith("<think>"):
        text += "</think>params[0]: 1; params[1]: -2.5; params[2]: 3"
    assert read(text, THREE).proposals == ((1.0, -2.5, 3.0),)


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("", "none", '"params[0]: number; ...; params[2]: number"'),
        ("<think>params[0]: 1; params[1]: 1; params[2]: 1", "none", "params[2]: number"),
        ("params[0]: 1; params[1]: 2", "missing", "params[2] is missing"),
        ("params[0]: 1; params[1]: 2; params[2]: 3; params[3]: 4", "index", "params[3]"),
        ("params[-1]: 1; params[1]: 2; params[2]: 3", "index", "params[-1]"),
        ("params[0]: 1; params[0]: 2; params[2]: 3; params[1]: 0", "twice", "params[0]"),
        ("params[0]: nan; params[1]: 2; params[2]: 3", "number", "params[0] is nan"),
        ("params[0]: 1; params[1]: 2; params[2]: -inf", "number", "params[2] is -inf"),
        ("params[0]: 1e999; params[1]: 2; params[2]: 3", "number", "params[0] is 1e999"),
        ("params[0]: 1e39; params[1]: 2; params[2]: 3", "number", "float32"),
        ("params[0]: one; params[1]: 2; params[2]: 3", "number", "params[0] is 'one'"),
        ("params[0]: 1.2.3; params[1]: 2; params[2]: 3", "number", "params[0] is '1.2.3'"),
        ("params[0]: ; params[1]: 2; params[2]: 3", "number", "params[0] is ''"),
        ("params[0]: 1; params[1]: 7.5; params[2]: 3", "range", "params[1] is 7.5"),
        (
            "params[0]: 1; params[1]: 2; params[2]: 3; f(params): 9",
            "form",
            "'f(params): 9' stands",
        ),
    ],
)
def test_what_is_wrong_is_named(text, reason, message):
    parsed = parse(text, THREE)
    assert parsed.proposals == () and reason in [problem.reason for problem in parsed.problems]
    with pytest.raises(InvalidReply) as caught:
        read(text, THREE)
    assert message in str(caught.value)


def test_several_proposals():
    grammar = Grammar(2, -6.0, 6.0, 1, proposals=3)
    good = "params[0]: 1; params[1]: 2\nparams[0]: 3; params[1]: 4\nparams[0]: 5; params[1]: 6"
    assert read(good, grammar).proposals == ((1, 2), (3, 4), (5, 6))
    few = parse("params[0]: 1; params[1]: 2\nparams[0]: 1; params[1]: 2.0", grammar)
    assert few.proposals == ((1, 2),) and [p.reason for p in few.problems] == ["repeated", "few"]
    assert few.problems[0].message.startswith("proposal 2: params[0]: 1; params[1]: 2 was proposed before")
    many = parse(good + "\nparams[0]: 0; params[1]: 0", grammar)
    assert many.proposals == ((1, 2), (3, 4), (5, 6)) and "4 proposals were made; the first 3" in many.notes[0]
    last = parse(good, Grammar(2, -6.0, 6.0, 1, take="last"))
    assert last.proposals == ((5, 6),)
    some = parse("params[0]: 1; params[1]: 9\nparams[0]: 3; params[1]: 4\nparams[0]: x", grammar)
    assert some.proposals == ((3, 4),) and [p.reason for p in some.problems] == ["range", "number"]


def test_what_was_tried_is_told_by_how_it_is_written():
    seen = {FORM.texts((0.1, 2.0, -3.0))}
    again = parse("params[0]: 0.10; params[1]: 2; params[2]: -3.0", THREE, seen)
    assert [p.reason for p in again.problems] == ["repeated"]
    assert "propose something else" in again.problems[0].message
    kept = parse("params[0]: 0.1; params[1]: 2; params[2]: -3", Grammar(3, -6, 6, 1, repeated="keep"), seen)
    assert kept.proposals == ((0.1, 2.0, -3.0),)
    rounded = parse("params[0]: 0.12; params[1]: 2; params[2]: -3", THREE, seen)
    assert rounded.proposals == () and rounded.problems[0].reason == "repeated"


def test_policies_for_range_and_decimals():
    text = "params[0]: 7; params[1]: 0.25; params[2]: -6.01"

    def values(**policies):
        return parse(text, Grammar(3, -6.0, 6.0, 1, **policies))

    assert values(beyond="clip").proposals == ((6.0, 0.2, -6.0),)
    assert values(beyond="clip").notes == (
        "params[0] was clipped from 7 to [-6, 6]",
        "params[1] was rounded from 0.25 to 0.2",
        "params[2] was rounded from -6.01 to -6",
    )
    assert values(beyond="keep", finer="keep").proposals == ((7.0, 0.25, -6.01),)
    assert [p.reason for p in values(beyond="keep", finer="reject").problems] == ["decimals", "decimals"]
    assert "must be at most 1 decimals" in values(finer="reject").problems[1].message
    table = Grammar.for_policy(Policy("table", 2, 4, True, 0.0, 3.0, 0, "box"))
    assert read("params[0]: 3.0; params[1]: 0", table).proposals == ((3.0, 0.0),)
    wrong = parse("params[0]: 1.5; params[1]: 4", table)
    assert [p.reason for p in wrong.problems] == ["decimals", "range"] and "a whole number" in wrong.problems[0].message


def test_the_explanation_is_kept():
    parsed = read("Let me see.\nparams[0]: 1; params[1]: 2; params[2]: 3\nThe second grows.", THREE)
    assert parsed.explanation == "Let me see.\nThe second grows."


def test_the_released_parser_is_an_option():
    """Numbers in order of appearance, indices not heeded, one line only."""
    first = Grammar(2, -6, 6, 1, compat="paper")
    assert read("params[1]: 9, params[1]: -2.55\nwhy", first).proposals == ((9.0, -2.55),)
    with pytest.raises(InvalidReply, match="0 parameters.*2"):
        read("Sure!\nparams[0]: 1, params[1]: 2", first)
    assert read("thoughts\nparams[0]: 1 params[1]: 2", Grammar(2, 0, 3, 0, take="last", compat="paper")).proposals


@pytest.mark.parametrize(
    "text",
    [
        "params[0]: " + "9" * 100_000,
        "params[0]: 1; " * 30_000,
        "params[" * 30_000,
        "<think>" * 20_000,
        "params[0]: 1\n" * 20_000,
    ],
    ids=["digits", "twice", "open", "think", "lines"],
)
def test_hostile_text_is_read_in_good_time(text):
    started = time.process_time()
    parsed = parse(text, THREE)
    assert not parsed.proposals and parsed.problems
    assert len(str(InvalidReply(parsed))) < 200_000
    assert time.process_time() - started < 2


def test_a_grammar_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="beyond.*'ignore'.*reject, clip, keep"):
        Grammar(3, -6, 6, 1, beyond="ignore")
    with pytest.raises(ValueError, match="proposals.*0.*1"):
        Grammar(3, -6, 6, 1, proposals=0)


LINEAR = Policy("linear", 2, 3, True)
FREE = Grammar.for_policy(LINEAR, beyond="keep", finer="keep", repeated="keep")


def test_matrices_come_back_in_the_order_of_parameters():
    rng = random.Random(1)
    for _ in range(100):
        params = tuple(rng.randint(-600, 600) / 100 for _ in range(9))
        text = render_matrix(LINEAR, params)
        assert text.splitlines()[0] == "Weights:" and text.splitlines()[3] == "Bias:"
        assert parse_matrix(f"Here it is.\n{text}\nIt is better.", LINEAR, FREE).proposals == (params,)
    brackets = "[[1, 2, 3],\n [4, 5, 6],\n [7, 8, 9]]"
    assert parse_matrix(brackets, LINEAR, FREE).proposals == (tuple(range(1, 10)),)
    assert find_matrices("1 2\n3 4\n\nWeights:\n5 6\ntext\n7") == [[["1", "2"], ["3", "4"], ["5", "6"]], [["7"]]]


def test_a_matrix_of_another_size_is_named():
    parsed = parse_matrix("1, 2, 3\n4, 5, 6", LINEAR, FREE)
    assert parsed.problems[0].message == "its matrix is 2x3, where 3x3 was asked for"
    assert "it has no matrix" in parse_matrix("no", LINEAR, FREE).problems[0].message
    assert parse_matrix("1,2,nan\n4,5,6\n7,8,9", LINEAR, FREE).problems[0].reason == "number"
