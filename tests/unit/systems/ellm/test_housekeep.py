"""ELLM in Housekeep: goals and rewards beside the world's own, symbols beside the crosshair, tables by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.housekeep import expert_action
from envs_jax.housekeep.constants import FREE, FURNITURE, UNSEEN, WALL
from envs_jax.testing import check_contract
from llmrl_jax.lm.encoder import HashedEncoder
from llmrl_jax.options.settings import draft
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.systems.ellm import closed_goals, eval, housekeep
from llmrl_jax.systems.ellm.build import Ellm, build, make_world
from llmrl_jax.systems.ellm.closed_goals import pick_caption, store_caption
from llmrl_jax.systems.ellm.config import HOUSEKEEP_MACRO, EllmConfig
from llmrl_jax.systems.ellm.goals import GoalWrapper, goal_spec_for, unpacked
from llmrl_jax.systems.ellm.train import on_task


ID = "Housekeep-Task1-v0"
CONFIG = EllmConfig(env=ID, encoder="hashed", observe="symbols+text", goal_conditioned=False)
LEMON, CHAIR = "lemon", "kitchen chair"
"""An object of the task, and where it lies misplaced."""


@cache
def world():
    env, _ = make_world(CONFIG)
    return env, env.spec


@cache
def both():
    """A program that plays the world with goals and the bare one side by side: `(key, params, bare params, caution) ->
    rewards of both, infos, goals before each step`. Actions are the expert's with probability `caution`, else half of
    them grab or release, so that objects are picked up again and again."""
    env, _ = world()
    bare = envs_jax.make(ID)[0]

    @partial(jax.jit, static_argnums=4)
    def play(key, params, bare_params, caution, steps):
        def one(carry, key):
            state, own = carry
            draw, move = jax.random.split(key)
            best = expert_action(bare, own)
            other = jnp.minimum(jax.random.randint(move, (), 0, 10), 5)
            action = jnp.where(jax.random.uniform(draw) < caution, best, other)
            seen, after, reward, _, _, info = env.step(key, state, action, params)
            _, own, wanted, _, _, _ = bare.step(key, own, action, bare_params)
            return (after, own), (reward, wanted, info, state.goals, seen["goals"], own)

        start = env.reset(key, params)[1], bare.reset(key, bare_params)[1]
        return jax.lax.scan(one, start, jax.random.split(key, steps))[1]

    return play, bare


def outcome(params, table, caution, seed=0):
    play, bare = both()
    own = bare.default_params.replace(
        suggesting=np.bool_(True), suggestions=np.asarray(table), clip_reward=np.bool_(True)
    )
    return jax.device_get(play(jax.random.key(seed), params, own, caution, 400))


@pytest.mark.slow
@pytest.mark.parametrize(
    "share", ["oracle", pytest.param(0.2, marks=pytest.mark.slow), pytest.param(0.6, marks=pytest.mark.slow)]
)
def test_rewards_are_those_of_the_world_under_the_same_table(share):
    """The world pays for suggestions too, by the published table of rewards, clipped to 1: another program with another
    memory of what was paid. At the threshold 0.99 both agree, for the oracle's table and for tables drawn at random."""
    env, spec = world()
    correct = np.asarray(spec.correct)
    table = correct if share == "oracle" else np.random.default_rng(3).random(correct.shape) < share
    goals = closed_goals.answers_as_goals(table, np.ones_like(table))
    params = env.default_params.replace(**{name: jnp.asarray(x) for name, x in goals.items()})
    events = np.zeros(4, int)
    for seed, caution in ((0, 0.8), (1, 0.9), (2, 0.6)):
        reward, wanted, info, *_ = outcome(params, table, caution, seed)
        np.testing.assert_allclose(reward, wanted, atol=1e-6)
        again = info["picked"] & ~info["first"] & (reward == 0)
        events += [(reward > 0.9).sum(), info["placed"].sum(), (reward == np.float32(-0.25)).sum(), again.sum()]
    # goals were reached, objects were placed, what was no goal was fined, and what was picked up again was not paid
    assert np.all(events > 0), events
    assert info["episode_earned"][-1] == pytest.approx(reward[reward > 0].sum(), abs=1e-5)
    assert info["episode_penalty"][-1] == pytest.approx(reward[reward < 0].sum(), abs=1e-5)


