"""Open-ended goals: strings with an id, of which the first are the names of actions, the captions of transitions.

A chat model is asked for goals between updates: `UnansweredKeys` collects the states that the agent visits, `Asker` is
the host's part, and `exchange` (see `llmrl_jax.core.learner.Exchange`) takes the answers into a table on the device.
The states of one exchange are answered while updates run up to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs_jax.hashing import mixed_bits
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.learner import Exchange
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.rl.bonus import BonusState
from llmrl_jax.systems.ellm import prompts
from llmrl_jax.systems.ellm.goals import CATEGORIES, GoalParams, GoalSpec, GoalState, goal_reward, histogram, unit_rows


# --- goals and answers as arrays --------------------------------------------------------------------------------------


NO_KEY = np.uint32(0xFFFFFFFF)
"""Fills unused places of arrays of keys; no state has this key."""
NAME_BYTES = 64
"""The longest goal, in bytes of UTF-8."""


@struct.dataclass
class Goals:
    """`G` goals, of which the first `A` are the captions of transitions; unused ones are zeros."""

    names: UInt8[Array, "G 64"]
    """UTF-8, padded with zeros."""
    count: Int[Array, ""]
    """Goals that are in use."""
    similarity: Float[Array, "A G"]
    """Cosine between the embeddings of each caption and each goal."""
    nearest: Int[Array, " G"]
    """The caption that is most similar to each goal."""
    twin: Int[Array, " G"]
    """A goal that counts as reached together with this one, a synonym; -1: none."""


@struct.dataclass
class Answers:
    """The suggestions that are known for `C` states, sorted by key; unused places have `NO_KEY`."""

    keys: UInt32[Array, " C"]
    goals: Int[Array, "C K"]
    """Ids of goals; -1 where there are fewer."""
    pending: UInt32[Array, " U"]
    """Keys that were sent to the host, or will be next."""
    counts: Int[Array, "5"]
    """`COUNTS` so far."""


COUNTS = ("asked", "malformed", "no_place_for_goals", "no_place_for_states", "not_collected")
"""States asked about; replies and goals that could not be read; goals without a place left; and how often a state was
met without a place left in the table, or in the buffer between two exchanges, from which it is asked about when it is
met again."""


def cosines(encoder: TextEncoder, captions: Sequence[str], goals: Sequence[str]) -> Float[np.ndarray, "A N"]:
    """The cosine between the embedding of each caption and of each goal, at most 1."""
    embeddings = unit_rows(encoder.encode_texts([*captions, *goals]))
    return np.minimum(embeddings[: len(captions)] @ embeddings[len(captions) :].T, 1.0)


def name_bytes(name: str) -> UInt8[np.ndarray, "64"]:
    """A goal as bytes. **Raises:** `ValueError` if it is longer than `NAME_BYTES`."""
    text = name.encode()
    if len(text) > NAME_BYTES:
        raise ValueError(f"the goal {name!r} has {len(text)} bytes; at most {NAME_BYTES} are possible")
    return np.frombuffer(text.ljust(NAME_BYTES, b"\0"), np.uint8)


def read_names(names: Any, count: int) -> list[str]:
    """The strings of the first `count` goals."""
    return [bytes(row).rstrip(b"\0").decode() for row in np.asarray(names)[:count]]


def start_goals(
    captions: Sequence[str], synonyms: Sequence[tuple[str, str]], encoder: TextEncoder, max_goals: int
) -> Goals:
    """Goals that are the captions, with room for more.

    **Arguments:** `captions`; `synonyms`, pairs of captions that are reached together; `encoder`; `max_goals`, `G`.
    **Raises:** `ValueError` if `max_goals` is less than the captions.
    """
    count = len(captions)
    if max_goals < count:
        raise ValueError(
            f"goals.max_goals is {max_goals}, but the world has {count} captions, which are goals: raise it"
        )
    names = np.zeros((max_goals, NAME_BYTES), np.uint8)
    for row, caption in zip(names, captions):
        row[:] = name_bytes(caption)
    similarity = np.zeros((count, max_goals), np.float32)
    similarity[:, :count] = cosines(encoder, captions, captions)
    twin = np.full(max_goals, -1, np.int32)
    for a, b in synonyms:
        if a in captions and b in captions:
            twin[captions.index(a)], twin[captions.index(b)] = captions.index(b), captions.index(a)
    nearest = np.argmax(similarity, axis=0).astype(np.int32)
    return Goals(*map(jnp.asarray, (names, np.int32(count), similarity, nearest, twin)))


def start_answers(capacity: int, per_state: int, at_once: int) -> Answers:
    """A table without answers. **Arguments:** `capacity`, `C`; `per_state`, `K`; `at_once`, `U`."""
    return Answers(
        keys=jnp.full(capacity, NO_KEY, jnp.uint32),
        goals=jnp.full((capacity, per_state), -1, jnp.int32),
        pending=jnp.full(at_once, NO_KEY, jnp.uint32),
        counts=jnp.zeros(len(COUNTS), jnp.int32),
    )


def find(answers: Answers, key: UInt32[Array, "*B"]) -> tuple[Int[Array, "*B"], Bool[Array, "*B"]]:
    """The index of keys in the table, and whether they are in it."""
    index = jnp.searchsorted(answers.keys, key, method="scan_unrolled")
    index = jnp.minimum(index, answers.keys.shape[0] - 1)
    return index, (answers.keys[index] == key) & (key != NO_KEY)


def distinct(keys: UInt32[Array, " N"], size: int) -> tuple[UInt32[Array, "size"], Int[Array, ""]]:
    """The distinct keys, filled up with `NO_KEY`, and how many had no place. Their order is that of their mixed bits:
    by the keys themselves states with full inventories, whose keys are large, would always come last."""
    ranks = jnp.where(keys == NO_KEY, NO_KEY, mixed_bits(keys))
    _, ordered = jax.lax.sort((ranks, keys), num_keys=2)
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]]) & (ordered != NO_KEY)
    unique = jnp.where(first, ordered, NO_KEY)[jnp.argsort(~first, stable=True)]
    unique = jnp.pad(unique, (0, max(0, size - unique.shape[0])), constant_values=NO_KEY)[:size]
    return unique, jnp.maximum(jnp.sum(first) - size, 0)


def insert(answers: Answers, keys: UInt32[Array, " U"], goals: Int[Array, "U K"]) -> Answers:
    """The table with more answers, for which it must have places.

    **Arguments:** `keys`, which are not in the table; `NO_KEY` in unused places; `goals`, their goals.
    """
    all_keys = jnp.concatenate([answers.keys, keys])
    order = jnp.argsort(all_keys)[: answers.keys.shape[0]]
    return answers.replace(keys=all_keys[order], goals=jnp.concatenate([answers.goals, goals])[order])


def ask_next(answers: Answers, keys: UInt32[Array, " U"]) -> Answers:
    """The table with the keys that the host is asked about next: those of `keys` without an answer, as far as there are
    places for their answers. The others are counted."""
    new = (keys != NO_KEY) & ~find(answers, keys)[1]
    fits = new & (jnp.cumsum(new) <= jnp.sum(answers.keys == NO_KEY))
    counts = answers.counts.at[COUNTS.index("no_place_for_states")].add(jnp.sum(new & ~fits))
    return answers.replace(pending=jnp.sort(jnp.where(fits, keys, NO_KEY)), counts=counts)


# --- the specification ------------------------------------------------------------------------------------------------


@struct.dataclass
class OpenGoalParams(GoalParams):
    """The parameters, and the parts that exchanges with the host change."""

    goals: Goals
    answers: Any
    """The `Answers` of a chat model; `()` without one."""
    fixed: Int[Array, " F"]
    """Ids of the goals of the suggester `fixed`; -1 in unused places."""


@struct.dataclass
class OpenGoalState(GoalState):
    """`goals` are ids, `[K]`, of those that this episode has not reached; -1 in unused places."""

    kinds: Int[Array, " K"]
    """Their categories."""
    reached: Bool[Array, " G"]
    """Goals that this episode has reached."""
    unknown: Int[Array, ""]
    """Steps in states that had not been answered."""


_FLAGS: Mapping[str, str] = {"effect": "eval_success", "lenient": "action_success"}


@dataclass(frozen=True, kw_only=True)
class OpenGoalSpec(GoalSpec):
    """Open-ended goals. The observation has a `key`, uint32 `[]`, and `info` the flags that gates read. Captions are
    those of transitions, the names of the `A` actions."""

    FORM = "open-ended"
    UNREAD = ("judge",)
    WIDE = ("int32",)

    valid: Bool[np.ndarray, " A"]
    """Captions of actions that can have an effect in some state."""
    feasible: Callable[[Any], Bool[Array, " A"]]
    """The oracle: from an observation to the actions that a player could do now or nearby. Inside jit."""
    rules: Mapping[str, tuple[Mapping[str, int], tuple[str, ...]]]
    """Goal -> what must be held and what must be in view, for the scripted adviser."""
    synonyms: tuple[tuple[str, str], ...]
    """Pairs of captions that are reached together."""
    describe: Callable[[int], str]
    """The sentences of a state's key that reach the prompt, on the host."""
    verbs: tuple[str, ...]
    """The verbs that the prompt lists."""

    @property
    def actions(self) -> int:
        return len(self.captions)

    @property
    def num_goals(self) -> int:
        return len(self.captions)

    @property
    def single_goals(self) -> tuple[str, ...]:
        return tuple(name for name, valid in zip(self.captions, self.valid, strict=True) if valid)

    def goal_id(self, name: str) -> int:
        """The id of a goal that is a caption. **Raises:** `ValueError`, with the nearest, for another name."""
        if name not in self.captions:
            hint = nearest(name, list(self.captions))
            raise ValueError(f"no goal is named {name!r}{hint}; goals are names of actions")
        return self.captions.index(name)

    def with_goal(self, params, name):
        return params.replace(fixed=jnp.array([self.goal_id(name)], jnp.int32))

    def params(self, config, encoder):
        asks, table = config.suggester == "chat", config.goals
        max_goals = table.max_goals if asks else len(self.captions)
        return OpenGoalParams(
            env=(),
            goals=start_goals(self.captions, self.synonyms, encoder, max_goals),
            answers=start_answers(table.max_states, table.per_state, table.at_once) if asks else (),
            fixed=jnp.array([self.goal_id(name) for name in config.fixed] or [-1], jnp.int32),
            threshold=jnp.float32(config.threshold),
            intrinsic=jnp.float32(config.intrinsic),
            extrinsic=jnp.float32(config.extrinsic),
        )

    def start(self, env, params):
        empty, zero = jnp.zeros(0, jnp.int32), jnp.int32(0)
        reached, tally = jnp.zeros(params.goals.twin.shape[0], bool), jnp.zeros((2, len(CATEGORIES)), jnp.int32)
        return OpenGoalState(env, empty, jnp.float32(0), tally, kinds=empty, reached=reached, unknown=zero)

    def _ids(self, rules, obs, params, key) -> tuple[Int[Array, " K"], Bool[Array, ""]]:
        """Ids of suggested goals, -1 in unused places, and whether the state has been answered."""
        all_goals = jnp.arange(self.num_goals)
        if rules.suggester == "chat":
            index, answered = find(params.answers, obs["key"])
            return jnp.where(answered, params.answers.goals[index], -1), answered
        ids = {
            "oracle": lambda: jnp.where(self.feasible(obs), all_goals, -1),  # feasible now
            "novelty": lambda: all_goals,  # each counts once in an episode (the published `BaselineModel`)
            "uniform": lambda: jax.random.randint(key, (rules.draws,), 0, self.num_goals),
            "fixed": lambda: params.fixed,
            "none": lambda: jnp.full(1, -1),
        }[rules.suggester]()
        return ids, jnp.bool_(True)

    def categories(self, obs: Any, goals: Int[Array, " K"]) -> Int[Array, " K"]:
        """The category of each goal in a state, an index into `CATEGORIES`; -1 in unused places."""
        count = len(self.captions)
        index = jnp.clip(goals, 0, count - 1)
        now, ever = self.feasible(obs)[index], jnp.asarray(np.asarray(self.valid))[index]
        kind = jnp.where(goals >= count, 3, jnp.where(now, 0, jnp.where(ever, 1, 2)))
        return jnp.where(goals >= 0, kind, -1).astype(jnp.int32)

    def suggest(self, rules, obs, state, params, key):
        ids, answered = self._ids(rules, obs, params, key)
        ids = jnp.where((ids >= 0) & ~state.reached[jnp.maximum(ids, 0)], ids, -1).astype(jnp.int32)
        kinds = self.categories(obs, ids)
        tally, unknown = state.tally.at[0].add(histogram(kinds)), state.unknown + ~answered
        state = state.replace(goals=ids, kinds=kinds, tally=tally, unknown=unknown)
        requested = answered | jnp.any(params.answers.pending == obs["key"]) if rules.suggester == "chat" else answered
        return state, presented(params.goals, ids, params.threshold), requested

    def pay(self, rules, state, action, obs, info, params):
        success = True if rules.gate == "none" else info[_FLAGS[rules.gate]]
        caption = info.get("effective_action", action)  # a player who is asleep sleeps, whatever the action
        similarity = params.goals.similarity[caption][jnp.maximum(state.goals, 0)]
        earned, index = goal_reward(similarity, (state.goals >= 0) & success, params.threshold)
        reached = state.reached
        if rules.once:
            goal = jnp.where(index >= 0, state.goals[index], -1)
            ids = jnp.stack([goal, jnp.where(goal >= 0, params.goals.twin[goal], -1)])
            reached = reached.at[jnp.where(ids >= 0, ids, reached.shape[0])].set(True, mode="drop")
        kind = jnp.where(index >= 0, state.kinds[index], -1)
        state = state.replace(reached=reached, tally=state.tally.at[1].add(histogram(kind[None])))
        return state, earned, jnp.float32(0)

    def sums(self, state, info):
        unlocked = info["achievements"] > 0
        names = {f"episode_unlocked/{name}": unlocked[i] for i, name in enumerate(self.achievements)}
        unknown = state.unknown / jnp.maximum(info["episode_length"], 1)
        return {"episode_unknown": unknown, "episode_achievements": jnp.sum(unlocked), **names}

    def as_captions(self, obs, goals):
        return goals

    def describe_goals(self, obs, goals):
        return [name for name, present in zip(self.captions, goals, strict=True) if present]


