"""Actions that differ from state to state: what a world offers, and what prompts and policies make of it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.actions import ChosenActions, mask_of
from envs_jax.babyai.actions import useful_actions
from envs_jax.babyai.constants import BALL, BOX, CLOSED, DOOR, EMPTY, KEY, LOCKED, OPEN
from envs_jax.history import PromptHistory
from llmrl_jax.agents.language import action_logits
from llmrl_jax.rl.rollout import collect, start
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.posttest import parse_test, prepare, world_of
from llmrl_jax.systems.glam.prompts import glam_prompt
from tests.glam import TINY, observations, program, weights


WORLD = "BabyAI-Text/GoToObjS4-v0?actions=useful"
MASKED = replace(TINY, env=WORLD, list_actions=True, ppo=replace(TINY.ppo, num_steps=8))


@pytest.fixture(scope="module")
def glam():
    return program(MASKED)


@pytest.fixture(scope="module")
def batch():
    return observations(MASKED, 12)


@pytest.fixture(scope="module")
def drawn():
    params, frozen = weights(MASKED)
    return jax.tree.map(lambda x: x + 0.02, params), frozen


def in_view(image):
    """Actions among the seven that change anything, from what stands ahead and what is in hand, rule by rule
    (`MiniGridEnv.step`)."""
    ahead, color, state = (int(x) for x in image[3, 5])
    held, held_color = (int(x) for x in image[3, 6, :2])
    full = held != EMPTY
    fits = held == KEY and held_color == color
    return [
        True,
        True,
        ahead == EMPTY or (ahead == DOOR and state == OPEN),
        ahead in (KEY, BALL, BOX) and not full,
        ahead == EMPTY and full,
        ahead == BOX or (ahead == DOOR and (state in (OPEN, CLOSED) or (state == LOCKED and fits))),
        False,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("id", ["BabyAI-UnlockPickupDist-v0", "BabyAI-KeyInBox-v0"])
def test_useful_actions_are_those_that_the_rules_let_through(id):
    env, params = envs_jax.make(f"{id}?actions=useful")

    def play(key):
        obs, state = env.reset(key, params)

        def step(state, key):
            pick, move = jax.random.split(key)
            likely = jnp.log(jnp.array([1.0, 1.0, 4.0, 2.0, 0.3, 2.0, 0.01]))
            obs, state, *_ = env.step(move, state, jax.random.categorical(pick, likely), params)
            return state, obs

        return jax.lax.scan(step, state, jax.random.split(key, 300))[1]

    seen = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 6))
    images, masks = (np.asarray(seen[name]) for name in ("image", "action_mask"))
    images, masks = images.reshape(-1, 7, 7, 3), masks.reshape(-1, 7)
    np.testing.assert_array_equal(masks, [in_view(image) for image in images])
    assert all(3 <= masks[:, a].sum() <= len(masks) - 3 for a in (2, 3, 4, 5)), "each rule was tried both ways"


@pytest.mark.slow
def test_done_is_useful_where_it_is_heeded_and_hands_are_what_they_are():
    env, params = envs_jax.make("BabyAI-PutNextS5N2Carrying-v0?actions=useful&compat=minigrid&done_actions=true")
    obs, state = jax.jit(env.reset)(jax.random.key(0), params)
    assert obs["action_mask"][6] and int(obs["image"][3, 6, 0]) == EMPTY, "shown with empty hands, as in minigrid"
    np.testing.assert_array_equal(obs["action_mask"], useful_actions(state, True))


def test_all_actions_are_offered_unless_asked_otherwise():
    plain, params = envs_jax.make("BabyAI-GoToLocal-v0")
    assert "action_mask" not in plain.observation_space(params).spaces
    with pytest.raises(ValueError, match="actions.*'usefull'.*'useful'"):
        envs_jax.make("BabyAI-GoToLocal-v0", actions="usefull")


@pytest.mark.slow
def test_wrappers_that_change_the_actions_change_the_mask(glam, batch):
    env, params = envs_jax.make(WORLD)
    mask = jnp.array([True, True, False, True, False, True, True])
    for changed, expected in (
        (ChosenActions(env, 3), [True, True, False]),
        (ChosenActions(env, 6, ("sleep", "think")), [True, True, False, True, False, True, False, False]),
    ):
        np.testing.assert_array_equal(changed.offered(mask), expected)
        key = jax.random.key(0)
        obs, state = jax.eval_shape(changed.reset, key, params)
        after = jax.eval_shape(changed.step, key, state, jnp.int32(0), params)[0]
        space = changed.observation_space(params).spaces["action_mask"]
        assert (
            space.contains(np.array(expected)) and obs["action_mask"].shape == after["action_mask"].shape == space.shape
        )
    assert glam.env.observation_space(glam.env_params).contains(jax.device_get(jax.tree.map(lambda x: x[0], batch)))
    assert mask_of(jnp.zeros(3)) is None and mask_of({"image": 1}) is None


def test_the_bridge_to_gymnasium_carries_the_mask():
    bridge = pytest.importorskip("envs_jax.bridges.gymnasium")
    env, params = envs_jax.make("BabyAI-GoToLocalS6N2-v0?actions=useful")
    space = bridge.to_gymnasium(env.observation_space(params))["action_mask"]
    assert space.shape == (7,) and space.dtype == bool
    assert space.contains(np.array([True] * 3 + [False] * 4)) and not space.contains(np.ones(6, bool))


def test_the_prompt_lists_what_is_offered(batch, bpe):
    """Against the list written out by hand, and the tokenizer's own tokens."""
    plain = glam_prompt(PromptHistory(envs_jax.make("BabyAI-Text/GoToObjS4-v0")[0], 1), history=1)
    env = PromptHistory(envs_jax.make(WORLD)[0], 1, keep=["action_mask"])
    prompt = glam_prompt(env, history=1)
    obs = jax.device_get(jax.tree.map(lambda x: x[0], batch))
    rest = plain.render(obs).partition(" \n ")[2]
    offers = {
        (1, 1, 0, 0, 0, 0, 0): "turn left, turn right",
        (0, 0, 0, 0, 1, 0, 0): "drop",
        (1, 1, 1, 0, 1, 0, 0): "turn left, turn right, go forward, drop",
        (1, 1, 0, 1, 0, 1, 1): "turn left, turn right, pick up, toggle",
        (1, 1, 1, 1, 1, 1, 0): "turn left, turn right, go forward, pick up, drop, toggle",
    }
    for mask, listed in offers.items():
        said = prompt.render({**obs, "action_mask": np.array(mask, bool)})
        assert said == f"Possible action of the agent: {listed} \n {rest}"
    compiled = prompt.compile(bpe)
    many = jax.tree.map(lambda x: np.broadcast_to(x, (len(offers), *np.shape(x))), obs)
    slots = jax.jit(jax.vmap(prompt.slots))({**many, "action_mask": np.array(list(offers), bool)})
    assert compiled.verify(jax.device_get(slots)) == len(offers)
    assert not glam_prompt(env, history=1, list_actions=False).lists_offered
    alone = glam_prompt(env, ["turn left"], history=1)
    assert alone.render(obs).startswith("Possible action of the agent: turn left \n Goal")


