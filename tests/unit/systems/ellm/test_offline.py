"""Recorded play of a world of five cells: rewards computed again, and an agent that learns from them."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.data.parquet import write_parquet
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.systems.ellm import collect, offline
from llmrl_jax.systems.ellm.build import build
from llmrl_jax.systems.ellm.commands import start_offline
from llmrl_jax.systems.ellm.config import CollectRun, EllmConfig, preset
from tests.ellm_world import NAMES, Yard


BASE = EllmConfig(
    env="Yard-v0",
    encoder="hashed",
    network=BranchConfig(width=8, head_hidden=(4,)),
    dqn=DQNConfig(num_envs=4, num_steps=2, gradient_steps=2, batch_size=8, replay_size=96, n_step=2, pool_size=4),
)
EPISODES = 24


def made(config):
    return build(config, Yard())


@cache
def recorded():
    """Steps of random play under the oracle's goals, and the world's parts."""
    ellm = made(BASE)
    world, policy = collect.recorder(ellm), RandomPolicy(len(NAMES))
    params = ellm.env_params.replace(intrinsic=0.0, extrinsic=1.0)
    parts = list(collect.record(world, params, policy, ((), ()), jax.random.key(0), EPISODES))
    return ellm, jax.tree.map(lambda *x: np.concatenate(x), *parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    ellm, steps = recorded()
    folder = tmp_path_factory.mktemp("buffer")
    write_parquet(folder / collect.STEPS, steps)
    about = {**collect.identity(ellm), "episodes": EPISODES, "steps": len(steps)}
    configs.save_config(about, folder / collect.METADATA)
    return folder


def test_what_is_recorded():
    """Whole episodes of 12 steps, each observation the one that the step before it reached."""
    _, steps = recorded()
    assert len(steps) == 12 * EPISODES
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated), np.arange(11, len(steps), 12))
    inner = np.flatnonzero(~steps.truncated)
    for name, x in steps.obs.items():
        np.testing.assert_array_equal(steps.next_obs[name][inner], x[inner + 1])
    chops = (steps.action == NAMES.index("chop tree")) & (steps.obs["view"][:, 0, 0, 0] == 1)
    assert chops.any() and steps.text["eval_success"][chops].all()


@pytest.mark.parametrize("once", [True, False])
def test_goals_of_the_recording_pay_what_was_paid(folder, once):
    """Through the file: rewards for goals, and the goals that an agent sees, are those of play."""
    ellm, steps = recorded()
    again = ellm if once else made(replace(BASE, once=False, intrinsic=0.5, extrinsic=2.0))
    episodes = offline.read_buffer(folder, again)
    label = jax.jit(lambda x: offline.relabelled(again.env, again.env_params, x, jax.random.key(5)))
    obs, after, reward, earned = label(episodes)
    paid = steps.goal["earned"].reshape(EPISODES, 12)
    assert paid.sum() > 3
    if once:
        np.testing.assert_array_equal(earned, paid)
        np.testing.assert_array_equal(reward, paid)
    else:
        assert earned.sum() > paid.sum() and ((np.asarray(earned) == 0) | (paid == 0) | (earned == paid)).all()
        np.testing.assert_array_equal(reward, 0.5 * earned + 2 * steps.reward.reshape(EPISODES, 12))
    seen = {name: np.asarray(x).reshape(-1, *x.shape[2:]) for name, x in obs.items()}
    assert set(seen) == {"view", "inventory", "goals"}
    np.testing.assert_array_equal(seen["view"], steps.obs["view"])
    np.testing.assert_array_equal(np.asarray(after["goals"])[:, :-1], np.asarray(obs["goals"])[:, 1:])


def test_another_goal_by_hand(folder):
    """The single goal "move left" pays for the first such move of an episode that had its effect."""
    _, steps = recorded()
    ellm = made(replace(BASE, suggester="fixed", fixed=("move left",)))
    episodes = offline.read_buffer(folder, ellm)
    stored, earned = offline.relabelled_steps(ellm, episodes, jax.random.key(0))
    moves = (steps.action == NAMES.index("move left")) & steps.text["eval_success"]
    first = np.zeros_like(moves)
    for start in range(0, len(moves), 12):
        where = start + np.flatnonzero(moves[start : start + 12])
        first[where[:1]] = True
    np.testing.assert_array_equal(stored.reward, first.astype(np.float32))
    np.testing.assert_array_equal(earned, first.reshape(EPISODES, 12).sum(1))
    assert 0 < first.sum() < moves.sum() and not stored.terminated.any() and stored.truncated.sum() == EPISODES


@pytest.mark.slow
def test_learning_without_play(folder):
    """The memory holds the steps of each row in their order, and an update changes weights only."""
    ellm = made(replace(BASE, dqn=offline.settled(BASE, 12 * EPISODES).dqn))
    stored, _ = offline.relabelled_steps(ellm, offline.read_buffer(folder, ellm), jax.random.key(0))
    learner = offline.make_offline(ellm, stored)
    state = learner.init(jax.random.key(1))
    assert int(state.replay.size) == 288 and state.replay.items.reward.shape == (72, 4)
    np.testing.assert_array_equal(np.asarray(state.replay.items.reward).T.reshape(-1), stored.reward)
    with pytest.raises(ValueError, match="dqn.num_envs 4.*= 8"):
        offline.make_offline(replace(ellm, mesh=make_mesh("data=8")), stored)
    after, metrics = jax.jit(learner.update)(state)
    assert int(after.update) == 1 and float(metrics["loss"]) > 0 and learner.unit == "gradient steps"
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, after.params)
    assert max(jax.tree.leaves(moved)) > 0
    for kept in ("replay", "runner"):
        jax.tree.map(np.testing.assert_array_equal, *(_raw(getattr(x, kept)) for x in (state, after)))


def _raw(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]


@pytest.mark.parametrize(("name", "suggester"), [("rnd", "oracle"), ("noveld", "oracle"), ("extrinsic", "none")])
def test_steps_of_an_agent_of_novelty(tmp_path, name, suggester):
    """Its bonus needs play, so the goals of the oracle take its place where nothing else is rewarded."""
    configs.save_config(CollectRun(ellm=preset(name)), tmp_path / "config.json")
    configs.save_config({"steps": 288}, tmp_path / collect.METADATA)
    ellm = start_offline({"buffer": str(tmp_path)}.get).ellm
    assert (ellm.suggester, ellm.bonus) == (suggester, "none")
    assert offline.settled(ellm, 288).dqn.replay_size == 288


def test_what_is_refused(folder, tmp_path):
    ellm = recorded()[0]
    with pytest.raises(FileNotFoundError, match="llmrl ellm collect"):
        offline.read_buffer(tmp_path, ellm)
    other = replace(ellm, config=replace(BASE, env="Yard-v0?task=wood"))
    with pytest.raises(ValueError, match=r"env.*Yard-v0.*Yard-v0\?task=wood.*--env"):
        offline.read_buffer(folder, other)
    env = copy(ellm.env)
    env.spec = replace(ellm.spec, captions=(*NAMES[:-1], "sing"))
    renamed = replace(ellm, env=env)
    with pytest.raises(ValueError, match="8.*actions.*'mine tree'.*'sing'"):
        offline.read_buffer(folder, renamed)
    for options, said in (
        ({"learner": "ppo"}, "learner.*ppo.*dqn"),
        ({"suggester": "chat"}, "suggester.*chat"),
        ({"bonus": "rnd"}, "--bonus"),
    ):
        with pytest.raises(ValueError, match=said):
            offline.settled(replace(BASE, **options), 100)
    with pytest.raises(ValueError, match="7 steps.*8"):
        offline.settled(BASE, 7)