def test_goals_are_what_is_in_view_or_in_hand():
    """With an empty hand, misplaced objects in view; with an object in hand, its correct places among those seen; none
    about what was stored."""
    env, spec = world()
    correct = np.asarray(spec.correct)
    _, _, info, before, after, states = outcome(env.default_params, correct, 0.9)
    goals = np.asarray(unpacked(jnp.asarray(after), env.spec.num_goals))
    kinds = np.asarray(states.category)
    seen = np.unpackbits(states.seen_receptacles.view(np.uint8), axis=1, bitorder="little")[:, : len(spec.places)]
    stored: set[int] = set()
    picked: set[int] = set()
    checked = np.zeros(2, int)
    where = np.asarray(env.unwrapped.tables.spots.receptacle)
    sees = np.asarray(env.unwrapped.tables.sees_spot)
    for t in range(len(kinds)):
        if info["placed"][t] and info["earned"][t] > 0:
            stored.add(int(info["object"][t]))
        if info["picked"][t]:
            picked.add(int(info["object"][t]))
        held = int(states.held[t])
        if held >= 0:
            wanted = correct[kinds[t, held]] & (seen[t] > 0) & (held not in stored)
            np.testing.assert_array_equal(goals[t, env.spec.slots :], wanted)
            assert not goals[t, : env.spec.slots].any()
            checked[0] += 1
            continue
        pose = int(states.cell[t]) * 4 + int(states.heading[t])
        for slot, (kind, spot) in enumerate(zip(kinds[t], states.spot[t])):
            visible = spot >= 0 and sees[pose, spot]
            misplaced = visible and not correct[kind, where[spot]]
            assert goals[t, slot] == (misplaced and slot not in picked | stored)
        assert not goals[t, env.spec.slots :].any()
        checked[1] += 1
    assert np.all(checked > 20)


def test_what_lies_straight_ahead_is_what_the_crosshair_hits():
    """The symbols' codes at the height of the look, beside the table of the crosshair that the world itself uses."""
    env, spec = world()
    own = env.unwrapped
    play, bare = both()
    *_, states = outcome(env.default_params, spec.correct, 0.5, seed=4)
    images = jax.device_get(jax.jit(jax.vmap(bare.image))(states))
    codes, near = jax.device_get(housekeep.ahead(jnp.asarray(images, jnp.int32)))
    receptacle, spot = jax.device_get(jax.vmap(own.rules.aim)(states))
    hits = 0
    for t in range(len(codes)):
        code = codes[t, int(states.pitch[t])]
        lies = np.flatnonzero((states.spot[t] == spot[t]) & (spot[t] >= 0))
        if len(lies):
            wanted = FURNITURE + len(spec.places) + states.category[t, lies[0]]
        else:
            wanted = FURNITURE + receptacle[t] if receptacle[t] >= 0 else None
        assert code == wanted if wanted is not None else code in (UNSEEN, WALL), t
        hits += bool(len(lies))
    assert hits > 3 and near.min() >= 0 and near.max() <= 1
    blank = np.full((1, 13, 13, 3), FREE)
    blank[0, 11, 6, 0], blank[0, 6, 6, 1], blank[0, 3, 5, 2] = 7, 9, 8
    code, near = housekeep.ahead(jnp.asarray(blank))
    assert code.tolist() == [[7, 9, UNSEEN]]
    np.testing.assert_allclose(near, [[1, 1 - 5 / 12, 0]], rtol=1e-6)


