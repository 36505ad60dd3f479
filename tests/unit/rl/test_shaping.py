"""Shaping over windows of history: by hand, beside another way of computing, and on a tabular world."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.shaping import NO_ACTION, OfObservation, Shaping, ShapingConfig


def steps(reward, obs, next_obs, terminated=False, truncated=False, action=0):
    """Steps `[T, N]`."""
    reward = np.asarray(reward, np.float32)
    ends = [np.broadcast_to(np.asarray(x, bool), reward.shape) for x in (terminated, truncated)]
    action = np.broadcast_to(np.asarray(action, np.int32), reward.shape)
    return jax.tree.map(jnp.asarray, Transitions(np.float32(obs), action, reward, np.float32(next_obs), *ends))


def test_by_hand():
    """phi(x) = 10 x, gamma 0.5: a step, a termination (nothing behind it), a truncation (its potential counts)."""
    shaping = Shaping(OfObservation(lambda x: 10 * x), ShapingConfig(coef=2, extrinsic_coef=3))
    state = shaping.init(jax.random.key(0), jnp.ones(1))
    ends = [[False], [True], [False]], [[False], [False], [True]]
    played = steps([[1], [2], [3]], [[1], [2], [4]], [[2], [3], [5]], *ends)
    _, reward, metrics = jax.jit(shaping.reward)(state, played, 0.5)
    expected = [3 + 2 * (0.5 * 20 - 10), 6 + 2 * (0 - 20), 9 + 2 * (0.5 * 50 - 40)]
    np.testing.assert_allclose(reward[:, 0], expected)
    assert float(metrics["potential_mean"]) == pytest.approx(70 / 3)


class Mixed:
    """A potential in which every part of a window counts, and its place."""

    params = {"scale": np.float32(0.7)}

    def __init__(self, window):
        self.window = window

    def encode(self, params, obs):
        return {"double": 2 * obs, "row": jnp.stack([obs, -obs], axis=-1)}

    def value(self, params, window):
        assert window.features["row"].shape == (*window.features["double"].shape, 2)
        place = jnp.arange(1, self.window + 2)
        total = jnp.sum(jnp.sin(place * window.features["double"]) * place, axis=1)
        total += jnp.sum(window.features["row"][:, :, 1] * place**2, axis=1) / 10
        return params["scale"] * (total + window.action @ place[:-1] + jnp.cos(window.time))


def by_hand(window, obs, actions, time):
    """The same for one window, in numpy; `obs` and `actions` are those of the episode so far."""
    padded = [obs[0]] * (window + 1 - len(obs)) + obs[-window - 1 :]
    taken = ([NO_ACTION] * window + actions)[len(actions) :] if window else []
    place = np.arange(1, window + 2)
    total = np.sum(np.sin(place * 2 * np.array(padded)) * place) - np.sum(np.array(padded) * place**2) / 10
    return 0.7 * (total + float(np.dot(taken, place[:-1])) + np.cos(time))


def played_at_random(count, rows, seed):
    """Whole episodes of random numbers, in a row: steps `[count, rows]`."""
    rng = np.random.default_rng(seed)
    obs, reached = np.zeros((count, rows)), rng.normal(size=(count, rows))
    ends = rng.random((count, rows))
    terminated, truncated = ends < 0.15, (ends > 0.8) & (ends < 0.95)
    obs[0] = rng.normal(size=rows)
    for t in range(1, count):
        over = terminated[t - 1] | truncated[t - 1]
        obs[t] = np.where(over, rng.normal(size=rows), reached[t - 1])
    return steps(rng.normal(size=(count, rows)), obs, reached, terminated, truncated, rng.integers(0, 5, (count, rows)))


@pytest.mark.parametrize("window", [0, 1, 4])
def test_windows_are_those_of_the_episode(window):
    """Twelve steps in calls of three against a list of what each episode has seen; and every episode telescopes."""
    played = played_at_random(12, 3, seed=window)
    shaping, gamma = Shaping(Mixed(window)), 0.9
    state, found = shaping.init(jax.random.key(0), played.obs[0]), []
    go = jax.jit(shaping.reward)
    for t in range(0, 12, 3):
        state, reward, _ = go(state, jax.tree.map(lambda x, t=t: x[t : t + 3], played), gamma)
        found.append(reward)
    found = np.concatenate(found)
    host = jax.tree.map(np.asarray, played)
    for n in range(3):
        seen, actions, shaped, start = [], [], 0.0, 0.0
        for t in range(12):
            if not seen:
                seen, actions, shaped = [float(host.obs[t, n])], [], 0.0
                start = by_hand(window, seen, actions, 0)
            before = by_hand(window, seen, actions, len(actions))
            seen, actions = [*seen, float(host.next_obs[t, n])], [*actions, int(host.action[t, n])]
            after = 0.0 if host.terminated[t, n] else by_hand(window, seen, actions, len(actions))
            wanted = gamma * after - before
            assert found[t, n] - host.reward[t, n] == pytest.approx(wanted, abs=2e-5)
            shaped += gamma ** (len(actions) - 1) * (found[t, n] - host.reward[t, n])
            if host.terminated[t, n] or host.truncated[t, n]:
                assert shaped == pytest.approx(gamma ** len(actions) * after - start, abs=1e-4)
                seen = []


def test_the_published_form():
    """Credited one step late, across the ends of episodes, in units of a running standard deviation."""
    played, gamma = played_at_random(8, 2, seed=7), 0.9
    shaping = Shaping(OfObservation(jnp.sin), ShapingConfig(compat="paper"))
    state, found = shaping.init(jax.random.key(0), played.obs[0]), []
    go = jax.jit(shaping.reward)
    for t in (0, 4):
        state, reward, _ = go(state, jax.tree.map(lambda x, t=t: x[t : t + 4], played), gamma)
        found.append(np.asarray(reward) - np.asarray(played.reward[t : t + 4]))
    phi, sums, totals, last = np.sin(np.asarray(played.obs)), np.zeros(2), [], np.zeros(2)
    for part, t in enumerate((0, 4)):
        for row in phi[t : t + 4]:
            sums = gamma * sums + row
            totals.append(sums)
        every = np.concatenate([last[None], phi[t : t + 4]]) / np.std(totals)
        np.testing.assert_allclose(found[part], gamma * every[1:] - every[:-1], rtol=2e-3, atol=2e-4)
        last = every[-1]


def test_the_first_action_stands_for_earlier_ones_in_the_published_form():
    class Actions(OfObservation):
        window = 2

        def encode(self, params, obs):
            return obs

        def value(self, params, window):
            return window.action @ jnp.array([10.0, 1.0])

    shaping = Shaping(Actions(None), ShapingConfig(compat="paper"))
    state = shaping.init(jax.random.key(0), jnp.zeros(1))
    ends = np.array([[False], [False], [True], [False]])
    played = steps(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros((4, 1)), ends, action=[[3], [4], [5], [6]])
    _, _, metrics = jax.jit(shaping.reward)(state, played, 0.9)
    assert float(metrics["potential_mean"]) == pytest.approx((33 + 33 + 34 + 66) / 4)


def optimal(reward, reached, terminal, gamma):
    """The actions of highest value of a deterministic world, and the values: `[S, A]` tables."""
    q = np.zeros_like(reward)
    for _ in range(2000):
        q = reward + gamma * np.where(terminal, 0.0, q.max(1)[reached])
    return q


def test_the_optimal_policy_is_that_of_the_world():
    """A random world of six states whose histories (state, action, state) are enumerated: a random potential of
    histories, as large as the rewards, changes every value by the potential, and no best action."""
    rng, gamma, states, actions = np.random.default_rng(3), 0.8, 6, 3
    reward, reached = rng.normal(size=(states, actions)), rng.integers(0, states, (states, actions))
    terminal = rng.random((states, actions)) < 0.2
    table = jnp.asarray(rng.normal(size=(states, actions + 1, states)) * 3, jnp.float32)

    class Table(OfObservation):
        window = 1

        def encode(self, params, obs):
            return obs

        def value(self, params, window):
            before, now = window.features[:, 0].astype(int), window.features[:, 1].astype(int)
            return table[before, window.action[:, 0], now]  # action -1 is the last row

    # histories: (before, action, now) that can follow, and (s, none, s) at the start of an episode
    histories = [(s, actions, s) for s in range(states)]
    histories += [(s, a, int(reached[s, a])) for s, a in itertools.product(range(states), range(actions))]
    number = {h: i for i, h in reversed(list(enumerate(histories)))}
    shaping = Shaping(Table(None))
    shaped, after = np.zeros((len(histories), actions)), np.zeros((len(histories), actions), int)
    pairs = list(itertools.product(range(len(histories)), range(actions)))
    # one step of each pair, after the step that made its history
    before, verb, now = (np.array([histories[i][k] for i, _ in pairs]) for k in range(3))
    act = np.array([a for _, a in pairs])
    fresh = verb == actions
    start = shaping.init(jax.random.key(0), jnp.asarray(np.where(fresh, now, before), jnp.float32))
    go = jax.jit(shaping.reward)
    first = steps(np.zeros((1, len(pairs))), before[None], now[None], action=np.where(fresh, 0, verb)[None])
    moved, _, _ = go(start, first, gamma)
    state = jax.tree.map(
        lambda a, b: jnp.where(fresh.reshape(-1, *[1] * (a.ndim - 1)), a, b) if a.ndim else a, start.rows, moved.rows
    )
    second = steps(
        reward[now, act][None], now[None], reached[now, act][None], terminal[now, act][None], action=act[None]
    )
    _, found, _ = go(moved.replace(rows=state), second, gamma)
    for (i, a), value in zip(pairs, np.asarray(found)[0]):
        s = histories[i][2]
        shaped[i, a], after[i, a] = value, number[(s, a, int(reached[s, a]))]
    own = optimal(reward, reached, terminal, gamma)
    ends = np.array([terminal[h[2]] for h in histories])
    with_shaping = optimal(shaped, after, ends, gamma)
    potential = np.array([float(table[b, a, n]) for b, a, n in histories])
    plain = own[[h[2] for h in histories]]
    np.testing.assert_allclose(with_shaping, plain - potential[:, None], atol=1e-3)
    assert (with_shaping.argmax(1) == plain.argmax(1)).all()
    assert abs(potential).mean() > abs(reward).mean()


def test_a_potential_of_one_observation_knows_continuous_actions():
    played = steps([[1], [2], [3]], [[1], [2], [4]], [[2], [3], [5]])
    vectors = played.replace(action=jnp.ones((3, 1, 2)))
    shaping = Shaping(OfObservation(lambda x: 10 * x))
    state = shaping.init(jax.random.key(0), jnp.ones(1))
    rewards = [jax.jit(shaping.reward)(state, x, 0.5)[1] for x in (played, vectors)]
    np.testing.assert_array_equal(*rewards)
    several = Shaping(Mixed(2))
    with pytest.raises(ValueError, match="2 earlier actions"):
        several.reward(several.init(jax.random.key(0), jnp.ones(1)), vectors, 0.5)
