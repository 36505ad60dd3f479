"""Meta-World's proxy scenes under MJX, beside C MuJoCo on the same scene; and what experts do on proxy scenes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import metaworld
from envs_jax.metaworld import scene
from envs_jax.metaworld.tasks import TASKS
from envs_jax.physics.mjx import compiler_options


pytest.importorskip("metaworld")
from tests.parity import record_metaworld as package  # noqa: E402


KEY = jax.random.key(0)


def proxies(name):
    """The same task and scene under C and under MJX."""
    return [envs_jax.make(f"MetaWorld/{name}-v3", backend=kind, geometry="proxy") for kind in ("c", "mjx")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "hand", "thing"), [("reach", 60, 7e-4, 1.3e-3), ("push", 70, 6e-3, 4e-3)])
def test_mjx_beside_c(name, steps, hand, thing):
    """Tolerances measured between MJX and C MuJoCo: random actions, each held for five steps, in the air, where all
    joint positions are compared too; and a puck that is pushed, by the actions that the expert chose under C."""
    (ours, params), (theirs, _) = proxies(name)
    drawn = jnp.asarray(package.draw(name, np.random.default_rng(5)), jnp.float32)
    held = jnp.repeat(jax.random.uniform(KEY, (steps // 5, 4), jnp.float32, -1, 1), 5, axis=0)
    held = held.at[:, 2].set(jnp.abs(held[:, 2]))  # not into the table

    def play(env, actions):
        _, state = env.begin(drawn)

        def body(state, action):
            if actions is None and name == "push":
                action = metaworld.expert_action(env, state)
            obs, state, reward, *_, info = env.step(KEY, state, action, params)
            return state, (action, obs, reward, info["success"], state.physics)

        return jax.lax.scan(body, state, held if actions is None else actions, length=steps)[1]

    actions, obs, reward, success, physics = jax.jit(lambda: play(ours, None))()
    _, other, other_reward, other_success, other_physics = jax.jit(
        lambda a: play(theirs, a), compiler_options=compiler_options()
    )(actions)
    assert np.abs(obs[:, :3] - other[:, :3]).max() < hand
    assert np.abs(obs[:, 4:7] - other[:, 4:7]).max() < thing
    assert np.isfinite(other).all() and np.abs(reward - other_reward).mean() < 0.1
    if name == "reach":
        qpos, other_qpos = (
            env.physics.decode(found)[:, : env.model.nq] for env, found in ((ours, physics), (theirs, other_physics))
        )
        assert np.ptp(qpos[:, :7], axis=0).max() > 0.2  # the arm moves
        np.testing.assert_allclose(qpos, other_qpos, rtol=0, atol=thing)
    if name == "push":
        assert success[-1] and other_success[-1]


@pytest.mark.slow
def test_mjx_takes_every_proxy_scene():
    mjx = pytest.importorskip("mujoco.mjx")
    for name in TASKS:
        model = scene.load(name, "proxy")
        assert mjx.put_model(model).nq == scene.load(name, "stock").nq


@pytest.mark.parametrize("name", ["button-press", "hammer", "door-close"])
def test_proxies_keep_masses_and_lose_cylinders(name):
    mujoco = pytest.importorskip("mujoco")
    stock, proxy = (scene.load(name, kind) for kind in ("stock", "proxy"))
    for field in ("body_mass", "body_inertia", "body_ipos", "jnt_range", "dof_damping", "actuator_gainprm", "eq_data"):
        np.testing.assert_array_equal(getattr(stock, field), getattr(proxy, field), err_msg=field)
    kinds = {"CYLINDER", "MESH", "ELLIPSOID"}
    meets = (proxy.geom_contype | proxy.geom_conaffinity) != 0
    left = {mujoco.mjtGeom(kind).name.removeprefix("mjGEOM_") for kind in proxy.geom_type[meets]}
    assert not left & kinds and proxy.ngeom < stock.ngeom


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TASKS))
def test_experts_on_both_geometries(name):
    """Upstream's expert succeeds as often in our stock scene as in the package, start by start but for chaos; and on
    proxy geometry within two binomial standard deviations of stock."""
    steps, count = 300, 20
    drawn = np.float32([package.draw(name, np.random.default_rng(i)) for i in range(count)])

    def rate(geometry):
        env, params = envs_jax.make(f"MetaWorld/{name}-v3", backend="c", geometry=geometry)

        def episode(drawn):
            def body(state, _):
                action = metaworld.expert_action(env, state)
                _, state, *_, info = env.step(KEY, state, action, params)
                return state, info["success"]

            return jax.lax.scan(body, env.begin(drawn)[1], None, length=steps)[1].any()

        return np.asarray(jax.jit(jax.vmap(episode))(drawn))

    stock, proxy = rate("stock"), rate("proxy")
    sigma = np.sqrt(max(stock.mean() * (1 - stock.mean()), 0.05 * 0.95) * 2 / count)
    assert abs(stock.mean() - proxy.mean()) <= 2 * sigma
    if name in package.NAMES:
        theirs = []
        env, expert = package.make(name), package.policy(name)
        for row in drawn:
            obs, done = package.reset(env, row.astype(np.float64)), False
            for _ in range(steps):
                obs, *_, info = env.step(np.clip(package.act(expert, obs), -1, 1))
                done |= info["success"] > 0
                if done:
                    break
            theirs.append(done)
        assert np.sum(stock != np.array(theirs)) <= 1
