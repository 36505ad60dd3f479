"""PPO: each hyper-parameter by its effect, the rollout beside a plain loop, its errors by what they say."""

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
from llmrl_jax.kernels import flat_tree
from llmrl_jax.rl import gradient, rollout
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import GLAM, PPOConfig, make_ppo


ENV = EpisodeStatistics(Match(3))
PARAMS = DebugParams(length=3)
POLICY = NetworkPolicy(ENV.action_space(PARAMS), hidden=(8,))
TINY = PPOConfig(num_envs=4, num_steps=8, epochs=2, minibatches=2, pool_size=8, learning_rate=0.03)


def learner_of(config, policy=POLICY):
    return make_ppo(config, ENV, PARAMS, policy)


TRACES = []
"""One entry for each time that the update of `tiny` is traced."""


@pytest.fixture(scope="module")
def tiny():
    """The learner's first state and its compiled update."""
    learner = learner_of(TINY)
    return learner.init(jax.random.key(0)), jax.jit(lambda state: (TRACES.append(1), learner.update(state))[1])


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


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
    assert set(FLOATS) == set(gradient.traced_floats(PPOConfig()))


@pytest.mark.parametrize("name", FLOATS)
def test_float_hyper_parameter_changes_the_result(tiny, name):
    state, update = tiny
    base, _ = update(state)
    other, _ = update(state.replace(hparams=state.hparams | {name: jnp.float32(FLOATS[name])}))
    assert np.abs(flat(base.params) - flat(other.params)).max() > 1e-6


def test_the_update_is_traced_once(tiny):
    """Whatever the tests of this file have given it."""
    state, update = tiny
    for _ in range(3):
        state, _ = update(state)
    update(state.replace(hparams=state.hparams | {"gamma": jnp.float32(0.5)}))
    assert len(TRACES) == 1


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
    elsewhere = {"microbatches", "schedule_updates", "unroll", "pool_every"}  # these have tests of their own
    tried = {*STATIC, *FLOATS, *elsewhere}
    assert tried == {f.name for f in dataclasses.fields(PPOConfig)}


