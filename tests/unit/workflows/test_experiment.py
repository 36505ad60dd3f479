"""What every kind of run does with its experiment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from llmrl_jax.core.learner import Learner
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunResult
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, experiment_of


LEARNER = Learner(lambda key: key, lambda state: (state, {}), 10)


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=lambda: RunConfig(name="before", out="elsewhere", eval_every=0))
    steps: int = 25
    eval_episodes: int = 2

    def experiment(self):
        return Experiment(self, LEARNER, None, None)


def test_the_experiment_of_a_run_that_was_moved_has_its_folder(tmp_path, monkeypatch):
    (tmp_path / "a" / "after").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    for folder in (tmp_path / "a" / "after", (tmp_path / "a").relative_to(tmp_path / "a") / "after"):
        assert experiment_of(folder, Config()).config.run.folder == tmp_path / "a" / "after"


@dataclass(frozen=True)
class Sharded:
    mesh: str = "data=64"


@dataclass(frozen=True)
class ShardedConfig(Config):
    agent: Sharded = field(default_factory=Sharded)
    mesh: str = "data=1"


def test_a_run_of_more_devices_is_evaluated_on_those_that_are_here(tmp_path):
    """Without the mesh that they cannot make; one that they can is kept."""
    config = experiment_of(tmp_path, ShardedConfig()).config
    assert (config.mesh, config.agent.mesh) == ("data=1", "")


@pytest.mark.parametrize(
    ("changes", "every", "updates"),
    [
        ({}, 0, 3),
        ({"at_ends": True}, 3, 3),
        ({"at_ends": True, "updates": 7}, 7, 7),
        ({"at_ends": True, "during": None}, 0, 3),
        ({"unit": "gradient steps"}, 0, 3),
    ],
    ids=str,
)
def test_updates_and_evaluations_of_a_run(changes, every, updates, tmp_path, monkeypatch):
    """25 steps of 10 in an update are 3 updates; the saved settings are those of the configuration."""
    asked = {}

    def loop(learner, run, **options):
        asked.update(run=run, **options)
        result = RunResult(SimpleNamespace(), 3, 30, 1.0, 1.0, "", tmp_path)
        options["finish"](result)
        return result

    written = {}
    monkeypatch.setattr(experiments, "run_training", loop)
    monkeypatch.setattr(experiments, "write_summary", lambda folder, values: written.update(values))
    x = replace(Config().experiment(), during=lambda state, key: {})
    experiments.train(replace(x, **changes), tmp_path, facts=lambda result: {"more": result.update}, again="so")
    assert (asked["run"].eval_every, asked["num_updates"], asked["again"]) == (every, updates, "so")
    assert (asked["evaluate"] is None) == (every == 0) and asked["full_config"] == Config()
    assert (written["steps"], written["steps_per_second"], written["more"]) == (30, 30.0, 3)
