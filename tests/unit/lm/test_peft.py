"""PEFT adapters: what a file of peft's computes, what is written back, and everything that is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmrl_jax import lm
from llmrl_jax.lm import declare
from llmrl_jax.lm.lora import PatternedLoRA
from llmrl_jax.lm.peft import load_adapter, read_lora, save_adapter
from llmrl_jax.parallel import make_mesh
from tests.lm_random import random_variables
from tests.parity.families import ADAPTED, ADAPTER, FAMILIES, RECORDED, inputs, torch_adapter, torch_logits, torch_model


CONFIG = lm.LlamaConfig(32, 16, 24, 3, 4, 2, 6)
LORA = lm.LoRAConfig(rank=3, alpha=6.0, targets=("q_proj", "o_proj", "down_proj"), rslora=True)
PATTERNED = PatternedLoRA(
    rank=3,
    alpha=6.0,
    targets=("q_proj", "o_proj", "down_proj"),
    ranks=(("o_proj", 2), ("layers.1.self_attn.o_proj", 4), ("layers.0.mlp.down_proj", 0)),
    alphas=(("layers.2.self_attn.q_proj", 1.5), ("down_proj", 9.0)),
)
MODEL = lm.Llama(CONFIG, lora=LORA)
TOKENS = np.random.default_rng(2).integers(0, 32, (2, 9)).astype(np.int32)
RAW = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}


def padded(model):
    """Random variables in which what a layer of lower rank does not use is zero."""
    variables = random_variables(model)
    for own in variables["lora"]["layers"].values():
        for name, ab in own.items():
            for layer in range(CONFIG.num_hidden_layers):
                rank = model.lora.rank_at(name, layer)
                ab["a"][layer, ..., rank:] = 0
                ab["b"][layer, rank:] = 0
    return variables


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL)


@pytest.fixture
def folder(variables, tmp_path):
    return save_adapter(tmp_path / "adapter", MODEL, variables, base="somewhere/base")


def change(folder, **fields):
    raw = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**raw, **fields}))


def rewrite(folder, edit):
    tensors = load_file(folder / "adapter_model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDED) as file:
        return file["adapter"]


@pytest.mark.parametrize("mesh", [pytest.param(None, marks=pytest.mark.slow), "fsdp=2,tensor=2"])
def test_an_adapter_that_peft_wrote(mesh, recorded, tmp_path):
    """Ranks and alphas by layer, rslora, layers left out, a norm trained whole; its logits as peft computed them."""
    family = next(f for f in FAMILIES if f.name == ADAPTED)
    mesh = mesh and make_mesh(mesh)
    base, held = lm.load(family.write(tmp_path), mesh)
    before = jax.tree.map(np.array, held)
    model, variables = load_adapter(ADAPTER, base, held, mesh)
    tokens, positions, at = inputs()
    run = jax.jit(lambda v, t, p, a: model.apply(v, t, positions=p, at=a).logits)
    np.testing.assert_allclose(run(variables, tokens, positions, at), recorded, atol=1e-4)
    q = variables["lora"]["layers"]["self_attn"]["q_proj"]["a"]
    assert q.shape == (3, 48, 3) and q.dtype == jnp.float32
    assert not q[0, :, 2].any() and not q[1].any() and q[2, :, 2].any()
    if mesh is not None:
        assert q.addressable_shards[0].data.shape == (3, 24, 3)
        return
    jax.tree.map(np.testing.assert_array_equal, held, before)
    merged = {"params": lm.merge(variables["params"], variables["lora"], model.lora)}
    got = jax.jit(lambda v, t, p, a: base.apply(v, t, positions=p, at=a).logits)(merged, tokens, positions, at)
    np.testing.assert_allclose(got, recorded, atol=1e-4)
    back = save_adapter(tmp_path / "again", model, variables, modules_to_save=("model.norm",))
    ours, theirs = (load_file(f / "adapter_model.safetensors") for f in (back, ADAPTER))
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)


def test_what_is_written_by_hand(folder, variables):
    """peft's names and layout: A is [r, in], B is [out, r], and W x + s B A x is what the model adds."""
    raw = json.loads((folder / "adapter_config.json").read_text())
    want = {"r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": list(LORA.targets), "rank_pattern": {}}
    assert want.items() <= raw.items() and raw["base_model_name_or_path"] == "somewhere/base"
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 3 * 3 * 2
    a, b = (tensors[f"base_model.model.model.layers.1.self_attn.o_proj.lora_{x}.weight"] for x in "AB")
    assert a.shape == (3, 24) and b.shape == (16, 3)
    kernel = np.asarray(variables["params"]["layers"]["self_attn"]["o_proj"]["kernel"][1]).reshape(24, 16)
    merged = lm.merge(variables["params"], variables["lora"], LORA)
    got = merged["layers"]["self_attn"]["o_proj"]["kernel"][1].reshape(24, 16)
    np.testing.assert_allclose(got, kernel + 6 / math.sqrt(3) * (b @ a).T, atol=1e-5)


