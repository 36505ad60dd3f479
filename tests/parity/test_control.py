"""Control worlds against Gymnasium's from imported states, or against rules written apart where there is no package."""

from __future__ import annotations

import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control import import_state


KEY = jax.random.key(0)


def balance(obs):
    return int(obs[2] + 0.5 * obs[3] > 0)


def rock(obs):
    return 2 if obs[1] >= 0 else 0


def push(obs):
    return np.float32([1.2 if obs[1] >= 0 else -1.2])  # the 0.2 is clipped, and costs


def lift(obs):
    return np.float32([2.0 * np.sign(obs[2]) if obs[0] < 0.9 else -8 * obs[1] - 2 * obs[2]])


def pump(obs):
    return 2 if obs[5] > 0 else 0


# id, options, a sensible policy, episodes, which ones are replayed whole (every other episode is the policy's, 0; the
# others are random, 1), and how far float32 may be from float64: in one step, and in a whole episode
WORLDS = [
    ("CartPole-v1", {}, balance, 6, 1, 1e-6, 1e-5),
    ("CartPole-v1", {"sutton_barto_reward": True}, balance, 2, 1, 1e-6, 1e-5),
    ("MountainCar-v0", {}, rock, 4, 0, 1e-6, 1e-5),
    ("MountainCar-v0", {"goal_velocity": 0.03}, rock, 2, 0, 1e-6, 1e-5),
    ("MountainCarContinuous-v0", {}, push, 2, 0, 1e-6, 1e-5),
    ("Pendulum-v1", {}, lift, 2, 1, 1e-6, 1e-3),
    ("Pendulum-v1", {"g": 5.0}, lift, 2, 1, 1e-6, 1e-3),
    ("Acrobot-v1", {}, pump, 2, 0, 2e-6, 1e-2),
]
NAMES = [" ".join([id, *options]) for id, options, *_ in WORLDS]
CASES = [pytest.param(*world, marks=[pytest.mark.slow] * bool(world[1])) for world in WORLDS]
"""Worlds with their defaults, and with an option in the slow run."""


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def recorded(theirs, env, params, policy, episodes):
    """Play Gymnasium's world, every other episode by the policy and the others at random.

    **Returns:** for each episode `((obs, state), action, answer)` with a leading axis of steps: ours before each, and
    what Gymnasium answered to the action.
    """
    rng = np.random.default_rng(0)
    discrete = isinstance(theirs.action_space, gymnasium.spaces.Discrete)
    for seed in range(2, 2 + episodes):
        seen, _ = theirs.reset(seed=seed)
        rows, over = [], False
        while not over:
            obs, state = import_state(theirs, env, params)
            np.testing.assert_allclose(obs, seen, rtol=1e-6, atol=1e-6)
            random = rng.integers(env.action_space(params).n) if discrete else 1.5 * theirs.action_space.sample()
            action = policy(seen) if seed % 2 == 0 else random
            seen, reward, terminated, truncated, _ = theirs.step(int(action) if discrete else action)
            action = np.int32(action) if discrete else np.float32(action)
            answer = (seen, np.float32(reward), terminated, truncated)
            rows.append((jax.device_get((obs, state)), action, answer))
            over = terminated or truncated
        yield stacked(rows)


def compare(found, expected, tol):
    """Ours, padded, against Gymnasium's observations, rewards and flags."""
    for mine, reference in zip(found, expected):
        np.testing.assert_allclose(mine[: len(reference)], reference, rtol=tol, atol=tol)


@pytest.mark.parametrize(
    ("id", "options", "policy", "episodes", "replayed", "step_tol", "episode_tol"), CASES, ids=NAMES
)
def test_gymnasium(id, options, policy, episodes, replayed, step_tol, episode_tol):
    theirs = gymnasium.make(id, **options)
    theirs.action_space.seed(0)
    env, params = envs_jax.make(id, **options)
    one = jax.jit(jax.vmap(lambda state, action: env.step(KEY, state, action, params)))

    @jax.jit
    def whole(state, actions):
        def step(state, action):
            obs, state, *rest, _ = env.step(KEY, state, action, params)
            return state, (obs, *rest)

        return jax.lax.scan(step, state, actions)[1]

    longest, ends = params.max_steps, np.zeros(2, int)
    for episode, ((_, states), actions, expected) in enumerate(recorded(theirs, env, params, policy, episodes)):
        padded = jax.tree.map(lambda x: np.resize(x, (longest, *x.shape[1:])), (states, actions))
        obs, after, *rest, info = one(*padded)
        compare((obs, *rest), expected, step_tol)
        np.testing.assert_array_equal(after.time[: len(actions) - 1], states.time[1:])
        assert info == {}
        ends += expected[2].any(), expected[3].any()
        if episode % 2 == replayed:
            compare(whole(jax.tree.map(lambda x: x[0], states), padded[1]), expected, episode_tol)
    assert ends[1] if id == "Pendulum-v1" else ends[0]
    if id == "CartPole-v1" and not options:
        assert ends[0] == ends[1] == 3  # falls, and time-outs


