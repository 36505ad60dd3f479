"""Sokoban with gym-sokoban's rules, rewards and actions, and the text of RAGEN, ROLL and VAGEN."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.boards import draw, separators
from envs_jax.checks import at_least, between, nearest
from envs_jax.env import Environment
from envs_jax.text import Phrasebook
from envs_jax.textgames.sokoban_rooms import FLOOR, MOVES, TARGET, WALL, Room, draw_room, look_up, pack, unpack


BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = 3, 4, 5, 6
"""Content of a cell of the observation's board, beside wall, floor and target: gym-sokoban's numbers, and RAGEN's 6."""

SYMBOLS = "#_O√XPS"
"""The symbol of each number."""

ACTIONS = {
    "push": ("Up", "Down", "Left", "Right"),
    "all": (
        "no operation",
        *(f"{verb} {direction}" for verb in ("push", "move") for direction in ("up", "down", "left", "right")),
    ),
}
"""RAGEN's actions, which push and move, and all of gym-sokoban's."""

WIDEST = (8, 7)
"""The widest room that has text, with one or two boxes and with more: a phrase is a row, and there are too many rows of
more cells."""

MAX_BOXES = 6
"""Boxes in a room, whatever its size: a reverse walk of 100 steps hardly ever pulls more from their targets."""

COLORS = ((0, 0, 0), (243, 248, 238), (254, 126, 125), (254, 95, 56), (142, 121, 56), (160, 212, 56), (219, 212, 56))
"""The colour of each number, as in gym-sokoban's small pictures."""


@struct.dataclass
class SokobanParams:
    """Rewards and the time limit."""

    max_steps: Any
    """Steps until truncation."""
    step_reward: Any = -0.1
    """Added in every step."""
    box_on_reward: Any = 1.0
    """Added when a box is pushed onto a target."""
    box_off_reward: Any = -1.0
    """Added when a box is pushed off a target."""
    finish_reward: Any = 10.0
    """Added when every box is on a target."""


@struct.dataclass
class SokobanState:
    """A room in play."""

    room: Room
    time: jax.Array
    """int32 `[]`, steps since the reset."""


def rows_of(width: int, boxes: int) -> list[tuple[int, ...]]:
    """Every row that a room can show, without the outer walls: at most one player, and at most `boxes` boxes and
    `boxes` targets."""
    rows = []
    for cells in product(range(len(SYMBOLS)), repeat=width - 2):
        count = np.bincount(cells, minlength=len(SYMBOLS))
        players, num_boxes = count[PLAYER] + count[PLAYER_ON_TARGET], count[BOX] + count[BOX_ON_TARGET]
        targets = count[TARGET] + count[BOX_ON_TARGET] + count[PLAYER_ON_TARGET]
        if players <= 1 and num_boxes <= boxes and targets <= boxes:
            rows.append(cells)
    return rows


