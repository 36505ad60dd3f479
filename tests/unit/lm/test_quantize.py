"""Quantised bases: everything that runs on them, beside the same on their floats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from llmrl_jax.lm import (
    Candidates,
    Llama,
    LlamaConfig,
    LoRAConfig,
    SamplingConfig,
    generate,
    load,
    load_adapter,
    merge,
    save_adapter,
    save_hf,
    score,
)
from llmrl_jax.lm.lora import TARGETS
from llmrl_jax.lm.quantize import (
    QUANTIZABLE,
    Quantized,
    dequantize,
    matmul,
    nbytes,
    quantize,
    quantized_shardings,
)
from llmrl_jax.parallel import batch_sharding, make_mesh, shardings
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import DEMO, EmbeddedConfig
from llmrl_jax.tuning import Example, SFTConfig, make_sft, pack
from tests.lm_random import random_variables
from tests.unit.lm.test_weights_memory import sparse


# Qwen's: with biases. 256 inputs of down_proj are 4 blocks, the others' 128 are 2.
CONFIG = LlamaConfig(48, 128, 256, 3, 4, 2, max_position_embeddings=32, model_type="qwen2")
ADAPTERS = LoRAConfig(rank=2, targets=TARGETS)
MODEL = Llama(CONFIG, lora=ADAPTERS, unroll=1)
TOKENS = np.random.default_rng(1).integers(0, 48, (8, 9)).astype(np.int32)
LENGTHS = np.array([9, 1, 5, 7, 2, 9, 8, 3], np.int32)
CANDIDATES = Candidates([[3, 4], [3, 5], [6]])


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL, scale=0.1)


@pytest.fixture(scope="module")
def quantized(variables):
    """By kind: everything that may be quantised, is."""
    return {kind: quantize(variables["params"], kind, targets=QUANTIZABLE) for kind in ("int8", "nf4")}


@pytest.fixture(scope="module")
def floats(quantized):
    """By kind: what the quantised parameters compute with."""
    return {kind: jax.jit(dequantize)(params) for kind, params in quantized.items()}


def close(a, b, tolerance):
    """Within `tolerance` of the largest value of each array. Tolerances leave room for processors: those of 2e-5, found
    on an AMD, failed on an Intel, by a tenth where it was looked at."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max()), *held(a, b))


def held(*trees):
    """The same trees as NumPy arrays: each operation on a jax array of another shape is a program to compile."""
    return jax.tree.map(np.asarray, trees)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_the_memory_is_as_computed(variables, quantized):
    """8.5 and 4.5 bits for each weight of the matrices, and floats for the rest."""
    params = variables["params"]
    weights = CONFIG.matmul_params
    rest = 4 * (sum(x.size for x in jax.tree.leaves(params)) - weights)
    assert nbytes(params) == 4 * weights + rest
    assert nbytes(quantized["int8"]) == weights * 17 // 16 + rest
    assert nbytes(quantized["nf4"]) == weights * 9 // 16 + rest
    abstract = jax.eval_shape(lambda p: quantize(p, "nf4", targets=QUANTIZABLE), MODEL.abstract()["params"])
    assert nbytes(abstract) == nbytes(quantized["nf4"])
    layers_only = quantize(params, "nf4")
    assert not isinstance(layers_only["lm_head"]["kernel"], Quantized)
    assert isinstance(layers_only["layers"]["self_attn"]["o_proj"]["kernel"], Quantized)
    assert quantized["nf4"]["layers"]["self_attn"]["o_proj"]["kernel"].shape == (3, 4, 32, 128)


# --- the model --------------------------------------------------------------------------------------------------------


def test_the_model_computes_what_it_computes_on_the_same_floats(variables, quantized, floats):
    """With its layers written out, where only full matrices take in their adapters; tests of gradients scan them."""
    model = MODEL.clone(unroll=3)
    apply = jax.jit(lambda p: model.apply({"params": p, "lora": variables["lora"]}, TOKENS, lengths=LENGTHS).logits)
    found = np.asarray(apply(quantized["nf4"]))
    close(found, apply(floats["nf4"]), 1e-4)
    assert np.abs(found - apply(variables["params"])).max() > 1e-3


