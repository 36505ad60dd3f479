"""2048 (Gabriele Cirulli, 2014), with the text of RAGEN-2."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.actions import MASK, mask_space
from envs_jax.boards import TILE, draw, write
from envs_jax.checks import between, nearest
from envs_jax.env import Environment
from envs_jax.text import Phrasebook


NAMES = ("Up", "Right", "Down", "Left")

TWO_PROBABILITY = 0.9
"""The probability that a new tile is a 2; else it is a 4."""

GOAL = 11
"""The exponent of the tile 2048."""

REWARDS = ("score", "log")


@struct.dataclass
class Game2048Params:
    """The time limit."""

    max_steps: Any
    """Steps until truncation."""


@struct.dataclass
class Game2048State:
    """A game in play."""

    board: jax.Array
    """int8 `[N, N]`: the exponent of each tile, 0 for an empty cell."""
    score: jax.Array
    """int32 `[]`, the sum of all merged tiles."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


def largest(size: int) -> int:
    """The exponent of the largest tile that a board of `size` by `size` cells can show."""
    return size * size + 1


def phrasebook(size: int) -> Phrasebook:
    """The phrases of a board: tiles, each with what stands beside it in RAGEN's text, and the valid actions."""
    tiles = [str(2**i if i else 0) for i in range(largest(size) + 1)]
    actions = [[f"{i}({name})" for i, name in enumerate(NAMES) if valid >> i & 1] for valid in range(1 << len(NAMES))]
    return Phrasebook(
        [
            *(f"Current 2048 Grid:\nRow 1: [{first}," for first in tiles),
            *(f"{tile}," for tile in tiles),
            *(f"{last}]\nRow {row}: [{first}," for row in range(2, size + 1) for last in tiles for first in tiles),
            *(f"{last}]\n\nValid Actions: {', '.join(valid) or 'None'}." for last in tiles for valid in actions),
        ],
        separator=" ",
        name="textgames.2048",
    )


def caption(board: jax.Array, valid: jax.Array) -> jax.Array:
    """The phrases of a board: int16 `[N (N - 1) + 1]`.

    **Arguments:** `board`, integers `[N, N]`, exponents; `valid`, bool `[4]`, the valid actions."""
    size = board.shape[0]
    tiles, board = largest(size) + 1, board.astype(jnp.int32)
    ids = [board[0, 0]]
    for row in range(size):
        ids += [tiles + board[row, column] for column in range(1, size - 1)]
        if row < size - 1:
            ids.append(2 * tiles + (row * tiles + board[row, -1]) * tiles + board[row + 1, 0])
    mask = jnp.sum(valid * (1 << np.arange(len(NAMES), dtype=np.int32)), dtype=jnp.int32)
    ids.append(2 * tiles + (size - 1) * tiles**2 + board[-1, -1] * (1 << len(NAMES)) + mask)
    return jnp.stack(ids).astype(jnp.int16)


