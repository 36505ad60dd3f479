"""FrozenLake-v1 as Gymnasium 1.3 has it: over the ice to the goal, past the holes. Its text is RAGEN's."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.boards import RED, YELLOW, Color, disc, draw, separators
from envs_jax.checks import at_least, between, nearest
from envs_jax.text import Phrasebook
from envs_jax.toytext.tables import TabularEnvironment, neighbor, tabulate


MAPS = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}

MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Left, down, right, up, as (rows, columns)."""

SYMBOLS = {"S": "_", "F": "_", "H": "O", "G": "G"}
"""RAGEN's symbol of each letter of a map."""

AGENT = {"S": "P", "F": "P", "H": "X", "G": "√"}
"""The symbols of the cell of the agent."""

COLORS: dict[str, Color] = {"S": (190, 225, 240), "F": (225, 240, 250), "H": (40, 70, 120), "G": YELLOW}


def random_map(seed: int, size: int = 8, p: float = 0.8) -> list[str]:
    """A map of `size` by `size` cells, frozen with probability `p`, on which the goal can be reached.

    The same map as `generate_random_map(size, p, seed)` of Gymnasium.
    """
    at_least("size", size, 2)
    between("p", p, 0, 1, above=True)
    rng = np.random.default_rng(seed)
    while True:
        cells = rng.choice(["F", "H"], (size, size), p=[p, 1 - p])
        cells[0, 0], cells[-1, -1] = "S", "G"
        reached, frontier = {0}, [0]
        while frontier:
            cell = frontier.pop()
            new = {neighbor(cell, move, (size, size)) for move in MOVES} - reached
            frontier += [index for index in new if cells.flat[index] != "H"]
            reached.update(frontier)
        if size * size - 1 in reached:
            return ["".join(row) for row in cells]


