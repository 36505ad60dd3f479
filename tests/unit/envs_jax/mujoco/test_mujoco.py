"""MuJoCo tasks: one call to the host per step, states that lose nothing, episodes that stand still at their end."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.mujoco.tasks import InvertedPendulum
from envs_jax.physics import interface as physics_module
from envs_jax.physics.c import PhysicsC, cores
from envs_jax.physics.mjx import PhysicsMjx


mujoco = pytest.importorskip("mujoco")
KEY = jax.random.key(0)


@pytest.fixture
def calls(monkeypatch):
    """The batch shapes with which C MuJoCo was called, in order, and how many rows it advanced in all."""
    seen = {"shapes": [], "rows": 0}
    host, run_rows = PhysicsC._host, PhysicsC._run_rows

    def counted(self, run, look, shapes, inputs, going, args):
        result = host(self, run, look, shapes, inputs, going, args)
        seen["shapes"].append(result[0].shape[:-2])
        return result

    def advanced(self, run, chosen, arrays):
        seen["rows"] += len(chosen)
        return run_rows(self, run, chosen, arrays)

    monkeypatch.setattr(PhysicsC, "_host", counted)
    monkeypatch.setattr(PhysicsC, "_run_rows", advanced)
    return seen


def test_policies_by_episodes_are_one_call_per_step(calls):
    env, params = envs_jax.make("HalfCheetah-v5", physics="c")
    policies, episodes, steps = 3, 4, 5

    @jax.jit
    def evaluate(weights, keys):
        def episode(weights, key):
            def body(carry, _):
                obs, state = carry
                obs, state, reward, *_ = env.step(key, state, obs[:6] * weights, params)
                return (obs, state), reward

            return jax.lax.scan(body, env.reset(key, params), None, steps)[1].sum()

        return jax.vmap(lambda w: jax.vmap(lambda k: episode(w, k))(keys))(weights)

    weights, keys = jnp.linspace(-1, 1, policies), jax.random.split(KEY, episodes)
    returns = evaluate(weights, keys)
    # episodes share their starts, so the reset is a batch of episodes alone
    assert calls["shapes"] == [(episodes,)] + [(policies, episodes)] * steps
    assert calls["rows"] == episodes * (1 + policies * steps)
    # each row alone, outside of vmap and scan
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for p, e in ((0, 0), (2, 3)):
        (obs, state), total = reset(keys[e], params), 0.0
        for _ in range(steps):
            obs, state, reward, *_ = step(KEY, state, obs[:6] * weights[p], params)
            total += reward
        np.testing.assert_allclose(returns[p, e], total, rtol=1e-5)


def test_rows_do_not_depend_on_threads_or_neighbours():
    """64 rows on one thread, on three, and one by one: the same bits."""
    keys = jax.random.split(KEY, 64)
    found = []
    for threads in (1, 3):
        env, params = envs_jax.make("Hopper-v5", physics="c", threads=threads)
        assert env.physics.threads == threads
        actions = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
        reset = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
        if threads == 1:
            _, states = reset(keys, params)
        found.append(jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))(KEY, states, actions, params))
    jax.tree.map(np.testing.assert_array_equal, *found)
    step = jax.jit(env.step)
    for row in (0, 63):
        alone = step(KEY, jax.tree.map(lambda x, row=row: x[row], states), actions[row], params)
        jax.tree.map(lambda a, b, row=row: np.testing.assert_array_equal(a, b[row]), alone, found[0])
    assert envs_jax.make("Hopper-v5", physics="c")[0].physics.threads == cores() >= 1


def test_only_some_arguments_batched():
    """One state under many actions, and under many parameters: what is not batched counts for every row."""
    env, params = envs_jax.make("Swimmer-v5", physics="c")
    _, state = env.reset(KEY, params)
    actions = jnp.array([[0.5, -0.5], [1.0, 0.0], [0.0, 0.0]])
    many = jax.vmap(lambda a: env.step(KEY, state, a, params))(actions)
    for i, action in enumerate(actions):
        one = env.step(KEY, state, action, params)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a, b[i]), one, many)
    costs = jnp.array([0.0, 1.0, 10.0])
    step = jax.vmap(lambda cost: env.step(KEY, state, actions[0], params.replace(ctrl_cost_weight=cost)))
    np.testing.assert_allclose(step(costs)[5]["reward_ctrl"], -costs * 0.5, rtol=1e-6)


def test_ended_episodes_stand_still_at_no_cost(calls):
    env, params = envs_jax.make("InvertedPendulum-v5", physics="c")
    params = params.replace(max_steps=12)
    _, states = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(KEY, 2), params)
    pushes = jnp.array([[3.0], [0.0]])  # the first falls, the second reaches the limit
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))
    lengths, last = np.zeros(2, int), None
    calls["rows"] = 0
    for _ in range(15):
        before, (obs, states, reward, terminated, truncated, info) = states, step(KEY, states, pushes, params)
        over = np.asarray(before.terminated | before.truncated)
        lengths += ~over
        if last is not None:
            np.testing.assert_array_equal(obs[over], last[over])
            for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(states)):
                np.testing.assert_array_equal(old[over], new[over])
        assert not np.any(reward[over]) and not np.any(info["reward_survive"][over])
        last = np.asarray(obs)
    assert lengths[0] < lengths[1] == 12 and calls["rows"] == lengths.sum()
    np.testing.assert_array_equal(states.time, lengths)
    assert list(zip(terminated, truncated)) == [(True, False), (False, True)]


def test_golden_pendulum():
    """The published weights keep it upright for all of 1,000 steps, from 20 starts (`make_videos.py` of ProPS)."""
    env, params = envs_jax.make("InvertedPendulum-v5", physics="c")
    weights = jnp.array([0.4, 6.0, 0.6, 2.5])

    @jax.jit
    def play(keys):
        def body(carry, _):
            obs, states = carry
            step = jax.vmap(env.step, in_axes=(None, 0, 0, None))
            obs, states, reward, terminated, truncated, _ = step(KEY, states, (obs @ weights)[:, None], params)
            return (obs, states), (reward, terminated, truncated)

        return jax.lax.scan(body, jax.vmap(env.reset, in_axes=(0, None))(keys, params), None, 1000)[1]

    reward, terminated, truncated = play(jax.random.split(KEY, 20))
    np.testing.assert_array_equal(reward.sum(axis=0), np.full(20, 1000.0))
    assert not terminated.any() and truncated[-1].all() and not truncated[:-1].any()


def test_states_keep_every_bit():
    env, params = envs_jax.make("Walker2d-v5", physics="c")
    numbers = np.random.default_rng(0).normal(size=(5, env.physics.size)) * 10.0 ** np.arange(-150, 120, 10)
    words = env.physics.encode(numbers)
    assert words.dtype == np.uint32 and words.shape == (5, 27, 2)  # 9 places, 9 speeds, 9 accelerations
    np.testing.assert_array_equal(env.physics.decode(jnp.asarray(words)), numbers)
    obs, state = env.reset(KEY, params)
    now = env.physics.decode(state.physics)
    np.testing.assert_array_equal(np.float32(now[1:18]), obs)


def test_a_model_of_ones_own(tmp_path):
    """A slide without friction, 2 kg, under a force of 3: v = a t, and x after `n` semi-implicit Euler steps."""
    path = tmp_path / "cart.xml"
    path.write_text(
        '<mujoco><option timestep="0.01" gravity="0 0 0"/><worldbody><body><joint name="x" type="slide" axis="1 0 0"/>'
        '<joint name="y" type="slide" axis="0 1 0"/><geom size="0.1" mass="2"/></body></worldbody>'
        '<actuator><motor joint="x" ctrlrange="-5 5" ctrllimited="true"/></actuator></mujoco>'
    )
    env, params = envs_jax.make("InvertedPendulum-v5", physics="c", xml_file=str(path), frame_skip=7)
    _, state = env.reset(KEY, params.replace(reset_noise_scale=0.0))
    obs, _, reward, terminated, _, _ = env.step(KEY, state, jnp.array([3.0]), params)
    assert env.dt == pytest.approx(0.07)
    np.testing.assert_allclose(obs, [1.5 * 0.01**2 * 28, 0.0, 1.5 * 0.07, 0.0], rtol=1e-6)
    assert float(reward) == 1.0 and not terminated


def model_file(tmp_path, joints, extra=""):
    """A model of bodies on top of one another, each on one of the `joints`, the last called fingertip."""
    names = ["link"] * (len(joints) - 1) + ["fingertip"]
    open_ = "".join(
        f'<body name="{name}{i if name == "link" else ""}" pos="0 0 0.1">{joint}<geom size="0.05" mass="1"/>'
        for i, (name, joint) in enumerate(zip(names, joints))
    )
    path = tmp_path / f"{len(joints)}.xml"
    path.write_text(
        f"<mujoco><worldbody>{open_}<site/>{'</body>' * len(joints)}{extra}</worldbody>"
        '<actuator><motor joint="first" ctrlrange="-1 1"/></actuator></mujoco>'
    )
    return str(path)


SLIDE = '<joint name="first" type="slide" axis="1 0 0"/>'
HINGE = '<joint type="hinge" axis="0 1 0" ref="30"/>'
BALL = '<joint type="ball"/>'


@pytest.mark.parametrize(
    ("id", "joints", "fewest"),
    [
        ("InvertedPendulum-v5", (SLIDE, HINGE, BALL), 2),
        pytest.param("InvertedDoublePendulum-v5", (SLIDE, HINGE, BALL), 3, marks=pytest.mark.slow),
        pytest.param("Swimmer-v5", (SLIDE, HINGE, BALL), 2, marks=pytest.mark.slow),
        ("Hopper-v5", (SLIDE, HINGE, BALL), 3),
    ],
)
def test_starts_are_around_the_models_own_pose(tmp_path, id, joints, fewest):
    """As in Gymnasium, noise on `qpos0`, in all of the places and speeds that the model has."""
    path = model_file(tmp_path, joints)
    env, params = envs_jax.make(id, physics="c", xml_file=path)
    rest = np.float32([0.0, np.pi / 6, 1.0, 0.0, 0.0, 0.0])
    for scale in (0.0, 0.01):
        _, state = env.reset(KEY, params.replace(reset_noise_scale=scale))
        numbers = env.physics.decode(state.physics)
        places, speeds = numbers[:6], numbers[6:11]
        np.testing.assert_allclose(places, rest, atol=scale)
        np.testing.assert_allclose(speeds, 0.0, atol=5 * scale)
        assert (np.count_nonzero(places - rest), np.count_nonzero(speeds)) == ((6, 5) if scale else (0, 0))
    few = model_file(tmp_path, (SLIDE, HINGE, HINGE)[: fewest - 1])
    with pytest.raises(ValueError, match=f"{few}'.*{fewest - 1} .*{fewest}"):
        envs_jax.make(id, physics="c", xml_file=few)


def test_an_arm_of_more_joints(tmp_path):
    """Reacher's target is what stands last in the model, as in Gymnasium; the arm is all that comes before."""
    axes = ("1 0 0", "0 1 0")
    slides = "".join(f'<joint type="slide" axis="{axis}" ref="0.1"/>' for axis in axes)
    target = f'<body name="target">{slides}<geom size="0.01" contype="0"/></body>'
    first = HINGE.replace("<joint", '<joint name="first"')
    env, params = envs_jax.make("Reacher-v5", physics="c", xml_file=model_file(tmp_path, (first, HINGE, HINGE), target))
    obs, states = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(KEY, 64), params)
    numbers = env.physics.decode(states.physics)
    angles, goals, speeds = numbers[:, :3], numbers[:, 3:5], numbers[:, 5:10]
    away = np.abs(angles - np.pi / 6)
    assert away.max() < 0.1 + 1e-6 and np.all(away.max(axis=0) > 0.08)
    assert 0.15 < np.linalg.norm(goals, axis=1).max() < 0.2 and np.all(np.ptp(goals, axis=0) > 0.2)
    assert 0.004 < np.abs(speeds[:, :3]).max() < 0.005 and not speeds[:, 3:].any()
    assert obs.shape == (64, 11)  # two cosines, two sines, the third angle and the target, two speeds, the way
    few = model_file(tmp_path, (first,), target)
    with pytest.raises(ValueError, match="3.*Reacher.*4"):
        envs_jax.make("Reacher-v5", physics="c", xml_file=few)


