"""`llmrl kalm collect --world metaworld`, whose actions are continuous, from the command line to the arrays."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from envs_jax import metaworld
from llmrl_jax.cli.main import main
from llmrl_jax.systems.kalm import collect
from llmrl_jax.systems.kalm.train import get_dataset


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is None, reason="its scenes need the package metaworld")
def test_recorded_episodes_of_continuous_actions(tmp_path):
    args = ["--world", "metaworld", "--episodes", "4", "--together", "4", "--run.out", str(tmp_path)]
    assert main(["kalm", "collect", *args, "--run.name", "recorded"]) == 0
    folder = tmp_path / "recorded"
    world, level, data = collect.read_episodes(folder)
    summary = json.loads((folder / "summary.json").read_text())
    length = np.asarray(data.length)
    assert (world.name, level, len(data)) == ("metaworld", "real", 4) and summary["steps"] == length.sum()
    assert 1 < length.min() and length.max() <= 100

    recorded, imagined = get_dataset("real", folder, encoder="hashed")
    steps = length.max()
    sizes = {"observations": 91 + 384, "actions": 4, "rewards": 1, "masks": 1, "terminals": 1}
    assert imagined is None and len(recorded["instructions"]) == 4
    assert {name: recorded[name].shape for name in sizes} == {name: (4, steps, n) for name, n in sizes.items()}
    actions, masks = recorded["actions"], recorded["masks"]
    assert actions.dtype == recorded["observations"].dtype == np.float32
    assert np.abs(actions).max() <= 1 and len(np.unique(actions)) > steps  # no numbers of actions
    np.testing.assert_array_equal(masks[..., 0], np.arange(steps) < length[:, None])
    np.testing.assert_array_equal(recorded["observations"][..., :91], np.asarray(data.obs["state"]))
    sentences = recorded["observations"][..., 91:]
    assert sentences[:, 0].any(-1).all() and not sentences[~masks[..., 0]].any()
    solved = (recorded["terminals"] & masks).any((1, 2))
    assert summary["success"] == solved.mean() > 0.5
    np.testing.assert_allclose(np.where(masks, recorded["rewards"], 0).sum((1, 2))[solved], 10, atol=1e-3)
    said = {one.text: one.task for one in metaworld.level("real").instructions}
    goals = np.asarray(data.obs["goal"])[:, 0, 0]
    assert [said[text] for text in recorded["instructions"]] == [metaworld.NAMES[goal] for goal in goals]
