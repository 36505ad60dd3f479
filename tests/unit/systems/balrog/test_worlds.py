"""The worlds of the benchmark: tasks, limits, seeds; and results with their intervals."""

from __future__ import annotations

import math
import random
import re

import numpy as np
import pytest

from llmrl_jax.core.statistics import wilson
from llmrl_jax.systems.balrog import eval as evaluation
from llmrl_jax.systems.balrog.build import BABYAI_TASKS, BabyAIWorlds, CrafterWorlds
from llmrl_jax.systems.balrog.config import EvalRun
from llmrl_jax.systems.balrog.prompts import VERSIONS
from tests.compile_cache import cached_in


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with cached_in(tmp_path_factory.mktemp("compiled")):
        yield


MISSIONS = {
    "goto": r"go to the \w+ \w+",
    "pickup": r"pick up the \w+ \w+",
    "open": r"open the (\w+ )?door",
    "putnext": r"put the \w+ \w+ next to the \w+ \w+",
    "pick_up_seq_go_to": r"pick up .*, then go to .*|go to .* after you pick up .*",
}


@pytest.mark.slow
def test_babyai_has_the_published_tasks_and_its_episodes_depend_on_their_seeds_alone():
    tasks = [task for task in BABYAI_TASKS for _ in range(3)]
    seeds = [evaluation.episode_seed(EvalRun(), task, i % 3) for i, task in enumerate(tasks)]
    assert len(set(seeds)) == len(seeds)
    worlds = BabyAIWorlds(tasks, seeds)
    first = worlds.reset()
    objects = np.asarray(worlds._state.object != 0).sum(axis=1)
    for i, task in enumerate(tasks):
        mission = worlds.instruction(i).split("Your goal is to ")[1].split(". The following")[0]
        assert re.fullmatch(MISSIONS[task], mission), (task, mission)
        assert worlds.limit(i) == (64 if task in ("goto", "pickup") else 128)
        assert objects[i] == (1 if task in ("goto", "pickup") else 2)
    rng = random.Random(0)
    actions = [[rng.choice(worlds.actions) for _ in tasks] for _ in range(5)]
    texts = [first, *([result.observation for result in worlds.step(row)] for row in actions)]
    order = list(range(len(tasks)))[::-1]  # the same episodes in other rows
    again = BabyAIWorlds([tasks[i] for i in order], [seeds[i] for i in order])
    assert again.reset() == first[::-1]
    for t, row in enumerate(actions):
        assert [result.observation for result in again.step(row[::-1])] == texts[t + 1][::-1]


def test_a_success_of_babyai_has_minigrids_reward_and_the_limit_ends_an_episode():
    worlds = BabyAIWorlds(["goto"] * 15, [3] * 15)
    worlds.reset()
    rng, ended = random.Random(1), set()
    for t in range(1, 65):
        for i, result in enumerate(worlds.step([rng.choice(worlds.actions[:3]) for _ in range(15)])):
            if i not in ended and result.done:
                ended.add(i)
                won = worlds.stats(i)["progression"] == 1
                assert result.reward == (1 - 0.9 * (t / 64) if won else 0) and (won or t == 64)
    assert ended == set(range(15))


@pytest.mark.slow
def test_crafter_begins_after_a_hidden_noop():
    worlds = CrafterWorlds([5, 6], VERSIONS["2025-08"])
    assert worlds.reset()[0].status.startswith("Your status:\n- health: 9/9")
    plain = CrafterWorlds([5, 6], VERSIONS["2025-08"], hidden_noop=False)
    plain.reset()
    assert int(worlds._state.step[0]) == 1 and int(plain._state.step[0]) == 0
    assert plain.step(["Noop", "Noop"])[1].observation == worlds.reset()[1]
    assert worlds.stats(0)["score"] == 0 and worlds.limit(0) == 2000


def logs(progress, task="BabyAI-MixedTrainLocal-v0/goto", **values):
    common = {"task": task, "num_steps": 10, "failed_candidates": ["x"], "input_tokens": 5, "output_tokens": 30}
    return [{**common, "progression": x, "client": {}, "agent": {}, **values} for x in progress]


def test_results_have_wilsons_interval_beside_the_published_error():
    crafter = logs([2 / 22, 4 / 22, 6 / 22], task="default")
    results = evaluation.results_of({"babyai": logs([1.0, 0.0, 1.0, 1.0]), "crafter": crafter})
    row = results["goto"]
    assert (row["progression"], row["progression_low"], row["progression_high"]) == wilson(3, 4)[:3]
    assert row["standard_error"] == pytest.approx(math.sqrt(0.75 * 0.25) / 2)
    assert row["invalid"] == pytest.approx(0.1) and row["reply_tokens"] == 3.0
    assert results["babyai"] == row and set(results) == {"goto", "babyai", "crafter"}
    assert results["crafter"]["progression"] == pytest.approx(4 / 22)
    assert results["crafter"]["progression_low"] < 2 / 22
    overall = evaluation.leaderboard_summary({"babyai": logs([1.0, 0.0]), "crafter": crafter})
    assert overall["average_progress"] == pytest.approx((50 + 400 / 22) / 2)
    errors = [100 * 0.5 / math.sqrt(2), 100 * math.sqrt(8 / 3) / 22 / math.sqrt(3)]
    assert overall["standard_error"] == pytest.approx(math.hypot(*errors) / 2)


def test_one_seed_for_all_if_asked():
    config = EvalRun(seeds="same")
    assert {evaluation.episode_seed(config, task, i) for task in ("goto", "crafter") for i in range(3)} == {0}
