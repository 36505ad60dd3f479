"""Import of states from live environments of gym-sokoban and gymnasium-2048."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment
from envs_jax.reference import elapsed_steps
from envs_jax.textgames.game2048 import Game2048, Game2048State
from envs_jax.textgames.sokoban import Sokoban, SokobanState
from envs_jax.textgames.sokoban_rooms import Room, pack


def import_state(reference_env: Any, env: Environment, params: Any) -> tuple[Any, SokobanState | Game2048State]:
    """Import the state of a live environment after a reset: gym-sokoban's or RAGEN's `SokobanEnv`, or the
    `TwentyFortyEightEnv` of gymnasium-2048.

    **Arguments:** `reference_env`; `env`, the same environment from `envs_jax.make`, possibly wrapped; `params`, its
    parameters.
    **Returns:** `(obs, state)` as the innermost `env.reset` would, for the same point in the episode, with the step
    count.
    **Raises:** `TypeError` for another environment, `ValueError` for another size or another number of boxes.
    """
    env, inner = env.unwrapped, reference_env.unwrapped
    lineage = [cls.__name__ for cls in type(inner).__mro__]
    if isinstance(env, Sokoban) and "SokobanEnv" in lineage:
        fixed, cells = np.asarray(inner.room_fixed), np.asarray(inner.room_state)
        boxes = np.flatnonzero((cells == 3) | (cells == 4))
        if fixed.shape != (env.height, env.width) or len(boxes) != env.boxes:
            raise ValueError(
                f"the SokobanEnv has {len(boxes)} boxes in {list(fixed.shape)} cells, {env.id} {env.boxes} in "
                f"{[env.height, env.width]}; make both with the same"
            )
        room = Room(
            pack(jnp.asarray(fixed.reshape(-1), jnp.int32)),
            jnp.int32(np.flatnonzero(cells == 5)[0]),
            jnp.asarray(boxes, jnp.int32),
        )
        state = SokobanState(room, jnp.int32(inner.num_env_steps))
        return env.observe(state), state
    if isinstance(env, Game2048) and "TwentyFortyEightEnv" in lineage:
        board = np.asarray(inner.board)
        if board.shape != (env.size, env.size):
            raise ValueError(f"the board has {list(board.shape)} cells, that of {env.id} {env.size} on a side")
        time = jnp.int32(elapsed_steps(reference_env))
        game = Game2048State(jnp.asarray(board, jnp.int8), jnp.int32(inner.total_score), time)
        return env.observe(game), game
    raise TypeError(f"{lineage[0]} is no environment that {env.id or type(env).__name__} re-implements")
