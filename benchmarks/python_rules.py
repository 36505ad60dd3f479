"""Sokoban and 2048 in NumPy, one game at a time: the rules that tests compare with, and peers of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


class SokobanRules:
    """gym-sokoban's rules and rewards; a room in its two arrays."""

    WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, fixed: np.ndarray, cells: np.ndarray, max_steps: int):
        """**Arguments:** `fixed`, 0 wall, 1 floor, 2 target; `cells`, also 3 box on target, 4 box, 5 player."""
        self.fixed, self.cells, self.max_steps = fixed.copy(), cells.copy(), max_steps
        self.player = tuple(int(x) for x in np.argwhere(cells == 5)[0])
        self.steps, self.on_target, self.boxes = 0, int((cells == 3).sum()), int(np.isin(cells, (3, 4)).sum())

    def step(self, action: int, push: bool = True) -> tuple[float, bool, bool]:
        """Move up, down, left or right (0 to 3; negative: stay). **Returns:** reward, terminated, truncated."""
        self.steps += 1
        if action >= 0:
            down, right = self.WAYS[action]
            ahead = self.player[0] + down, self.player[1] + right
            if push and self.cells[ahead] in (3, 4):
                beyond = ahead[0] + down, ahead[1] + right
                if self.cells[beyond] in (1, 2):
                    self.cells[beyond] = 3 if self.fixed[beyond] == 2 else 4
                    self.cells[ahead] = self.fixed[ahead]
            if self.cells[ahead] in (1, 2):
                self.cells[self.player], self.cells[ahead] = self.fixed[self.player], 5
                self.player = ahead
        now = int((self.cells == 3).sum())
        reward = -0.1 + (now > self.on_target) - (now < self.on_target) + 10 * (now == self.boxes)
        self.on_target = now
        return reward, now == self.boxes, self.steps >= self.max_steps

    def text(self) -> str:
        """RAGEN's text."""
        shown = np.where((self.cells == 5) & (self.fixed == 2), 6, self.cells)
        return "\n".join("".join("#_O√XPS"[int(cell)] for cell in row) for row in shown)


class Rules2048:
    """The rules of 2048, with RAGEN's text; random numbers are given."""

    def __init__(self, size: int = 4):
        self.grid, self.score = np.zeros((size, size), int), 0

    def add_tile(self, where: float, value: float) -> None:
        """Add a tile to one of the empty cells; the arguments are in [0, 1)."""
        empty = np.argwhere(self.grid == 0)
        self.grid[tuple(empty[int(where * len(empty))])] = 2 if value < 0.9 else 4

    @staticmethod
    def merged(line: list[int]) -> tuple[list[int], int]:
        """A line after a move to its beginning, and the sum of the merged tiles."""
        tiles, out, gained = [tile for tile in line if tile], [], 0
        while tiles:
            tile = tiles.pop(0)
            if tiles and tiles[0] == tile:
                tile += tiles.pop(0)
                gained += tile
            out.append(tile)
        return out + [0] * (len(line) - len(out)), gained

    def moved(self, action: int) -> tuple[np.ndarray, int]:
        """The grid after a move up, right, down or left, without a new tile, and the sum of the merged tiles."""
        turned = np.rot90(self.grid, (1, 2, 3, 0)[action])
        lines = [self.merged(row.tolist()) for row in turned]
        return np.rot90([line for line, _ in lines], -(1, 2, 3, 0)[action]), sum(gained for _, gained in lines)

    def valid(self) -> list[int]:
        return [action for action in range(4) if not np.array_equal(self.moved(action)[0], self.grid)]

    def step(self, action: int, where: float, value: float) -> tuple[int, bool]:
        """**Returns:** the sum of the merged tiles, and whether the game is over."""
        grid, gained = self.moved(action)
        if not np.array_equal(grid, self.grid):
            self.grid = grid
            self.add_tile(where, value)
        self.score += gained
        return gained, not self.valid()

    def text(self) -> str:
        """The grid and the valid actions."""
        rows = "\n".join(f"Row {i}: [{', '.join(map(str, row.tolist()))}]" for i, row in enumerate(self.grid, 1))
        actions = ", ".join(f"{i}({('Up', 'Right', 'Down', 'Left')[i]})" for i in self.valid()) or "None"
        return f"Current 2048 Grid:\n{rows}\n\nValid Actions: {actions}."


def sokoban_steps(seed: int, rooms: Any, max_steps: int) -> Iterator[float]:
    """Steps with random actions and the text of each room; `rooms`, pairs of arrays, are begun in turn."""
    rng, count = np.random.default_rng(seed), 0
    while True:
        game, over = SokobanRules(*rooms[count % len(rooms)], max_steps), False
        count += 1
        while not over:
            _, terminated, truncated = game.step(int(rng.integers(4)))
            game.text()
            over = terminated or truncated
            yield 1


def steps_2048(seed: int) -> Iterator[float]:
    """Steps with random actions and the text of each board."""
    rng = np.random.default_rng(seed)
    while True:
        game, over = Rules2048(), False
        for _ in range(2):
            game.add_tile(*rng.random(2))
        while not over:
            _, over = game.step(int(rng.integers(4)), *rng.random(2))
            game.text()
            yield 1


def lake_steps(seed: int) -> Iterator[float]:
    """Steps of Gymnasium's FrozenLake with random actions and RAGEN's text of each map."""
    import gymnasium

    env, rng = gymnasium.make("FrozenLake-v1").unwrapped, np.random.default_rng(seed)
    env.reset(seed=seed)
    while True:
        cell, _, terminated, _, _ = env.step(int(rng.integers(4)))
        lake_text(env.desc, int(cell))
        if terminated:
            env.reset()
        yield 1


def lake_text(desc: np.ndarray, cell: int) -> str:
    """RAGEN's text of a map of Gymnasium, bytes `[R, C]`."""
    shown = np.vectorize(lambda letter: {b"S": "_", b"F": "_", b"H": "O", b"G": "G"}[letter])(desc)
    at = divmod(cell, desc.shape[1])
    shown[at] = {b"H": "X", b"G": "√"}.get(desc[at], "P")
    return "\n".join("".join(row) for row in shown)