@pytest.mark.slow
def test_sampling_is_that_of_the_same_floats(variables, quantized, floats):
    sampling = SamplingConfig(max_new_tokens=6, samples=2)
    found, want = (
        generate(MODEL, {**variables, "params": params}, TOKENS, LENGTHS, jax.random.key(0), sampling)
        for params in (quantized["nf4"], floats["nf4"])
    )
    same(found.tokens, want.tokens)
    close(found.log_probs, want.log_probs, 1e-4)


@jax.jit
def outcome(lora, params, tokens, lengths):
    def loss(lora):
        scores = score(MODEL, {"params": params, "lora": lora}, tokens, lengths, CANDIDATES)
        return scores.sum.mean() + scores.hidden.mean(), scores.sum

    return jax.value_and_grad(loss, has_aux=True)(lora)


@pytest.mark.parametrize("kind", [pytest.param("int8", marks=pytest.mark.slow), "nf4"])
def test_scores_and_adapters_gradients_are_those_on_the_same_floats(variables, quantized, floats, kind):
    found = outcome(variables["lora"], quantized[kind], TOKENS, LENGTHS)
    want = outcome(variables["lora"], floats[kind], TOKENS, LENGTHS)
    close(found, want, 1e-4)  # full matrices take in their adapters before the product
    assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(found[1]))


def test_the_backward_pass_keeps_no_floats_of_the_base(variables, quantized, floats):
    """In the traced program there is no array of a layer stack's weights, as plain differentiation would keep."""

    def shapes(params):
        text = str(jax.make_jaxpr(lambda lora: outcome(lora, params, TOKENS, LENGTHS)[1])(variables["lora"]))
        return [s for s in ("f32[3,128,256]", "f32[3,256,128]") if s in text]

    assert shapes(quantized["nf4"]) == []
    assert shapes(floats["nf4"]) == ["f32[3,128,256]", "f32[3,256,128]"]


def test_a_quantised_base_has_no_gradient(quantized):
    kernel = quantized["int8"]["lm_head"]["kernel"]
    x = jnp.ones((2, 128))
    scales = jax.jit(jax.grad(lambda s: matmul(x, kernel.replace(scales=s), jnp.float32).sum()))(kernel.scales)
    assert not np.any(scales)


def test_merging_gives_floats(variables, quantized, floats):
    """`W + s A B` of what the base computes with, in float32."""
    merged, wanted = (
        jax.jit(lambda params: merge(params, variables["lora"], ADAPTERS)["layers"])(params)
        for params in (quantized["nf4"], floats["nf4"])
    )
    close(merged, wanted, 1e-6)
    assert merged["mlp"]["up_proj"]["kernel"].dtype == jnp.float32


# --- the mesh ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param("int8", marks=pytest.mark.slow), "nf4"])
def test_the_mesh_changes_nothing(variables, quantized, kind):
    mesh = make_mesh("data=2,fsdp=2,tensor=2")
    spread = jax.device_put(variables, shardings(MODEL.abstract(), MODEL.logical_axes(), mesh))
    there = quantize(spread["params"], kind, targets=QUANTIZABLE)
    same(there, quantized[kind])
    places = quantized_shardings(quantized[kind], MODEL.logical_axes()["params"], mesh)
    jax.tree.map(lambda x, place: pytest.fail(f"{x.sharding}") if x.sharding != place else None, there, places)
    down = there["layers"]["mlp"]["down_proj"]["kernel"]
    assert down.codes.shape[1] == 4 and down.codes.addressable_shards[0].data.shape[1] == 2  # tensor, in whole blocks
    assert nbytes(jax.tree.map(lambda x: x.addressable_shards[0].data, down)) == nbytes(down) // 4
    if kind == "int8":
        return  # its product is the same program
    with jax.set_mesh(mesh):
        rows = jax.device_put((TOKENS, LENGTHS), batch_sharding(mesh, size=8))
        found = outcome(spread["lora"], there, *rows)
    close(found, outcome(variables["lora"], quantized[kind], TOKENS, LENGTHS), 1e-4)


