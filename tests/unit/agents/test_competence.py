"""The head that predicts success: its targets, its loss, what it leaves alone, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.agents.competence import Competence, Outcome, calibration, outcomes
from llmrl_jax.agents.evaluate import Episodes, make_evaluator
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.eval import success_table, summarise
from tests.glam import TINY, observations, program, weights


CONFIG = replace(
    TINY,
    value_width=16,
    value_activation="tanh",
    competence_coef=0.5,
    ppo=replace(TINY.ppo, num_envs=8, num_steps=16, learning_rate=1e-2),
)


@pytest.fixture(scope="module")
def glam():
    return program(CONFIG)


@pytest.fixture(scope="module")
def seen():
    """Parameters, and observations of six worlds."""
    params, frozen = weights(CONFIG)
    return {**params, "lora": jax.tree.map(lambda x: x + 0.02, params["lora"])}, frozen, observations(CONFIG)


@pytest.fixture(scope="module")
def updates(glam):
    """The state and the metrics of 25 updates."""
    learner = glam.learner()
    update, state, rows = jax.jit(learner.update), learner.init(jax.random.key(0)), []
    for _ in range(25):
        state, metrics = update(state)
        rows.append(jax.device_get(metrics))
    return state, rows


def test_an_outcome_reaches_back_to_the_episodes_first_step():
    """Three rows of four steps: one success then a new episode, one failure at the end, one that goes on."""
    ended = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], bool).T
    success = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], bool).T
    found = outcomes(jnp.asarray(success), jnp.asarray(ended), jnp.array([0.25, 0.5, 0.75]))
    np.testing.assert_array_equal(found.success, np.array([[1, 1, 0.25, 0.25], [0, 0, 0, 0], [0.75] * 4]).T)
    np.testing.assert_array_equal(found.ended, np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool).T)


def test_the_loss_is_the_cross_entropy_and_the_report_the_known_error(glam):
    """Two steps of two rows, by hand; the second row's episode has not ended."""
    head = Competence(policy=glam.policy, coef=0.5)
    odds = jnp.array([[0.0, 1.0], [-2.0, 3.0]])
    target = Outcome(jnp.array([[1.0, 0.5], [0.0, 0.5]]), jnp.array([[True, False], [True, False]]))
    p = 1 / (1 + np.exp(-np.asarray(odds)))
    y = np.asarray(target.success)
    np.testing.assert_allclose(head.loss(odds, target), -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)), atol=1e-6)
    rollout = SimpleNamespace(prediction=odds, info={"task": jnp.array([[0, 0], [1, 0]])})
    found = head.report(rollout, target, ("go_to", "open", "pick_up"))
    assert found["competence"] == pytest.approx(p.mean(), abs=1e-6)
    assert found["competence_brier"] == pytest.approx(((0.5 - 1) ** 2 + p[1, 0] ** 2) / 2, abs=1e-6)
    assert found["competence_bias"] == pytest.approx((-0.5 + p[1, 0]) / 2, abs=1e-6)
    assert found["competence_bias/go_to"] == pytest.approx(-0.5) and jnp.isnan(found["competence_bias/pick_up"])
    assert found["competence_bias/open"] == pytest.approx(p[1, 0], abs=1e-6)
    assert set(head.report(rollout, target, ("go_to",))) == {"competence", "competence_brier", "competence_bias"}


@pytest.mark.slow
def test_the_estimate_is_learnt_on_the_side(updates):
    state, rows = updates
    assert "competence" in state.params and max(row["first_ratio_error"] for row in rows) <= 1e-5
    assert not any(row["nonfinite"] for row in rows)
    early, late = (np.nanmean([row["competence_brier"] for row in part]) for part in (rows[:5], rows[-5:]))
    assert late < 0.8 * early
    assert abs(np.nanmean([row["competence_bias"] for row in rows[-5:]])) < 0.15


@pytest.mark.slow
def test_a_head_kept_apart_changes_nothing_else():
    """With its gradient kept out, and no common clipping, everything else learns as without it."""
    config = replace(CONFIG, ppo=replace(CONFIG.ppo, max_grad_norm=float("inf")))
    states = {}
    for coef in (0.0, 0.5):
        learner = build(replace(config, competence_coef=coef, stop_competence_gradient=coef > 0)).learner()
        states[coef], metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
        assert (coef > 0) == ("competence_loss" in metrics) == ("competence" in states[coef].params)
    without, beside = (dict(states[coef].params) for coef in (0.0, 0.5))
    beside.pop("competence")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), without, beside)


