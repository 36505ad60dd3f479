"""Craftax's worlds under our interface: a stand-in shows the adapter, and the package itself where it is installed."""

from __future__ import annotations

import enum
import importlib.util
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs_jax
from envs_jax import spaces, testing
from envs_jax.bridges import craftax as bridge
from envs_jax.crafter.constants import ACHIEVEMENTS


@struct.dataclass
class StandInParams:
    max_timesteps: int = 4


@struct.dataclass
class StandInState:
    health: jax.Array
    timestep: jax.Array
    achievements: jax.Array


class StandInClassicNoAutoReset:
    """Methods of a craftax environment that the adapter calls; the action is the damage."""

    name = "Craftax-Classic-Symbolic-NoAutoReset-v1"
    default_params = StandInParams()

    def reset_env(self, key, params):
        state = StandInState(jnp.int32(9), jnp.int32(0), jnp.zeros(2, bool))
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        after = StandInState(state.health - action, state.timestep + 1, state.achievements.at[action].set(True))
        return self.get_obs(after), after, 1, self.is_terminal(after, params), {"Achievements/eat_cow": 100.0}

    def get_obs(self, state):
        return jnp.stack([state.health / 9, state.timestep / 9]).astype(jnp.float32)

    def is_terminal(self, state, params):
        return (state.health <= 0) | (state.timestep >= params.max_timesteps)

    def observation_space(self, params):
        return types.SimpleNamespace(low=0.0, high=1.0, shape=(2,), dtype=jnp.float32)


@pytest.fixture
def stand_in(monkeypatch):
    """Modules in place of the package's."""
    environments = types.ModuleType("craftax.craftax_env")
    constants = types.ModuleType("craftax.craftax_classic.constants")
    renderer = types.ModuleType("craftax.craftax_classic.renderer")
    asked = []

    def make(name, auto_reset):
        asked.append((name, auto_reset))
        return StandInClassicNoAutoReset()

    environments.make_craftax_env_from_name = make
    constants.Action = enum.Enum("Action", {"NOOP": 0, "DO": 1})
    constants.Achievement = enum.Enum("Achievement", {"PLACE_TABLE": 0, "EAT_COW": 1})
    renderer.make_craftax_pixel_renderer = lambda size: lambda state: jnp.full((size, size, 3), 255.0)
    for module in (environments, constants, renderer):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "craftax", types.ModuleType("craftax"))
    monkeypatch.setitem(sys.modules, "craftax.craftax_classic", types.ModuleType("craftax.craftax_classic"))
    return asked


def test_without_craftax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "craftax", None)
    monkeypatch.delitem(sys.modules, "craftax.craftax_env", raising=False)
    with pytest.raises(ModuleNotFoundError, match="craftax.*`craftax`") as caught:
        envs_jax.make("craftax/Craftax-Classic-Symbolic-v1")
    assert caught.value.name == "craftax"


def test_the_adapter(stand_in):
    env, params = envs_jax.make("craftax/Craftax-Classic-Symbolic-v1")
    assert stand_in == [("Craftax-Classic-Symbolic-v1", False)]
    assert env.id == "craftax/Craftax-Classic-Symbolic-v1" and params.max_timesteps == 4
    assert env.action_names == ("noop", "do") and env.action_space(params) == spaces.Discrete(2)
    assert env.observation_space(params) == spaces.Box(0.0, 1.0, (2,))
    assert env.achievement_names == ("eat_cow", "place_table")
    obs, state = env.reset(jax.random.key(0), params)
    obs, state, reward, terminated, truncated, info = env.step(jax.random.key(1), state, 1, params)
    assert obs.tolist() == pytest.approx([8 / 9, 1 / 9]) and reward.dtype == jnp.float32
    assert (bool(terminated), bool(truncated)) == (False, False)
    assert list(info) == ["achievements"] and info["achievements"].dtype == jnp.int32
    assert info["achievements"].tolist() == [1, 0]  # in the order of the names, not of the package's numbers
    assert env.render(state).shape == (16, 16, 3) and env.render(state).dtype == np.uint8


@pytest.mark.parametrize(
    "health, time, flags", [(9, 3, (False, True)), (1, 1, (True, False)), (1, 3, (True, True)), (9, 2, (False, False))]
)
def test_death_and_time_outs_are_apart(stand_in, health, time, flags):
    env, params = bridge.from_craftax("Craftax-Classic-Symbolic-v1")
    state = StandInState(jnp.int32(health), jnp.int32(time), jnp.zeros(2, bool))
    obs, after, _, terminated, truncated, _ = env.step(jax.random.key(0), state, 1, params)
    assert (bool(terminated), bool(truncated)) == flags
    assert int(after.timestep) == time + 1 and obs[0] == pytest.approx((health - 1) / 9)  # no reset


def test_bad_input(stand_in):
    with pytest.raises(KeyError, match="'Craftax-Classic-Pixels-v1'"):
        envs_jax.make("craftax/Craftax-Clasic-Pixels-v1")
    with pytest.raises(ValueError, match="max_steps.*0.*1"):
        envs_jax.make("craftax/Craftax-Classic-Symbolic-v1?max_steps=0")
    assert envs_jax.make("craftax/Craftax-Classic-Symbolic-v1?max_steps=7")[1].max_timesteps == 7
    with pytest.raises(TypeError, match="NoAutoReset"):
        bridge.FromCraftax(types.SimpleNamespace())


# --- the package ------------------------------------------------------------------------------------------------------

installed = pytest.mark.skipif(importlib.util.find_spec("craftax") is None, reason="craftax is not installed")


@installed
@pytest.mark.slow
@pytest.mark.parametrize("name, actions, size", [("Classic-", 17, 1345), ("", 43, 8268)])
def test_craftax_keeps_the_contract(name, actions, size):
    symbolic, params = envs_jax.make(f"craftax/Craftax-{name}Symbolic-v1")
    pixels, _ = envs_jax.make(f"craftax/Craftax-{name}Pixels-v1")
    assert len(symbolic.action_names) == actions and symbolic.action_names[1] == "left"
    assert symbolic.observation_space(params).shape == (size,)
    for env in (symbolic, pixels):
        testing.check_contract(env, params, policies=("pool",), x64=False)


@installed
@pytest.mark.slow
def test_craftax_classic_is_played():
    env, params = envs_jax.make("craftax/Craftax-Classic-Symbolic-v1?max_steps=12")
    assert env.achievement_names == ACHIEVEMENTS
    testing.check(
        env, params, steps=16, num_envs=4, policies=("always", "pool"), eager=False, x64=False, devices_atol=1e-5
    )
    obs, state = env.reset(jax.random.key(0), params)
    step = jax.jit(env.step)
    for t in range(12):
        obs, state, _, terminated, truncated, info = step(
            jax.random.key(t), state, env.action_names.index("sleep"), params
        )
    assert (bool(terminated), bool(truncated)) == (False, True) and int(state.timestep) == 12
    picture = env.render(state)
    assert picture.shape == (9 * 16, 9 * 16, 3) and picture.dtype == np.uint8 and picture.std() > 10
    dead = state.replace(player_health=jnp.int32(0), timestep=jnp.int32(1))
    _, _, _, terminated, truncated, _ = step(jax.random.key(0), dead, 0, params)
    assert (bool(terminated), bool(truncated)) == (True, False)
