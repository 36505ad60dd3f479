"""Programs as the trainer has them: where they run, how they are stored, and which modules are refused."""

from __future__ import annotations

import base64
import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import envs_jax
from llmrl_jax.advice.sandbox import Limits, Program, SandboxError, code_block, spec_of
from llmrl_jax.advice.sandbox.spec import Spec, random_windows
from llmrl_jax.advice.sandbox.stablehlo import PLATFORMS, check_sizes, check_type, exported, lower, verified
from llmrl_jax.advice.sandbox.trace import check_behaviour, trace
from tests.unit.advice.sandbox_programs import body, value
from tests.unit.advice.test_sandbox import OBSERVATION, SPEC, VERSION


def made(source: str, spec: Spec = SPEC, bound: float = 1000.0) -> Program:
    """Result of `admit`, without the child process."""
    traced = trace(source, spec)
    return Program(lower(traced), VERSION, source, spec, traced.components, bound, {"windows": 128.0})


SOURCE = body(
    "changed = jnp.sum(obs['image'] != past_obs['image'][-1])\nreturn changed - past_actions[0], {'n': changed}"
)


@pytest.fixture(scope="module")
def program():
    return made(SOURCE)


def windows(*batch: int):
    rng = np.random.default_rng(3)
    obs = {"image": rng.integers(0, 9, (*batch, 7, 7, 3), np.uint8), "direction": np.zeros(batch, np.int32)}
    past = {"image": rng.integers(0, 9, (*batch, 5, 7, 7, 3), np.uint8), "direction": np.zeros((*batch, 5), np.int32)}
    return obs | {"mission": np.zeros((*batch, 19), np.int16)}, past, rng.integers(0, 7, (*batch, 5), np.int32)


def expected(obs, past, actions):
    return (obs["image"] != past["image"][..., -1, :, :, :]).sum((-1, -2, -3)) - actions[..., 0]


# --- where programs run -----------------------------------------------------------------------------------------------


def test_one_window(program):
    potential, components = program(*windows())
    assert potential.shape == () and potential.dtype == jnp.float32 and set(components) == {"n"}
    assert float(potential) == expected(*windows())


def test_inside_vmap_jit_and_scan(program):
    """As a trainer has it: steps scanned, environments and seeds mapped, the actions of one for all."""
    obs, past, actions = windows(3, 4)

    @jax.jit
    def rollout(obs, past, actions):
        def step(total, at):
            potential = jax.vmap(jax.vmap(program, (0, 0, None)), (None, None, 0))(*at, actions[:2, 0])[0]
            return total + potential.sum(), potential

        return jax.lax.scan(step, 0.0, (obs, past))[1]

    got = rollout(obs, past, actions)
    want = expected(obs, past, np.zeros((3, 4, 5)))[:, None] - actions[:2, 0, 0][None, :, None]
    np.testing.assert_array_equal(got, want)


def test_on_a_mesh(program):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    given = windows(8)
    got = jax.jit(jax.vmap(program), out_shardings=spread)(*jax.device_put(given, spread))[0]
    np.testing.assert_array_equal(got, expected(*given))


def test_it_is_lowered_for_accelerators_too(program):
    assert {"cpu", "cuda", "tpu", "rocm"} == set(PLATFORMS)
    assert verified(program.module, VERSION, SPEC, 1).platforms == PLATFORMS


def test_values_are_finite_and_bounded_everywhere():
    """Also on windows unlike those of the admission."""
    safe = made(body("x = past_actions[0]\nreturn jnp.log(x - 3.0), {'large': x * 10.0}"), bound=20.0)
    obs, past, actions = windows(4)
    actions[:, 0] = (0, 3, 4, 6)
    potential, parts = jax.vmap(safe)(obs, past, actions)
    np.testing.assert_allclose(potential, [0.0, -20.0, 0.0, np.log(3)], rtol=1e-6)
    np.testing.assert_allclose(parts["large"], [0, 20, 20, 20])
    raw = jax.vmap(safe.raw)(obs, past, actions)[0]
    assert np.isnan(raw[0]) and np.isneginf(raw[1])


def test_other_inputs_are_refused(program):
    obs, past, actions = windows()
    for wrong, why in (
        (({"image": obs["image"]}, past, actions), "no part 'direction'"),
        ((obs | {"image": obs["image"][:5]}, past, actions), r"obs\['image'\].*\(5, 7, 3\); \(7, 7, 3\)"),
        ((obs, jax.tree.map(lambda x: x[:3], past), actions), "past_obs"),
        ((obs, past, actions[:3]), r"past_actions.*\(3,\)"),
        ((obs, past, actions.astype(float)), "past_actions.*float64"),
    ):
        with pytest.raises(ValueError, match=why):
            program(*wrong)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_the_program(program, tmp_path):
    path = tmp_path / "program.json"
    program.save(path)
    again = Program.load(path)
    assert again.bound == program.bound and again.source == SOURCE and again.report == program.report
    assert again.spec == SPEC and again.components == ("n",) and again.module == program.module
    assert float(again(*windows())[0]) == expected(*windows())
    assert [entry.name for entry in tmp_path.iterdir()] == ["program.json"]