def test_where_goals_are():
    """In the image and straight ahead, by hand: an object to be picked up, and a receptacle that is a goal."""
    items, places = 183, 51
    cells = np.full((1, 13, 13, 3), FREE, np.uint8)
    cells[0, 5, 6, 1] = FURNITURE + places + 20
    cells[0, 11, 2, 2] = FURNITURE + places + 21
    cells[0, 11, 6, 0] = cells[0, 2, 3, 0] = FURNITURE + 7
    goals = np.zeros((1, items + places), bool)
    goals[0, [20, items + 7]] = True
    found = np.asarray(housekeep.goals_in_view(items, {"cells": jnp.asarray(cells)}, jnp.asarray(goals)))[0]
    there, near = found[:-3].reshape(13, 13, 3), found[-3:]
    assert {tuple(x) for x in np.argwhere(there).tolist()} == {(5, 6, 1), (11, 6, 0), (2, 3, 0)}
    assert near.tolist() == [1, 1, 0]


def macro():
    dqn = replace(HOUSEKEEP_MACRO.dqn, num_envs=2, num_steps=2, gradient_steps=1, batch_size=2, pool_size=2)
    dqn = replace(dqn, replay_size=16, learning_starts=2)
    small = replace(HOUSEKEEP_MACRO, dqn=dqn, network=BranchConfig(width=4, head_hidden=()), encoder="hashed")
    return build(replace(small, goal_conditioned=True))


@pytest.mark.slow
def test_an_agent_by_macro_actions_that_sees_goals():
    """Networks see symbols, texts and goals, and only offered actions have a value."""
    made = macro()
    obs = jax.tree.map(lambda x: x[None], jax.jit(made.env.reset)(jax.random.key(0), made.env_params)[0])
    seen = made.inputs(obs)
    assert seen["goals"].shape == (1, 183 + 51) and seen["text"].shape == (1, 384)
    params, frozen = made.policy.init(jax.random.key(1), obs)
    values = made.policy.q(params, frozen, obs)
    assert values.shape == (1, 62)
    np.testing.assert_array_equal(np.isneginf(values), ~obs["action_mask"])
    blind = made.inputs({**obs, "goals": jnp.zeros_like(obs["goals"])})
    assert seen["symbols"].shape == blind["symbols"].shape and not blind["goals"].any()


@pytest.mark.slow
def test_an_agent_by_macro_actions_learns_a_step():
    """One update of the learner, which has the tables of goals in its state."""
    learner = macro().learner()
    state = learner.init(jax.random.key(0))
    after, metrics = jax.jit(learner.update)(state)
    assert np.isfinite(float(metrics["loss"])) and int(after.runner.env_params.pick.sum()) > 0
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, after.params)
    assert max(jax.tree.leaves(moved)) > 0


def test_what_lay_right_is_no_goal_after_it_was_picked_up():
    """A pick that is not paid counts too: else it would pay to put away what lies right, and to pick it up again."""
    env, spec = world()
    params, rules = env.default_params, env.rules
    kinds = jnp.arange(spec.slots)
    place = int(np.flatnonzero(spec.correct[2])[0])
    wrong = jnp.full(spec.slots, int(np.flatnonzero(~spec.correct[2])[0]))
    obs = {"categories": kinds, "places": wrong, "held": -1, "seen_receptacles": jnp.zeros(len(spec.places), bool)}
    event = {"category": 2, "receptacle": place, "object": 2, "picked": True, "placed": False, "failed": False}
    info = {name: jnp.asarray(x) for name, x in event.items()}
    state, earned, penalty = spec.pay(rules, spec.start((), params), jnp.int32(0), obs, info, params)
    assert (float(earned), float(penalty)) == (0, -0.25) and np.flatnonzero(state.picked).tolist() == [2]
    assert not state.stored.any() and not state.tally.any() and float(state.penalty) == -0.25
    _, after, _ = spec.suggest(rules, obs, state, params, jax.random.key(0))
    assert not after[2] and after[3] == ~spec.correct[3, wrong[3]]


