"""PPO: its loss by hand, each hyper-parameter by its effect, its errors by what they say."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.control.debug import DebugParams, Match
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl import gradient, rollout
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import Batch, make_ppo, ppo_loss
from llmrl_jax.rl.ppo_config import GLAM, PPOConfig


ENV = EpisodeStatistics(Match(3))
PARAMS = DebugParams(length=3)
POLICY = NetworkPolicy(ENV.action_space(PARAMS), hidden=(8,))
TINY = PPOConfig(num_envs=4, num_steps=8, epochs=2, minibatches=2, pool_size=8, learning_rate=0.03)


def learner_of(config, policy=POLICY):
    return make_ppo(config, ENV, PARAMS, policy)


@pytest.fixture(scope="module")
def tiny():
    """The learner's first state and its compiled update."""
    learner = learner_of(TINY)
    return learner.init(jax.random.key(0)), jax.jit(learner.update)


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


# --- the loss ---------------------------------------------------------------------------------------------------------


class Table:
    """A policy whose outputs are its parameters."""

    recurrent = False

    def unroll(self, params, frozen, obs, carry, first):
        return Categorical(params["logits"]), params["value"]


HPARAMS = {"clip_eps": 0.2, "value_clip": 0.2, "value_loss_coef": 0.5, "entropy_coef": 0.1}


def hand_batch():
    """Two steps: probabilities now (0.75, 0.25) of the actions taken, ratios 1.5 and 0.5, values 0 and 2."""
    params = {"logits": jnp.log(jnp.array([[[0.75, 0.25], [0.75, 0.25]]])), "value": jnp.array([[0.0, 2.0]])}
    batch = Batch(
        obs=jnp.zeros((1, 2)),
        action=jnp.array([[0, 1]]),
        log_prob=jnp.log(jnp.array([[0.5, 0.5]])),
        value=jnp.array([[0.5, 2.0]]),
        advantage=jnp.array([[1.0, -1.0]]),
        returns=jnp.array([[0.0, 3.0]]),
        first=jnp.zeros((1, 2), bool),
        carry=(),
    )
    return params, batch


def test_loss_by_hand():
    params, batch = hand_batch()
    loss, metrics = ppo_loss(params, (), batch, Table(), HPARAMS)
    # policy: min(1.5, 1.2) = 1.2 and min(-0.5, -0.8) = -0.8.  value: max(0, 0.3^2) and max(1, 1)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    expected = {
        "policy_loss": -0.2,
        "value_loss": 0.545,
        "entropy": entropy,
        "approx_kl": ((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2,
        "clip_fraction": 1.0,
        "ratio_error": 0.5,
        "loss": -0.2 + 0.5 * 0.545 - 0.1 * entropy,
    }
    assert set(metrics) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)


def test_clipped_steps_push_the_policy_no_further():
    params, batch = hand_batch()
    free = HPARAMS | {"entropy_coef": 0.0, "value_loss_coef": 0.0}
    grads = jax.grad(lambda p: ppo_loss(p, (), batch, Table(), free)[0])(params)
    np.testing.assert_array_equal(grads["logits"], 0.0)
    wide = jax.grad(lambda p: ppo_loss(p, (), batch, Table(), free | {"clip_eps": 0.6})[0])(params)
    assert np.all(np.asarray(wide["logits"]) != 0)


def test_glams_broadcast_compares_every_value_with_every_return():
    params, batch = hand_batch()
    loss = ppo_loss(params, (), batch, Table(), HPARAMS, "glam")[1]["value_loss"]
    # rows V = 0, 2; columns (old, R) = (0.5, 0), (2, 3): max(0, .3^2), max(9, 1.2^2), max(4, .7^2), max(1, 1)
    np.testing.assert_allclose(loss, (0.09 + 9 + 4 + 1) / 4, rtol=1e-5)


# --- the update -------------------------------------------------------------------------------------------------------


