"""Several seeds in one program: each run as it is alone, what they share, and a run through the loop."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.control.debug import DebugParams, Match
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.core.learner import Exchange
from llmrl_jax.parallel.memory import nbytes
from llmrl_jax.rl.networks import NetworkConfig, NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.rl.registry import algorithm
from llmrl_jax.rl.seeds import seed_keys, select_run, vmap_learners
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train
from tests import glam


SMALL = NetworkConfig(hidden=(8,))
SIZES = {
    "ppo": {"num_envs": 4, "num_steps": 8, "epochs": 2, "minibatches": 2, "pool_size": 8, "pool_every": 2},
    "dqn": {"num_envs": 2, "num_steps": 8, "gradient_steps": 2, "batch_size": 8, "replay_size": 40, "pool_size": 8}
    | {"learning_starts": 20, "target_every": 2, "n_step": 2, "replay": "prioritized"},
    "sac": {"num_envs": 2, "num_steps": 8, "gradient_steps": 1, "batch_size": 8, "replay_size": 40, "pool_size": 8}
    | {"learning_starts": 20},
}


def learner_of(name):
    config = algorithm(name).config(**SIZES[name])
    env, params = envs_jax.make("Pendulum-v1") if name == "sac" else (Match(3), DebugParams(length=3))
    env = EpisodeStatistics(env)
    return algorithm(name).make(config, env, params, algorithm(name).policy(env, params, SMALL, config), None)


def assert_close(one, other, **tolerance):
    def check(a, b):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, **tolerance)

    jax.tree.map(check, one, other)


def test_keys_are_those_of_the_following_seeds():
    keys = seed_keys(jax.random.key(2**32 - 3), 3)
    for i, key in enumerate(keys):
        np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(2**32 - 3 + i)))


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in (("dqn", False), ("sac", False), ("ppo", True))]


@pytest.mark.parametrize(("name", "one_by_one"), [("ppo", False), *SLOW])
def test_each_run_is_that_of_its_seed_alone(name, one_by_one):
    learner = learner_of(name)
    both = vmap_learners(learner, 2, one_by_one=one_by_one)
    state, update, alone = both.init(jax.random.key(5)), jax.jit(both.update), jax.jit(learner.update)
    runs = [learner.init(jax.random.key(5 + i)) for i in range(2)]
    for i, run in enumerate(runs):
        assert_close(select_run(state, i), run, rtol=0)
    for _ in range(4):  # past the start of learning and the renewal of a pool
        state, metrics = update(state)
        for i, run in enumerate(runs):
            runs[i], own = alone(run)
            assert {f"{i}/{key}" for key in own} <= set(metrics)
            for key, value in own.items():
                np.testing.assert_allclose(metrics[f"{i}/{key}"], value, rtol=1e-3, atol=1e-5, err_msg=key)
    for i, run in enumerate(runs):
        assert_close(select_run(state, i), run, rtol=1e-3, atol=1e-5)
    assert {f"1/{key}" for key in learner.bounds} <= set(both.bounds)
    assert jax.tree.leaves(state.rest.hparams)[0].shape == state.update.shape == ()


@pytest.mark.parametrize("name", SIZES)
def test_branches_that_all_runs_take_alike_stay_branches(name):
    learner = learner_of(name)
    both = vmap_learners(learner, 2)
    counts = [
        str(jax.make_jaxpr(one.update)(jax.eval_shape(lambda one=one: one.init(jax.random.key(0))))).count("cond[")
        for one in (learner, both)
    ]
    assert counts[0] == counts[1] > 0


class Biased(NetworkPolicy):
    """A policy whose values have a bias that is drawn, and not trained."""

    def init(self, key, obs):
        return super().init(key, obs)[0], {"bias": jax.random.normal(key)}

    def step(self, params, frozen, obs, carry, first):
        distribution, value, carry = super().step(params, (), obs, carry, first)
        return distribution, value + frozen["bias"], carry

    def unroll(self, params, frozen, obs, carry, first):
        distribution, value = super().unroll(params, (), obs, carry, first)
        return distribution, value + frozen["bias"]


def test_states_that_do_not_fit_together_are_refused(monkeypatch):
    env, params = EpisodeStatistics(Match(3)), DebugParams(length=3)
    policy = Biased(env.action_space(params), hidden=(8,))
    learner = algorithm("ppo").make(PPOConfig(**SIZES["ppo"]), env, params, policy, None)
    size = nbytes(learner.init(jax.random.key(0)).replace(frozen=()))
    monkeypatch.setattr("llmrl_jax.rl.seeds.available", lambda: 3 * size - 1)
    vmap_learners(learner, 2).init(jax.random.key(0))
    with pytest.raises(ValueError, match="3 seeds.*--seeds"):
        vmap_learners(learner, 3).init(jax.random.key(0))


@pytest.mark.slow
def test_a_frozen_part_that_is_drawn_is_each_seeds_own():
    env, params = EpisodeStatistics(Match(3)), DebugParams(length=3)
    policy = Biased(env.action_space(params), hidden=(8,))
    check_frozen(algorithm("ppo").make(PPOConfig(**SIZES["ppo"]), env, params, policy, None), copies=2)


@pytest.mark.slow
def test_a_frozen_model_is_held_once():
    program = glam.program()
    base = glam.weights()[1]["params"]
    policy = dataclasses.replace(program.policy, base=lambda key: jax.tree.map(jnp.copy, base))
    check_frozen(dataclasses.replace(program, policy=policy).learner(), copies=1)


def check_frozen(learner, copies):
    both = vmap_learners(learner, 2)
    state = both.init(jax.random.key(5))
    alone = learner.init(jax.random.key(6))
    sizes = [sum(x.size for x in jax.tree.leaves(one)) for one in (alone.frozen, state.frozen)]
    assert sizes[1] == sizes[0] * copies > 0
    assert_close(select_run(state, 1), alone, rtol=0)
    (state, metrics), (alone, own) = jax.jit(both.update)(state), jax.jit(learner.update)(alone)
    assert_close({key: metrics[f"1/{key}"] for key in own}, own, rtol=1e-3, atol=1e-5)
    assert_close(select_run(state, 1), alone, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_run_of_seeds_has_means_and_intervals_and_continues_exactly(tmp_path):
    both = vmap_learners(learner_of("ppo"), 3)

    def run(name, updates, **options):
        config = RunConfig(name=name, out=str(tmp_path), progress="off", best="episode_return", log_every=2, **options)
        return train(both, config, num_updates=updates)

    whole = run("whole", 4)
    run("parts", 2)
    parts = run("parts", 4, resume=True)
    assert_close(parts.state, whole.state, rtol=0)
    line = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    own = [line[f"{i}/episode_return"] for i in range(3)]
    half = 4.302652729911275 * np.std(own, ddof=1) / np.sqrt(3)
    ends = [line[f"episode_return{end}"] for end in ("_low", "", "_high")]
    np.testing.assert_allclose(ends, np.mean(own) + half * np.array([-1, 0, 1]))
    assert line["steps"] == 4 * both.steps_per_update == 4 * learner_of("ppo").steps_per_update


def test_a_learner_that_asks_the_host_learns_with_one_seed():
    learner = dataclasses.replace(learner_of("ppo"), exchange=Exchange(1, lambda s: {}, lambda r: r, lambda s, a: s))
    with pytest.raises(ValueError, match="--seeds"):
        vmap_learners(learner, 2)
