"""The experiment with offline RL: which policies it chooses, what it records, and how it compares."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.paths import ROOT


@pytest.fixture
def modules(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return {name: importlib.import_module(f"offline_{name}") for name in ("policies", "data", "mujoco")}


def test_the_first_medium_policy_and_equal_stages_before_it(modules):
    sampled = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 7, 29, 30, 28]
    seen = [{"update": 250 * i, "sampled": x} for i, x in enumerate(sampled)]
    stages = {"stage-1": 500, "stage-2": 1000, "stage-3": 1500, "stage-4": 2000}
    assert modules["data"].chosen(seen, 9.5) == {**stages, "medium": 2500, "expert": 3250}
    with pytest.raises(ValueError, match="train longer"):
        modules["data"].chosen(seen, 31)
    with pytest.raises(ValueError, match="train longer"):
        modules["data"].chosen(seen, 2)


def test_an_actor_is_read_as_it_was_written(modules, tmp_path):
    rng = np.random.default_rng(0)
    layers = [{"kernel": rng.normal(size=(2, 3)), "bias": rng.normal(size=3)} for _ in range(2)]
    modules["policies"].write_actor(tmp_path / "actor.npz", layers)
    read = modules["policies"].read_actor(tmp_path / "actor.npz")
    assert jax.tree.structure(read) == jax.tree.structure(layers)
    for found, wanted in zip(jax.tree.leaves(read), jax.tree.leaves(layers)):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_recorded_steps_are_those_of_whole_episodes_and_a_cut_one_is_truncated(modules):
    """Pendulum's episodes have 200 steps."""
    data = modules["data"]
    steps, returns = data.played("Pendulum-v1", None, jax.random.key(0), 250)
    assert {name: len(x) for name, x in steps.items()} == dict.fromkeys(
        ("obs", "action", "reward", "terminated", "truncated", "next_obs"), 250
    )
    assert not steps["terminated"].any()
    assert np.flatnonzero(steps["truncated"]).tolist() == [199, 249]
    follows = np.all(steps["next_obs"][:-1] == steps["obs"][1:], axis=1)
    assert np.flatnonzero(~follows).tolist() == [199]
    assert returns == [pytest.approx(steps["reward"][:200].sum(), rel=1e-5)]
    assert np.abs(steps["action"]).max() > 1.9  # torques are from -2 to 2
    again, _ = data.played("Pendulum-v1", None, jax.random.key(0), 250)
    assert all(np.array_equal(steps[name], again[name]) for name in steps)


def test_two_sides_are_compared_by_their_standard_errors(modules):
    experiment = modules["mujoco"]
    ours = experiment.summary([1.0, 3.0], 0.0, 4.0)  # the standard error of two is half their distance
    theirs = experiment.summary([4.0, 6.0], 0.0, 4.0)
    assert (ours["mean"], ours["standard_error"], ours["score"]) == (2.0, 1.0, 50.0)
    assert experiment.compared(ours, theirs) == {
        "difference": -3.0,
        "standard_error": 1.4,
        "within_two_standard_errors": False,
    }
    near = experiment.compared(ours, experiment.summary([3.5, 5.5], 0.0, 4.0))
    assert near["within_two_standard_errors"]
    assert experiment.summary([1.0], 0.0, 4.0)["standard_error"] is None


def test_results_of_other_settings_are_refused(modules, tmp_path):
    made_once, path = modules["mujoco"].made_once, tmp_path / "results.json"
    assert made_once(path, {"beta": 1.0}, lambda: {"returns": [2.0]})["returns"] == [2.0]
    assert made_once(path, {"beta": 1.0}, dict)["returns"] == [2.0]
    with pytest.raises(ValueError, match=r"results.json.*beta: 1.0 -> 2.0"):
        made_once(path, {"beta": 2.0}, dict)
