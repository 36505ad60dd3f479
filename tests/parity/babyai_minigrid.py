"""The Python side of the BabyAI parity tests: GLAM's levels on minigrid 3.2.0, and a recorder of episodes."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass

import gymnasium
import minigrid  # noqa: F401  (registers its ids)
import numpy as np
from minigrid.core.roomgrid import RoomGrid
from minigrid.envs.babyai.core.levelgen import LevelGen
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)
from minigrid.utils.baby_ai_bot import BabyAIBot


TRAIN_BANS = ("yellow box", "red key", "red door", "green ball", "grey door")
TEST_ONLY = ("yellow box", "red key", "red door", "green ball", "grey door")


class GlamLevel(LevelGen):
    """GLAM's levels by their description (2302.02662): tasks of one room, and `open` of two."""

    def __init__(self, task: str, test: bool = False, order: str = "either", num_dists: int = 8, room_size: int = 8):
        self.task, self.test, self.order = task, test, order
        super().__init__(
            room_size=room_size,
            num_rows=1,
            num_cols=2 if task == "open" else 1,
            num_dists=num_dists,
            locations=False,
            unblocking=False,
            implicit_unlock=False,
        )

    def gen_mission(self):
        draw = {"open": self._unlock, "go_to": self._one, "pick_up": self._one}.get(self.task, self._two)
        while True:
            RoomGrid._gen_grid(self, self.width, self.height)
            if draw() and self.check_objs_reachable(raise_exc=False) and self._speakable():
                return

    def _speakable(self):
        text = self.instrs.surface(self)
        named = [
            f"{color} {kind}"
            for color in ("red", "green", "blue", "purple", "yellow", "grey")
            for kind in ("key", "ball", "box", "door")
            if f"{color} {kind}" in text
        ]
        if self.test:
            return all(name in TEST_ONLY for name in named)
        return not any(name in TRAIN_BANS for name in named)

    def _one(self):
        self.place_agent()
        thing = self._rand_elem(self.add_distractors(num_distractors=self.num_dists + 1, all_unique=False))
        clause = GoToInstr if self.task == "go_to" else PickupInstr
        self.instrs = clause(ObjDesc(thing.type, thing.color))
        return True

    def _two(self):
        self.place_agent()
        things = self.add_distractors(num_distractors=self.num_dists + 2, all_unique=False)
        a, b = self._rand_elem(things), self._rand_elem(things)
        same = [t for t in things if (t.type, t.color) == (a.type, a.color)]
        while len(same) < 2 and b is a:
            b = self._rand_elem(things)
        a, b = ObjDesc(a.type, a.color), ObjDesc(b.type, b.color)
        if self.task == "put_next":
            self.instrs = PutNextInstr(a, b)
            return True
        first = PickupInstr(a)
        second = (GoToInstr if self.task == "pick_up_seq_go_to" else PickupInstr)(b)
        order = self._rand_elem(["before", "after"]) if self.order == "either" else self.order
        self.instrs = BeforeInstr(first, second) if order == "before" else AfterInstr(second, first)
        return True

    def _unlock(self):
        color = self._rand_elem(["red", "grey"] if self.test else ["yellow", "green", "blue", "purple"])
        column = self._rand_int(0, 2)
        self.add_door(column, 0, 0 if column == 0 else 2, color, locked=True)
        self.add_object(1 - column, 0, "key", color)
        self.add_distractors(1 - column, 0, num_distractors=self.num_dists, all_unique=False)
        self.place_agent(1 - column, 0)
        says = color if self.test else self._rand_elem([None, color])
        self.instrs = OpenInstr(ObjDesc("door", says))
        return True


class PutNextMaze(RoomGridLevel):
    """The PutNext of BabyAI's paper, which minigrid 3.2.0 lacks, by its description: 18 things in a maze."""

    def gen_mission(self):
        self.place_agent()
        self.connect_all()
        things = self.add_distractors(num_distractors=18, all_unique=False)
        self.check_objs_reachable()
        a, b = self._rand_subset(things, 2)
        self.instrs = PutNextInstr(ObjDesc(a.type, a.color), ObjDesc(b.type, b.color))


class NamedTarget(RoomGridLevel):
    """BK-RL's levels by their description (2407.03964): named objects among random ones."""

    def __init__(self, target: str, then: str = "", verb: str = "go_to", num_dists: int = 7, room_size: int = 20):
        self.target, self.then, self.clause, self.num_dists = target, then, verb, num_dists
        super().__init__(room_size=room_size, num_rows=1, num_cols=1)

    def gen_mission(self):
        target = self.target
        if target == "random":
            target = f"{self._rand_elem(['red', 'green', 'blue'])} {self._rand_elem(['ball', 'box'])}"
        names = [name.split() for name in (target, self.then) if name]
        self.place_agent()
        for color, kind in names:
            self.add_object(0, 0, kind, color)
        self.add_distractors(num_distractors=self.num_dists, all_unique=False)
        self.check_objs_reachable()
        first, *second = [ObjDesc(kind, color) for color, kind in names]
        first = (GoToInstr if self.clause == "go_to" else PickupInstr)(first)
        if not second:
            self.instrs = first
        elif self._rand_bool():
            self.instrs = BeforeInstr(first, GoToInstr(*second))
        else:
            self.instrs = AfterInstr(GoToInstr(*second), first)


SIZES = {23: 12, 25: 15, 28: 20, 30: 25}
"""Distractors by the size of a room, where they are not 7."""