@pytest.mark.parametrize("scoring", ["sum", pytest.param("max_normalised", marks=pytest.mark.slow)])
def test_probabilities_are_those_of_the_offered_actions_alone(glam, drawn, batch, scoring):
    """A softmax over each row's offered actions, computed row by row in NumPy."""
    policy = replace(glam.policy, scoring=scoring)

    @jax.jit
    def both(params, frozen):
        return policy.distribution_and_hidden(params, frozen, batch)[0], policy.scores(params, frozen, batch)

    distribution, scores = jax.device_get(both(*drawn))
    mask = np.asarray(batch["action_mask"])
    assert 0 < mask.sum() < mask.size and len({tuple(row) for row in mask}) > 1
    total = scores.sum.astype(np.float64)
    for i, row in enumerate(mask):
        offered = total[i][row]
        if scoring == "max_normalised":
            offered = np.exp(offered - offered.max())
        probs = np.exp(offered) / np.exp(offered).sum()
        np.testing.assert_allclose(distribution.probs[i][row], probs, atol=1e-5)
        assert np.all(np.asarray(distribution.probs)[i][~row] == 0)
        np.testing.assert_allclose(distribution.entropy()[i], -(probs * np.log(probs)).sum(), atol=1e-5)
        assert int(distribution.mode()[i]) == np.flatnonzero(row)[probs.argmax()]
    drawn = np.asarray(jax.jit(jax.vmap(distribution.sample))(jax.random.split(jax.random.key(3), 500)))
    assert mask[np.arange(12), drawn].all()
    assert [set(drawn[:, i]) == set(np.flatnonzero(row)) for i, row in enumerate(mask)].count(True) >= 10


