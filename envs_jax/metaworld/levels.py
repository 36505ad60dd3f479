"""KALM's levels as one environment: each episode draws an instruction, and plays its task. `MetaWorld-v3`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.env import Environment
from envs_jax.metaworld import instructions
from envs_jax.metaworld.env import MetaWorld
from envs_jax.metaworld.instructions import NAMES
from envs_jax.metaworld.poses import ENTITY
from envs_jax.metaworld.scene import Geometry
from envs_jax.metaworld.state import Params, Start, State


HORIZON = 100
"""Steps of an episode."""
SUCCESS = 10.0
"""The reward of a state in which the task is done."""


@struct.dataclass
class LevelState:
    """One episode."""

    inner: State
    """The state of the task, padded to the sizes of the largest one."""
    task: jax.Array
    """int32 `[]`, the number of the task within the level."""
    instruction: jax.Array
    """int32 `[]`, the number of the instruction within the level."""
    worth: jax.Array
    """float32 `[]`, the reward of the last state, which the next one is compared with."""


class MetaWorldLevel(Environment[LevelState, Params]):
    """The tasks of one of KALM's levels, on C MuJoCo.

    The observation is a dict, see `observation_space`; actions are those of `MetaWorld`. The reward of a step is by how
    much it improves the task's own reward, which counts as 10 at success; so an episode sums up to the task's last one.
    An episode terminates at success and is truncated after `params.max_steps`.
    """

    def __init__(self, level: str = "real", geometry: Geometry = "stock", threads: int | None = None):
        """**Arguments:** `level`, `"real"` (ten tasks), `"rephrase"` (the same in held-out wordings), `"easy"` (eight
        other tasks) or `"hard"` (four more, two of them of two stages); `geometry` and `threads`, as of `MetaWorld`.

        **Raises:** `ValueError` for an invalid value; `ModuleNotFoundError` as `MetaWorld` does.
        """
        self.level = instructions.level(level)
        self.tasks = [MetaWorld(name, "entities", "c", geometry, threads) for name in self.level.tasks]

    @property
    def default_params(self) -> Params:
        return Params(max_steps=np.int32(HORIZON), ends_at_success=np.bool_(True))

    @cached_property
    def _size(self) -> int:
        return max(env.physics.size for env in self.tasks)

    @cached_property
    def _stages(self) -> int:
        return max(len(env.task.stages) for env in self.tasks)

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (4,), np.float32)

    def observation_space(self, params):
        """`state`: float32 `[91]`, the entity observation of `MetaWorld`; `goal`: int32 `[1]`, the task, an index of
        `envs_jax.metaworld.NAMES`; `instruction`: int16 `[1]`, the number of the sentence within the level."""
        return spaces.Dict(
            {
                "state": spaces.Box(-np.inf, np.inf, (ENTITY,), np.float32),
                "goal": spaces.Box(0, len(NAMES) - 1, (1,), np.int32),
                "instruction": spaces.Box(-1, len(self.level.book) - 1, (1,), np.int16),
            }
        )

    def _padded(self, state: State) -> State:
        rows = self._size - state.physics.shape[0]
        missing = self._stages - state.start.targets.shape[0]
        targets = jnp.pad(state.start.targets, ((0, missing), (0, 0)))
        physics = jnp.pad(state.physics, ((0, rows), (0, 0)))
        return state.replace(physics=physics, start=state.start.replace(targets=targets))

    def _unpadded(self, env: MetaWorld, state: State) -> State:
        """A padded state as one of the task."""
        start: Start = state.start.replace(targets=state.start.targets[: len(env.task.stages)])
        return state.replace(physics=state.physics[: env.physics.size], start=start)

    def _chosen(self, task: jax.Array, results: list[Any]) -> Any:
        """The results of one task, out of those of all."""
        return jax.tree.map(lambda *x: jnp.stack(x)[task], *results)

    def _observation(self, obs: jax.Array, instruction: jax.Array) -> dict[str, jax.Array]:
        goal = jnp.asarray(self.level.goals)[instruction]
        return {"state": obs, "goal": goal, "instruction": instruction.astype(jnp.int16)[None]}

    def reset(self, key, params):
        instruction_key, key = jax.random.split(key)
        return self.begin(self.level.draw(instruction_key), key)

    def begin(self, instruction: jax.Array, key: jax.Array) -> tuple[dict[str, jax.Array], LevelState]:
        """The first observation and state of an episode with a given instruction, int32 `[]`."""
        instruction = jnp.asarray(instruction, jnp.int32)
        task, results = jnp.asarray(self.level.configurations)[instruction], []
        for i, env in enumerate(self.tasks):
            obs, state = env.begin(env.draw(key), task == i)
            results.append((obs, self._padded(state)))
        obs, inner = self._chosen(task, results)
        return self._observation(obs, instruction), LevelState(inner, task, instruction, jnp.float32(0))

    def step(self, key, state, action, params):
        results = []
        for i, env in enumerate(self.tasks):
            obs, inner, reward, success = env.advance(self._unpadded(env, state.inner), action, state.task == i)
            results.append((obs, self._padded(inner), reward, success))
        obs, inner, worth, success = self._chosen(state.task, results)
        worth = jnp.where(success, SUCCESS, worth)
        reward, ended = worth - state.worth, success & (params.ends_at_success != 0)
        state = state.replace(inner=inner, worth=worth)
        truncated = inner.step_count >= params.max_steps
        return self._observation(obs, state.instruction), state, reward, ended, truncated, {"success": success}

    def expert(self, state: LevelState) -> jax.Array:
        """The action of the scripted expert of the state's task: float32 `[4]`."""
        return self._chosen(state.task, [env.expert(self._unpadded(env, state.inner)) for env in self.tasks])

    @property
    def captions(self):
        return {"instruction": self.level.book}

    @property
    def episode_captions(self):
        return ("instruction",)

    def render(self, state) -> np.ndarray:
        env = self.tasks[int(state.task)]
        return env.render(self._unpadded(env, state.inner))
