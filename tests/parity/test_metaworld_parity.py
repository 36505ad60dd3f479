"""Meta-World beside the package metaworld 3.1.1, step by step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.metaworld import import_state


pytest.importorskip("metaworld")
from tests.parity import record_metaworld as package  # noqa: E402


KEY = jax.random.key(0)
STEPS, EVERY = 60, 4


def worlds(name, **options):
    env, params = envs_jax.make(f"MetaWorld/{name}-v3", backend="c", **options)
    return package.make(name), env, params


@pytest.mark.parametrize("name", package.NAMES)
def test_steps_from_imported_states(name):
    """Noisy play by the package's policy; every few steps our world takes the same step from its imported state."""
    theirs, env, params = worlds(name)
    step = jax.jit(lambda state, action: env.step(KEY, state, action, params))
    expert, rng = package.policy(name), np.random.default_rng(1)
    obs = package.reset(theirs, package.draw(name, rng))
    for time in range(STEPS):
        imported, state = import_state(theirs, env, params)
        np.testing.assert_allclose(imported, obs, atol=1e-6)
        wanted = np.clip(package.act(expert, obs), -1, 1)
        action = np.float32(np.clip(wanted + rng.normal(0, 0.3, 4) * (time % 3 > 0), -1, 1))
        obs, reward, _, _, info = theirs.step(action)
        if time % EVERY:
            continue
        ours, state, our_reward, terminated, truncated, our_info = step(state, action)
        np.testing.assert_allclose(ours, obs, atol=1e-5)
        np.testing.assert_allclose(our_reward, reward, atol=1e-5)
        assert bool(our_info["success"]) == bool(info["success"]) and not terminated and not truncated
        np.testing.assert_allclose(state.frame, theirs._prev_obs, atol=1e-5)


@pytest.mark.parametrize("name", package.NAMES)
def test_starts_are_those_of_the_package(name):
    """The same drawn vector gives the same first observation, memory of rewards and positions."""
    theirs, env, params = worlds(name)
    rng = np.random.default_rng(2)
    for _ in range(2):
        drawn = np.float32(package.draw(name, rng)).astype(np.float64)
        obs = package.reset(theirs, drawn)
        ours, state = env.begin(jnp.asarray(drawn, jnp.float32))
        there, expected = import_state(theirs, env, params)
        np.testing.assert_allclose(ours, obs, atol=1e-5)
        np.testing.assert_allclose(there, obs, atol=1e-6)
        for part in ("targets", "tcp"):
            np.testing.assert_allclose(getattr(state.start, part), getattr(expected.start, part), atol=1e-6)
        positions = (env.physics.decode(s.physics)[: env.model.nq] for s in (state, expected))
        np.testing.assert_allclose(*positions, atol=1e-5)


def test_entities_of_an_imported_state():
    """Blocks of the package's numbers, and the wall of its scene: as imported, and after the same step."""
    name = "push-wall"
    theirs, env, params = worlds(name, obs="entities")
    step = jax.jit(lambda state, action: env.step(KEY, state, action, params))
    wall = [*theirs.model.body("wall").pos, *theirs.model.body("wall").quat]
    assert np.any(wall[:3])

    def blocks(obs):
        found = np.zeros(91)
        found[:4], found[4:7], found[7:14], found[49:56] = obs[:4], obs[-3:], obs[4:11], wall
        return found

    expert, rng = package.policy(name), np.random.default_rng(3)
    obs = package.reset(theirs, package.draw(name, rng))
    for time in range(STEPS):
        imported, state = import_state(theirs, env, params)
        assert imported.shape == (91,) and imported.dtype == jnp.float32
        np.testing.assert_allclose(imported, blocks(obs), atol=1e-6)
        action = np.float32(np.clip(package.act(expert, obs) + rng.normal(0, 0.3, 4) * (time % 3 > 0), -1, 1))
        obs, reward, _, _, info = theirs.step(action)
        if time % EVERY:
            continue
        ours, _, our_reward, *_, our_info = step(state, action)
        np.testing.assert_allclose(ours, blocks(obs), atol=1e-5)
        np.testing.assert_allclose(our_reward, reward, atol=1e-5)
        assert bool(our_info["success"]) == bool(info["success"])
    assert np.abs(obs[4:11]).any()


def test_states_that_cannot_be_imported():
    theirs, env, params = worlds("reach")
    with pytest.raises(ValueError, match="reset"):
        import_state(theirs, env, params)
    package.reset(theirs, package.draw("reach", np.random.default_rng(0)))
    for name, message in (
        ("make-coffee", "MetaWorld/make-coffee-v3"),
        ("push", "SawyerReachEnvV3.*'push'"),
    ):
        with pytest.raises(TypeError, match=message):
            import_state(theirs, *envs_jax.make(f"MetaWorld/{name}-v3", backend="c"))
    import_state(theirs, env, params)


def test_draws_are_from_the_ranges_of_the_package():
    for name in package.NAMES:
        theirs, env, _ = worlds(name)
        space = theirs._random_reset_space
        np.testing.assert_allclose(space.low, env.task.low)
        np.testing.assert_allclose(space.high, env.task.high)
        np.testing.assert_allclose([theirs.goal_space.low, theirs.goal_space.high], env.task.goal, atol=1e-9)
        np.testing.assert_allclose(theirs.mocap_low[2], env.task.floor)
        np.testing.assert_allclose(theirs.hand_init_pos, env.task.hand, atol=1e-7)
        theirs.close()
