"""A discrete world in the terminal."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

import envs_jax
from envs_jax.registry import nearest
from envs_jax.spaces import Discrete


RAMP = " .:-=+*#%@"
"""From dark to light."""


def shrink(picture: np.ndarray, columns: int) -> np.ndarray:
    """A picture, uint8 `[H, W, 3]`, averaged over squares until it is at most `columns` wide."""
    factor = max(1, -(-picture.shape[1] // columns))
    h, w = (n // factor * factor for n in picture.shape[:2])
    blocks = picture[:h, :w].reshape(h // factor, factor, w // factor, factor, 3)
    return blocks.mean((1, 3)).astype(np.uint8)


def colour_text(picture: np.ndarray, columns: int = 64) -> str:
    """A picture as half blocks in 24-bit colour: each character shows two pixels, one above the other."""
    small = shrink(picture, columns)
    if len(small) % 2:
        small = np.concatenate([small, np.zeros_like(small[:1])])
    rows = []
    for above, below in zip(small[::2], small[1::2]):
        cells = (f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀" for a, b in zip(above, below))
        rows.append("".join(cells) + "\x1b[0m")
    return "\n".join(rows)


def ascii_text(picture: np.ndarray, columns: int = 64) -> str:
    """A picture as characters from dark to light; a character is twice as high as wide."""
    small = shrink(picture, columns).mean(-1)
    small = small[: len(small) // 2 * 2].reshape(-1, 2, small.shape[1]).mean(1)
    index = (small / 256 * len(RAMP)).astype(int)
    return "\n".join("".join(RAMP[i] for i in row).rstrip() for row in index)


def keys_of(names: tuple[str, ...]) -> dict[str, int]:
    """A key for each action: its digit below ten, and the first letter of its name that is free."""
    keys = {str(i): i for i in range(min(10, len(names)))}
    taken = {"q", "r", "?"}
    for i, name in enumerate(names):
        for letter in name.lower():
            if letter.isalpha() and letter not in taken:
                keys[letter] = i
                taken.add(letter)
                break
    return keys


class Game:
    """One world, played by typed actions."""

    def __init__(self, id: str, *, seed: int = 0, picture: str = "off", max_steps: int = 0):
        """**Arguments:** as of `llmrl envs play`. **Raises:** `ValueError` where the actions are not discrete."""
        self.env, self.params = envs_jax.make(id)
        space = self.env.action_space(self.params)
        if not isinstance(space, Discrete):
            raise ValueError(f"{id} cannot be played by keys: its action space is {space}")
        self.names, self.picture, self.max_steps = self.env.action_names, picture, max_steps
        self.keys = keys_of(self.names)
        self.key, self.episode, self.steps = jax.random.key(seed), 0, 0
        self._reset, self._step = jax.jit(self.env.reset), jax.jit(self.env.step)

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def start(self) -> None:
        """Begin an episode and show it."""
        self.obs, self.state = self._reset(jax.random.fold_in(self.key, self.episode), self.params)
        self.episode, self.length, self.total = self.episode + 1, 0, 0.0
        self._say(f"--- episode {self.episode} ---")
        self.show()

    def show(self) -> None:
        """Print the picture and the strings of the observation, or its numbers where there are none."""
        if self.picture != "off":
            draw = colour_text if self.picture == "colour" else ascii_text
            self._say(draw(np.asarray(self.env.render(self.state))))
        strings = self.env.describe(self.obs)
        for name, text in strings.items():
            self._say(f"{name}: {text}")
        if not strings and self.picture == "off":
            self._say(str(jax.tree.map(np.asarray, self.obs)))

    def help(self) -> None:
        """Print the actions and their keys."""
        for i, name in enumerate(self.names):
            keys = ", ".join(key for key, action in self.keys.items() if action == i)
            self._say(f"  {name}: {keys}" if keys else f"  {name}")
        self._say("  r: start anew, q: quit, ?: this help")

    def action(self, text: str) -> int:
        """The action that a line names, by number, key or name. **Raises:** `ValueError`, naming the nearest."""
        lower = {name.lower(): i for i, name in enumerate(self.names)}
        if text.isdigit() and int(text) < len(self.names):
            return int(text)
        found = self.keys.get(text, lower.get(text.lower()))
        if found is None:
            raise ValueError(f"no action {text!r}{nearest(text, list(self.names))} (? lists them)")
        return found

    def step(self, action: int) -> None:
        """Take an action and show what comes of it; start anew where the episode ends."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, 1 << 20), self.steps)
        result: Any = self._step(key, self.state, np.int32(action), self.params)
        self.obs, self.state, reward, terminated, truncated, _ = result
        self.steps, self.length, self.total = self.steps + 1, self.length + 1, self.total + float(reward)
        self._say(f"\n{self.names[action]}: reward {float(reward):g}")
        self.show()
        if terminated or truncated:
            how = "terminated" if terminated else "truncated"
            self._say(f"episode {self.episode} {how} after {self.length} steps, return {self.total:g}")
            self.start()

    def play(self, interactive: bool) -> None:
        """Read actions until the input ends, `q` comes, or `max_steps` are done."""
        self.help()
        self.start()
        for text in _typed() if interactive else sys.stdin:
            text = text.strip()
            if text == "q":
                return
            if text == "r":
                self.start()
            elif text == "?":
                self.help()
            elif text:
                try:
                    action = self.action(text)
                except ValueError as error:
                    self._say(str(error))
                    continue
                self.step(action)
                if self.max_steps and self.steps >= self.max_steps:
                    return


def _typed():
    """Keys from the terminal, one at a time, without waiting for the end of a line."""
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        while key := sys.stdin.read(1):
            yield key
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
