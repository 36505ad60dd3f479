"""Crafter's tasks: which there are, and how events advance them. `test_env.py` plays them."""

import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import action_set, valid
from envs_jax.crafter.tasks import EVENTS, TASKS, advance, task_index


def test_every_achievement_and_every_goal_of_ellm_is_a_task():
    names = [task.name for task in TASKS]
    assert len(names) == len(set(names)) == 22 + 24 + 9
    assert set(c.ACHIEVEMENTS) <= set(names)
    actions = action_set(139)
    goals = {name for name, can in zip(actions.names, valid(actions)) if can}
    assert goals - set(names) == {"do nothing", "move left", "move right", "move up", "move down"}
    assert all(event in EVENTS for task in TASKS for event in task.events)
    assert TASKS[task_index("deforestation")].events == ("collect_wood",) * 5
    assert TASKS[task_index("attack cow")].events == ("eat_cow",)


def test_events_advance_a_task_in_their_order():
    task, progress = jnp.int32(task_index("gardening")), jnp.int32(0)
    seen = []
    script = ["place_plant", "collect_wood", "collect_sapling", "collect_sapling", "place_plant", "collect_wood"]
    for event in [*script, "place_plant", "place_plant"]:
        events = jnp.asarray([name == event for name in EVENTS])
        progress, done, reward = advance(task, progress, events)
        seen.append((int(progress), bool(done), float(reward)))
    assert seen == [(0, False, 0), (0, False, 0), (1, False, 0), (1, False, 0), (1, False, 0), (2, False, 0)] + [
        (3, True, 1),
        (3, False, 0),
    ]


def test_two_parts_are_not_done_by_one_step():
    everything = jnp.ones(len(EVENTS), bool)
    progress, done, reward = advance(jnp.int32(task_index("vegetarianism")), jnp.int32(0), everything)
    assert (int(progress), bool(done), float(reward)) == (1, False, 0.0)
    survival = jnp.int32(task_index("survival"))
    none = jnp.asarray(np.array([name != "never" for name in EVENTS]))
    progress, done, reward = advance(survival, jnp.int32(0), none)
    assert (int(progress), bool(done)) == (0, False) and float(reward) == pytest.approx(0.05)


def test_without_a_task_nothing_is_finished():
    """A world made with a task may be given none: index -1 is not the last task, which needs three events."""
    everything = jnp.ones(len(EVENTS), bool)
    for before in range(4):
        progress, done, reward = advance(jnp.int32(-1), jnp.int32(before), everything)
        assert (int(progress), bool(done), float(reward)) == (before, False, 0.0)


def test_an_unknown_task_is_refused():
    with pytest.raises(KeyError, match="Crafter.*'deforest'.*'deforestation'.*TASKS"):
        task_index("deforest")
