"""Rewards, success and experts beside what metaworld 3.1.1 returned: tests/parity/record_metaworld.py recorded it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.metaworld import experts, poses, rewards
from envs_jax.metaworld.tasks import COMPOSITES, TASKS
from tests.paths import DATA


RECORDED = np.load(DATA / "metaworld.npz")
NAMES = [name for name in TASKS if name not in COMPOSITES]


def rows(name):
    """The recorded steps of one task, by column."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): RECORDED[key] for key in RECORDED.files if key.startswith(prefix)}


def view(row, task):
    """Inputs of the reward of a recorded step."""
    obs = row["obs"]
    return rewards.View(
        action=row["action"].astype(obs.dtype),
        hand=obs[..., :3],
        gripper=obs[..., 3],
        object=obs[..., 4:7],
        turned=obs[..., 7:11],
        **{key: row[key] for key in ("tcp", "left", "right", "lock", "joint", "target")},
        **{f"{key}_start": row[f"{key}_start"] for key in ("object", "tcp", "handle")},
        hand_start=np.array(task.hand, obs.dtype),
    )


@pytest.mark.parametrize("name", NAMES)
def test_reward_and_success_are_those_of_the_package(name):
    row, task = rows(name), TASKS[name]
    reward, success = task.stages[0].judge(np, view(row, task))
    np.testing.assert_allclose(reward, row["reward"], atol=1e-7)
    np.testing.assert_array_equal(success, row["success"])
    assert row["success"].any() and not row["success"].all()


def test_rewards_in_float32_on_the_device():
    views = {name: jax.tree.map(np.float32, view(rows(name), TASKS[name])) for name in NAMES}

    @jax.jit
    def judged(views):
        return {name: TASKS[name].stages[0].judge(jnp, one) for name, one in views.items()}

    for name, (reward, success) in judged(views).items():
        assert reward.dtype == np.float32
        np.testing.assert_allclose(reward, rows(name)["reward"], atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(success, rows(name)["success"], err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_experts_act_as_the_policies_of_the_package(name):
    row = rows(name)
    obs = row["seen_obs"]
    for xp, numbers in ((np, obs), (jnp, jnp.asarray(obs, jnp.float32))):
        hand, gripper, thing, goal = numbers[:, :3], numbers[:, 3], numbers[:, 4:7], numbers[:, -3:]
        acted = experts.action(xp, TASKS[name].stages[0].expert, hand, gripper, thing, goal)
        np.testing.assert_allclose(acted, row["expert"], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_observations_are_frames_and_the_goal_clipped(name):
    row, task = rows(name), TASKS[name]
    goal = np.clip(row["target"], *np.array(task.goal))
    frame, before = (poses.clipped(np, row[key]) for key in ("frame", "previous"))
    np.testing.assert_allclose(poses.stacked(np, frame, before, goal), row["obs"], atol=1e-12)