def test_raised_limits_are_those_of_who_reads(tmp_path):
    """Not of the file, which anyone may have edited."""
    limits, path = Limits(elements=400_000, work=1 << 26), tmp_path / "program.json"
    source = value("jnp.sum(jnp.arange(400_000)) * past_actions[0]")
    traced = trace(source, SPEC, limits)
    args = (lower(traced), VERSION, source, SPEC, traced.components, 1000.0, {})
    Program(*args, limits=limits).save(path)
    assert Program.load(path, limits).module == args[0]
    for refused in (lambda: Program(*args), lambda: Program.load(path)):
        with pytest.raises(SandboxError, match="400000.*elements.*32,768"):
            refused()


def test_damaged_files_are_refused_by_name(program, tmp_path):
    path = tmp_path / "program.json"
    program.save(path)
    text = path.read_text()
    body = json.loads(text)
    for damaged, why in (
        (text[: len(text) // 2], "no program.*cut"),
        ("", "no program.*cut"),
        ("[]", "no program.*cut"),
        ("[" * 100_000, "no program.*cut"),
        (text.replace("past_actions[0]", "past_actions[1]"), "checksum"),
        (json.dumps(body | {"bound": 1e9}), "checksum"),
        (json.dumps(body | {"report": {}}), "checksum"),
        (json.dumps(body | {"format": "llmrl_jax program 0"}), "'llmrl_jax program 0'"),
        (" " * (33 << 20), "34,603,008.*33,554,432"),
    ):
        path.write_text(damaged)
        with pytest.raises(SandboxError, match=f"^{path} .*{why}"):
            Program.load(path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        Program.load(tmp_path / "nothing.json")


def test_an_edited_file_with_a_new_checksum_is_checked_like_a_childs_reply(program, tmp_path):
    """A checksum finds damage, not intent."""
    path = tmp_path / "program.json"
    program.save(path)
    body = json.loads(path.read_text())
    del body["sha256"]
    loops = exported(lambda *x: (jax.lax.fori_loop(0, x[-1].sum(), lambda i, y: y + 1, x[-1][:, 0] * 1.0),) * 2, SPEC)
    for change, why in (
        ({"module": base64.b64encode(loops.mlir_module_serialized).decode()}, "stablehlo.while"),
        ({"components": ["n", "m"]}, "description"),
        ({"spec": SPEC.to_json() | {"window": 4}}, "description"),
        ({"spec": {}}, "'parts'"),
        ({"module": "!"}, "cannot be used"),
        ({"bound": float("nan")}, "bound.*nan"),
        ({"bound": -1.0}, "bound.*-1.0"),
        ({"bound": 10**400}, "too large"),
        ({"version": float("inf")}, "infinity"),
    ):
        edited = body | change
        canonical = json.dumps(edited, sort_keys=True, separators=(",", ":")).encode()
        path.write_text(json.dumps(edited | {"sha256": hashlib.sha256(canonical).hexdigest()}))
        with pytest.raises(SandboxError, match=f"^{path} .*{why}"):
            Program.load(path)


# --- modules that no text can become ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda *x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1, x[-1][:, 0] * 1.0), "stablehlo.while"),
        (lambda *x: jax.random.uniform(jax.random.key(0), (x[-1].shape[0],)), "not allowed"),
        (lambda *x: jax.lax.cond(x[-1][0, 0] > 3, lambda: x[-1][:, 0] * 1.0, lambda: x[-1][:, 1] * 2.0), None),
        (lambda *x: x[-1].sum() * 1.0, "description"),
        (lambda *x: x[-1][:, 0], "description"),
        (lambda *x: (x[-1][:, :1] * jnp.ones(10**6)).sum(1), "tensor<1000000xf32>"),
        (lambda *x: (x[-1][:, :1] * jnp.ones((1, x[-1].shape[0]))).sum(1), r"tensor<\?x\?xf32>"),
        (lambda *x: x[-1][:, 0] + jnp.concatenate([x[-1], x[-1]]).sum() * 1.0, "size.*batch"),
        (lambda *x: x[-1][:, 0] + jnp.ones(1000 * x[-1].shape[0]).sum(), "size.*batch"),
    ],
)
def test_modules_are_checked(function, why):
    module = exported(lambda *x: (function(*x),), SPEC).mlir_module_serialized
    if why is None:  # a choice between two branches ends
        verified(module, VERSION, SPEC, 0)
        return
    with pytest.raises(SandboxError, match=why):
        verified(module, VERSION, SPEC, 0)


@pytest.mark.parametrize(
    ("size", "allowed"),
    [
        ("stablehlo.get_dimension_size %arg0, dim = 0 : (tensor<?x2xi32>) -> tensor<i32>", True),
        ("stablehlo.get_dimension_size %arg0, dim = 1 : (tensor<?x2xi32>) -> tensor<i32>", False),
        ("stablehlo.constant dense<1000000000> : tensor<i32>", False),
        ("stablehlo.reduce(%arg0 init: %zero) applies stablehlo.add across dimensions = [0, 1] "
         ": (tensor<?x2xi32>, tensor<i32>) -> tensor<i32>", False),
    ],
)  # fmt: skip
def test_a_free_size_is_that_of_the_batch(size, allowed):
    """An edited file can have sizes that depend on values, or that are constants; JAX exports neither."""
    text = f"""
func.func private @inner(%n: tensor<i32>) -> tensor<i32> {{
  %shape = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %places = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %sum = stablehlo.reduce(%places init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<?xi32>, tensor<i32>) -> tensor<i32>
  return %sum : tensor<i32>
}}
func.func public @main(%arg0: tensor<?x2xi32>) -> tensor<i32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %n = {size}
  %sum = func.call @inner(%n) : (tensor<i32>) -> tensor<i32>
  return %sum : tensor<i32>
}}"""
    with mlir.make_ir_context():
        module = mlir.ir.Module.parse(text)
        if allowed:
            check_sizes(module, Limits())
            return
        with pytest.raises(SandboxError, match="size.*batch"):
            check_sizes(module, Limits())


def test_calls_that_double_are_refused():
    """Few functions, and many operations once the compiler has written out their calls."""

    def doubled(times):
        function = lambda y: y * 1.5  # noqa: E731
        for _ in range(times):
            function = jax.jit(lambda y, inner=function: inner(inner(y)))
        return exported(lambda *x: (function(x[-1][:, 0] * 1.0),), SPEC).mlir_module_serialized

    verified(doubled(3), VERSION, SPEC, 0)
    with pytest.raises(SandboxError, match="200,000 operations"):
        verified(doubled(18), VERSION, SPEC, 0)


def test_a_custom_call_is_refused():
    def call(*x):
        y = x[-1][:, 0] * 1.0
        return (jax.ffi.ffi_call("run_a_command", jax.ShapeDtypeStruct(y.shape, y.dtype))(y),)

    allowed = jax.export.DisabledSafetyCheck.custom_call("run_a_command")
    inputs = SPEC.inputs(tuple(jax.export.symbolic_shape("b")))
    export = jax.export.export(jax.jit(call, keep_unused=True), platforms=PLATFORMS, disabled_checks=[allowed])
    with pytest.raises(SandboxError, match="'run_a_command'"):
        verified(export(*inputs).mlir_module_serialized, VERSION, SPEC, 0)


def test_cut_modules_and_large_ones_are_refused(program):
    for module in (b"", program.module[:50], program.module[:-1], b"x" * 1000):
        with pytest.raises(SandboxError, match="version|description"):
            verified(module, VERSION, SPEC, 1)
    with pytest.raises(SandboxError, match=r"bytes.*\b9\b"):
        verified(program.module, VERSION, SPEC, 1, Limits(module=9))


@pytest.mark.parametrize("text", ["!stablehlo.token", "tensor<3x!quant.uniform<i8:f32, 1.0>>", "tuple<tensor<f32>>"])
def test_types_are_checked(text):
    check_type("tensor<?x7xf32>", Limits())
    with pytest.raises(SandboxError, match="not allowed"):
        check_type(text, Limits())


# --- what programs see ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "parts"),
    [
        ("BabyAI-GoToLocal-v0", ["direction", "image"]),
        pytest.param("CrafterText-v1", ["daylight", "inventory", "view"], marks=pytest.mark.slow),
    ],
)
def test_the_parts_of_worlds(world, parts):
    """Numbers, and neither captions nor keys."""
    env, params = envs_jax.make(world)
    obs, _ = jax.eval_shape(env.reset, jax.random.key(0), params)
    assert [part.name for part in spec_of(obs).parts] == parts


