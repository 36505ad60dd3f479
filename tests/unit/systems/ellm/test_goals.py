"""Goals and their rewards, by hand, in a world of five cells."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.testing import check_contract
from llmrl_jax.systems.ellm.build import make_world
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.goals import CATEGORIES, goal_reward, packed, unpacked
from llmrl_jax.systems.ellm.open_goals import presented
from tests.ellm_world import BUILD, CHOP, DRINK, EAT, LEFT, MINE, NAMES, PLACE, RIGHT, Yard


HASHED = EllmConfig(encoder="hashed")


def world(**options):
    env, _ = make_world(replace(HASHED, **options), Yard())
    return env, env.default_params


def play(env, params, actions, cell=1):
    """Rewards, goals seen before each action and after the last, and the last info."""
    step = jax.jit(env.step)
    key = next(k for k in map(jax.random.key, range(50)) if int(env.reset(k, params)[1].env.env.cell) == cell)
    obs, state = env.reset(key, params)
    rewards, seen, info = [], [names(obs)], {}
    for t, action in enumerate(actions):
        obs, state, reward, _, _, info = step(jax.random.key(t), state, action, params)
        rewards.append(float(reward))
        seen.append(names(obs))
    return rewards, seen, info, state


def names(obs):
    bits = np.asarray(unpacked(obs["goals"], len(NAMES)))
    return {NAMES[i] for i in np.flatnonzero(bits)}


def test_reward_by_hand():
    similarity, some = jnp.array([0.2, 1.0, 0.95, 0.5]), jnp.array([True, False, True, False])
    pay = jax.jit(goal_reward)
    for goals, threshold, expected in (
        (some, 0.9, (0.95, 2)),
        (some, 0.95, (0.0, -1)),  # above, not at
        (some | True, 0.9, (1.0, 1)),  # the best of several
        (jnp.array([True, False, False, True]), -1.0, (0.5, 3)),
        (some & False, -1.0, (0.0, -1)),
    ):
        reward, goal = pay(similarity, goals, threshold)
        assert (float(reward), int(goal)) == (pytest.approx(expected[0]), expected[1])


def test_an_episode_by_hand():
    """A goal is paid once; a synonym counts as reached with it; what is feasible changes with the state."""
    env, params = world()
    rewards, seen, info, state = play(env, params, [LEFT, CHOP, CHOP, PLACE, BUILD, MINE])
    np.testing.assert_allclose(rewards, [0, 1, 0, 1, 0, 0], atol=1e-6)
    assert seen[0] == set() and seen[1] == {"chop tree"}
    assert seen[2] == seen[3] == {"place table", "build table"}  # chopping is done, there is wood
    assert seen[4] == set()  # wood is left, and both names of the table are reached
    assert float(info["episode_earned"]) == pytest.approx(2)
    assert float(info["episode_achievements"]) == 2 and float(info["episode_return"]) == 2
    unlocked = {name.split("/")[1] for name, x in info.items() if name.startswith("episode_unlocked/") and x > 0}
    assert unlocked == {"collect_wood", "place_table"}
    assert np.asarray(state.tally)[0].sum() == 1 + 2 + 2 and np.asarray(state.tally)[1].tolist() == [2, 0, 0, 0]


def test_without_the_filter_a_goal_is_paid_again():
    env, params = world(once=False)
    np.testing.assert_allclose(play(env, params, [LEFT, CHOP, CHOP, CHOP])[0], [0, 1, 1, 1], atol=1e-6)


@pytest.mark.parametrize(("gate", "wanted"), [("effect", [0, 0, 0]), ("lenient", [0, 1, 0]), ("none", [0, 1, 1])])
def test_gates(gate, wanted):
    """Mining the tree that one faces counts for the lenient gate, eating a table elsewhere for none."""
    env, params = world(suggester="fixed", fixed=("mine tree", "eat table"), gate=gate)
    np.testing.assert_allclose(play(env, params, [LEFT, MINE, EAT])[0], wanted, atol=1e-6)


def test_weights_of_both_rewards():
    env, params = world(intrinsic=0.5, extrinsic=2.0)
    np.testing.assert_allclose(play(env, params, [LEFT, CHOP, CHOP])[0], [0, 2.5, 0], atol=1e-6)


def test_a_lower_threshold_pays_for_similar_goals():
    """Drinking is worth the similarity of "drink water" to a goal with one of its words."""
    env, params = world(suggester="fixed", fixed=("place table",), threshold=0.3)
    similar = float(params.goals.similarity[BUILD, PLACE])
    assert 0.3 < similar < 0.9
    rewards, _, _, state = play(env, params, [LEFT, CHOP, BUILD])
    np.testing.assert_allclose(rewards, [0, 0, similar], atol=1e-6)


def test_goals_that_nothing_reaches_are_not_shown():
    _, params = world()
    ids = jnp.array([CHOP, -1, DRINK])
    assert np.flatnonzero(presented(params.goals, ids, 0.99)).tolist() == [CHOP, DRINK]
    far = params.goals.replace(similarity=params.goals.similarity * 0.5)
    assert not np.any(presented(far, ids, 0.99))


def test_categories_and_other_suggesters():
    env, params = world(suggester="novelty")
    _, seen, info, _ = play(env, params, [RIGHT])
    assert seen[0] == set(NAMES) and seen[1] == set(NAMES) - {"move right"}
    found = [float(info[f"episode_suggested/{kind}"]) for kind in CATEGORIES]
    assert found == [0, 7, 2, 0]  # in the middle nothing is good; two actions never have an effect
    paid = [float(info[f"episode_paid/{kind}"]) for kind in CATEGORIES]
    assert paid == [0, 1, 0, 0]
    env, params = world(suggester="uniform", uniform_goals=2)
    assert 1 <= len(play(env, params, [])[1][0]) <= 2
    env, params = world(suggester="none", extrinsic=1.0)
    assert play(env, params, [LEFT, CHOP])[0] == [0, 1]


def test_it_is_an_environment():
    env, _ = world(suggester="chat")
    check_contract(env, env.default_params)


def test_worlds_without_goals_are_refused():
    import envs_jax

    with pytest.raises(ValueError, match="'CartPole-v1'"):
        make_world(HASHED, envs_jax.make("CartPole-v1")[0])
    with pytest.raises(ValueError, match="'chop three'.*'chop tree'"):
        make_world(replace(HASHED, suggester="fixed", fixed=("chop three",)), Yard())


def test_a_threshold_that_no_cosine_exceeds_is_refused():
    with pytest.raises(ValueError, match="threshold.*1.0.*-1.*1.*0.99"):
        EllmConfig(threshold=1.0)
    assert EllmConfig(threshold=-1.0).threshold == -1


def test_packed_masks_come_back():
    bits = np.random.default_rng(1).random((3, 139)) < 0.5
    seen = packed(jnp.asarray(bits))
    assert seen.shape == (3, 18) and seen.dtype == jnp.uint8
    np.testing.assert_array_equal(unpacked(seen, 139), bits)
