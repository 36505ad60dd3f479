"""Taxi-v4 as Gymnasium 1.3 has it (Dietterich, 2000), rain and fickle passengers included."""

from __future__ import annotations

from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.boards import BLACK, BLUE, GREEN, RED, WHITE, YELLOW, Color, disc, draw, wall
from envs_jax.toytext.tables import TabularEnvironment, ToyTextState, neighbor, tabulate


STREETS = ("R: | : :G", " : | : : ", " : : : : ", " | : | : ", "Y| : |B: ")
"""The map: between columns, a colon is an opening and a bar is a wall."""

SHAPE = (5, 5)
STOPS = (0, 4, 20, 23)
"""The cells of the red, green, yellow and blue stops."""

MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""South, north, east, west, as (rows, columns)."""

ASIDE = ((2, 3), (3, 2), (1, 0), (0, 1))
"""The moves to the left and to the right of each move."""

PICK_UP, DROP_OFF = 4, 5
RIDING = 4
"""The passenger's location when in the taxi, numbered after the four stops."""

NUM_STATES = 500
SETTLED, FICKLE, UNDECIDED = range(3)
"""Whether the passenger will change the destination: selects one of three copies of the table."""


def encode(cell: int, passenger: int, destination: int) -> int:
    """Gymnasium's number of a state, from the cell (0 to 24), the passenger's location (0 to 4) and the destination (0
    to 3)."""
    return (cell * 5 + passenger) * 4 + destination


def decode(index: int) -> tuple[int, int, int]:
    """The cell, the passenger's location and the destination; the inverse of `encode`."""
    remaining, destination = divmod(index % NUM_STATES, 4)
    return *divmod(remaining, 5), destination


def drive(cell: int, move: int) -> int:
    """The cell that a move leads to, considering walls."""
    row, column = divmod(cell, 5)
    step = MOVES[move][1]
    if step and 0 <= column + step < 5 and STREETS[row][2 * column + step] != ":":
        return cell
    return neighbor(cell, MOVES[move], SHAPE)


