"""Evaluation of a policy that writes: one episode for each key, and what was said."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.bridges.host import HostEnvironment
from envs_jax.env import Environment
from envs_jax.resets import VectorState, select
from llmrl_jax.lm.cache import Slots
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import NOTHING, REPLY, Record
from llmrl_jax.multiturn.rollout import GROUP, Conversation, Rows, Steps, worlds_of


@dataclass(frozen=True)
class Played:
    """Whole episodes, `E` of them, on the host."""

    returns: np.ndarray
    """float32 `[E]`, sums of the environment's rewards."""
    success: np.ndarray | None
    """bool `[E]`, the environment's success flag (`info["success"]`); None if it has none."""
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


AT_ONCE = 64
"""Episodes that are played at once: between two calls of the program the next ones begin where some have ended, so that
few rows wait for the longest, and memory does not depend on how many there are."""
WHOLE = max(GROUP.values())
"""Of more episodes than so many a multiple is played at once, so that there are whole groups; the others follow."""
LONGEST = 1 << 20
"""Tokens after which an episode is left as it is."""


class Evaluator:
    """Plays episodes of a policy; its programs are compiled once.

    **Arguments:** `policy`; `env`, wrapped in `EpisodeStatistics`; `env_params`; `episodes`, of each call;
    `episode_tokens`, see `TurnPolicy.capacity`; `chunk`, tokens of each call of the program, between
    which episodes begin in place of those that have ended; `at_once`, played at the same time (an environment of the
    host plays all).
    """

    def __init__(
        self,
        policy: TurnPolicy,
        env: Environment,
        env_params: Any,
        episodes: int,
        episode_tokens: int = 0,
        chunk: int = 128,
        at_once: int = AT_ONCE,
    ):
        if episodes < 1:
            raise ValueError(f"episodes is {episodes}; at least 1 is needed")
        self.env, self.env_params, self.episodes, self.chunk = env, env_params, episodes, chunk
        self.rows = min(episodes, at_once)
        if isinstance(env.unwrapped, HostEnvironment):
            self.rows = episodes
        elif self.rows > WHOLE:
            self.rows -= self.rows % WHOLE
        self.conversation = Conversation(policy, worlds_of(env, self.rows), episode_tokens, once=True, whole=True)
        self._begin, self._replace = jax.jit(self._first), jax.jit(self._renew)
        self._slots = jax.jit(self.conversation.first_slots)
        self._play = jax.jit(self._next, donate_argnames="slots")

    def _first(self, key: jax.Array, env_params: Any, numbers: jax.Array) -> Rows:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
        obs, env = jax.vmap(self.env.reset, (0, None))(keys, env_params)
        return self.conversation.begin(env_params, VectorState(env=env), obs)

    def _renew(self, mask: jax.Array, new: Rows, rows: Rows) -> Rows:
        return select(mask, new.replace(env_params=()), rows.replace(env_params=())).replace(env_params=rows.env_params)

    def _next(
        self, params: Any, frozen: Any, rows: Rows, slots: Slots, key: jax.Array, greedy: jax.Array
    ) -> tuple[Rows, Slots, Record, Steps]:
        return self.conversation.play_on(params, frozen, rows, slots, key, self.chunk, greedy)

    def __call__(self, params: Any, frozen: Any, key: jax.Array, greedy: bool = False) -> Played:
        """Play episodes. **Arguments:** `key`, episode `i` begins with `fold_in(split(key)[0], i)`; `greedy`, whether
        the likeliest tokens are written; what is sampled also depends on the number of rows. **Returns:** `Played`."""
        begin_key, play_key = jax.random.split(key)
        number, begun = np.arange(self.rows), self.rows
        rows = self._begin(begin_key, self.env_params, number)
        slots = self._slots(params, frozen)
        count = self.episodes
        sums = {name: np.zeros(count) for name in ("returns", "turns", "valid")}
        success, cut = np.zeros(count, bool), np.zeros(count, bool)
        tokens: list[list[np.ndarray]] = [[] for _ in range(count + 1)]
        roles: list[list[np.ndarray]] = [[] for _ in range(count)]
        for i in itertools.count():
            key = jax.random.fold_in(play_key, i)
            rows, slots, new, steps = self._play(params, frozen, rows, slots, key, jnp.bool_(greedy))
            new, info, done, steps_cut, live = jax.device_get((new, steps.info, steps.done, steps.cut, rows.live))
            playing = number < count
            episode = number[playing]
            sums["returns"][episode] += np.where(new.acts, new.reward, 0.0).sum(1)[playing]
            sums["turns"][episode] += new.acts.sum(1)[playing]
            sums["valid"][episode] += new.valid.sum(1)[playing]
            if reports_success := "success" in info:
                success[episode] |= (done & info["success"].astype(bool)).any(1)[playing]
            cut[episode] |= steps_cut.any(1)[playing]
            for row in np.flatnonzero(playing):
                real = new.role[row] != NOTHING
                tokens[number[row]].append(new.token[row][real])
                roles[number[row]].append(new.role[row][real])
            ended = playing & (~live | np.array([len(tokens[n]) * self.chunk >= LONGEST for n in number]))
            # a row for which there is no further episode is not read any more
            number[ended] = np.minimum(begun + np.arange(ended.sum()), count)
            begun += int(ended.sum())
            if (number == count).all():
                break
            if (renewed := ended & (number < count)).any():
                fresh = self._begin(begin_key, self.env_params, np.minimum(number, count - 1))
                rows = self._replace(renewed, fresh, rows)
        joined = [tuple(np.concatenate(x) for x in parts[:count]) for parts in (tokens, roles)]
        return Played(
            returns=sums["returns"].astype(np.float32),
            success=success if reports_success else None,
            turns=sums["turns"].astype(np.int32),
            valid=sums["valid"].astype(np.int32),
            cut=cut,
            tokens=joined[0],
            roles=joined[1],
        )