def test_a_mesh_that_would_cut_a_block_is_refused(variables, tmp_path):
    mesh = make_mesh("fsdp=4")
    cut = r"fsdp=4.*64.*128 / 64 / 4 = 0\.50"
    floats = jax.device_put(
        variables["params"], shardings(MODEL.abstract()["params"], MODEL.logical_axes()["params"], mesh)
    )
    with pytest.raises(ValueError, match=cut.removeprefix("kernel")):
        quantize(floats, "nf4")
    save_hf(tmp_path / "model", CONFIG, variables["params"])
    with pytest.raises(ValueError, match=cut):
        load(tmp_path / "model", mesh, quantize="nf4")


# --- files ------------------------------------------------------------------------------------------------------------


def test_loading_quantises_what_is_in_the_file(variables, tmp_path):
    """From bfloat16 files into bfloat16: what was rounded once is not rounded again; on a mesh, the same codes."""
    rough = jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), variables["params"])
    save_hf(tmp_path / "model", CONFIG, rough, max_shard_bytes=200_000)
    model, found = load(tmp_path / "model", dtype=jnp.bfloat16, quantize="nf4", quantize_targets=QUANTIZABLE)
    same(found["params"], quantize(rough, "nf4", targets=QUANTIZABLE))
    assert jax.eval_shape(model.apply, found, TOKENS).logits.dtype == jnp.float32
    mesh = make_mesh("fsdp=2,tensor=2")
    some = ("o_proj", "down_proj")
    _, spread = load(tmp_path / "model", mesh, quantize="int8", quantize_targets=some)
    same(spread["params"], quantize(jax.tree.map(np.float32, rough), "int8", targets=some))
    assert len(spread["params"]["layers"]["mlp"]["down_proj"]["kernel"].scales.sharding.device_set) == 4


def test_an_adapter_goes_onto_a_quantised_base(variables, quantized, tmp_path):
    held = {**variables, "params": quantized["nf4"]}
    save_adapter(tmp_path / "adapter", MODEL, held)
    _, found = load_adapter(tmp_path / "adapter", MODEL.clone(lora=None), {"params": quantized["nf4"]})
    same(found, held)


PEAK = """
import ctypes, gc, json, sys
from llmrl_jax import lm
from llmrl_jax.lm.quantize import nbytes

def status(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name + ":"))

lm.load(sys.argv[1], quantize="nf4")
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
_, variables = lm.load(sys.argv[1], quantize="nf4")
print(json.dumps({"beside": status("VmHWM") - before - nbytes(variables), "held": nbytes(variables)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from /proc (Linux)")
def test_the_peak_of_loading(tmp_path):
    """A layer's matrix exists in floats for a moment; the model, 159 MB in bfloat16, never."""
    config = LlamaConfig(4096, 512, 1536, 24, 8, 4, dtype="bfloat16")
    sparse(tmp_path / "model", config)
    env = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "LLMRL_TYPECHECK": "0"}
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model")]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    print(told)
    assert told["held"] == 75_497_472 * 9 // 16 + 4 * (2 * 4096 * 512 + 49 * 512)
    assert told["beside"] <= 4 * 4096 * 512 + 0.1 * 2 * (75_497_472 + 2 * 4096 * 512)  # of the model in its file


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fine_tuning_learns_and_resumes_over_a_quantised_base(variables, quantized, tmp_path):
    rng = np.random.default_rng(0)
    data = pack([Example(rng.integers(1, 48, 8).tolist(), [True] * 8) for _ in range(4)], 16)
    config = SFTConfig(batch_size=2, learning_rate=3e-2, schedule="constant", warmup=0.0)
    learner = make_sft(config, MODEL, {**variables, "params": quantized["nf4"]}, data, 12)
    update = jax.jit(learner.update)
    state = learner.init(jax.random.key(0))
    losses = []
    for i in range(12):
        if i == 6:
            with Checkpoints(tmp_path) as checkpoints:
                checkpoints.save(i, state)
                checkpoints.wait()
        state, metrics = update(state)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    same(state.frozen["base"]["params"], quantized["nf4"])
    with Checkpoints(tmp_path) as checkpoints:
        assert any("q_proj.kernel.codes" in name for name in checkpoints.describe(6)["frozen"])
        again, _ = checkpoints.restore(learner.init(jax.random.key(7)))
    for _ in range(6):
        again, _ = update(again)
    same(replace(again, key=()), replace(state, key=()))