def test_first_ratio_is_one_and_metrics_are_complete(tiny):
    state, update = tiny
    after, metrics = update(state)
    assert float(metrics["first_ratio_error"]) <= 1e-5
    assert float(metrics["gradient_steps"]) == 4 and int(after.update) == 1
    assert float(metrics["episodes"]) == 8 and float(metrics["episode_length"]) == 3
    assert float(metrics["nonfinite"]) == 0
    assert all(x.dtype == jnp.float32 and x.shape == () for x in metrics.values())
    bounds = learner_of(TINY).bounds
    assert bounds == {"first_ratio_error": 1e-5, "nonfinite": 0.0} and set(bounds) <= set(metrics)


FLOATS = {
    "gamma": 0.5,
    "gae_lambda": 0.1,
    "learning_rate": 0.01,
    "clip_eps": 0.01,
    "value_clip": 0.001,
    "value_loss_coef": 2.0,
    "entropy_coef": 0.3,
    "max_grad_norm": 0.01,
    "adam_b1": 0.5,
    "adam_b2": 0.5,
    "adam_eps": 0.1,
    "target_kl": 0.0,
}


def test_every_float_is_tried():
    assert set(FLOATS) == {f.name for f in dataclasses.fields(PPOConfig) if f.type == "float"}


@pytest.mark.parametrize("name", FLOATS)
def test_float_hyper_parameter_changes_the_result(tiny, name):
    state, update = tiny
    base, _ = update(state)
    other, _ = update(state.replace(hparams=state.hparams | {name: jnp.float32(FLOATS[name])}))
    assert np.abs(flat(base.params) - flat(other.params)).max() > 1e-6


def test_the_update_is_traced_once(tiny):
    state, _ = tiny
    learner, traces = learner_of(TINY), []
    update = jax.jit(lambda state: (traces.append(1), learner.update(state))[1])
    for _ in range(3):
        state, _ = update(state)
    update(state.replace(hparams=state.hparams | {"gamma": jnp.float32(0.5)}))
    assert len(traces) == 1


STATIC = {
    "num_envs": {"num_envs": 8},
    "num_steps": {"num_steps": 16},
    "epochs": {"epochs": 1},
    "minibatches": {"minibatches": 4},
    "schedule": {"schedule": "linear", "schedule_updates": 2},
    "normalize_advantages": {"normalize_advantages": False},
    "reset": {"reset": "always", "pool_size": 256},
    "pool_size": {"pool_size": 2},
    "reset_ratio": {"reset": "optimistic", "reset_ratio": 4, "pool_size": 256},
    "bootstrap_truncation": {"bootstrap_truncation": False},
    "value_broadcast": {"value_broadcast": "glam"},
}


def test_every_option_is_tried():
    tried = {*STATIC, *FLOATS, "microbatches", "schedule_updates", "unroll"}  # the last three have tests of their own
    assert tried == {f.name for f in dataclasses.fields(PPOConfig)}


@pytest.mark.parametrize("name", STATIC)
def test_static_hyper_parameter_changes_the_result(tiny, name):
    state, update = tiny
    config = replace(TINY, **STATIC[name])
    learner = learner_of(config)
    other = jax.jit(learner.update)
    base, changed = update(state)[0], other(learner.init(jax.random.key(0)))[0]
    if name == "schedule":  # the first update has the full rate, but for the rounding of another program
        np.testing.assert_allclose(flat(base.params), flat(changed.params), rtol=0, atol=1e-7)
        base, changed = update(base)[0], other(changed)[0]
        stopped, _ = other(changed)  # and from `schedule_updates` on there is none
        np.testing.assert_array_equal(flat(changed.params), flat(stopped.params))
    assert np.abs(flat(base.params) - flat(changed.params)).max() > 1e-6
    assert learner.steps_per_update == config.num_envs * config.num_steps


def test_microbatches_change_memory_only(tiny):
    state, update = tiny
    base, metrics = update(state)
    split, parts = jax.jit(learner_of(replace(TINY, microbatches=4)).update)(state)
    np.testing.assert_allclose(flat(base.params), flat(split.params), atol=1e-5)
    assert set(parts) == set(metrics)
    np.testing.assert_allclose(metrics["grad_norm"], parts["grad_norm"], rtol=1e-4)


