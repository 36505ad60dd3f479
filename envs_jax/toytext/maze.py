"""maze-sample-3x3-v0 of gym-maze, observed as ProPS does (2511.21928)."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from envs_jax.boards import RED, WHITE, YELLOW, Color, disc, draw, wall
from envs_jax.toytext.tables import TabularEnvironment, neighbor, tabulate


SAMPLE_3X3 = ((2, 1, 1), (2, 2, 8), (4, 8, 8))
"""gym-maze's sample: the open sides of the cell `[x][y]`, as bits."""

MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))
"""North, south, east, west, as (rows, columns)."""

OPEN = (1, 4, 2, 8)
"""The bit of each side."""

BACK = (1, 0, 3, 2)
"""The opposite of each move."""


class Maze(TabularEnvironment):
    """Find the way from the north-western cell to the south-eastern one.

    Observation: the cell as `y * width + x`, an int32 scalar. Actions: north, south, east, west. Reward: 1 at the goal,
    which terminates, else -0.1 / cells. Truncated after 200 steps.
    """

    names = ("north", "south", "east", "west")
    keys = MappingProxyType({"up": 0, "down": 1, "right": 2, "left": 3})
    reference = "MazeEnv"

    def __init__(self, cells: Sequence[Sequence[int]] = SAMPLE_3X3):
        """**Arguments:** `cells`, ints `[width][height]` as in gym-maze's files: which sides of a cell are open, as the
        sum of north 1, east 2, south 4 and west 8. A passage is open if it is open in either of its cells."""
        if len({len(column) for column in cells}) != 1 or len(cells) * len(cells[0]) < 2:
            raise ValueError(f"the cells {cells} of a maze are columns of one length, and at least two cells")
        self.cells = tuple(tuple(column) for column in cells)
        self.shape = height, width = len(cells[0]), len(cells)
        goal = height * width - 1
        step_reward = -0.1 / (width * height)

        def outcomes(cell, action):
            next_cell = self.walk(cell, action)
            return [(1.0, next_cell, 1.0 if next_cell == goal else step_reward, next_cell == goal)]

        super().__init__(tabulate(height * width, 4, outcomes), [0], max_steps=200)

    def walk(self, cell: int, action: int) -> int:
        """The cell that a move leads to, considering walls."""
        next_cell = neighbor(cell, MOVES[action], self.shape)
        (y, x), (v, u) = divmod(cell, self.shape[1]), divmod(next_cell, self.shape[1])
        passable = self.cells[x][y] & OPEN[action] or self.cells[u][v] & OPEN[BACK[action]]
        return next_cell if passable else cell

    def read(self, inner):
        theirs = tuple(map(tuple, inner.maze_view.maze.maze_cells.tolist()))
        if theirs != self.cells:
            raise ValueError(f"the MazeEnv has the cells {theirs}, {self.id} {self.cells}; make both with the same")
        x, y = map(int, inner.maze_view.robot)
        return y * self.shape[1] + x

    def render(self, state):
        """The maze from above, the goal yellow and the agent a red disc: uint8 `[32 H, 32 W, 3]`."""
        height, width = self.shape
        ground: list[list[Color]] = [[WHITE] * width for _ in range(height)]
        ground[-1][-1] = YELLOW
        picture = draw(ground)
        for cell in range(height * width):
            for action, move in enumerate(MOVES):
                if self.walk(cell, action) == cell:
                    wall(picture, cell, move)
        disc(picture, int(state.index), RED)
        return picture
