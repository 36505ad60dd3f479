"""The experiments with KALM: the control with random actions."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from envs_jax.clevr.rules import holds
from llmrl_jax.data.parquet import read_parquet
from llmrl_jax.data.transitions import Trajectories
from llmrl_jax.systems.kalm.worlds import GOAL, STATE, world_of
from tests.paths import ROOT


@pytest.fixture
def runs(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("kalm_runs")


def test_random_actions_succeed_where_they_push_the_ball_that_is_named(runs, monkeypatch, tmp_path):
    states = np.random.default_rng(0).uniform(-0.4, 0.4, (50, 1, 10)).astype(np.float32)
    none, zeros = np.zeros((50, 1), bool), np.zeros((50, 1))
    recorded = Trajectories(
        obs={STATE: states},
        action=zeros.astype(np.int32),
        reward=zeros.astype(np.float32),
        next_obs={STATE: states},
        terminated=none,
        truncated=~none,
        length=np.ones(50, np.int32),
    )
    monkeypatch.setattr(runs, "read_episodes", lambda folder: (world_of("clevr"), "real", recorded))
    runs.random_actions(tmp_path / "control", "", "easy", 400)
    summary = json.loads((tmp_path / "control" / "summary.json").read_text())
    data = read_parquet(tmp_path / "control" / "episodes.parquet")
    goal, action, reward = (np.asarray(x).reshape(400, -1) for x in (data.obs[GOAL], data.action, data.reward))
    assert np.asarray(data.terminated).all() and action.min() >= 0 and action.max() < 40
    assert not np.asarray(holds(goal, np.asarray(data.obs[STATE]).reshape(400, 10))).any()
    # kind 3 is a push; its ball and place follow. An action is 8 * ball + direction; 3 of 8 directions fit a place.
    assert (goal[:, 0] == 3).all()
    right = reward[:, 0] == 1
    fitting = np.array([(1, 4, 5), (2, 5, 7), (3, 6, 7), (0, 4, 6)])  # behind, left, front, right
    fits = (action % 8 == fitting[goal[:, 2]]).any(1) & (action[:, 0] // 8 == goal[:, 1])
    assert (right == fits).all() and right.sum() == summary["successes"]
    assert summary["success"] == summary["successes"] / 400 and 0.04 < summary["success"] < 0.12  # 3 of 40 on average


def test_random_actions_are_refused_where_rules_judge_states(runs):
    class Clevr(runs.Experiment):
        WORLD = "clevr"

    control = Clevr(imagined_by="random", levels=("easy",), kept=("successes",))
    assert runs.who(control) == "random-actions"
    for bad in ({"levels": ("rephrase",)}, {"kept": ("all",)}):
        with pytest.raises(ValueError, match="--levels easy --kept successes"):
            replace(control, **bad)