def test_unrolling_changes_speed_only(tiny):
    state, update = tiny
    unrolled = jax.jit(learner_of(replace(TINY, unroll=4)).update)
    (base, _), (other, _) = update(state), unrolled(state)
    jax.tree.map(np.testing.assert_array_equal, base.runner.env_state.env, other.runner.env_state.env)
    np.testing.assert_allclose(flat(base.params), flat(other.params), atol=1e-5)
    assert "unroll=4" in str(jax.make_jaxpr(unrolled)(state)) and "unroll=4" not in str(jax.make_jaxpr(update)(state))


def test_packing_changes_speed_only(tiny, monkeypatch):
    """Parameters as one vector or leaf by leaf: the same numbers, and far fewer operations in a gradient step."""
    state, update = tiny
    monkeypatch.setattr(gradient, "FLATTEN_BELOW", 0)
    loose = jax.jit(learner_of(TINY).update)
    (packed, metrics), (apart, expected) = update(state), loose(state)
    np.testing.assert_allclose(flat(packed.params), flat(apart.params), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(flat(packed.opt_state), flat(apart.opt_state), rtol=1e-3, atol=1e-6)
    assert jax.tree.structure(packed) == jax.tree.structure(apart)
    assert float(metrics["grad_norm"]) == pytest.approx(float(expected["grad_norm"]), rel=1e-4)

    def roots(f):
        return f.lower(state).as_text().count("stablehlo.sqrt")

    assert roots(update) < roots(loose)


def test_target_kl_stops_the_update(tiny):
    state, update = tiny
    full, _ = update(state)
    state = state.replace(hparams=state.hparams | {"target_kl": jnp.float32(1e-9), "learning_rate": jnp.float32(0.3)})
    stopped, metrics = update(state)
    assert float(metrics["gradient_steps"]) == 2  # the second minibatch finds a KL above the target
    assert int(stopped.opt_state.count) == 2 and int(full.opt_state.count) == 4


def test_gradients_are_clipped_by_their_global_norm(tiny):
    state, update = tiny
    free = {"adam_b1": 0.0, "adam_b2": 0.0, "adam_eps": 1e6, "learning_rate": 1e6, "target_kl": -1.0}
    # so Adam's step is the gradient itself, and one is taken
    state = state.replace(hparams=state.hparams | {n: jnp.float32(x) for n, x in free.items()})
    after, metrics = update(state.replace(hparams=state.hparams | {"max_grad_norm": jnp.float32(0.01)}))
    step = flat(after.params) - flat(state.params)
    assert float(metrics["grad_norm"]) > 0.1 and float(metrics["gradient_steps"]) == 1
    np.testing.assert_allclose(np.linalg.norm(step), 0.01, rtol=1e-2)
    whole, _ = update(state.replace(hparams=state.hparams | {"max_grad_norm": jnp.float32(jnp.inf)}))
    whole = flat(whole.params) - flat(state.params)
    np.testing.assert_allclose(step / np.linalg.norm(step), whole / np.linalg.norm(whole), atol=2e-2)


def test_seeds_and_learning_rates_vmap(tiny):
    state, update = tiny
    learner = learner_of(TINY)
    states = jax.vmap(learner.init)(jnp.stack([jax.random.key(0), jax.random.key(1), jax.random.key(0)]))
    rates = jnp.array([TINY.learning_rate, TINY.learning_rate, 0.0], jnp.float32)
    after, metrics = jax.jit(jax.vmap(learner.update))(
        states.replace(hparams=states.hparams | {"learning_rate": rates})
    )
    alone, _ = update(state)
    rows = [flat(jax.tree.map(lambda x, i=i: x[i], after.params)) for i in range(3)]
    np.testing.assert_allclose(rows[0], flat(alone.params), atol=1e-5)
    assert np.abs(rows[1] - rows[0]).max() > 1e-3
    np.testing.assert_array_equal(rows[2], flat(state.params))
    assert metrics["loss"].shape == (3,)


def test_the_state_is_everything(tiny):
    """A state that went through host memory goes on bit for bit, in the middle of its episodes."""
    state, update = tiny
    state, _ = update(state)
    assert 0 < int(state.runner.env_state.env.episode_length.max()) < 3

    def through_host(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(np.array(jax.random.key_data(x))))
        return jnp.asarray(np.array(x))

    one, metrics = update(state)
    two, again = update(jax.tree.map(through_host, state))
    np.testing.assert_array_equal(flat(one.params), flat(two.params))
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), metrics, again))


