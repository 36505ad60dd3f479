"""Asking a chat model for goals between updates: which states, and what their answers change.

`llmrl_jax.core.learner.Exchange` describes an exchange. The states of one exchange are answered while updates run up to
the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.chat import ChatModel
from llmrl_jax.core.learner import Exchange
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.rl.bonus import BonusState
from llmrl_jax.systems.ellm import prompts
from llmrl_jax.systems.ellm.facts import Facts
from llmrl_jax.systems.ellm.goals import (
    COUNTS,
    NAME_BYTES,
    NO_KEY,
    ask_next,
    cosines,
    distinct,
    insert,
    name_bytes,
    read_names,
)


class Collected:
    """Collects the keys of states that have no answer yet, a `llmrl_jax.rl.bonus.Bonus` that leaves rewards unchanged.

    A bonus sees every step that is played, and its state is in the learner's. Of a step it collects the state that the
    agent acts in, also the first of an episode, not the state that it reaches: one that ends an episode needs no goals.
    """

    name = "collected"

    def __init__(self, at_once: int):
        """**Arguments:** `at_once`, `U`, the most keys between two exchanges."""
        self.at_once = at_once

    def init(self, key: jax.Array, obs: Any) -> BonusState:
        whole = {"keys": jnp.full(self.at_once, NO_KEY, jnp.uint32), "lost": jnp.int32(0)}
        return BonusState(self._with(whole, obs), ())

    def _with(self, whole: dict[str, Any], obs: Any) -> dict[str, Any]:
        new = jnp.where(obs["known"], NO_KEY, obs["key"]).reshape(-1)
        keys, lost = distinct(jnp.concatenate([whole["keys"], new]), self.at_once)
        return {"keys": keys, "lost": whole["lost"] + lost}

    def stream(self, state: BonusState) -> None:
        return None

    def reward(self, state: BonusState, steps: Transitions, gamma: Any):
        whole = self._with(state.whole, steps.obs)
        count = jnp.sum(whole["keys"] != NO_KEY).astype(jnp.float32)
        return BonusState(whole, ()), steps.reward, {"states_to_ask": count}

    def check_one_reward(self) -> None:
        pass

    def value(self, state: BonusState, obs: Any, batch_dims: int):
        raise NotImplementedError("collecting keys has no value function")

    def update(self, state: BonusState, steps: Transitions, key: jax.Array):
        return state, {}


@dataclass(frozen=True)
class Asker:
    """The host's part of an exchange: from keys to suggestions. Its answer depends on the request only."""

    facts: Facts
    encoder: TextEncoder
    chat: ChatModel
    sampling: dict[str, Any]
    """Sampling options of requests."""
    per_state: int
    """Goals kept per state, `K`."""
    parse: prompts.Parse = "lines"
    shots: tuple[prompts.Shot, ...] = prompts.PUBLISHED
    """The examples of the prompt."""

    def goals_of(self, keys: Sequence[int]) -> list[list[str] | None]:
        """The goals that the chat model suggests in states; None where its reply cannot be read.

        **Raises:** `ChatError` if a request got no reply, as for an exhausted budget."""
        facts = self.facts
        asked = [prompts.request(facts.describe(key), facts.verbs, self.sampling, self.shots) for key in keys]
        return [prompts.read_goals(reply.text, self.parse) for reply in self.chat.complete(asked)]

    def answer(self, asked: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answer to a request of `exchange`."""
        keys, most = asked["keys"], asked["names"].shape[0]
        names = read_names(asked["names"], int(asked["count"]))
        ids = {name: i for i, name in enumerate(names)}
        table = np.full((len(keys), self.per_state), -1, np.int32)
        counts = dict.fromkeys(COUNTS, 0)
        real = np.flatnonzero(keys != NO_KEY)
        counts["asked"] = len(real)
        replies = self.goals_of([int(keys[i]) for i in real]) if len(real) else []
        for row, goals in zip(real, replies, strict=True):
            counts["malformed"] += goals is None
            kept = []
            for goal in goals or ():
                if not goal.isprintable() or len(goal.encode()) > NAME_BYTES:  # no UTF-8 for a half of a surrogate pair
                    counts["malformed"] += 1
                elif goal in ids or len(ids) < most:
                    kept.append(ids.setdefault(goal, len(ids)))
                else:
                    counts["no_place_for_goals"] += 1
            counts["no_place_for_goals"] += max(0, len(kept) - self.per_state)
            table[row, : len(kept)] = kept[: self.per_state]
        return {"keys": keys, "goals": table, **self._new(list(ids)[len(names) :], len(names), most)} | {
            "counts": np.array([counts[name] for name in COUNTS], np.int32)
        }

    def _new(self, added: list[str], first: int, most: int) -> dict[str, np.ndarray]:
        """Bytes and similarities of goals that had no id, at their places; zeros elsewhere."""
        names = np.zeros((most, NAME_BYTES), np.uint8)
        similarity = np.zeros((len(self.facts.captions), most), np.float32)
        for i, name in enumerate(added, first):
            names[i] = name_bytes(name)
        if added:
            similarity[:, first : first + len(added)] = cosines(self.encoder, self.facts.captions, added)
        return {"names": names, "similarity": similarity, "count": np.asarray(first + len(added), np.int32)}


def exchange(asker: Asker, every: int) -> Exchange:
    """The exchange of a learner whose world is `Suggested` by a chat model and whose bonus is `Collected`."""

    def request(state: Any) -> dict[str, jax.Array]:
        params = state.runner.env_params
        return {"keys": params.answers.pending, "names": params.goals.names, "count": params.goals.count}

    def take(state: Any, answer: dict[str, jax.Array]) -> Any:
        params = state.runner.env_params
        goals, answers = params.goals, params.answers
        old = jnp.arange(goals.names.shape[0]) < goals.count
        similarity = jnp.where(old, goals.similarity, answer["similarity"])
        goals = goals.replace(
            names=jnp.where(old[:, None], goals.names, answer["names"]),
            count=answer["count"],
            similarity=similarity,
            nearest=jnp.argmax(similarity, axis=0).astype(jnp.int32),
        )
        answers = insert(answers, answer["keys"], answer["goals"])
        collected = state.bonus.whole
        counts = answers.counts + answer["counts"]
        counts = counts.at[COUNTS.index("not_collected")].add(collected["lost"])
        answers = ask_next(answers.replace(counts=counts), collected["keys"])
        empty = {"keys": jnp.full_like(collected["keys"], NO_KEY), "lost": jnp.zeros_like(collected["lost"])}
        runner = state.runner.replace(env_params=params.replace(goals=goals, answers=answers))
        return state.replace(runner=runner, bonus=BonusState(empty, ()))

    return Exchange(every, request, asker.answer, take, ahead=True)
