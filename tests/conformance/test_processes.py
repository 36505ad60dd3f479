"""What a user's process does with worlds and learners: copies, pickles, workers, threads, caches, debug settings."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.bridges import gymnasium as bridge
from envs_jax.resets import VectorEnv
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE, algorithm
from tests.conformance.subjects import LEARNERS, first_of_each_kind, one_update, quickly
from tests.conformance.test_settings import bits, program, types


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


COPIES = {"pickle": pickled, "copy": copy.copy, "deepcopy": copy.deepcopy}
RUN = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Debug-Recall-v0", "Taxi-v3")
"""Worlds that compile in no time."""


def played(env: Any, params: Any) -> Any:
    """A reset and a step."""
    keys = jax.random.split(jax.random.key(0), 3)
    _, state = env.reset(keys[0], params)
    return env.step(keys[1], state, env.action_space(params).sample(keys[2]), params)


def same(one: Any, two: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(bits(x), bits(y)), one, two)


@pytest.mark.parametrize("id", first_of_each_kind())
def test_worlds_are_copied(id):
    env, params = envs_jax.make(id)
    shapes = jax.tree.map(np.shape, params)
    for name, made in COPIES.items():
        twin, same_params, space = made(env), made(params), made(env.observation_space(params))
        assert type(twin) is type(env) and twin.id == env.id == id and twin is not env, name
        assert jax.tree.map(np.shape, same_params) == shapes and type(space) is type(env.observation_space(params))


@pytest.mark.parametrize("id", [*RUN, pytest.param("BabyAI-GoToObj-v0?room_size=6", marks=pytest.mark.slow)])
def test_copies_play_the_same(id):
    env, params = envs_jax.make(id)
    env = EpisodeStatistics(env)
    text = program(lambda: played(env, params))
    for made in COPIES.values():
        assert program(lambda made=made: played(*made((env, params)))) == text
    batch = VectorEnv(env, 2, policy="always")
    assert program(lambda: played(pickled(batch), params)) == program(lambda: played(batch, params))


def test_a_changed_copy_changes_no_other():
    env, _ = envs_jax.make("CartPole-v1")
    for made in (copy.copy, copy.deepcopy):
        twin = made(env)
        twin.id = "other"
        assert env.id == "CartPole-v1" and made(twin).id == "other"


@pytest.mark.parametrize("name", [*ALGORITHMS, *OFFLINE])
def test_configurations_are_copied(name):
    config = algorithm(name).config()
    assert all(made(config) == config for made in COPIES.values())


@pytest.mark.parametrize("name", quickly(LEARNERS, ("ppo", "iql")))
def test_learners_are_copied(name):
    """By `cloudpickle`, as Ray, joblib and submitit do: schedules of optax are local functions."""
    learner = LEARNERS[name]()
    start = jax.random.key(0)
    state = jax.eval_shape(learner.init, start)
    after = types(jax.eval_shape(learner.update, state))
    assert types(jax.eval_shape(copy.deepcopy(learner).update, state)) == after
    cloudpickle = pytest.importorskip("cloudpickle")
    assert types(jax.eval_shape(pickle.loads(cloudpickle.dumps(learner)).update, state)) == after


def test_states_are_pickled():
    update, start = one_update("dqn")
    state, metrics = jax.jit(update)(start)
    same(pickled((state, metrics)), (state, metrics))
    same(copy.deepcopy(state), state)


def test_gymnasium_copies_go_their_own_way():
    env = bridge.make("CartPole-v1")
    env.reset(seed=3)
    twins = [made(env) for made in COPIES.values()]
    after = env.step(1)[0]
    for twin in twins:
        np.testing.assert_array_equal(twin.step(1)[0], after)
    batch = bridge.make_vec("CartPole-v1", 2)
    batch.reset(seed=3)
    twin = pickled(batch)
    np.testing.assert_array_equal(twin.step(np.array([1, 0]))[0], batch.step(np.array([1, 0]))[0])


WORKER = """
import pickle, sys
import jax
with open(sys.argv[1], "rb") as file:
    env, params, state, key, action = pickle.load(file)
