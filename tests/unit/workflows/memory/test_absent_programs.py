"""Programs compiled for devices that are absent, of tiny shapes: what each does not contain."""

import functools
import importlib.util
import json

import pytest

from llmrl_jax.workflows.memory import hlo
from tests.absent_reports import SHAPE, reports
from tests.contents import activations, decoding_loops, gradient, score_arrays, weight_copies


LENGTH, ROWS = 384, 3
"""Tokens of a row of text, and rows that decode: no other size is a multiple of them (`tests.contents`)."""
LANGUAGE = {"length": 32, "new_tokens": 8, "dtype": "bfloat16"}
QUICK = [
    {"workload": "sft", **LANGUAGE, "length": LENGTH},
    {"workload": "generate", **LANGUAGE, "batch_size": ROWS},
    {"workload": "dqn", "steps": 2},
    {"workload": "ppo", "steps": 2},
    {"workload": "offline", "steps": 2, "rows": 1000, "batch_size": 32},
]
SLOW = [
    {"workload": "grpo", **LANGUAGE},
    {"workload": "score", **LANGUAGE},
    {"workload": "glam", "steps": 2, **LANGUAGE},
    {"workload": "agent", "steps": 8, **LANGUAGE, "length": 256, "batch_size": 64},
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
    path.write_text(json.dumps(SHAPE | {"num_hidden_layers": 5}))  # one layer more than those that are unrolled
    return str(path)


@pytest.fixture(scope="module")
def compiled(model):
    """The reports of cases for a target, compiled once."""

    @functools.cache
    def of(target, slow=False):
        cases = [{"model": model, "batch_size": 8, "target": target, **c} for c in (SLOW if slow else QUICK)]
        return {case["workload"]: report for case, report in zip(cases, reports(cases))}

    return of


def check(compiled):
    for case, report in compiled.items():
        found = report["prediction"]
        assert report["fits"], case
        assert found["callbacks"] == {}, case
        assert found["float64"] == 0, case
        assert found["kernels"] > 10, case
        assert 0 < found["seconds"] < 1, case
        assert 0 <= found["share"] < 1, case


@pytest.mark.parametrize("target", TARGETS)
def test_updates_compile_and_neither_call_the_host_nor_compute_in_float64(target, compiled):
    check(compiled(target))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_updates_of_systems_do_too(target, compiled):
    check(compiled(target, slow=True))


def reads_weights(contents):
    """Return whether products of a decoding loop read the weights: its operations are those of all of them, for each
    row."""
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    loops = decoding_loops(contents)
    return sum(k.flops * k.times for k in contents.kernels if k.loop in loops) >= 2 * ROWS * 8 * (5 * layer + 512 * 64)


@pytest.mark.parametrize("target", TARGETS)
def test_decoding_copies_no_weight(target, compiled):
    """A GPU reads an array of each layer's, a TPU the stack.

    Of the seven matrices of a layer a TPU's compiler moves one, of keys or values, to vector memory before the product:
    main memory is read once all the same."""
    contents = hlo.read(compiled(target)["generate"]["program"])
    assert reads_weights(contents)
    copies = weight_copies(contents, ROWS, 64 * 32)
    if target == "v5e:2x4":
        assert len(copies) <= 1
        assert all("S(1)" in k.result and k.bytes < 2 * 64 * 32 + 64 for k in copies)
    else:
        assert copies == []


@tpu
def test_fused_attention_writes_no_scores(compiled):
    contents = hlo.read(compiled("v5e:2x4")["sft"]["program"])
    assert score_arrays(contents, LENGTH) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_clevrs_program_is_float64_on_a_gpu_and_another_on_a_tpu(target, model):
    """It shows also that `float64` can be other than 0."""
    (found,) = reports([{"workload": "world", "env": "CLEVR-Robot-v0", "batch_size": 8, "steps": 1, "target": target}])
    assert (found["prediction"]["float64"] > 0) == (target == "h100:1")


MESH_ROWS, WIDTH = 104, 64
"""Rows over eight devices, a multiple of 13 as no size of a model is, and the smallest width of an activation."""


@tpu
def test_only_gradients_are_exchanged_over_data_and_weights_over_fsdp(model):
    shared = {"model": model, "workload": "sft", "target": "v5e:2x4", "dtype": "bfloat16", "length": 32}
    meshes = ({"batch_size": 13}, *({"batch_size": MESH_ROWS, "mesh": mesh} for mesh in ("data=8", "fsdp=8")))
    one, data, fsdp = reports([{**shared, **mesh} for mesh in meshes])
    assert one["prediction"]["collectives"] == {}
    assert set(data["prediction"]["collectives"]) == {"all-reduce"}
    adapters = data["parts"]["adapters"]["per_device"]
    assert data["prediction"]["collectives"]["all-reduce"]["bytes"] < 2 * adapters
    assert data["devices"].startswith("8 x TPU")
    weights = hlo.read(fsdp["program"])
    assert activations(weights, MESH_ROWS, WIDTH) == []
    base = fsdp["parts"]["frozen parameters"]
    assert sum(c.bytes * c.times for c in weights.collectives if c.op == "all-gather") >= base["one_copy"]
    assert 7 * base["per_device"] < base["one_copy"]


@tpu
@pytest.mark.slow
def test_no_system_exchanges_activations(model):
    language = {"model": model, "mesh": "fsdp=8", **LANGUAGE}
    cases = [{"workload": name, "mesh": "data=8", "steps": 4} for name in ("ppo", "dqn", "ellm", "bkrl")]
    cases += [{"workload": "grpo", **language}, {"workload": "glam", "steps": 4, **language}]
    for case, report in zip(cases, reports([{"batch_size": MESH_ROWS, "target": "v5e:2x4", **c} for c in cases])):
        contents = hlo.read(report["program"])
        assert activations(contents, MESH_ROWS, WIDTH) == [], case
        if case["mesh"] == "data=8":
            assert gradient(contents) >= report["trained"], case


@tpu
@pytest.mark.slow
def test_too_much_is_refused_with_the_number(model):
    case = {"model": model, "workload": "sft", "target": "v5e:2x4", "batch_size": 65536, "length": 1024}
    report = reports([case])[0]
    assert report["fits"] is False
    assert report["total"] > report["memory"] == int(15.75 * 2**30)
    assert report["prediction"] is None