@pytest.mark.slow
def test_the_estimate_comes_from_the_policys_own_pass(glam, seen):
    """Acting and learning say the same; the distribution and the value are the policy's."""
    params, frozen, obs = seen
    head, first = Competence(glam.policy, 0.5), jnp.zeros(6, bool)
    acting = jax.jit(lambda *w: (*head.step(*w, obs, (), first), *glam.policy.act(*w, obs)))
    distribution, value, carry, odds, own, own_value = acting(params, frozen)
    np.testing.assert_array_equal(distribution.logits, own.logits)
    np.testing.assert_array_equal(value, own_value)
    two = jax.tree.map(lambda x: jnp.stack([x, x]), obs)
    learnt = jax.jit(head.unroll)(params, frozen, two, (), jnp.stack([first, first]))[2]
    assert carry == () and learnt.shape == (2, 6) and len(set(np.asarray(odds).tolist())) > 1
    np.testing.assert_allclose(learnt, jnp.stack([odds, odds]), atol=1e-6)


def test_its_gradient_reaches_the_model_unless_it_is_kept_out(glam, seen):
    params, frozen, obs = seen

    def odds(lora, policy):
        ours = {**params, "lora": lora}
        return jnp.sum(policy.competence(ours, policy.distribution_and_hidden(ours, frozen, obs)[1]))

    def reach(policy):
        grads = jax.jit(jax.grad(lambda lora: odds(lora, policy)))(params["lora"])
        return max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads))

    assert reach(glam.policy) > 0
    assert reach(replace(glam.policy, stop_competence_gradient=True)) == 0


@pytest.mark.slow
def test_evaluation_sets_the_first_estimate_beside_the_outcome(glam, updates):
    state, _ = updates
    run = make_evaluator(glam.env, glam.env_params, glam.policy, episodes=40, lanes=16)
    found = run(state.params, state.frozen, jax.random.key(4), greedy=False)
    assert found.estimate.shape == (40,) and np.all((found.estimate > 0) & (found.estimate < 1))
    assert abs(found.estimate.mean() - found.success.mean()) < 0.3
    told = summarise(found, ("go_to",))
    assert told["brier"] == pytest.approx(np.mean((found.estimate - found.success) ** 2), abs=1e-6)


def test_calibration_by_hand():
    """Two bins: 0.8 and 0.9 apart from 0.1; each weighted by its episodes."""
    found = calibration(np.array([0.82, 0.88, 0.1, 1.0], np.float32), np.array([True, False, False, True]))
    assert found["estimate"] == pytest.approx(0.7)
    assert found["brier"] == pytest.approx((0.18**2 + 0.88**2 + 0.1**2) / 4, abs=1e-6)
    assert found["calibration_error"] == pytest.approx((abs(0.82 - 1 + 0.88) + 0.1 + 0) / 4, abs=1e-6)
    assert all(np.isnan(x) for x in calibration(np.zeros(0), np.zeros(0, bool)).values())


def test_the_table_tells_estimates_by_task():
    success, task = np.array([True, True, False, True]), np.array([0, 0, 1, 1], np.int32)
    length = np.full(4, 3, np.int32)
    plain = Episodes(success, success.astype(np.float32), length, task)
    estimate = np.array([0.9, 0.7, 0.2, 0.6], np.float32)
    found = {"sampled": summarise(plain.replace(estimate=estimate), ("go_to", "open")), "greedy": {}}
    found["greedy"] = summarise(plain, ("go_to", "open"))
    lines = success_table(found, ("go_to", "open")).splitlines()
    assert [line.split("  ")[0] or line.split()[0] for line in lines][:2] == ["success", "sampled"]
    assert lines[2].split() == ["estimated", "before", "0.600", "0.800", "0.400"]
    assert lines[3].split() == ["Brier", "score", "0.075", "0.050", "0.100"]
    assert lines[4].startswith("  calibration error") and lines[5].startswith("greedy") and len(lines) == 6


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="competence_coef.*-1"):
        build(replace(CONFIG, competence_coef=-1.0))
    with pytest.raises(ValueError, match="stop_competence_gradient.*True.*competence_coef"):
        build(replace(CONFIG, competence_coef=0.0, stop_competence_gradient=True))
    blind = build(replace(CONFIG, competence_coef=0.0)).policy
    with pytest.raises(ValueError, match="competence_head"):
        blind.competence({}, jnp.zeros((1, 16)))