def test_similarities_are_those_of_the_captions():
    _, spec = world()
    encoder = HashedEncoder()
    pick, store = closed_goals.similarities(encoder, spec)
    a, b = np.flatnonzero(spec.occurring)[:2]
    say = lambda *texts: encoder.encode_texts(texts)  # noqa: E731
    x, y = say(pick_caption(spec.items[a]), pick_caption(spec.items[b]))
    assert pick[a, b] == pytest.approx(float(x @ y), abs=1e-6) and pick[a, a] == pytest.approx(1)
    x, y = (say(store_caption(spec.items[b], spec.places[r]))[0] for r in (3, 20))
    assert store[b, 3, 20] == pytest.approx(float(x @ y), abs=1e-6) and store[b, 3, 3] == pytest.approx(1)
    other = np.flatnonzero(~spec.occurring)[0]
    assert not store[other].any() and pick.shape == (len(spec.items),) * 2
    off = store[spec.occurring] - np.eye(len(spec.places))
    assert np.abs(off).max() < 0.99  # at the published threshold only the same place counts


def test_suggesters_as_tables():
    _, spec = world()
    tables = lambda **options: closed_goals.goal_tables(replace(CONFIG, **options), spec)  # noqa: E731
    oracle = tables()
    np.testing.assert_array_equal(oracle["store"], spec.correct)
    np.testing.assert_array_equal(oracle["pick"], ~spec.correct)
    assert all(x.all() for x in tables(suggester="novelty").values())
    assert not any(x.any() for x in tables(suggester="chat").values())
    named = ("pick up the lemon", "put the lemon in/on the kitchen fridge")
    fixed = tables(suggester="fixed", fixed=named)
    item, place = spec.items.index(LEMON), spec.places.index("kitchen fridge")
    assert fixed["pick"].sum() == len(spec.places) and fixed["pick"][item].all()
    assert np.argwhere(fixed["store"]).tolist() == [[item, place]]
    with pytest.raises(ValueError, match="'put the lemon in/on the kitchen fridge'"):
        tables(suggester="fixed", fixed=("put the lemon in/on the kitchen fridg",))
    yes, known = np.array([[True, False, True]]), np.array([[True, True, False]])
    unsure = closed_goals.answers_as_goals(yes, known)
    assert unsure["store"].tolist() == [[True, False, False]] and unsure["pick"].tolist() == [[False, True, False]]


def test_random_goals_are_drawn_from_those_of_the_state():
    env, _ = make_world(replace(CONFIG, suggester="uniform", uniform_goals=3))
    assert env.rules.draws == 3
    drawn = jax.jit(lambda in_hand, key: env.spec.sample_goals(3, in_hand, key))
    for in_hand in (False, True):
        found = np.stack([drawn(jnp.bool_(in_hand), jax.random.key(i)) for i in range(40)])
        assert 1 <= found.sum(1).min() and found.sum(1).max() == 3
        assert not (found[:, : env.spec.slots] if in_hand else found[:, env.spec.slots :]).any()


def test_it_is_an_environment_and_says_its_goals():
    env, spec = world()
    check_contract(env, env.default_params)
    obs, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    kinds = np.asarray(obs["categories"])
    bits = np.zeros(env.spec.num_goals, bool)
    slot = int(np.flatnonzero(kinds >= 0)[0]) if (kinds >= 0).any() else 0
    bits[[slot, env.spec.slots + 2]] = True
    item = spec.items[kinds[slot]]
    said = env.describe({**obs, "goals": np.packbits(bits)})["goals"]
    assert said == f"pick up the {item}, put it in/on the {spec.places[2]}"
    shown = np.flatnonzero(env.spec.as_captions({"categories": kinds[None]}, jnp.asarray(bits)[None])[0])
    assert [spec.captions[i] for i in shown] == [f"pick up the {item}", f"put the object in/on the {spec.places[2]}"]