def test_a_program_of_crafter():
    """Floats stay floats; a program of one world does not fit another."""
    obs = {"view": np.zeros((9, 7, 2), np.uint8), "inventory": np.zeros(16, np.int32), "daylight": np.float32(1)}
    spec = spec_of(obs | {"text": np.zeros(35, np.int16), "key": np.uint32(7)}, window=3)
    source = value("jnp.sum(obs['inventory'] - past_obs['inventory'][0]) + obs['daylight']")
    program = made(source, spec)
    past = jax.tree.map(lambda x: np.zeros((3, *np.shape(x)), np.asarray(x).dtype), obs)
    later = obs | {"inventory": np.arange(16, dtype=np.int32), "daylight": np.float32(0.25)}
    assert float(program(later, past, np.zeros(3, np.int32))[0]) == 120.25
    with pytest.raises(ValueError, match="'daylight'"):
        program(OBSERVATION, past, np.zeros(3, np.int32))


def test_an_observation_that_is_one_array():
    spec = spec_of(np.zeros(4, np.float32), window=2)
    program = made(value("jnp.sum(obs) - past_obs[-1, 0] + past_actions[0]"), spec)
    assert float(program(np.ones(4, np.float32), np.full((2, 4), 3, np.float32), np.array([5, 0]))[0]) == 6.0


