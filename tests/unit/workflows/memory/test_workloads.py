"""Workloads beyond language models alone, compiled for the devices of this process."""

import json
import typing

import pytest

from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.cli.workloads import WORKLOADS, fit
from llmrl_jax.workflows.memory.config import LANGUAGE
from tests.absent_reports import SHAPE


def test_every_workload_has_a_program():
    names = typing.get_args(typing.get_type_hints(WorkloadConfig)["workload"])
    assert set(names) == {*LANGUAGE, *WORKLOADS}


def test_an_update_of_ppo_holds_its_network_its_moments_and_half_of_the_environments():
    one, two = (fit(WorkloadConfig(workload="ppo", batch_size=8, steps=4, mesh=mesh)) for mesh in ("", "data=2"))
    trained = one.trained
    assert trained == one.parameters == two.trained > 1000
    assert one.parts["parameters"] == (4 * trained, 4 * trained)
    moments, _ = one.parts["optimiser"]
    assert 8 * trained <= moments < 8 * trained + 64
    part, whole = two.parts["data and counters"]
    assert part < whole == one.parts["data and counters"][0]
    assert one.prediction is None and one.fits is None


def test_offline_steps_hold_the_recorded_ones():
    found = fit(WorkloadConfig(workload="offline", algo="td3+bc", batch_size=16, steps=2, rows=500))
    frozen, _ = found.parts["frozen parameters"]
    assert 500 * 4 * (17 + 6 + 1 + 17) <= frozen < 500 * 4 * (17 + 6 + 1 + 17) + 500 * 16
    for options, message in (({"algo": "ppo"}, "workload offline.*awac"), ({"mesh": "data=2"}, "one device.*--mesh")):
        with pytest.raises(ValueError, match=message):
            fit(WorkloadConfig(workload="offline", **options))


def test_imagined_episodes_read_the_model_that_they_are_given(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    options = {"model": str(tmp_path / "config.json"), "batch_size": 4, "length": 8, "steps": 2}
    found = fit(WorkloadConfig(workload="kalm-imagine", **options))
    assert found.trained == 0
    slots = 64 * (10 + 1) + 40 * 64 + 10 * (64 + 1) + 40 * (64 + 1)  # in: states, actions; out: states, actions
    assert found.parts["parameters"][0] == 4 * found.parameters
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert found.parameters == 512 * 64 + 2 * layer + 64 + slots