def named_target(name: str) -> NamedTarget:
    """The level behind an id of BK-RL without its prefix, such as `GoToLocal-RedBall-S23`."""
    verb, target, size = name.split("-")
    words = re.findall("[A-Z][a-z]+", target)
    pairs = [" ".join(words[i : i + 2]).lower() for i in range(0, len(words), 2)]
    options = {"room_size": int(size[1:]), "num_dists": SIZES.get(int(size[1:]), 7)}
    if verb == "PickUp":
        return NamedTarget(pairs[0], verb="pick_up", num_dists=8)
    return NamedTarget("random" if target == "Pretraining" else pairs[0], "".join(pairs[1:]), **options)


MIX = ("go_to", "pick_up", "put_next", "pick_up_seq_go_to", "open")

GLAM = {
    "MixedTrainLocal": [{"task": task} for task in MIX],
    "MixedTestLocal": [{"task": task, "test": True} for task in MIX],
    "PickUpSeqGoToLocal": [{"task": "pick_up_seq_go_to"}],
    "PickUpThenGoToLocal": [{"task": "pick_up_seq_go_to", "order": "before"}],
    "GoToAfterPickUpLocal": [{"task": "pick_up_seq_go_to", "order": "after"}],
    "PickUpSeqPickUpLocal": [{"task": "pick_up_seq_pick_up"}],
}


def build(id: str):
    """The minigrid environments behind one of our ids: several for a mix of tasks, one instance for each."""
    if id.startswith("BabyAI-Text-"):
        return [named_target(id.removeprefix("BabyAI-Text-"))]
    name = id.removeprefix("BabyAI-").rsplit("-", 1)[0]
    if name in GLAM:
        return [GlamLevel(**options) for options in GLAM[name]]
    if name == "PutNext":
        return [PutNextMaze()]
    if name == "GoToLocalS8N16":
        return [gymnasium.make("BabyAI-GoToLocal-v0", num_dists=16).unwrapped]
    return [_ending(gymnasium.make(id).unwrapped)]


def _ending(env, tries: int = 2000):
    """A level whose `place_agent` rejects the world where the room it chose has no pose for the agent: minigrid 3.2.0
    looks for one for ever (on some worlds of SynthS5R2)."""
    place_agent, place_obj, poses = env.place_agent, env.place_obj, 0

    def bounded_agent(*args, **kwargs):
        nonlocal poses
        poses = 0
        return place_agent(*args, **kwargs)

    def bounded_obj(obj, *args, **kwargs):
        nonlocal poses
        poses += obj is None
        if obj is None and poses > tries:
            raise RecursionError("no pose for the agent")
        return place_obj(obj, *args, **kwargs)

    env.place_agent, env.place_obj = bounded_agent, bounded_obj
    return env


def quietly(function, *args, **kwargs):
    """Call something of minigrid, which prints a line for each rejected world."""
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*args, **kwargs)


class Bot(BabyAIBot):
    """minigrid's bot, stopped where it would go on looking for ways for ever, as it does on some worlds."""

    PATIENCE = 300
    """Searches for one action; an ordinary one takes a handful."""

    def replan(self, action_taken=None):
        self.searches = 0
        return super().replan(action_taken)

    def _shortest_path(self, *args, **kwargs):
        self.searches += 1
        if self.searches > self.PATIENCE:
            raise TimeoutError(f"{self.searches} searches for one action")
        return super()._shortest_path(*args, **kwargs)


@dataclass
class Episode:
    """Steps of minigrid from the moment of import on; `T` steps, to the end of the episode or the cap."""

    mission: str
    first: tuple[np.ndarray, int]
    """Image and direction at the import."""
    actions: np.ndarray
    images: np.ndarray
    directions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


WILD = np.array([0.17, 0.17, 0.3, 0.12, 0.1, 0.12, 0.02])
"""Random actions, with enough forward that something happens."""


def record(env, seed: int, steps: int, take_over, make_bot=Bot) -> tuple[object, Episode]:
    """Play one episode of minigrid, and take it over at its start or, for every fourth seed, in its middle.

    Even seeds act at random. Odd seeds follow the bot that `make_bot(env)` makes, with one random action in eight.
    `take_over(env)` is called once; what it returns is returned with the record.
    """
    rng = np.random.default_rng(seed)
    obs, _ = quietly(env.reset, seed=seed)
    bot, action, done = (make_bot(env) if seed % 2 else None), None, False

    def choose():
        nonlocal bot
        if bot is not None:
            try:
                wanted = int(quietly(bot.replan, action))
                # the bot cannot recover from an opened box, so it is jostled with movements only
                return int(rng.integers(3)) if rng.random() < 0.125 else wanted
            except Exception:
                bot = None
        return int(rng.choice(7, p=WILD))

    lead = int(rng.integers(1, 12)) if seed % 4 == 3 or seed % 8 == 2 else 0
    for _ in range(lead):
        action = choose()
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = quietly(env.reset, seed=seed)
            bot, action = (make_bot(env) if seed % 2 else None), None
            break
    taken = take_over(env)
    if env.carrying is not None:
        obs = env.gen_obs()  # where a world starts with something in hand, minigrid's first observation is stale
    first, rows = (obs["image"].copy(), int(obs["direction"])), []
    mission = obs["mission"]
    while not done and len(rows) < steps:
        action = choose()
        obs, reward, terminated, truncated, _ = env.step(action)
        assert obs["mission"] == mission
        rows.append((action, obs["image"], int(obs["direction"]), reward, terminated, truncated))
        done = terminated or truncated
    columns = [np.array(column) for column in zip(*rows)]
    return taken, Episode(mission, first, *columns)
