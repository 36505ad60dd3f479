"""`llmrl lm fit` against arrays that really lie on eight devices, and the programs that a run compiles."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.cli.commands import lm as _fit
from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.core.files import byte_text
from llmrl_jax.parallel import batch_sharding, make_mesh, shardings
from llmrl_jax.run.chunk import make_chunk
from llmrl_jax.tuning import Packed, SFTConfig, make_sft
from llmrl_jax.workflows.memory import config as sizes, fit as advice
from llmrl_jax.workflows.memory.config import FitConfig
from llmrl_jax.workflows.memory.fit import Fit, fit
from llmrl_jax.workflows.memory.programs import PROGRAMS, held, setting
from tests.compilation import QUICK


LAYERS = 5  # as many as are scanned: written out, they take twice as long to compile
CONFIG = lm.LlamaConfig(64, 128, 256, LAYERS, 4, 2, max_position_embeddings=64)
MESH = "data=2,fsdp=2,tensor=2"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a config.json and nothing else."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    return str(folder)


def on_device(tree) -> int:
    """Bytes that the first device really holds of a tree's arrays."""
    first, total = jax.devices()[0], 0
    for x in jax.tree.leaves(tree):
        x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        total += sum(shard.data.nbytes for shard in x.addressable_shards if shard.device == first)
    return total


