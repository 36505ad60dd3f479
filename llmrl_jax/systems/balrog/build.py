"""The environments of the benchmark: episodes of BabyAI or of Crafter that step together, with BALROG's texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

import envs_jax
from envs_jax.crafter import constants as c
from llmrl_jax.core.activity import doing
from llmrl_jax.systems.balrog import prompts
from llmrl_jax.systems.balrog.prompts import Observation, Scene, Wording


BABYAI_TASKS = {
    "goto": "go_to",
    "pickup": "pick_up",
    "open": "open",
    "putnext": "put_next",
    "pick_up_seq_go_to": "pick_up_seq_go_to",
}
"""BALROG's tasks of BabyAI -> those of `MixedTrainLocal`."""
BABYAI_LEVEL = "BabyAI-MixedTrainLocal-v0"
CRAFTER_STEPS = 2000
"""Steps after which BALROG ends an episode of Crafter."""


class Result(NamedTuple):
    """The result of one step of one episode."""

    observation: Observation
    reward: float
    done: bool


class Worlds(ABC):
    """`E` episodes of one environment that step together, with the texts of one version.

    An episode depends on its seed and its actions alone."""

    name: ClassVar[str]
    actions: ClassVar[tuple[str, ...]]
    """Texts of the actions."""
    default: ClassVar[str]
    """The action that is executed for any other text."""

    @abstractmethod
    def reset(self) -> list[Observation]:
        """The first observation of each episode."""

    @abstractmethod
    def step(self, actions: Sequence[str]) -> list[Result]:
        """One step of each episode; the results of episodes that have ended mean nothing."""

    @abstractmethod
    def instruction(self, episode: int) -> str:
        """The first message of an episode, after `reset`."""

    @abstractmethod
    def limit(self, episode: int) -> int:
        """The number of steps after which an episode ends, after `reset`."""

    @abstractmethod
    def stats(self, episode: int) -> dict[str, Any]:
        """An episode's success for its log, with `progression`: to be called after its last step, before the next."""


def _keys(seeds: Sequence[int]) -> Key[Array, " E"]:
    return jax.vmap(jax.random.key)(jnp.asarray(np.array(seeds, np.uint32)))


class BabyAIWorlds(Worlds):
    """Episodes of BabyAI: one object to go to or to pick up, two for the tasks of two objects, or a locked door and its
    key. **Arguments:** `tasks` and `seeds`, of each episode."""

    name = "babyai"
    actions = tuple(prompts.BABYAI_ACTIONS)
    default = prompts.BABYAI_DEFAULT

    def __init__(self, tasks: Sequence[str], seeds: Sequence[int]):
        self.env: Any
        self.env, params = envs_jax.make(f"BabyAI-Text/{BABYAI_LEVEL.removeprefix('BabyAI-')}", num_dists=0)
        index = [self.env.unwrapped.task_names.index(BABYAI_TASKS[task]) for task in tasks]
        weights = np.eye(len(BABYAI_TASKS), dtype=np.float32)[index]
        self._params = params.replace(task_weights=jnp.asarray(weights))
        self._axes = jax.tree.map(lambda leaf: None, params).replace(task_weights=0)  # what differs between episodes
        self._first_keys = _keys(seeds)
        self._book, self._missions = self.env.captions["text"], self.env.captions["mission"]

    def reset(self) -> list[Observation]:
        @jax.jit
        def start(keys: Any, params: Any) -> Any:
            keys = jax.vmap(jax.random.split)(keys)
            obs, state = jax.vmap(self.env.reset, (0, self._axes))(keys[:, 0], params)
            return obs["text"], obs["mission"], state.max_steps, state, keys[:, 1]

        with doing("compiling the first states of BabyAI"):
            text, missions, limits, self._state, self._keys = start(self._first_keys, self._params)
        self._missions_of = [self._missions.render(row) for row in np.asarray(missions)]
        self._limits, self._t = np.asarray(limits), 0
        self._success = np.zeros(len(self._limits), bool)

        @jax.jit
        def advance(keys: Any, t: Any, state: Any, action: Any, params: Any) -> Any:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            obs, state, reward, terminated, truncated, _ = jax.vmap(self.env.step, (0, 0, 0, self._axes))(
                keys, state, action, params
            )
            return (obs["text"], reward > 0, terminated | truncated), state

        self._advance = advance
        return self._observations(np.asarray(text))

    def step(self, actions: Sequence[str]) -> list[Result]:
        index = np.array([self.actions.index(action) for action in actions], np.int32)
        seen, self._state = self._advance(self._keys, self._t, self._state, index, self._params)
        text, success, done = jax.device_get(seen)
        self._t += 1
        self._success |= success
        # minigrid's reward in its float64, and its whole 0
        reward = [1 - 0.9 * (self._t / limit) if won else 0 for won, limit in zip(success, self._limits.tolist())]
        return [Result(*row) for row in zip(self._observations(text), reward, done.tolist())]

    def _observations(self, captions: Int[np.ndarray, "E C"]) -> list[Observation]:
        return [prompts.babyai_observation(self._book.phrases_of(row)) for row in captions]

    def instruction(self, episode: int) -> str:
        return prompts.babyai_instruction(self._missions_of[episode])

    def limit(self, episode: int) -> int:
        return int(self._limits[episode])

    def stats(self, episode: int) -> dict[str, Any]:
        return {"mission": self._missions_of[episode], "progression": float(self._success[episode])}


