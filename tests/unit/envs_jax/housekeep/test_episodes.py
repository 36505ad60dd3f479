"""Random episodes, the fixed tasks, and the experts that solve them."""

from __future__ import annotations

import json
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.housekeep import expert_action, macro_expert_action, worldgen
from envs_jax.housekeep.apartment import KEYS, NAMES, RECEPTACLES
from envs_jax.housekeep.constants import ABSENT, DOWN, FORWARD, GRAB, HIGH, IN_HAND, LEFT, RIGHT, SLOTS, UP, WIDTH
from envs_jax.housekeep.routes import routes
from envs_jax.resets import select


ENV, PARAMS = envs_jax.make("Housekeep-v0")
MACRO, MACRO_PARAMS = envs_jax.make("Housekeep-Macro-v0")
TASKS = [envs_jax.make(f"Housekeep-Task{number}-v0")[0] for number in (1, 2, 3, 4)]
EPISODES = 512
RANDOM = 64


@pytest.fixture(scope="module")
def states():
    """The first states of many random episodes."""
    return first_states(0, PARAMS)


RESETS = jax.jit(jax.vmap(ENV.reset, (0, None)))


def first_states(seed, params):
    return jax.device_get(RESETS(jax.random.split(jax.random.key(seed), EPISODES), params)[1])


@pytest.fixture(scope="module")
def starts(states):
    """The four tasks, then random episodes."""
    keys = ("category", "spot", "cell", "heading")
    fixed = [np.stack([getattr(env.start, key) for env in TASKS]) for key in keys]
    _, four = jax.jit(jax.vmap(lambda *parts: ENV.begin(worldgen.Start(*parts))))(*fixed)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[:RANDOM]]), four, states)


def test_episodes_are_as_the_reference_counts_them(states):
    spots, preferences = ENV.tables.spots, ENV.preferences
    counts, wrong = (states.category >= 0).sum(1), states.misplaced.sum(1)
    assert set(counts) == {7, 8, 9, 10} and set(wrong) == {3, 4, 5}
    # uniform: 128 and 171 are expected, with deviations of 9.8 and 10.7
    assert np.abs(np.bincount(counts)[7:] - EPISODES / 4).max() < 40
    assert np.abs(np.bincount(wrong)[3:] - EPISODES / 3).max() < 43
    for category, spot, bad in zip(states.category, states.spot, states.misplaced):
        n = (category >= 0).sum()
        assert (category[n:] == -1).all() and (spot[n:] == ABSENT).all() and not bad[n:].any()
        assert len(set(category[:n])) == n and len(set(spot[:n])) == n
        receptacles = spots.receptacle[spot[:n]]
        assert np.bincount(receptacles).max() <= 2
        assert not any(RECEPTACLES[r].is_distractor for r in receptacles)
        for k, r, is_bad in zip(category, receptacles, bad):
            assert preferences.misplaced[r, k] if is_bad else preferences.correct[r, k]
    assert ENV.tables.walkable[states.cell].all() and set(states.heading) == {0, 1, 2, 3}
    assert len(set(states.cell)) > 250  # of 410
    # the number of a slot says nothing about its object: 4 of 8.5 are misplaced
    assert np.abs(states.misplaced[:, :7].mean(0) - 4 / 8.5).max() < 0.1


def test_places_follow_a_softmax_over_ranks():
    """One misplaced object an episode: places of rank 1 and 2 in the proportions of exp(-rank / 3)."""
    one = np.ones(2, np.int32)
    params = PARAMS.replace(objects=one, misplaced=one)
    states = jax.tree.map(lambda *x: np.concatenate(x), *(first_states(seed, params) for seed in range(1, 9)))
    kind, place = states.category[:, 0], ENV.tables.spots.receptacle[states.spot[:, 0]]
    ranks = ENV.preferences.untidy
    weights = np.where(ranks > 0, np.exp(-ranks / 3), 0)
    expected = (weights * (ranks == 1)).sum(0) / weights.sum(0)
    drawn = ranks[place, kind] == 1
    deviation = np.sqrt((expected[kind] * (1 - expected[kind])).sum())
    assert abs(drawn.sum() - expected[kind].sum()) < 4 * deviation
    assert (states.category[:, 1:] == -1).all() and (states.spot[:, 1:] == ABSENT).all()


def test_options_of_episodes():
    _, params = envs_jax.make("Housekeep-v0?num_objects=2")
    assert params.objects.tolist() == [2, 2] and params.misplaced.tolist() == [2, 2]
    _, params = envs_jax.make("Housekeep-v0?num_objects=9&num_misplaced=6")
    assert params.objects.tolist() == [9, 9] and params.misplaced.tolist() == [6, 6]
    for options, message in (
        ({"num_objects": 11}, "num_objects.*11.*1.*10"),
        ({"num_objects": 3, "num_misplaced": 4}, "num_misplaced.*4.*1.*3"),
        ({"field_of_view": 0}, "field_of_view.*0.*0"),
        ({"episode": -2}, "episode.*-2.*-1"),
    ):
        with pytest.raises(ValueError, match=message):
            envs_jax.make("Housekeep-v0", **options)
    with pytest.raises(ValueError, match=r"task.*\b5\b"):
        envs_jax.make("Housekeep-v0", task=5)
    with pytest.raises(ValueError, match="task 1"):
        envs_jax.make("Housekeep-Task1-v0", num_objects=3)