@pytest.mark.parametrize("lora", [LORA, PATTERNED], ids=["plain", "patterned"])
def test_round_trip(lora, tmp_path):
    model = lm.Llama(CONFIG, lora=lora)
    variables = padded(model)
    folder = save_adapter(tmp_path / "a", model, variables, modules_to_save=("lm_head", "model.norm"))
    mesh = make_mesh("fsdp=2,tensor=2")
    base = {"params": jax.tree.map(jnp.zeros_like, variables["params"])}
    loaded, got = load_adapter(folder, lm.Llama(CONFIG), base, mesh)
    names = [(t, i) for t in lora.targets for i in range(3)]
    assert [loaded.lora.rank_at(*n) for n in names] == [lora.rank_at(*n) for n in names]
    used = [n for n in names if lora.rank_at(*n)]
    assert [loaded.lora.scale_at(*n) for n in used] == [lora.scale_at(*n) for n in used]
    assert isinstance(loaded.lora, PatternedLoRA) == isinstance(lora, PatternedLoRA)
    jax.tree.map(np.testing.assert_array_equal, got["lora"], variables["lora"])
    for name in ("norm", "lm_head"):
        jax.tree.map(np.testing.assert_array_equal, got["params"][name], variables["params"][name])
    assert not got["params"]["embed_tokens"]["embedding"].any()


def test_no_two_keys_of_a_pattern_fit_one_matrix(tmp_path):
    """peft sorts them when it saves, so that order must not matter."""
    model = lm.Llama(CONFIG, lora=PATTERNED)
    folder = save_adapter(tmp_path / "a", model, padded(model))
    raw = json.loads((folder / "adapter_config.json").read_text())
    o_proj, q_proj = "model.layers.{}.self_attn.o_proj", "model.layers.2.self_attn.q_proj"
    assert raw["rank_pattern"] == {o_proj.format(0): 2, o_proj.format(1): 4, o_proj.format(2): 2}
    assert raw["alpha_pattern"] == {q_proj: 1.5, "down_proj": 9.0}
    assert "model.layers.0.mlp.down_proj" not in raw["target_modules"] and len(raw["target_modules"]) == 8


def test_patterns_act_in_the_model_and_in_merges(tmp_path):
    """Layer by layer against adapters of one rank and scale, which carry the rest in B."""
    model = lm.Llama(CONFIG, lora=PATTERNED)
    variables = padded(model)
    run = jax.jit(model.apply)
    got = run(variables, TOKENS).logits
    merged = lm.merge(variables["params"], variables["lora"], PATTERNED)
    np.testing.assert_allclose(jax.jit(lm.Llama(CONFIG).apply)({"params": merged}, TOKENS).logits, got, atol=5e-5)
    o_proj = variables["lora"]["layers"]["self_attn"]["o_proj"]
    a, b = np.asarray(o_proj["a"]).reshape(3, 24, 4), np.asarray(o_proj["b"])
    assert not a[0, :, 2:].any() and a[1, :, 3].any() and not b[2, 2:].any()
    shift = (
        merged["layers"]["self_attn"]["o_proj"]["kernel"]
        - variables["params"]["layers"]["self_attn"]["o_proj"]["kernel"]
    )
    for layer, scale in enumerate((6 / 2, 6 / 4, 6 / 2)):
        np.testing.assert_allclose(np.asarray(shift[layer]).reshape(24, 16), scale * a[layer] @ b[layer], atol=1e-5)
    down = merged["layers"]["mlp"]["down_proj"]["kernel"] - variables["params"]["layers"]["mlp"]["down_proj"]["kernel"]
    assert not np.asarray(down[0]).any()
    ab = variables["lora"]["layers"]["mlp"]["down_proj"]
    np.testing.assert_allclose(down[1], 9 / 3 * ab["a"][1] @ ab["b"][1], atol=1e-5)


