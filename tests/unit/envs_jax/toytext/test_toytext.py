"""Toy text worlds: exact values, rules worked out by hand, steps against the tables, options, pictures."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.boards import RED, TILE
from envs_jax.toytext import (
    NO_LIMIT,
    FrozenLake,
    Maze,
    ToyTextState,
    blackjack,
    import_state,
    optimal_values,
    policy_value,
    random_map,
    taxi,
)
from envs_jax.wrappers import EpisodeStatistics, ScaleReward


make = functools.cache(envs_jax.make)

TOYS = [id for id in envs_jax.ids() if envs_jax.spec(id).entry_point.startswith("envs_jax.toytext")]


def best(id, horizon=None):
    env, params = make(id)
    return optimal_values(env, params, horizon)[-1] @ env.initial


# --- exact values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "horizon", "value", "within"),
    [
        ("FrozenLake-v1", None, 0.744, 5e-4),  # by dynamic programming
        ("FrozenLake8x8-v1", None, 0.91, 5e-3),  # the optimum that Gymnasium's registry notes
        ("FrozenLake-v1?is_slippery=false", None, 1.0, 0.0),
        ("FrozenLake-v1?is_slippery=false", 5, 0.0, 0.0),  # the goal is six moves away
        ("CliffWalking-v1", 100, -13.0, 0.0),  # up, eleven times right, down
        ("CliffWalkingSlippery-v1", 100, -63.0, 0.05),
        ("Nim-v0", 20, 1.0, 0.0),
        ("Nim-v0?actions=0-2", 20, -1 / 9, 1e-12),
        ("maze-sample-3x3-v0", None, 1 - 3 * 0.1 / 9, 1e-12),  # four moves
        ("maze-sample-3x3-v0", 3, -3 * 0.1 / 9, 1e-12),
        ("Taxi-v4", None, 7.93, 1e-12),
    ],
)
def test_best_returns(id, horizon, value, within):
    assert abs(best(id, horizon) - value) <= within


def test_a_taxi_ride_by_hand():
    env, params = make("Taxi-v4")
    value = optimal_values(env, params, 20)[-1]
    # at red, the passenger there, to blue: pick up, 2 south, 3 east, 2 south, drop off = 9 steps
    assert value[taxi.encode(0, 0, 3)] == 20 - 8
    # from yellow, around two walls: 2 north, 3 east, 2 south, drop off
    assert value[taxi.encode(20, taxi.RIDING, 3)] == 20 - 7
    assert optimal_values(env, params, 8)[-1, taxi.encode(0, 0, 3)] == -8  # too few steps


def test_nim_is_lost_from_one_more_than_a_multiple_of_four():
    env, params = make("Nim-v0")
    values = optimal_values(env, params, 20)[-1]
    # against an opponent who errs at random where he cannot win, the player loses for sure at 1, 5 and 9 only
    np.testing.assert_array_equal(values == 1, [n % 4 != 1 and n > 0 for n in range(11)])
    perfect = [(n - 1) % 4 - 1 if n % 4 != 1 else 0 for n in range(11)]  # leaves 1, 5 or 9
    assert policy_value(env, params, np.maximum(perfect, 0), 20) == 1.0
    assert policy_value(env, params, np.full(11, 2), 20) == pytest.approx(-1.0)  # 10, 7, 5 or ...: always too greedy


def test_tables_against_linear_equations_and_the_bound():
    """Of all 64 tables of a small lake: the value solves a linear system, and the best one attains the bound."""
    env = FrozenLake(desc=["SFH", "HFG"], success_rate=0.5, reward_schedule=(1, -1, -0.1))
    params, rows, found = env.default_params, np.arange(6), []
    for choice in itertools.product(range(4), repeat=3):
        table = np.zeros(6, int)
        table[[0, 1, 4]] = choice
        prob = env.table.prob[rows, table]
        goes_on = np.zeros((6, 6))
        np.add.at(goes_on, (rows[:, None], env.table.successor[rows, table]), prob * ~env.table.terminated[rows, table])
        gains = (prob * env.table.reward[rows, table]).sum(-1)
        value = policy_value(env, params, table, 800)
        if np.linalg.matrix_rank(np.eye(6) - goes_on) == 6:  # else it walks forever
            assert value == pytest.approx(np.linalg.solve(np.eye(6) - goes_on, gains)[0], abs=1e-6)
        found.append(value)
    assert max(found) == pytest.approx(optimal_values(env, params, 800)[-1, 0], abs=1e-6)
    assert sorted(found)[-2] < max(found) - 1e-3


def test_the_value_of_a_table_is_the_mean_of_played_episodes():
    env, params = make("CliffWalkingSlippery-v1")
    params, table = params.replace(max_steps=30), jnp.array([0, 1, 2, 3] * 12)
    count = 8192

    @jax.jit
    def play(key):
        def step(carry, t):
            obs, state, alive, total = carry
            obs, state, reward, terminated, truncated, _ = env.step(
                jax.random.fold_in(key, t), state, table[obs], params
            )
            return (obs, state, alive & ~(terminated | truncated), total + alive * reward), total

        obs, state = env.reset(key, params)
        (_, _, alive, total), _ = jax.lax.scan(step, (obs, state, jnp.bool(True), jnp.float32(0)), jnp.arange(40))
        return total, alive

    totals, alive = jax.vmap(play)(jax.random.split(jax.random.key(0), count))
    assert not alive.any()
    error = np.std(totals) / np.sqrt(count)
    assert abs(np.mean(totals) - policy_value(env, params, table)) < 4 * error and error > 0


def test_values_refuse():
    env, params = make("CliffWalking-v1")
    with pytest.raises(ValueError, match="CliffWalking-v1.*2147483647"):
        optimal_values(env, params)
    with pytest.raises(ValueError, match="horizon.*0"):
        optimal_values(env, params, 0)
    with pytest.raises(TypeError, match="Debug-Match-v0"):
        optimal_values(*make("Debug-Match-v0"))
    with pytest.raises(ValueError, match=r"\[47\]; CliffWalking-v1.*\[48\]"):
        policy_value(env, params, np.zeros(47), 10)
    with pytest.raises(ValueError, match=r"4\.0.*table.*0.*3"):
        policy_value(env, params, np.full(48, 4.0), 10)
    with pytest.raises(ValueError, match=r"0\.5.*table.*0.*3"):
        policy_value(env, params, np.full(48, 0.5), 10)
    assert policy_value(env, params, np.zeros(48), 10) == -10.0  # whole floats will do: up, and no end


def test_blackjack_is_played_by_the_basic_strategy():
    """Sutton and Barto, figure 5.2: without a usable ace, stick on 17 and up, and on 13 (12) against a weak dealer."""
    env, params = make("Blackjack-v1?sab=true")
    later = optimal_values(env, params, 12)[-1]
    table = env.table
    gain = (table.prob * (table.reward + np.where(table.terminated, 0, later[table.successor]))).sum(-1)

    def sticks(total, shown, usable):
        index = blackjack.encode((total, usable, False), shown, blackjack.UNSEEN)
        return bool(gain[index, 0] > gain[index, 1])

    for shown in range(1, 11):
        from_ = 12 if shown in (4, 5, 6) else 13 if shown in (2, 3) else 17
        assert [sticks(total, shown, False) for total in range(4, 22)] == [total >= from_ for total in range(4, 22)]
        assert [sticks(total, shown, True) for total in (17, 19)] == [False, True]
    best_table = np.zeros((32, 11, 2), int)
    for index in np.flatnonzero(env.initial):
        best_table[tuple(env.observations[index])] = gain[index].argmax()
    assert policy_value(env, params, best_table, 12) == pytest.approx(later @ env.initial, abs=1e-12)


# --- steps ------------------------------------------------------------------------------------------------------------


def stepped(env, params, index, action, uniform=0.5, time=0):
    state = ToyTextState(jnp.int32(index), jnp.int32(time))
    obs, state, reward, *flags, info = env.advance(jnp.float32(uniform), state, jnp.int32(action), params)
    return np.asarray(obs).tolist(), float(reward), *map(bool, flags)


@pytest.mark.parametrize("id", ["FrozenLake-v1?success_rate=0.5", "Taxi-v4?is_rainy=true", "Blackjack-v1", "Nim-v0"])
def test_steps_follow_the_table(id):
    env, params = make(id)
    rng, draws = np.random.default_rng(0), 1300
    uniform = (np.arange(draws) + 0.5) / draws
    many = jax.jit(jax.vmap(env.advance, in_axes=(0, None, None, None)))
    for _ in range(12):
        index, action = rng.integers(len(env.table.prob)), rng.integers(env.num_actions)
        state = ToyTextState(jnp.int32(index), jnp.int32(0))
        _, after, reward, terminated, _, info = many(jnp.float32(uniform), state, jnp.int32(action), params)
        n = env.table.count[index, action]
        ends = np.round(np.cumsum(env.table.prob[index, action, :n]) * draws).astype(int)
        expected = np.repeat(np.arange(n), np.diff(ends, prepend=0))
        np.testing.assert_array_equal(after.index, env.table.successor[index, action, expected])
        np.testing.assert_array_equal(reward, np.float32(env.table.reward[index, action, expected]))
        np.testing.assert_array_equal(terminated, env.table.terminated[index, action, expected])
        np.testing.assert_array_equal(info["prob"], np.float32(env.table.prob[index, action, expected]))


def test_what_is_certain_happens_and_what_cannot_be_does_not():
    env = FrozenLake(success_rate=1.0)  # slipping has probability 0, on both sides
    ends = [stepped(env, env.default_params, 1, 2, u)[0] for u in (0.0, 0.5, 1 - 2**-24)]
    assert ends == [2, 2, 2]


def test_first_states():
    rng = jax.random.split(jax.random.key(0), 4000)
    for id in ("Taxi-v4?fickle_passenger=true", "Blackjack-v1"):
        env, params = make(id)
        _, states = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(rng, params)
        found = np.bincount(states.index, minlength=len(env.initial)) / len(rng)
        assert not found[env.initial == 0].any() and not np.any(states.time)
        assert np.abs(np.cumsum(found) - np.cumsum(env.initial)).max() < 1.63 / np.sqrt(len(rng))  # Kolmogorov, 1%


@pytest.mark.parametrize("id", ["FrozenLake-v1", "CliffWalking-v1"])
def test_the_time_limit_is_a_parameter(id):
    env, params = make(id)
    assert params.max_steps == {"FrozenLake-v1": 100, "CliffWalking-v1": NO_LIMIT}[id]
    state = ToyTextState(jnp.int32(0), jnp.int32(4))
    limits = params.replace(max_steps=jnp.array([4, 5, 6]))
    step = jax.vmap(env.step, in_axes=(None, None, None, 0))
    np.testing.assert_array_equal(step(jax.random.key(0), state, jnp.int32(0), limits)[4], [True, True, False])
    before, action, goal, reward = {"FrozenLake-v1": (14, 2, 15, 1.0), "CliffWalking-v1": (35, 2, 47, -1.0)}[id]
    both = stepped(env, params.replace(max_steps=5), before, action, 0.5, 4)
    assert both == (goal, reward, True, True)  # at the goal and out of time at once


def test_a_fall_leads_back_to_the_start():
    env, params = make("CliffWalking-v1")
    assert stepped(env, params, 36, 1) == (36, -100.0, False, False)
    assert stepped(env, params, 24, 3) == (24, -1.0, False, False)  # the edge
    assert stepped(env, params, 35, 2) == (47, -1.0, True, False)


def test_nim_by_hand():
    env, params = make("Nim-v0")
    assert stepped(env, params, 10, 2) == (5, 0.0, False, False)  # 7 are left, the opponent takes 2
    assert [stepped(env, params, 10, 0, u)[0] for u in (0.1, 0.5, 0.9)] == [8, 7, 6]  # 9 are left: he takes any
    assert stepped(env, params, 2, 0) == (0, 1.0, True, False)  # he has to take the last one
    assert stepped(env, params, 2, 1) == (0, -1.0, True, False)
    assert stepped(env, params, 2, 2) == (2, -1.0, True, False)  # there are not three
    other = make("Nim-v0?actions=0-2")[0]
    assert stepped(other, params, 10, 0) == (10, -1.0, True, False)  # takes none
    assert stepped(other, params, 10, 1)[0] in (8, 7, 6)
    assert env.action_names == ("remove 1", "remove 2", "remove 3") and other.action_names[0] == "remove 0"


def test_the_maze_by_hand():
    env, params = make("maze-sample-3x3-v0")
    cell, rewards = 0, []
    for action, then in ((1, 3), (1, 6), (2, 7), (2, 8)):  # south, south, east, east
        cell, reward, terminated, _ = stepped(env, params, cell, action)
        rewards.append(reward)
        assert cell == then and terminated == (then == 8)
    np.testing.assert_allclose(rewards, [-0.1 / 9] * 3 + [1.0], rtol=1e-6)
    # the sides of the nine cells that are open, from the sample's array
    sides = ["".join(env.names[action][0] for action in range(4) if env.walk(c, action) != c) for c in range(9)]
    assert sides == ["se", "ew", "sw", "ns", "e", "nw", "ne", "ew", "w"]
    two = Maze([[2], [0]])  # two cells side by side, open to each other by the first one's word
    assert (two.walk(0, 2), two.walk(1, 3), two.walk(0, 1)) == (1, 0, 0)


def test_a_fickle_passenger_changes_his_mind_once_and_when_moved():
    env, params = make("Taxi-v4", fickle_passenger=True)
    fickle = taxi.FICKLE * taxi.NUM_STATES
    aboard = stepped(env, params, taxi.encode(0, 0, 3) + fickle, taxi.PICK_UP)
    assert aboard == (taxi.encode(0, taxi.RIDING, 3), -1.0, False, False)
    riding = taxi.encode(0, taxi.RIDING, 3) + fickle
    table = env.table
    blocked = table.successor[riding, 1, : table.count[riding, 1]]
    assert blocked.tolist() == [riding]  # north is the wall: no square was moved
    moved = dict(zip(table.successor[riding, 0], table.prob[riding, 0]))
    expected = {taxi.encode(5, taxi.RIDING, d): 1 / 3 if d != 3 else 0.0 for d in range(4)}
    assert moved == pytest.approx(expected)
    settled = taxi.encode(5, taxi.RIDING, 1)
    assert table.successor[settled, 0, : table.count[settled, 0]].tolist() == [taxi.encode(10, taxi.RIDING, 1)]


def test_taking_over_a_live_world():
    """Wrapped or not, on either side; what is no toy text world, or another one, is refused."""
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make("FrozenLake-v1")
    theirs.reset(seed=0)
    theirs.step(1)
    env, params = make("FrozenLake-v1")
    plain = import_state(theirs, env, params)
    wrapped = import_state(theirs, ScaleReward(EpisodeStatistics(env), 2.0), params)
    assert int(plain[0]) == theirs.unwrapped.s and int(plain[1].time) == 1
    jax.tree.map(np.testing.assert_array_equal, wrapped, plain)
    for id, message in (
        ("Nim-v0", "FrozenLakeEnv.*NimEnv.*Nim-v0"),
        ("CartPole-v1", "CartPole-v1"),
    ):
        other, params = make(id)
        for layer in (other, EpisodeStatistics(other)):
            with pytest.raises(TypeError, match=message):
                import_state(theirs, layer, params)


# --- the worlds as a user meets them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("FrozenLake-v1", {"map_name": "4x5"}, "'4x4'"),
        ("FrozenLake-v1", {"desc": ["SF", "G"]}, r"\['SF', 'G'\]"),
        ("FrozenLake-v1", {"desc": ["FF", "FG"]}, r"\['FF', 'FG'\]"),
        ("FrozenLake-v1", {"success_rate": 1.5}, "success_rate.*1.5"),
        ("Taxi-v4", {"rainy_probability": -1}, "rainy_probability.*-1"),
        ("Taxi-v3", {"is_rainy": True}, "Taxi-v4"),
        ("Nim-v0", {"actions": "1-4"}, "'1-3'"),
        ("Nim-v0", {"initial_sticks": 0}, "initial_sticks.*0"),
        ("maze-sample-3x3-v0", {"cells": [[1, 2], [3]]}, r"\[\[1, 2\], \[3\]\]"),
    ],
)
def test_options_that_are_refused(id, options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make(id, **options)


def test_random_map_refuses():
    with pytest.raises(ValueError, match="size.*1"):
        random_map(0, size=1)


def test_names():
    for id in TOYS:
        env, params = make(id)
        assert len(env.action_names) == env.action_space(params).n == env.num_actions


@pytest.mark.parametrize(("id", "width"), [("FrozenLake-v1", 4), ("CliffWalking-v1", 12), ("maze-sample-3x3-v0", 3)])
def test_the_agent_is_drawn_where_it_stands(id, width):
    env, _ = make(id)
    for index in (0, 7):
        picture = env.render(ToyTextState(jnp.int32(index), jnp.int32(0)))
        rows, columns = np.nonzero((picture == RED).all(-1))
        assert set(rows // TILE) == {index // width} and set(columns // TILE) == {index % width}
        assert picture.dtype == np.uint8 and len(rows) > 200


def test_pictures_tell_states_apart():
    for id, indices in (("Nim-v0", range(11)), ("Taxi-v4", range(0, 500, 3)), ("Blackjack-v1", range(0, 1980, 11))):
        env, _ = make(id)
        drawn = {env.render(ToyTextState(jnp.int32(i), jnp.int32(0))).tobytes() for i in indices}
        assert len(drawn) == len(indices)


def test_worlds_in_which_one_can_walk_in_circles():
    ends = {name: envs_jax.make(name)[0].unwrapped.ends for name in ("CliffWalking-v1", "Blackjack-v1", "Nim-v0")}
    assert ends == {"CliffWalking-v1": False, "Blackjack-v1": True, "Nim-v0": True}
    env, params = envs_jax.make("CliffWalking-v1?max_steps=3")
    obs, state = env.reset(jax.random.key(0), params)
    for _ in range(3):
        obs, state, _, terminated, truncated, _ = env.step(jax.random.key(0), state, jnp.int32(3), params)
    assert (bool(terminated), bool(truncated)) == (False, True)