def presented(goals: Goals, ids: Int[Array, " K"], threshold: float | jax.Array) -> Bool[Array, " A"]:
    """Goals as the agent sees them, a mask of captions: the caption that earns most under each goal, if any earns. A
    goal that no transition can reach is not presented."""
    goal = jnp.maximum(ids, 0)
    best, count = goals.nearest[goal], goals.similarity.shape[0]
    earns = (ids >= 0) & (goals.similarity[best, goal] > threshold)
    return jnp.zeros(count, bool).at[jnp.where(earns, best, count)].set(True, mode="drop")


# --- asking a chat model between updates ------------------------------------------------------------------------------


class UnansweredKeys:
    """Collects the keys of states that were not asked about, a `llmrl_jax.rl.bonus.Bonus` that leaves rewards as they
    are.

    A bonus sees every step that is played, and its state is in the learner's. Of a step it collects the state that the
    agent acts in, also the first of an episode, not the state that it reaches: one that ends an episode needs no goals.
    """

    name = "collected"

    def __init__(self, at_once: int):
        """**Arguments:** `at_once`, `U`, the most keys between two exchanges."""
        self.at_once = at_once

    def init(self, key: jax.Array, obs: Any) -> BonusState:
        collected = {"keys": jnp.full(self.at_once, NO_KEY, jnp.uint32), "lost": jnp.int32(0)}
        return BonusState(self._collect(collected, obs), ())

    def _collect(self, collected: dict[str, Any], obs: Any) -> dict[str, Any]:
        new = jnp.where(obs["known"], NO_KEY, obs["key"]).reshape(-1)
        keys, lost = distinct(jnp.concatenate([collected["keys"], new]), self.at_once)
        return {"keys": keys, "lost": collected["lost"] + lost}

    def stream(self, state: BonusState) -> None:
        return None

    def reward(self, state: BonusState, steps: Transitions, gamma: Any):
        collected = self._collect(state.whole, steps.obs)
        count = jnp.sum(collected["keys"] != NO_KEY).astype(jnp.float32)
        return BonusState(collected, ()), steps.reward, {"states_to_ask": count}

    def check_one_reward(self) -> None:
        pass

    def value(self, state: BonusState, obs: Any, batch_dims: int):
        raise NotImplementedError("collecting keys has no value function")

    def update(self, state: BonusState, steps: Transitions, key: jax.Array):
        return state, {}