@pytest.mark.parametrize(("shape", "said"), [((2,), r"\[2\]"), ((4,), r"\[4\]"), ((), r"\[\]"), ((5, 3), r"\[5, 3\]")])
def test_actions_of_another_shape_are_refused(shape, said):
    env, params = envs_jax.make("Hopper-v5", physics="c")
    _, state = jax.eval_shape(env.reset, KEY, params)
    with pytest.raises(ValueError, match=f"{said}.*Hopper-v5.*\\[3\\].*vmap"):
        jax.eval_shape(env.step, KEY, state, jnp.zeros(shape), params)


@pytest.mark.parametrize("backend", ["c", "mjx"])
def test_starts_of_another_shape_are_refused(backend):
    pytest.importorskip("mujoco.mjx" if backend == "mjx" else "mujoco")
    physics = envs_jax.make("InvertedPendulum-v5", physics=backend)[0].physics
    for places, speeds, said in ((3, 2, r"qpos.*\[3\]"), (2, 1, r"qvel.*\[1\]")):
        with pytest.raises(ValueError, match=rf"{said}.*\[2\]"):
            physics.begin(jnp.zeros(places), jnp.zeros(speeds), lambda xp, _, now: now.qpos)


@pytest.mark.slow
def test_mjx_is_of_32_bits_under_x64():
    """Traced only: the types are those without, which is more than MJX itself can do."""
    pytest.importorskip("mujoco.mjx")
    env, params = envs_jax.make("InvertedPendulum-v5", physics="mjx")
    action = jax.ShapeDtypeStruct((1,), np.float32)

    def types():
        obs, state = jax.eval_shape(env.reset, KEY, params)
        return jax.tree.map(lambda x: (x.shape, x.dtype), (obs, jax.eval_shape(env.step, KEY, state, action, params)))

    with jax.enable_x64(True):
        wide = types()
    assert wide == types()


