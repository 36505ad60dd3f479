"""The contract of offline learners: batches, mixing, discounts, time-outs, instructions, several runs, bad data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import spaces
from llmrl_jax.data.transitions import DataError, Transitions
from llmrl_jax.rl.actors import Fixed
from llmrl_jax.rl.bc import BC, BCConfig
from llmrl_jax.rl.iql import IQL, IQLConfig
from llmrl_jax.rl.offline import Offline, OfflineConfig, TrainState, make_offline
from llmrl_jax.rl.offline_data import ActionKind, actions_of, moments, prepared
from llmrl_jax.rl.seeds import select_run, vmap_learners
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train


WIDE = ActionKind.box([-2.0, 0.0], [2.0, 1.0], 2)


def steps(n=6, seed=0, **changes):
    """Steps of a made-up world with two continuous actions in the bounds of `WIDE`."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    action = jnp.asarray(rng.uniform([-2, 0], [2, 1], (n, 2)), jnp.float32)
    flags = jnp.asarray(rng.random(n) < 0.3)
    made = Transitions(draw(n, 3), action, draw(n), draw(n, 3), flags, ~flags)
    return made.replace(**changes)


@dataclass(frozen=True)
class SeenConfig(OfflineConfig):
    NAME: ClassVar[str] = "seen"
    gain: float = 2.0


class Seen:
    """A method that reports its batches."""

    def init(self, key, batch, hparams):
        return TrainState.create({"actor": jnp.zeros(())})

    def step(self, trained, batch, context):
        half = batch.reward.shape[0] // 2
        return trained, {
            "first": jnp.mean(batch.reward[:half]),
            "second": jnp.mean(batch.reward[half:]),
            "sum": context.hparams["gain"] * jnp.sum(batch.obs),
            "count": context.count,
        }

    def act(self, params, x):
        return Fixed(x[:, :2])


SEEN = SeenConfig(batch_size=8, gradient_steps=3)


def test_an_action_with_equal_bounds_is_finite():
    actions = ActionKind.box([-2.0, 0.5], [2.0, 0.5], 2)
    inward = actions.inward(jnp.array([[1.0, 0.5]]))
    np.testing.assert_array_equal(inward, [[0.5, 0.0]])
    np.testing.assert_array_equal(actions.outward(inward), [[1.0, 0.5]])


def test_half_of_every_batch_is_imagined():
    """However different the sizes of the sets are."""
    real = steps(5, reward=jnp.ones(5))
    imagined = steps(97, reward=jnp.full(97, -1.0))
    learner = make_offline(Seen(), SEEN, real, WIDE, imagined=imagined)
    _, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    assert (float(metrics["first"]), float(metrics["second"])) == (1.0, -1.0)
    offline, state = Offline(Seen(), SEEN), learner.init(jax.random.key(0))
    batches = jax.jit(jax.vmap(lambda key: offline.batch(state.frozen, key)))(jax.random.split(jax.random.key(1), 20))
    np.testing.assert_array_equal((batches.reward > 0).sum(axis=1), 4)
    assert len(np.unique(np.asarray(batches.obs[:, 4:]).round(5))) > 97  # not always the same imagined ones


def test_sets_of_imagined_steps_have_equal_parts_of_half_a_batch():
    """However different their sizes are: 4, 2 and 2 of 8."""
    real, *others = (steps(size, reward=jnp.full(size, float(size))) for size in (5, 97, 3))
    learner = make_offline(Seen(), SEEN, real, WIDE, imagined=others)
    offline, state = Offline(Seen(), SEEN), learner.init(jax.random.key(0))
    batches = jax.jit(jax.vmap(lambda key: offline.batch(state.frozen, key)))(jax.random.split(jax.random.key(1), 20))
    np.testing.assert_array_equal(batches.reward, np.tile([5, 5, 5, 5, 97, 97, 3, 3], (20, 1)))
    assert len(np.unique(np.asarray(batches.obs[:, 4:6]).round(5))) > 97
    with pytest.raises(ValueError, match="6.*2:1:1.*4"):
        make_offline(Seen(), replace(SEEN, batch_size=6), real, WIDE, imagined=others)


