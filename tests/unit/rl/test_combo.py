"""COMBO: its model's loss against NumPy, what the model learns, and how recorded and imagined steps mix."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.actors import mlp
from llmrl_jax.rl.combo import COMBO, HIGH, LOW, COMBOConfig, Dynamics, held_out, learned
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import Context, make_offline
from llmrl_jax.rl.offline_data import ActionKind, Batch, batch_of


LINE = ActionKind.box(-1.0, 1.0, 1)


def record(count=400):
    """A point on a line, `x' = x + a / 2`, reward `-x`; beyond 1 the episode ends. Two sentences that mean nothing."""
    rng = np.random.default_rng(0)
    x, a = rng.uniform(-1, 1, (count, 1)), rng.uniform(-1, 1, (count, 1))
    y = x + a / 2
    x, a, y = (jnp.asarray(v, jnp.float32) for v in (x, a, y))
    end, number = y[:, 0] > 1, jnp.arange(count) % 2
    obs, next_obs = {"state": x, "instruction": number}, {"state": y, "instruction": number}
    return Transitions(obs, a, -x[:, 0], next_obs, end, ~end)


TABLE = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32)
SMALL = COMBOConfig(
    hidden=(8,), batch_size=16, gradient_steps=300, normalize=False, members=3, elites=2, model_hidden=(16,),
    model_steps=300, model_learning_rate=1e-2, rollouts=20, horizon=3, kept=2, rollout_every=100, action_samples=2,
)  # fmt: skip


def test_the_loss_of_the_model_by_hand():
    rng = np.random.default_rng(1)
    model = Dynamics(1, (4,), 1)
    params = model.init(jax.random.key(0), 3, 2)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    rows = Batch(draw(5, 3), draw(5, 1), draw(5), draw(5, 3), jnp.array([True, False, False, True, False]), 2)
    found = jax.jit(model.loss)(params, jax.tree.map(lambda x: x[None], rows))
    net = jax.tree.map(lambda x: x[0], params["nets"])
    out = np.asarray(mlp(net, jnp.concatenate([rows.obs, rows.action], 1), "silu"))
    mean, raw, logit = out[:, :3], out[:, 3:6], out[:, 6]
    soft = lambda z: np.log1p(np.exp(z))  # noqa: E731
    log_variance = HIGH - soft(HIGH - raw)
    log_variance = LOW + soft(log_variance - LOW)
    wanted = np.concatenate([np.asarray(rows.next_obs - rows.obs)[:, :2], np.asarray(rows.reward)[:, None]], 1)
    gaussian = np.mean((mean - wanted) ** 2 / np.exp(log_variance) + log_variance)
    probability = 1 / (1 + np.exp(-logit))
    end = -np.mean(np.where(rows.terminated, np.log(probability), np.log(1 - probability)))
    np.testing.assert_allclose(found, gaussian + end + 0.01 * 3 * (HIGH - LOW), rtol=1e-4)
    for counts in ([True] * 5, [True, True, False, True, False]):
        error = model.errors(params, rows, jnp.array(counts))
        np.testing.assert_allclose(error, [np.mean((mean - wanted)[counts] ** 2)], rtol=1e-4)


@pytest.mark.slow
def test_the_model_comes_first_and_then_half_of_every_batch_is_its_own():
    method = COMBO(SMALL, LINE)
    learner = make_offline(method, SMALL, record(), LINE, table=TABLE)
    begun = learner.init(jax.random.key(0))
    update = jax.jit(learner.update)
    state, metrics = update(begun)  # the model alone
    jax.tree.map(np.testing.assert_array_equal, begun.params["actor"], state.params["actor"])
    jax.tree.map(np.testing.assert_array_equal, begun.params["critic"], state.params["critic"])
    assert float(metrics["imagined"]) == 0 and float(metrics["critic_loss"]) == 0
    first = float(metrics["model_loss"])
    state, metrics = update(state)  # the policy alone: rounds after 0, 100 and 200 steps, of which two are kept
    buffer = state.extra["ring"]
    assert int(buffer.size) == 2 * 20 * 3 and float(metrics["critic_loss"]) > 0
    assert float(metrics["imagined"]) == pytest.approx((60 + 120 + 120) / 3)
    assert float(metrics["model_loss"]) < first, "the last loss of the model, and its mean while it learned"
    items = buffer.items
    x, y, a = (np.asarray(v) for v in (items.obs, items.next_obs, items.action))
    np.testing.assert_array_equal(x[:, 1:], y[:, 1:])  # the sentence stays
    assert {tuple(row) for row in x[:, 1:]} == {tuple(row) for row in TABLE}
    near = np.abs(x[:, 0]) < 1
    assert np.abs(y - x)[near, 0].std() > 0.05
    np.testing.assert_allclose((y - x)[near, 0], a[near, 0] / 2, atol=0.25)
    np.testing.assert_allclose(np.asarray(items.reward)[near], -x[near, 0], atol=0.35)
    asked = jnp.array([[0.9, 1.0, 0.0, 0.0], [-0.5, 1.0, 0.0, 0.0]]), jnp.array([[1.0], [0.0]])  # beyond 1, and not
    end = jax.vmap(lambda one: method.model.member(one, *asked).logit)(state.params["model"])
    assert (end[:, 0] > end[:, 1] + 2).all() and (end[:, 1] < -2).all()
    rows = batch_of(learner.frozen.given[0].take(jnp.arange(40) * 10), learner.frozen.table)
    errors = method.model.errors(state.params["model"], rows, jnp.ones(40, bool))  # which the model does not learn from
    assert set(np.asarray(state.extra["elite"])) == set(np.argsort(errors)[:2])


@pytest.mark.slow
def test_rollouts_are_not_computed_in_every_step():
    """XLA moves out of a loop what does not depend on its turn: the step's own computation would then have them."""
    config = dataclasses.replace(SMALL, rollouts=37)  # a size of nothing else
    learner = make_offline(COMBO(config, LINE), config, record(), LINE, table=TABLE)
    text = jax.jit(learner.update).lower(learner.init(jax.random.key(0))).compile().as_text()
    made = re.compile(r"= f32\[37[\],]")
    parts = [part for part in text.split("\n\n") if made.search(part)]
    assert parts, "they are somewhere"
    assert not any(" conditional(" in part for part in parts), "the part with the choice of model or policy is the step"


