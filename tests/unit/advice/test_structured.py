"""Replies as values: finding JSON in text, checking it, and asking again."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Literal

import pytest

from llmrl_jax.advice.structured import JsonParser, Parsed, ask, check_schema, json_values, schema_of, validate
from llmrl_jax.chat import (
    Cached,
    ChatReply,
    ChatRequest,
    Choice,
    Message,
    ScriptedAdviser,
    ServerError,
    UnparsedReply,
)
from llmrl_jax.chat.protocol import settle


@dataclass(frozen=True)
class Step:
    verb: Literal["go", "take"]
    weight: float = field(default=1.0, metadata={"schema": {"minimum": 0}})


@dataclass(frozen=True)
class Plan:
    goal: str
    steps: tuple[Step, ...]
    by: dict[str, int] = field(default_factory=dict)
    note: str | None = None

    def __post_init__(self):
        if self.goal == "nothing":
            raise ValueError("a plan for nothing")


PLAN = {"goal": "g", "steps": [{"verb": "go"}, {"verb": "take", "weight": 2}], "by": {"x": 3}, "note": None}


def request(text="Plan!", **fields):
    return ChatRequest((Message("user", text),), **fields)


def test_the_schema_of_a_dataclass_by_hand():
    step = {
        "type": "object",
        "properties": {"verb": {"enum": ["go", "take"]}, "weight": {"type": "number", "minimum": 0}},
        "required": ["verb"],
        "additionalProperties": False,
    }
    assert schema_of(Plan) == {
        "type": "object",
        "properties": {
            "goal": {"type": "string"},
            "steps": {"type": "array", "items": step},
            "by": {"type": "object", "additionalProperties": {"type": "integer"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["goal", "steps"],
        "additionalProperties": False,
    }
    with pytest.raises(ValueError, match="JSON schema"):
        schema_of(set[int])


def test_a_dataclass_is_made():
    plan = JsonParser(Plan)(json.dumps(PLAN))
    assert plan == Plan("g", (Step("go"), Step("take", 2.0)), {"x": 3}) and isinstance(plan.steps[1].weight, float)
    parser = JsonParser({"type": "array", "items": {"type": "integer"}})
    assert parser("I say [1, 2].") == [1, 2] and '"integer"' in parser.instruction
    assert parser.response_format["json_schema"]["schema"] == parser.schema
    assert request(extra={"response_format": parser.response_format}).extra["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"goal": 3}, r"\$\.goal.*3.*string"),
        ({"goal": None}, r"\$\.goal.*null.*string"),
        ({"steps": {}}, r"\$\.steps.*{}.*array"),
        ({"steps": [{"verb": "run"}]}, r'\$\.steps\[0\]\.verb.*"run".*"go", "take"'),
        ({"steps": [{"weight": 1}]}, r"\$\.steps\[0\].*no 'verb'.*'weight'"),
        ({"steps": [{"verb": "go", "weight": -1}]}, "weight.*-1.*0"),
        ({"steps": [{"verb": "go", "weight": True}]}, "weight.*true"),
        ({"steps": [{"verb": "go", "speed": 1}]}, "'speed'.*'verb', 'weight'"),
        ({"by": {"x": 1.5}}, r"\$\.by\.x.*1\.5"),
        ({"note": 7}, r"\$\.note.*2 alternatives"),
        ({"goal": "nothing"}, "plan"),
    ],
)
def test_what_does_not_fit_is_named(change, match):
    with pytest.raises(ValueError, match=match):
        JsonParser(Plan)(json.dumps({**PLAN, **change}))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 2.0], [1.5, True, "1", None]),
        ({"type": "number", "maximum": 2}, [2, -1.5], [2.1, False]),
        ({"type": "boolean"}, [True], [1, 0, "true"]),
        ({"type": "null"}, [None], [0, False, ""]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "ab"], ["", "abc", 1]),
        ({"type": "array", "minItems": 1, "maxItems": 1}, [[7]], [[], [1, 2], {}]),
        ({"const": 1}, [1], [True, 2]),
        ({"enum": [0, "a"]}, [0, "a"], [False, "b"]),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": True},
            [{}, {"b": 2}],
            [{"a": 2}],
        ),
        ({"type": "object", "additionalProperties": {"type": "string"}}, [{"b": "c"}], [{"b": 2}]),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]}, ["a", 5], [4, None]),
    ],
)
def test_validation(schema, good, bad):
    check_schema(schema)
    for value in good:
        validate(value, schema)
    for value in bad:
        with pytest.raises(ValueError, match=r"^\$"):
            validate(value, schema)


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"type": "text"}, "type 'text'"),
        ({"type": ["string", "null"]}, r"\['string', 'null'\]"),
        ({"type": "string", "pattern": "a+"}, "'pattern'"),
        ({"type": "array", "items": {"type": "number", "multipleOf": 2}}, "'multipleOf'"),
        ({"type": "object", "properties": {"a": {}}}, r"\$\.a\b.*anyOf"),
        ({"type": "object", "required": ["a"]}, "requires 'a'"),
        ({"anyOf": [3]}, r"anyOf\[0\].*3"),
    ],
)
def test_a_schema_that_would_not_be_enforced_is_refused(schema, match):
    with pytest.raises(ValueError, match=match):
        JsonParser(schema)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ('Sure!\n```json\n{"a": 1}\n```\nHope it helps.', [{"a": 1}]),
        ("```\n[1, 2]\n```", [[1, 2]]),
        ('First {"a": 1}, no: {"a": 2}.', [{"a": 1}, {"a": 2}]),
        ('In fences ```json\n{"a": 1}\n``` and later [3]', [[3], {"a": 1}]),
        ('{"a": {"b": [1]}} tail', [{"a": {"b": [1]}}]),
        ("{not json} but [1]", [[1]]),
        ('{"a": NaN} {"a": 1, "a": 2} {"a": 3}', [{"a": 3}]),
        ('{"a": "} in a string {"}', [{"a": "} in a string {"}]),
        ('{"cut": [1, 2', []),
        ("no json, 3 at most", []),
    ],
)
def test_json_is_found_in_text(text, values):
    assert json_values(text) == values


def test_the_last_value_that_fits_is_taken():
    parser = JsonParser(Step)
    assert parser('Maybe {"verb": "go"}. No: {"verb": "take"}. See [1].') == Step("take")
    with pytest.raises(ValueError, match='verb.*"fly"'):
        parser('{"verb": "run"} or rather {"verb": "fly"}')
    with pytest.raises(ValueError, match="JSON object"):
        parser("I would rather not.")


@pytest.mark.parametrize("text", ["[" * 20_000, '{"a":' * 20_000, "[1," * 20_000, "```\n" * 10_000, "9" * 5000])
def test_hostile_text_is_read_in_good_time(text):
    started = time.process_time()
    with pytest.raises(ValueError):
        JsonParser(Step)(text)
    assert time.process_time() - started < 2


class Learner(ScriptedAdviser):
    """A scripted adviser that answers well only once it was corrected `needed` times."""

    def __init__(self, needed):
        self.needed = needed
        self.seen = []

    def advise(self, messages, rng):
        self.seen.append([m.content for m in messages])
        corrections = len(messages) // 2
        return '{"verb": "take"}' if corrections >= self.needed else f"hm {corrections}"


def test_errors_are_handed_back():
    model = Learner(2)
    (parsed,) = ask(model, [request()], JsonParser(Step), repairs=2)
    assert parsed == Parsed(Step("take"), parsed.reply, 2)
    conversation = model.seen[-1]
    assert [text.split("\n")[0] for text in conversation] == [
        "Plan!",
        "hm 0",
        "Your reply could not be read: there is no JSON object or list in it",
        "hm 1",
        "Your reply could not be read: there is no JSON object or list in it",
    ]


def test_repairs_are_bounded():
    model = Learner(3)
    with pytest.raises(UnparsedReply, match="Learner.*3.*JSON.*'hm 2'"):
        ask(model, [request()], JsonParser(Step), repairs=2)
    assert len(model.seen) == 3
    with pytest.raises(UnparsedReply, match="Learner.*once"):
        ask(model, [request()], JsonParser(Step), repairs=0)


def test_only_what_failed_is_asked_again_and_the_rest_is_kept():
    class Mixed(ScriptedAdviser):
        batches: list = []

        def complete(self, requests):
            self.batches.append([r.messages[0].content for r in requests])
            done = []
            for r, reply in zip(requests, super().complete(requests)):
                done.append(ServerError("down") if r.messages[0].content == "down" else reply)
            return settle(done)

        def advise(self, messages, rng):
            return "[1]" if messages[0].content == "good" else "?"

    with pytest.raises(ServerError, match="down") as caught:
        ask(Mixed(), [request("down"), request("good"), request("bad")], json_list, repairs=1)
    assert Mixed.batches == [["down", "good", "bad"], ["bad"]]
    down, good, bad = caught.value.outcomes
    assert isinstance(down, ServerError) and good.value == [1] and isinstance(bad, UnparsedReply)


def json_list(text):
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def test_a_repair_is_cached_and_replayed(tmp_path):
    live = ask(Cached(Learner(1), tmp_path / "c"), [request()], JsonParser(Step))
    replayed = ask(Cached("scripted-adviser/Learner", tmp_path / "c", "replay"), [request()], JsonParser(Step))
    assert replayed[0].value == live[0].value and replayed[0].repairs == 1


def test_a_reply_that_was_cut_off_says_so():
    class Cut:
        name = "cut"

        def complete(self, requests):
            return [ChatReply((Choice("", "length"),), "cut") for _ in requests]

    with pytest.raises(UnparsedReply, match="max_tokens"):
        ask(Cut(), [request()], JsonParser(Step))
    with pytest.raises(ValueError, match="2 samples"):
        ask(Cut(), [request(n=2)], JsonParser(Step))
