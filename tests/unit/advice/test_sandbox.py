"""What the sandbox refuses before anything runs, and while a program is traced on shapes; what it admits."""

from __future__ import annotations

import ast
import random
import re
import time
from inspect import signature

import jax
import numpy as np
import pytest

from llmrl_jax.advice.sandbox import Limits, SandboxError, spec_of
from llmrl_jax.advice.sandbox.gate import check, compiled
from llmrl_jax.advice.sandbox.spec import random_windows
from llmrl_jax.advice.sandbox.stablehlo import lower, verified
from llmrl_jax.advice.sandbox.tables import FUNCTIONS, KEYWORDS, METHODS, PRIMITIVES
from llmrl_jax.advice.sandbox.trace import check_behaviour, inspect, trace
from tests.unit.advice import sandbox_programs as hostile
from tests.unit.advice.sandbox_programs import body, value
from tests.unit.advice.sandbox_valid import VALID


OBSERVATION = {
    "image": np.arange(147, dtype=np.uint8).reshape(7, 7, 3) % 9,
    "direction": np.int32(0),
    "mission": np.zeros(19, np.int16),
}
SPEC = spec_of(OBSERVATION)
VERSION = jax.export.maximum_supported_calling_convention_version

AT_THE_GATE = [
    *((value(text), re.escape(why)) for text, why in hostile.NAMES.items()),
    *((value(text), why) for text, why in hostile.TEXTS.items()),
    *((body(text), why) for text, why in hostile.STATEMENTS.items()),
    *hostile.MODULES.items(),
]
WHILE_TRACED = [
    *((value(text), why) for text, why in hostile.GUARDED.items()),
    *((body(text), why) for text, why in hostile.GUARDED_BODIES.items()),
    *hostile.GUARDED_MODULES.items(),
]


def short(text: object) -> str:
    return str(text)[-60:]


@pytest.mark.parametrize(("source", "why"), AT_THE_GATE, ids=short)
def test_the_gate_refuses(source, why):
    with pytest.raises(SandboxError, match=why) as caught:
        check(source)
    if (
        source.startswith("def compute_potential(obs, past_obs, past_actions):\n    return ")
        and source.count("\n") == 1
    ):
        assert caught.value.line in (2, None)


@pytest.mark.parametrize(("source", "why"), WHILE_TRACED, ids=short)
def test_tracing_refuses(source, why):
    check(source)
    with pytest.raises(SandboxError, match=why):
        trace(source, SPEC)


def test_there_are_hundreds_of_hostile_programs():
    """100 are asked for; and none counts twice."""
    assert len({source for source, _ in AT_THE_GATE}) == len(AT_THE_GATE) >= 200
    assert len({source for source, _ in WHILE_TRACED}) == len(WHILE_TRACED) >= 90
    assert len(VALID) >= 30


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\ny = 2\nreturn obs.__class__, {}", 4),
        ("x = 1\n\n\nreturn (\n    x +\n    open(1)), {}", 7),
        ("x = past_actions\nif x[0] > 1:\n    x = 2\nreturn 0.0, {}", 3),
        ("x = 1\ny = int(past_actions[0])\nreturn 0.0, {}", 3),
        ("x = past_actions.astype(float)\ny = jnp.linalg.norm(jnp.ones((3, 3)), 2)\nreturn y, {}", 3),
        ("x = jnp.ones(5)\nx = jnp.concatenate([x, obs['image']])\nreturn x[0], {}", 3),
    ],
)
def test_errors_name_the_line(text, line):
    with pytest.raises(SandboxError) as caught:
        trace(body(text), SPEC)
    assert caught.value.line == line
    code = body(text).splitlines()[line - 1].strip()
    assert str(caught.value) == f"line {line} ({code}): {caught.value.reason}"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (body("x = 1\nreturn " + "-" * 8000 + "1, {}"), 3),
        (body("x = 1\nreturn (\n" + "-\n" * 7000 + "1), {}"), None),
        (body("x = 1") + "\n# a\0b", 3),
        (body("x = 1") + "\r\n\r# \ud800", 4),
    ],
    ids=["deep", "deep over many lines", "null", "surrogate"],
)
def test_lines_of_texts_that_cannot_be_parsed(source, line):
    with pytest.raises(SandboxError) as caught:
        check(source, Limits(source=10**5))
    assert caught.value.line == line or (line is None and caught.value.line > 1000)