def test_an_episode_by_its_number(states):
    env, params = envs_jax.make("Housekeep-v0?episode=7")
    reset = jax.jit(env.reset)
    one, two = (reset(jax.random.key(seed), params)[1] for seed in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert 3 <= one.misplaced.sum() <= 5
    # the same one that the random world draws from this key
    _, own = jax.jit(ENV.reset)(jax.random.key(7), PARAMS)
    np.testing.assert_array_equal(own.spot, one.spot)


def test_every_reset_of_a_task_is_the_same():
    env, params = TASKS[1], TASKS[1].default_params
    reset = jax.jit(env.reset)
    first, second = (jax.device_get(reset(jax.random.key(seed), params)) for seed in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    _, state = first
    spots = env.tables.spots
    fixed = json.loads(worldgen.TASKS.read_text())["2"]
    found = [
        [env.preferences.objects[k], KEYS[spots.receptacle[s]]] for k, s in zip(state.category, state.spot) if k >= 0
    ]
    assert found == [item[:2] for item in fixed["objects"]]
    assert divmod(int(state.cell), WIDTH) == tuple(fixed["cell"]) and int(state.heading) == fixed["heading"]


def test_tasks_have_five_misplaced_objects(starts):
    assert starts.misplaced.sum(1).tolist()[:4] == [5, 5, 5, 5]
    assert (np.asarray(starts.category)[:4] >= 0).sum(1).tolist() == [8, 10, 7, 9]


def play(env, params, act, starts, steps):
    """Plays each episode to its end: lengths in low-level steps, returns, failures, and whether it was solved."""
    n = len(starts.cell)
    step, zero = jax.vmap(env.step, (None, 0, 0, None)), jnp.zeros(n)

    def body(carry, _):
        state, over, sums, solved = carry
        _, after, reward, terminated, truncated, info = step(jax.random.key(0), state, act(state), params)
        add = jnp.stack([info.get("steps", jnp.ones(n)), reward, info["failed"]])
        sums = sums + jnp.where(over, 0, add)
        solved = solved | terminated & ~over
        return (select(over, state, after), over | terminated | truncated, sums, solved), None

    def run(state):
        start = state, zero > 0, jnp.zeros((3, n)), zero > 0
        (_, over, sums, solved), _ = jax.lax.scan(body, start, None, length=steps)
        return over, sums, solved

    return jax.device_get(jax.jit(run)(starts))


def test_the_expert_solves_everything(starts):
    act = jax.vmap(lambda state: expert_action(ENV, state))
    over, (length, returns, failures), solved = play(ENV, PARAMS, act, starts, 300)
    assert over.all() and solved.all() and not failures.any()
    # each misplaced object is picked once and placed once, and nothing else is touched
    np.testing.assert_allclose(returns, 5.0 * np.asarray(starts.misplaced).sum(1))
    assert length[:4].tolist() == [178, 166, 179, 151] and 100 < length[4:].mean() < 150


@pytest.mark.slow
def test_the_macro_expert_solves_everything(starts):
    act = jax.vmap(lambda state: macro_expert_action(MACRO, state))
    over, (length, returns, failures), solved = play(MACRO, MACRO_PARAMS, act, starts, 24)
    assert over.all() and solved.all() and not failures.any()
    np.testing.assert_allclose(returns, 5.0 * np.asarray(starts.misplaced).sum(1))
    assert length[4:].mean() < 150


def test_experts_refuse_other_worlds(starts):
    state = jax.tree.map(lambda x: x[0], starts)
    with pytest.raises(TypeError, match="^expert_action.*Housekeep"):
        expert_action(MACRO, state)
    with pytest.raises(TypeError, match="macro_expert_action.*MacroHousekeep"):
        macro_expert_action(ENV, state)


def distances(pose, pitch):
    """The steps to every (pose, pitch), by a search of its own."""
    found, queue = {(pose, pitch): 0}, deque([(pose, pitch)])
    while queue:
        at = queue.popleft()
        cell, heading = divmod(at[0], 4)
        nexts = {
            FORWARD: (int(ENV.tables.ahead[at[0]]) * 4 + heading, at[1]),
            LEFT: (cell * 4 + (heading - 1) % 4, at[1]),
            RIGHT: (cell * 4 + (heading + 1) % 4, at[1]),
            UP: (at[0], min(at[1] + 1, HIGH)),
            DOWN: (at[0], max(at[1] - 1, 0)),
        }
        for there in nexts.values():
            if there not in found:
                found[there] = found[at] + 1
                queue.append(there)
    return found


def test_routes_are_shortest():
    ways, hit = routes(), ENV.tables.hit_receptacle
    for cell, heading, pitch in (((5, 6), 1, 0), ((26, 21), 3, 2), ((14, 13), 0, 1)):
        pose = (cell[0] * WIDTH + cell[1]) * 4 + heading
        found = distances(pose, pitch)
        assert len(found) == ENV.tables.walkable.sum() * 12  # every pose of the apartment can be reached
        for r, receptacle in enumerate(RECEPTACLES):
            aims = [d for (p, b), d in found.items() if hit[p * 3 + b] == r]
            holding = [d for (p, b), d in found.items() if hit[p * 3 + b] == r and ENV.tables.hit_spot[p * 3 + b] >= 0]
            best = min(holding) if holding else min(aims)
            if holding or len(receptacle.blocks) == 1:
                assert ways.cost[pose * 3 + pitch, r] == best, NAMES[r]
            end, target = ways.end[pose, ways.nearest[pose * 3 + pitch, r]], ways.nearest[pose * 3 + pitch, r]
            assert hit[end * 3 + ways.band[target]] == r
            assert found[int(end), int(ways.band[target])] == ways.cost[pose * 3 + pitch, r]


# The macro world's clock, by hand.

MACRO_STEP = jax.jit(MACRO.step)


def act(state, *names, params=MACRO_PARAMS):
    infos, rewards = [], []
    for name in names:
        action = np.int32(MACRO.action_names.index(name))
        obs, state, reward, _, truncated, info = MACRO_STEP(jax.random.key(0), state, action, params)
        infos.append(jax.device_get(info) | {"truncated": bool(truncated), "mask": np.asarray(obs["action_mask"])})
        rewards.append(round(float(reward), 4))
    return infos, rewards, state


@pytest.fixture
def macro_state():
    """In the kitchen, facing south; a book lies in the fridge, at the left of its low shelf."""
    category, spot = np.full(SLOTS, -1, np.int16), np.full(SLOTS, ABSENT, np.int16)
    category[0] = MACRO.preferences.objects.index("book")
    spot[0] = MACRO.tables.spots.of_receptacle(KEYS.index("kitchen|fridge"))[0]
    start = worldgen.Start(category, spot, np.int32(5 * WIDTH + 6), np.int32(1))
    return jax.jit(lambda: MACRO.begin(start)[1])()


def test_the_clock_of_macro_actions(macro_state):
    # turn right, four cells forward, turn right: the agent is in line with the right half of the fridge
    infos, rewards, state = act(macro_state, "go to the kitchen fridge")
    assert infos[0]["steps"] == 6 == state.step_count and divmod(int(state.cell), WIDTH) == (5, 2)
    assert rewards == [0.0] and state.seen_objects[0]  # all of the fridge is seen there
    offered = {name for name, on in zip(MACRO.action_names, infos[0]["mask"]) if on}
    assert "pick object 0" in offered and "place" not in offered and "pick object 1" not in offered
    assert "go to the kitchen fridge" not in offered and "go to the kitchen door" in offered
    # one cell to the left: left, forward, right, and the grab
    infos, rewards, state = act(state, "pick object 0")
    assert infos[0]["steps"] == 4 and rewards == [2.5] and int(state.spot[0]) == IN_HAND
    assert infos[0]["picked"] and NAMES[infos[0]["receptacle"]] == "kitchen fridge"
    # back where it was: the crosshair points there already
    infos, rewards, state = act(state, "place")
    assert infos[0]["steps"] == 1 and rewards == [-0.25]
    assert int(state.step_count) == 11


def test_what_is_not_offered_fails(macro_state):
    infos, rewards, state = act(macro_state, "place", "pick object 0", "pick object 9")
    assert rewards == [-0.2] * 3 and [info["steps"] for info in infos] == [1, 1, 1]
    assert all(info["failed"] for info in infos) and int(state.cell) == int(macro_state.cell)


def test_a_trip_that_is_too_long_ends_the_episode(macro_state):
    late = macro_state.replace(step_count=jnp.int32(995))
    infos, rewards, state = act(late, "go to the kitchen fridge")
    assert infos[0]["truncated"] and rewards == [0.0] and int(state.cell) == int(macro_state.cell)
    assert int(state.step_count) == 1000 and infos[0]["steps"] == 5
    infos, _, state = act(macro_state.replace(step_count=jnp.int32(994)), "go to the kitchen fridge")
    assert infos[0]["truncated"] and int(state.cell) != int(macro_state.cell)


def test_names_of_actions():
    assert ENV.action_names[GRAB] == "grab or release" and len(MACRO.action_names) == 51 + 10 + 1
    assert MACRO.action_names[MACRO.pick_action] == "pick object 0" and MACRO.action_names[-1] == "place"
