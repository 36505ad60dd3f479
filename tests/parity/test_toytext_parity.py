"""Toy text against Gymnasium: whole tables, every step with the same random numbers, Blackjack by its cards."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text import blackjack as theirs_blackjack
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

import envs_jax
from envs_jax.toytext import ToyTextState, blackjack, import_state, random_map, taxi


make = functools.cache(envs_jax.make)

TABLES = [
    ("FrozenLake-v1", {}),
    ("FrozenLake-v1", {"is_slippery": False}),
    ("FrozenLake-v1", {"success_rate": 0.7, "reward_schedule": (5, -2, -0.5)}),
    ("FrozenLake-v1", {"desc": ("SFFS", "FHFG")}),
    ("FrozenLake-v1", {"map_name": "8x8"}),
    ("FrozenLake8x8-v1", {}),
    ("CliffWalking-v1", {}),
    ("CliffWalking-v1", {"is_slippery": True}),
    ("CliffWalkingSlippery-v1", {}),
    ("Taxi-v4", {}),
    ("Taxi-v4", {"is_rainy": True}),
    ("Taxi-v4", {"is_rainy": True, "rainy_probability": 0.5}),
]


class Draws:
    """Gives out numbers that were laid down before, in Gymnasium's place for a random generator."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)

    def choice(self, options):
        return self.numbers.pop(0)


@pytest.mark.parametrize(("id", "options"), TABLES)
def test_whole_tables(id, options):
    theirs = gymnasium.make(id, **options)
    env, params = make(id, **options)
    table = env.table
    for state, rows in theirs.unwrapped.P.items():
        for action, outcomes in rows.items():
            n = table.count[state, action]
            fields = table.prob, table.successor, table.reward, table.terminated
            ours = list(zip(*(field[state, action, :n].tolist() for field in fields)))
            assert ours == [tuple(outcome) for outcome in outcomes], (state, action)
    np.testing.assert_allclose(env.initial, theirs.unwrapped.initial_state_distrib, atol=1e-15)
    assert len(table.prob) == env.observation_space(params).n == theirs.observation_space.n
    assert env.action_space(params).n == theirs.action_space.n
    assert params.max_steps == (theirs.spec.max_episode_steps or envs_jax.toytext.NO_LIMIT)


@pytest.mark.parametrize(
    ("id", "options"),
    [TABLES[0], TABLES[8], TABLES[10], ("Taxi-v4", {"fickle_passenger": True, "fickle_probability": 0.0})],
)
def test_every_step_from_imported_states(id, options):
    theirs = gymnasium.make(id, **options)
    env, params = make(id, **options)
    advance, rng, ends = jax.jit(env.advance), np.random.default_rng(0), np.zeros(2, int)
    for seed in range(8):
        first, _ = theirs.reset(seed=seed)
        assert int(import_state(theirs, env, params)[0]) == first
        for _ in range(60):
            _, state = import_state(theirs, env, params)
            uniform, action = float(rng.random(dtype=np.float32)), int(rng.integers(env.num_actions))
            theirs.unwrapped.np_random = Draws(uniform)
            obs, reward, terminated, truncated, info = theirs.step(action)
            found = advance(jnp.float32(uniform), state, jnp.int32(action), params)
            assert (int(found[0]), float(found[2]), *map(bool, found[3:5])) == (obs, reward, terminated, truncated)
            assert float(found[5]["prob"]) == np.float32(info["prob"])
            if "action_mask" in info:
                np.testing.assert_array_equal(found[5]["action_mask"], info["action_mask"])
                assert found[5]["action_mask"].dtype == info["action_mask"].dtype
            if theirs.spec.max_episode_steps:  # else nothing of theirs keeps the time
                assert int(import_state(theirs, env, params)[1].time) == int(found[1].time)
            ends += terminated, truncated
            if terminated or truncated:
                break
    assert ends[0] >= 6 or "Lake" not in id  # on the lake, most random walks end


def test_time_runs_out_together():
    theirs = gymnasium.make("FrozenLake-v1", is_slippery=False)
    env, params = make("FrozenLake-v1", is_slippery=False)
    theirs.reset(seed=0)
    _, state = import_state(theirs, env, params)
    step, key, seen = jax.jit(env.step), jax.random.key(0), []
    for _ in range(100):
        _, state, _, _, truncated, _ = step(key, state, jnp.int32(0), params)
        seen.append((bool(truncated), theirs.step(0)[3]))
    assert seen == [(False, False)] * 99 + [(True, True)]


