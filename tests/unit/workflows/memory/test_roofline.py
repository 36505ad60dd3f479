"""The time of a program by its kernels, and reports side by side."""

import json

import pytest

from llmrl_jax.parallel.absent import KINDS, Kind
from llmrl_jax.workflows.memory.fit import refused_parts
from llmrl_jax.workflows.memory.hlo import Kernel
from llmrl_jax.workflows.memory.roofline import Prediction, compare, differences, seconds, table
from tests.hlo_texts import LOOP, REST


TPU = Kind("tpu", "", flops=1000.0, bandwidth=10.0, memory=1, clock=100.0)
GPU = Kind("gpu", "", flops=1000.0, bandwidth=10.0, memory=1, reached=8.0, launch=0.5)


def kernel(flops, bytes, cycles=None):
    return Kernel("k", "fusion", "", 1, flops, bytes, cycles, "", "")


def test_a_kernel_takes_its_cycles_or_the_longer_of_operations_and_bytes():
    assert seconds(kernel(1e6, 1e6, 700), TPU) == 7
    assert seconds(kernel(3000, 20), TPU) == 3
    assert seconds(kernel(1000, 20), TPU) == 2
    assert seconds(kernel(3000, 16), GPU) == 3.5
    assert seconds(kernel(1000, 16, 700), GPU) == 2.5


def test_a_program_sums_its_kernels_with_their_loops():
    found = Prediction.of(LOOP, GPU)
    flops, moved = 3 * 1024, 3 * 896  # of the product
    # the body also adds to its counter: it reads two numbers of 4 bytes and writes one
    assert found.flops == flops
    assert found.bytes == moved + 3 * (4 + 4 + 4)
    assert found.kernels == 3 + 3
    assert found.seconds == pytest.approx(3 * (896 / 8 + 0.5) + 3 * (12 / 8 + 0.5))
    assert found.share == pytest.approx(flops / 1000 / found.seconds)
    assert list(found.loops) == ["while.7 x 3"]
    assert found.slowest[0]["source"] == "f/mul"
    assert found.largest[0] == {"bytes": 256, "array": "f32[4,16]", "source": "f/mul"}
    assert (found.callbacks, found.float64, found.unknown) == ({}, 0, 0)


def test_a_loop_that_is_meant_to_run_once_is_not_unknown():
    text = LOOP.replace("direction=LT", "direction=GT")
    assert Prediction.of(text, GPU).unknown == 1
    assert Prediction.of(text, GPU, once=1).unknown == 0
    assert Prediction.of(text, GPU).uncounted == {"while.7 x ?": pytest.approx((896 / 8 + 0.5) + (12 / 8 + 0.5))}
    assert Prediction.of(text, GPU, once=1).uncounted == {}


def test_exchanges_by_kind():
    found = Prediction.of(REST, TPU)
    assert found.collectives == {"all-gather": {"count": 1, "bytes": 1280}, "all-reduce": {"count": 1, "bytes": 512}}
    assert found.exchanged[0]["op"] == "all-gather"
    assert (found.callbacks, found.float64) == ({"xla_ffi_python_gpu_callback": 1}, 1)
    assert any("float64" in line for line in found.lines())


def test_the_h200_is_predicted_as_it_was_measured():
    """SmolLM2-135M, one row: a step of decoding moves 0.66 GB in 834 kernels and took 1.37 ms (docs/scaling.md)."""
    total = sum(seconds(kernel(0, 0.66e9 / 834), KINDS["h200"]) for _ in range(834))
    assert total == pytest.approx(1.37e-3, rel=0.05)


@pytest.mark.parametrize(
    ("said", "bytes"),
    [
        ("Ran out of memory in memory space hbm. Used 21.90G of 15.75G hbm. Exceeded by 6.15G.", int(21.9 * 2**30)),
        ("the total memory required for HLO temporaries (128.00G) exceeds available HBM (15.75G).", 128 << 30),
        ("Used 900.5M of 16M vmem", int(900.5 * 2**20)),
    ],
)
def test_the_sum_of_a_program_that_isrefused_parts(said, bytes):
    assert list(refused_parts(RuntimeError(f"RESOURCE_EXHAUSTED: {said}")).values()) == [(bytes, None)]


def test_other_errors_of_a_compiler_stay_errors():
    with pytest.raises(RuntimeError, match="INTERNAL"):
        refused_parts(RuntimeError("INTERNAL: Used 21.90G"))
    with pytest.raises(RuntimeError, match="no number"):
        refused_parts(RuntimeError("RESOURCE_EXHAUSTED: no number"))


def report(total, seconds, **settings):
    prediction = {"seconds": seconds, "share": 0.5, "flops": 1e9, "bytes": 2e9, "kernels": 7, "collectives": {}}
    parts = {"activations": {"per_device": total, "one_copy": None}}
    return {
        "fits": True,
        "total": total,
        "parts": parts,
        "seconds": 3.0,
        "prediction": prediction,
        "settings": settings,
    }


def test_two_reports_are_compared_number_by_number(tmp_path):
    a, b = report(1 << 30, 0.2, mesh="", remat=False), report(3 << 29, 0.1, mesh="data=8", remat=False)
    b["prediction"]["collectives"] = {"all-reduce": {"count": 2, "bytes": 4096}}
    assert "commit" not in differences(a, b)
    a, b = {"commit": "aaaaaaa", **a}, {"commit": "bbbbbbb", **b}
    rows = differences(a, b)
    assert rows["commit"] == ("aaaaaaa", "bbbbbbb")
    assert rows["mesh"] == ("", "data=8")
    assert "remat" not in rows
    assert rows["memory"] == (1 << 30, 3 << 29)
    assert rows["all-reduce: bytes"] == (None, 4096)
    paths = tuple(str(tmp_path / name) for name in ("a.json", "b.json"))
    for path, content in zip(paths, (a, b)):
        with open(path, "w") as file:
            json.dump(content, file)
    assert compare(paths) == rows
    lines = {line.split("  ")[0]: line.split() for line in table(rows, ("a", "b")).splitlines()}
    assert lines["memory"][-1] == "1.50"
    assert lines["seconds"] == ["seconds", "200", "ms", "100", "ms", "0.50"]
    assert lines["all-reduce: bytes"][-3] == "-"


def test_other_files_arerefused_parts(tmp_path):
    for content, said in (("{", r"x\.json.*llmrl lm fit"), ("[]", r"x\.json.*no total")):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ValueError, match=said):
            compare((str(tmp_path / "x.json"),) * 2)
