"""Shortest solutions of small Sokoban rooms, by breadth-first search on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs_jax.textgames.sokoban_rooms import MOVES, TARGET, WALL


def solve(board: Any, limit: int = 1_000_000) -> list[int] | None:
    """The shortest list of moves that pushes every box to a target.

    **Arguments:** `board`, the observation's `board`, integers `[H, W]`; `limit`, the most positions to search.
    **Returns:** moves, 0 to 3 for up, down, left, right; None if the room cannot be solved.
    **Raises:** `ValueError` for a board without one player, `RuntimeError` if `limit` positions do not suffice.
    """
    board = np.asarray(board)
    players = np.flatnonzero((board == 5) | (board == 6))
    if len(players) != 1:
        raise ValueError(f"the board has {len(players)} players; one is needed")
    targets = frozenset(np.flatnonzero((board == TARGET) | (board == 3) | (board == 6)).tolist())
    walls = (board == WALL).reshape(-1).tolist()
    start = (int(players[0]), frozenset(np.flatnonzero((board == 3) | (board == 4)).tolist()))
    offsets = [dr * board.shape[1] + dc for dr, dc in MOVES]
    parents: dict[Any, tuple[Any, int]] = {start: (None, -1)}
    frontier = [start]
    while frontier:
        reached = []
        for position in frontier:
            player, boxes = position
            if boxes <= targets:
                moves = []
                while position is not None:
                    position, move = parents[position]
                    moves.append(move)
                return moves[-2::-1]
            for move, offset in enumerate(offsets):
                ahead, beyond, after = player + offset, player + 2 * offset, boxes
                if walls[ahead]:
                    continue
                if ahead in boxes:
                    if walls[beyond] or beyond in boxes:
                        continue
                    after = boxes - {ahead} | {beyond}
                if (ahead, after) not in parents:
                    parents[ahead, after] = position, move
                    reached.append((ahead, after))
        if len(parents) > limit:
            raise RuntimeError(f"no solution among the {limit} positions nearest to the start; raise limit")
        frontier = reached
    return None
