"""Games of TextArena as environments with text: for one player, or against opponents that reply to what they read."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class TextArenaEnv:
    """A game under Gymnasium's interface, for `envs_jax.bridges.host.HostWorld`; its action is the player's text.

    `mission` is the game's prompt, `text` what came after it but the player's own words; a game that says nothing else
    has its prompt as the first text. The reward is that of the game's end. Games draw from Python's `random`: each has
    a state of it of its own, so that games that are played in turn do not change one another.
    """

    def __init__(self, id: str, opponent: Callable[[str], str] | None = None, num_players: int = 1):
        """**Arguments:** `id`, of TextArena, without the ending `-raw`; `opponent`, from what another player reads to
        its reply, for games with `num_players` above 1; we are player 0."""
        if (num_players > 1) != (opponent is not None):
            raise ValueError(f"num_players is {num_players}: games of one player have no opponent, others need one")
        try:
            textarena = importlib.import_module("textarena")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"TextArena's games need {error.name}: pip install textarena") from error
        self._prompts = textarena.ObservationType.PROMPT
        self._env = textarena.make(f"{id}-raw")
        self._players, self._opponent = num_players, opponent
        self._random: Any = None
        self._mission = ""

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        others = random.getstate()
        if self._random is not None:
            random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(others)

    def _wait(self, done: bool) -> bool:
        """Let the others play until it is our turn. **Returns:** whether the game has ended."""
        while not done and self._env.state.current_player_id != 0:
            player, messages = self._env.get_observation()
            assert self._opponent is not None
            done, _ = self._env.step(self._opponent(self._joined(messages, player)[1]))
        return done

    def _read(self) -> dict[str, str]:
        messages = self._env.state.observations[0]
        self._env.state.observations[0] = []
        prompt, text = self._joined(messages, 0)
        self._mission = self._mission or prompt
        return {"mission": self._mission, "text": text}

    def reset(self, *, seed: int | None = None) -> tuple[dict[str, str], dict[str, Any]]:
        with self._own_random():
            self._env.reset(num_players=self._players, seed=seed)
            self._wait(False)
            self._mission = ""
            obs = self._read()
        return obs if obs["text"].strip() else {**obs, "text": obs["mission"]}, {}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        with self._own_random():
            done, _ = self._env.step(action)
            done = self._wait(done)
            reward = 0.0
            if done:
                rewards, _ = self._env.close()
                reward = float((rewards or {}).get(0, 0.0))
            return self._read(), reward, done, False, {}

    def _joined(self, messages: list[Any], player: int) -> tuple[str, str]:
        """The prompt among messages to a player, and what others said."""
        prompt = [text for _, text, kind in messages if kind == self._prompts]
        said = [text for sender, text, kind in messages if kind != self._prompts and sender != player]
        return "\n".join(prompt), "\n".join(said)