def test_what_is_learned_does_not_depend_on_how_steps_are_grouped():
    """Two updates of three gradient steps, and six updates of one, draw the same batches."""
    totals = []
    for size in (3, 1):
        learner = make_offline(Seen(), replace(SEEN, gradient_steps=size), steps(), WIDE)
        state, update = learner.init(jax.random.key(3)), jax.jit(learner.update)
        found = []
        for _ in range(6 // size):
            state, metrics = update(state)
            found.append(float(metrics["sum"]) * size)
        totals.append(np.sum(found))
        assert int(state.update) == 6 // size and learner.steps_per_update == size
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-5)


def test_data_are_prepared_once():
    """Features are normalised by the real data, actions scaled to [-1, 1]; the policy does the same and back."""
    data, other = steps(), steps(9, seed=1)
    config = replace(SEEN, normalize=True)
    learner = make_offline(Seen(), config, data, WIDE, imagined=other)
    real, imagined = learner.frozen.given
    x = np.asarray(data.obs)
    np.testing.assert_allclose(real.obs["vector"], (x - x.mean(0)) / (x.std(0) + 1e-3), atol=1e-5)
    np.testing.assert_allclose(imagined.next_obs["vector"], (other.next_obs - x.mean(0)) / (x.std(0) + 1e-3), atol=1e-5)
    np.testing.assert_allclose(real.action, (data.action - np.array([0, 0.5])) / np.array([2, 0.5]), atol=1e-6)
    assert real.text == () and real.goal == ()
    acted, value, _ = learner.policy.step({}, learner.frozen.replace(given=()), data.obs, (), jnp.zeros(6, bool))
    wanted = np.clip(real.obs["vector"][:, :2], -1, 1) * np.array([2, 0.5]) + np.array([0, 0.5])
    np.testing.assert_allclose(acted.mode(), wanted, atol=1e-5)
    np.testing.assert_allclose(acted.sample(jax.random.key(0)), wanted, atol=1e-5)


def test_instructions_index_a_table_that_is_held_once():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    number = jnp.array([0, 2, 1, 1, 0, 2])
    obs = {"state": steps().obs, "instruction": number}
    data = steps(obs=obs, next_obs={**obs, "instruction": number[::-1]})
    learner = make_offline(Seen(), SEEN, data, WIDE, table=table)
    real = learner.frozen.given[0]
    assert set(real.obs) == {"vector", "instruction"} and real.obs["vector"].shape == (6, 3)
    x = learner.policy.inputs(learner.frozen, obs)
    np.testing.assert_array_equal(x, np.concatenate([obs["state"], table[number]], axis=1))
    batch = Offline(Seen(), SEEN).batch(learner.frozen, jax.random.key(0))
    assert batch.obs.shape == (8, 7)
    rows = {tuple(row) for row in np.asarray(x)}
    assert all(tuple(row) in rows for row in np.asarray(batch.obs))
    double = lambda obs, axes: 2 * obs["state"]  # noqa: E731
    learner = make_offline(Seen(), SEEN, data, WIDE, table=table, features=double)
    np.testing.assert_array_equal(learner.policy.inputs(learner.frozen, obs)[:, :3], 2 * obs["state"])
    with pytest.raises(DataError, match="obs.instruction.*0.*2.*2"):
        make_offline(Seen(), SEEN, data, WIDE, table=table[:2])
    with pytest.raises(DataError, match="table.*'instruction'"):
        make_offline(Seen(), SEEN, steps(), WIDE, table=table)


# --- values -----------------------------------------------------------------------------------------------------------


def chain(*, timeout):
    """Two states, one action that pays 1: the first leads to the second, the second to itself (or is the end)."""
    obs = jnp.eye(2)[jnp.array([0, 1])]
    next_obs = jnp.eye(2)[jnp.array([1, 1])]
    ends = jnp.array([False, True])
    no = jnp.zeros(2, bool)
    flags = (no, ends) if timeout else (ends, no)
    return Transitions(obs, jnp.zeros(2, jnp.int32), jnp.ones(2), next_obs, *flags)


