"""Every registered world keeps the contract; one of each kind is run through the whole kit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import testing
from envs_jax.env import Environment
from envs_jax.spaces import Box, Discrete
from tests.conformance.subjects import first_of_each_kind, quickly


SMALL = [*envs_jax.ids("CartPole"), *envs_jax.ids("Debug-"), "MountainCarContinuous-v0", "FrozenLake-v1"]
GRIDS = ["BabyAI-GoToLocalS5N2-v0"]
LARGE = [
    "BabyAI-PutNextLocal-v0",
    "BabyAI-MixedTrainLocal-v0",
    "BabyAI-GoTo-v0",
    "BabyAI-Unlock-v0",
    "BabyAI-KeyInBox-v0",
    "BabyAI-PutNextS5N2Carrying-v0",
    "BabyAI-KeyCorridorS3R3-v0",
    "BabyAI-MiniBossLevel-v0",
    "BabyAI-BossLevel-v0",
    "BabyAI-Text/GoToLocal-v0",
    "BabyAI-Text/BossLevel-v0",
    "Housekeep-v0",
    "Housekeep-Macro-v0",
    "SokobanText-2boxes-v0",
    "2048Text-v0",
    "Notes-Count-v0",
    "CrafterText-v1?image=gray&frames=4&pixels=36",
]


KINDS = first_of_each_kind()
OTHER_CRAFTERS = [id for id in KINDS if id.startswith("Crafter") and id != "CrafterText-v1"]
STARTS = ("NavigationTrack-v0", "Housekeep-v0", "2048Text-v0", "Taxi-v4", "Nim-v0")
"""Worlds that between them draw in every way; those of grids and rooms take seconds to compile."""
LEVELS = (
    *("BabyAI-GoToRedBallGrey-v0", "BabyAI-GoToLocal-v0", "BabyAI-Open-v0", "BabyAI-PutNextLocal-v0"),
    *("BabyAI-Unlock-v0", "BabyAI-KeyInBox-v0", "BabyAI-BossLevel-v0", "BabyAI-MixedTrainLocal-v0"),
    "BabyAI-Text/GoToRedBallGrey-v0",
)
"""Levels are made of the same rooms, objects and missions: some of each module, for the ordinary run."""
CHECKED = {id for id in KINDS if id in LEVELS or not id.startswith("BabyAI")} - {*OTHER_CRAFTERS}
WHOLE = ("CartPole-v1", "Debug-Match-v0", "Debug-Recall-v0", "MountainCarContinuous-v0", "FrozenLake-v1")
IN_KIT = {*WHOLE, *GRIDS}  # the whole kit begins with the contract
ALL = [id if id in CHECKED - IN_KIT else pytest.param(id, marks=pytest.mark.slow) for id in envs_jax.ids()]


@pytest.mark.parametrize("id", ALL)
def test_contract(id):
    testing.check_contract(*envs_jax.make(id), x64=False)  # which test_x64 and test_settings look at


@pytest.mark.parametrize("id", quickly([*KINDS, "CLEVR-Robot-v0?obs=goal"], STARTS))
def test_x64(id):
    testing.check_x64(*envs_jax.make(id))


@pytest.mark.parametrize("id", quickly(KINDS, [id for id in KINDS if envs_jax.registry.spec(id).family == "control"]))
def test_spaces_of_traced_parameters(id):
    env, params = envs_jax.make(id)
    key = jax.eval_shape(lambda: jax.random.key(0))
    for space in (env.observation_space, env.action_space):
        member = jax.eval_shape(lambda key, params, space=space: space(params).sample(key), key, params)
        assert member == jax.eval_shape(space(params).sample, key)


TOYS = ("Debug-", "Sokoban", "2048", "Notes-", "FrozenLake", "Cliff", "Taxi", "Blackjack", "Nim", "maze")


@pytest.mark.parametrize("id", quickly(KINDS, [id for id in KINDS if id.startswith(TOYS)]))
def test_a_python_integer_is_an_action(id):
    env, params = envs_jax.make(id)
    if isinstance(env.action_space(params), Discrete):
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(env.reset, key, params)[1]
        after = jax.eval_shape(lambda key, state: env.step(key, state, 1, params)[1], key, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)


SPLIT = ("CartPole-v1", "Debug-Match-v0")
"""What rows on other devices do is seen in these; the slow cases look at all."""
KITS = [(id, 8 if id in SPLIT else 0) for id in WHOLE]
KITS += [pytest.param(id, 8, marks=pytest.mark.slow) for id in SMALL if id not in SPLIT]


@pytest.mark.parametrize("id, devices", KITS)
def test_whole_kit(id, devices):
    policies = ("always", "pool", "optimistic") if id == "CartPole-v1" else ("pool",)
    atol = 1e-4 if id == "CartPole-v1" else 0.0
    testing.check(*envs_jax.make(id), steps=24, policies=policies, devices=devices, devices_atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("id", GRIDS)
def test_whole_kit_of_a_grid_world(id):
    """Without x64: that of a grid world is looked at in `test_x64`."""
    testing.check(*envs_jax.make(id), steps=24, policies=("pool",), eager=False, x64=False, devices=8)


@pytest.mark.slow
@pytest.mark.parametrize("id", LARGE)
def test_whole_kit_of_larger_worlds(id):
    testing.check(*envs_jax.make(id), steps=80, policies=("pool",), eager=False, devices=8)


class Stub(Environment):
    """Counts to 3; then it terminates and truncates at once. `fault` breaks one clause of the contract."""

    id = "Stub"

    def __init__(self, fault=""):
        self.fault = fault

    @property
    def default_params(self):
        return {"length": 3}

    def reset(self, key, params):
        obs = jnp.zeros(1, jnp.float32)
        if self.fault == "draw":
            obs = jax.random.uniform(key, (1,)).astype(jnp.float32)
        return obs, jnp.int32(0)

    def step(self, key, state, action, params):
        state = state + 1
        obs = jnp.full(1, state, jnp.float32)
        reward, over = jnp.float32(1), state >= params["length"]
        terminated, info = over, {}
        if self.fault == "observation":
            obs = jnp.zeros(2, jnp.float32)
        if self.fault == "state":
            state = state.astype(jnp.float32)
        if self.fault == "reward":
            reward = jnp.int32(1)
        if self.fault == "flag":
            terminated = over.astype(jnp.float32)
        if self.fault == "info":
            info = {"final_observation": obs}
        if self.fault == "x64":
            obs = jnp.full(1, jnp.arange(3.0).sum())
        if self.fault == "space":
            obs = obs + 100
        if self.fault == "finite":
            reward = reward / (state - 2)
        if self.fault == "memory":
            self.traces = getattr(self, "traces", 0) + 1
            reward = reward * self.traces
        return obs, state, reward, terminated, over, info

    def observation_space(self, params):
        return Box(0.0, 50.0, (1,), np.float32)

    def action_space(self, params):
        return Discrete(2)


def test_terminated_and_truncated_at_once():
    env = Stub()
    testing.check(env, env.default_params, steps=5, devices=8)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("observation", "observations.*reset.*step"),
        ("state", "states"),
        ("reward", "reward.*int32"),
        ("flag", "terminated.*float32"),
        ("info", "final_observation"),
        ("x64", "x64, types"),
        ("draw", "x64, resets"),
        ("space", r"Box\(low=0\.0"),
        ("finite", "'reward'.*finite"),
        ("memory", "step.*jit"),
    ],
)
def test_the_kit_finds(fault, message):
    env = Stub(fault)
    with pytest.raises(AssertionError, match=message):
        testing.check(env, env.default_params, steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("id", ["Hopper-v5", "InvertedDoublePendulum-v5", "CLEVR-Robot-v0"])
def test_whole_kit_of_mujoco(id):
    testing.check(*envs_jax.make(id), steps=24, eager=False)