def test_a_line_of_a_helper():
    with pytest.raises(SandboxError, match=r"line 2.*float\(x\).*array"):
        trace("def helper(x):\n    return float(x)\n" + value("helper(past_actions[0])"), SPEC)


@pytest.mark.parametrize("name", VALID)
def test_valid_programs(name):
    """As in the child process: gate, trace, inspection, export; then the check of the trusted side."""
    traced = trace(VALID[name], SPEC)
    exported = verified(lower(traced), VERSION, SPEC, len(traced.components))
    assert [str(aval.dtype) for aval in exported.out_avals] == ["float32"] * (1 + len(traced.components))
    assert 0 < traced.equations < 100 and traced.work < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("name", VALID)
def test_valid_programs_behave(name):
    drawn = random_windows(OBSERVATION, SPEC, 7)
    found = check_behaviour(trace(VALID[name], SPEC), drawn, None, Limits())
    assert found["highest"] > found["lowest"]


def test_a_program_means_what_it_says():
    """The rewritten program computes what Python and NumPy compute from the same text."""
    drawn = random_windows(OBSERVATION, SPEC, 7)
    windows = {"direction": drawn[0], "image": drawn[1]}, {"direction": drawn[2], "image": drawn[3]}, drawn[4]
    for name in ("loop over the window", "enumerate and zip", "methods", "guarded division", "matrix product"):
        namespace: dict = {"jnp": np}
        exec(VALID[name].replace("jnp.float32", "float"), namespace)
        traced = trace(VALID[name], SPEC)
        got = jax.jit(jax.vmap(jax.extend.core.jaxpr_as_fun(traced.jaxpr)))(*drawn)
        for i in range(0, 128, 17):
            want, parts = namespace["compute_potential"](*jax.tree.map(lambda x, i=i: x[i], windows))
            np.testing.assert_allclose([x[i] for x in got], [want, *parts.values()], rtol=1e-5)


def test_a_program_sees_integers_that_do_not_wrap():
    """2 - 5 of uint8 is 253; programs see int32."""
    traced = trace(value("obs['image'][0, 0, 0] - 5"), SPEC)
    assert [str(x.aval.dtype) for x in traced.jaxpr.jaxpr.invars] == ["int32"] * 5


def test_a_rewritten_program_holds_no_module():
    """Its names are guards, its own functions, and what it assigns."""
    code = compiled(check(VALID["constants and a helper"]))
    names, codes = set(), [code]
    for each in codes:
        names |= {*each.co_names}
        codes += [constant for constant in each.co_consts if hasattr(constant, "co_names")]
    plain = {name for name in names if "." not in name}
    assert plain == {"BALL", "RED", "WEIGHTS", "distance", "compute_potential"}
    assert {"guard.binary", "guard.item", "function.jnp.where", "guard.function"} <= names


def test_limits_are_read():
    source = value("sum(past_actions[i] for i in range(5)) * jnp.max(past_actions + 1)")
    trace(source, SPEC)
    for limit, why in {
        "source": "characters", "nodes": "nodes", "depth": "nested", "loop": "rounds|numbers", "unrolled": "times",
        "steps": "steps", "sequence": "elements", "elements": "elements", "equations": "operations", "work": "computes",
    }.items():  # fmt: skip
        with pytest.raises(SandboxError, match=why):
            trace(source, SPEC, Limits(**{limit: 2}))
    with pytest.raises(SandboxError, match="2 components.*1"):
        trace(body("return 0.0, {'a': 1, 'b': 2}"), SPEC, Limits(components=1))
    with pytest.raises(ValueError, match="limits.steps.*0"):
        Limits(steps=0)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            lambda *x: jax.pure_callback(abs, jax.ShapeDtypeStruct((), "float32"), 1.0),
            "callback.*Python",
        ),
        (lambda *x: jax.lax.while_loop(lambda y: y < 9.0, lambda y: y + 1, 1.0), "while.*loops"),
        (lambda *x: jax.lax.fori_loop(0, 9, lambda i, y: y + 1.0, 1.0), "(scan|while).*loops"),
        (lambda *x: jax.random.uniform(jax.random.key(0)), "random"),
        (lambda *x: jax.numpy.linalg.inv(jax.numpy.eye(5))[0, 0], r"\blu\b"),
        (lambda *x: jax.lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0), "cond"),
    ],
)
def test_operations_are_inspected_even_if_no_text_can_name_them(function, why):
    """The gate names none of these; the jaxpr is walked all the same."""
    with pytest.raises(SandboxError, match=why):
        inspect(jax.make_jaxpr(function)(*SPEC.inputs()), "", Limits())


