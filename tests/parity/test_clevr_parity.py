"""CLEVR-Robot against C MuJoCo, used directly: the same model, the pusher put behind the ball, 40 time steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.clevr import goal, scene, state_from_layout
from envs_jax.physics.mjx import compiler_options


mujoco = pytest.importorskip("mujoco")

EPISODES, ACTIONS = 4, 30
CLOSE = 1e-4
"""Metres, after 30 macro-actions (1,200 time steps)."""
WAYS = np.array([(1, 0), (0, 1), (-1, 0), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8)])
GOAL = goal(2)
OURS = ("jax", "numba")
"""MuJoCo's equations in programs of our own."""


def reference(model, balls: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The x and y of the balls after each action, `[T, 10]`, by MuJoCo alone, from starts and forces in float32."""
    data = mujoco.MjData(model)
    for i, (x, y) in enumerate(balls):
        data.qpos[7 * i : 7 * i + 3] = x, y, np.float32(-0.195)
    data.qpos[35:] = 0
    mujoco.mj_forward(model, data)
    seen = []
    for action in actions:
        ball, way = divmod(int(action), 8)
        data.qpos[35:] = data.qpos[7 * ball : 7 * ball + 2] - 0.15 * WAYS[way]
        data.qvel[30:] = 0
        data.ctrl[:] = np.float32(WAYS[way])
        for _ in range(40):
            mujoco.mj_step(model, data)
        seen.append(data.qpos[:35].reshape(5, 7)[:, :2].reshape(-1).copy())
    return np.stack(seen)


@pytest.fixture(scope="module")
def recorded():
    """Starts `[E, 5, 2]`, actions `[T, E]`, and what MuJoCo makes of them, `[T, E, 10]`."""
    env, params = envs_jax.make("CLEVR-Robot-v0", backend="c")
    obs, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(0), EPISODES), params)
    starts = np.asarray(obs["state"]).reshape(EPISODES, 5, 2)
    actions = np.random.default_rng(0).integers(0, 40, (ACTIONS, EPISODES)).astype(np.int32)
    seen = [reference(env.model, starts[i], actions[:, i]) for i in range(EPISODES)]
    return starts, actions, np.stack(seen, axis=1)


def played(backend: str, starts, actions, **jit) -> np.ndarray:
    env, params = envs_jax.make("CLEVR-Robot-v0", level="hard", backend=backend)
    step = jax.vmap(env.step, in_axes=(None, 0, 0, None))

    def run(starts, actions):
        _, states = jax.vmap(lambda balls: env.begin(balls, GOAL, np.int32(0)))(starts)

        def body(states, action):
            obs, states, *_ = step(jax.random.key(0), states, action, params)
            return states, obs["state"]

        return jax.lax.scan(body, states, actions)[1]

    return np.asarray(jax.jit(run, **jit)(jnp.asarray(starts), jnp.asarray(actions)))


def test_c_is_mujoco_to_the_bit(recorded):
    starts, actions, expected = recorded
    assert np.ptp(expected, axis=0).max() > 0.3, "balls were pushed about"
    np.testing.assert_array_equal(played("c", starts, actions), np.float32(expected))


@pytest.mark.parametrize("backend", OURS)
def test_our_programs_are_mujoco_to_rounding(backend, recorded):
    """Float64 without `jax_enable_x64`; rounded to float32, all positions are C's but for chaos in the last digits."""
    starts, actions, expected = recorded
    found = played(backend, starts, actions)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-6


def test_our_programs_state_is_mujocos(recorded):
    """Places, orientations and velocities after two macro-actions, of worlds on two axes; one world stands still."""
    starts, actions, _ = recorded
    going = np.array([[True, True], [True, False]])
    states = {}
    for backend in ("c", *OURS):
        env, params = envs_jax.make("CLEVR-Robot-v0", level="hard", backend=backend)
        physics = env.physics

        def run(balls, actions, going, env=env, params=params, physics=physics):
            _, state = env.begin(balls, GOAL, np.int32(0))
            _, state, *_ = env.step(jax.random.key(0), state, actions[0], params)
            force = jnp.asarray(WAYS, jnp.float32)[actions[1] % 8]
            after, seen = physics.advance(state.physics, force, going, lambda xp, before, after: after.qpos)
            assert seen.dtype == jnp.float32
            return state.physics, after

        rows = jnp.asarray(starts).reshape(2, 2, 5, 2), jnp.asarray(actions[:2].T).reshape(2, 2, 2), going
        before, after = jax.jit(jax.vmap(jax.vmap(run)))(*rows)
        states[backend] = physics.decode(after)[..., :69]  # without where the solver starts next
        np.testing.assert_array_equal(before[1, 1], after[1, 1])
    assert np.abs(states["c"][..., 37:]).max() > 0.1, "something moved"
    for backend in OURS:
        np.testing.assert_allclose(states[backend], states["c"], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_mjx(recorded):
    pytest.importorskip("mujoco.mjx")
    starts, actions, expected = recorded
    found = played("mjx", starts, actions, compiler_options=compiler_options())
    assert np.abs(found - expected).max() < CLOSE


def test_the_scene_is_the_published_one():
    """Numbers of KALM's published scene, as MuJoCo compiled them."""
    model = scene.load()
    assert (model.nq, model.nv, model.nu) == (37, 32, 2)
    np.testing.assert_allclose(model.body_mass[1:6], 4 / 3 * np.pi * 0.13**3)
    np.testing.assert_allclose(model.body_mass[6], 0.5 * 4 / 3 * np.pi * 0.05**3)
    np.testing.assert_allclose(model.dof_armature, 0.04)
    np.testing.assert_allclose(model.dof_damping, [0.75] * 30 + [0.5] * 2)
    np.testing.assert_allclose(model.geom_friction, [[0.8, 0.1, 0.1]] * 11)
    np.testing.assert_allclose(model.geom_margin, 0.002)
    np.testing.assert_allclose(model.actuator_ctrlrange, [[-2, 2]] * 2)
    assert (model.opt.timestep, model.opt.iterations, model.opt.integrator) == (0.01, 20, 0)
    names = [model.geom(i).name for i in range(5)]
    assert names == ["table", "left", "right", "back", "front"]
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    normals = data.geom_xmat.reshape(-1, 3, 3)[:5, :, 2]
    expected = [(0, 0, 1), (1, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 1, 0)]
    np.testing.assert_allclose(normals, expected, atol=1e-3)
    masks = list(zip(model.geom_contype.tolist(), model.geom_conaffinity.tolist()))
    assert masks == [(1, 1), *[(1, 0)] * 4, *[(1, 1)] * 5, (1, 0)]


def test_layouts_of_users_go_the_same_way(recorded):
    """`state_from_layout` begins like an episode of the reference."""
    env, params = envs_jax.make("CLEVR-Robot-v0", backend="c")
    balls = np.array([[-0.4, 0.5], [0.0, 0.1], [0.4, 0.5], [-0.4, -0.1], [0.4, -0.1]], np.float32)
    _, state = state_from_layout(env, balls, GOAL)
    obs = env.step(jax.random.key(0), state, np.int32(12), params)[0]
    np.testing.assert_array_equal(obs["state"], np.float32(reference(env.model, balls, np.array([12]))[0]))