@pytest.mark.parametrize(
    "id", ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"]
)
def test_spaces_and_starts(id):
    theirs = gymnasium.make(id)
    env, params = envs_jax.make(id)
    pairs = [(env.observation_space(params), theirs.observation_space)]
    if isinstance(theirs.action_space, gymnasium.spaces.Discrete):
        assert env.action_space(params).n == theirs.action_space.n == len(env.action_names)
    else:
        pairs.append((env.action_space(params), theirs.action_space))
    for space, reference in pairs:
        for bound in ("low", "high"):
            mine = np.broadcast_to(np.float32(getattr(space, bound)), space.shape)
            np.testing.assert_array_equal(mine, getattr(reference, bound))
    assert params.max_steps == theirs.spec.max_episode_steps
    starts, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(KEY, 2000), params)
    reference = np.stack([theirs.reset(seed=s)[0] for s in range(500)])
    spread = np.std(reference, axis=0)
    np.testing.assert_allclose(np.std(starts, axis=0), spread, rtol=0.1)
    assert np.all(np.abs(np.mean(starts, axis=0) - np.mean(reference, axis=0)) <= 0.2 * spread)
    extremes = [f(x, axis=0) for f in (np.min, np.max) for x in (starts, reference)]
    np.testing.assert_allclose(extremes[::2], extremes[1::2], atol=0.1 * spread.max() + 1e-6)


def test_acrobot_variants():
    """Gymnasium's attributes `book_or_nips` and `torque_noise_max`, which `make` does not take."""
    theirs = gymnasium.make("Acrobot-v1").unwrapped
    theirs.book_or_nips = "nips"
    env, params = envs_jax.make("Acrobot-v1?book_or_nips=nips")
    step = jax.jit(env.step)
    rng = np.random.default_rng(0)
    for _ in range(20):
        theirs.reset(seed=0)
        theirs.state = rng.uniform(-3, 3, 4)
        action = int(rng.integers(3))
        _, state = import_state(theirs, env, params)
        found = step(KEY, state, jnp.int32(action), params)
        expected = theirs.step(action)
        np.testing.assert_allclose(found[0], expected[0], rtol=2e-6, atol=2e-6)
        assert (float(found[2]), bool(found[3])) == expected[1:3]


def test_one_program_varies_its_constants():
    env, params = envs_jax.make("CartPole-v1")
    state = env.reset(KEY, params)[1]
    many = jax.vmap(lambda g: env.step(KEY, state, jnp.int32(1), params.replace(gravity=g))[0])
    low, high = many(jnp.array([1.0, 20.0]))
    assert float(low[3]) != float(high[3])


def test_import_refuses():
    env, params = envs_jax.make("CartPole-v1")
    for id in ("CartPole-v1", "MountainCar-v0", "Acrobot-v1"):
        with pytest.raises(ValueError, match="reset"):
            import_state(gymnasium.make(id), *envs_jax.make(id))
    with pytest.raises(TypeError, match="PendulumEnv.*CartPoleEnv.*CartPole-v1"):
        import_state(gymnasium.make("Pendulum-v1"), env, params)
    with pytest.raises(TypeError, match="Match"):
        import_state(gymnasium.make("CartPole-v1"), *envs_jax.make("Debug-Match-v0"))


def test_picture():
    env, params = envs_jax.make("CartPole-v1")
    _, state = env.reset(KEY, params)
    upright = env.render(state)
    fallen = env.render(state.replace(physics=jnp.array([1.0, 0.0, 1.2, 0.0])))
    assert upright.shape == (200, 480, 3) and upright.dtype == np.uint8
    brown = (202, 152, 101)
    columns = [np.flatnonzero((p == brown).all(-1).any(0)).mean() for p in (upright, fallen)]
    assert abs(columns[0] - 240) < 6 and columns[1] > 240 + 80  # the pole leans right of a cart one metre right


# ---- Worlds without a package on the index: their rules, in float64 and one object at a time.


