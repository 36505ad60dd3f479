"""Nim-v0 of ProPS (2511.21928)."""

from __future__ import annotations

import numpy as np

from envs_jax.boards import WHITE
from envs_jax.checks import at_least, nearest
from envs_jax.toytext.tables import TabularEnvironment, tabulate


REMOVES = {"1-3": (1, 2, 3), "0-2": (0, 1, 2)}
"""The sticks that the three actions remove, in both published variants."""


class Nim(TabularEnvironment):
    """Take one to three sticks in turn with an opponent; the player who takes the last one loses.

    The opponent leaves one more than a multiple of four, and plays at random if that is impossible. Observation: the
    sticks left, an int32 scalar. Reward: 1 if the opponent took the last one, -1 if the agent did or took a number that
    is not allowed; either ends the episode.
    """

    reference = "NimEnv"

    def __init__(self, initial_sticks: int = 10, actions: str = "1-3"):
        """**Arguments:** `initial_sticks`; `actions`, the sticks that they remove: "1-3", or "0-2", of which 0 is not
        allowed. The released code of ProPS removes as many sticks as the action's value, and its configuration without
        semantics offers 0, 1 and 2."""
        if actions not in REMOVES:
            raise ValueError(f"actions is {actions!r}{nearest(str(actions), list(REMOVES))} (it is 1-3 or 0-2)")
        at_least("initial_sticks", initial_sticks, 1)
        self.initial_sticks, self.removes = initial_sticks, REMOVES[actions]
        self.names = tuple(f"remove {n}" for n in self.removes)

        def outcomes(sticks, action):
            left = sticks - self.removes[action]
            if left < 0 or left == sticks:
                return [(1.0, sticks, -1, True)]
            if left == 0:
                return [(1.0, 0, -1, True)]
            reply = (left - 1) % 4
            replies = [reply] if reply else range(1, min(3, left) + 1)
            return [(1 / len(replies), left - n, int(left == n), left == n) for n in replies]

        super().__init__(tabulate(initial_sticks + 1, 3, outcomes), [initial_sticks])

    def read(self, inner):
        if inner.initial_sticks != self.initial_sticks:
            raise ValueError(
                f"the NimEnv starts with {inner.initial_sticks} sticks, {self.id} with {self.initial_sticks}; "
                "make both with the same"
            )
        return int(inner.current_sticks)

    def render(self, state):
        """The sticks that are left, side by side: uint8 `[64, 16 (N + 1), 3]`."""
        picture = np.full((64, 16 * (self.initial_sticks + 1), 3), WHITE, np.uint8)
        for stick in range(1, int(state.index) + 1):
            picture[8:56, 16 * stick - 3 : 16 * stick + 3] = (160, 110, 60)
        return picture