def test_acting_and_learning_see_the_same_actions(glam, drawn, batch):
    """The ratio of an action's probability while learning to that while acting is 1."""
    first = jnp.zeros(12, bool)
    acting, _, _ = jax.jit(glam.policy.step)(*drawn, batch, (), first)
    action = acting.sample(jax.random.key(1))
    two = jax.tree.map(lambda x: jnp.stack([x, x]), batch)
    learning, _ = jax.jit(glam.policy.unroll)(*drawn, two, (), jnp.stack([first, first]))
    ratio = jnp.exp(learning.log_prob(jnp.stack([action, action])) - acting.log_prob(action))
    np.testing.assert_allclose(ratio, 1.0, atol=1e-5)


@pytest.mark.slow
def test_a_whole_update_keeps_to_what_is_offered(glam):
    """Every action of a rollout was offered, and the first minibatch's ratio is 1."""
    learner = glam.learner()
    state, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    assert float(metrics["first_ratio_error"]) <= 1e-5 and float(metrics["nonfinite"]) == 0
    assert 0 < float(metrics["entropy"]) < np.log(5), "fewer actions than six in most states"
    env = envs_jax.VectorEnv(glam.env, 4, policy="pool", pool_size=8)
    runner = start(env, glam.env_params, glam.policy, jax.random.key(1))
    play = jax.jit(lambda runner, key: collect(env, glam.policy, state.params, state.frozen, runner, key, 30)[1])
    rollout = play(runner, jax.random.key(2))
    offered, action = np.asarray(rollout.obs["action_mask"]), np.asarray(rollout.action)
    assert offered.shape == (30, 4, 6) and np.take_along_axis(offered, action[..., None], -1).all()
    assert 0.3 < offered.mean() < 0.9


@pytest.mark.slow
def test_an_action_head_is_masked_too(batch):
    glam = build(replace(MASKED, policy="heads", list_actions=False))
    params, frozen = glam.policy.init(jax.random.key(0), batch)
    distribution = jax.jit(lambda obs: glam.policy.act(params, frozen, obs)[0])
    masked, plain = distribution(batch), distribution({**batch, "action_mask": jnp.ones((12, 6), bool)})
    expected = np.where(batch["action_mask"], plain.probs, 0.0)
    np.testing.assert_allclose(masked.probs, expected / expected.sum(-1, keepdims=True), atol=1e-5)


def test_without_a_mask_nothing_is_masked(glam, drawn, batch):
    """Its logits are the scores, bit for bit."""
    policy, obs = build(replace(MASKED, list_actions=False)).policy, dict(batch)
    obs.pop("action_mask")

    @jax.jit
    def both(params, frozen):
        return policy.distribution_and_hidden(params, frozen, obs)[0].logits, policy.scores(params, frozen, obs)

    logits, scores = both(*drawn)
    np.testing.assert_array_equal(logits, action_logits(scores, "sum"))


def test_tests_offer_actions_as_training_did(glam):
    assert world_of(parse_test("composition"), WORLD) == "BabyAI-Text/PickUpSeqPickUpLocal-v0?actions=useful"
    assert world_of(parse_test("composition"), "BabyAI-Text/GoToLocal-v0?room_size=6") == parse_test("composition").env
    assert world_of(parse_test("adj_synonym"), WORLD) == WORLD
    trial = prepare(glam, parse_test("no_modification_test"))
    obs, _ = jax.eval_shape(trial.env.reset, jax.random.key(0), trial.env_params)
    assert obs["action_mask"].shape == (6,)