@pytest.mark.parametrize("timeout", [True, False])
def test_the_discount_is_gamma_and_a_time_out_bootstraps(timeout):
    """KALM's code had an effective discount of 1, and made a time-out the end. With gamma 0.5 the values are 2 and 2 if
    the second state goes on, and 1.5 and 1 if it is the end."""
    config = IQLConfig(
        batch_size=16, gradient_steps=400, gamma=0.5, tau=0.05, expectile=0.5, learning_rate=0.01, hidden=(16,),
        activation="tanh", normalize=False,
    )  # fmt: skip
    method = IQL(config, ActionKind(1))
    learner = make_offline(method, config, chain(timeout=timeout), ActionKind(1))
    state, update = learner.init(jax.random.key(0)), run_of(learner)
    for _ in range(3):
        state, metrics = update(state)
    value = method.value(state.params["value"], jnp.eye(2))
    np.testing.assert_allclose(value, [2.0, 2.0] if timeout else [1.5, 1.0], atol=0.05)


UPDATE = {}


def run_of(learner):
    """The compiled update; both cases of the chain share it."""
    if "update" not in UPDATE:
        UPDATE["update"] = jax.jit(learner.update)
    return UPDATE["update"]


# --- runs -------------------------------------------------------------------------------------------------------------


CLONE = BCConfig(batch_size=4, gradient_steps=2, hidden=(4,))


@pytest.mark.slow
def test_seeds_share_their_data():
    learner = make_offline(BC(CLONE, WIDE), CLONE, steps(6), WIDE)
    both = vmap_learners(learner, 2, jax.random.split)
    key = jax.random.key(7)
    state, metrics = jax.jit(both.update)(both.init(key))
    assert sorted(metrics) == [f"{i}/actor_loss" for i in range(2)] and int(state.update) == 1
    assert state.frozen.given[0].reward.shape == (6,), "held once"
    for run in range(2):
        after, found = jax.jit(learner.update)(learner.init(jax.random.split(key, 2)[run]))
        np.testing.assert_allclose(metrics[f"{run}/actor_loss"], found["actor_loss"], rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            select_run(state, run).params, after.params,
        )  # fmt: skip


def test_a_run_continues_with_the_same_data_only_and_does_not_copy_them(tmp_path):
    learner = make_offline(BC(CLONE, WIDE), CLONE, steps(), WIDE)

    def run(learner, updates, **options):
        config = RunConfig(name="run", out=str(tmp_path), progress="off", log_every=1, checkpoint_every=2, **options)
        return train(learner, config, num_updates=updates).state

    whole = run(learner, 4)
    again = run(learner, 4, resume=True, resume_from=2)
    jax.tree.map(np.testing.assert_array_equal, whole.params, again.params)
    np.testing.assert_array_equal(again.frozen.given[0].obs["vector"], steps().obs)
    saved = {path.name for path in (tmp_path / "run" / "frozen").iterdir()}
    assert not any(name.startswith("given") for name in saved), saved
    changed = make_offline(BC(CLONE, WIDE), CLONE, steps(reward=steps().reward + 1), WIDE)
    with pytest.raises(ValueError, match=r"given\.0\.reward"):
        run(changed, 6, resume=True)


# --- bad data ---------------------------------------------------------------------------------------------------------


def nan_in(x):
    return x.at[4].set(jnp.nan)