def test_action_masks():
    theirs = gymnasium.make("Taxi-v4").unwrapped
    env, _ = make("Taxi-v4")
    states = ToyTextState(jnp.arange(500), jnp.zeros(500, jnp.int32))
    np.testing.assert_array_equal(jax.vmap(env.action_mask)(states), [theirs.action_mask(s) for s in range(500)])
    assert [taxi.encode(r * 5 + c, p, d) for r, c, p, d in map(theirs.decode, range(500))] == list(range(500))


@pytest.mark.parametrize("rainy", [pytest.param(False, marks=pytest.mark.slow), True])
def test_fickle_passengers(rainy):
    """The distribution over outcomes, with every random choice of Gymnasium's `step` tried."""
    options = {"is_rainy": rainy, "fickle_passenger": True}
    theirs = gymnasium.make("Taxi-v4", **options).unwrapped
    env, params = make("Taxi-v4", **options)
    table, rng = env.table, np.random.default_rng(1)
    theirs.reset(seed=0)
    changed = 0
    for _ in range(150):
        cell, destination, action = int(rng.integers(25)), int(rng.integers(4)), int(rng.integers(6))
        start, fickle = taxi.encode(cell, int(rng.choice([1, 4, 4])), destination), bool(rng.integers(2))
        expected = {}
        outcomes = theirs.P[start][action]
        for i, other in itertools.product(range(len(outcomes)), [d for d in range(4) if d != destination]):
            theirs.s, theirs.fickle_step = start, fickle
            index = int(import_state(theirs, env, params)[1].index)
            below = sum(prob for prob, *_ in outcomes[:i])
            theirs.np_random = Draws(below + outcomes[i][0] / 2, other)
            obs, reward, terminated, _, _ = theirs.step(action)
            then = obs + theirs.fickle_step * taxi.FICKLE * taxi.NUM_STATES, reward, terminated
            expected[then] = expected.get(then, 0) + outcomes[i][0] / 3
        found = {}
        for k in range(table.count[index, action]):
            then = tuple(field[index, action, k].item() for field in (table.successor, table.reward, table.terminated))
            found[then] = found.get(then, 0) + table.prob[index, action, k]
        assert {then: p for then, p in found.items() if p} == pytest.approx(expected)
        changed += fickle and theirs.fickle_step is False
        # before it is known whether he is fickle, 30% of what he is if so, and 70% of what he is if not
        guess = start + taxi.UNDECIDED * taxi.NUM_STATES
        mixed = np.zeros(taxi.NUM_STATES)
        for copy, weight in ((guess, -1.0), (start + taxi.FICKLE * taxi.NUM_STATES, 0.3), (start, 0.7)):
            np.add.at(mixed, table.successor[copy, action] % taxi.NUM_STATES, weight * table.prob[copy, action])
        np.testing.assert_allclose(mixed, 0, atol=1e-12)
    assert changed > 10
    starts = {taxi.NUM_STATES * taxi.UNDECIDED + s for s in np.flatnonzero(theirs.initial_state_distrib)}
    assert set(env.starts.tolist()) == starts


@pytest.mark.parametrize(("size", "p"), [(4, 0.6), (8, 0.8), (5, 1.0)])
def test_random_maps(size, p):
    for seed in range(6):
        assert random_map(seed, size, p) == generate_random_map(size, p, seed)


# --- Blackjack --------------------------------------------------------------------------------------------------------

RULES = [{"sab": True}, {"sab": False, "natural": False}, {"sab": False, "natural": True}]


def stuck(inner, player, dealer):
    """The distribution of rewards of sticking in Gymnasium's environment: all cards that the dealer may draw."""
    found, todo = {}, [((), 1.0)]
    while todo:
        cards, prob = todo.pop()
        inner.player, inner.dealer, inner.np_random = list(player), list(dealer), Draws(*cards)
        try:
            _, reward, terminated, _, _ = inner.step(0)
        except IndexError:  # he draws another one
            deck = Counter(theirs_blackjack.deck)
            todo += [((*cards, card), prob * count / deck.total()) for card, count in deck.items()]
            continue
        assert terminated
        found[reward] = found.get(reward, 0) + prob
    return found