def test_padding_begins_at_zero_and_has_no_gradient():
    fresh = declare.make(declare.declare_lora(CONFIG, PATTERNED)["layers"]["self_attn"], jax.random.key(0), jnp.float32)
    assert not fresh["o_proj"]["a"][0, ..., 2:].any() and fresh["o_proj"]["a"][0, ..., :2].all()
    assert fresh["o_proj"]["a"][1].all() and fresh["q_proj"]["a"].all()
    model = lm.Llama(CONFIG, lora=PATTERNED)
    variables = padded(model)
    grad = jax.jit(jax.grad(lambda lora: (model.apply({**variables, "lora": lora}, TOKENS).logits ** 2).mean()))(
        variables["lora"]
    )
    o_proj = grad["layers"]["self_attn"]["o_proj"]
    assert not o_proj["a"][0, ..., 2:].any() and not o_proj["b"][0, 2:].any()
    assert o_proj["a"][1, ..., 3].any() and o_proj["b"][0, :2].any()


def test_adapters_are_merged_in_float32_even_into_bfloat16(variables):
    low = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), variables["params"])
    kernel = lm.merge(low, variables["lora"], LORA)["layers"]["self_attn"]["q_proj"]["kernel"]
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), low)
    exact = lm.merge(wide, variables["lora"], LORA)["layers"]["self_attn"]["q_proj"]["kernel"]
    np.testing.assert_array_equal(kernel, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"target_modules": "all-linear"}, {t: [0, 1, 2] for t in lm.lora.TARGETS}),
        ({"target_modules": r"model\.layers\.[02]\.self_attn\.(q|k)_proj"}, {"q_proj": [0, 2], "k_proj": [0, 2]}),
        ({"target_modules": ["self_attn.q_proj", "model.layers.1.mlp.up_proj"]}, {"q_proj": [0, 1, 2], "up_proj": [1]}),
        ({"layers_to_transform": 1}, {"q_proj": [1], "v_proj": [1]}),
        ({"layers_to_transform": [0, 2], "layers_pattern": ["layers"]}, {"q_proj": [0, 2], "v_proj": [0, 2]}),
        (
            {"target_modules": ["q_proj", "model.layers.0.mlp.up_proj"], "layers_to_transform": [2]},
            {"q_proj": [2], "up_proj": [0]},
        ),
        ({"exclude_modules": r".*\.1\..*"}, {"q_proj": [0, 2], "v_proj": [0, 2]}),
        ({"target_modules": ["q_proj", "up_proj"], "modules_to_save": ["mlp"]}, {"q_proj": [0, 1, 2]}),
    ],
    ids=str,
)
def test_which_matrices_are_meant(fields, where):
    lora = read_lora({**RAW, **fields}, CONFIG)
    assert {t: [i for i in range(3) if lora.rank_at(t, i)] for t in lora.targets} == where


