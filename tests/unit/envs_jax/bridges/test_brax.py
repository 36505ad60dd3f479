"""brax's worlds under our contract, and ours under brax's interface; what needs brax is skipped where it is missing."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import spaces, testing
from envs_jax.bridges import brax as bridge
from envs_jax.control.pendulum import PendulumState
from envs_jax.env import innermost
from envs_jax.resets import VectorEnv, VectorState


KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def envs():
    """`brax.envs`; skips the test where there is none."""
    try:
        return bridge._brax()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def pendulum(envs):
    """brax's inverted pendulum on its cheapest backend, with one start and its compiled step."""
    env, params = envs_jax.make("brax/inverted_pendulum?backend=spring&max_steps=40")
    return env, params, jax.jit(env.reset)(KEY, params), jax.jit(env.step)


@pytest.fixture(scope="module")
def reacher(envs):
    return bridge.from_brax("reacher", backend="spring")


def test_without_brax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    with pytest.raises(ModuleNotFoundError, match="brax.envs.*`control`"):
        envs_jax.make("brax/reacher")
    assert not any(id.startswith("brax") for id in envs_jax.ids())


def test_wrong_names_and_wrappers_are_refused(envs):
    with pytest.raises(KeyError, match="'recher'.*'reacher'"):
        envs_jax.make("brax/recher")
    with pytest.raises(ValueError, match="max_steps.*0.*1"):
        bridge.from_brax("fast", max_steps=0)
    with pytest.raises(TypeError, match="AutoResetWrapper"):
        bridge.FromBrax(envs.create("fast"))
    with pytest.raises(TypeError, match="EpisodeWrapper"):
        bridge.FromBrax(envs.Wrapper(envs.create("fast", auto_reset=False)))
    assert bridge.FromBrax(envs.Wrapper(envs.get_environment("fast"))).id == "brax/Fast"


def test_spaces(pendulum, envs):
    env, params, *_ = pendulum
    assert env.id == "brax/inverted_pendulum" and env.action_space(params) == spaces.Box(-1.0, 1.0, (1,))
    assert env.observation_space(params) == spaces.Box(-np.inf, np.inf, (4,), np.dtype("float32"))
    env, params = bridge.from_brax("fast", obs_mode="dict_pixels_state")
    shapes = {name: space.shape for name, space in env.observation_space(params).spaces.items()}
    assert shapes == {"state": (2,), "pixels/view_0": (4, 4, 3), "pixels/view_1": (4, 4, 3)}


def test_steps_are_braxs_own(pendulum):
    env, params, (obs, state), step = pendulum
    actions = np.random.default_rng(3).uniform(-1, 1, (15, 1)).astype(np.float32)

    @jax.jit
    def their_play():
        first = env.env.reset(jax.random.PRNGKey(3))

        def their_step(at, action):
            after = env.env.step(at, action)
            return after, (after.obs, after.reward, after.done > 0)

        return first.obs, jax.lax.scan(their_step, first, actions)[1]

    first, theirs = jax.device_get(their_play())
    testing.assert_same(obs, first, "the first observation", atol=1e-6)
    for t, action in enumerate(actions):
        obs, state, reward, terminated, *_ = step(KEY, state, action, params)
        testing.assert_same(obs, theirs[0][t], f"step {t}", atol=1e-6)
        assert reward == theirs[1][t] and terminated == theirs[2][t]


def test_metrics_are_info_and_braxs_state_is_left_as_it_was(reacher):
    env, params = reacher
    _, state = jax.eval_shape(env.reset, jax.eval_shape(lambda: KEY), params)
    held = dict(state.env.metrics)
    action = jax.ShapeDtypeStruct((2,), jnp.float32)
    # step itself, not under eval_shape, which would copy the dicts: brax's reacher writes into the one that it is given
    info = jax.make_jaxpr(lambda: _step_of_zeros(env, params, state, action, held), return_shape=True)()[1]
    assert set(info) == {"reward_dist", "reward_ctrl"} == set(held)