@pytest.mark.slow
def test_glam_acts_and_learns_over_a_quantised_base():
    """Its adapters get a gradient; the base, in its frozen part, takes the room it should."""
    small = replace(
        DEMO,
        env="BabyAI-Text/GoToObjS4-v0",
        embedded=EmbeddedConfig(hidden_size=64, layers=1, heads=2, intermediate_size=64),
        value_width=8,
    )
    made = build(small)
    floats = made.policy.base
    policy = replace(made.policy, base=lambda key: quantize(floats(key), "nf4"))
    params, frozen = policy.init(jax.random.key(0), ())
    assert nbytes(frozen["params"]["layers"]["mlp"]) == 3 * 64 * 64 * 9 // 16
    env = envs_jax.VectorEnv(made.env, 4, policy="none")
    shapes = jax.eval_shape(env.reset, jax.random.key(3), made.env_params)[0]
    obs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)  # a prompt of first phrases

    def loss(params):
        choice, value, _ = policy.step(params, frozen, obs, (), jnp.ones(4, bool))
        return choice.log_prob(jnp.zeros(4, jnp.int32)).mean() + value.mean(), choice.probs

    grads, probs = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)
    assert np.abs(grads["lora"]["layers"]["self_attn"]["q_proj"]["b"]).max() > 0


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_quantised_is_refused_by_name(variables, quantized, tmp_path):
    params = variables["params"]
    with pytest.raises(ValueError, match="'int4'.*'int8'"):
        quantize(params, "int4")
    with pytest.raises(ValueError, match="'qproj'.*'q_proj'"):
        quantize(params, "nf4", targets=("qproj",))
    with pytest.raises(ValueError, match="nothing.*quantise"):
        quantize(params, "nf4", targets=())
    with pytest.raises(ValueError, match="q_proj.*nf4"):
        quantize(quantized["nf4"], "int8")
    tied = {name: tree for name, tree in params.items() if name != "lm_head"}
    with pytest.raises(ValueError, match="lm_head.*embedding"):
        quantize(tied, "nf4", targets=("lm_head",))
    with pytest.raises(ValueError, match=r"down_proj\.weight.*\(nf4\).*save_adapter"):
        save_hf(tmp_path / "out", CONFIG, quantized["nf4"])
    assert not (tmp_path / "out").exists()
    save_hf(tmp_path / "model", CONFIG, params)
    with pytest.raises(ValueError, match="'nf5'.*'nf4'"):
        load(tmp_path / "model", quantize="nf5")


def test_a_base_of_another_configuration_is_named(quantized):
    wider = Llama(replace(CONFIG, intermediate_size=320))
    with pytest.raises(ValueError, match=r"layers/mlp/\w+/kernel.*shape"):
        wider.apply({"params": quantized["nf4"]}, TOKENS)


@pytest.mark.parametrize("targets", [("q_proj", "k_proj"), ("gate_proj", "o_proj")])
def test_a_part_of_the_matrices_in_mixed_precision(variables, targets):
    model = MODEL.clone(matmul_dtype=jnp.bfloat16)
    params = quantize(variables["params"], "int8", targets=targets)
    found, want = (
        jax.jit(lambda p: model.apply({**variables, "params": p}, TOKENS, lengths=LENGTHS).logits)(p)
        for p in (params, dequantize(params))
    )
    close(found, want, 0.05)