def test_the_first_pattern_that_fits_counts():
    raw = {
        **RAW,
        "rank_pattern": {"layers.1.self_attn.q_proj": 5, "q_proj": 4},
        "alpha_pattern": {r"self_attn\.(q|v)_proj": 12, "v_proj": 1},
    }
    lora = read_lora(raw, CONFIG)
    assert [lora.rank_at("q_proj", i) for i in range(3)] == [4, 5, 4] and lora.rank_at("v_proj", 0) == 2
    assert [lora.scale_at("q_proj", i) for i in range(3)] == [3.0, 12 / 5, 3.0] and lora.scale_at("v_proj", 2) == 6.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type.*'IA3'.*'LORA'.*merge_and_unload"),
        ({"task_type": "SEQ_CLS"}, "task_type.*'SEQ_CLS'"),
        ({"use_dora": True}, "use_dora.*True"),
        ({"lora_bias": True}, "lora_bias.*True"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"use_new_thing": {"x": 1}}, "use_new_thing.*{'x': 1}"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights.*'pissa'.*path_initial_model"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights.*'pissa_niter_4'"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights.*'OLoRA'"),
        ({"init_lora_weights": "corda"}, "init_lora_weights.*'corda'"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights.*'loftq'"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights.*'lora_ga'"),
        ({"r": 0}, "rank.*0.*1"),
        ({"r": "8"}, "r is '8'"),
        ({"target_modules": None}, "target_modules.*None"),
        ({"target_modules": ["query_key_value"]}, "no matrix.*q_proj"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"target_modules": "(q_proj"}, r"target_modules.*'\(q_proj'"),
        ({"rank_pattern": {"*": 3}}, "rank_pattern"),
        ({"modules_to_save": ["score"]}, "modules_to_save.*'score'"),
        ({"modules_to_save": ["proj"]}, "q_proj.*adapter too"),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_named(fields, message, folder, variables):
    change(folder, **fields)
    with pytest.raises(ValueError, match=message) as caught:
        load_adapter(folder, lm.Llama(CONFIG), variables)
    assert "adapter_config.json" in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"init_lora_weights": "mica"},
        {"init_lora_weights": "gaussian", "loftq_config": {"loftq_bits": 4}},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": False},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"fan_in_fan_out": True},
        {"ensure_weight_tying": True},
    ],
    ids=str,
)
def test_what_changes_no_weight_of_the_base_is_read(fields, folder, variables):
    plain, before = load_adapter(folder, lm.Llama(CONFIG), variables)
    change(folder, **fields)
    model, after = load_adapter(folder, lm.Llama(CONFIG), variables)
    assert model.lora == plain.lora
    jax.tree.map(np.testing.assert_array_equal, after["lora"], before["lora"])


def test_biases_are_refused_where_the_model_has_some():
    raw = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["q_proj"], "bias": "lora_only"}
    config = lm.LlamaConfig(16, 32, 48, 1, 4, model_type="qwen2")
    with pytest.raises(ValueError, match="bias.*'lora_only'.*'none'"):
        read_lora(raw, config)


def test_a_tied_model_cannot_save_its_head(folder, variables):
    tied = lm.Llama(dataclasses.replace(CONFIG, tie_word_embeddings=True))
    change(folder, modules_to_save=["embed_tokens"])
    with pytest.raises(ValueError, match="'embed_tokens'"):
        load_adapter(folder, tied, variables)


Q1 = "base_model.model.model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(f"{Q1}.lora_B.weight"), rf"{Q1}\.lora_B\.weight"),
        (
            lambda t: t.update({f"{Q1}.lora_A.weight": np.ones((4, 16), np.float32)}),
            r"shape \(4, 16\).*\(3, 16\)",
        ),
        (lambda t: t.update({f"{Q1}.lora_A.weight": np.ones((3, 16), np.int8)}), "stored as I8"),
        (lambda t: t.update({f"{Q1}.lora_magnitude_vector": np.ones(3, np.float32)}), "magnitude_vector"),
    ],
    ids=["missing", "shape", "dtype", "extra"],
)
def test_tensors_that_do_not_fit_are_named(edit, message, folder, variables):
    rewrite(folder, edit)
    with pytest.raises(ValueError, match=message):
        load_adapter(folder, lm.Llama(CONFIG), variables)


