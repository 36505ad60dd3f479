"""Small networks: what they see of an observation, and which actions they may choose."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import spaces
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.networks import (
    NetworkConfig,
    NetworkPolicy,
    network_policy,
    network_q_policy,
    pixels,
    with_one_hots,
)


def test_discrete_parts_of_an_observation_are_one_hot():
    space = spaces.Dict({"cell": spaces.Discrete(3), "speed": spaces.Box(0.0, 9.0, (2,), np.float32)})
    obs = {"cell": jnp.array([2, 0]), "speed": jnp.array([[4.0, 5.0], [6.0, 7.0]])}
    np.testing.assert_array_equal(with_one_hots(space)(obs, 1), [[0, 0, 1, 4, 5], [1, 0, 0, 6, 7]])
    np.testing.assert_array_equal(with_one_hots(spaces.Discrete(2))(jnp.array([[1], [0]]), 2), [[[0, 1]], [[1, 0]]])


def test_pixels_are_numbers_from_0_to_1_and_codes_stay():
    space = spaces.Box(0, 255, (2, 2, 1), np.uint8)
    frame = jnp.array([[[[0], [255]], [[51], [102]]]], jnp.uint8)
    np.testing.assert_allclose(with_one_hots(space)(frame, 1), [[0, 1, 0.2, 0.4]])
    np.testing.assert_allclose(pixels(spaces.Dict({"image": space}), "it")({"image": frame}, 1), frame / 255.0)
    codes = spaces.Box(0, 10, (2, 2, 1), np.uint8)
    np.testing.assert_array_equal(pixels(codes, "it")(frame % 11, 1), frame % 11)
    np.testing.assert_array_equal(with_one_hots(codes)(frame % 11, 1), [[0, 2, 7, 3]])


@pytest.mark.parametrize("name", ["CartPole-v1", "2048-v0"])
def test_convolutions_need_an_image(name):
    env, params = envs_jax.make(name)
    with pytest.raises(ValueError, match=f"network.channels.*{name}"):
        network_policy(env, params, NetworkConfig(channels=(4,)), None)
    with pytest.raises(ValueError, match=f"network.channels.*{name}"):
        network_q_policy(env, params, NetworkConfig(channels=(4,)), DQNConfig())


@pytest.mark.parametrize("memory", [0, 4])
def test_actions_that_are_not_offered_get_no_probability(memory):
    policy = NetworkPolicy(spaces.Discrete(3), hidden=(4,), memory=memory)
    mask = jnp.array([[True, False, True], [True, True, True]])
    obs = {"x": jnp.ones((2, 5)), "action_mask": mask}
    params, frozen = policy.init(jax.random.key(0), obs)
    first = jnp.ones(2, bool)
    distribution, _, _ = policy.step(params, frozen, obs, policy.initial_carry(2), first)
    np.testing.assert_array_equal(distribution.probs > 0, mask)
    steps = jax.tree.map(lambda x: x[None], obs)
    unrolled, _ = policy.unroll(params, frozen, steps, policy.initial_carry(2), first[None])
    np.testing.assert_allclose(unrolled.probs[0], distribution.probs, atol=1e-6)


def test_a_configuration_makes_a_network_for_a_world():
    env, params = envs_jax.make("Debug-Catch-v0")
    policy = network_policy(env, params, NetworkConfig(hidden=(8,), channels=(4, 2), memory=3), None)
    obs = jnp.zeros((2, 6, 5, 1), jnp.uint8)
    kernels = policy.init(jax.random.key(0), obs)[0]["encoder"]
    assert kernels["Conv_0"]["kernel"].shape == (3, 3, 1, 4) and kernels["Conv_1"]["kernel"].shape == (3, 3, 4, 2)
    assert policy.initial_carry(2).shape == (2, 3)
    with pytest.raises(ValueError, match="--network.dueling.*True"):
        network_policy(env, params, NetworkConfig(dueling=True), None)


def test_a_box_of_integers_has_no_continuous_policy():
    with pytest.raises(TypeError, match="Discrete.*Box"):
        NetworkPolicy(spaces.Box(0, 5, (2,), np.int32), hidden=(4,))