class Inconsistent(NetworkPolicy):
    """Says something else in the update than in the rollout."""

    def unroll(self, params, frozen, obs, carry, first):
        distribution, value = super().unroll(params, frozen, obs, carry, first)
        return Categorical(distribution.logits + jnp.arange(3.0)), value


def test_a_policy_that_disagrees_with_itself_exceeds_the_bound():
    learner = learner_of(TINY, Inconsistent(ENV.action_space(PARAMS), hidden=(8,)))
    _, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    assert float(metrics["first_ratio_error"]) > 100 * learner.bounds["first_ratio_error"]


def test_nonfinite_is_reported(tiny):
    state, update = tiny
    broken = jax.tree.map(lambda x: x.at[...].set(jnp.nan), state.params)
    _, metrics = update(state.replace(params=broken))
    assert float(metrics["nonfinite"]) == 1


def test_frozen_passes_through(tiny):
    state, _ = tiny

    class Shifted(NetworkPolicy):
        def init(self, key, obs):
            return super().init(key, obs)[0], {"shift": jnp.float32(2)}

        def step(self, params, frozen, obs, carry, first):
            return super().step(params, (), obs + frozen["shift"], carry, first)

        def unroll(self, params, frozen, obs, carry, first):
            return super().unroll(params, (), obs + frozen["shift"], carry, first)

    learner = learner_of(TINY, Shifted(ENV.action_space(PARAMS), hidden=(8,)))
    state = learner.init(jax.random.key(0))
    after, metrics = jax.jit(learner.update)(state)
    assert float(after.frozen["shift"]) == 2 and float(metrics["first_ratio_error"]) <= 1e-5
    assert jax.tree.structure(after.opt_state.mu) == jax.tree.structure(state.params)


# --- the rollout ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [0, 4])
def test_every_next_value_is_that_of_the_observation_reached(memory):
    """Against a plain loop that evaluates the observation before the reset at every step."""
    policy = NetworkPolicy(ENV.action_space(PARAMS), hidden=(8,), memory=memory)
    vector = rollout.VectorEnv(ENV, 4, policy="pool", pool_size=8)
    runner = rollout.start(vector, PARAMS, policy, jax.random.key(0))
    params, frozen = policy.init(jax.random.key(1), runner.obs)
    key = jax.random.key(2)
    after, found = jax.jit(lambda r: rollout.collect(vector, policy, params, frozen, r, key, 8))(runner)
    assert int(found.truncated.sum()) == 8  # two in each environment: more than one round

    step, act = jax.jit(vector.step), jax.jit(policy.step)
    for t in range(8):
        keys = jax.random.split(jax.random.fold_in(key, t))
        distribution, value, carry = act(params, frozen, runner.obs, runner.carry, runner.first)
        action = distribution.sample(keys[0])
        np.testing.assert_array_equal(action, found.action[t])
        np.testing.assert_allclose(value, found.value[t], atol=1e-6)
        np.testing.assert_allclose(distribution.log_prob(action), found.log_prob[t], atol=1e-6)
        obs, env_state, reward, terminated, truncated, info = step(keys[1], runner.env_state, action, PARAMS)
        _, reached, _ = act(params, frozen, info["final_observation"], carry, jnp.zeros(4, bool))
        np.testing.assert_allclose(found.next_value[t], reached, atol=1e-6)
        np.testing.assert_array_equal(reward, found.reward[t])
        runner = runner.replace(obs=obs, env_state=env_state, carry=carry, first=terminated | truncated)
    for mine, theirs in zip(jax.tree.leaves(runner.obs), jax.tree.leaves(after.obs)):
        np.testing.assert_array_equal(mine, theirs)
    # the update's pass over the same steps says the same, memory included
    distribution, value = policy.unroll(params, frozen, found.obs, found.carry, found.first)
    np.testing.assert_allclose(value, found.value, atol=1e-6)
    np.testing.assert_allclose(distribution.log_prob(found.action), found.log_prob, atol=1e-6)


