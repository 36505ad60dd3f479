"""Every world and every learner under the settings that a user's process may have, and what the process does with them.

What fails while tracing is looked at by tracing, all settings at once; values are compared where they could change.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import envs_jax
from envs_jax.resets import VectorEnv
from tests.conformance.subjects import LANGUAGE, LEARNERS, ONE_OF_EACH, first_of_each_kind, one_update, quickly


@contextlib.contextmanager
def strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


SETTINGS: dict[str, Callable[[], Any]] = {
    "strict promotion": strict,
    "x64": lambda: jax.enable_x64(True),
    "rbg": lambda: jax.default_prng_impl("unsafe_rbg"),
    "bfloat16": lambda: jax.default_matmul_precision("bfloat16"),
    "threefry": lambda: jax.threefry_partitionable(False),
}


@contextlib.contextmanager
def every_setting() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for setting in SETTINGS.values():
            stack.enter_context(setting())
        yield


UNDER = [
    pytest.param(every_setting, id="all"),
    *[pytest.param(x, id=name, marks=pytest.mark.slow) for name, x in SETTINGS.items()],
]


def steps(id: str, *, rows: int = 2) -> Callable[[jax.Array], Any]:
    """A reset and a step of a world alone and of a batch, as a function of a key."""
    env, params = envs_jax.make(id)
    batch, space = VectorEnv(env, rows, policy="pool", pool_size=2), env.action_space(params)

    def play(key):
        keys = jax.random.split(key, 6)
        _, alone = env.reset(keys[0], params)
        _, many = batch.reset(keys[1], params)
        actions = jax.vmap(space.sample)(jax.random.split(keys[2], rows))
        return env.step(keys[3], alone, space.sample(keys[4]), params), batch.step(keys[5], many, actions, params)

    return play


def types(tree: Any) -> Any:
    """Shapes and dtypes; those of keys as `key`, whatever the generator."""
    kinds = lambda x: "key" if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else str(x.dtype)  # noqa: E731
    return jax.tree.map(lambda x: (tuple(x.shape), kinds(x)), tree)


# Worlds of a family are made of the same parts, and take longest to trace: a level with text
QUICK = ("BabyAI-Text/GoToRedBallGrey-v0",)
KINDS = first_of_each_kind()
FAMILIES = ("BabyAI", "CLEVR", "Crafter")
WORLDS = [
    pytest.param(id, marks=pytest.mark.slow) if id.startswith(FAMILIES) and id not in QUICK else id for id in KINDS
]


@pytest.mark.parametrize("setting", UNDER)
@pytest.mark.parametrize("id", WORLDS)
def test_worlds_trace(id, setting):
    play = steps(id)
    plain = jax.eval_shape(play, jax.random.key(0))
    with setting():
        assert types(jax.eval_shape(play, jax.random.key(0))) == types(plain)


CHEAP = ("CartPole-v1", "Pendulum-v1", "Taxi-v3")
"""Worlds that compile in a second, with discrete and continuous actions, and with tables."""


def over_devices(function: Callable[..., Any], *, rows: Any, out: Any = None) -> Callable[..., Any]:
    """A function of rows under `jax.shard_map` as it is by default, over two devices, beside an axis unused."""
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("rows", "other"), auto, devices=jax.devices()[:4])
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows if out is None else out))


@pytest.mark.parametrize("id", quickly(KINDS, CHEAP))
def test_worlds_trace_in_shard_map(id):
    play = steps(id)

    def one(keys):
        return jax.tree.map(lambda x: x[None], play(keys[0]))

    keys, rows = jax.random.split(jax.random.key(0), 2), PartitionSpec("rows")
    whole, split = (jax.eval_shape(f, keys) for f in (jax.vmap(play), over_devices(one, rows=rows)))
    assert types(split) == types(whole)


@pytest.mark.parametrize(
    "id", ["CartPole-v1", pytest.param("BabyAI-GoToDoor-v0", marks=pytest.mark.slow), "Housekeep-v0"]
)
def test_rows_of_shard_map_are_those_of_vmap(id):
    env, params = envs_jax.make(id)
    keys, rows = jax.random.split(jax.random.key(0), 4), PartitionSpec("rows")
    reset = jax.vmap(lambda key: env.reset(key, params)[0])
    whole, split = jax.jit(reset)(keys), over_devices(reset, rows=rows)(keys)
    jax.tree.map(np.testing.assert_array_equal, split, whole)


@pytest.mark.parametrize("id", [id if id in CHEAP else pytest.param(id, marks=pytest.mark.slow) for id in KINDS])
def test_worlds_play_the_same_under_x64(id):
    """Bit for bit."""
    narrow = jax.jit(steps(id))(jax.random.key(1))
    with jax.enable_x64(True):
        wide = jax.jit(steps(id))(jax.random.key(1))
    for x, y in zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True):
        np.testing.assert_array_equal(bits(x), bits(y))


def program(function: Callable[..., Any], *args: Any) -> str:
    """Text of a program, with variables numbered in their order: equal texts mean equal bits."""
    numbers: dict[str, str] = {}
    text = re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(function)(*args)))
    return re.sub(r"\b[a-z]{1,4}\b", lambda name: numbers.setdefault(name[0], str(len(numbers))), text)


@pytest.mark.parametrize("setting", UNDER)
@pytest.mark.parametrize("name", quickly(LEARNERS, {*ONE_OF_EACH, "grpo", "glam"}))
def test_learners_trace(name, setting):
    update, start = one_update(name)
    plain = jax.eval_shape(update, start)
    with setting():
        update, start = one_update(name)
        assert types(jax.eval_shape(update, start)) == types(plain)


@pytest.mark.parametrize("name", quickly(LEARNERS, set(ONE_OF_EACH) - {"agent, gigpo"}))
def test_learners_compute_the_same_under_x64(name):
    update, start = one_update(name)
    plain = program(update, start)
    with jax.enable_x64(True):
        update, wide = one_update(name)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(bits(x), bits(y)), wide, start)
        assert program(update, wide) == plain


def bits(x: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


@pytest.mark.parametrize("name", quickly(LEARNERS, ("ppo", "iql", "sft")))
def test_learners_trace_in_shard_map(name):
    update, start = one_update(name)
    if name == "sft":
        jax.eval_shape(over_devices(update, rows=PartitionSpec()), start)
        return
    keys, rows = jax.random.split(start, 2), PartitionSpec("rows")
    inside = jax.vmap(update)
    if name.startswith("agent, "):  # JAX refuses what is closed over by a `cond` under `vmap` inside `shard_map`
        inside = lambda keys: jax.tree.map(lambda x: x[None], update(keys[0]))  # noqa: E731
    whole, split = (jax.eval_shape(f, keys) for f in (jax.vmap(update), over_devices(inside, rows=rows)))
    assert types(split) == types(whole)


PROMPTS = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], np.int32)


@pytest.mark.parametrize("setting", UNDER)
@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_trace(name, setting):
    plain = jax.eval_shape(LANGUAGE[name], jnp.asarray(PROMPTS))
    with setting():
        assert types(
            jax.eval_shape(LANGUAGE[name], jnp.asarray(PROMPTS, jnp.int64 if jax.config.jax_enable_x64 else jnp.int32))
        ) == types(plain)


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_trace_in_shard_map(name):
    if name != "gradient":
        jax.eval_shape(over_devices(LANGUAGE[name], rows=PartitionSpec("rows")), jnp.asarray(PROMPTS))


def test_gradients_of_shared_weights_are_summed_over_devices():
    whole = jax.jit(LANGUAGE["gradient"])(jnp.asarray(PROMPTS))
    split = over_devices(LANGUAGE["gradient"], rows=PartitionSpec("rows"), out=PartitionSpec())(jnp.asarray(PROMPTS))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), split, whole)


@pytest.mark.parametrize("name", ["generate", "generate, all options"])
def test_generate_closes_over_its_arguments(name):
    tokens = jnp.asarray(PROMPTS)
    inside = jax.jit(lambda: LANGUAGE[name](tokens))()
    with jax.enable_x64(True):
        outside = LANGUAGE[name](jnp.asarray(PROMPTS, jnp.int64))
    np.testing.assert_array_equal(inside.tokens, outside.tokens)
    np.testing.assert_allclose(inside.log_probs, outside.log_probs, rtol=1e-5)


@pytest.mark.parametrize("name", ["CartPole-v1", "Housekeep-v0", "ppo", "iql"])
def test_no_tracer_leaks(name):
    """Of few: references in jax's own caches are reported as leaks too, and looking for them is slow."""
    function, start = one_update(name) if name in LEARNERS else (steps(name), jax.random.key(0))
    with jax.checking_leaks():
        jax.eval_shape(function, start)


def test_loops_are_those_of_tracing():
    """The others refuse a constant at their start inside `jax.shard_map`."""
    folder = Path(envs_jax.__file__).parent
    others = re.compile(r"lax\.(scan|while_loop|fori_loop|cond|switch)\(")
    allowed = {"envs_jax/tracing.py", "llmrl_jax/run/chunk.py"}  # the latter is the program of a run
    files = [path for root in ("envs_jax", "llmrl_jax") for path in (folder.parent / root).rglob("*.py")]
    found = {str(path.relative_to(folder.parent)) for path in files if others.search(path.read_text("utf-8"))}
    assert found <= allowed
