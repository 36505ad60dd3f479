"""BabyAI and BabyAI-Text: grid worlds with text missions, and GLAM's levels.

Chevalier-Boisvert et al. (1810.08272), as in minigrid 3.2.0; Carta et al. (2302.02662) for BabyAI-Text.
"""

from __future__ import annotations

from typing import Any

from envs_jax.registry import register


_LEVELS = {
    "GoToRedBallGrey": "go to the red ball, among grey things",
    "GoToRedBall": "go to the red ball, among other things",
    "GoToRedBallNoDists": "go to the red ball, alone in the room",
    "GoToObj": "go to the only object",
    "GoToLocal": "go to an object of one room",
    "GoTo": "go to an object, in several rooms",
    "GoToImpUnlock": "go to an object behind a locked door",
    "GoToSeq": "go to objects, one after another or in any order",
    "GoToRedBlueBall": "go to the only ball that is red or blue",
    "GoToDoor": "go to one of four doors",
    "GoToObjDoor": "go to one of eight things or four doors",
    "Open": "open a door",
    "OpenRedDoor": "open the red door",
    "OpenDoor": "open one of four doors, named by its colour or by where it is",
    "OpenTwoDoors": "open one door, then another",
    "Pickup": "pick up an object, in several rooms",
    "UnblockPickup": "pick up an object; something is in the way",
    "PickupLoc": "pick up an object, perhaps named by where it is",
    "PickupDist": "pick up one of five objects, named by type, colour or both",
    "PickupAbove": "pick up the object in the room above",
    "PutNextLocal": "put an object next to another, in one room",
    "Unlock": "open a locked door; the key is in another room",
    "UnlockLocal": "open a locked door; the key is in the room",
    "KeyInBox": "open a locked door; the key is in a box",
    "UnlockPickup": "pick up the box behind a locked door",
    "BlockedUnlockPickup": "pick up the box behind a locked door that a ball blocks",
    "UnlockToUnlock": "pick up the ball behind two locked doors",
    "ActionObjDoor": "go to, pick up or open one of five things and four doors",
    "KeyCorridor": "pick up the ball behind a locked door off a corridor",
    "Synth": "one instruction of any kind",
    "SynthLoc": "one instruction of any kind, objects perhaps named by where they are",
    "SynthSeq": "instructions of any kind and order",
    "MiniBossLevel": "everything, in four small rooms",
    "BossLevel": "everything",
    "BossLevelNoUnlock": "everything except locked doors",
    "MixedTrainLocal": "GLAM's training tasks",
    "MixedTestLocal": "GLAM's training tasks, about objects kept back from training",
    "PickUpSeqGoToLocal": "pick up A, then go to B; or go to B after you pick up A",
    "PickUpThenGoToLocal": "pick up A, then go to B",
    "GoToAfterPickUpLocal": "go to B after you pick up A",
    "PickUpSeqPickUpLocal": "pick up A, then B; or B after A: a sequence that GLAM's training lacks",
}
"""Levels whose names are ids, and their tasks; the last six are GLAM's."""

_SIZED = {
    "OpenDoorsOrder": "open one door, or two in an order",
    "PutNext": "put an object of one half of the room next to one of the other",
    "PutNextMaze": "put an object next to another, in several rooms",
    "FindObj": "pick up the only object of nine rooms",
    "OneRoom": "pick up the ball, the only object",
    "MoveTwoAcross": "put an object of each half of the room next to one of the other",
}
"""Levels whose ids contain a size, or use another name."""

_VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{name}-v0": {"level": name} for name in _LEVELS},
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
"""Ids without their prefix: those of minigrid, of GLAM (with its study of 16 distractors), and the PutNext of the
BabyAI paper."""

_NAMED: dict[str, dict[str, Any]] = {
    "GoToLocal-Pretraining-S20": {"target": "random"},
    **{
        f"GoToLocal-{name}-S20": {"target": target}
        for name, target in (
            ("RedBall", "red ball"),
            ("PurpleBall", "purple ball"),
            ("RedKey", "red key"),
            ("PurpleKey", "purple key"),
        )
    },
    **{
        f"GoToLocal-{name}-S{size}": {"target": target, "room_size": size, "num_dists": count}
        for size, count in ((23, 12), (25, 15), (28, 20), (30, 25))
        for name, target in (("RedBall", "red ball"), ("PurpleKey", "purple key"))
    },
    "GoTo-RedBallBlueBox-S20": {"target": "red ball", "then": "blue box"},
    "GoTo-PurpleBallGreenKey-S20": {"target": "purple ball", "then": "green key"},
    "GoTo-PurpleBallPurpleBox-S20": {"target": "purple ball", "then": "purple box"},
    "PickUp-RedBall-S20": {"target": "red ball", "verb": "pick_up", "num_dists": 8},
    "PickUp-PurpleKey-S20": {"target": "purple key", "verb": "pick_up", "num_dists": 8},
}
"""BK-RL's ids without their prefix (Zhang et al., 2407.03964). `GoTo-PurpleBallGreenKey-S20` is what its name says;
the published class of that name is `GoTo-PurpleBallPurpleBox-S20`."""


def _description(level: str, **options: Any) -> str:
    text = ", ".join(name if value is True else f"{name} {value}" for name, value in options.items() if value)
    return {**_LEVELS, **_SIZED}[level] + (f" ({text})" if text else "")


def _target_description(
    target: str, then: str = "", verb: str = "go_to", num_dists: int = 7, room_size: int = 20
) -> str:
    named = "a ball or box" if target == "random" else f"the {target}"
    text = f"{verb.replace('_', ' ')} {named}{f', then to the {then}' if then else ''}"
    return f"{text}, among {num_dists} things in a room of {room_size} x {room_size}"


for _name, _options in _VARIANTS.items():
    register(f"BabyAI-{_name}", "envs_jax.babyai.env:make", about=_description(**_options), **_options)
for _name, _options in _VARIANTS.items():
    register(f"BabyAI-Text/{_name}", "envs_jax.babyai.env:make", about=_description(**_options), text=True, **_options)
for _name, _options in _NAMED.items():
    _arguments = {"about": _target_description(**_options), "level": "NamedTarget", "text": True, **_options}
    register(f"BabyAI-Text-{_name}", "envs_jax.babyai.env:make", **_arguments)


def __getattr__(name: str):
    # imported on first use, so that registering ids imports no environment
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
