"""CliffWalking-v1 and CliffWalkingSlippery-v1 as Gymnasium 1.3 has them (Sutton and Barto, example 6.6)."""

from __future__ import annotations

from envs_jax.boards import RED, YELLOW, Color, disc, draw
from envs_jax.toytext.tables import NO_LIMIT, TabularEnvironment, neighbor, tabulate


SHAPE = (4, 12)
START, GOAL = 36, 47
CLIFF = range(37, 47)

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left, as (rows, columns)."""


class CliffWalking(TabularEnvironment):
    """Walk from one end of a cliff to the other without falling.

    Observation: the cell of a board of 4 by 12, row-major, an int32 scalar. Actions: up, right, down, left; if
    slippery, the chosen direction or one of the two perpendicular ones, each with probability 1/3. Reward: -1, and -100
    for a fall, which moves the agent back to the start. Terminated at the goal; no time limit by default
    (ProPS sets 100).
    """

    names = ("up", "right", "down", "left")
    reference = "CliffWalkingEnv"

    def __init__(self, is_slippery: bool = False, max_steps: int = NO_LIMIT):
        """**Arguments:** `is_slippery`, whether moves may slip to a perpendicular direction; `max_steps`, the default
        time limit."""
        turns = (-1, 0, 1) if is_slippery else (0,)

        def outcomes(cell, action):
            branches = []
            for turn in turns:
                next_cell = neighbor(cell, MOVES[(action + turn) % 4], SHAPE)
                fall = next_cell in CLIFF
                branches.append((1 / len(turns), START if fall else next_cell, -100 if fall else -1, next_cell == GOAL))
            return branches

        super().__init__(tabulate(SHAPE[0] * SHAPE[1], 4, outcomes), [START], max_steps)

    def render(self, state):
        """The board from above, the agent a red disc: uint8 `[128, 384, 3]`."""
        ground: list[Color] = [(200, 220, 170)] * (SHAPE[0] * SHAPE[1])
        ground[CLIFF.start : CLIFF.stop] = [(90, 70, 60)] * len(CLIFF)
        ground[GOAL] = YELLOW
        picture = draw([ground[row * SHAPE[1] : (row + 1) * SHAPE[1]] for row in range(SHAPE[0])])
        disc(picture, int(state.index), RED)
        return picture