obs, after, reward, *_ = jax.jit(env.step)(key, state, action, params)
with open(sys.argv[2], "wb") as file:
    pickle.dump((obs, after, reward), file)
"""


def test_a_worker_goes_on_with_an_episode(tmp_path):
    """In a new process, from what was pickled in this one, in the middle of an episode."""
    env, params = envs_jax.make("CartPole-v1")
    key = jax.random.key(5)
    _, state = env.reset(key, params)
    (tmp_path / "in").write_bytes(pickle.dumps((EpisodeStatistics(env).env, params, state, key, np.int32(1))))
    command = [sys.executable, "-c", WORKER, str(tmp_path / "in"), str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=100, cwd=Path(envs_jax.__file__).parents[1])
    obs, after, reward, *_ = jax.jit(env.step)(key, state, jnp.int32(1), params)
    same(pickle.loads((tmp_path / "out").read_bytes()), (obs, after, reward))


ASYNC = """
import functools
import gymnasium, numpy as np
from envs_jax.bridges import gymnasium as bridge

if __name__ == "__main__":
    here = bridge.make("CartPole-v1")
    expected = [here.reset(seed=7)[0], here.step(1)[0]]
    make = functools.partial(bridge.make, "CartPole-v1")
    for context in ("spawn", "forkserver"):
        env = gymnasium.vector.AsyncVectorEnv([make, make], context=context)
        found = [env.reset(seed=[7, 8])[0][0], env.step(np.array([1, 1]))[0][0]]
        env.close()
        np.testing.assert_array_equal(found, expected)
"""


@pytest.mark.slow
def test_gymnasium_workers(tmp_path):
    (tmp_path / "program.py").write_text(ASYNC)
    environment = {"PYTHONPATH": str(Path(envs_jax.__file__).parents[1]), "PATH": ""}
    subprocess.run([sys.executable, str(tmp_path / "program.py")], check=True, timeout=300, env=environment)


def test_threads_have_settings_of_their_own():
    """One traces under x64, one under strict promotion, one under neither, all at once, a world made elsewhere."""
    environments = {id: envs_jax.make(id) for id in ("Pendulum-v1", "Taxi-v3")}

    def run(number: int) -> dict[str, Any]:
        settings: Any = (jax.enable_x64(True), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("standard"))
        with settings[number % 3]:
            return {
                id: jax.jit(lambda env=env, params=params: played(env, params))()
                for id, (env, params) in environments.items()
            }

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(run, range(6)))
    for found in results:
        same(found, run(2))


def test_caches_are_cleared_between_steps():
    env, params = envs_jax.make("CartPole-v1")
    batch = bridge.make("CartPole-v1")
    before = jax.jit(lambda: played(env, params))()
    batch.reset(seed=1)
    jax.clear_caches()
    same(jax.jit(lambda: played(env, params))(), before)
    assert np.isfinite(batch.step(0)[0]).all()


@pytest.mark.parametrize("id", RUN)
def test_worlds_under_settings_for_debugging(id):
    """No nan on the way, nothing implicit between host and device, and the same without `jit`."""
    env, params = envs_jax.make(id)
    params = jax.device_put(params)
    step = jax.jit(lambda key: played(env, params))
    key = jax.random.key(0)
    expected = step(key)
    with jax.debug_nans(True), jax.debug_infs(True):
        same(jax.jit(lambda key: played(env, params))(key), expected)
    with jax.transfer_guard("disallow"):
        step(key)
    with jax.disable_jit():
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(bits(x), bits(y), rtol=1e-5), played(env, params), expected
        )


@pytest.mark.parametrize("name", quickly(LEARNERS, ("ppo",)))
def test_states_have_no_nan(name):
    """A metric may be nan, where an update has nothing to report; so it is left out here."""
    update, start = one_update(name)
    with jax.debug_nans(True):
        state = jax.jit(lambda start: update(start)[0])(start)
    if name != "sft":
        go_on = jax.jit(LEARNERS[name]().update)
        state, _ = go_on(state)
        with jax.transfer_guard("disallow"):
            go_on(state)