@dataclass(frozen=True)
class Asker:
    """The host's part of an exchange: from keys to suggestions. Its answer depends on the request only."""

    spec: OpenGoalSpec
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
        spec = self.spec
        requests = [prompts.request(spec.describe(key), spec.verbs, self.sampling, self.shots) for key in keys]
        return [prompts.read_goals(reply.text, self.parse) for reply in self.chat.complete(requests)]

    def answer(self, request: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answer to a request of `exchange`."""
        keys, max_goals = request["keys"], request["names"].shape[0]
        names = read_names(request["names"], int(request["count"]))
        ids = {name: i for i, name in enumerate(names)}
        table = np.full((len(keys), self.per_state), -1, np.int32)
        counts = dict.fromkeys(COUNTS, 0)
        real = np.flatnonzero(keys != NO_KEY)
        counts["asked"] = len(real)
        replies = self.goals_of([int(keys[i]) for i in real]) if len(real) else []
        for row, goals in zip(real, replies, strict=True):
            counts["malformed"] += goals is None
            goal_ids = []
            for goal in goals or ():
                if not goal.isprintable() or len(goal.encode()) > NAME_BYTES:  # no UTF-8 for a half of a surrogate pair
                    counts["malformed"] += 1
                elif goal in ids or len(ids) < max_goals:
                    goal_ids.append(ids.setdefault(goal, len(ids)))
                else:
                    counts["no_place_for_goals"] += 1
            counts["no_place_for_goals"] += max(0, len(goal_ids) - self.per_state)
            table[row, : len(goal_ids)] = goal_ids[: self.per_state]
        return {"keys": keys, "goals": table, **self._new(list(ids)[len(names) :], len(names), max_goals)} | {
            "counts": np.array([counts[name] for name in COUNTS], np.int32)
        }

    def _new(self, added: list[str], first: int, max_goals: int) -> dict[str, np.ndarray]:
        """Bytes and similarities of goals that had no id, at their places; zeros elsewhere."""
        names = np.zeros((max_goals, NAME_BYTES), np.uint8)
        similarity = np.zeros((len(self.spec.captions), max_goals), np.float32)
        for i, name in enumerate(added, first):
            names[i] = name_bytes(name)
        if added:
            similarity[:, first : first + len(added)] = cosines(self.encoder, self.spec.captions, added)
        return {"names": names, "similarity": similarity, "count": np.asarray(first + len(added), np.int32)}


def exchange(asker: Asker, interval: int) -> Exchange:
    """The exchange of a learner whose goals are those of a chat model and whose bonus is `UnansweredKeys`."""

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

    return Exchange(interval, request, asker.answer, take, ahead=True)