class Pose:
    """A place with a direction, under the names that gym_navigation gives them."""

    def __init__(self, x, y, yaw):
        self.position = type("Point", (), {"x_coordinate": x, "y_coordinate": y})()
        self.yaw = yaw


class NavigationTrack:
    """gym_navigation's track 1, except that all noise is given."""

    CORNERS = (
        [(0, 0), (0, 20), (20, 20), (20, 8.5), (11.5, 8.5), (11.5, 0)],
        [(3, 3), (3, 17), (17, 17), (17, 11.5), (8.5, 11.5), (8.5, 3)],
    )

    def __init__(self, x, y, yaw):
        self.unwrapped = self
        self._pose = Pose(x, y, yaw)
        self._ranges = self.look(np.zeros(5))

    def look(self, noise):
        ranges = []
        x, y = self._pose.position.x_coordinate, self._pose.position.y_coordinate
        for angle in (-90, -45, 0, 45, 90):
            yaw = self._pose.yaw + math.radians(angle)
            dx, dy = 30 * math.sin(yaw), 30 * math.cos(yaw)
            nearest = 30.0
            for ring in self.CORNERS:
                for (x0, y0), (x1, y1) in zip(ring, ring[1:] + ring[:1]):
                    # (x, y) + s (dx, dy) = (x0, y0) + t (x1 - x0, y1 - y0), with s and t between 0 and 1
                    crossed = dx * (y1 - y0) - dy * (x1 - x0)
                    if crossed:
                        s = ((x0 - x) * (y1 - y0) - (y0 - y) * (x1 - x0)) / crossed
                        t = ((x0 - x) * dy - (y0 - y) * dx) / crossed
                        if 0 <= s <= 1 and 0 <= t <= 1:
                            nearest = min(nearest, 30 * s)
            ranges.append(nearest)
        return np.array(ranges) + 0.02 * noise

    def step(self, action, noise):
        distance = (0.2 if action == 0 else 0.04) + 0.02 * noise[0]
        turn = {0: 0.0, 1: 0.2, 2: -0.2}[action] + 0.02 * noise[1]
        self._pose.position.x_coordinate += distance * math.sin(self._pose.yaw)
        self._pose.position.y_coordinate += distance * math.cos(self._pose.yaw)
        self._pose.yaw += turn
        while self._pose.yaw > math.pi:
            self._pose.yaw -= 2 * math.pi
        while self._pose.yaw < -math.pi:
            self._pose.yaw += 2 * math.pi
        self._ranges = self.look(noise[2:])
        crashed = bool(min(self._ranges) < 0.4)
        return self._ranges, -200.0 if crashed else 5.0 if action == 0 else -0.5, crashed


def steer(ranges):
    """Forward where there is room, else to the roomier side: about 4,100 in 1,000 steps."""
    return 0 if min(ranges[1], ranges[3]) > 0.9 and ranges[2] > 1.3 else 1 if ranges[3] > ranges[1] else 2


def test_navigation_rules():
    env, params = envs_jax.make("NavigationTrack-v0")
    step = jax.jit(env.step)
    rng = np.random.default_rng(0)
    crashes = 0
    for i in range(40):
        start = env.reset(jax.random.key(i), params)[1].pose + np.float32([*rng.uniform(-1.4, 1.4, 2), 0])
        theirs = NavigationTrack(*np.asarray(start, np.float64))
        obs, state = import_state(theirs, env, params)
        np.testing.assert_allclose(obs, theirs._ranges, rtol=1e-5)
        key, action = jax.random.key(1000 + i), int(rng.integers(3))
        found = step(key, state, jnp.int32(action), params)
        expected = theirs.step(action, np.asarray(jax.random.normal(key, (7,)), np.float64))
        np.testing.assert_allclose(found[0], expected[0], rtol=2e-5, atol=1e-5)
        assert (np.float32(found[2]), bool(found[3])) == expected[1:]
        np.testing.assert_allclose(found[1].pose, import_state(theirs, env, params)[1].pose, rtol=1e-5, atol=1e-6)
        crashes += expected[2]
    assert crashes >= 5


def test_navigation_episode():
    env, params = envs_jax.make("NavigationTrack-v0")
    step = jax.jit(env.step)
    _, state = env.reset(jax.random.key(7), params)
    theirs = NavigationTrack(*np.asarray(state.pose, np.float64))
    turns = 0
    for t in range(200):
        action, key = steer(theirs._ranges), jax.random.key(t)
        obs, state, reward, terminated, _, _ = step(key, state, jnp.int32(action), params)
        expected = theirs.step(action, np.asarray(jax.random.normal(key, (7,)), np.float64))
        np.testing.assert_allclose(obs, expected[0], atol=1e-3)
        assert (np.float32(reward), bool(terminated)) == expected[1:]
        turns += action != 0
    assert not terminated and turns >= 16  # round two corners at least