@pytest.mark.parametrize("count", [2, 7, 19, 400, 409, 10_000, 12_345])
def test_held_out_steps_are_spread_and_not_learned_from(count):
    some, gap = (int(x) for x in held_out(count))
    apart = np.arange(some) * gap
    assert some == max(1, min(count // 10, 1000)) and apart[-1] < count
    seen = np.asarray(learned(jnp.arange(count - some), count))
    assert sorted([*seen, *apart]) == list(range(count))


def test_every_held_out_step_counts_once_for_the_best_members(monkeypatch):
    config = dataclasses.replace(SMALL, gradient_steps=1)
    combo, data = COMBO(config, LINE), record(155)
    learner = make_offline(combo, config, data, LINE, table=TABLE)
    state, chosen = learner.init(jax.random.key(0)), []

    def errors(self, params, rows, counts):
        chosen.append(np.asarray(rows.obs[:, 0])[np.asarray(counts)])
        return jnp.zeros(config.members)

    monkeypatch.setattr(Dynamics, "errors", errors)
    context = Context(state.key, state.hparams, state.update, state.frozen)
    combo.best(TrainState(state.params, state.target, state.opt_state, state.extra), context)
    some, gap = (int(x) for x in held_out(155))
    np.testing.assert_allclose(chosen[0], np.asarray(data.obs["state"])[np.arange(some) * gap, 0], rtol=1e-6)


def test_the_loss_of_the_critics_by_hand():
    """The gap is between all states and the recorded half."""
    method = COMBO(SMALL, LINE)
    critic = method.critics.init(jax.random.key(0), 2)
    rng = np.random.default_rng(2)
    draw = lambda *shape: jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)  # noqa: E731
    rows, wanted = Batch(draw(4, 2), draw(4, 1), draw(4), draw(4, 2), jnp.zeros(4, bool)), draw(4)
    actions, log_density = draw(4, 6, 1), draw(4, 6)
    loss, gap = jax.jit(method.loss)(critic, wanted, (actions, log_density), rows, 3.0)
    data = np.asarray(method.critics(critic, rows.obs, rows.action))
    values = np.asarray(method.critics(critic, rows.obs, actions))
    gaps = np.log(np.exp(values - log_density).sum(-1)).mean(1) - data[:, :2].mean(1)
    np.testing.assert_allclose(gap, gaps.mean(), rtol=1e-4)
    np.testing.assert_allclose(loss, ((data - wanted) ** 2).mean(1).sum() + 3 * gaps.sum(), rtol=1e-4)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="combo.elites.*8.*1.*7"):
        COMBOConfig(elites=8)
    with pytest.raises(ValueError, match="combo.batch_size.*7.*2"):
        COMBOConfig(batch_size=7)
    with pytest.raises(ValueError, match="combo.*3.*iql"):
        COMBO(COMBOConfig(), ActionKind(3))