class Sokoban(Environment[SokobanState, SokobanParams]):
    """Push every box onto a target; boxes cannot be pulled, and only one can be pushed at a time.

    Observation: `board`, uint8 `[H, W]`, gym-sokoban's numbers; with `text` also `text`, a caption of one row of the
    room a phrase, int16 `[H]`. Reward: see `SokobanParams`. Terminated when every box is on a target; truncated after
    `max_steps` steps. `info`: `success`, `moved` and `pushed`, bool. The best return of a room is
    `10 + boxes - 0.1 * n`, for `n` the length of `envs_jax.textgames.solve(obs["board"])`.
    """

    def __init__(
        self,
        height: int = 6,
        width: int = 6,
        boxes: int = 1,
        actions: str = "push",
        text: str | None = None,
        max_steps: int = 100,
    ):
        """**Arguments:** `height` and `width` of the room, outer walls included; `boxes`; `actions`, "push" for RAGEN's
        four, "all" for gym-sokoban's nine; `text`, None or one of `envs_jax.boards.TEXTS`; `max_steps`, the default
        time limit."""
        for name, value in (("height", height), ("width", width)):
            at_least(name, value, 5)
        # beyond, rooms in which all boxes can be pulled from their targets are too rare to be drawn
        between("boxes", boxes, 1, min(MAX_BOXES, (height - 2) * (width - 2) // 5))
        at_least("max_steps", max_steps, 1)
        if actions not in ACTIONS:
            raise ValueError(f"actions is {actions!r}{nearest(actions, list(ACTIONS))}; it is push or all")
        self.height, self.width, self.boxes, self.actions = height, width, boxes, actions
        self.max_steps = max_steps
        self.book: Phrasebook | None = None
        if gaps := separators(text):
            widest = WIDEST[boxes > 2]
            between(f"width of a room with {boxes} boxes and text", width, 5, widest, remedy="text=none has no limit")
            rows = rows_of(width, boxes)
            phrases = [gaps[0].join(SYMBOLS[c] for c in (WALL, *row, WALL)) for row in rows]
            self.book = Phrasebook(phrases, separator=gaps[1], name="textgames.Sokoban")
            self._place_values = len(SYMBOLS) ** np.arange(width - 2, dtype=np.int32)
            self._phrase = np.full(len(SYMBOLS) ** (width - 2), -1, np.int16)
            self._phrase[np.array(rows) @ self._place_values] = np.arange(len(rows))

    @property
    def default_params(self):
        return SokobanParams(max_steps=self.max_steps)

    @property
    def captions(self):
        return {"text": self.book} if self.book else {}

    @property
    def action_names(self):
        return ACTIONS[self.actions]

    @property
    def keys(self):
        first = 1 if self.actions == "all" else 0
        return MappingProxyType({direction: first + i for i, direction in enumerate(("up", "down", "left", "right"))})

    def observation_space(self, params):
        parts: dict[str, spaces.Space] = {"board": spaces.Box(0, 6, (self.height, self.width), np.uint8)}
        if self.book:
            parts["text"] = spaces.Box(-1, len(self.book) - 1, (self.height,), np.int16)
        return spaces.Dict(parts)

    def action_space(self, params):
        return spaces.Discrete(len(self.action_names))

    def board(self, room: Room) -> jax.Array:
        """The contents of each cell: uint8 `[H, W]`."""
        fixed, cells = unpack(room.fixed, self.height * self.width), np.arange(self.height * self.width, dtype=np.int32)
        on_target = fixed == TARGET
        board = jnp.where(jnp.any(room.boxes[:, None] == cells, axis=0), jnp.where(on_target, 3, 4), fixed)
        board = jnp.where(cells == room.player, jnp.where(on_target, 6, 5), board)
        return board.astype(jnp.uint8).reshape(self.height, self.width)

    def observe(self, state: SokobanState) -> dict[str, jax.Array]:
        """The observation of a state."""
        board = self.board(state.room)
        if not self.book:
            return {"board": board}
        code = jnp.sum(board[:, 1:-1].astype(jnp.int32) * self._place_values, axis=1, dtype=jnp.int32)
        return {"board": board, "text": jnp.take(jnp.asarray(self._phrase), code, mode="clip")}

    def reset(self, key, params):
        state = SokobanState(draw_room(key, self.height, self.width, self.boxes), jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        action, room = action.astype(jnp.int32), state.room
        acts, pushes = jnp.bool(True), jnp.bool(True)
        if self.actions == "all":
            acts, pushes, action = action > 0, action <= 4, (action - 1) % 4
        offset = jnp.array([dr * self.width + dc for dr, dc in MOVES], jnp.int32)[action]
        ahead, beyond = room.player + offset, room.player + 2 * offset
        fixed_ahead, fixed_beyond = look_up(room.fixed, jnp.stack([ahead, beyond]))
        is_ahead = room.boxes == ahead
        blocked = jnp.any(is_ahead)
        pushed = acts & pushes & blocked & (fixed_beyond != WALL) & ~jnp.any(room.boxes == beyond)
        moved = pushed | (acts & ~blocked & (fixed_ahead != WALL))
        boxes = jnp.where(is_ahead & pushed, beyond, room.boxes)
        before, after = (jnp.sum(look_up(room.fixed, x) == TARGET, dtype=jnp.int32) for x in (room.boxes, boxes))
        solved = after == self.boxes
        reward = params.step_reward + jnp.where(after > before, params.box_on_reward, 0.0)
        reward = reward + jnp.where(after < before, params.box_off_reward, 0.0)
        reward = jnp.asarray(reward + jnp.where(solved, params.finish_reward, 0.0), jnp.float32)
        room = room.replace(boxes=boxes, player=jnp.where(moved, ahead, room.player))
        state = SokobanState(room, state.time + 1)
        info = {"success": solved, "moved": moved, "pushed": pushed}
        return self.observe(state), state, reward, solved, state.time >= params.max_steps, info

    def state_of(self, rows: Sequence[str]) -> SokobanState:
        """The first state of a room that is given as text, on the host.

        **Arguments:** `rows`, of the symbols `SYMBOLS`, with walls all around.
        **Raises:** `ValueError` for another size, another symbol, or another number of players, boxes or targets.
        """
        text = [row.replace(" ", "") for row in rows]
        board = np.array([[SYMBOLS.find(symbol) for symbol in row] for row in text if len(row) == self.width])
        if len(text) != self.height or board.shape != (self.height, self.width) or board.min() < 0:
            raise ValueError(f"the room {list(rows)} is not of {self.height} rows of {self.width} of {SYMBOLS}")
        inner = board[1:-1, 1:-1]
        count = [np.isin(inner, x).sum() for x in ((5, 6), (3, 4), (2, 3, 6))]
        if board.sum() != inner.sum() or count != [1, self.boxes, self.boxes]:
            raise ValueError(
                f"the room {list(rows)} has {count[0]} players, {count[1]} boxes and {count[2]} targets within its "
                f"outer walls; {self.id or 'this world'} needs 1, {self.boxes} and {self.boxes}, and walls all around"
            )
        fixed = np.where(board == WALL, WALL, np.where(np.isin(board, (2, 3, 6)), TARGET, FLOOR))
        player, boxes = np.flatnonzero(board >= PLAYER), np.flatnonzero(np.isin(board, (BOX, BOX_ON_TARGET)))
        room = Room(
            pack(jnp.asarray(fixed.reshape(-1), jnp.int32)), jnp.int32(player[0]), jnp.asarray(boxes, jnp.int32)
        )
        return SokobanState(room, jnp.int32(0))

    def ascii(self, state):
        """The room in symbols, as RAGEN shows it."""
        return "\n".join("".join(SYMBOLS[cell] for cell in row) for row in np.asarray(self.board(state.room)))

    def render(self, state):
        """The room from above, in gym-sokoban's colours: uint8 `[32 H, 32 W, 3]`."""
        return draw([[COLORS[cell] for cell in row] for row in np.asarray(self.board(state.room))])
