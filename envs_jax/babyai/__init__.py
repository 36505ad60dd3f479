"""BabyAI and BabyAI-Text: grids, missions in words, GLAM's levels (glam reference, sections 2 and 6)."""

from __future__ import annotations

from typing import Any

from envs_jax.registry import register


_VARIANTS: dict[str, dict[str, Any]] = {
    "GoToRedBallGrey-v0": {"level": "GoToRedBallGrey"},
    "GoToRedBall-v0": {"level": "GoToRedBall"},
    "GoToRedBallNoDists-v0": {"level": "GoToRedBallNoDists"},
    "GoToObj-v0": {"level": "GoToObj"},
    "GoToObjS4-v0": {"level": "GoToObj", "room_size": 4},
    "GoToObjS6-v1": {"level": "GoToObj", "room_size": 6},
    "GoToLocal-v0": {"level": "GoToLocal"},
    **{
        f"GoToLocalS{size}N{n}-v0": {"level": "GoToLocal", "room_size": size, "num_dists": n}
        for size, counts in ((5, (2,)), (6, (2, 3, 4)), (7, (4, 5)), (8, (2, 3, 4, 5, 6, 7, 16)))
        for n in counts
    },
    "PickupLoc-v0": {"level": "PickupLoc"},
    "PutNextLocal-v0": {"level": "PutNextLocal"},
    "PutNextLocalS5N3-v0": {"level": "PutNextLocal", "room_size": 5, "num_objs": 3},
    "PutNextLocalS6N4-v0": {"level": "PutNextLocal", "room_size": 6, "num_objs": 4},
    **{f"OneRoomS{size}-v0": {"level": "OneRoom", "room_size": size} for size in (8, 12, 16, 20)},
    **{
        f"{name}-v0": {"level": name}
        for name in (
            "MixedTrainLocal",
            "MixedTestLocal",
            "PickUpSeqGoToLocal",
            "PickUpThenGoToLocal",
            "GoToAfterPickUpLocal",
            "PickUpSeqPickUpLocal",
        )
    },
}
"""Ids without their prefix: minigrid's own, GLAM's, and GLAM's study of 16 distractors."""

for _name, _options in _VARIANTS.items():
    register(f"BabyAI-{_name}", "envs_jax.babyai.env:make", **_options)
for _name, _options in _VARIANTS.items():
    register(f"BabyAI-Text/{_name}", "envs_jax.babyai.env:make", text=True, **_options)


def __getattr__(name: str):
    # late, so that registering ids imports no world
    if name == "import_state":
        from envs_jax.babyai.reference import import_state

        return import_state
    if name == "expert_action":
        from envs_jax.babyai.expert import expert_action

        return expert_action
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
