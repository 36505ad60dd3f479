"""Import of the state of a live minigrid environment, also in mid-episode."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from envs_jax.babyai.constants import BALL, BOX, COLORS, DOOR, KEY, TYPES, WALL
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.mission import (
    AFTER,
    ANY,
    BEFORE,
    CLAUSES,
    GO_TO,
    LOCATIONS,
    NO_CLAUSE,
    OPEN_DOOR,
    PICK_UP,
    PUT_NEXT,
    SINGLE,
    Mission,
)
from envs_jax.babyai.state import EMPTY_CELL, STATE_MASK, STATE_SHIFT, WALL_CELL, Params, State, pack
from envs_jax.babyai.text.english import MISSION_LENGTH, MISSIONS, mission_caption
from envs_jax.babyai.verify import object_set


KINDS = {"GoToInstr": GO_TO, "OpenInstr": OPEN_DOOR, "PickupInstr": PICK_UP, "PutNextInstr": PUT_NEXT}
ORDERS = {"BeforeInstr": BEFORE, "AfterInstr": AFTER}
TASKS = {GO_TO: "go_to", OPEN_DOOR: "open", PICK_UP: "pick_up", PUT_NEXT: "put_next"}


def import_state(minigrid_env: Any, env: Any, params: Params) -> tuple[dict[str, jax.Array], State]:
    """The pair that `reset` would return, for the current state of a minigrid 3.2.0 BabyAI environment.

    Everything that affects future steps is imported: grid and object identities, carried objects and contents of boxes,
    the verifier's sets, positions, latches and memories, the step count and limit.

    **Arguments:** `minigrid_env`, reset at least once, possibly wrapped; `env`, an environment from `envs_jax.make` of
    the same level, possibly wrapped; `params`, its parameters (a positive `max_steps` overrides minigrid's).
    **Returns:** `(obs, state)` of the innermost `env`.
    **Raises:** `ValueError` if `env` cannot hold that state: a larger grid, more objects, other kinds of clause.
    """
    env = env.unwrapped
    if not isinstance(env, BabyAI):
        raise ValueError(f"import_state needs a BabyAI world of envs_jax.make, not {type(env).__name__}")
    state = _Importer(minigrid_env.unwrapped, env, params).state()
    mission = MISSIONS.render(state.mission_caption)
    if mission != minigrid_env.unwrapped.mission:
        raise ValueError(f"minigrid words its mission as {minigrid_env.unwrapped.mission!r}, not {mission!r}")
    if "_observe" not in vars(env):
        vars(env)["_observe"] = jax.jit(lambda state: (env.observe(state), state))
    return vars(env)["_observe"](state)


class _Importer:
    """Reads one minigrid environment once."""

    def __init__(self, source: Any, env: BabyAI, params: Params):
        self.source, self.env, self.params = source, env, params
        rooms = env.level.rooms
        if source.width > rooms.width or source.height > rooms.height:
            raise ValueError(
                f"minigrid's grid is {source.width} x {source.height}; this level's is {rooms.width} x {rooms.height}"
            )
        self.objects: list[Any] = []
        self.clauses = self._clauses(source.instrs)
        for position in self._positions():
            self._number(source.grid.get(*position))
        self._number(source.carrying)
        for _, instr, _ in self.clauses:
            for desc in _descriptors(instr):
                for obj in desc.obj_set:
                    self._number(obj)  # destroyed objects, which a verifier may still look for
        for obj in list(self.objects):
            self._number(obj.contains)
        if len(self.objects) > env.level.num_objects:
            raise ValueError(f"minigrid's world has {len(self.objects)} objects; this level's {env.level.num_objects}")

    def _positions(self):
        return ((x, y) for x in range(self.source.width) for y in range(self.source.height))

    def _number(self, obj: Any) -> None:
        if obj is None or obj.type == TYPES[WALL] or any(obj is o for o in self.objects):
            return
        if obj.type not in (TYPES[DOOR], TYPES[KEY], TYPES[BALL], TYPES[BOX]):
            raise ValueError(f"BabyAI has no {obj.type}; this world knows walls, doors, keys, balls and boxes")
        self.objects.append(obj)

    def _id(self, obj: Any) -> int:
        return next((i for i, o in enumerate(self.objects) if o is obj), -1)

    def _packed(self, obj: Any) -> int:
        if obj is None:
            return 0
        kind, color, state = obj.encode()
        return pack(int(kind), int(color), int(state), self._id(obj))

    def _clauses(self, instr: Any) -> list[tuple[int, Any, bool]]:
        """Every clause: its slot, its instruction, and whether it is latched."""
        name = type(instr).__name__
        if getattr(instr, "strict", False) and name not in KINDS:
            raise ValueError(f"a strict {name} (no level of minigrid 3.2.0 has one) cannot be imported")
        if name in ORDERS:
            halves = [(0, instr.instr_a, instr.a_done), (2, instr.instr_b, instr.b_done)]
        else:
            halves = [(0, instr, False)]
        clauses = []
        for slot, half, status in halves:
            if type(half).__name__ == "AndInstr":
                clauses += [(slot, half.instr_a, half.a_done), (slot + 1, half.instr_b, half.b_done)]
            else:
                clauses.append((slot, half, status))
        for slot, clause, _ in clauses:
            kind = KINDS.get(type(clause).__name__)
            if kind not in self.env.level.kinds or slot not in self.env.level.clauses:
                raise ValueError(f"this level has no mission with a {type(clause).__name__} in place {slot}")
        return [(slot, clause, status == "success") for slot, clause, status in clauses]

    def _tracked(self, cells: np.ndarray) -> np.ndarray:
        """The position of each object at the last refresh. A position without an object on the grid belongs to one that
        was removed since; objects that match the same descriptors are interchangeable."""
        tracked = cells.copy()
        descs = [desc for _, instr, _ in self.clauses for desc in _descriptors(instr)]
        height = self.env.level.rooms.height
        desc_cells = [{int(x) * height + int(y) for x, y in desc.obj_poss} for desc in descs]
        for i, obj in enumerate(self.objects):
            names = tuple(k for k, desc in enumerate(descs) if any(obj is o for o in desc.obj_set))
            if names and cells[i] >= 0 and cells[i] not in desc_cells[names[0]]:
                tracked[i] = -1  # taken out of a box since
        unexplained: dict[int, list[int]] = {}
        for k, positions in enumerate(desc_cells):
            for position in positions - set(tracked.tolist()):
                unexplained.setdefault(position, []).append(k)
        for i, obj in enumerate(self.objects):
            if tracked[i] >= 0:
                continue
            named = [k for k, desc in enumerate(descs) if any(obj is o for o in desc.obj_set)]
            match = next((p for p, indices in unexplained.items() if indices == named), None)
            if match is not None:
                tracked[i] = match
                del unexplained[match]
        return tracked

    def state(self) -> State:
        """The state, as numpy arrays."""
        source, level = self.source, self.env.level
        height = level.rooms.height
        grid = np.full((level.rooms.width, height), WALL_CELL, np.int16)
        codes, content = np.zeros(level.num_objects, np.int16), np.zeros(level.num_objects, np.int16)
        cells = np.full(level.num_objects, -1, np.int16)
        for x, y in self._positions():
            obj = source.grid.get(x, y)
            if obj is None or obj.type != TYPES[WALL]:
                grid[x, y] = self._packed(obj) or EMPTY_CELL
            if self._id(obj) >= 0:
                cells[self._id(obj)] = x * height + y
        for i, obj in enumerate(self.objects):
            codes[i] = self._packed(obj) & ~(STATE_MASK << STATE_SHIFT)
            content[i] = self._packed(obj.contains)

        mission = Mission(
            kind=np.full(CLAUSES, NO_CLAUSE, np.int8),
            order=np.int8(ORDERS.get(type(source.instrs).__name__, SINGLE)),
            type=np.full((CLAUSES, 2), ANY, np.int8),
            color=np.full((CLAUSES, 2), ANY, np.int8),
            location=np.full((CLAUSES, 2), ANY, np.int8),
            many=np.zeros((CLAUSES, 2), bool),
            strict=np.zeros(CLAUSES, bool),
        )
        sets = np.zeros((CLAUSES, 2, level.num_objects), bool)
        held_ids, completed = np.full(CLAUSES, -1, np.int8), np.zeros(CLAUSES, bool)
        matched = np.zeros(CLAUSES, bool)
        for slot, instr, latched in self.clauses:
            mission.kind[slot] = KINDS[type(instr).__name__]
            mission.strict[slot] = getattr(instr, "strict", False)
            completed[slot], held_ids[slot] = latched, self._id(getattr(instr, "preCarrying", None))
            matched[slot] = instr.lastStepMatch
            for k, desc in enumerate(_descriptors(instr)):
                mission.type[slot, k] = ANY if desc.type is None else TYPES.index(desc.type)
                mission.color[slot, k] = ANY if desc.color is None else COLORS.index(desc.color)
                mission.location[slot, k] = ANY if desc.loc is None else LOCATIONS.index(desc.loc)
                mission.many[slot, k] = len(desc.obj_set) > 1
                for obj in desc.obj_set:
                    if self._id(obj) >= 0:
                        sets[slot, k, self._id(obj)] = True
        kinds = [int(mission.kind[slot]) for slot, _, _ in self.clauses]
        name = TASKS[kinds[0]] if len(kinds) == 1 else "pick_up_seq_go_to"
        limit = int(self.params.max_steps) or int(source.max_steps)
        words = np.asarray(object_set(sets))
        return State(
            grid=grid,
            object=codes,
            cell=cells,
            content=content,
            tracked=self._tracked(cells),
            carrying=np.int16(self._packed(source.carrying)),
            position=np.array([int(v) for v in source.agent_pos], np.int32),
            direction=np.int32(source.agent_dir),
            step_count=np.int32(source.step_count),
            max_steps=np.int32(limit),
            mission=mission,
            mission_caption=np.asarray(_caption(mission)).reshape(MISSION_LENGTH),
            mover=words[:, 0],
            fixed=words[:, 1],
            held=held_ids,
            met=completed,
            matched=matched,
            task=np.int32(level.tasks.index(name) if name in level.tasks else 0),
        )


def _descriptors(instr: Any) -> list[Any]:
    return [getattr(instr, name) for name in ("desc", "desc_move", "desc_fixed") if hasattr(instr, name)]


def _caption(mission: Mission) -> jax.Array:
    global _jitted_caption
    if _jitted_caption is None:
        _jitted_caption = jax.jit(mission_caption)
    return _jitted_caption(mission)


_jitted_caption: Any = None