def placed(llama, mesh):
    fresh = jax.jit(llama.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return jax.device_put(fresh, shardings(llama.abstract(), llama.logical_axes(), mesh))


@pytest.mark.parametrize("tune", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_fine_tuning_holds_what_it_says(model, tune):
    found = fit(FitConfig(model, batch_size=8, length=16, tune=tune, mesh=MESH, microbatches=2))
    mesh = make_mesh(MESH)
    llama = lm.Llama(CONFIG, lora=lm.LoRAConfig() if tune == "lora" else None)
    rows = np.zeros((8, 16), np.int32)
    data = Packed(rows, rows, rows, rows > 0)
    learner = make_sft(SFTConfig(batch_size=8, microbatches=2), llama, placed(llama, mesh), data, 10, mesh)
    state = learner.init(jax.random.key(0))
    parts = {name: part for name, (part, _) in found.parts.items()}
    trained = "adapters" if tune == "lora" else "parameters"
    assert parts[trained] == on_device(state.params)
    assert parts["optimiser"] == on_device(state.opt_state)
    assert parts.get("frozen parameters", 0) == on_device(state.frozen["base"])
    bare = state.replace(params=(), opt_state=(), frozen=())
    assert parts["data and counters"] == on_device((state.frozen["data"], bare))
    # the program is the one that a run would compile from these arrays
    rest = state.replace(frozen=())
    kept = jax.tree.map(lambda x: x.sharding, rest)
    jitted = jax.jit(make_chunk(learner, 1), donate_argnums=0, out_shardings=(kept, None))
    stats = jitted.lower(rest, state.frozen, np.int32(1)).compile().memory_analysis()
    assert parts["activations and gradients"] == stats.temp_size_in_bytes > 0
    # by hand: every matrix in four parts, norms whole
    matrices = 2 * 64 * 128 + LAYERS * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 256)
    norms = (2 * LAYERS + 1) * 128
    base = "frozen parameters" if tune == "lora" else "parameters"
    assert found.parts[base] == (4 * (matrices // 4 + norms), 4 * (matrices + norms))
    assert found.parameters == matrices + norms
    assert found.trained == (found.parameters if tune == "full" else LAYERS * 16 * (128 + 128 + 128 + 64))


def test_sampling_counts_the_cache_once_and_in_parts(model):
    config = FitConfig(model, "generate", batch_size=8, length=16, new_tokens=8, samples=2, mesh=MESH)
    found = fit(config)
    mesh, llama = make_mesh(MESH), lm.Llama(CONFIG)
    variables = placed(llama, mesh)
    tokens, lengths = (
        jax.device_put(x, batch_sharding(mesh)) for x in (np.ones((8, 16), np.int32), np.full(8, 16, np.int32))
    )

    @jax.jit
    def begin(variables, tokens, lengths):
        read = llama.apply(
            variables, tokens, lengths=lengths, cache=lm.Cache.create(CONFIG, 8, 16), at=lengths[:, None] - 1
        )
        branches = lm.DecodeState.create(read.cache, lengths, 2, 8)
        return llama.apply(variables, jnp.zeros((8, 2), jnp.int32), branches, method=lm.Llama.decode)[1]

    part, whole = found.parts["cache"]
    assert part == on_device(begin(variables, tokens, lengths))
    # layers x rows x (prompt + samples x new) x heads x size, keys and values; lengths and a counter beside them
    assert whole == 2 * LAYERS * 8 * (16 + 2 * 8) * 2 * 32 * 4 + 8 * 4 + 4
    assert math.isclose(part, whole / 8, rel_tol=0.01)
    assert found.parts["parameters"][0] == on_device(variables)
    assert "trained" not in found.table() and found.parts["activations"][0] > 0


@pytest.mark.parametrize("workload", ["score", pytest.param("grpo", marks=pytest.mark.slow)])
def test_scoring_and_grpo(model, workload):
    found = fit(FitConfig(model, workload, batch_size=4, length=8, new_tokens=8, samples=2, mesh="data=2,fsdp=2"))
    assert found.parts["optimiser"][0] == 2 * found.parts["adapters"][0] + 4
    assert ("cache" in found.parts) == (workload == "grpo")
    assert found.parts["activations and gradients"][0] > 0


def test_types_and_quantised_bases(model):
    def base(**changes):
        config = FitConfig(model, "score", batch_size=4, length=8, mesh="tensor=2", **changes)
        return held(setting(config, CONFIG, jax.devices()).variables["params"])[0]

    variables = placed(lm.Llama(CONFIG), make_mesh("tensor=2"))
    assert base() == base(dtype="bfloat16", param_dtype="float32") == on_device(variables)
    assert base(dtype="bfloat16") == base() // 2
    for kind in ("int8", "nf4"):
        coded = lm.quantize(variables["params"], kind)
        assert base(quantize=kind) == on_device(coded) < base() // 2


def test_the_verdict(model, capsys, monkeypatch):
    compile_score, made = PROGRAMS["score"], []

    def once(s):
        made.append(made[0] if made else compile_score(s))
        return made[0]

    monkeypatch.setitem(PROGRAMS, "score", once)  # three measurements of one program
    config = WorkloadConfig(model, "score", batch_size=4, length=8, advise=False)
    found = fit(config)
    assert found.fits is None and "give --memory" in found.table()
    just = replace(found, memory=found.total)
    assert just.fits and "It fits, barely: 100%" in just.table()
    assert not replace(found, memory=found.total - 1).fits
    assert _fit.fit(replace(config, memory="1GiB")) == 0
    assert "It fits: " in capsys.readouterr().out
    assert _fit.fit(replace(config, memory=str(found.total - 1))) == 1
    assert len(made) == 3
    out = capsys.readouterr().out
    assert "It does not fit: 100%" in out and f"total {byte_text(found.total)}" in " ".join(out.split())


def test_what_helps_is_compiled_and_compared(model, monkeypatch):
    """Every knob by itself; all together, one after another, where none is enough."""

    def weigh(config, shape, devices):
        if config.dtype == "bfloat16":
            raise ValueError("this one does not divide")
        total = 1000 - 200 * config.remat - 10 * (config.tune == "lora") - 150 * (config.mesh == "fsdp=4")
        total += 5 * (config.microbatches > 1)
        return Fit(config, {"all": (total, None)}, 1, 1, "", sizes.parse_bytes(config.memory), 0.0)

    monkeypatch.setattr(advice, "compiled_fit", weigh)

    def helps(memory, **changes):
        config = FitConfig(model, batch_size=8, length=32, tune="full", mesh="data=2,fsdp=2", memory=memory, **changes)
        return [" ".join(line.split()) for line in advice.advice(weigh(config, None, None))]

    alone = ["--remat 800 B", "--mesh fsdp=4 850 B", "--tune lora 990 B"]
    assert helps("800B") == ["--remat 800 B fits", *alone[1:]]
    assert helps("660B") == [*alone, "--remat --mesh fsdp=4: 650 B, fits"]
    assert helps("600B") == [*alone, "--remat --mesh fsdp=4 --tune lora: 640 B, still too much"]


def test_the_knobs_are_those_that_apply(model):
    def flags(**changes):
        return [flag for flag, _ in advice.knobs(FitConfig(model, **changes))]

    assert flags(batch_size=16, length=512, mesh="data=4,tensor=2") == [
        "--remat", "--head-chunk 128", "--microbatches 4", "--mesh fsdp=4,tensor=2", "--dtype bfloat16",
        "--quantize int8",
    ]  # fmt: skip
    assert flags(workload="generate", dtype="bfloat16") == ["--batch-size 8", "--quantize int8"]
    assert flags(tune="full", remat=True, batch_size=1, length=7) == ["--dtype bfloat16", "--tune lora"]


@pytest.mark.parametrize(
    ("text", "n"),
    [("16GiB", 16 * 2**30), ("80GB", 80 * 10**9), ("1.5 MiB", 3 * 2**19), ("1000", 1000), ("2g", 2 * 10**9)],
)
def test_sizes(text, n):
    assert sizes.parse_bytes(text) == n
    assert byte_text(2**30) == "1.0 GiB" and byte_text(1000) == "1000 B"
    assert (sizes.count(1_100_048_384), sizes.count(950)) == ("1.1B", "950")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "lots"}, "memory.*'lots'"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"length": 100}, "100 positions.*64"),
        ({"mesh": "data=2", "batch_size": 3}, "3 rows.*data 2"),
        ({"mesh": "tensor=3"}, "8 present"),
        ({"mesh": "data=16"}, "16.*8.*--devices 16"),
        ({"devices": 9}, "xla_force_host_platform_device_count=9"),
        ({"quantize": "nf4", "tune": "full"}, "nf4.*frozen base"),
        ({"model": "nowhere"}, "config.json.*'nowhere'"),
        ({"mesh": "tensor=8"}, "not divide"),
    ],
)
def test_what_cannot_be(model, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        fit(FitConfig(**{"model": model, "length": 16, **changes}))


@pytest.mark.slow
def test_a_config_alone_is_read_and_devices_are_simulated(model):
    """In a new process, in which no device is in use yet."""
    env = {n: v for n, v in os.environ.items() if n != "JAX_PLATFORMS"} | {"XLA_FLAGS": " ".join(QUICK)}
    program = [sys.executable, "-m", "llmrl_jax.cli.main", "lm", "fit"]
    args = ["--model", f"{model}/config.json", "--devices", "4", "--mesh", "fsdp=4", "--length", "16"]
    args += ["--workload", "score"]
    done = subprocess.run([*program, *args, "--memory", "1GiB"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "4 x cpu (cpu), fsdp=4" in done.stdout and "It fits" in done.stdout
