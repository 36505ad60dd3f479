"""Taking over minigrid: through wrappers, with its hidden counters, and refusals that say why."""

from __future__ import annotations

import gymnasium
import jax
import minigrid  # noqa: F401  (registers its ids)
import numpy as np
import pytest

import envs_jax
from envs_jax.wrappers import EpisodeStatistics


@pytest.fixture(scope="module")
def local():
    return envs_jax.make("BabyAI-GoToLocal-v0")


def taken(id, seed=0, **kwargs):
    source = gymnasium.make(id, **kwargs)
    source.reset(seed=seed)
    return source


def test_wrapped_environments_are_taken_over(local):
    env, params = local
    source = taken("BabyAI-GoToLocal-v0")
    obs, state = envs_jax.babyai.import_state(source, EpisodeStatistics(env), params)
    assert env.describe(jax.device_get(obs))["mission"] == source.unwrapped.mission
    assert state.position.tolist() == list(source.unwrapped.agent_pos) and int(state.max_steps) == 64
    _, state = envs_jax.babyai.import_state(source, env, params.replace(max_steps=np.int32(9)))
    assert int(state.max_steps) == 9


def test_what_has_vanished_stays_tracked_until_a_drop(local):
    env, params = local
    for seed in range(40):
        source = taken("BabyAI-GoToLocal-v0", seed).unwrapped
        target = source.instrs.desc.obj_set[0]
        if target.type == "box":
            break
    # stand before the box and open it by hand; the verifier still counts the spot
    x, y = target.cur_pos
    source.grid.set(x, y, None)
    _, state = envs_jax.babyai.import_state(source, env, params)
    height = state.grid.shape[1]
    assert x * height + y in np.asarray(state.tracked) and x * height + y not in np.asarray(state.cell)
    source.update_objs_poss()
    _, state = envs_jax.babyai.import_state(source, env, params)
    assert x * height + y not in np.asarray(state.tracked)


def test_worlds_that_do_not_fit_are_refused(local):
    env, params = local
    take = envs_jax.babyai.import_state
    with pytest.raises(ValueError, match="20 x 20.*8 x 8"):
        take(taken("BabyAI-OneRoomS20-v0"), env, params)
    with pytest.raises(ValueError, match="PickupInstr.*0"):
        take(taken("BabyAI-PickupLoc-v0"), env, params)
    with pytest.raises(ValueError, match="9 objects.*8"):
        take(taken("BabyAI-GoToLocal-v0", num_dists=9), env, params)
    with pytest.raises(ValueError, match="BabyAI"):
        take(taken("BabyAI-GoToLocal-v0"), envs_jax.make("CartPole-v1")[0], params)