def test_specs_name_what_is_wrong():
    for observation, options, why in (
        ({"text": np.zeros(3)}, {}, "number.*text"),
        ({"x": np.zeros(3)}, {"parts": ["y"]}, "names 'y'"),
        ({"x": np.array(["a"])}, {"parts": ["x"]}, "part 'x'"),
        (np.zeros(3), {"parts": ["y"]}, "observation.*one array"),
        (np.zeros(3), {"window": 99}, "window.*99.*1.*64"),
    ):
        with pytest.raises(ValueError, match=why):
            spec_of(observation, **options)
    assert spec_of({"text": np.zeros(3), "x": np.zeros(3)}, parts=["text"]).parts[0].name == "text"


# --- how programs must behave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("return jnp.log(past_actions[0] - 3.0), {}", r"potential.*NaN.*\d+.*128"),
        ("return 1 / past_actions[0], {}", "potential.*infinite"),
        ("return past_actions[0], {'far': past_actions[1] * 1e4}", r"'far'.*6e\+04.*1000"),
        ("return jnp.float32(0.5), {'a': past_actions[0]}", "potential.*0.5.*128"),
    ],
)
def test_behaviour(text, why):
    with pytest.raises(SandboxError, match=why):
        check_behaviour(trace(body(text), SPEC), random_windows(OBSERVATION, SPEC, 7), None, Limits())


def test_the_potential_must_vary_on_the_windows_that_are_given():
    drawn = random_windows(OBSERVATION, SPEC, 7)
    traced = trace(value("past_actions[0] * 1.0"), SPEC)
    assert check_behaviour(traced, drawn, [x[:9] for x in drawn], Limits())["windows"] == 128 + 9
    with pytest.raises(SandboxError, match="potential.*[0-6].*5 sampled"):
        check_behaviour(traced, drawn, [np.repeat(x[:1], 5, 0) for x in drawn], Limits())


def test_random_windows():
    """Integers of every code, repeated observations, and the observation itself."""
    direction, image, past_direction, past, actions = random_windows(OBSERVATION, SPEC, 7)
    assert image.shape == (128, 7, 7, 3) and past.shape == (128, 5, 7, 7, 3) and actions.shape == (128, 5)
    assert set(np.unique(image)) == set(range(11)) and set(np.unique(actions)) == set(range(7))
    assert (past[::3, 0] == past[::3, 1]).all() and not (past[1::3, 0] == past[1::3, 1]).all()
    assert 0.6 < (image[::2] == OBSERVATION["image"]).mean() < 0.9
    again = random_windows(OBSERVATION, SPEC, 7)
    assert all(np.array_equal(a, b) for a, b in zip(again, (direction, image, past_direction, past, actions)))


# --- replies ----------------------------------------------------------------------------------------------------------


def test_code_block():
    code = "def f():\n    return 1\n"
    assert code_block(f"Here it is.\n```python\n{code}```\nIt works.") == code
    assert code_block(f"```\n{code}```") == code
    assert code_block(f"```Python\n{code}\n```") == code + "\n"
    assert code_block(f"~~~py\n{code}~~~") == code
    assert code_block(f"```text\nNotes\n```\n```python\n{code}```") == code
    assert code_block(f"```\nx\n```\n```python\n{code}```") == code
    assert code_block(f"````python\n```\n{code}````") == "```\n" + code


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "no Python"),
        ("def f(): return 1", "no Python"),
        ("```json\n{}\n```", "no Python"),
        ("```python\n1\n```\n```python\n2\n```", "2 Python"),
        ("```\n1\n```\n```\n2\n```", "2 Python"),
        ("```python\nx = 1", "no end"),
        ("```python\n\n```", "code block.*empty"),
    ],
)
def test_code_block_refuses(reply, why):
    with pytest.raises(SandboxError, match=why):
        code_block(reply)
