"""Our messages, logs and summaries against recorded episodes of the reference (tests/parity/record_balrog.py)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import jax
import numpy as np
import pytest

from envs_jax.babyai.text.english import VIEW, sentence_bound, view_caption
from llmrl_jax.chat import ChatReply, Choice, Usage
from llmrl_jax.systems.balrog import eval as evaluation, prompts
from llmrl_jax.systems.balrog.agents import AgentSettings
from llmrl_jax.systems.balrog.build import BabyAIWorlds, CrafterWorlds, Result, Worlds, crafter_stats
from llmrl_jax.systems.balrog.prompts import VERSIONS, Scene
from tests.paths import DATA


SCENE = ("view", "position", "inventory", "facing", "sleeping")


class Recorded(Worlds):
    """The world of a recorded episode: the observations are ours, made from the recorded states."""

    def __init__(self, observations, rewards, done, log, task, version):
        self.observations, self.rewards, self.done, self.log, self.task = observations, rewards, done, log, task
        self.version = version
        kind = CrafterWorlds if task == "crafter" else BabyAIWorlds
        self.actions, self.default, self.t = kind.actions, kind.default, 0

    def reset(self):
        return self.observations[:1]

    def step(self, actions):
        reward, done = self.rewards[self.t], self.done[self.t]
        self.t += 1
        return [Result(self.observations[self.t], reward if reward or self.task == "crafter" else 0, bool(done))]

    def instruction(self, episode):
        if self.task == "crafter":
            return prompts.crafter_instruction(VERSIONS[self.version])
        return prompts.babyai_instruction(self.log["mission"])

    def limit(self, episode):
        return self.log["num_steps"]

    def stats(self, episode):
        if self.task == "crafter":
            return crafter_stats(np.array(list(self.log["achievements"].values())))
        return {"mission": self.log["mission"], "progression": float(max(self.rewards) > 0)}


class Replies:
    """The recorded replies, for the recorded messages only."""

    name = "recorded"

    def __init__(self, hashes, replies):
        self.hashes, self.replies, self.t, self.tokens = hashes, replies, 0, Counter()

    def complete(self, requests):
        (request,) = requests
        assert request.sample == self.t
        turns = [[message.role, message.content] for message in request.messages]
        digest = hashlib.sha256(json.dumps(turns).encode()).digest()[:8]
        assert np.frombuffer(digest, np.uint64)[0] == self.hashes[self.t], (self.t, turns)
        reply = self.replies[self.t]
        self.t += 1
        return [ChatReply((Choice(reply),), "recorded", Usage(len(turns), len(reply)))]


@pytest.fixture(scope="module")
def record():
    """The recorded arrays and descriptions, by version."""
    with np.load(DATA / "balrog.npz") as file:
        data, versions = dict(file), {}
    for version in VERSIONS:
        arrays = {name.partition("/")[2]: value for name, value in data.items() if name.startswith(version)}
        versions[version] = json.loads(bytes(arrays.pop("about"))), arrays
    return versions


def played(about, arrays, version):
    """Every episode of a version by our code, with its description and our log."""
    images = jax.jit(jax.vmap(lambda image: view_caption(image, sentence_bound(12))))(arrays["image"])
    texts = [prompts.babyai_observation(VIEW.phrases_of(row)) for row in np.asarray(images)]
    scenes = zip(*(arrays[name] for name in SCENE))
    texts_of = {"babyai": iter(texts)}
    texts_of["crafter"] = (prompts.crafter_observation(Scene(*map(_plain, row)), VERSIONS[version]) for row in scenes)
    start = 0
    for episode in about["episodes"]:
        steps, options = episode["log"]["num_steps"], episode["options"]
        part = slice(start, start + steps)
        start += steps
        world = "crafter" if episode["task"] == "crafter" else "babyai"
        observations = [next(texts_of[world]) for _ in range(steps + 1)]
        settings = AgentSettings(
            episode["agent"],
            version,
            options.get("max_text_history", 16),
            options.get("max_cot_history", 1),
            options.get("feedback", True),
        )
        rewards = arrays["reward"][part].tolist()
        worlds = Recorded(observations, rewards, arrays["done"][part], episode["log"], episode["task"], version)
        replies = [about["replies"][i] for i in arrays["reply"][part]]
        model = Replies(arrays["hash"][part], replies)
        ours = evaluation.Episode(episode["task"], episode["number"], 0)
        ((ours, stats),) = evaluation.play(worlds, [ours], settings, model, {"max_tokens": 8})
        yield episode, ours, ours.log(stats, {}, {})
    assert start == len(arrays["hash"]) and next(texts_of["babyai"], None) is None


def _plain(value):
    return value if value.ndim else int(value)


@pytest.mark.parametrize("version", list(VERSIONS))
def test_messages_logs_and_summaries_are_the_references(record, version, tmp_path):
    about, arrays = record[version]
    groups: dict[int, object] = {}
    for episode, ours, log in played(about, arrays, version):
        for name, value in episode["log"].items():
            assert log[name] == (pytest.approx(value, abs=1e-9) if name == "episode_return" else value), name
        assert hashlib.sha256(ours.csv().encode()).hexdigest() == episode["csv"]
        folder = groups.setdefault(episode["group"], tmp_path / str(episode["group"]))
        evaluation._write(ours, folder, log)
    for summary in about["summaries"]:
        logs = evaluation.read_logs(groups[summary["group"]])
        _equal(evaluation.leaderboard_summary(logs), summary["summary"])
        for world, values in summary["worlds"].items():
            _equal(evaluation.environment_summary(logs[world]), values)


def _equal(ours, theirs, path=""):
    """Equal keys, and numbers to 1e-9."""
    if path in (".client", ".agent"):
        return
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs) or path.endswith((".environments", ".tasks")) and set(ours) == set(theirs)
        for name in theirs:
            _equal(ours[name], theirs[name], f"{path}.{name}")
    else:
        assert ours == pytest.approx(theirs, abs=1e-9), path


def test_the_record_has_the_cases(record):
    """At least 1,000 steps with full windows, invalid and empty replies, sleep, death, and every border."""
    about, arrays = record["2025-08"]
    assert len(arrays["hash"]) >= 1000
    lengths = [episode["log"]["num_steps"] for episode in about["episodes"]]
    assert max(lengths) > 32
    failed = [reply for episode in about["episodes"] for reply in episode["log"]["failed_candidates"]]
    assert "" in failed and len(set(failed)) > 20
    assert arrays["sleeping"].sum() >= 20 and (arrays["inventory"][:, 0] == 0).any()
    x, y = arrays["position"].T
    assert (x < 4).any() and (x > 59).any() and (y < 3).any() and (y > 60).any()
    assert any(episode["log"]["progression"] == 1 for episode in about["episodes"])