def slide(lines: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Move the tiles of every line to its beginning, and merge equal neighbours, each tile once, the first ones first.

    **Arguments:** `lines`, int8 `[N, N]`, exponents.
    **Returns:** the new lines, and the sum of all merged tiles, int32 `[]`."""
    size = lines.shape[1]
    cells = [lines[:, i] for i in range(size)]
    for last in range(size - 1, 0, -1):
        for i in range(last):
            empty = cells[i] == 0
            cells[i], cells[i + 1] = jnp.where(empty, cells[i + 1], cells[i]), jnp.where(empty, 0, cells[i + 1])
    gained = jnp.zeros(lines.shape[0], jnp.int32)
    for i in range(size - 1):
        merges = (cells[i] == cells[i + 1]) & (cells[i] > 0)
        cells[i] = cells[i] + merges.astype(lines.dtype)
        gained = gained + jnp.where(merges, 1 << cells[i].astype(jnp.int32), 0)
        later = [*cells[i + 2 :], jnp.zeros_like(cells[0])]
        cells[i + 1 :] = [jnp.where(merges, new, old) for new, old in zip(later, cells[i + 1 :])]
    return jnp.stack(cells, axis=1), jnp.sum(gained, dtype=jnp.int32)


def valid_actions(board: jax.Array) -> jax.Array:
    """Moves among up, right, down and left that change the board: bool `[4]`."""

    def slides(lines: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = lines[:, :-1], lines[:, 1:]
        merge = jnp.any((first == second) & (first > 0))
        return merge | jnp.any((first == 0) & (second > 0)), merge | jnp.any((first > 0) & (second == 0))

    (left, right), (upwards, downwards) = slides(board), slides(board.T)
    return jnp.stack([upwards, right, downwards, left])


class Game2048(Environment[Game2048State, Game2048Params]):
    """Slide all tiles to one side; equal ones merge, and a new tile appears after each move that changes the board.

    Observation: `board`, int8 `[N, N]`, the exponent of each tile (0 for none); with `text` also `text`, a caption,
    int16 `[N (N - 1) + 1]`; with `actions` "valid" also `action_mask`. An action that changes nothing adds no tile.
    Reward: the sum of the merged tiles (`reward` "score"), or `0.1 log2(1 + sum)`, RAGEN's ("log"). Terminated when no
    action changes the board; truncated after `max_steps` steps. `info`: `moved`; `score`, int32; `success`, whether
    there is a tile of 2048, if the board has room for it.
    """

    def __init__(
        self,
        size: int = 4,
        text: bool = False,
        actions: str = "all",
        reward: str = "score",
        max_steps: int = 5000,
    ):
        """**Arguments:** `size`, cells on a side; `text`; `actions`, "valid" for a mask of those that change the board;
        `reward`, "score" or "log"; `max_steps`, the default time limit (the game itself has none)."""
        between("size", size, 2, 4)
        between("max_steps", max_steps, 1, 2**31 - 1)
        if actions not in ("all", "valid"):
            raise ValueError(f"actions is {actions!r}{nearest(actions, ['all', 'valid'])}; it is all or valid")
        if reward not in REWARDS:
            raise ValueError(f"reward is {reward!r}{nearest(reward, list(REWARDS))}; it is {' or '.join(REWARDS)}")
        self.size, self.text, self.actions, self.reward, self.max_steps = size, text, actions, reward, max_steps
        self.book = phrasebook(size) if text else None

    @property
    def default_params(self):
        return Game2048Params(max_steps=self.max_steps)

    @property
    def captions(self):
        return {"text": self.book} if self.book else {}

    @property
    def action_names(self):
        return NAMES

    keys = MappingProxyType({"up": 0, "right": 1, "down": 2, "left": 3})

    def observation_space(self, params):
        size = self.size
        parts: dict[str, spaces.Space] = {"board": spaces.Box(0, largest(size), (size, size), np.int8)}
        if self.book:
            parts["text"] = spaces.Box(-1, len(self.book) - 1, (size * (size - 1) + 1,), np.int16)
        if self.actions == "valid":
            parts[MASK] = mask_space(len(NAMES))
        return spaces.Dict(parts)

    def action_space(self, params):
        return spaces.Discrete(len(NAMES))

    def _observe(self, board: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
        obs = {"board": board}
        if self.book:
            obs["text"] = caption(board, valid)
        if self.actions == "valid":
            obs[MASK] = valid | ~jnp.any(valid)  # at least one is offered, after the end too
        return obs

    def observe(self, state: Game2048State) -> dict[str, jax.Array]:
        """The observation of a state."""
        return self._observe(state.board, valid_actions(state.board))

    def add_tile(self, uniforms: jax.Array, board: jax.Array) -> jax.Array:
        """The board with a new tile.

        **Arguments:** `uniforms`, float32 `[2]` in [0, 1): the first draws one of the empty cells, in the order of
        rows, the second its value."""
        flat = board.reshape(-1)
        empty = flat == 0
        chosen = jnp.floor(uniforms[0] * jnp.sum(empty, dtype=jnp.int32)).astype(jnp.int32)
        slot = empty & (jnp.cumsum(empty, dtype=jnp.int32) == chosen + 1)
        tile = jnp.where(uniforms[1] < TWO_PROBABILITY, 1, 2).astype(jnp.int8)
        return jnp.where(slot, tile, flat).reshape(board.shape)

    def reset(self, key, params):
        first, second = jax.random.uniform(key, (2, 2), jnp.float32)
        board = self.add_tile(second, self.add_tile(first, jnp.zeros((self.size, self.size), jnp.int8)))
        state = Game2048State(board, jnp.int32(0), jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        return self.advance(jax.random.uniform(key, (2,), jnp.float32), state, action, params)

    def advance(self, uniforms: jax.Array, state: Game2048State, action: jax.Array, params: Game2048Params):
        """`step` with given random numbers, see `add_tile`."""
        columns, backwards = action % 2 == 0, (action == 1) | (action == 2)
        lines = jnp.where(columns, state.board.T, state.board)
        lines, gained = slide(jnp.where(backwards, lines[:, ::-1], lines))
        lines = jnp.where(backwards, lines[:, ::-1], lines)
        board = jnp.where(columns, lines.T, lines)
        moved = jnp.any(board != state.board)
        board = jnp.where(moved, self.add_tile(uniforms, board), board)
        state = Game2048State(board, state.score + gained, state.time + 1)
        valid, reward = valid_actions(board), gained.astype(jnp.float32)
        if self.reward == "log":
            reward = 0.1 * jnp.log2(1 + reward)
        info = {"moved": moved, "score": state.score}
        if largest(self.size) >= GOAL:  # smaller boards have no room for it: their games are judged by their score
            info["success"] = jnp.max(board) >= GOAL
        return self._observe(board, valid), state, reward, ~jnp.any(valid), state.time >= params.max_steps, info

    def state_of(self, rows: Iterable[Iterable[int]]) -> Game2048State:
        """The first state of a game that begins with given tiles, on the host.

        **Arguments:** `rows`, the tiles: 0, or powers of two from 2 on.
        **Raises:** `ValueError` for another size or another number."""
        tiles = np.array([list(row) for row in rows])
        values = [0, *(2**i for i in range(1, largest(self.size) + 1))]
        if tiles.shape != (self.size, self.size) or not np.isin(tiles, values).all():
            raise ValueError(f"the board {tiles.tolist()} is not {self.size} rows of {self.size} tiles: 0, 2, 4, ...")
        board = np.searchsorted(values, tiles).astype(np.int8)
        return Game2048State(jnp.asarray(board), jnp.int32(0), jnp.int32(0))

    def ascii(self, state):
        """The tiles in rows, right-aligned, dots for empty cells."""
        tiles = [[str(2**i) if i else "." for i in row] for row in np.asarray(state.board).tolist()]
        width = max(len(tile) for row in tiles for tile in row)
        return "\n".join(" ".join(tile.rjust(width) for tile in row) for row in tiles)

    def render(self, state):
        """The board, darker for larger tiles: uint8 `[64 N, 64 N, 3]`."""
        board = np.asarray(state.board).astype(int)
        shade = [(205 - 4 * i, max(193 - 14 * i, 40), max(180 - 16 * i, 20)) for i in range(largest(self.size) + 1)]
        picture = draw([[shade[i] for i in row] for row in board], 2 * TILE)
        for (row, column), exponent in np.ndenumerate(board):
            if exponent:
                text = str(2**exponent)
                scale = 4 if len(text) < 4 else 2
                write(
                    picture, text, 2 * TILE * row + TILE - 5 * scale // 2, 2 * TILE * column + TILE, (20, 20, 20), scale
                )
        return picture
