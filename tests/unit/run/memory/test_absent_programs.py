"""Programs compiled for devices that are absent, of tiny shapes: what each does not contain."""

import importlib.util
import json

import pytest

from tests.absent_reports import SHAPE, reports


LANGUAGE = {"length": 32, "new_tokens": 8, "dtype": "bfloat16"}
QUICK = [
    {"workload": "sft", **LANGUAGE},
    {"workload": "generate", **LANGUAGE},
    {"workload": "dqn", "steps": 2},
    {"workload": "ppo", "steps": 2},
    {"workload": "offline", "steps": 2, "rows": 1000, "batch_size": 32},
]
SLOW = [
    {"workload": "grpo", **LANGUAGE},
    {"workload": "score", **LANGUAGE},
    {"workload": "glam", "steps": 2, **LANGUAGE},
    {"workload": "ellm", "steps": 2},
    {"workload": "bkrl", "steps": 2},
    {"workload": "kalm-ground", **LANGUAGE},
    {"workload": "kalm-imagine", "steps": 2, **LANGUAGE},
    {"workload": "world", "steps": 2},
]


def _spec(name):
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


tpu = pytest.mark.skipif(_spec("libtpu") is None, reason="the compiler for TPUs is of the extra aot-tpu")
gpu = pytest.mark.skipif(_spec("jax_plugins.xla_cuda13") is None, reason="that for GPUs is of the extra aot-cuda")
TARGETS = [pytest.param("v5e:2x4", marks=tpu), pytest.param("h100:1", marks=gpu)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("shape") / "config.json"
    path.write_text(json.dumps(SHAPE))
    return str(path)


def check(cases, target, model):
    for case, report in zip(cases, reports([{"model": model, "batch_size": 8, "target": target, **c} for c in cases])):
        found = report["prediction"]
        assert report["fits"], case
        assert found["callbacks"] == {}, case
        assert found["float64"] == 0, case
        assert found["kernels"] > 10, case
        assert 0 < found["seconds"] < 1, case
        assert 0 <= found["share"] < 1, case


@pytest.mark.parametrize("target", TARGETS)
def test_updates_compile_and_neither_call_the_host_nor_compute_in_float64(target, model):
    check(QUICK, target, model)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_updates_of_systems_do_too(target, model):
    check(SLOW, target, model)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_clevrs_program_is_float64_on_a_gpu_and_another_on_a_tpu(target, model):
    """It shows also that `float64` can be other than 0."""
    (found,) = reports([{"workload": "world", "env": "CLEVR-Robot-v0", "batch_size": 8, "steps": 1, "target": target}])
    assert (found["prediction"]["float64"] > 0) == (target == "h100:1")


@tpu
def test_over_data_only_gradients_are_exchanged(model):
    shared = {"model": model, "workload": "sft", "target": "v5e:2x4", "dtype": "bfloat16", "length": 32}
    one, eight = reports([{**shared, "batch_size": 1}, {**shared, "batch_size": 8, "mesh": "data=8"}])
    assert one["prediction"]["collectives"] == {}
    assert set(eight["prediction"]["collectives"]) == {"all-reduce"}
    adapters = eight["parts"]["adapters"]["per_device"]
    assert eight["prediction"]["collectives"]["all-reduce"]["bytes"] < 2 * adapters
    assert eight["devices"].startswith("8 x TPU")


@tpu
@pytest.mark.slow
def test_too_much_is_refused_with_the_number(model):
    case = {"model": model, "workload": "sft", "target": "v5e:2x4", "batch_size": 65536, "length": 1024}
    report = reports([case])[0]
    assert report["fits"] is False
    assert report["total"] > report["memory"] == int(15.75 * 2**30)
    assert report["prediction"] is None