def test_files_that_are_missing_or_damaged_are_named(folder, variables, tmp_path):
    file = folder / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors.*damaged"):
        load_adapter(folder, lm.Llama(CONFIG), variables)
    file.rename(folder / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.bin.*save_pretrained"):
        load_adapter(folder, lm.Llama(CONFIG), variables)
    with pytest.raises(FileNotFoundError, match=r"no adapter_config\.json"):
        load_adapter(tmp_path, lm.Llama(CONFIG), variables)


def test_writing_is_whole_or_not_at_all(variables, tmp_path):
    target = tmp_path / "out" / "a"
    with pytest.raises(ValueError, match="LoRAConfig"):
        save_adapter(target, lm.Llama(CONFIG), variables)
    with pytest.raises(ValueError, match="modules_to_save.*'pooler'"):
        save_adapter(target, MODEL, variables, modules_to_save=("pooler",))
    with pytest.raises(ValueError, match="modules_to_save.*'q_proj'"):
        save_adapter(target, MODEL, variables, modules_to_save=("q_proj",))
    broken = jax.tree.map(lambda x: x, variables)
    broken["params"]["norm"] = {"scale": np.ones(16, np.int32)}
    with pytest.raises(ValueError, match=r"norm\.weight.*int32"):
        save_adapter(target, MODEL, broken, modules_to_save=("model.norm",))
    assert not target.exists() and not list(tmp_path.rglob(".*"))
    save_adapter(target, MODEL, variables)
    with pytest.raises(FileExistsError):
        save_adapter(target, MODEL, variables)
    shutil.rmtree(target)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": (("k_proj", 2),)}, "^LoRA.*'k_proj' names"),
        ({"ranks": (("layers.0.mlp.q_proj", 2),)}, "layers.0.mlp.q_proj"),
        ({"alphas": (("q_proj", -1.0),)}, r"'q_proj'.*-1\.0"),
        ({"alpha": 0.0}, "alpha.*0.0"),
    ],
    ids=str,
)
def test_patterns_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        PatternedLoRA(**fields)


LIVE = {
    "plain": ("llama2", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "rslora": ("qwen2", {"r": 3, "lora_alpha": 5, "target_modules": ["k_proj", "o_proj"], "use_rslora": True}),
    "mica": ("llama2", {"r": 4, "target_modules": ["q_proj", "o_proj"], "init_lora_weights": "mica", "bias": "all"}),
    "orthogonal": ("llama2", {"r": 4, "target_modules": ["up_proj"], "init_lora_weights": "orthogonal"}),
    "all": ("qwen3", {"r": 2, "lora_alpha": 2, "target_modules": "all-linear"}),
    "regex": ("mistral-window", {"r": 2, "target_modules": r".*\.[02]\.(self_attn|mlp)\.(q_proj|down_proj)"}),
    "patterns": (
        "qwen3-window",
        {
            "r": 2,
            "lora_alpha": 3,
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "rank_pattern": {"model.layers.1.self_attn.q_proj": 5, "up_proj": 3},
            "alpha_pattern": {"k_proj": 1, r"layers\.2\..*": 7},
            "use_rslora": True,
        },
    ),
    "layers": (
        "llama31",
        {"r": 2, "target_modules": ["o_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    ),
    "saved": ("llama2", {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens", "norm"]}),
    "block": (
        "qwen2",
        {"r": 2, "target_modules": ["q_proj", "up_proj"], "modules_to_save": ["layers.1.mlp", "k_proj"]},
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # what peft calls and says of transformers
@pytest.mark.parametrize("case", LIVE)
def test_live_against_peft(case, tmp_path):
    """What peft wrote is read, computes and merges to the same; what is written here is read by peft as the same."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    name, fields = LIVE[case]
    family = next(f for f in FAMILIES if f.name == name)
    theirs = torch_adapter(family.write(tmp_path / "base"), **fields)
    theirs.save_pretrained(tmp_path / "theirs")
    want = torch_logits(theirs)
    base, held = lm.load(tmp_path / "base")
    model, variables = load_adapter(tmp_path / "theirs", base, held)
    tokens, positions, at = inputs()
    run = jax.jit(lambda v, t, p, a: model.apply(v, t, positions=p, at=a).logits)
    np.testing.assert_allclose(run(variables, tokens, positions, at), want, atol=1e-4)
    off = run({"params": held["params"]}, tokens, positions, at)
    assert np.abs(off - want).max() > 1e-2

    saved = tuple(fields.get("modules_to_save", ()))
    save_adapter(tmp_path / "ours", model, variables, modules_to_save=saved)
    back = peft.PeftModel.from_pretrained(torch_model(tmp_path / "base"), tmp_path / "ours").eval()
    state = theirs.state_dict()
    assert set(back.state_dict()) == set(state)
    for key, value in back.state_dict().items():
        assert torch.equal(value, state[key]), key
    np.testing.assert_array_equal(torch_logits(back), want)

    merged = lm.save_hf(tmp_path / "merged", base.config, lm.merge(variables["params"], variables["lora"], model.lora))
    whole = torch_model(merged).state_dict()
    for key, value in theirs.merge_and_unload().state_dict().items():
        np.testing.assert_allclose(whole[key], value, atol=1e-6)
