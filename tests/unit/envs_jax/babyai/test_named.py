"""BK-RL's levels: targets that the id names."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.levels.named import named_target


PREFIX = "BabyAI-Text-"
IDS = {
    "GoToLocal-Pretraining-S20": (20, 8, 400),
    "GoToLocal-RedBall-S20": (20, 8, 400),
    "GoToLocal-PurpleBall-S20": (20, 8, 400),
    "GoToLocal-RedKey-S20": (20, 8, 400),
    "GoToLocal-PurpleKey-S20": (20, 8, 400),
    "GoToLocal-RedBall-S23": (23, 13, 529),
    "GoToLocal-PurpleKey-S23": (23, 13, 529),
    "GoToLocal-RedBall-S25": (25, 16, 625),
    "GoToLocal-PurpleKey-S25": (25, 16, 625),
    "GoToLocal-RedBall-S28": (28, 21, 784),
    "GoToLocal-PurpleKey-S28": (28, 21, 784),
    "GoToLocal-RedBall-S30": (30, 26, 900),
    "GoToLocal-PurpleKey-S30": (30, 26, 900),
    "GoTo-RedBallBlueBox-S20": (20, 9, 800),
    "GoTo-PurpleBallGreenKey-S20": (20, 9, 800),
    "GoTo-PurpleBallPurpleBox-S20": (20, 9, 800),
    "PickUp-RedBall-S20": (20, 9, 400),
    "PickUp-PurpleKey-S20": (20, 9, 400),
}
"""Size of the room, objects, and step limit (2407.03964)."""


@pytest.mark.parametrize(
    "name", [name if i % 6 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(IDS)]
)
def test_rooms_objects_and_limits_are_the_published_ones(name):
    env, params = envs_jax.make(PREFIX + name)
    size, objects, limit = IDS[name]
    assert (env.level.rooms.size, env.level.num_objects) == (size, objects)
    kind = np.array([1, 0, 1, 0] if env.level.clauses == (0, 2) else [1, 0, 0, 0])
    assert int(env.step_limit(kind, np.int32(0), params)) == limit
    assert set(envs_jax.ids(PREFIX)) == {PREFIX + name for name in IDS}


def missions(id, count=32):
    env, params = envs_jax.make(PREFIX + id)
    obs, _ = jax.jit(jax.vmap(lambda key: env.reset(key, params)))(jax.random.split(jax.random.key(0), count))
    captions = np.asarray(obs["mission"])
    return {env.captions["mission"].render(row).replace(" a ", " the ") for row in captions}


@pytest.mark.slow
def test_missions_name_the_target():
    drawn = {f"go to the {color} {kind}" for color in ("red", "green", "blue") for kind in ("ball", "box")}
    assert missions("GoToLocal-Pretraining-S20", 64) == drawn
    assert missions("GoTo-PurpleBallGreenKey-S20") == {
        "go to the purple ball, then go to the green key",
        "go to the green key after you go to the purple ball",
    }
    assert missions("GoTo-PurpleBallPurpleBox-S20") == {  # what the published class of the name above asks for
        "go to the purple ball, then go to the purple box",
        "go to the purple box after you go to the purple ball",
    }


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target": "red bal"}, "mean 'red ball'"),
        ({"target": "random", "then": "blue box"}, "target.*'blue box'"),
        ({"then": "blue door"}, "'blue door'"),
        ({"verb": "goto"}, "verb.*'goto'"),
        ({"room_size": 40}, "room_size"),
        ({"num_dists": -1}, "num_dists"),
    ],
)
def test_other_targets_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        named_target(**options)