def _step_of_zeros(env, params, state, action, held):
    """The info of a step from a state of zeros, whose own metrics must not change."""
    state, action = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (state, action))
    before = dict(state.env.metrics)
    info = env.step(KEY, state, action, params)[-1]
    assert all(state.env.metrics[name] is before[name] for name in held)
    return info


def test_a_fallen_pole_is_terminated_and_the_time_limit_truncates(pendulum):
    env, params, (_, state), step = pendulum
    ends = []
    for push in (0.0, 1.0):
        at = state
        for t in range(40):
            obs, at, reward, terminated, truncated, _ = step(KEY, at, jnp.array([push]), params)
            assert reward == 1 and terminated == (abs(obs[1]) > 0.2) and truncated == (t == 39)
            if terminated | truncated:
                break
        ends.append((t, bool(terminated), bool(truncated)))
    assert at.env.info["time_out"] == 1  # brax's world says so of a fall, and is not believed
    assert ends[0] == (39, False, True)
    assert ends[1][0] < 39 and ends[1][1:] == (True, False)


@pytest.mark.slow
def test_batches_reset_from_the_pool(pendulum):
    env, params, *_ = pendulum
    batch = VectorEnv(env, 4, policy="pool", pool_size=2)
    params = params.replace(max_steps=jnp.int32(3))
    obs, states = jax.device_get(jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(KEY, 6), params))
    pool = jax.tree.map(lambda x: x[4:], (obs, states))
    state = VectorState(jax.tree.map(lambda x: x[:4], states), pool)
    run = jax.jit(lambda state: testing.play(batch, params, state, KEY, 7))
    played = run(state)
    assert played["truncated"].tolist() == [[t in (2, 5)] * 4 for t in range(7)]
    assert not played["terminated"].any()
    fresh = np.asarray(state.pool[0])
    for t in range(7):
        new = [any(np.array_equal(row, x) for x in fresh) for row in np.asarray(played["obs"][t])]
        assert new == [t in (2, 5)] * 4
    assert not np.array_equal(played["final"][2], played["obs"][2])


@pytest.mark.slow
def test_the_conformance_kit(envs):
    testing.check(*bridge.from_brax("fast", max_steps=5), steps=12, policies=("pool",), devices=8)


@pytest.mark.slow
def test_the_contract_of_physics(reacher):
    testing.check_contract(*reacher, policies=())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["spring", "positional", "generalized", "mjx"])
@pytest.mark.parametrize("name", ["inverted_pendulum", "reacher"])
def test_the_conformance_kit_on_every_backend(envs, name, backend):
    env, params = bridge.from_brax(name, backend=backend, max_steps=12)
    testing.check(env, params, steps=16, policies=("pool",), eager=False)


def test_a_picture(pendulum):
    env, _, (_, state), _ = pendulum
    try:
        picture = env.render(state)
    except RuntimeError as error:
        pytest.skip(str(error))
    q = state.env.pipeline_state.q.at[1].set(0.2)
    leaning = env.render(state.replace(env=state.env.replace(pipeline_state=state.env.pipeline_state.replace(q=q))))
    assert picture.shape == (480, 480, 3) and np.any(picture != leaning)


def test_a_world_without_a_model_has_no_picture(envs):
    env, params = bridge.from_brax("fast")
    with pytest.raises(NotImplementedError, match="brax/fast"):
        env.render(env.reset(KEY, params)[1])