class FrozenLake(TabularEnvironment):
    """Walk from the start (S) over frozen cells (F) to the goal (G), past holes (H).

    Observation: the cell, row-major, an int32 scalar. Actions: left, down, right, up; on slippery ice the move is the
    intended one with probability `success_rate`, else one of the two perpendicular ones. Reward: 1 at the goal, else 0.
    Terminated at the goal or in a hole; truncated after 100 steps (8x8: 200).

    With `text` an observation is a dict: `cell`, and `text`, a caption of one row of the map a phrase, int16 `[R]`.
    With `random_maps` every episode has one of as many maps: the state, and the observation without text, is
    `map * cells + cell`.
    """

    names: tuple[str, ...] = ("left", "down", "right", "up")
    reference = "FrozenLakeEnv"

    def __init__(
        self,
        desc: Sequence[str] | None = None,
        map_name: str = "4x4",
        is_slippery: bool = True,
        success_rate: float = 1.0 / 3.0,
        reward_schedule: tuple[float, float, float] = (1, 0, 0),
        max_steps: int = 100,
        text: str | None = None,
        random_maps: int = 0,
    ):
        """**Arguments:** `desc`, rows of the letters S, F, H and G (see `random_map`), which takes precedence over
        `map_name`, "4x4" or "8x8"; `is_slippery`; `success_rate`, the probability of the intended move on slippery ice;
        `reward_schedule`, the rewards for reaching goal, hole, and any other cell; `max_steps`, the default time
        limit; `text`, None or one of `envs_jax.boards.TEXTS`, in which the map is shown, by RAGEN's symbols;
        `random_maps`, for a map that each episode draws from `random_map(0)`, `random_map(1)`, ..., of the size of the
        one map that it has otherwise: their number."""
        at_least("random_maps", random_maps, 0)
        if desc is None and map_name not in MAPS:
            raise ValueError(
                f"there is no map {map_name!r}{nearest(str(map_name), list(MAPS))} (give one of {', '.join(MAPS)}, "
                "or a desc, such as random_map(seed))"
            )
        if not 0 <= success_rate <= 1:
            raise ValueError(f"success_rate is {success_rate}; it is a probability, from 0 to 1")
        self.desc = tuple(MAPS[map_name] if desc is None else desc)
        letters = "".join(self.desc)
        if len({len(row) for row in self.desc}) != 1 or not set(letters) <= set("SFHG") or "S" not in letters:
            raise ValueError(f"the map {list(self.desc)} is not of equally long rows of S, F, H and G with an S in it")
        shape = len(self.desc), len(self.desc[0])
        if random_maps and shape[0] != shape[1]:
            raise ValueError(f"random_maps are square, and the map has {shape[0]} rows of {shape[1]} cells")
        self.maps = tuple(tuple(random_map(i, shape[0])) for i in range(random_maps)) or (self.desc,)
        letters = "".join("".join(rows) for rows in self.maps)
        self.cells = shape[0] * shape[1]
        side = (1.0 - success_rate) / 2.0
        rewards = dict(zip("GHFS", (*reward_schedule, reward_schedule[2])))

        def outcomes(index, action):
            if letters[index] in "GH":
                return [(1.0, index, 0, True)]
            branches = []
            cell = index % self.cells
            for turn, prob in ((-1, side), (0, success_rate), (1, side)) if is_slippery else ((0, 1.0),):
                successor = index - cell + neighbor(cell, MOVES[(action + turn) % 4], shape)
                branches.append((prob, successor, rewards[letters[successor]], letters[successor] in "GH"))
            return branches

        starts = [cell for cell, letter in enumerate(letters) if letter == "S"]
        super().__init__(tabulate(len(letters), 4, outcomes), starts, max_steps)
        self.book: Phrasebook | None = None
        if gaps := separators(text):
            self.names = tuple(name.capitalize() for name in self.names)
            grids = [self._symbols(index) for index in range(len(letters))]
            rows = sorted({row for rows in grids for row in rows})
            self.book = Phrasebook(map(gaps[0].join, rows), separator=gaps[1], name="toytext.FrozenLake")
            self._captions = np.array([[rows.index(row) for row in lake] for lake in grids], np.int16)

    def _first_row(self, inner):
        theirs = tuple("".join(letter.decode() for letter in row) for row in inner.desc)
        if theirs not in self.maps:
            ours = self.maps[0] if len(self.maps) == 1 else f"{len(self.maps)} other maps"
            raise ValueError(
                f"the {self.reference} has the map {theirs}, {self.id} has {ours}; give both the same desc"
            )
        return self.maps.index(theirs) * self.cells

    def _symbols(self, index: int) -> list[str]:
        """The map in RAGEN's symbols, row by row."""
        rows, agent = self.maps[index // self.cells], index % self.cells
        symbols = [(AGENT if i == agent else SYMBOLS)[letter] for i, letter in enumerate("".join(rows))]
        width = len(rows[0])
        return ["".join(symbols[i : i + width]) for i in range(0, self.cells, width)]

    @property
    def captions(self):
        return {"text": self.book} if self.book else {}

    @property
    def keys(self):
        return {name.lower(): action for action, name in enumerate(self.names)}

    def _observe(self, index):
        return {"cell": index % self.cells, "text": jnp.asarray(self._captions)[index]} if self.book else index

    def observation_space(self, params):
        if not self.book:
            return super().observation_space(params)
        caption = spaces.Box(-1, len(self.book) - 1, self._captions.shape[1:], np.int16)
        return spaces.Dict({"cell": spaces.Discrete(self.cells), "text": caption})

    def ascii(self, state):
        """The map in RAGEN's symbols."""
        return "\n".join(self._symbols(int(state.index)))

    def render(self, state):
        """The lake from above, the agent a red disc: uint8 `[32 R, 32 C, 3]`."""
        number, cell = divmod(int(state.index), self.cells)
        picture = draw([[COLORS[letter] for letter in row] for row in self.maps[number]])
        disc(picture, cell, RED)
        return picture
