"""BabyAI and BabyAI-Text: grids, missions in words, GLAM's levels (glam reference, sections 2 and 6)."""

from __future__ import annotations

from typing import Any

from envs_jax.registry import register


_SAME = (
    "GoToRedBallGrey",
    "GoToRedBall",
    "GoToRedBallNoDists",
    "GoToObj",
    "GoToLocal",
    "GoTo",
    "GoToImpUnlock",
    "GoToSeq",
    "GoToRedBlueBall",
    "GoToDoor",
    "GoToObjDoor",
    "Open",
    "OpenRedDoor",
    "OpenDoor",
    "OpenTwoDoors",
    "Pickup",
    "UnblockPickup",
    "PickupLoc",
    "PickupDist",
    "PickupAbove",
    "PutNextLocal",
    "Unlock",
    "UnlockLocal",
    "KeyInBox",
    "UnlockPickup",
    "BlockedUnlockPickup",
    "UnlockToUnlock",
    "ActionObjDoor",
    "KeyCorridor",
    "Synth",
    "SynthLoc",
    "SynthSeq",
    "MiniBossLevel",
    "BossLevel",
    "BossLevelNoUnlock",
)
"""Ids that are a level's own name."""

_GLAM = (
    "MixedTrainLocal",
    "MixedTestLocal",
    "PickUpSeqGoToLocal",
    "PickUpThenGoToLocal",
    "GoToAfterPickUpLocal",
    "PickUpSeqPickUpLocal",
)

_VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{name}-v0": {"level": name} for name in (*_SAME, *_GLAM)},
    "GoToObjS4-v0": {"level": "GoToObj", "room_size": 4},
    "GoToObjS6-v1": {"level": "GoToObj", "room_size": 6},
    **{
        f"GoToLocalS{size}N{n}-v0": {"level": "GoToLocal", "room_size": size, "num_dists": n}
        for size, counts in ((5, (2,)), (6, (2, 3, 4)), (7, (4, 5)), (8, (2, 3, 4, 5, 6, 7, 16)))
        for n in counts
    },
    "GoToOpen-v0": {"level": "GoTo", "doors_open": True},
    "GoToObjMaze-v0": {"level": "GoTo", "num_dists": 1},
    "GoToObjMazeOpen-v0": {"level": "GoTo", "num_dists": 1, "doors_open": True},
    "GoToObjMazeS4R2-v0": {"level": "GoTo", "num_dists": 1, "room_size": 4, "num_rows": 2, "num_cols": 2},
    **{f"GoToObjMazeS{s}-v0": {"level": "GoTo", "num_dists": 1, "room_size": s} for s in (4, 5, 6, 7)},
    "GoToSeqS5R2-v0": {"level": "GoToSeq", "room_size": 5, "num_rows": 2, "num_cols": 2, "num_dists": 4},
    "OpenDoorDebug-v0": {"level": "OpenDoor", "debug": True},
    "OpenDoorColor-v0": {"level": "OpenDoor", "select_by": "color"},
    "OpenDoorLoc-v0": {"level": "OpenDoor", "select_by": "loc"},
    "OpenRedBlueDoors-v0": {"level": "OpenTwoDoors", "red_blue": True},
    "OpenRedBlueDoorsDebug-v0": {"level": "OpenTwoDoors", "red_blue": True, "strict": True},
    **{f"OpenDoorsOrderN{n}-v0": {"level": "OpenDoorsOrder", "num_doors": n} for n in (2, 4)},
    **{f"OpenDoorsOrderN{n}Debug-v0": {"level": "OpenDoorsOrder", "num_doors": n, "debug": True} for n in (2, 4)},
    "PickupDistDebug-v0": {"level": "PickupDist", "debug": True},
    "PutNextLocalS5N3-v0": {"level": "PutNextLocal", "room_size": 5, "num_objs": 3},
    "PutNextLocalS6N4-v0": {"level": "PutNextLocal", "room_size": 6, "num_objs": 4},
    **{
        f"PutNextS{s}N{n}{carrying}-v0": {
            "level": "PutNext",
            "room_size": s,
            "objs_per_room": n,
            "start_carrying": bool(carrying),
        }
        for carrying, sizes in (("", ((4, 1), (5, 1), (5, 2), (6, 3), (7, 4))), ("Carrying", ((5, 2), (6, 3), (7, 4))))
        for s, n in sizes
    },
    "PutNext-v0": {"level": "PutNextMaze"},
    "UnlockLocalDist-v0": {"level": "UnlockLocal", "distractors": True},
    "UnlockPickupDist-v0": {"level": "UnlockPickup", "distractors": True},
    **{f"FindObjS{size}-v0": {"level": "FindObj", "room_size": size} for size in (5, 6, 7)},
    **{
        f"KeyCorridorS{s}R{r}-v0": {"level": "KeyCorridor", "room_size": s, "num_rows": r}
        for s, r in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))
    },
    **{f"OneRoomS{size}-v0": {"level": "OneRoom", "room_size": size} for size in (8, 12, 16, 20)},
    **{
        f"MoveTwoAcrossS{s}N{n}-v0": {"level": "MoveTwoAcross", "room_size": s, "objs_per_room": n}
        for s, n in ((5, 2), (8, 9))
    },
    "SynthS5R2-v0": {"level": "Synth", "room_size": 5, "num_rows": 2},
}
"""Ids without their prefix: minigrid's own, GLAM's and its study of 16 distractors, and the PutNext of the paper on
BabyAI."""

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
        from envs_jax.babyai.bot.expert import expert_action

        return expert_action
    if name in ("bot_action", "initial_memory"):
        from envs_jax.babyai.bot import bot

        return getattr(bot, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