class Taxi(TabularEnvironment):
    """Fetch a passenger at one of four stops and drop him at another.

    Observation: an int32 scalar below 500, see `encode`. Actions: south, north, east, west, pick up, drop off. Reward:
    -1, 20 for the right stop, -10 for an impossible pick-up or drop-off. Terminated when the passenger is at the
    destination; truncated after 200 steps. `info["action_mask"]`, int8 `[6]`: which actions change anything.
    """

    names = ("south", "north", "east", "west", "pick up", "drop off")
    keys = MappingProxyType({"down": 0, "up": 1, "right": 2, "left": 3, "space": PICK_UP})
    reference = "TaxiEnv"

    def __init__(
        self,
        is_rainy: bool = False,
        fickle_passenger: bool = False,
        rainy_probability: float = 0.8,
        fickle_probability: float = 0.3,
    ):
        """**Arguments:** `is_rainy`, whether moves may slip: a possible move is made with probability
        `rainy_probability`, else one of the two perpendicular ones; `fickle_passenger`, whether the passenger changes
        the destination, with probability `fickle_probability`, on the first move of the taxi with the passenger."""
        for name, value in (("rainy_probability", rainy_probability), ("fickle_probability", fickle_probability)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}; it is a probability, from 0 to 1")
        self.fickle_passenger = fickle_passenger

        def settled(index, action):
            cell, passenger, destination = decode(index)
            if action < PICK_UP:
                next_cell = drive(cell, action)
                if not is_rainy:
                    return [(1.0, encode(next_cell, passenger, destination), -1, False)]
                # a move that is blocked ahead does not slip either
                cells = [next_cell, *(drive(cell, move) if next_cell != cell else cell for move in ASIDE[action])]
                side = (1.0 - rainy_probability) / 2.0
                return [
                    (prob, encode(c, passenger, destination), -1, False)
                    for prob, c in zip((rainy_probability, side, side), cells)
                ]
            if action == PICK_UP and passenger < RIDING and cell == STOPS[passenger]:
                return [(1.0, encode(cell, RIDING, destination), -1, False)]
            if action == DROP_OFF and passenger == RIDING and cell in STOPS:
                right = cell == STOPS[destination]
                return [(1.0, encode(cell, STOPS.index(cell), destination), 20 if right else -1, right)]
            return [(1.0, index, -10, False)]

        def outcomes(index, action):
            mood = index // NUM_STATES
            cell, passenger, destination = decode(index)
            change = {SETTLED: 0.0, FICKLE: 1.0, UNDECIDED: fickle_probability}[mood]
            branches = []
            for prob, successor, reward, terminated in settled(index % NUM_STATES, action):
                if mood == SETTLED or passenger != RIDING or decode(successor)[0] == cell:
                    branches.append((prob, successor + mood * NUM_STATES, reward, terminated))
                    continue
                for stop in range(len(STOPS)):
                    fraction = 1 - change if stop == destination else change / 3
                    branches.append((prob * fraction, encode(decode(successor)[0], RIDING, stop), reward, terminated))
            return branches

        moods = 3 if fickle_passenger else 1
        starts = [
            encode(cell, passenger, destination) + (moods - 1) * NUM_STATES
            for cell in range(25)
            for passenger in range(len(STOPS))
            for destination in range(len(STOPS))
            if passenger != destination
        ]
        table = tabulate(moods * NUM_STATES, 6, outcomes)
        observations = np.arange(moods * NUM_STATES, dtype=np.int32) % NUM_STATES if fickle_passenger else None
        super().__init__(table, starts, max_steps=200, observations=observations)
        moves = (table.successor != np.arange(len(table.prob))[:, None, None]).any(-1)
        self._masks = moves[:NUM_STATES].astype(np.int8)

    def action_mask(self, state: ToyTextState) -> jax.Array:
        """Actions that change anything: int8 `[6]`."""
        return jnp.asarray(self._masks)[state.index % NUM_STATES]

    def advance(self, uniform, state, action, params):
        obs, state, reward, terminated, truncated, info = super().advance(uniform, state, action, params)
        return obs, state, reward, terminated, truncated, {**info, "action_mask": self.action_mask(state)}

    def read(self, inner):
        index = super().read(inner)
        if bool(inner.fickle_passenger) != self.fickle_passenger:
            raise ValueError(
                f"the TaxiEnv has fickle_passenger={inner.fickle_passenger}, {self.id} {self.fickle_passenger}; "
                "make both with the same options"
            )
        return index + (FICKLE * NUM_STATES if inner.fickle_step else 0)

    def render(self, state):
        """The streets from above, the stops in their colours: uint8 `[160, 160, 3]`.

        The taxi is a disc, gray while it is empty, else blue; a blue dot is the waiting passenger, a ring the
        destination.
        """
        cells: list[Color] = [WHITE] * 25
        for stop, color in zip(STOPS, (RED, GREEN, YELLOW, (120, 160, 240))):
            cells[stop] = color
        picture = draw([cells[row * 5 : row * 5 + 5] for row in range(5)])
        for cell in range(25):
            if cell % 5 < 4 and drive(cell, 2) == cell:
                wall(picture, cell, MOVES[2])
        cell, passenger, destination = decode(int(state.index))
        disc(picture, STOPS[destination], BLACK, 0.45)
        disc(picture, STOPS[destination], cells[STOPS[destination]], 0.38)
        disc(picture, cell, BLUE if passenger == RIDING else (90, 90, 90))
        if passenger != RIDING:
            disc(picture, STOPS[passenger], BLUE, 0.16)
        return picture


def make_v3(is_rainy: bool = False, fickle_passenger: bool = False) -> Taxi:
    """Taxi-v3, which without rain and fickle passengers is Taxi-v4.

    **Raises:** `ValueError` if either is requested: Gymnasium fixed both in v4.
    """
    if is_rainy or fickle_passenger:
        raise ValueError("Taxi-v3 is here without is_rainy and fickle_passenger, which v4 fixed; make Taxi-v4")
    return Taxi()