COMPARED = 15 * 16 // 2
"""Of each of 2^15 elements, in the network of a sort."""


@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("lax.cumsum(x)", 32_768**2),
        ("lax.cumprod(x.reshape(256, 128), axis=1)", 32_768 * 128),
        ("lax.cummax(x.reshape(128, 256), axis=0)", 32_768 * 128),
        ("jnp.sort(x)", 32_768 * COMPARED),
        ("lax.top_k(x, 3)[0]", 32_768 * COMPARED),
        ("jnp.argsort(x)", 2 * 32_768 * COMPARED),  # it moves the indices too
        ("jnp.argmax(x)", 32_768),
        ("jnp.sum(x)", 32_768),
        ("x[past_actions].at[0].add(x[:4].sum())", 5),
        ("x.at[past_actions[0]].set(1.0)", 32_768),
        ("x.reshape(128, 256) @ x.reshape(256, 128)", 128 * 128 * 256),
    ],
)
def test_the_work_of_an_operation(text, work):
    """At least what XLA may do: a running sum is a window at every place."""
    source = value(f"jnp.sum(({text})[..., :1])").replace("return", "x = jnp.full(32_768, 0.5)\n    return")
    source = source if "jnp.argmax" not in text and "jnp.sum(x)" not in text else source.replace("[..., :1]", "")
    traced = trace(source, SPEC, Limits(work=2**31 - 1))
    assert work <= traced.work < work + 150_000
    if work > Limits().work:
        with pytest.raises(SandboxError, match="line 3.*8,388,608 elements"):
            trace(source, SPEC)
    else:
        trace(source, SPEC)


def test_an_effect_is_refused():
    with pytest.raises(SandboxError, match="effect"):
        inspect(jax.make_jaxpr(lambda *x: jax.debug.print("{}", x[0]) or 1.0)(*SPEC.inputs()), "", Limits())


def test_a_large_constant_is_refused():
    held = np.ones(40_000, np.float32)
    with pytest.raises(SandboxError, match="40,000 elements"):
        inspect(jax.make_jaxpr(lambda *x: jax.numpy.sin(held)[0])(*SPEC.inputs()), "", Limits())


def test_tables():
    assert not PRIMITIVES & {"while", "scan", "cond", "pure_callback", "io_callback", "infeed", "threefry2x32"}
    assert not any(part.startswith("_") for name in FUNCTIONS for part in name.split("."))
    assert not {"jnp.save", "jnp.load", "jnp.einsum", "jnp.vectorize", "jnp.fromfile", "jnp.frompyfunc"} & set(
        FUNCTIONS
    )
    assert not {"device", "out", "sharding", "method", "precision"} & KEYWORDS
    assert not {"item", "tolist", "view", "tobytes"} & METHODS


TOKENS = r"""
10**9 obs past_obs jnp lax jax ** [0]*10**6 lambda: __class__ range(10**9) while if for in ( ) [ ] { } : , . = ==
jnp.zeros jnp.ones((9999,9999)) 'a' " f'' None True -1 1e30 @ := * ** // % << 63 return def pass sum max past_actions
obs['image'] .at .set(1) .shape .T compute_potential _ __ \ # ; not and or is else yield import global
""".split()
MILD = "0 1 2 7 63 2000000000 -1 0.5 + - * / // % ** & | ^ < == past_actions obs past_obs sum max min jnp.sum".split()


