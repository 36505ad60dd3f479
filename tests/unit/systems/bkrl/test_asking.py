"""What chat models say: prompts and their parsers, answers about pairs, the conversation about programs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import envs_jax
from llmrl_jax.chat import ChatReply, ChatRequest, Choice, Message, Usage
from llmrl_jax.core.config import from_json, to_json
from llmrl_jax.data.transitions import DataError
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.bkrl import collect, preferences, prompts
from llmrl_jax.systems.bkrl.advice import advice_run, read_data
from llmrl_jax.systems.bkrl.collect import EpisodeDataset
from llmrl_jax.systems.bkrl.config import PRESETS, CodeRun, GoalsRun, PreferRun, TrainRun, WindowConfig, preset
from llmrl_jax.systems.bkrl.preferences import Answer, ask, labeled_pairs, sample_pairs, statistics
from llmrl_jax.systems.bkrl.programs import correlation
from llmrl_jax.systems.bkrl.scripted import PROGRAMS, ScriptedGoals, ScriptedJudge, merit, progress
from llmrl_jax.workflows.chat_model import ChatConfig
from tests.bkrl_world import ID, played, world


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    collect.write_episodes(folder / "a.parquet", played())
    return WindowConfig(data=str(folder), env=ID)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("[Thoughts]\nA walks. B > A is wrong.\n[Rank]\nA > B", 0.0),
        ("[rank] B > A.", 1.0),
        ("[Rank]\nA < B", 1.0),
        ("[Rank] A = B", 0.5),
        ("[Rank] A > B or B > A", None),
        ("[Rank] A > A", None),
        ("[Thoughts] I will write [Rank] A > B or B > A.\n[Rank] B > A", 1.0),
        ("A > B", None),
        ("", None),
    ],
)
def test_preferences_are_read_after_rank(reply, expected):
    assert prompts.read_preference(reply) == expected


def test_goals_are_lines_of_a_list():
    reply = "Goals:\n- go to a ball\n  - eat\n- go to a ball\n* **drink** water\n2. pick up `key`\n-sleep\n---\n-  "
    assert prompts.read_goals(reply) == ["go to a ball", "eat", "drink water", "pick up key", "sleep"]


def test_goals_that_cannot_be_printed_are_left_out():
    assert prompts.read_goals("- go\x00\n- \ud800\n- eat a cow") == ["eat a cow"]


def test_answers_that_follow_the_order_are_ties():
    assert Answer(1.0, 0.0).second_wins == 1.0
    assert Answer(0.0, 1.0).second_wins == 0.0
    assert Answer(0.0, 0.0).second_wins == 0.5  # the first is better, whichever it is
    assert Answer(0.5, 0.5).second_wins == 0.5
    # an answer in one order only may follow the order
    assert Answer(None, 1.0).second_wins == Answer(0.0, None).second_wins == Answer(1.0, None).second_wins == 0.5
    assert Answer(None, None).second_wins is None


def test_statistics_by_hand():
    answers = [Answer(1.0, 0.0), Answer(0.0, 0.0), Answer(0.0, None), Answer(None, None), Answer(0.5, 0.5)]
    returns = np.array([[0, 1], [0, 1], [0, 1], [0, 1], [0, 0]], float)
    found = statistics(answers, returns)
    assert found["unreadable"] == 3 and found["ties"] == 3
    # of 1, 0, 0, 0, 0 the first window wins four times
    assert found["first_wins"] == 4 / 5
    assert found["consistent"] == 2 / 3
    assert (found["agreement"], found["compared"]) == (1, 1)


class Biased:
    """Always prefers the first window, and cannot be read every fifth time, or `never`."""

    name = "biased"

    def __init__(self, never=False):
        self.asked, self.never = 0, never

    def complete(self, requests):
        replies = []
        for _ in requests:
            self.asked += 1
            text = "I do not know" if self.asked % 5 == 0 and not self.never else "[Rank] A > B"
            replies.append(ChatReply((Choice(text),), model=self.name, usage=Usage()))
        return replies


def test_a_bias_is_reported_and_teaches_nothing(data, tmp_path):
    config = PreferRun(windows=data, pairs=20, run=BaseRunConfig(out=str(tmp_path), name="p"))
    with advice_run(config, "p", lambda world: Biased()) as asked:
        windows = asked.data.sample(asked.rng, 40, 3)
        answers, stopped = ask(asked, config, windows)
    assert not stopped and len(answers) == 20
    found = statistics(answers, windows.return_from_start.reshape(-1, 2))
    assert found["first_wins"] == 1 and found["consistent"] == 0 and found["unreadable"] == 8
    pairs = labeled_pairs(windows, answers, ("image",))
    assert len(pairs) == 20 and pairs.obs["image"].shape == (20, 2, 4, 7, 7, 3)
    assert set(pairs.second_wins) == {0.5}
    lines = [json.loads(line) for line in (tmp_path / "p" / "preferences.jsonl").read_text().splitlines()]
    assert lines[3]["windows"] == [[int(windows.episode[j]), int(windows.time[j])] for j in (6, 7)]


class Leaning:
    """Chooses by log-probabilities that lean to the first window by 2 nats and prefer a window with a key by 1."""

    name = "leaning"

    def complete(self, requests):
        replies = []
        for request in requests:
            assert request.extra == {"guided_choice": ["[Rank] A > B", "[Rank] B > A"]}
            assert "Thoughts" not in "".join(message.content for message in request.messages)
            first, second = request.messages[-1].content.split("Description B:")
            scores = (-3.0 + ("key" in first), -5.0 + ("key" in second))
            text = request.extra["guided_choice"][int(scores[1] > scores[0])]
            replies.append(ChatReply((Choice(text, scores=scores),), model=self.name, usage=Usage()))
        return replies


def test_a_bias_cancels_out_of_log_probabilities(data, tmp_path):
    config = PreferRun(
        windows=data,
        pairs=20,
        answers="chosen",
        run=BaseRunConfig(out=str(tmp_path), name="c"),
        chat=ChatConfig(model="local:tiny"),
    )
    free = replace(config, chat=ChatConfig(), answers="written")
    with advice_run(free, "c", lambda world: Leaning()) as asked:
        windows = asked.data.sample(asked.rng, 40, 3)
        said = asked.captions(windows)
        answers, _ = ask(asked, config, windows)
    found = statistics(answers, windows.return_from_start.reshape(-1, 2))
    assert found["first_wins"] == 1 and found["consistent"] == 0
    keys = np.array(["key" in text for text in said]).reshape(-1, 2)
    np.testing.assert_array_equal([a.second_wins for a in answers], 0.5 + 0.5 * (keys[:, 1] * 1.0 - keys[:, 0]))
    assert len(set(np.ravel([a.second_wins for a in answers]))) > 1
    line = json.loads((tmp_path / "c" / "preferences.jsonl").read_text().splitlines()[0])
    assert line["margin"] == 2 * (float(keys[0, 1]) - float(keys[0, 0]))
    with pytest.raises(ValueError, match="--answers"):
        replace(config, chat=ChatConfig())


def test_ties_alone_teach_nothing(data, tmp_path, monkeypatch):
    """A potential of them would be the random weights of the start, scaled up."""
    monkeypatch.setattr(preferences, "ScriptedJudge", lambda world: Biased(never=True))
    config = PreferRun(windows=data, pairs=20, run=BaseRunConfig(out=str(tmp_path), name="t"))
    with pytest.raises(ValueError, match="biased.*20 of 20 pairs.*20"):
        preferences.prefer(config)
    assert json.loads((tmp_path / "t" / "summary.json").read_text())["first_wins"] == 1
    assert not (tmp_path / "t" / "potential.json").exists()


def test_no_window_is_compared_with_itself(data, tmp_path):
    """Two of 14 steps in the held-out episodes, so that half of the pairs would be such."""
    few = replace(data, window=12)
    config = PreferRun(windows=few, pairs=60, run=BaseRunConfig(out=str(tmp_path), name="n"))
    with advice_run(config, "n", ScriptedJudge) as asked:
        windows, _ = sample_pairs(asked, config)
    where = np.stack([windows.episode, windows.time], 1).reshape(-1, 2, 2)
    assert (where[:, 0] != where[:, 1]).any(1).all()
    one = replace(asked, validation=asked.validation[:1])
    length = int(asked.data.lengths[one.validation[0]])
    with pytest.raises(DataError, match=rf"\b{length} steps"):
        sample_pairs(one, replace(config, windows=replace(few, window=length)))


def test_the_scripted_judge_reads_captions(data, tmp_path):
    step = "Agent history:\nStep 1: X. You choose the action: {}.\nCurrent observation: You see a {} forward. "
    near, far = step.format("forward", "red ball 1 step"), step.format("do nothing", "wall 2 steps")
    assert merit(near) > merit(far)
    # one forward, of two actions, towards an object that is reached: 3 * 1 / 2 for the ground, 0.8 and 2
    said = (
        "Agent history:\nStep 1: You see a red ball {} forward. You choose the action: {}.\nStep 2: You see a red ball"
    )
    said += " {} forward. You choose the action: {}.\nCurrent observation: You see a red ball {} forward. "
    assert merit(said.format("2 steps", "forward", "1 step", "turn left", "1 step")) == pytest.approx(1.5 + 0.8 + 2)
    # moves into an object have no effect
    assert merit(said.format("1 step", "forward", "1 step", "forward", "1 step")) == 0
    assert merit(said.format("3 steps", "do nothing", "3 steps", "drop your taken object", "3 steps")) == -0.6
    # there and back again is no ground covered
    turns = ["forward", "turn right", "turn right", "forward"]
    assert progress(["You see nothing in front"] * 5, turns) == 0
    assert progress(["You see nothing in front"] * 5, ["forward", "turn right", "forward", "forward"]) == 9 / 4
    config = PreferRun(windows=data, pairs=8, run=BaseRunConfig(out=str(tmp_path), name="s"))
    with advice_run(config, "s", ScriptedJudge) as asked:
        answers, _ = ask(asked, config, asked.data.sample(asked.rng, 16, 3))
    assert all(a.forward is not None and a.backward == 1 - a.forward for a in answers)


def test_scripted_goals_are_about_what_is_seen(data, tmp_path):
    config = GoalsRun(windows=replace(data, window=4), situations=4, run=BaseRunConfig(out=str(tmp_path), name="g"))
    with advice_run(config, "g", ScriptedGoals) as asked:
        windows = asked.data.sample(asked.rng, 4, 3)
        said = asked.captions(windows)
        requests = [ChatRequest((Message("user", prompts.goal_window(text, [])),)) for text in said]
        replies = [reply.text for reply in asked.chat.model.complete(requests)]
    for text, reply in zip(said, replies):
        last = text.rsplit("Current observation:", 1)[-1]
        for goal in prompts.read_goals(reply):
            assert goal == "look for objects" or goal.removeprefix("go to the ") in last


def test_data_of_another_world_are_refused(data):
    read_data(data, world())
    import envs_jax

    other = envs_jax.make("Crafter-Text-Reward?view=true&image=none")[0]
    with pytest.raises(ValueError, match="'inventory'.*--env"):
        read_data(data, other)
    with pytest.raises(ValueError, match="data.*empty"):
        read_data(WindowConfig(), world())
    before = from_json(WindowConfig, to_json(data) | {"unpickle": False})  # a config.json of before
    assert before == data


def test_rank_correlation():
    windows = played().sample(np.random.default_rng(0), 64, 2)
    windows = replace(windows, return_to_go=np.arange(64, dtype=np.float32), has_next=np.ones(64, bool))
    assert correlation(np.arange(64.0) ** 3, windows) == pytest.approx(1)
    assert correlation(-np.arange(64.0), windows) == pytest.approx(-1)
    assert correlation(np.ones(64), windows) == 0
    # after a terminal state there is nothing, whatever the potential says of it: shaping takes 0 there
    over = np.arange(64) % 4 == 0
    ended = replace(windows, has_next=~over, return_to_go=np.where(over, 0, windows.return_to_go))
    assert correlation(np.where(over, 1e3, np.arange(64.0)), ended) == pytest.approx(1)


def test_rank_correlation_leaves_the_end_of_a_truncated_episode_out():
    """By hand, with gamma 0.5: three steps that terminate, two that are cut. Windows of one step are followed by the
    rewards 0.5, 1, (none), 4, (unknown). With a 0 for the last one it would be 1 - 6 * 12 / (4 * 15) = -0.2."""
    data = EpisodeDataset(
        obs={"x": np.arange(7)},
        action=np.zeros(5, np.int32),
        reward=np.array([0, 0, 1, 2, 4], np.float32),
        terminated=np.array([0, 0, 1, 0, 0], bool),
        truncated=np.array([0, 0, 0, 0, 1], bool),
        digest="",
    )
    windows = data.windows_at([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], 1, gamma=0.5)
    assert windows.return_to_go.tolist() == [0.5, 1, 0, 4, 0]
    assert correlation(np.array([1.0, 2, 9, 3, 50]), windows) == pytest.approx(1)
    assert correlation(np.array([1.0, 2, 9, -3, 50]), windows) == pytest.approx(-0.5)


def test_asking_goes_on_where_the_budget_was_spent(data, tmp_path, monkeypatch):
    """Through the cache, as with a model that is not the scripted one."""

    class Local(ScriptedJudge):
        def close(self):
            pass

    monkeypatch.setattr("llmrl_jax.serve.LocalLlama.load", lambda *args, **options: Local(world()))

    def run(name, calls, **options):
        chat = replace(PreferRun().chat, model="local:judge", max_calls=calls)
        run = BaseRunConfig(out=str(tmp_path), name=name, **options)
        config = PreferRun(windows=data, pairs=70, chat=chat, run=run)
        with advice_run(config, "p", ScriptedJudge) as asked:
            windows = asked.data.sample(asked.rng, 140, 3)
            answers, stopped = ask(asked, config, windows)
            return answers, stopped, asked.chat.spent.calls

    whole = run("whole", 0)
    part, stopped, calls = run("parts", 100)
    assert part == whole[0][: len(part)] and 0 < len(part) < 70 and stopped and calls == 100
    assert run("parts", 0, resume=True) == whole  # with as many calls: no pair was asked about twice
    assert (tmp_path / "parts" / "preferences.jsonl").read_text() == (
        tmp_path / "whole" / "preferences.jsonl"
    ).read_text()


def test_a_run_is_not_continued_with_other_data(tmp_path):
    """It would draw other windows, and pay for them again."""
    collect.write_episodes(tmp_path / "a.parquet", played())
    config = PreferRun(windows=WindowConfig(data=str(tmp_path), env=ID), run=BaseRunConfig(out=str(tmp_path), name="r"))
    again = replace(config, run=replace(config.run, resume=True))

    def begin(config):
        with advice_run(config, "r", ScriptedJudge) as asked:
            return asked.data.digest

    note = tmp_path / "r" / "data.sha256"
    first = begin(config)
    assert note.read_text() == first + "\n" and begin(again) == first
    collect.write_episodes(tmp_path / "b.parquet", played())  # the collecting run was extended
    with pytest.raises(DataError, match=rf"SHA-256.*{first[:12]}"):
        begin(again)
    assert note.read_text() == first + "\n"
    note.unlink()  # a run of before
    assert begin(again) != first and note.exists()


def test_a_program_is_given_what_the_prompt_describes():
    import envs_jax
    from llmrl_jax.systems.bkrl.prompts import program_parts, world_of

    for id, wanted in (
        (ID, ("direction", "image")),
        ("Crafter-Text-Reward", ("inventory",)),
        ("Crafter-Text-Reward?view=true&image=none", ("daylight", "inventory", "view")),
    ):
        env = envs_jax.make(id)[0]
        assert program_parts(world_of(env), env) == wanted


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("alg", ["none", "rnd"])
def test_presets_serve_every_algorithm(name, alg):
    config = TrainRun(agent=preset(name), alg=alg)
    assert alg == "rnd" or config.alg == "none"
    if alg == "none":
        with pytest.raises(ValueError, match="--rnd.outputs.*7.*--alg"):
            TrainRun(agent=replace(config.agent, rnd=replace(config.agent.rnd, outputs=7)), alg=alg)


def test_prompts_tell_what_a_program_sees():
    from llmrl_jax.systems.bkrl.prompts import world_of

    system = prompts.code_system(world_of(world()), 5)
    assert "(5,)" in system and 'obs["image"]' in system and "{" not in system.replace('{"', "")
    assert "red ball" not in system.lower()
    assert all("def compute_potential" in program for some in PROGRAMS.values() for program in some)
    assert CodeRun().chat.temperature == 0.5


def test_prompts_say_what_is_true():
    """The action of the example that waits is that of the world; nothing is said of tasks or rewards that are not."""
    import envs_jax
    from llmrl_jax.systems.bkrl.prompts import world_of

    for id, waits in ((ID, 6), ("Crafter-Text-Reward", 0)):
        known = world_of(envs_jax.make(id)[0])
        assert known.verbs[waits] == "do nothing"
        assert f"past_actions == {waits})" in prompts.code_system(known, 5)
    said = prompts.code_improve(["x"], [{"potential": 1.0}], 0.25)
    assert "+0.250" in said and "tasks" not in said
    assert "correlation" not in prompts.code_improve(["x"], [{"potential": 1.0}], None)


def test_pairs_that_choose_the_epoch_are_of_other_episodes(data, tmp_path):
    config = PreferRun(windows=data, pairs=30, validation_share=0.2, run=BaseRunConfig(out=str(tmp_path), name="d"))
    with advice_run(config, "d", ScriptedJudge) as asked:
        windows, validates = sample_pairs(asked, config)
    assert len(windows) == 60 and validates.sum() == 6
    of = windows.episode.reshape(-1, 2)
    assert set(of[validates].ravel()) <= set(asked.validation) and set(of[~validates].ravel()) <= set(asked.train)
    again = asked.data.windows_at(windows.episode, windows.time, config.windows.window)
    np.testing.assert_array_equal(again.obs["image"], windows.obs["image"])
    np.testing.assert_array_equal(again.action, windows.action)


@pytest.mark.parametrize(
    ("pairs", "share", "count"), [(40, 0.1, 4), (40, 0.35, 14), (40, 0.4, 16), (7, 0.5, 4), (1, 0.5, 0)]
)
def test_the_share_of_validation_is_exact(data, tmp_path, pairs, share, count):
    config = PreferRun(
        windows=data, pairs=pairs, validation_share=share, run=BaseRunConfig(out=str(tmp_path), name="v")
    )
    with advice_run(config, "v", ScriptedJudge) as asked:
        validates = sample_pairs(asked, config)[1]
    assert validates.sum() == count
    if count * share:  # where the pairs are a multiple of it, the places are those of before
        gaps = np.diff(np.flatnonzero(validates))
        assert gaps.max() - gaps.min() <= 1 and validates.argmax() == 1


def test_a_threshold_that_no_cosine_exceeds_is_refused():
    with pytest.raises(ValueError, match=r"threshold.*1\.0.*0\.99"):
        GoalsRun(WindowConfig(window=4), threshold=1.0)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("BabyAI-Text-GoToLocal-RedBall-S20", ("one square room", "between 18 and 28 cells")),
        ("BabyAI-Text/GoToObjS4-v0", ("one square room", "2 cells")),
        ("BabyAI-Text/MixedTrainLocal-v0", ("1 x 2 square rooms", "6 cells", "locked")),
    ],
)
def test_the_rules_are_those_of_the_level(level, words):
    rules = prompts.world_of(envs_jax.make(level)[0]).rules
    assert all(word in rules for word in words)
    assert ("oors" in rules) == ("rooms" in rules)