def test_our_worlds_are_braxs(envs):
    env = bridge.make("Pendulum-v1")
    assert isinstance(env, envs.Env) and env.backend == "envs_jax"
    assert (env.observation_size, env.action_size) == (3, 1)
    world, params = envs_jax.make("Pendulum-v1")
    upright = PendulumState(jnp.array([0.5, 0.0], jnp.float32), jnp.int32(198))
    state = jax.jit(env.reset)(jax.random.PRNGKey(0)).replace(pipeline_state=upright)
    step = jax.jit(env.step)
    state = step(state, jnp.array([1.0]))
    # Gymnasium's reward, -(angle^2 + 0.1 speed^2 + 0.001 torque^2): the action 1 stands for the largest torque, 2
    assert state.reward == pytest.approx(-(0.5**2 + 0.001 * 2**2), abs=1e-6)
    assert state.done == 0 and state.info["truncation"] == 0
    clipped = step(state, jnp.array([-7.0]))
    testing.assert_same(clipped.obs, step(state, jnp.array([-1.0])).obs, "actions beyond the box and at its bound")
    # the 200th step: truncated, and not terminated
    assert (clipped.done, clipped.info["truncation"], clipped.info["time_out"]) == (1, 1, 1)


@pytest.mark.slow
def test_braxs_wrappers_take_our_worlds(envs):
    env = envs.training.wrap(bridge.make("CartPole-v1"), episode_length=25)
    assert env.action_size == 2 and env.observation_size == 4
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(1), 3))
    first, step, falls = np.asarray(state.obs), jax.jit(env.step), np.zeros(3)
    for _ in range(24):
        state = step(state, jnp.array(3 * [[1.0, 0.5]]))  # the larger score is the first action's: push left
        over = np.asarray(state.done) > 0
        np.testing.assert_array_equal(over, [np.array_equal(*rows) for rows in zip(np.asarray(state.obs), first)])
        falls += over
        assert not state.info["truncation"].any() and np.all(np.asarray(state.info["steps"])[~over] > 0)
    assert falls.min() >= 2  # a pole that is pushed one way falls within a dozen steps


@pytest.mark.slow
def test_braxs_acting_collects_from_our_worlds(envs):
    acting = pytest.importorskip("brax.training.acting")
    env = envs.training.wrap(bridge.make("Debug-Aim-v0"), episode_length=5)
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), 2))

    def policy(obs, key):
        return jnp.zeros((2, env.action_size)), {}

    fields = ("truncation", "time_out")
    unroll = jax.jit(lambda s, k: acting.generate_unroll(env, s, policy, k, 8, extra_fields=fields))
    _, data = unroll(state, jax.random.PRNGKey(1))
    assert data.observation.shape == (8, 2, *state.obs.shape[1:]) and data.action.shape == (8, 2, env.action_size)
    assert data.extras["state_extras"]["truncation"][:, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]


def test_a_world_goes_to_brax_and_back(envs):
    world, params = envs_jax.make("Pendulum-v1")
    params = params.replace(max_steps=6)
    back = bridge.FromBrax(bridge.to_brax(world, params), max_steps=9)
    key = jax.random.key(8)
    obs, state = jax.jit(back.reset)(key, back.default_params)
    first, keys = jax.random.split(key)
    mine, inner = jax.jit(world.reset)(first, params)
    testing.assert_same(obs, mine, "the first observation", atol=1e-6)
    step, my_step = jax.jit(back.step), jax.jit(world.step)
    for t in range(6):
        action = jnp.array([np.sin(3.0 * t)], jnp.float32)
        obs, state, *rest = step(key, state, action, back.default_params)
        keys, now = jax.random.split(keys)
        mine, inner, *my_rest = my_step(now, inner, 2 * action, params)
        testing.assert_same((obs, rest[:3]), (mine, my_rest[:3]), f"step {t}", atol=1e-5)
    assert bool(rest[2]) and not bool(rest[1]) and innermost(state).info["time_out"] == 1
    testing.check_contract(back, back.default_params)


def test_worlds_that_brax_has_no_form_for_are_refused(envs):
    with pytest.raises(TypeError, match="FrozenLake-v1's"):
        bridge.make("FrozenLake-v1")
    world, params = envs_jax.make("BabyAI-GoToLocal-v0")
    with pytest.raises(TypeError, match=r"\['direction'\]"):
        bridge.to_brax(world, params)