class PongEnv:
    """ProPS's Pong, under its names; `mended` sends the ball back from a wall instead of turning its speed."""

    def __init__(self, own, other, x, y, dx, dy, mended):
        self.unwrapped, self.mended, self.step_count = self, mended, 0
        self.paddle1_y, self.paddle2_y, self.ball_x, self.ball_y, self.ball_dx, self.ball_dy = own, other, x, y, dx, dy

    def step(self, action):
        self.paddle1_y = min(520, max(0, self.paddle1_y + {0: -5, 1: 5, 2: 0}[action]))
        self.paddle2_y += 5 if self.paddle2_y + 40 < self.ball_y else -5
        self.paddle2_y = min(520, max(0, self.paddle2_y))
        self.ball_x += self.ball_dx
        self.ball_y += self.ball_dy
        if self.ball_y <= 0:
            self.ball_dy = abs(self.ball_dy) if self.mended else -self.ball_dy
        elif self.ball_y >= 590:
            self.ball_dy = -abs(self.ball_dy) if self.mended else -self.ball_dy
        reward = 0.0
        if self.ball_dx < 0:
            if self.ball_x <= 10 and 0 <= self.ball_y - self.paddle1_y <= 80:
                self.leave(self.paddle1_y)
                reward = 1.0
        elif self.ball_x >= 780 and 0 <= self.ball_y - self.paddle2_y <= 80:
            self.leave(self.paddle2_y)
        self.step_count += 1
        return reward, not 0 <= self.ball_x <= 790, self.step_count >= 1000

    def leave(self, paddle):
        self.ball_dx = -self.ball_dx
        self.ball_dy = 5 * (2 * (self.ball_y - paddle) / 80 - 1)


@pytest.mark.parametrize("compat", [None, "props"])
def test_pong_rules(compat):
    env, params = envs_jax.make("Pong-v0", compat=compat)
    step = jax.jit(env.step)
    rng = np.random.default_rng(0)
    seen = np.zeros(4)
    for i in range(300):
        paddles = 5.0 * rng.integers(0, 105, 2)
        x = 5.0 * (rng.integers(0, 160) if i % 4 == 0 else rng.choice([0, 1, 2, 3, 155, 156, 157, 158]))
        dx = rng.choice([-5, 5])
        y = rng.uniform(-4, 599) if i % 3 else np.clip(paddles[int(dx > 0)] + rng.uniform(-10, 90), -4, 599)
        theirs = PongEnv(*paddles, x, y, dx, rng.uniform(-5, 5), compat is None)
        theirs.step_count = int(rng.integers(990, 1000))
        _, state = import_state(theirs, env, params)
        action = int(rng.integers(3))
        slope = theirs.ball_dy
        reward, terminated, truncated = theirs.step(action)
        found = step(KEY, state, jnp.int32(action), params)
        obs, after = import_state(theirs, env, params)
        np.testing.assert_allclose(found[0], obs, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[1].game, after.game, rtol=1e-5, atol=1e-5)
        assert int(found[1].time) == int(after.time)
        assert (float(found[2]), bool(found[3]), bool(found[4])) == (reward, terminated, truncated)
        seen += reward, terminated, truncated, slope != theirs.ball_dy
    assert np.all(seen >= 10)


@pytest.mark.parametrize("compat", [pytest.param(None, marks=pytest.mark.slow), "props"])
def test_pong_episode(compat):
    env, params = envs_jax.make("Pong-v0", compat=compat)
    step = jax.jit(env.step)
    theirs = PongEnv(260, 260, 400, 300, -5, 3.25, compat is None)
    obs, state = import_state(theirs, env, params)
    rewards = []
    while not rewards or not (terminated or truncated):
        error = theirs.ball_y - theirs.paddle1_y - 40
        action = 0 if error < -5 else 1 if error > 5 else 2
        reward, terminated, truncated = theirs.step(action)
        obs, state, *mine, _ = step(KEY, state, jnp.int32(action), params)
        rewards.append(reward)
        assert tuple(map(float, mine)) == (reward, terminated, truncated)
        np.testing.assert_allclose(obs, import_state(theirs, env, params)[0], atol=0.05)
    assert len(rewards) == 1000 and sum(rewards) == 3
