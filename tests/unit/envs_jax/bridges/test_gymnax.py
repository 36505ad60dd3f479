"""Our worlds under gymnax's interface, and gymnax's under ours; what needs gymnax is skipped where it is missing."""

from __future__ import annotations

import importlib.metadata
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import spaces, testing
from envs_jax.bridges import arrays, gymnax as bridge


def installed():
    """gymnax of version 1.0 or newer; skips the test where there is none."""
    try:
        return bridge._gymnax()
    except ImportError as error:
        pytest.skip(str(error))


def pick(tree, rows):
    return jax.tree.map(lambda x: x[rows], tree)


def test_without_gymnax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ModuleNotFoundError, match="gymnax.*`control`") as caught:
        bridge.make("CartPole-v1")
    assert caught.value.name == "gymnax"
    monkeypatch.setitem(sys.modules, "gymnax", types.ModuleType("gymnax"))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9")
    with pytest.raises(ImportError, match=r"1\.0.*six.*0\.0\.9"):
        bridge.from_gymnax("CartPole-v1")


def test_numbers_are_narrowed():
    with jax.enable_x64(True):
        tree = arrays.narrow({"time": 0, "x": np.float64(1.5), "on": True, "key": jax.random.key(0)})
    assert {name: str(x.dtype) for name, x in tree.items()} == {
        "time": "int32",
        "x": "float32",
        "on": "bool",
        "key": "key<fry>",
    }


@pytest.mark.parametrize(
    "id", ["CartPole-v1", "Debug-Aim-v0", pytest.param("BabyAI-Text/GoToObjS4-v0", marks=pytest.mark.slow)]
)
def test_our_worlds_step_and_reset_as_gymnaxs_do(id):
    theirs = installed().environments
    env, params = bridge.make(id)
    world, _ = envs_jax.make(id)
    assert isinstance(env, theirs.environment.Environment) and env.name == id
    key = jax.random.key(1)
    (obs, state), (first, _) = jax.jit(lambda: (env.reset(key, params), world.reset(key, params)))()
    testing.assert_same(obs, first, "the first observation", atol=1e-6)
    n, steps = 4, 40
    states = jax.tree.map(lambda x: np.stack([x] * n), jax.device_get(state))
    space = env.action_space(params)

    def step(states, key):
        act_key, step_key = jax.random.split(key)
        actions = jax.vmap(space.sample)(jax.random.split(act_key, n))
        keys = jax.random.split(step_key, n)
        played = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, states, actions, params)

        def ours(key, state, action):
            step_key, reset_key = jax.random.split(key)  # gymnax's own order
            return world.step(step_key, state.env, action, params), world.reset(reset_key, params)

        return played[1], (played, jax.vmap(ours)(keys, states, actions))

    play = jax.jit(lambda states: jax.lax.scan(step, states, jax.random.split(jax.random.key(2), steps))[1])
    played, (stepped, fresh) = jax.device_get(play(states))
    obs, after, reward, terminated, truncated, info = played
    testing.assert_same((reward, terminated, truncated), stepped[2:5], "reward and flags", atol=1e-5)
    testing.assert_same(info["final_observation"], stepped[0], "the observation before the reset", atol=1e-5)
    over = terminated | truncated
    assert over.any() and not over.all()
    for when, expected in ((over, fresh), (~over, stepped[:2])):
        rows = np.nonzero(np.asarray(when))
        testing.assert_same(pick((obs, after.env), rows), pick(expected, rows), "what goes on", atol=1e-5)
    assert np.all(np.asarray(after.time)[np.asarray(over)] == 0)


def test_spaces_of_our_worlds():
    theirs = installed().environments.spaces
    env, params = bridge.make("BabyAI-GoToLocal-v0")
    space = env.observation_space(params)
    assert isinstance(space, theirs.Dict) and space.spaces["image"].shape == (7, 7, 3)
    assert space.spaces["image"].dtype == np.uint8 and space.spaces["direction"].n == 4
    assert env.num_actions == env.action_space().n == 7
    assert bridge.make("Debug-Aim-v0")[0].num_actions == 1


def test_gymnaxs_wrappers_take_our_worlds():
    installed()
    from gymnax.wrappers import LogWrapper

    env, params = bridge.make("Debug-Catch-v0")
    logged = LogWrapper(env)
    (_, state), step = jax.jit(logged.reset)(jax.random.key(0), params), jax.jit(logged.step)
    for t in range(5):
        _, state, *_, info = step(jax.random.key(t), state, 1, params)
    assert int(info["returned_episode_lengths"]) == 5 and bool(info["returned_episode"])


@pytest.mark.slow
def test_gymnaxs_cartpole_passes_the_conformance_kit():
    installed()
    env, params = bridge.from_gymnax("CartPole-v1")
    assert env.id == "gymnax/CartPole-v1" and env.action_space(params) == spaces.Discrete(2)
    assert np.isinf(env.observation_space(params).high).tolist() == [False, True, False, True]
    # gymnax draws in the width of jax_enable_x64
    testing.check(env, params, steps=24, policies=("always", "pool"), x64=False, devices=8, devices_atol=1e-4)


def test_gymnaxs_cartpole_is_ours():
    installed()
    theirs, their_params = bridge.from_gymnax("CartPole-v1")
    ours, our_params = envs_jax.make("CartPole-v1")
    their_params = their_params.replace(max_steps_in_episode=30)
    our_params = our_params.replace(max_steps=30)
    obs, state = theirs.reset(jax.random.key(0), their_params)
    mine = envs_jax.control.cartpole.CartPoleState(obs, jnp.int32(0))
    step, my_step = jax.jit(theirs.step), jax.jit(ours.step)
    for t in range(30):
        action = jnp.int32(t % 2)
        obs, state, *rest = step(jax.random.key(t), state, action, their_params)[:5]
        my_obs, mine, *my_rest = my_step(jax.random.key(t), mine, action, our_params)[:5]
        testing.assert_same((obs, rest), (my_obs, my_rest), f"step {t}", atol=1e-5)
    assert bool(rest[2]) and not bool(rest[1])


def test_a_constant_action_in_a_program_of_a_bridged_world():
    installed()
    env, params = envs_jax.make("gymnax/Pendulum-v1")
    key = jax.random.key(0)
    _, state = jax.eval_shape(env.reset, key, params)
    jax.eval_shape(lambda s, p: env.step(key, s, np.zeros(1, np.float32), p)[2], state, params)
