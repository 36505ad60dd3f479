"""ELLM's facts about Crafter: the oracle's rules on observations made by hand, and the scripted adviser on the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import make
from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import action_set
from envs_jax.crafter.tasks import TASKS
from envs_jax.crafter.text import ellm as text
from llmrl_jax.systems.ellm import prompts
from llmrl_jax.systems.ellm.crafter import ORACLE, SYNONYMS, feasible, task_steps
from llmrl_jax.systems.ellm.goals import CATEGORIES, goal_spec_for


NAMES = action_set(139).names


def observation(*seen, energy=9, **held):
    """A view of grass with some materials and creatures in it, and an inventory."""
    view = np.zeros((9, 7, 2), np.uint8)
    view[..., 0] = c.GRASS if "grass" in seen else c.SAND
    view[4, 3, 1] = c.SPRITE_PLAYER
    for i, name in enumerate(x for x in seen if x != "grass"):
        if name in c.MATERIALS:
            view[i, 0, 0] = c.MATERIALS.index(name) + 1
        else:
            view[i, 0, 1] = 1 + c.SPRITES.index(name)
    inventory = np.zeros(16, np.int32)
    inventory[:4] = (9, 9, 9, energy)
    for item, count in held.items():
        inventory[c.ITEMS.index(item)] = count
    return {"view": jnp.asarray(view), "inventory": jnp.asarray(inventory)}


@pytest.fixture(scope="module")
def goals():
    rule = jax.jit(lambda obs: feasible(obs, NAMES))
    return lambda obs: {NAMES[i] for i in np.flatnonzero(rule(obs))}


@pytest.mark.parametrize(
    ("obs", "wanted"),
    [
        (observation(), set()),
        (observation(energy=8), {"sleep"}),
        (observation("grass", "tree", "water"), {"chop grass", "chop tree", "drink water"}),
        (observation("cow", "zombie", "skeleton"), {"eat cow", "attack cow", "attack zombie", "attack skeleton"}),
        (observation("plant-ripe"), {"eat plant"}),
        (observation("stone", "iron", "diamond"), set()),
        (observation("stone", "coal", "iron", wood_pickaxe=1), {"mine stone", "mine coal"}),
        (observation("iron", "diamond", stone_pickaxe=1), {"mine iron"}),
        (observation("diamond", iron_pickaxe=2), {"mine diamond"}),
        (observation(wood=1), {"place crafting table", "make crafting table"}),
        (observation("table", wood=1), {"make crafting table", "make wood pickaxe", "make wood sword"}),
        (observation(stone=3, sapling=1), {"place stone", "place plant"}),
        (observation(stone=4), {"place stone", "place furnace"}),
        (
            observation("table", "furnace", wood=1, coal=1, iron=1),
            {"make crafting table", *(f"make {x} {y}" for x in ("wood", "iron") for y in ("pickaxe", "sword"))},
        ),
        (
            observation("table", wood=1, coal=1, iron=1, stone=1),
            {"make crafting table", "place stone"}
            | {f"make {x} {y}" for x in ("wood", "stone") for y in ("pickaxe", "sword")},
        ),
    ],
)
def test_the_oracle_by_hand(goals, obs, wanted):
    assert goals(obs) == wanted


def test_what_stands_on_a_cell_hides_it(goals):
    obs = observation("tree", "zombie")
    hidden = obs["view"].at[0, 0, 1].set(1)
    assert goals(obs) == {"chop tree", "attack zombie"} and goals({**obs, "view": hidden}) == {"attack zombie"}


@pytest.mark.parametrize("count", [17, 20])
def test_actions_without_names_of_things_are_refused(count):
    with pytest.raises(ValueError, match=f"{count} actions.*27"):
        goal_spec_for(make(f"CrafterText-v1?actions={count}")[0])
    assert "chop tree" in goal_spec_for(make("CrafterText-v1?actions=27")[0]).single_goals


def test_the_scripted_adviser_answers_as_the_oracle_except_for_counts(goals):
    from llmrl_jax.systems.ellm.scripted import ScriptedSuggester

    spec = goal_spec_for(make("CrafterText-v1")[0])
    assert spec.captions == NAMES and int(spec.valid.sum()) == 29
    assert len(spec.achievements) == 22 and len(CATEGORIES) == 4
    adviser = ScriptedSuggester(spec)
    for obs in (
        observation("grass", "tree", "water", energy=5),
        observation("table", "cow", wood=2, sapling=1, wood_pickaxe=1),
        observation("table", "furnace", "stone", "iron", wood=1, stone=5, coal=1, iron=1, stone_pickaxe=1),
    ):
        key = text.prompt_key(text.facts(obs["view"], obs["inventory"], jnp.int32(3)))
        reply = adviser.complete([prompts.request(spec.describe(int(key)), spec.verbs, {})])[0].text
        assert set(prompts.read_goals(reply)) == goals(obs), spec.describe(int(key))


def test_goals_and_tasks_are_actions():
    assert set(ORACLE) <= set(NAMES) and {name for pair in SYNONYMS for name in pair} <= set(NAMES)
    assert len(ORACLE) == 24
    steps = {task.name: task_steps(task, NAMES) for task in TASKS}
    assert all(steps[name] for name in steps if name != "survival"), [n for n in steps if not steps[n]]
    assert steps["gardening"] == ("chop grass", "chop tree", "place plant")
    assert steps["deforestation"] == ("chop tree",) * 5
    few = action_set(27).names
    assert task_steps(next(t for t in TASKS if t.name == "eat_cow"), few) == ("attack cow",)