@pytest.mark.parametrize("rules", RULES)
def test_sticking_pays_what_gymnasiums_dealer_would(rules):
    inner = gymnasium.make("Blackjack-v1", **rules).unwrapped
    env, params = make("Blackjack-v1", **rules)
    table = env.table
    players = [[1, 10], [10, 5, 6], [10, 9], [2, 3]]
    dealers = [(10, 1), (1, 10), (10, 6), (7, 10), (5, 10), (1, 6)]
    for player, dealer in itertools.product(players, dealers):
        inner.player, inner.dealer = list(player), list(dealer)
        obs, state = import_state(inner, env, params)
        assert tuple(obs.tolist()) == inner._get_obs()
        index, n = int(state.index), table.count[int(state.index), 0]
        ours = dict(zip(table.reward[index, 0, :n].tolist(), table.prob[index, 0, :n]))
        assert ours == pytest.approx(stuck(inner, player, dealer), abs=1e-12)
        assert table.terminated[index, 0, :n].all()


def test_long_draws_of_the_dealer():
    inner = gymnasium.make("Blackjack-v1").unwrapped
    env, _ = make("Blackjack-v1")
    index = blackjack.encode((18, False, False), 5, 1)
    n = env.table.count[index, 0]
    ours = dict(zip(env.table.reward[index, 0, :n].tolist(), env.table.prob[index, 0, :n]))
    assert ours == pytest.approx(stuck(inner, [10, 8], (5, 1)), abs=1e-12)


def test_the_same_cards():
    """Hands of many cards: the drawn card chosen by the random number that falls into its share."""
    inner = gymnasium.make("Blackjack-v1").unwrapped
    env, params = make("Blackjack-v1")
    advance, rng, shares = jax.jit(env.advance), np.random.default_rng(0), np.cumsum(list(blackjack.CARDS.values()))
    busts = 0
    for seed in range(40):
        inner.reset(seed=seed)
        _, state = import_state(inner, env, params)
        over = False
        while not over:
            card = int(rng.integers(1, 8))
            inner.np_random = Draws(card)
            obs, reward, over, _, _ = inner.step(1)
            uniform = jnp.float32(shares[card - 1] - 0.5 / 13)
            found = advance(uniform, state, jnp.int32(1), params)
            state = found[1]
            assert (tuple(found[0].tolist()), float(found[2]), bool(found[3])) == (obs, reward, over)
            np.testing.assert_array_equal(state.index, import_state(inner, env, params)[1].index)
            busts += over
    assert busts == 40


def test_deals():
    env, params = make("Blackjack-v1")
    theirs = gymnasium.make("Blackjack-v1")
    expected = {}
    for a, b, shown in itertools.product(theirs_blackjack.deck, repeat=3):
        total, usable = theirs_blackjack._hand_sum_and_usable_ace([a, b])
        expected[total, shown, usable] = expected.get((total, shown, usable), 0) + 1 / 13**3
    found = {}
    for index in np.flatnonzero(env.initial):
        seen = tuple(env.observations[index].tolist())
        found[seen] = found.get(seen, 0) + env.initial[index]
    assert found == pytest.approx(expected)
    space = env.observation_space(params)
    assert [int(high) + 1 for high in space.high] == [part.n for part in theirs.observation_space]
    # the card that nobody has seen is as likely as any
    pays = np.einsum("sk,sk->s", env.table.prob[:, 0], env.table.reward[:, 0]).reshape(-1, 11)
    np.testing.assert_allclose(pays[:, 0], pays[:, 1:] @ list(blackjack.CARDS.values()), atol=1e-12)


# --- ProPS's own worlds, by their published descriptions --------------------------------------------------------------


class NimEnv(gymnasium.Env):
    """10 sticks; an illegal removal and taking the last stick lose; the opponent removes (n + 3) mod 4, or any."""

    def __init__(self, initial_sticks=10):
        self.initial_sticks = self.current_sticks = initial_sticks

    def step(self, removed):
        if not 1 <= removed <= min(3, self.current_sticks):
            return self.current_sticks, -1, True, False, {}
        self.current_sticks -= removed
        if self.current_sticks:
            reply = (self.current_sticks + 3) % 4
            self.current_sticks -= reply or self.np_random.choice(range(1, min(3, self.current_sticks) + 1))
            return self.current_sticks, int(not self.current_sticks), not self.current_sticks, False, {}
        return 0, -1, True, False, {}


@pytest.mark.parametrize("actions", ["1-3", "0-2"])
def test_nim(actions):
    env, params = make("Nim-v0", actions=actions)
    advance, theirs = jax.jit(env.advance), NimEnv()
    for sticks, action, reply in itertools.product(range(1, 11), range(3), range(1, 4)):
        left = sticks - env.removes[action]
        choices = range(1, min(3, left) + 1)
        if left % 4 == 1 and reply not in choices:
            continue
        theirs.current_sticks = sticks
        _, state = import_state(theirs, env, params)
        theirs.np_random = Draws(reply)
        obs, reward, terminated, _, _ = theirs.step(env.removes[action])
        uniform = (reply - 0.5) / max(len(choices), 1)
        found = advance(jnp.float32(min(uniform, 0.999)), state, jnp.int32(action), params)
        assert (int(found[0]), float(found[2]), bool(found[3])) == (obs, reward, terminated)
        assert int(import_state(theirs, env, params)[1].index) == int(found[1].index)