def test_sizes_and_switches_by_their_metrics():
    """Several options in one program, each by what it alone changes."""
    sizes = replace(TINY, num_envs=8, num_steps=10, epochs=1, minibatches=1)
    learner = learner_of(sizes)
    state = jax.jit(learner.init)(jax.random.key(0))
    plain, one = jax.jit(learner.update)(state)
    assert plain.runner.first.shape == (8,) and learner.steps_per_update == 80
    assert float(one["episodes"]) == 8 * (10 // 3) and float(one["gradient_steps"]) == 1
    switched, other = jax.jit(learner_of(replace(sizes, normalize_advantages=False, value_broadcast="glam")).update)(
        state
    )
    for name in ("advantage_mean", "value_mean", "explained_variance"):  # the rollout is the same, and its returns
        assert float(other[name]) == pytest.approx(float(one[name]), rel=1e-4)
    assert abs(float(one["advantage_mean"])) > 1e-2  # one step: the ratio is 1, and the loss is the mean advantage
    assert float(one["policy_loss"]) == pytest.approx(0, abs=1e-5)
    assert float(other["policy_loss"]) == pytest.approx(-float(one["advantage_mean"]), rel=1e-4)
    assert float(other["value_loss"]) > 1.01 * float(one["value_loss"])
    assert np.abs(flat(plain.params) - flat(switched.params)).max() > 1e-6


def test_the_pool_has_its_size():
    """Only as shapes; a slow case below plays it. That a reset ratio is passed on, its refusal shows."""

    def rows(**options):
        state = jax.eval_shape(learner_of(replace(TINY, **options)).init, jax.random.key(0))
        return {x.shape[0] for x in jax.tree.leaves(state.runner.env_state.pool)}

    assert rows() == {8} and rows(pool_size=2) == {2}


BY_METRICS = {"num_envs", "num_steps", "epochs", "minibatches", "normalize_advantages", "value_broadcast"}
SLOW = BY_METRICS | {"pool_size", "reset_ratio"}
"""What the tests above show in fewer programs."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in STATIC])
def test_static_hyper_parameter_changes_the_result(tiny, name):
    state, update = tiny
    config = replace(TINY, **STATIC[name])
    learner = learner_of(config)
    other = jax.jit(learner.update)
    begun = learner.init(jax.random.key(0)) if {"num_envs", "reset", "pool_size"} & set(STATIC[name]) else state
    base, changed = update(state)[0], other(begun)[0]
    if name == "schedule":  # the first update has the full rate, but for the rounding of another program
        np.testing.assert_allclose(flat(base.params), flat(changed.params), rtol=0, atol=1e-7)
        base, changed = update(base)[0], other(changed)[0]
        stopped, _ = other(changed)  # and from `schedule_updates` on there is none
        np.testing.assert_array_equal(flat(changed.params), flat(stopped.params))
    assert np.abs(flat(base.params) - flat(changed.params)).max() > 1e-6
    assert learner.steps_per_update == config.num_envs * config.num_steps


@pytest.mark.slow
def test_microbatches_and_unrolling_change_memory_and_speed_only(tiny):
    state, update = tiny
    parted = jax.jit(learner_of(replace(TINY, microbatches=4, unroll=4)).update)
    (base, metrics), (other, parts) = update(state), parted(state)
    jax.tree.map(np.testing.assert_array_equal, base.runner.env_state.env, other.runner.env_state.env)
    np.testing.assert_allclose(flat(base.params), flat(other.params), atol=1e-5)
    assert set(parts) == set(metrics)
    np.testing.assert_allclose(metrics["grad_norm"], parts["grad_norm"], rtol=1e-4)
    assert "unroll=4" in str(jax.make_jaxpr(parted)(state)) and "unroll=4" not in str(jax.make_jaxpr(update)(state))
    # 4 of a minibatch's 16 steps at a time
    assert "[4,1,4" in str(jax.make_jaxpr(parted)(state)) and "[4,1,4" not in str(jax.make_jaxpr(update)(state))


@pytest.mark.slow
def test_packing_changes_speed_only(tiny, monkeypatch):
    """Parameters as one vector or leaf by leaf: the same numbers, and far fewer operations in a gradient step."""
    state, update = tiny
    monkeypatch.setattr(flat_tree, "FLATTEN_BELOW", 0)
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


@pytest.mark.slow
def test_seeds_and_learning_rates_vmap(tiny):
    state, update = tiny
    learner = learner_of(TINY)
    states = jax.jit(jax.vmap(learner.init))(jnp.stack([jax.random.key(0), jax.random.key(1), jax.random.key(0)]))
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


def test_nonfinite_is_reported(tiny):
    state, update = tiny
    broken = jax.tree.map(lambda x: x.at[...].set(jnp.nan), state.params)
    _, metrics = update(state.replace(params=broken))
    assert float(metrics["nonfinite"]) == 1


class Shifted(NetworkPolicy):
    """Reads frozen parameters; with a `lie` it says something else in the update than in the rollout."""

    def init(self, key, obs):
        return super().init(key, obs)[0], {"shift": jnp.float32(2), "lie": jnp.float32(0)}

    def step(self, params, frozen, obs, carry, first):
        return super().step(params, (), obs + frozen["shift"], carry, first)

    def unroll(self, params, frozen, obs, carry, first):
        distribution, value = super().unroll(params, (), obs + frozen["shift"], carry, first)
        return Categorical(distribution.logits + frozen["lie"] * jnp.arange(3.0)), value


def test_frozen_passes_through_and_a_policy_that_disagrees_with_itself_exceeds_the_bound():
    learner = learner_of(TINY, Shifted(ENV.action_space(PARAMS), hidden=(8,)))
    update, state = jax.jit(learner.update), jax.jit(learner.init)(jax.random.key(0))
    after, metrics = update(state)
    assert float(after.frozen["shift"]) == 2 and float(metrics["first_ratio_error"]) <= 1e-5
    assert jax.tree.structure(after.opt_state.mu) == jax.tree.structure(state.params)
    _, metrics = update(state.replace(frozen=state.frozen | {"lie": jnp.float32(1)}))
    assert float(metrics["first_ratio_error"]) > 100 * learner.bounds["first_ratio_error"]


# --- the rollout ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_every_next_value_is_that_of_the_observation_reached(memory):
    """Against a plain loop that evaluates the observation before the reset at every step."""
    policy = NetworkPolicy(ENV.action_space(PARAMS), hidden=(8,), memory=memory)
    vector = rollout.VectorEnv(ENV, 4, policy="pool", pool_size=8)
    runner = rollout.start(vector, PARAMS, policy, jax.random.key(0))
    params, frozen = policy.init(jax.random.key(1), runner.obs)
    key = jax.random.key(2)
    after, found = jax.jit(lambda r: rollout.collect(vector, policy, params, frozen, r, key, 8))(runner)
    found = jax.tree.map(np.asarray, found)  # each row of a jax array would be a program
    assert int(found.truncated.sum()) == 8  # two in each environment: more than one round

    @jax.jit
    def play(runner, t):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        distribution, value, carry = policy.step(params, frozen, runner.obs, runner.carry, runner.first)
        action = distribution.sample(act_key)
        obs, env_state, reward, terminated, truncated, info = vector.step(step_key, runner.env_state, action, PARAMS)
        _, reached, _ = policy.step(params, frozen, info["final_observation"], carry, jnp.zeros(4, bool))
        after = runner.replace(obs=obs, env_state=env_state, carry=carry, first=terminated | truncated)
        return after, (action, value, distribution.log_prob(action), reached, reward)

    for t in range(8):
        runner, (action, value, log_prob, reached, reward) = play(runner, t)
        np.testing.assert_array_equal(action, found.action[t])
        np.testing.assert_allclose(value, found.value[t], atol=1e-6)
        np.testing.assert_allclose(log_prob, found.log_prob[t], atol=1e-6)
        np.testing.assert_allclose(found.next_value[t], reached, atol=1e-6)
        np.testing.assert_array_equal(reward, found.reward[t])
    for mine, theirs in zip(jax.tree.leaves(runner.obs), jax.tree.leaves(after.obs)):
        np.testing.assert_array_equal(mine, theirs)
    # the update's pass over the same steps says the same, memory included
    distribution, value = jax.jit(policy.unroll)(params, frozen, found.obs, found.carry, found.first)
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
        ({"minibatches": 5}, "ppo.num_envs 4 x ppo.num_steps 8 = 32.*ppo.minibatches: 32 / 5 = 6.40"),
        ({"microbatches": 3}, "2 = 16.*ppo.microbatches: 16 / 3 = 5.33"),
        ({"learning_rate": -1.0}, "learning_rate.*-1.0"),
        ({"learning_rate": math.inf}, "learning_rate.*inf"),
        ({"gamma": 1.5}, "gamma.*1.5"),
        ({"schedule": "linear"}, "schedule_updates"),
        ({"schedule_updates": 9}, "ppo.schedule_updates.*9.*ppo.schedule"),
        ({"reset": "always"}, "ppo.pool_size.*8.*ppo.reset"),
        (
            {"minibatches": 32},
            r"\(.*x ppo.num_steps 8 = 32 / ppo.minibatches 32 = 1\).*--ppo.no-normalize",
        ),
        ({"reset": "next_step"}, "next_step"),
        ({"reset": "optimistic", "reset_ratio": 3, "pool_size": 256}, "reset_ratio 3"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        learner_of(replace(TINY, **options))


def test_recurrent_minibatches_are_environments():
    with pytest.raises(ValueError, match="ppo.minibatches: 4 / 8 = 0.50"):
        learner_of(replace(TINY, minibatches=8), NetworkPolicy(ENV.action_space(PARAMS), memory=4))


def test_one_step_per_minibatch_needs_advantages_as_they_are():
    one = replace(TINY, minibatches=32, epochs=1)
    learner_of(replace(one, normalize_advantages=False))
    recurrent = NetworkPolicy(ENV.action_space(PARAMS), memory=4)
    learner_of(replace(TINY, minibatches=4), recurrent)  # one environment, but its 8 steps
    with pytest.raises(ValueError, match=r"--ppo\.normalize-advantages.*= 1\b"):
        learner_of(replace(TINY, num_steps=1, minibatches=4), recurrent)
    with pytest.raises(ValueError, match=r"--ppo\.normalize-advantages.*= 1\b"):
        learner_of(one)


def test_statistics_are_needed():
    with pytest.raises(ValueError, match="EpisodeStatistics"):
        make_ppo(TINY, Match(3), PARAMS, POLICY)


def test_glams_preset():
    """Carta et al., 2302.02662."""
    assert GLAM.num_envs * GLAM.num_steps == 1280 and 1280 // GLAM.minibatches == 64 and GLAM.epochs == 4
    assert (GLAM.gamma, GLAM.gae_lambda, GLAM.learning_rate, GLAM.adam_eps) == (0.99, 0.99, 1e-6, 1e-5)
    assert (GLAM.clip_eps, GLAM.value_clip, GLAM.value_loss_coef, GLAM.entropy_coef) == (0.2, 0.2, 0.5, 0.01)
    assert GLAM.max_grad_norm == 0.5 and not GLAM.normalize_advantages and GLAM.schedule == "constant"


def test_the_pool_is_renewed_every_so_many_updates():
    vector = rollout.VectorEnv(ENV, 4, policy="pool", pool_size=8)
    runner = rollout.start(vector, PARAMS, POLICY, jax.random.key(0))

    def pools(every):
        kept = [runner]
        for update in range(3):
            kept.append(rollout.with_pool(vector, kept[-1], jax.random.key(update + 1), update, every))
        leaves = [jax.tree.leaves(r.env_state.pool) for r in kept]
        return [all(np.array_equal(a, b) for a, b in zip(one, two)) for one, two in zip(leaves, leaves[1:])]

    assert pools(1) == [False, False, False]
    assert pools(2) == [False, True, False]