def test_specifications_of_its_worlds():
    macro = goal_spec_for(envs_jax.make("Housekeep-Macro-v0")[0])
    assert macro.actions == 62 and macro.occurring.sum() == 183 and macro.correct.shape == (183, 51)
    _, spec = world()
    assert spec.actions == 6 and LEMON in {spec.items[i] for i in np.flatnonzero(spec.occurring)}
    assert not spec.correct[spec.items.index(LEMON), spec.places.index(CHAIR)]
    assert spec.task_id("Housekeep-Macro-Task1-v0?field_of_view=90", "task3") == (
        "Housekeep-Macro-Task3-v0?field_of_view=90"
    )
    assert spec.task_id("Housekeep-v0", "task2") == "Housekeep-Task2-v0"


def test_single_goals_and_tasks():
    env, spec = world()
    assert len(spec.single_goals) == 8 and "pick up the lemon" in spec.single_goals
    params = spec.with_goal(env.default_params, "put the lemon in/on the kitchen fridge")
    assert int(params.store.sum()) == 1 and not params.pick.any()
    given = partial(SimpleNamespace, ellm=replace(HOUSEKEEP_MACRO, suggester="novelty"), subgoals=False)
    task = on_task(given(task="task3"), spec)
    assert (task.env, task.suggester, task.intrinsic, task.extrinsic) == ("Housekeep-Macro-Task3-v0", "oracle", 0, 1)
    with pytest.raises(ValueError, match="task.*'task9'.*task1, task2, task3, task4"):
        on_task(given(task="task9"), spec)
    with pytest.raises(ValueError, match="subgoals.*True.*'task1'"):
        on_task(given(task="task1", subgoals=True), spec)


def test_greedy_episodes_of_a_fixed_start_are_one(monkeypatch, tmp_path, capsys):
    """They are copies of each other, so that an interval over them would have no width."""
    fixed = {id: goal_spec_for(envs_jax.make(id)[0]).fixed_start for id in ("Housekeep-v0", "Housekeep-v0?episode=8")}
    assert list(fixed.values()) == [False, True]
    env, spec = world()
    assert spec.fixed_start

    def make_goal_evaluator(env, policy, episodes):
        def play(*args, greedy=False):
            numbers = np.zeros(episodes, np.float32)
            tally, none = np.zeros((episodes, 2, 4), np.int32), np.zeros((episodes, 0), bool)
            return eval.EpisodeStats(
                none, numbers, numbers, numbers, tally, numbers, dict.fromkeys(env.spec.measures, numbers)
            )

        return play

    state = SimpleNamespace(params=(), frozen=(), runner=SimpleNamespace(env_params=()))
    monkeypatch.setattr(eval, "make_goal_evaluator", make_goal_evaluator)
    for config, start, wanted in (
        (CONFIG, spec, 1),
        (replace(CONFIG, suggester="uniform"), spec, 5),  # goals differ
        (CONFIG, replace(spec, fixed_start=False), 5),
    ):
        env = draft(GoalWrapper, {"spec": start})
        made = draft(Ellm, {"config": config, "env": env, "policy": None})
        monkeypatch.setattr(eval, "load_run", lambda *_, made=made: (None, made, state, 3))
        found = eval.evaluate(tmp_path, episodes=5)
        assert [found[name]["episodes"] for name in ("agent", "greedy", "random")] == [5, wanted, 5]
        said = capsys.readouterr().out
        assert ("held out" in said) == start.fixed_start
        assert ("same episode" in said) == (wanted == 1)
        row = next(line for line in said.splitlines() if line.startswith("objects in a correct place"))
        assert row.count("[") == 2 + (wanted > 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"gate": "none"}, "--gate.*none.*Housekeep-Task1-v0")],
)
def test_options_that_nothing_reads(options, said):
    with pytest.raises(ValueError, match=said):
        make_world(replace(CONFIG, **options))
