"""Evaluation of a policy that writes: one episode for each key, and what was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment
from envs_jax.resets import VectorState
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import NOTHING, REPLY, carried_over
from llmrl_jax.multiturn.rollout import Conversation, worlds_of


@dataclass(frozen=True)
class Played:
    """Whole episodes, `E` of them, on the host."""

    returns: np.ndarray
    """float32 `[E]`, sums of the environment's rewards."""
    success: np.ndarray
    """bool `[E]`; whether the environment says so (`info["success"]`), else whether the return is positive."""
    turns: np.ndarray
    """int32 `[E]`."""
    valid: np.ndarray
    """int32 `[E]`, turns whose reply named an action."""
    cut: np.ndarray
    """bool `[E]`, episodes that ended because no further turn fits."""
    tokens: tuple[np.ndarray, ...]
    """int32 `[L]` of each episode, in order; with `reprompt`, all prompts one after the other."""
    roles: tuple[np.ndarray, ...]
    """int8 `[L]`, see `llmrl_jax.multiturn.record`."""

    @property
    def reply_length(self) -> float:
        """The mean number of tokens of a reply."""
        return sum(int(np.sum(roles == REPLY)) for roles in self.roles) / max(1, int(np.sum(self.turns)))


class Evaluator:
    """Plays episodes of a policy; its program is compiled once.

    **Arguments:** `policy`; `env`, wrapped in `EpisodeStatistics`; `env_params`; `episodes`, played at once;
    `episode_tokens`, see `llmrl_jax.multiturn.rollout.capacity`; `chunk`, tokens of each call of the program.
    """

    def __init__(
        self,
        policy: TurnPolicy,
        env: Environment,
        env_params: Any,
        episodes: int,
        episode_tokens: int = 0,
        chunk: int = 128,
    ):
        if episodes < 1:
            raise ValueError(f"episodes is {episodes}; at least 1 is needed")
        self.env, self.env_params, self.episodes, self.chunk = env, env_params, episodes, chunk
        self.conversation = Conversation(policy, worlds_of(env, episodes), episode_tokens, once=True)
        self._begin, self._play = jax.jit(self._first), jax.jit(self._next)

    def _first(self, key: jax.Array, env_params: Any) -> Any:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(self.episodes))
        obs, env = jax.vmap(self.env.reset, (0, None))(keys, env_params)
        return self.conversation.begin(env_params, VectorState(env=env), obs)

    def _next(self, params: Any, frozen: Any, rows: Any, key: jax.Array, greedy: jax.Array) -> Any:
        before = rows.length
        rows, record, steps = self.conversation.play(params, frozen, rows, key, self.chunk, greedy)
        short, count = carried_over(record, before + self.chunk, self.conversation.held)
        new = record.take(before[:, None] + jnp.arange(self.chunk))
        rows = rows.replace(record=short, length=jnp.where(rows.live, count, 0))
        return rows, new, steps

    def __call__(
        self, params: Any, frozen: Any, key: jax.Array, greedy: bool = False, most_tokens: int = 1 << 20
    ) -> Played:
        """Play episodes. **Arguments:** `key`, episode `i` begins with `fold_in(key, i)`; `greedy`, whether the
        likeliest tokens are written; `most_tokens`, after which those that go on are left as they are. **Returns:**
        `Played`."""
        begin_key, play_key = jax.random.split(key)
        rows = self._begin(begin_key, self.env_params)
        count = self.episodes
        sums = {name: np.zeros(count) for name in ("returns", "turns", "valid")}
        success, cut = np.zeros(count, bool), np.zeros(count, bool)
        tokens: list[list[np.ndarray]] = [[] for _ in range(count)]
        roles: list[list[np.ndarray]] = [[] for _ in range(count)]
        for i in range(-(-most_tokens // self.chunk)):
            rows, new, steps = self._play(params, frozen, rows, jax.random.fold_in(play_key, i), jnp.bool_(greedy))
            new, info, done, steps_cut = jax.device_get((new, steps.info, steps.done, steps.cut))
            sums["returns"] += np.where(new.acts, new.reward, 0.0).sum(1)
            sums["turns"] += new.acts.sum(1)
            sums["valid"] += new.valid.sum(1)
            if "success" in info:
                success |= (done & info["success"].astype(bool)).any(1)
            cut |= steps_cut.any(1)
            for row in range(count):
                real = new.role[row] != NOTHING
                tokens[row].append(new.token[row][real])
                roles[row].append(new.role[row][real])
            if not np.asarray(rows.live).any():
                break
        if "success" not in info:
            success = sums["returns"] > 0
        joined = [tuple(np.concatenate(x) for x in parts) for parts in (tokens, roles)]
        return Played(
            returns=sums["returns"].astype(np.float32),
            success=success,
            turns=sums["turns"].astype(np.int32),
            valid=sums["valid"].astype(np.int32),
            cut=cut,
            tokens=joined[0],
            roles=joined[1],
        )