class CrafterWorlds(Worlds):
    """Episodes of Crafter. **Arguments:** `seeds`, of each episode; `wording`; `whole_view`, see
    `prompts.crafter_observation`; `hidden_noop`, whether an episode begins with a step without action."""

    name = "crafter"
    actions = tuple(prompts.CRAFTER_ACTIONS)
    default = prompts.CRAFTER_DEFAULT

    def __init__(self, seeds: Sequence[int], wording: Wording, *, whole_view: bool = False, hidden_noop: bool = True):
        self.env, self._params = envs_jax.make("CrafterReward-v1", image="none", view=True)
        self._first_keys, self._wording = _keys(seeds), wording
        self._whole_view, self._hidden_noop = whole_view, hidden_noop
        self._step = jax.jit(self._advance)

    def _advance(self, keys: Any, t: Any, state: Any, action: Any) -> tuple[dict[str, Any], Any]:
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        step = jax.vmap(self.env.step, (0, 0, 0, None))
        obs, state, reward, terminated, truncated, info = step(keys, state, action, self._params)
        outcome = {"reward": reward, "done": terminated | truncated, "achievements": info["achievements"]}
        return {"scene": _scenes(obs, state), **outcome}, state

    def reset(self) -> list[Observation]:
        @jax.jit
        def start(keys: Any) -> Any:
            keys = jax.vmap(jax.random.split)(keys)
            obs, state = jax.vmap(self.env.reset, (0, None))(keys[:, 0], self._params)
            return _scenes(obs, state), state, keys[:, 1]

        with doing("compiling the first states of Crafter"):
            scenes, self._state, self._keys = start(self._first_keys)
        episodes = len(self._first_keys)
        self._achievements, self._t = np.zeros((episodes, len(c.ACHIEVEMENTS)), np.int64), 0
        if self._hidden_noop:
            return [result.observation for result in self.step([self.default] * episodes)]
        return self._observations(jax.device_get(scenes))

    def step(self, actions: Sequence[str]) -> list[Result]:
        index = np.array([self.actions.index(action) for action in actions], np.int32)
        seen, self._state = self._step(self._keys, self._t, self._state, index)
        seen = jax.device_get(seen)
        self._t += 1
        self._achievements = seen["achievements"]
        observations = self._observations(seen["scene"])
        reward = np.round(seen["reward"].astype(np.float64), 6)  # of tenths in float32
        return [Result(*row) for row in zip(observations, reward.tolist(), seen["done"].tolist())]

    def _observations(self, scenes: Any) -> list[Observation]:
        """**Arguments:** `scenes`, a `Scene` whose parts have a row per episode."""
        return [prompts.crafter_observation(Scene(*row), self._wording, self._whole_view) for row in zip(*scenes)]

    def instruction(self, episode: int) -> str:
        return prompts.crafter_instruction(self._wording)

    def limit(self, episode: int) -> int:
        return CRAFTER_STEPS

    def stats(self, episode: int) -> dict[str, Any]:
        return crafter_stats(self._achievements[episode])


def _scenes(obs: Any, state: Any) -> Scene:
    return Scene(obs["view"], state.position, obs["inventory"], state.facing, state.sleeping)


def crafter_stats(achievements: Int[np.ndarray, "22"]) -> dict[str, Any]:
    """The log of an episode of Crafter: `score`, achievements with a count above 0; `progression`, their share;
    `achievements`, all counts."""
    score = sum(1.0 for count in achievements if count > 0)
    counts = dict(zip(c.ACHIEVEMENTS, map(int, achievements)))
    return {"score": score, "progression": float(score) / len(c.ACHIEVEMENTS), "achievements": counts}
