"""The rules of the control worlds, by hand, and the published policies that solve two of them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control.acrobot import AcrobotState
from envs_jax.control.angles import wrap
from envs_jax.control.mountain_car import MountainCarState
from envs_jax.control.navigation import NavigationState
from envs_jax.control.pendulum import PendulumState
from envs_jax.control.pong import PongState
from envs_jax.control.render import BLUE, RED, TEAL, WHITE, YELLOW
from envs_jax.wrappers import EpisodeStatistics


KEY = jax.random.key(0)


@functools.cache
def compiled(env):
    return jax.jit(env.step)


def act(env, params, state, action, key=KEY):
    """One step, of a discrete action (int) or a continuous one (float)."""
    action = jnp.int32(action) if isinstance(action, int) else jnp.array([action], jnp.float32)
    return compiled(env)(key, state, action, params)


def starts(env, params, keys):
    """The first observations and states under `keys`."""
    return jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)


def car(position, velocity, time=0):
    return MountainCarState(jnp.array([position, velocity], jnp.float32), jnp.int32(time))


def swing(theta, speed, time=0):
    return PendulumState(jnp.array([theta, speed], jnp.float32), jnp.int32(time))


def links(*physics, time=0):
    return AcrobotState(jnp.array(physics, jnp.float32), jnp.int32(time))


def robot(x, y, yaw, time=0):
    return NavigationState(jnp.array([x, y, yaw], jnp.float32), jnp.int32(time))


def game(own=260.0, other=260.0, x=400.0, y=300.0, dx=5.0, dy=0.0, time=0):
    return PongState(jnp.array([own, other, x, y, dx, dy], jnp.float32), jnp.int32(time))


def test_angles_wrap():
    given = [0.0, 3.0, 3.2, -3.2, 2 * np.pi, 9.5, -9.5]
    expected = [0.0, 3.0, 3.2 - 2 * np.pi, 2 * np.pi - 3.2, 0.0, 9.5 - 4 * np.pi, 4 * np.pi - 9.5]
    np.testing.assert_allclose(wrap(jnp.array(given)), expected, atol=1e-6)


def test_mountain_car():
    env, params = envs_jax.make("MountainCar-v0")
    obs, state, reward, terminated, truncated, info = act(env, params, car(-0.5, 0.0), 2)
    velocity = 0.001 - 0.0025 * 0.0707372  # cos 1.5
    np.testing.assert_allclose(obs, [-0.5 + velocity, velocity], rtol=1e-6)
    assert (float(reward), bool(terminated), bool(truncated), info) == (-1.0, False, False, {})
    assert int(state.time) == 1
    np.testing.assert_allclose(act(env, params, car(-1.19, -0.05), 0)[0], [-1.2, 0.0])  # the wall takes its speed
    assert float(act(env, params, car(-0.5, 0.07), 2)[0][1]) == np.float32(0.07)
    assert bool(act(env, params, car(-0.5, 0.0, time=199), 1)[4])
    goal = act(env, params, car(0.49, 0.05), 1)
    np.testing.assert_allclose(goal[0], [0.5397484, 0.0497484], rtol=1e-5)  # 0.05 - 0.0025 cos 1.47
    assert bool(goal[3]) and float(goal[2]) == -1.0
    fussy, params = envs_jax.make("MountainCar-v0?goal_velocity=0.06")
    assert not bool(act(fussy, params, car(0.49, 0.05), 1)[3])


def test_mountain_car_continuous():
    env, params = envs_jax.make("MountainCarContinuous-v0")
    obs, _, reward, terminated, _, _ = act(env, params, car(0.44, 0.02), 2.0)
    velocity = 0.02 + 0.0015 - 0.0025 * 0.2481754  # full throttle, whatever is asked for; cos 1.32
    np.testing.assert_allclose(obs, [0.44 + velocity, velocity], rtol=1e-5)
    assert bool(terminated)
    np.testing.assert_allclose(reward, 100 - 0.1 * 4, rtol=1e-6)  # and it is paid for
    np.testing.assert_allclose(act(env, params, car(-0.5, 0.0), -0.5)[2], -0.025, rtol=1e-6)
    assert bool(act(env, params, car(-0.5, 0.0, time=998), 0.0)[4])
    with pytest.raises(TypeError, match="MountainCarContinuous-v0.*Box"):
        env.action_names  # noqa: B018


def test_pendulum():
    env, params = envs_jax.make("Pendulum-v1")
    obs, state, reward, terminated, truncated, _ = act(env, params, swing(np.pi / 2, 1.0), 3.0)
    np.testing.assert_allclose(reward, -(2.4674011 + 0.1 + 0.001 * 4), rtol=1e-6)
    np.testing.assert_allclose(state.physics, [np.pi / 2 + 0.05 * 2.05, 2.05], rtol=1e-6)  # 1 + 0.05 (15 + 6)
    np.testing.assert_allclose(obs, [-np.sin(0.1025), np.cos(0.1025), 2.05], rtol=1e-5)
    assert not bool(terminated) and not bool(truncated)
    assert bool(act(env, params, swing(0.0, 0.0, time=199), 0.0)[4])
    fast = act(env, params, swing(np.pi - 0.1, 7.99), 2.0)[1]
    np.testing.assert_allclose(fast.physics, [-np.pi + 0.3, 8.0], rtol=1e-5)  # at most 8, and once around
    heavy, params = envs_jax.make("Pendulum-v1", g=20.0)
    np.testing.assert_allclose(act(heavy, params, swing(np.pi / 2, 1.0), 2.0)[1].physics[1], 2.8, rtol=1e-6)


def test_acrobot():
    env, params = envs_jax.make("Acrobot-v1")
    brief = params.replace(dt=1e-3)
    # hanging, under a torque of 1: d1 = 4.5, d2 = 1.75, so 1 / (1.25 - 1.75^2 / 4.5), and -1.75 / 4.5 of that
    _, state, reward, terminated, _, _ = act(env, brief, links(0.0, 0.0, 0.0, 0.0), 2)
    np.testing.assert_allclose(state.physics[2:] * 1e3, [-0.6829268, 1.7560976], rtol=1e-4)
    assert float(reward) == -1.0 and not bool(terminated)
    # without gravity, link 2 across link 1, which turns: 0.5 / (1.25 - 1.25^2 / 3.5) is the term that the paper lacks
    across = links(0.0, np.pi / 2, 1.0, 0.0)
    nips, _ = envs_jax.make("Acrobot-v1", book_or_nips="nips")
    for variant, expected in ((env, -0.6222222), (nips, 0.0)):
        found = act(variant, brief.replace(gravity=0.0), across, 1)[1].physics[3] * 1e3
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)
    *_, reward, terminated, truncated, _ = act(env, brief, links(np.pi, 0.0, 0.0, 0.0, time=499), 1)
    assert bool(terminated) and bool(truncated) and float(reward) == 0.0
    strong = act(env, params.replace(torque=1000.0), links(0.0, 0.0, 0.0, 0.0), 2)[0]
    np.testing.assert_allclose(strong[4:], [-4 * np.pi, 9 * np.pi], rtol=1e-6)
    shaky, params = envs_jax.make("Acrobot-v1?torque_noise_max=0.5")
    one, two = (act(shaky, params, across, 1, jax.random.key(i))[0] for i in range(2))
    assert not np.allclose(one, two)
    with pytest.raises(ValueError, match="'paper'"):
        envs_jax.make("Acrobot-v1", book_or_nips="paper")


def test_navigation_by_hand():
    env, params = envs_jax.make("NavigationTrack-v0")
    params = params.replace(motion_noise=0.0, sensor_noise=0.0)
    # on the left straight, looking along it: walls at 1.5 m on either side, the corner 10 m ahead
    side, slanted = 1.5, 1.5 * np.sqrt(2)
    obs, state, reward, terminated, _, _ = act(env, params, robot(1.5, 10.0, 0.0), 0)
    np.testing.assert_allclose(state.pose, [1.5, 10.2, 0.0], rtol=1e-6)
    np.testing.assert_allclose(obs, [side, slanted, 9.8, slanted, side], rtol=1e-6)
    assert float(reward) == 5.0 and not bool(terminated)
    for action, yaw in ((1, 0.2), (2, -0.2)):
        _, state, reward, _, _, _ = act(env, params, robot(1.5, 10.0, 0.0), action)
        np.testing.assert_allclose(state.pose, [1.5, 10.04, yaw], rtol=1e-6)  # moves first, then turns
        assert float(reward) == -0.5
    obs, _, reward, terminated, _, _ = act(env, params, robot(0.55, 10.0, -np.pi / 2), 0)
    np.testing.assert_allclose(obs[2], 0.35, rtol=1e-5)
    assert bool(terminated) and float(reward) == -200.0
    assert bool(act(env, params, robot(1.5, 10.0, 0.0, time=999), 0)[4])
    square, _ = envs_jax.make("NavigationTrack-v0", track_id=2)
    np.testing.assert_allclose(square.ranges(robot(10.0, 12.0, 0.0).pose, params), [10, 8 * 2**0.5, 8, 8 * 2**0.5, 10])
    np.testing.assert_allclose(env.ranges(robot(50.0, 50.0, 0.0).pose, params), 30.0)  # nothing in sight
    backwards = params.replace(creep=-0.1)
    mimic, _ = envs_jax.make("NavigationTrack-v0?compat=gym_navigation")
    assert float(act(env, backwards, robot(1.5, 10.0, 0.0), 1)[1].pose[1]) == pytest.approx(9.9)
    assert float(act(mimic, backwards, robot(1.5, 10.0, 0.0), 1)[1].pose[1]) == pytest.approx(10.1)


def test_navigation_starts_and_noise():
    env, params = envs_jax.make("NavigationTrack-v0")
    keys = jax.random.split(KEY, 3000)
    obs, states = starts(env, params, keys)
    x, y, yaw = np.asarray(states.pose).T
    on = [
        (x == 1.5) & (y <= 18.5),
        (y == 18.5) & (x <= 18.5),
        (x == 18.5) & (y >= 10),
        (y == 10) & (x >= 10),
        (x == 10) & (y <= 10),
        (y == 1.5) & (x <= 10),
    ]
    np.testing.assert_allclose(np.mean(on, axis=1), 1 / 6, atol=0.03)  # sides alike, whatever their length
    assert np.all(np.any(on, axis=0)) and np.abs(yaw).max() <= np.float32(np.pi)
    np.testing.assert_allclose(np.std(yaw), np.pi / np.sqrt(3), rtol=0.03)
    noise = obs - jax.jit(jax.vmap(env.ranges, in_axes=(0, None)))(states.pose, params)
    np.testing.assert_allclose([np.mean(noise), np.std(noise)], [0.0, 0.02], atol=1e-3)
    step = jax.jit(jax.vmap(lambda key: env.step(key, robot(1.5, 10.0, 0.0), jnp.int32(1), params)[1].pose))
    moved = np.asarray(step(keys))
    np.testing.assert_allclose(moved[:, 1:].mean(0), [10.04, 0.2], atol=2e-3)
    np.testing.assert_allclose(moved[:, 1:].std(0), 0.02, rtol=0.05)
    assert np.abs(np.corrcoef(moved[:, 1], moved[:, 2])[0, 1]) < 0.06


def test_pong_by_hand():
    env, params = envs_jax.make("Pong-v0")
    obs, state, reward, terminated, _, _ = act(env, params, game(own=280.0, x=15.0, dx=-5.0), 2)
    np.testing.assert_allclose(obs, [320.0, 10.0, 300.0, 5.0, -2.5])  # met a quarter from the top: 5 (2 / 4 - 1)
    assert float(reward) == 1.0 and not bool(terminated)
    assert float(state.game[1]) == 255.0  # the opponent's middle is not above the ball, so it goes up
    assert [float(act(env, params, game(), action)[1].game[0]) for action in (0, 1, 2)] == [255.0, 265.0, 260.0]
    state, ends = game(own=0.0, x=15.0, dx=-5.0), []
    for _ in range(4):
        _, state, reward, terminated, _, _ = act(env, params, state, 0)
        assert float(reward) == 0.0
        ends.append(bool(terminated))
    assert ends == [False, False, False, True]  # columns 10, 5, 0, -5
    obs, _, reward, terminated, _, _ = act(env, params, game(x=780.0, other=0.0, dx=5.0), 2)
    assert float(obs[1]) == 785.0 and not bool(terminated)
    assert bool(act(env, params, game(x=790.0, other=0.0, dx=5.0), 2)[3])
    obs, _, reward, _, _, _ = act(env, params, game(x=776.0, other=240.0, dx=5.0), 2)
    np.testing.assert_allclose(obs[3:], [-5.0, 5 * (2 * 55 / 80 - 1)])  # a return of the opponent's pays nothing
    assert float(reward) == 0.0
    assert bool(act(env, params, game(time=999), 2)[4])


def test_pong_walls():
    env, params = envs_jax.make("Pong-v0")
    mimic, _ = envs_jax.make("Pong-v0?compat=props")
    for y, dy, sent_back, turned in ((2.0, -3.0, 3.0, 3.0), (588.0, 3.0, -3.0, -3.0), (596.0, -2.0, -2.0, 2.0)):
        assert float(act(env, params, game(y=y, dy=dy), 2)[0][4]) == sent_back
        assert float(act(mimic, params, game(y=y, dy=dy), 2)[0][4]) == turned


def test_pong_starts():
    env, params = envs_jax.make("Pong-v0")
    obs, states = starts(env, params, jax.random.split(KEY, 2000))
    np.testing.assert_array_equal(obs[:, :3], np.tile([300.0, 400.0, 300.0], (2000, 1)))
    assert set(np.unique(obs[:, 3])) == {-5.0, 5.0} and abs(np.mean(obs[:, 3])) < 0.4
    assert np.abs(obs[:, 4]).max() <= 5.0
    np.testing.assert_allclose(np.std(obs[:, 4]), 5 / np.sqrt(3), rtol=0.05)


def test_pong_allows_three_returns():
    env, params = envs_jax.make("Pong-v0")

    def episode(key):
        def step(carry, _):
            obs, state, over = carry
            action = jnp.where(obs[2] < obs[0] - 5, 0, jnp.where(obs[2] > obs[0] + 5, 1, 2))
            obs, state, reward, terminated, truncated, _ = env.step(key, state, action, params)
            return (obs, state, over | terminated | truncated), jnp.where(over, 0.0, reward)

        return jax.lax.scan(step, (*env.reset(key, params), jnp.bool(False)), None, 1000)[1].sum()

    returns = jax.jit(jax.vmap(episode))(jax.random.split(KEY, 64))
    np.testing.assert_array_equal(returns, 3.0)  # the threshold at which ProPS calls it solved


def linear(env, params, weights, discrete, length):
    """A function of many starts `(obs, state)` to the returns of a linear policy: `weights` [S + 1, A], bias last."""
    weights = jnp.asarray(weights, jnp.float32)

    @jax.jit
    @jax.vmap
    def play(obs, state):
        def step(carry, _):
            obs, state, over = carry
            scores = obs @ weights[:-1] + weights[-1]
            action = jnp.argmax(scores).astype(jnp.int32) if discrete else scores
            obs, state, reward, terminated, truncated, _ = env.step(KEY, state, action, params)
            return (obs, state, over | terminated | truncated), jnp.where(over, 0.0, reward)

        return jax.lax.scan(step, (obs, state, jnp.bool(False)), None, length)[1].sum()

    return play


def test_published_policy_balances_the_pole():
    """ProPS's best weights; in float64 NumPy, 0.971 of 20,000 starts last 500 steps, and the mean is 497.3."""
    env, params = envs_jax.make("CartPole-v1")
    weights = [[-0.05, 0.05], [-0.25, 0.25], [-2.0, 2.0], [-2.5, 2.5], [0.05, 0.06]]
    found = linear(env, params, weights, True, 500)(*starts(env, params, jax.random.split(KEY, 2000)))
    assert np.mean(found == 500) == pytest.approx(0.971, abs=0.012)
    assert np.mean(found) == pytest.approx(497.3, abs=1.5)


