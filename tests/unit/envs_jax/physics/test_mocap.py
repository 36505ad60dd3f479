"""Bodies that are moved by hand, and poses read at the positions that a step reaches: C MuJoCo and MJX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


mujoco = pytest.importorskip("mujoco")
from envs_jax.physics.c import PhysicsC  # noqa: E402
from envs_jax.physics.mjx import PhysicsMjx, compiler_options  # noqa: E402


XML = """<mujoco><option timestep="0.01" gravity="0 0 0"/><worldbody>
<body name="cart"><joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body>
<body name="puppet" mocap="true" pos="0 3 0" quat="0 1 0 0"><geom size="0.1" contype="0" conaffinity="0"/></body>
</worldbody><actuator><motor joint="x"/></actuator></mujoco>"""


def look(xp, before, now, shift):
    return now.qpos, now.read["xpos"], now.read["xquat"], before.mocap, now.mocap


def lift(xp, now, shift):
    return now.qpos, now.qvel, now.mocap + shift[..., None, None] * np.array([0.0, 0.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("backend", [PhysicsC, PhysicsMjx])
def test_mocap_bodies_are_part_of_the_state(backend):
    model = mujoco.MjModel.from_xml_string(XML)
    physics = backend(model, 2, ("xpos", "xquat"), **({"fresh": True} if backend is PhysicsC else {}))
    start, go = jnp.array([[0.0, 1.0, 2.0]]), jnp.bool_(True)

    def play(shifts):
        state, _ = physics.begin(jnp.zeros(1), jnp.ones(1), look, shifts[0], mocap=start)
        seen = []
        for shift in shifts:
            state, after = physics.advance(state, jnp.array([0.5]), go, look, shift, edit=lift)
            seen.append(after)
        return state, seen

    # two worlds in one batch, one of which lifts the puppet twice as fast
    shifts = jnp.array([[0.25, 0.25], [0.5, 0.5]])
    state, ((_, *first), (qpos, xpos, xquat, before, now)) = jax.jit(
        jax.vmap(play), compiler_options=compiler_options()
    )(shifts)
    np.testing.assert_allclose(now[:, 0], [[0, 1, 2.5], [0, 1, 3]])
    np.testing.assert_allclose(before[:, 0, 2], [2.25, 2.5])
    np.testing.assert_allclose(xpos[:, 2], now[:, 0])
    np.testing.assert_allclose(xquat[0, 2], [0, 1, 0, 0])
    # speed 1, force 0.5 on 1 kg, four semi-implicit steps of 0.01 s; the pose is of the position that was reached
    np.testing.assert_allclose(qpos[:, 0], 0.04 + 0.5 * 0.01**2 * 10, atol=1e-6)
    np.testing.assert_allclose(xpos[:, 1, 0], qpos[:, 0], atol=1e-7)
    assert physics.size == 1 + 1 + 1 + 3 and physics.decode(state).shape == (2, physics.size)


def test_without_fresh_poses_are_those_before_the_last_time_step():
    physics = PhysicsC(mujoco.MjModel.from_xml_string(XML), 2, ("xpos", "xquat"))
    state, _ = physics.begin(jnp.zeros(1), jnp.ones(1), look, jnp.float32(0))
    _, (qpos, xpos, _, _, now) = physics.advance(state, jnp.zeros(1), jnp.bool_(True), look, jnp.float32(0))
    assert qpos[0] == pytest.approx(0.02) and xpos[1, 0] == pytest.approx(0.01)
    np.testing.assert_array_equal(now, [[0, 3, 0]])  # its place in the model


def test_a_place_for_each_mocap_body():
    physics = PhysicsC(mujoco.MjModel.from_xml_string(XML), 1)
    with pytest.raises(ValueError, match=r"mocap.*\[2, 3\].*\[1, 3\]"):
        physics.begin(jnp.zeros(1), jnp.zeros(1), look, jnp.float32(0), mocap=jnp.zeros((2, 3)))
