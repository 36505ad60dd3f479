"""Playing a discrete environment in the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import envs_jax
from envs_jax.env import has_picture
from envs_jax.spaces import Discrete
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least, check_seed, nearest
from llmrl_jax.core.files import check_writable
from llmrl_jax.report.video import write_gif


RAMP = " .:-=+*#%@"
"""From dark to light."""

CLEAR = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor home and clears its screen."""

ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
"""Last letter of an arrow key's escape sequence -> its name."""

SENT = re.compile(r"\x1b[\[O]([A-D])|\x1b(?:[\[O][0-9;]*[A-Za-z~])?|(.)", re.DOTALL)
"""Input of a terminal: an arrow key, another key without a letter, or a character."""

MEANINGS = {
    "left": ("left",),
    "right": ("right",),
    "up": ("forward", "up"),
    "down": ("backward", "back", "down"),
    "space": ("toggle", "do", "interact"),
}
"""Arrow key or space bar -> words in the names of its possible actions, in order of preference."""


def shrink(picture: np.ndarray, columns: int, rows: int = 1 << 16) -> np.ndarray:
    """A picture, uint8 `[H, W, 3]`, averaged over squares to at most `columns` x `rows` pixels.

    The side of a square is a power of two, as are those of the tiles of a grid, so that tiles stay equal.
    """
    factor = 1
    while factor * columns < picture.shape[1] or factor * rows < picture.shape[0]:
        factor *= 2
    h, w = (n // factor * factor for n in picture.shape[:2])
    blocks = picture[:h, :w].reshape(h // factor, factor, w // factor, factor, 3)
    return blocks.mean((1, 3)).astype(np.uint8)


def colour_text(picture: np.ndarray, columns: int = 64, lines: int = 1 << 15) -> str:
    """A picture as half blocks in 24-bit colour: each character shows two pixels, one above the other."""
    small = shrink(picture, columns, 2 * lines)
    if len(small) % 2:
        small = np.concatenate([small, np.zeros_like(small[:1])])
    rows = []
    for upper, lower in zip(small[::2], small[1::2]):
        cells = (f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀" for a, b in zip(upper, lower))
        rows.append("".join(cells) + "\x1b[0m")
    return "\n".join(rows)


def ascii_text(picture: np.ndarray, columns: int = 64) -> str:
    """A picture as characters from dark to light, for characters twice as high as wide."""
    small = shrink(picture, columns).mean(-1)
    small = small[: len(small) // 2 * 2].reshape(-1, 2, small.shape[1]).mean(1)
    index = (small / 256 * len(RAMP)).astype(int)
    return "\n".join("".join(RAMP[i] for i in row).rstrip() for row in index)


def keys_of(names: tuple[str, ...], world_keys: Mapping[str, int] | None = None) -> dict[str, int]:
    """Keys of the actions: the digit of an action below ten, unless it is an action's name, and its letter in
    `world_keys`, else the first unused letter of its name."""
    keys = {str(i): i for i in range(min(10, len(names))) if str(i) not in names} | dict(world_keys or {})
    used = {"q", "r", "?", *keys}
    for i, name in enumerate(names):
        if i in (world_keys or {}).values():
            continue
        for letter in name.lower():
            if letter.isalpha() and letter not in used:
                keys[letter] = i
                used.add(letter)
                break
    return keys


def arrows_of(names: tuple[str, ...]) -> dict[str, int]:
    """The actions of the arrow keys and the space bar, as far as the names determine them."""
    words = [re.findall("[a-z]+", name.lower()) for name in names]
    arrows = {}
    for key, meanings in MEANINGS.items():
        for meaning in meanings:
            indices = [i for i, name in enumerate(words) if meaning in name]
            if indices:
                arrows[key] = indices[0]
                break
    return arrows


class Game:
    """One environment, played by typed actions."""

    def __init__(
        self,
        id: str,
        *,
        seed: int = 0,
        picture: str = "off",
        max_steps: int = 0,
        gif: Path | None = None,
        live: bool = False,
    ):
        """**Arguments:** as of `llmrl envs play` (`picture` is not "auto"); `live`, whether the output is a terminal:
        the screen is redrawn at each step, and an ended episode stays visible until a key is pressed.

        **Raises:** `ValueError` if actions are not discrete, or if an environment without pictures is to show one."""
        check_seed("seed", seed)
        at_least("max_steps", max_steps, 0)
        self.env, self.params = envs_jax.make(id)
        space = self.env.action_space(self.params)
        if not isinstance(space, Discrete):
            raise ValueError(f"{id} cannot be played by keys: its action space is {space}")
        if (picture != "off" or gif) and not has_picture(self.env):
            raise ValueError(f"{id} has no picture: leave out --gif, and --picture or set it to off")
        if gif and gif.suffix != ".gif":
            raise ValueError(f"the moving picture is called {str(gif)!r}; a name that ends in .gif is needed")
        if gif:
            check_writable(gif, "--gif")
        self.names, self.picture, self.max_steps, self.live = self.env.action_names, picture, max_steps, live
        world_keys = dict(self.env.keys)
        letters = {key: action for key, action in world_keys.items() if key not in MEANINGS}
        self.keys = keys_of(self.names, letters)
        self.arrows = arrows_of(self.names) | {key: action for key, action in world_keys.items() if key in MEANINGS}
        self.gif, self.frames = gif, list[np.ndarray]()
        self.key, self.episode, self.steps = jax.random.key(seed), 0, 0
        self._reset, self._step = jax.jit(self.env.reset), jax.jit(self.env.step)

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def start(self) -> None:
        """Start an episode and show it."""
        with doing("compiling the reset"):
            self.obs, self.state = self._reset(jax.random.fold_in(self.key, self.episode), self.params)
        self.episode, self.length, self.total, self.ended = self.episode + 1, 0, 0.0, False
        self.show(f"--- episode {self.episode} ---")

    def show(self, news: str) -> None:
        """Print `news`, the picture and the strings of the observation; without any, the state in letters."""
        if self.live:
            self._say(CLEAR)
        self._say(news)
        width, height = shutil.get_terminal_size()
        state: Any = jax.device_get(self.state)
        if self.picture != "off" or self.gif:
            picture = np.asarray(self.env.render(state))
            if self.gif:
                self.frames.append(picture)
            if self.picture == "colour":
                self._say(colour_text(picture, width, max(8, height - 12)))
            elif self.picture == "ascii":
                self._say(self.env.ascii(state) or ascii_text(picture))
        strings = self.env.describe(jax.device_get(self.obs))
        for name, text in strings.items():
            line = f"{name}: {text}"
            self._say(textwrap.fill(line, width, subsequent_indent="  ") if self.live else line)
        if not strings and self.picture == "off":
            self._say(self.env.ascii(state) or str(jax.tree.map(np.asarray, self.obs)))
        if self.live:
            self._say(textwrap.fill("; ".join(self._hints()), width))

    def _hints(self) -> list[str]:
        """The actions and their keys."""
        hints = []
        for i, name in enumerate(self.names):
            keys = [key for key, action in self.keys.items() if action == i]
            keys += [key for key, action in self.arrows.items() if action == i and key != name]
            hints.append(f"{name}: {', '.join(keys)}" if keys else name)
        return [*hints, "r: restart, q: quit, ?: this help"]

    def help(self) -> None:
        """Print the actions and their keys."""
        self._say("\n".join(f"  {hint}" for hint in self._hints()))

    def action(self, text: str) -> int:
        """The action that a line names: by its name, by a key, which may be a digit, or by its number.
        **Raises:** `ValueError`, naming the nearest."""
        lower = {name.lower(): i for i, name in enumerate(self.names)}
        numbers = {str(i): i for i in range(len(self.names))}
        index = lower.get(text.lower(), self.keys.get(text, self.arrows.get(text, numbers.get(text))))
        if index is None:
            raise ValueError(f"no action {text!r}{nearest(text, list(self.names))} (? lists them)")
        return index

    def step(self, action: int) -> None:
        """Take an action and show the result."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, 1 << 20), self.steps)
        with doing("compiling the step"):
            result: Any = self._step(key, self.state, np.int32(action), self.params)
        self.obs, self.state, reward, terminated, truncated, info = result
        self.steps, self.length, self.total = self.steps + 1, self.length + 1, self.total + float(reward)
        news = self.env.event_text(jax.device_get(info))
        self.show(f"\n{self.names[action]}: reward {float(reward):g}{f'; {news}' if news else ''}")
        self.ended = bool(terminated | truncated)
        if self.ended:
            outcome = "terminated" if terminated else "truncated"
            success = ", success" if info.get("success", False) else ""
            self._say(f"episode {self.episode} {outcome} after {self.length} steps, return {self.total:g}{success}")

    def obey(self, text: str) -> bool:
        """Execute a line or a key. **Returns:** whether the game continues."""
        if text == "q":
            return False
        if text == "r" or self.ended and self.live:
            self.start()
        elif text == "?":
            self.help()
        elif text:
            try:
                action = self.action(text)
            except ValueError as error:
                self._say(str(error))
                return True
            if self.ended:
                self.start()
            self.step(action)
            if self.max_steps and self.steps >= self.max_steps:
                return False
            if self.ended and self.live:
                self._say("any key begins the next episode, q quits")
        return True

    def play(self, texts: Iterator[str]) -> None:
        """Read actions until the end of `texts`, `q`, or `max_steps` steps; then write the animation, if any.

        **Raises:** `ValueError` if there is no text at all.
        """
        if not self.live:
            self.help()
        self.start()
        received = False
        try:
            for text in texts:
                received = True
                if not self.obey(text.strip()):
                    break
        finally:
            if self.gif and received:
                self._say(f"wrote {write_gif(self.gif, self.frames)}")
        if not received and not self.live:
            raise ValueError(
                "no action was given, and standard input is not a terminal: play in one, pass "
                "--actions, or pipe actions, a line each"
            )

    def script(self, text: str) -> list[str]:
        """The actions of `--actions`, checked. **Raises:** `ValueError` for an unknown one."""
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            if part != "r":
                self.action(part)
        return parts


def typed() -> Iterator[str]:
    """Keys from the terminal, one at a time without waiting for a newline; arrows and space by name."""
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number, termios.TCSADRAIN)  # keeps typed input
        while (keys := os.read(number, 64).decode(errors="ignore")) not in ("", "\x04"):
            for arrow, key in re.findall(SENT, keys):
                if arrow or key:
                    yield ARROWS[arrow] if arrow else {" ": "space"}.get(key, key)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