@pytest.mark.parametrize(
    ("geoms", "expected"),
    [
        ('<geom size="1"/><geom size="1" contype="0"/>', True),  # one mask of the two is enough
        ('<geom size="1" contype="2" conaffinity="1"/><geom size="1" contype="2" conaffinity="1"/>', False),
        ('<geom size="1" contype="1" conaffinity="1"/><geom size="1" contype="0" conaffinity="0"/>', False),
    ],
)
def test_contacts_are_looked_for_where_they_can_be(geoms, expected):
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{geoms}</worldbody></mujoco>")
    assert physics_module.collides(model) is expected
    disabled = int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    assert bool(PhysicsC(model, 1).model.opt.disableflags & disabled) is not expected
    assert not model.opt.disableflags & disabled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"physics": "warp"}, "physics 'warp'.*auto, c, mjx"),
        ({"frame_skip": 0}, "frame_skip.*0.*1"),
        ({"threads": 0}, "threads.*0.*1"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make("Hopper-v5", **options)


def test_missing_files_and_packages(monkeypatch):
    with pytest.raises(TypeError, match="'frameskip'.*'frame_skip'"):
        envs_jax.make("Hopper-v5", frameskip=2)
    with pytest.raises(FileNotFoundError, match="hoper.xml"):
        envs_jax.make("Hopper-v5", xml_file="hoper.xml")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="gymnasium.*`control`"):
        envs_jax.make("Hopper-v5")
    with pytest.raises(ModuleNotFoundError, match="`control`"):
        physics_module.require("mujoco.missing")


