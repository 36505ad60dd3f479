"""CartPole against Gymnasium's, from imported states."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control import import_state


@pytest.mark.parametrize("sutton_barto_reward", [False, True])
def test_every_step_from_imported_states(sutton_barto_reward):
    theirs = gymnasium.make("CartPole-v1", sutton_barto_reward=sutton_barto_reward)
    env, params = envs_jax.make("CartPole-v1", sutton_barto_reward=sutton_barto_reward)
    step, key = jax.jit(env.step), jax.random.key(0)
    rng = np.random.default_rng(0)
    ends = np.zeros(2, int)
    for seed in range(20):
        theirs.reset(seed=seed)
        # every other episode is balanced by a simple controller, so that some reach the limit
        done, balanced = False, seed % 4 == 0
        while not done:
            obs, state = import_state(theirs, env, params)
            np.testing.assert_array_equal(obs, np.float32(theirs.unwrapped.state))
            theta, theta_dot = theirs.unwrapped.state[2:]
            action = int(theta + 0.5 * theta_dot > 0) if balanced else int(rng.integers(2))
            expected = theirs.step(action)
            found = step(key, state, jnp.int32(action), params)
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=1e-6)
            assert (float(found[2]), bool(found[3]), bool(found[4])) == expected[1:4]
            assert "success" not in found[5]
            _, after = import_state(theirs, env, params)
            assert int(after.time) == int(found[1].time)
            done = expected[2] or expected[3]
            ends += expected[2:4]
    assert ends[0] >= 15 and ends[1] >= 1  # falls, and time-outs


def test_spaces_and_starts():
    theirs = gymnasium.make("CartPole-v1")
    env, params = envs_jax.make("CartPole-v1")
    space = env.observation_space(params)
    np.testing.assert_array_equal(space.low, theirs.observation_space.low)
    np.testing.assert_array_equal(space.high, theirs.observation_space.high)
    assert env.action_space(params).n == theirs.action_space.n
    assert params.max_steps == theirs.spec.max_episode_steps
    starts, _ = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), 2000), params)
    reference = np.stack([theirs.reset(seed=s)[0] for s in range(500)])
    assert np.abs(starts).max() <= 0.05
    np.testing.assert_allclose(np.std(starts, axis=0), np.std(reference, axis=0), rtol=0.1)


def test_one_program_varies_its_constants():
    env, params = envs_jax.make("CartPole-v1")
    state = env.reset(jax.random.key(0), params)[1]
    many = jax.vmap(lambda g: env.step(jax.random.key(0), state, jnp.int32(1), params.replace(gravity=g))[0])
    low, high = many(jnp.array([1.0, 20.0]))
    assert float(low[3]) != float(high[3])


def test_import_refuses():
    env, params = envs_jax.make("CartPole-v1")
    with pytest.raises(ValueError, match="reset"):
        import_state(gymnasium.make("CartPole-v1"), env, params)
    with pytest.raises(TypeError, match="PendulumEnv"):
        import_state(gymnasium.make("Pendulum-v1"), env, params)


def test_picture():
    env, params = envs_jax.make("CartPole-v1")
    _, state = env.reset(jax.random.key(0), params)
    upright = env.render(state)
    fallen = env.render(state.replace(physics=jnp.array([1.0, 0.0, 1.2, 0.0])))
    assert upright.shape == (200, 480, 3) and upright.dtype == np.uint8
    brown = (202, 152, 101)
    columns = [np.flatnonzero((p == brown).all(-1).any(0)).mean() for p in (upright, fallen)]
    assert abs(columns[0] - 240) < 6 and columns[1] > 240 + 80  # the pole leans right of a cart one metre right