class MazeEnv(gymnasium.Env):
    """gym-maze's sample, its passages read off the array by hand, as pairs of cells `(x, y)`."""

    PASSAGES = (
        *(((0, 0), (1, 0)), ((1, 0), (2, 0)), ((2, 0), (2, 1)), ((1, 1), (2, 1))),
        *(((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (1, 2)), ((1, 2), (2, 2))),
    )
    DIRECTIONS = ((0, -1), (0, 1), (1, 0), (-1, 0))

    def __init__(self):
        cells = np.array([[2, 1, 1], [2, 2, 8], [4, 8, 8]])
        self.maze_view = SimpleNamespace(maze=SimpleNamespace(maze_cells=cells), robot=np.zeros(2, int))

    def step(self, action):
        here = tuple(self.maze_view.robot.tolist())
        there = tuple((self.maze_view.robot + self.DIRECTIONS[action]).tolist())
        if (here, there) in self.PASSAGES or (there, here) in self.PASSAGES:
            self.maze_view.robot = np.array(there)
        won = self.maze_view.robot.tolist() == [2, 2]
        return self.maze_view.robot, 1 if won else -0.1 / 9, won, False, {}


def test_maze():
    env, params = make("maze-sample-3x3-v0")
    advance, theirs = jax.jit(env.advance), MazeEnv()
    for x, y, action in itertools.product(range(3), range(3), range(4)):
        theirs.maze_view.robot = np.array([x, y])
        obs, state = import_state(theirs, env, params)
        assert int(obs) == 3 * y + x
        robot, reward, terminated, _, _ = theirs.step(action)
        found = advance(jnp.float32(0), state, jnp.int32(action), params)
        assert (int(found[0]), bool(found[3])) == (3 * robot[1] + robot[0], terminated)
        assert float(found[2]) == np.float32(reward)


def test_import_refuses():
    lake, params = make("FrozenLake-v1")
    with pytest.raises(ValueError, match="reset"):
        import_state(gymnasium.make("FrozenLake-v1"), lake, params)
    with pytest.raises(TypeError, match="CliffWalkingEnv.*FrozenLakeEnv"):
        import_state(gymnasium.make("CliffWalking-v1"), lake, params)
    dry = gymnasium.make("FrozenLake-v1", is_slippery=False)
    dry.reset(seed=0)
    with pytest.raises(ValueError, match="action 0.*state 0"):
        import_state(dry, lake, params)
    shallow = gymnasium.make("FrozenLake-v1", desc=["SFFF", "FFFF", "FFFF", "FFFG"])  # equal around the start
    shallow.reset(seed=0)
    with pytest.raises(ValueError, match="map.*desc"):
        import_state(shallow, lake, params)
    cab = gymnasium.make("Taxi-v4", fickle_passenger=True)
    cab.reset(seed=0)
    with pytest.raises(ValueError, match="fickle_passenger=True"):
        import_state(cab, *make("Taxi-v4"))
    table = gymnasium.make("Blackjack-v1", sab=False)
    with pytest.raises(ValueError, match="cards"):
        import_state(table, *make("Blackjack-v1"))
    table.reset(seed=0)
    with pytest.raises(ValueError, match="natural, sab"):
        import_state(table, *make("Blackjack-v1"))
    with pytest.raises(ValueError, match="9 sticks"):
        import_state(NimEnv(9), *make("Nim-v0"))
    with pytest.raises(ValueError, match="cells"):
        import_state(MazeEnv(), *make("maze-sample-3x3-v0", cells=((1, 2), (2, 4))))


def test_the_maps_of_text_are_imported():
    lakes, params = make("FrozenLakeText-v1")
    theirs = gymnasium.make("FrozenLake-v1", desc=random_map(3, 4))
    theirs.reset(seed=0)
    for action in (1, 2, 1):
        theirs.step(action)
        _, state = import_state(theirs, lakes, params)
        number, cell = divmod(int(state.index), lakes.cells)
        assert lakes.maps[number] == tuple(random_map(3, 4)) and cell == theirs.unwrapped.s