def test_episode_metrics_by_hand():
    done = jnp.array([[False, True, False], [True, False, False]])
    info = {
        "episode_return": jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        "episode_length": jnp.array([[1, 2, 3], [4, 5, 6]]),
        "success": jnp.array([[True, False, True], [True, True, True]]),
        "task": jnp.array([[0, 1, 0], [0, 0, 0]]),
    }
    metrics = rollout.episode_metrics(info, done, ("go to", "open", "put"))
    expected = {"episodes": 2, "episode_return": 3, "episode_length": 3, "success": 0.5}
    expected |= {"episodes/go to": 1, "success/go to": 1, "episodes/open": 1, "success/open": 0, "episodes/put": 0}
    assert {name: float(metrics[name]) for name in expected} == expected
    assert math.isnan(float(metrics["success/put"]))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"minibatches": 5}, r"ppo.num_envs 4 x ppo.num_steps 8 = 32 is not divided by ppo.minibatches: 32 / 5 = 6.40"),
        ({"microbatches": 3}, r"minibatches 2 = 16 is not divided by ppo.microbatches: 16 / 3 = 5.33"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"learning_rate": math.inf}, "learning_rate is inf"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"schedule": "linear"}, "schedule_updates"),
        ({"schedule_updates": 9}, "--ppo.schedule-updates is 9, but --ppo.schedule constant does not read it"),
        ({"reset": "always"}, "--ppo.pool-size is 8, but --ppo.reset always does not read it; leave it out"),
        (
            {"minibatches": 32},
            r"one step \(.*x ppo.num_steps 8 = 32 / ppo.minibatches 32 = 1\): .*--ppo.no-normalize",
        ),
        ({"reset": "next_step"}, "next_step"),
        ({"reset": "optimistic", "reset_ratio": 3, "pool_size": 256}, "not a multiple of reset_ratio 3"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        learner_of(replace(TINY, **options))


def test_recurrent_minibatches_are_environments():
    with pytest.raises(ValueError, match=r"num_envs 4 is not divided by ppo.minibatches: 4 / 8 = 0.50"):
        learner_of(replace(TINY, minibatches=8), NetworkPolicy(ENV.action_space(PARAMS), memory=4))


def test_one_step_per_minibatch_needs_advantages_as_they_are():
    one = replace(TINY, minibatches=32, epochs=1)
    learner_of(replace(one, normalize_advantages=False))
    recurrent = NetworkPolicy(ENV.action_space(PARAMS), memory=4)
    learner_of(replace(TINY, minibatches=4), recurrent)  # one environment, but its 8 steps
    with pytest.raises(ValueError, match="a minibatch has one step"):
        learner_of(replace(TINY, num_steps=1, minibatches=4), recurrent)
    with pytest.raises(ValueError, match="a minibatch has one step"):
        learner_of(one)


def test_statistics_are_needed():
    with pytest.raises(ValueError, match="EpisodeStatistics"):
        make_ppo(TINY, Match(3), PARAMS, POLICY)


def test_glams_preset():
    """Glam reference, sections 1.2 and 3.3."""
    assert GLAM.num_envs * GLAM.num_steps == 1280 and 1280 // GLAM.minibatches == 64 and GLAM.epochs == 4
    assert (GLAM.gamma, GLAM.gae_lambda, GLAM.learning_rate, GLAM.adam_eps) == (0.99, 0.99, 1e-6, 1e-5)
    assert (GLAM.clip_eps, GLAM.value_clip, GLAM.value_loss_coef, GLAM.entropy_coef) == (0.2, 0.2, 0.5, 0.01)
    assert GLAM.max_grad_norm == 0.5 and not GLAM.normalize_advantages and GLAM.schedule == "constant"