BAD = [
    ({"reward": nan_in(steps().reward)}, "reward.*step 4"),
    ({"obs": nan_in(steps().obs)}, "obs.*step 4"),
    ({"action": steps().action.at[2, 1].set(1.5)}, "1.*2.*data.*1.5.*0.*1"),
    ({"action": steps().action[:, :1]}, r"\[1\].*\[2\]"),
    ({"action": jnp.zeros(6, jnp.int32)}, "int32"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_data_are_named(change, message):
    with pytest.raises(DataError, match=message):
        make_offline(Seen(), SEEN, steps(**change), WIDE)


def test_actions_that_are_not_offered():
    """A policy never plays them, and data that have them are refused."""
    mask = jnp.array([[True, False, True, True]] * 6)
    obs = {"state": steps().obs, "action_mask": mask}
    data = steps(obs=obs, next_obs=obs, action=jnp.array([0, 2, 0, 2, 2, 0]))
    config = BCConfig(batch_size=4, gradient_steps=1, hidden=(4,))
    learner = make_offline(BC(config, ActionKind(4)), config, data, ActionKind(4))
    state, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    assert np.isfinite(float(metrics["actor_loss"]))
    acted, *_ = learner.policy.step(state.params, state.frozen, obs, (), jnp.zeros(6, bool))
    assert float(acted.probs[:, 1].max()) == 0 and float(acted.probs[:, 3].min()) > 0
    with pytest.raises(DataError, match="action 1 of step 4.*action_mask"):
        make_offline(BC(config, ActionKind(4)), config, data.replace(action=data.action.at[4].set(1)), ActionKind(4))
    with pytest.raises(DataError, match=r"action_mask.*\[4\].*5"):
        make_offline(BC(config, ActionKind(5)), config, data, ActionKind(5))


def test_imagined_data_must_have_the_form_of_the_real():
    wide = steps(obs=jnp.zeros((6, 5)), next_obs=jnp.zeros((6, 5)))
    with pytest.raises(DataError, match=r"imagined.*float32\[5\].*float32\[3\]"):
        make_offline(Seen(), SEEN, steps(), WIDE, imagined=wide)
    with pytest.raises(DataError, match="action 0.*step 0.*imagined.*9"):
        make_offline(Seen(), SEEN, steps(), WIDE, imagined=steps(action=steps().action + 9))
    with pytest.raises(ValueError, match="7.*1:1"):
        make_offline(Seen(), replace(SEEN, batch_size=7), steps(), WIDE, imagined=steps())


def test_the_kind_of_actions():
    integers = steps(action=jnp.array([0, 3, 1, 2, 0, 0]))
    assert actions_of(integers, None) == ActionKind(4) and ActionKind(4).discrete
    assert actions_of(integers, spaces.Discrete(9)) == ActionKind(9)
    with pytest.raises(DataError, match="action 3.*step 1.*3.*Taxi"):
        actions_of(integers, spaces.Discrete(3), "Taxi")
    assert actions_of(steps(), spaces.Box(np.float32([-2, 0]), np.float32([2, 1]), (2,))) == WIDE
    with pytest.raises(DataError, match="-1.*1.*--env"):
        actions_of(steps(), None)
    with pytest.raises(DataError, match="Free.*bounds"):
        actions_of(steps(), spaces.Box(-np.inf, np.inf, (2,)), "Free")
    with pytest.raises(DataError, match=r"float32\[2\].*--env"):
        actions_of(steps(), spaces.Discrete(3))


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="iql.expectile.*1.5.*0.*1"):
        IQLConfig(expectile=1.5)
    with pytest.raises(ValueError, match="bc.hidden.*empty"):
        BCConfig(hidden=())
    with pytest.raises(ValueError, match=r"--bc\.beta.*0\.1.*continuous"):
        BC(BCConfig(beta=0.1), WIDE)


def test_moments_ignore_instructions():
    obs = {"state": steps().obs, "instruction": jnp.zeros(6, jnp.int32)}
    mean, std = moments(steps(obs=obs), None)
    np.testing.assert_allclose(mean, np.asarray(steps().obs).mean(0), atol=1e-6)
    data = prepared(steps(obs=obs, next_obs=obs), WIDE, None, mean, std)
    np.testing.assert_allclose(np.asarray(data.obs["vector"]).mean(0), 0, atol=1e-5)


def test_a_feature_that_never_moves_in_the_data_keeps_its_size():
    still = steps(50)
    still = still.replace(obs=still.obs.at[:, 1].set(0.3), next_obs=still.next_obs.at[:, 1].set(0.3))
    mean, std = moments(still, None)
    assert std[1] == 1 and mean[1] == pytest.approx(0.3)
    np.testing.assert_allclose(std[::2], np.std(np.asarray(still.obs), axis=0)[::2] + 1e-3, rtol=1e-5)
