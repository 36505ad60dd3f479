"""The conversation about programs: repairs, the choice of the best one, what is written; without child processes."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.advice.sandbox import Program, SandboxError, Spec
from llmrl_jax.advice.sandbox.spec import Part
from llmrl_jax.chat import BudgetExceeded, ChatReply, Choice, Usage
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.bkrl import collect, goals, programs
from llmrl_jax.systems.bkrl.config import CodeRun, GoalsRun, WindowConfig
from llmrl_jax.systems.bkrl.potentials import MANIFEST, load_manifest
from tests.bkrl_world import ID, played


class Fake(Program):
    """A program whose potential is the share of a cell type in view, with a sign."""

    def __init__(self, source):
        self.source, self.components = source, ("share",)
        self.spec = Spec((Part("image", (7, 7, 3), "uint8"),), 2)
        self.sign = float(source.split()[-1])

    def __call__(self, obs, past_obs, past_actions):
        share = jnp.mean((obs["image"][..., 0] == 1).astype(jnp.float32))
        return self.sign * share + 0 * jnp.sum(past_actions), {"share": share}

    def save(self, path):
        path.write_text(self.source)


def admit_many(sources, observation, *, window, actions, windows):
    assert window == 2 and actions == 7 and observation["image"].shape == (7, 7, 3)
    assert windows[0]["image"].shape == (256, 7, 7, 3) and windows[1]["image"].shape == (256, 2, 7, 7, 3)
    # some are those at the start of an episode: of a half, one action is missing, of the others both
    now, past, action = windows
    assert (action[:-32] >= 0).all() and action[-32:].min(axis=0).tolist() == [-1, -1] and (action[-32:, 0] == -1).all()
    whole = action[-32:, 1] == -1
    assert whole.sum() == 16 and (past["image"][-32:, 1] == now["image"][-32:])[whole].all()
    assert (past["image"][-32:, 0] == past["image"][-32:, 1]).all()
    bad = lambda source: source.strip().startswith("bad")  # noqa: E731
    return [SandboxError("the name 'bad' is unknown here", 1, s) if bad(s) else Fake(s) for s in sources]


class Writer:
    """Replies from a list, in order; keeps the requests."""

    name = "writer"

    def __init__(self, replies):
        self.replies, self.requests = list(replies), []

    def complete(self, requests):
        found = []
        for request in requests:
            self.requests.append(request)
            texts = []
            for _ in range(request.n):
                if not self.replies:
                    raise BudgetExceeded("the budget of calls is spent")
                texts.append(self.replies.pop(0))
            found.append(ChatReply(tuple(Choice(text) for text in texts), model=self.name, usage=Usage()))
        return found


def block(code):
    return f"Here:\n```python\n{code}\n```\n"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    collect.write_episodes(tmp_path / "a.parquet", played())
    monkeypatch.setattr(programs, "admit_many", admit_many)
    windows = WindowConfig(data=str(tmp_path / "a.parquet"), env=ID, window=2)
    # so that the sign of the correlation is known: what follows is larger where more cells are empty
    monkeypatch.setattr(programs, "correlation", lambda values, windows: float(np.sign(values.mean())))
    run = BaseRunConfig(out=str(tmp_path), name="code")
    return lambda **options: CodeRun(windows=windows, run=run, **{"candidates": 2, "rounds": 2, "tests": 256} | options)


def written(settings, replies, monkeypatch, **options):
    writer = Writer(replies)
    monkeypatch.setattr(programs, "ScriptedCoder", lambda world: writer)
    return writer, programs.write_programs(settings(**options))


def test_refused_programs_are_repaired_and_the_best_is_kept(settings, monkeypatch, tmp_path):
    replies = [block("bad 1"), block("worse -1"), block("good 2"), block("later -3"), "no code", block("bad again")]
    replies += [block("last -1")]
    writer, summary = written(settings, replies, monkeypatch)
    rows = [json.loads(line) for line in (tmp_path / "code" / programs.CANDIDATES).read_text().splitlines()]
    found = [(row["round"], row["number"], row["repair"], bool(row["refused"])) for row in rows]
    # round 0: two candidates, the first repaired; round 1: one, and one without code that is repaired twice
    assert found[:4] == [(0, 0, 0, True), (0, 1, 0, False), (0, 0, 1, False), (1, 0, 0, False)]
    assert found[4][:3] == (1, 1, 0) and found[4][3] and "no Python code block" in rows[4]["refused"]
    assert (tmp_path / "code" / programs.PROGRAM).read_text().strip() == "good 2"
    assert summary["correlation"] == 1 and summary["refused"] >= 2
    manifest = load_manifest(tmp_path / "code", "bk-code")
    assert manifest.window == 2 and manifest.family == "babyai" and manifest.model == "writer"
    assert manifest.data == collect.read_episodes(tmp_path / "a.parquet").digest
    # the repair has the reason; the second round shows the best program with its values
    assert "the name 'bad' is unknown here" in writer.requests[1].messages[-1].content
    later = writer.requests[2].messages
    assert "good 2" in later[-2].content and "Sample#5" in later[-1].content and "potential:" in later[-1].content
    assert writer.requests[2].sample == 2 and writer.requests[0].n == 2


def test_a_spent_budget_keeps_the_best_so_far(settings, monkeypatch, tmp_path):
    _, summary = written(settings, [block("fine 1"), block("fine 2")], monkeypatch)
    assert "budget" in summary["stopped"] and summary["admitted"] == 2
    assert (tmp_path / "code" / programs.PROGRAM).exists()


def test_without_a_program_the_reason_is_given(settings, monkeypatch):
    with pytest.raises(ValueError, match="last reason.*'bad'"):
        written(settings, [block("bad")] * 2, monkeypatch, rounds=1, repairs=0)


def test_a_program_that_says_nothing_is_refused_with_the_reason(settings, monkeypatch, tmp_path, capsys):
    """It would win over programs of negative correlation, and could not be scaled."""
    replies = [block("flat 0"), block("varies -1"), block("flat 0")]
    writer, summary = written(settings, replies, monkeypatch, rounds=1, repairs=1)
    assert (summary["admitted"], summary["refused"], summary["correlation"]) == (1, 2, -1)
    assert (tmp_path / "code" / programs.PROGRAM).read_text().strip() == "varies -1"
    said = writer.requests[1].messages[-1].content
    assert "standard deviation of 0" in said
    rows = [json.loads(line) for line in (tmp_path / "code" / programs.CANDIDATES).read_text().splitlines()]
    assert [(row["spread"] > 0, "says nothing" in row["refused"]) for row in rows] == [
        (False, True), (True, False), (False, True),
    ]  # fmt: skip
    assert "held-out episodes, by which it was chosen" in capsys.readouterr().out


def test_an_interrupted_run_is_continued_with_its_own_settings(settings, monkeypatch, tmp_path):
    written(settings, [block("fine 1"), block("fine 2")], monkeypatch, rounds=1)
    config = settings(rounds=1, candidates=1)
    again = CodeRun(**{**vars(config), "run": BaseRunConfig(out=str(tmp_path), name="code", resume=True)})
    with pytest.raises(ValueError, match="candidates: 2 -> 1"):
        programs.write_programs(again)


class Deterministic:
    """Its reply depends on the conversation and the number of the sample alone; keeps what it was asked for."""

    name = "deterministic"

    def __init__(self, reply):
        self.reply, self.asked = reply, []

    def close(self):
        pass

    def complete(self, requests):
        found = []
        for request in requests:
            said = "|".join(message.content for message in request.messages)
            texts = []
            for i in range(request.n):
                self.asked.append((said, request.sample + i))
                texts.append(self.reply(random.Random(f"{said} {request.sample + i}").randrange(10**6), said))
            found.append(ChatReply(tuple(map(Choice, texts)), model=self.name, usage=Usage(1, 1)))
        return found


def resumed(monkeypatch, tmp_path, config, start, reply, budgets, files):
    """Runs with budgets that are spent, and then without one, beside an uninterrupted run."""
    kept = {}
    for name, calls in (("whole", (0,)), ("parts", budgets)):
        model = Deterministic(reply)
        monkeypatch.setattr("llmrl_jax.serve.LocalLlama.load", lambda *args, model=model, **options: model)
        for i, most in enumerate(calls):
            chat = replace(config.chat, model="local:deterministic", max_calls=most)
            run = BaseRunConfig(out=str(tmp_path), name=name, resume=i > 0)
            summary = start(replace(config, chat=chat, run=run))
            assert bool(most) == ("stopped" in summary), summary
            assert not most or summary["calls"] == most
        assert len(set(model.asked)) == len(model.asked)  # nothing is asked twice
        kept[name] = sorted(model.asked), summary, [(tmp_path / name / file).read_text() for file in files]
    assert kept["parts"] == kept["whole"]
    return kept["whole"]


def test_programs_go_on_where_the_budget_was_spent(settings, monkeypatch, tmp_path):
    """Also between a refused program and its repair."""

    def reply(number, said):
        return block(f"bad {number % 7 + 1}" if number % 2 else f"good {number % 9 - 4 or 5}")

    config = settings(candidates=2, rounds=3, repairs=2)
    files = (programs.CANDIDATES, programs.PROGRAM, MANIFEST)
    asked, summary, _ = resumed(monkeypatch, tmp_path, config, programs.write_programs, reply, (2, 3, 5, 0), files)
    assert summary["refused"] > 1 and summary["admitted"] > 2 and summary["calls"] > 5
    assert len(asked) == summary["candidates"]


def test_goals_go_on_where_the_budget_was_spent(settings, monkeypatch, tmp_path):
    """Prompts show goals of earlier batches, so a changed order would ask for other things."""

    def reply(number, said):
        known = said.rpartition("Earlier goals:")[2].count("\n- ")
        return f"- go {number % 5}\n- know {known}" if number % 4 else "none"

    config = GoalsRun(windows=settings().windows, situations=20, at_once=4, encoder="hashed")
    files = (goals.GOALS, MANIFEST)
    asked, summary, _ = resumed(monkeypatch, tmp_path, config, goals.propose, reply, (6, 0), files)
    assert summary["situations"] == 20 and 0 < summary["without_goals"] < 20
    assert len(asked) == summary["calls"] > 10  # a window that was drawn twice is asked about once
