"""Two games in which an agent needs notes: what it must know at the end is shown turns before.

Until the question every action but `wait` ends the episode without a reward, so that actions cannot serve as notes. A
policy that sees the current observation alone can only guess; one that carries a word from turn to turn, in a recurrent
state or in text that it writes and reads, can always answer. A policy that attends to all earlier observations needs no
notes: give it the last turn alone, or a short attention window.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.boards import BLACK, TILE, Color, disc, draw
from envs_jax.checks import at_least, between
from envs_jax.env import Environment
from envs_jax.text import Phrasebook


WORDS = ("red", "green", "blue", "yellow", "purple", "white", "black", "orange")
RGB: tuple[Color, ...] = (
    *((214, 60, 48), (60, 160, 72), (52, 94, 190), (240, 196, 48)),
    *((130, 60, 160), (250, 250, 250), (40, 40, 40), (240, 140, 40)),
)

WAIT = 0


@struct.dataclass
class NotesParams:
    """The length of an episode, at most the default."""

    turns: Any
    """Turns before the question."""


@struct.dataclass
class NotesState:
    """The hidden part of a game."""

    shown: jax.Array
    """int32 `[T]`, what each turn shows: the id of a phrase."""
    answer: jax.Array
    """int32 `[]`, the action that is right."""
    time: jax.Array
    """int32 `[]`, turns since the reset."""


class Notes(Environment[NotesState, NotesParams]):
    """A game of notes: `turns` turns that show something, then a question.

    Observation: `text`, a caption of one phrase, int16 `[1]`. Actions: `wait`, and the answers. Reward: 1 for the right
    answer to the question, else 0; an answer before it, and any action to it, terminates the episode. `info`:
    `success`, bool. The best return is 1 with notes, and `reactive_optimum` without.
    """

    answers: tuple[str, ...]
    book: Phrasebook

    def __init__(self, turns: int):
        between("turns", turns, 1, 1000)
        self.turns = turns

    def draw_game(self, key: jax.Array, params: NotesParams) -> tuple[jax.Array, jax.Array]:
        """The phrases that the turns show, int32 `[T]`, and the right answer, int32 `[]` from 0."""
        raise NotImplementedError

    @property
    def reactive_optimum(self) -> float:
        """The best expected return of a policy that sees the current observation alone, at the default number of turns:
        the probability of the likeliest answer."""
        raise NotImplementedError

    @property
    def default_params(self):
        return NotesParams(turns=self.turns)

    @property
    def captions(self):
        return {"text": self.book}

    @property
    def action_names(self):
        return ("wait", *self.answers)

    def observation_space(self, params):
        return spaces.Dict({"text": spaces.Box(-1, len(self.book) - 1, (1,), np.int16)})

    def action_space(self, params):
        return spaces.Discrete(1 + len(self.answers))

    def observe(self, state: NotesState, params: NotesParams) -> dict[str, jax.Array]:
        """The observation of a state; the question is the last phrase of the book."""
        phrase = jnp.take(state.shown, state.time, mode="clip")
        return {"text": jnp.where(state.time < params.turns, phrase, len(self.book) - 1).astype(jnp.int16)[None]}

    def reset(self, key, params):
        phrases, answer = self.draw_game(key, params)
        state = NotesState(phrases, answer + 1, jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        at_question = state.time >= params.turns
        success = at_question & (action == state.answer)
        state = state.replace(time=state.time + 1)
        terminated = at_question | (action != WAIT)
        info = {"success": success}
        return self.observe(state, params), state, success.astype(jnp.float32), terminated, jnp.bool(False), info

    def ascii(self, state):
        """The phrases of the turns, the current turn marked."""
        lines = [self.book.phrases[i] for i in np.asarray(state.shown)] + [self.book.phrases[-1]]
        marks = [">" if t == int(state.time) else " " for t in range(len(lines))]
        return "\n".join(f"{mark} {line}" for mark, line in zip(marks, lines))

    def colors(self, state: NotesState) -> list[Color]:
        """The colour of each turn's cell in a picture."""
        raise NotImplementedError

    def render(self, state):
        """The turns from left to right, a black dot at the current one: uint8 `[32, 32 (T + 1), 3]`."""
        picture = draw([[*self.colors(state), (200, 200, 200)]])
        if int(state.time) <= len(state.shown):
            disc(picture, int(state.time), BLACK, 0.2)
        return picture[:TILE]


class Recall(Notes):
    """Copying: a word is shown on the first turn, and asked for at the end."""

    def __init__(self, words: int = 4, turns: int = 4):
        """**Arguments:** `words`, the number of possible words; `turns`, turns before the question, the first of which
        shows the word."""
        super().__init__(turns)
        between("words", words, 2, len(WORDS))
        self.answers = WORDS[:words]
        self.book = Phrasebook(
            [*(f"The password is {word}." for word in self.answers), "Nothing happens.", "What is the password?"],
            name="textgames.Recall",
        )

    def draw_game(self, key, params):
        answer = jax.random.randint(key, (), 0, len(self.answers), jnp.int32)
        nothing = len(self.answers)
        return jnp.where(np.arange(self.turns) == 0, answer, nothing).astype(jnp.int32), answer

    @property
    def reactive_optimum(self):
        return 1 / len(self.answers)

    def colors(self, state):
        return [RGB[i] if i < len(self.answers) else (230, 230, 230) for i in np.asarray(state.shown).tolist()]


class Count(Notes):
    """Counting: each turn shows an apple or a pear, and the number of apples is asked for at the end. The note of a
    turn must be computed from the note of the turn before and what is shown."""

    def __init__(self, turns: int = 6):
        """**Arguments:** `turns`, things that are shown before the question."""
        super().__init__(turns)
        at_least("turns", turns, 2)
        self.answers = tuple(str(n) for n in range(turns + 1))
        self.book = Phrasebook(
            ["You see a pear.", "You see an apple.", "How many apples did you see?"], name="textgames.Count"
        )

    def draw_game(self, key, params):
        phrases = jax.random.randint(key, (self.turns,), 0, 2, jnp.int32)
        return phrases, jnp.sum(phrases * (np.arange(self.turns) < params.turns), dtype=jnp.int32)

    @property
    def reactive_optimum(self):
        return math.comb(self.turns, self.turns // 2) / 2**self.turns

    def colors(self, state):
        return [((240, 196, 48), (214, 60, 48))[i] for i in np.asarray(state.shown).tolist()]