@pytest.mark.parametrize(("gain", "expected"), [(5.5, 85.3), (6.0, 88.2), (12.0, 97.7), (40.0, 83.9)])
def test_published_policy_climbs_the_hill(gain, expected):
    """The means over 200 random starts, calculated in plain Python; here over an even grid of them."""
    env, params = envs_jax.make("MountainCarContinuous-v0")
    physics = jnp.stack([jnp.linspace(-0.6, -0.4, 201), jnp.zeros(201)], axis=1)
    states = MountainCarState(physics, jnp.zeros(201, jnp.int32))
    found = linear(env, params, [[0.0], [gain], [0.0]], False, 999)(physics, states)
    assert np.mean(found) == pytest.approx(expected, abs=4.0)


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("NavigationTrack-v0", {"track_id": 3}, "track 3"),
        ("NavigationTrack-v0", {"compat": "gym"}, "'gym'.*'gym_navigation'"),
        ("Pong-v0", {"compat": "gym"}, "'gym'.*'props'"),
    ],
)
def test_options_refused(id, options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make(id, **options)


@pytest.mark.parametrize(
    ("id", "changed"),
    [("Pendulum-v1", {"max_speed": 0.5}), ("MountainCar-v0", {"min_position": -0.55})],
)
def test_starts_are_within_the_bounds_of_the_parameters(id, changed):
    env, params = envs_jax.make(id)
    keys = jax.random.split(KEY, 64)
    space = env.observation_space(params.replace(**changed))
    obs, stock = (np.asarray(starts(env, p, keys)[0]) for p in (params.replace(**changed), params))
    assert all(space.contains(x) for x in obs)
    inside = [space.contains(x) for x in stock]
    assert 0 < sum(inside) < 64
    np.testing.assert_array_equal(obs[inside], stock[inside])


def test_taking_over_through_a_wrapper():
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make("CartPole-v1")
    theirs.reset(seed=0)
    env, params = envs_jax.make("CartPole-v1")
    found = [envs_jax.control.import_state(theirs, e, params) for e in (env, EpisodeStatistics(env))]
    jax.tree.map(np.testing.assert_array_equal, *found)
    with pytest.raises(TypeError, match="Catch"):
        envs_jax.control.import_state(theirs, EpisodeStatistics(envs_jax.make("Debug-Catch-v0")[0]), params)


def center(picture, color):
    """Mean column and row of a color."""
    rows, columns = np.nonzero((picture == color).all(-1))
    return columns.mean(), rows.mean()


def test_pictures():
    env, _ = envs_jax.make("MountainCar-v0")
    low, high = (env.render(car(x, 0.0)) for x in (-0.5, 0.4))
    assert low.shape == (320, 480, 3) and low.dtype == np.uint8
    dark = [(p[:, :440] == 0).all(-1).nonzero() for p in (low, high)]
    assert dark[0][1].mean() < dark[1][1].mean() - 200 and dark[0][0].mean() > dark[1][0].mean() + 100
    assert center(low, YELLOW)[0] > 450  # the flag, at the goal

    env, _ = envs_jax.make("Pendulum-v1")
    up, left = (env.render(swing(theta, 0.0)) for theta in (0.0, np.pi / 2))
    np.testing.assert_allclose(center(up, RED), (120, 75), atol=2)
    np.testing.assert_allclose(center(left, RED), (75, 120), atol=2)

    env, _ = envs_jax.make("Acrobot-v1")
    hanging, right = (env.render(links(theta, 0.0, 0.0, 0.0)) for theta in (0.0, np.pi / 2))
    np.testing.assert_allclose(center(hanging, TEAL), (120, 172), atol=3)
    np.testing.assert_allclose(center(right, TEAL), (172, 120), atol=3)
    assert (hanging[70] == 0).all()  # the height to be reached

    env, _ = envs_jax.make("NavigationTrack-v0")
    picture = env.render(robot(1.5, 10.0, 0.0))
    np.testing.assert_allclose(center(picture, BLUE), (30, 132), atol=1)
    assert (picture[20:120, 30] == RED).all()  # the ray ahead, to the wall at the top
    assert (picture[140:252, 12] == 0).all()  # the wall on the left

    env, _ = envs_jax.make("Pong-v0")
    picture = env.render(game(own=100.0, other=500.0, x=400.0, y=200.0))
    assert picture.shape == (300, 400, 3)
    np.testing.assert_allclose(center(picture[:, :5], WHITE), (2, 69.5))
    np.testing.assert_allclose(center(picture[:, -5:], WHITE), (2, 269.5))
    np.testing.assert_allclose(center(picture[:, 50:350], WHITE), (152.5, 102.5), atol=0.6)
