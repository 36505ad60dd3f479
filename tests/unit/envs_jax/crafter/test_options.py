"""Crafter's ids and options, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

import envs_jax
from envs_jax.crafter.env import Crafter
from envs_jax.crafter.reference import import_state
from envs_jax.crafter.tasks import task_index
from envs_jax.env import Stack


def values(params):
    return {name: np.asarray(value).item() for name, value in vars(params).items()}


STOCK = {
    "length": 10_000,
    "damage": 1,
    "table_wood": 2,
    "unlock_reward": 1.0,
    "counts_full": True,
    "dying": True,
    "task": -1,
    "end_on_success": False,
}
"""The package's numbers (`CrafterReward-v1`), but for the reward of health."""


def test_ids_and_their_numbers():
    tenth = float(np.float32(0.1))
    cases = {
        "CrafterReward-v1": (17, {"health_reward": tenth}),
        "CrafterNoReward-v1": (17, {"unlock_reward": 0.0, "health_reward": 0.0}),
        "CrafterText-v1": (
            139,
            {"length": 400, "damage": 5, "table_wood": 1, "health_reward": 0.0, "counts_full": False},
        ),
        "Crafter-Text-Reward": (20, {"damage": 5, "health_reward": tenth}),
    }
    for name, task in (
        ("PlaceCraftingTable", "place_table"),
        ("MakeWoodPickAxe", "make_wood_pickaxe"),
        ("CollectDrink", "collect_drink"),
        ("EatCow", "eat_cow"),
    ):
        ends = {"damage": 5, "health_reward": 0.0, "task": task_index(task), "end_on_success": True}
        cases[f"Crafter-Text-{name}"] = 20, ends
    assert set(cases) == set(envs_jax.ids("Crafter"))
    for id, (actions, numbers) in cases.items():
        env, params = envs_jax.make(id)
        assert values(params) == STOCK | numbers, id
        assert len(env.action_names) == env.action_space(params).n == actions, id


def test_numbers_of_a_variant_by_name():
    assert int(Crafter(variant={"length": 7}).default_params.length) == 7
    with pytest.raises(TypeError, match="'lenght'.*'length'"):
        Crafter(variant={"lenght": 7})


def test_options_behind_a_question_mark():
    env, params = envs_jax.make("CrafterText-v1?actions=27&task=deforestation&length=50&slots=128")
    assert len(env.action_names) == 27 and env.slots == 128
    changed = {"task": task_index("deforestation"), "end_on_success": True, "length": 50}
    assert changed.items() <= values(params).items()
    env, _ = envs_jax.make("CrafterReward-v1", image="gray", frames=4, text="instances", view=True)
    parts = env.observation_space(env.default_params).spaces
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    assert shapes.pop("text")[0] == env._instances.size
    assert shapes == {"inventory": (16,), "view": (9, 7, 2), "daylight": (), "image": (84, 84, 4)}
    assert env.stacked == {"image": Stack(4, "first")} and not envs_jax.make("CrafterReward-v1")[0].stacked


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "deforest"}, KeyError, "'deforest'.*'deforestation'"),
        ({"image": "grey"}, ValueError, "image.*'grey'.*'gray'.*none, rgb, gray"),
        ({"text": "smart"}, ValueError, "text.*'smart'.*none, ellm, smartplay, instances"),
        ({"actions": 18}, ValueError, "actions.*18.*17, 20, 27, 139"),
        ({"slots": 40}, ValueError, "slots.*40.*64.*76"),
        ({"slots": 300}, ValueError, "slots.*300.*254"),
        ({"frames": 4}, ValueError, "frames.*4.*image='gray'"),
        ({"pixels": 36}, ValueError, "pixels.*36.*image='gray'"),
        ({"pixels": 40, "image": "gray"}, ValueError, "pixels.*40; 84.*9.*18"),
        ({"frames": 0}, ValueError, "frames.*0.*1"),
        ({"length": -1}, ValueError, "length.*-1.*0"),
        ({"textures": "mine"}, ValueError, "mine"),
    ],
)
def test_what_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        envs_jax.make("CrafterReward-v1", **options)


def test_import_of_other_worlds_is_refused():
    env = Crafter(image=None, slots=64)
    player = SimpleNamespace()
    small = SimpleNamespace(_world=SimpleNamespace(area=(32, 32), objects=[player]), _player=player)
    with pytest.raises(ValueError, match=r"world.*\(32, 32\).*\(64, 64\)"):
        import_state(small, env, env.default_params)
    full = SimpleNamespace(_world=SimpleNamespace(area=(64, 64), objects=[player, *range(65)]), _player=player)
    with pytest.raises(ValueError, match="65 objects.*64 slots"):
        import_state(full, env, env.default_params)