def mutated(source: str, rng: random.Random) -> str:
    parts = re.findall(r"\w+|\s+|[^\w\s]", source)
    for _ in range(rng.choice((1, 1, 2, 3))):
        i = rng.choice([i for i, part in enumerate(parts) if part.strip()])
        kind = rng.randrange(7)
        if kind == 0:
            del parts[i]
        elif kind == 1:
            parts[i] = rng.choice(TOKENS)
        elif kind == 2:
            parts.insert(i, rng.choice(TOKENS))
        elif kind == 3:
            parts[i] = rng.choice(parts)
        elif kind == 4:
            parts[i] = rng.choice(MILD)
        elif kind == 5:
            parts[i] = rng.choice([part for part in parts if part.isidentifier() == parts[i].isidentifier()])
        else:
            parts[i : i + 3] = parts[i : i + 3] * rng.randint(2, 40)
        parts = parts or [" "]
    return "".join(parts)


def crossed(source: str, pool: list[ast.expr], rng: random.Random) -> str:
    """A program with one or two of its expressions replaced by those of others, which is still Python."""
    tree = ast.parse(source)
    for _ in range(rng.choice((1, 1, 2))):
        places = [
            (node, name)
            for node in ast.walk(tree)
            for name, child in ast.iter_fields(node)
            if isinstance(child, ast.expr) and isinstance(getattr(child, "ctx", ast.Load()), ast.Load)
        ]
        node, name = rng.choice(places)
        setattr(node, name, rng.choice(pool))
    try:
        return ast.unparse(tree)
    except (RecursionError, ValueError):
        return source


@pytest.mark.parametrize("kind", ["text", "tree"])
def test_mutations_raise_nothing_else(kind):
    """Whatever the text, the one error is `SandboxError`, and it comes soon."""
    rng, sources, outcomes = random.Random(0), list(VALID.values()), {"admitted": 0, "gate": 0, "trace": 0}
    others = [*sources, *(value(text) for text in hostile.GUARDED)]
    every = [node for text in others for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr)]
    pool = [node for node in every if isinstance(getattr(node, "ctx", ast.Load()), ast.Load)]
    for _ in range(200):
        source = rng.choice(sources)
        source = mutated(source, rng) if kind == "text" else crossed(source, pool, rng)
        started = time.process_time()
        stage = "gate"
        try:
            check(source)
            stage = "trace"
            trace(source, SPEC)
            stage = "admitted"
        except SandboxError as error:
            assert error.line is None or 1 <= error.line <= len(source.splitlines()) + 1
            assert len(str(error)) < 1000
        outcomes[stage] += 1
        assert time.process_time() - started < 5, source
    print(outcomes)
    assert outcomes["gate"] > 20 and min(outcomes.values()) >= (20 if kind == "tree" else 5), outcomes


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_function_works_on_large_numbers_at_once(name):
    """Numbers such as `n` of jnp.diff repeat work while a program is traced; each is refused or costs nothing."""
    spelled = "jax." + name if name.startswith("nn.") else name
    large = 2_000_000_000
    arguments = [f"{large}", f"f, {large}", f"x, -{large}", f"f, f, {large}", f"x, ({large}, {large})", "x, 1e300"]
    try:
        keywords = sorted(KEYWORDS & signature(FUNCTIONS[name]).parameters.keys())
    except ValueError:  # types, and some of JAX's own
        keywords = ["axis", "n", "k", "decimals", "size"]
    for given in (*arguments, *(f"f, {keyword}={large}" for keyword in keywords)):
        text = f"x = obs['image'][..., 0]\nf = x + 0.5\ny = {spelled}({given})\nreturn 0.0, {{}}"
        started = time.process_time()
        try:
            trace(body(text), SPEC)
        except SandboxError as error:
            assert "memory" not in str(error)
        assert time.process_time() - started < 3, text