def test_auto_takes_c_on_a_cpu():
    env = InvertedPendulum()
    assert "physics" not in vars(env)  # nothing is chosen, and no device touched, before it is used
    assert isinstance(env.physics, PhysicsC)


@pytest.mark.slow
def test_mjx_keeps_the_same_contract():
    """Traced only: the same shapes and types as C, but for the state's numbers."""
    pytest.importorskip("mujoco.mjx")
    outcomes = []
    for backend in ("c", "mjx"):
        env, params = envs_jax.make("InvertedDoublePendulum-v5", physics=backend)
        obs, state = jax.eval_shape(env.reset, KEY, params)
        result = jax.eval_shape(env.step, KEY, state, jax.ShapeDtypeStruct((1,), np.float32), params)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), result[1]) == jax.tree.map(
            lambda x: (x.shape, x.dtype), state
        )
        outcomes.append((obs, result[0], *result[2:]))
        numbers = np.arange(9.0)
        np.testing.assert_array_equal(env.physics.decode(env.physics.encode(numbers)), numbers)
    assert state.physics.dtype == np.float32 and state.physics.shape == (9,)
    assert jax.tree.leaves(outcomes[0]) == jax.tree.leaves(outcomes[1])


def test_what_mjx_cannot_compute_is_said():
    """A cylinder in a box, which MJX has no collision for."""
    pytest.importorskip("mujoco.mjx")
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><geom type="box" size="1 1 1"/><body><freejoint/>'
        '<geom type="cylinder" size="1 1"/></body></worldbody></mujoco>'
    )
    with pytest.raises(RuntimeError, match="CYLINDER.*physics='c'"):
        PhysicsMjx(model, 1)


def test_pictures():
    env, params = envs_jax.make("InvertedPendulum-v5", physics="c")
    _, state = env.reset(KEY, params)
    try:
        upright = env.render(state)
    except RuntimeError as error:
        pytest.skip(str(error))
    numbers = env.physics.decode(state.physics).copy()
    numbers[1] = 0.9
    leaning = env.render(state.replace(physics=env.physics.encode(numbers)))
    assert upright.shape == (480, 480, 3) and upright.dtype == np.uint8
    assert len(np.unique(upright.reshape(-1, 3), axis=0)) > 10 and np.any(upright != leaning)


def test_no_opengl_is_said(monkeypatch):
    def broken(width, height):
        raise OSError("no screen")

    monkeypatch.setattr(mujoco, "GLContext", broken)
    env, params = envs_jax.make("Hopper-v5", physics="c")
    with pytest.raises(RuntimeError, match="MUJOCO_GL=egl"):
        env.render(env.reset(KEY, params)[1])
