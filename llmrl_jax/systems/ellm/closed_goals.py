"""Closed-form goals: to pick up what lies where it should not be, and to put it where it should be stored.

Goals about a state (Du et al., 2302.06692): with an empty hand, "pick up the X" for every object X in view that lies on
a place where, as the suggester says, it should not be; with X in hand, "put the X in/on the Y" for every place Y seen
in this episode where it should be. To pick an object up is a goal once in an episode, and nothing is a goal about an
object that was stored in it.

The caption of a transition says what was picked up or put down, so a caption and the goals of its state are either all
about picks, or all about places of the same object: the similarities of all possible pairs are two tables, `[N, N]` and
`[N, R, R]`, instead of one over all `N + N * R` captions, and the reward is exact for every threshold.

A chat model says for every pair of an object and a place whether the object belongs there: once, before training
(`ask_pairs`). The answers are a matrix, from which the goals follow on the device (`with_answers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

from llmrl_jax.chat import BudgetExceeded, ChatModel, ChatReply
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.goals import CATEGORIES, GoalParams, GoalSpec, GoalState, goal_reward, unit_rows
from llmrl_jax.systems.ellm.prompts import PAIR_TOKENS, pair_request, read_yes


GOOD, BAD = CATEGORIES.index("good"), CATEGORIES.index("bad")
FILE = "judgements.json"
"""The answers of a run, in its folder: a resumed run reads them instead of asking again."""
Tables = dict[str, Bool[np.ndarray, "N R"]]
"""Goals: `pick` and `store` of `ClosedGoalParams`."""


def pick_caption(item: str) -> str:
    """The caption of a pick."""
    return f"pick up the {item}"


def store_caption(item: str, receptacle: str) -> str:
    """The caption of a placement."""
    return f"put the {item} in/on the {receptacle}"


@struct.dataclass
class ClosedGoalParams(GoalParams):
    """Goals of `N` objects and `R` places; the penalties of `env` count for goals too."""

    pick: Bool[Array, "N R"]
    """Whether to pick an object up is a goal where it lies on a place."""
    store: Bool[Array, "N R"]
    """Whether to put an object in or on a place is a goal."""
    pick_similarity: Float[Array, "N N"]
    """Cosine between "pick up the X" and "pick up the Z"."""
    store_similarity: Float[Array, "N R R"]
    """Cosine between "put the X in/on the Y" and "put the X in/on the Z"."""


@struct.dataclass
class ClosedGoalState(GoalState):
    """`goals` is a mask, `[O + R]`: to pick up the object of a slot; to put the held object in or on a place."""

    picked: Bool[Array, " O"]
    """Objects that were picked up in this episode: picking one up again is no goal, so re-placing a correctly placed
    object earns nothing."""
    stored: Bool[Array, " O"]
    """Objects already rewarded for their placement."""
    penalty: Float[Array, ""]
    """Sum of the penalties: for failed grabs, and for picks and placements that are no goals."""


@dataclass(frozen=True, kw_only=True)
class ClosedGoalSpec(GoalSpec):
    """Goals about `N` kinds of objects, to be picked up from and put in or on `R` places. An episode has up to `O`
    objects, each in a slot.

    Captions are those of picks, one per object, and those of placements, one per place.
    """

    FORM = "closed-form"
    UNREAD = ("gate", "goals")
    WIDE = ("int32", "int16")

    num_actions: int
    slots: int
    """The most objects of an episode, `O`."""
    items: tuple[str, ...]
    """The objects, `N`."""
    places: tuple[str, ...]
    """The places, `R`."""
    correct: Bool[np.ndarray, "N R"]
    """The oracle: whether an object belongs in or on a place."""
    occurring: Bool[np.ndarray, " N"]
    """Objects that an episode of this environment can have: those that a model is asked about."""
    features: Callable[[Any], Float[Array, "B D"]]
    """Inputs of networks, from the symbols of observations `[B, ...]`."""
    goal_features: Callable[[Any, Any], Float[Array, "B E"]]
    """Inputs of networks, from the symbols of observations and goals, masks of captions `[B, A]`, together."""
    task_id: Callable[[str, str], str]
    """From the id of an environment and a task to the id of the environment with this task."""

    @property
    def actions(self) -> int:
        return self.num_actions

    @property
    def num_goals(self) -> int:
        return self.slots + len(self.places)

    @property
    def single_goals(self) -> tuple[str, ...]:
        return tuple(name for name, occurs in zip(self.captions, self.occurring) if occurs)  # picks come first

    def with_goal(self, params, name):
        return params.replace(**{part: jnp.asarray(table) for part, table in named_goals(self, (name,)).items()})

    def params(self, config, encoder):
        pick, store = similarities(encoder, self)
        return ClosedGoalParams(
            env=(),
            **{name: jnp.asarray(table) for name, table in goal_tables(config, self).items()},
            pick_similarity=jnp.asarray(pick),
            store_similarity=jnp.asarray(store),
            threshold=jnp.float32(config.threshold),
            intrinsic=jnp.float32(config.intrinsic if config.suggester != "none" else 0.0),
            extrinsic=jnp.float32(config.extrinsic),
        )

    def start(self, env, params):
        empty, zero, tally = jnp.zeros(self.slots, bool), jnp.float32(0), jnp.zeros((2, len(CATEGORIES)), jnp.int32)
        goals = jnp.zeros(self.num_goals, bool)
        return ClosedGoalState(env, goals, zero, tally, picked=empty, stored=empty, penalty=zero)

    def suggest(self, rules, obs, state, params, key):
        kinds, places, held_slot = (jnp.asarray(obs[name], jnp.int32) for name in ("categories", "places", "held"))
        in_hand, kind = held_slot >= 0, kinds[jnp.maximum(held_slot, 0)]
        visible = ~in_hand & (places >= 0)
        pairs = jnp.maximum(kinds, 0), jnp.maximum(places, 0)
        reached = state.picked | state.stored if rules.once else jnp.zeros_like(state.stored)
        reachable = in_hand & obs["seen_receptacles"]
        if rules.once:
            reachable &= ~state.stored[jnp.maximum(held_slot, 0)]
        correct = jnp.asarray(self.correct)
        goals = jnp.concatenate([visible & params.pick[pairs] & ~reached, reachable & params.store[kind]])
        good = jnp.concatenate([visible & ~correct[pairs], reachable & correct[kind]])
        if rules.suggester == "uniform":
            goals &= self.sample_goals(rules.draws, in_hand, key)
        counts = _by_category({GOOD: jnp.sum(goals & good), BAD: jnp.sum(goals & ~good)})
        return state.replace(goals=goals, tally=state.tally.at[0].add(counts)), goals, jnp.bool_(True)

    def sample_goals(self, count: int, in_hand: jax.Array, key: jax.Array) -> Bool[Array, " G"]:
        """`count` of the slots, or of the places, at random with replacement, as a mask."""
        first, size = jnp.where(in_hand, self.slots, 0), jnp.where(in_hand, len(self.places), self.slots)
        chosen = first + jax.random.randint(key, (count,), 0, size)
        return jnp.zeros(self.num_goals, bool).at[chosen].set(True)

    def pay(self, rules, state, action, obs, info, params):
        # an object that is a goal was seen, and what was seen stays so: its category is in the next observation too
        kinds = jnp.maximum(obs["categories"].astype(jnp.int32), 0)
        kind, receptacle = jnp.maximum(info["category"], 0), jnp.maximum(info["receptacle"], 0)
        moved = np.arange(self.slots) == info["object"]
        similar = jnp.concatenate([params.pick_similarity[kind, kinds], params.store_similarity[kind, receptacle]])
        counts = (self.slots, info["picked"]), (len(self.places), info["placed"])
        of_kind = jnp.concatenate([jnp.broadcast_to(event, (n,)) for n, event in counts])
        earned, goal = goal_reward(similar, state.goals & of_kind, params.threshold)
        rewarded = goal >= 0
        pick_is_goal = params.pick[kind, receptacle] & ~jnp.any(moved & state.stored)
        fines = params.env
        wrong = jnp.where(info["picked"] & ~pick_is_goal, fines.wrong_pick_reward, 0.0)
        wrong = jnp.where(info["placed"], fines.wrong_place_reward, wrong)
        penalty = jnp.where(rewarded, 0.0, jnp.where(info["failed"], fines.fail_reward, wrong)).astype(jnp.float32)
        good = jnp.asarray(self.correct)[kind, receptacle] == info["placed"]
        state = state.replace(
            picked=state.picked | (moved & info["picked"]),
            stored=state.stored | (moved & rewarded & info["placed"]),
            penalty=state.penalty + penalty,
            tally=state.tally.at[1].add(_by_category({GOOD: good & rewarded, BAD: ~good & rewarded})),
        )
        return state, earned, penalty

    def sums(self, state, info):
        measures = {f"episode_{name}": info[name] for name in self.measures}
        return {"episode_penalty": state.penalty, "episode_unknown": jnp.float32(0), **measures}

    def as_captions(self, obs, goals):
        slots, places = goals[:, : self.slots], goals[:, self.slots :]
        kinds = obs["categories"][..., None] == np.arange(len(self.items))
        return jnp.concatenate([jnp.any(slots[..., None] & kinds, axis=1), places], axis=-1)

    def describe_goals(self, obs, goals):
        items = {self.items[int(obs["categories"][slot])] for slot in np.flatnonzero(goals[: self.slots])}
        places = (self.places[i] for i in np.flatnonzero(goals[self.slots :]))
        return [*map(pick_caption, sorted(items)), *(f"put it in/on the {receptacle}" for receptacle in places)]


def _by_category(counts: Mapping[int, jax.Array]) -> jax.Array:
    return jnp.stack([jnp.asarray(counts.get(i, 0), jnp.int32) for i in range(len(CATEGORIES))])


# --- tables of goals --------------------------------------------------------------------------------------------------


def similarities(
    encoder: TextEncoder, spec: ClosedGoalSpec
) -> tuple[Float[np.ndarray, "N N"], Float[np.ndarray, "N R R"]]:
    """The cosines between captions that can meet: of picks with each other, and of placements of the same object.

    Objects that do not occur have zeros: their captions are not encoded.
    """
    count, places = len(spec.items), len(spec.places)
    indices = np.flatnonzero(spec.occurring)
    names = [spec.items[i] for i in indices]
    picks = unit_rows(np.asarray(encoder.encode_texts([pick_caption(name) for name in names])))
    captions = [store_caption(name, receptacle) for name in names for receptacle in spec.places]
    stores = unit_rows(np.asarray(encoder.encode_texts(captions))).reshape(len(names), places, -1)
    pick, store = np.zeros((count, count), np.float32), np.zeros((count, places, places), np.float32)
    pick[np.ix_(indices, indices)] = np.minimum(picks @ picks.T, 1.0)
    store[indices] = np.minimum(stores @ stores.transpose(0, 2, 1), 1.0)
    return pick, store


def answers_as_goals(yes: Bool[np.ndarray, "N R"], answered: Bool[np.ndarray, "N R"]) -> Tables:
    """Goals from answers to "should it be stored there?": yes is a goal to put it there, no one to pick it up from
    there. Where nothing is known there is no goal."""
    return {"pick": answered & ~yes, "store": answered & yes}


def named_goals(spec: ClosedGoalSpec, names: Sequence[str]) -> Tables:
    """Goals from their names, such as "pick up the lemon" or "put the lemon in/on the kitchen fridge".

    **Raises:** `ValueError`, with the nearest, for another name.
    """
    picks = {pick_caption(item): i for i, item in enumerate(spec.items)}
    stores = {
        store_caption(item, receptacle): (i, r)
        for i, item in enumerate(spec.items)
        for r, receptacle in enumerate(spec.places)
    }
    pick, store = (np.zeros(spec.correct.shape, bool) for _ in range(2))
    for name in names:
        if name in picks:
            pick[picks[name]] = True
        elif name in stores:
            store[stores[name]] = True
        else:
            valid_names = [caption for caption, i in picks.items() if spec.occurring[i]]
            valid_names += [caption for caption, (i, _) in stores.items() if spec.occurring[i]]
            raise ValueError(
                f"no goal is named {name!r}{nearest(name, valid_names)}; goals are to pick up an object, or to "
                "put it in/on a receptacle"
            )
    return {"pick": pick, "store": store}


def goal_tables(config: EllmConfig, spec: ClosedGoalSpec) -> Tables:
    """The goals of the settings' suggester; those of a chat model are not known before it is asked."""
    everything = np.ones(spec.correct.shape, bool)
    if config.suggester == "oracle":
        return answers_as_goals(spec.correct, everything)
    if config.suggester in ("novelty", "uniform"):
        return {"pick": everything, "store": everything}
    return named_goals(spec, config.fixed if config.suggester == "fixed" else ())


# --- answers of a chat model ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairAnswers:
    """A chat model's answers about all pairs."""

    yes: Bool[np.ndarray, "N R"]
    """Whether more than the threshold of the readable answers are yes."""
    share: Float[np.ndarray, "N R"]
    """The fraction of yes among the readable answers; 0 without any."""
    answered: Bool[np.ndarray, "N R"]
    """Whether there is a readable answer."""
    unreadable: int
    """Answers that are neither yes nor no."""


def ask_pairs(
    chat: ChatModel,
    items: Sequence[str],
    places: Sequence[str],
    sampling: Mapping[str, object],
    *,
    samples: int = 1,
    threshold: float = 0.5,
) -> PairAnswers:
    """Ask about every object and place, one object after another, so that a cache keeps the answers given before an
    error.

    The published code compares the probabilities of the tokens Yes and No; servers do not all report these, so here a
    probability is the fraction of `samples` answers. Answers that `PAIR_TOKENS` cut before they could be read, as those
    of a model that thinks, are asked for again with the `max_tokens` of `sampling`; once that helped, all others are
    asked for with as many from the start, and once it did not, none is asked for again.

    **Arguments:** `chat`; `items`, `N` objects; `places`, `R`; `sampling`, options of requests; `samples`, per pair;
    `threshold`, fraction of yes above which a pair is suggested, 0 to 1.
    **Raises:** `ValueError` for a threshold outside [0, 1]; `ChatError` if a request got no reply, which says for an
    exhausted budget how many were answered.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}; a share from 0 to 1 is needed")
    answers: list[list[bool | None]] = []
    total = len(items) * len(places)
    max_tokens = int(sampling.get("max_tokens", PAIR_TOKENS))  # type: ignore[call-overload]
    tokens, longer = PAIR_TOKENS, max_tokens > PAIR_TOKENS

    def ask(questions: Sequence[tuple[str, str]], tokens: int) -> list[ChatReply]:
        options = {**sampling, "n": samples}
        return chat.complete([pair_request(item, receptacle, options, tokens) for item, receptacle in questions])

    with doing(f"asking {chat.name}", total, "questions") as activity:
        for item in items:
            try:
                replies = ask([(item, receptacle) for receptacle in places], tokens)
                if longer and (cut := [i for i, reply in enumerate(replies) if _cut_early(reply)]):
                    for i, reply in zip(cut, ask([(item, places[i]) for i in cut], max_tokens)):
                        replies[i] = reply
                    longer = False
                    if any(read_yes(choice.text) is not None for i in cut for choice in replies[i].choices):
                        tokens = max_tokens
            except BudgetExceeded as error:
                replied = len(answers) + sum(not isinstance(x, Exception) for x in error.outcomes)
                raise BudgetExceeded(
                    f"{replied} of {total} questions about objects and places are answered, and the budget is spent "
                    f"({error}): raise --chat.max-calls or --chat.max-usd"
                ) from None
            answers += [[read_yes(choice.text) for choice in reply.choices] for reply in replies]
            activity.done = len(answers)
    yes = np.array([sum(answer is True for answer in row) for row in answers], np.float32)
    readable = np.array([sum(answer is not None for answer in row) for row in answers], np.float32)
    shape = len(items), len(places)
    share = (yes / np.maximum(readable, 1)).reshape(shape)
    unreadable = sum(answer is None for row in answers for answer in row)
    return PairAnswers(share > threshold, share, (readable > 0).reshape(shape), unreadable)


def _cut_early(reply: ChatReply) -> bool:
    """Return whether the token limit cut a sample before its answer could be read."""
    return any(choice.finish_reason == "length" and read_yes(choice.text) is None for choice in reply.choices)


def ask_occurring(
    chat: ChatModel, spec: ClosedGoalSpec, sampling: Mapping[str, object], samples: int, threshold: float
) -> PairAnswers:
    """`ask_pairs` about the objects that the environment has; nothing is known about others."""
    indices = np.flatnonzero(spec.occurring)
    items = [spec.items[i] for i in indices]
    answers = ask_pairs(chat, items, spec.places, sampling, samples=samples, threshold=threshold)

    def scatter(table: np.ndarray) -> np.ndarray:
        full = np.zeros(spec.correct.shape, table.dtype)
        full[indices] = table
        return full

    return PairAnswers(scatter(answers.yes), scatter(answers.share), scatter(answers.answered), answers.unreadable)


def answers_of_run(
    folder: Path,
    chat: ChatModel,
    spec: ClosedGoalSpec,
    sampling: Mapping[str, object],
    samples: int,
    threshold: float,
) -> PairAnswers:
    """The answers in the file of a run's folder; if it is not there, those of the chat model, which are written to it.

    **Raises:** `ValueError` for a file about other objects or places; what `ask_pairs` raises.
    """
    file = folder / FILE
    if not file.exists():
        answers = ask_occurring(chat, spec, sampling, samples, threshold)
        write_whole(file, json.dumps(_table(spec, answers), indent=1) + "\n")
    return _read(file, spec, threshold)


def _table(spec: ClosedGoalSpec, answers: PairAnswers) -> dict[str, Any]:
    """The contents of the file: the fraction of yes for every object and place; null where no answer could be read."""
    rows = {
        spec.items[i]: {
            receptacle: float(answers.share[i, r]) if answers.answered[i, r] else None
            for r, receptacle in enumerate(spec.places)
        }
        for i in np.flatnonzero(spec.occurring)
    }
    return {"unreadable": answers.unreadable, "share_of_yes": rows}


def _read(file: Path, spec: ClosedGoalSpec, threshold: float) -> PairAnswers:
    saved = configs.read_json(file)
    rows = saved.get("share_of_yes", {})
    indices = np.flatnonzero(spec.occurring)
    if list(rows) != [spec.items[i] for i in indices] or any(list(row) != list(spec.places) for row in rows.values()):
        raise ValueError(
            f"{file} has answers about {len(rows)} objects, which are not the {len(indices)} objects and "
            f"{len(spec.places)} places of this world: move it away, and the chat model is asked again"
        )
    share, answered = np.zeros(spec.correct.shape, np.float32), np.zeros(spec.correct.shape, bool)
    for i, row in zip(indices, rows.values()):
        values = list(row.values())
        answered[i] = [x is not None for x in values]
        share[i] = [x or 0.0 for x in values]
    return PairAnswers(share > threshold, share, answered, int(saved["unreadable"]))


def pair_counts(answers: PairAnswers, spec: ClosedGoalSpec) -> dict[str, float]:
    """The numbers about answers: how many pairs were asked about and got a yes, how many answers could not be read, and
    their `agreement` with the oracle."""
    pairs = np.broadcast_to(spec.occurring[:, None], spec.correct.shape)
    numbers = {"asked": int(pairs.sum()), "yes": int(answers.yes.sum()), "unreadable": answers.unreadable}
    return numbers | agreement(answers.yes, spec.correct, pairs & answers.answered)


def counts_line(numbers: Mapping[str, float], calls: int) -> str:
    """The numbers of `pair_counts` as a sentence."""
    return (
        f"{numbers['asked']:.0f} pairs of objects and places asked about, {calls} requests sent; yes to "
        f"{numbers['yes']:.0f}, {numbers['unreadable']:.0f} answers neither yes nor no; yes to "
        f"{100 * numbers['match']:.1f}% of the correct places (match), no to {100 * numbers['mismatch']:.1f}% of the "
        f"others (mismatch); {100 * numbers['precision']:.1f}% of the yes are correct (precision)"
    )


def with_answers(params: Any, answers: PairAnswers) -> Any:
    """The parameters with the goals that follow from answers."""
    goals = answers_as_goals(answers.yes, answers.answered)
    return params.replace(**{name: jnp.asarray(table) for name, table in goals.items()})


def agreement(
    judged: Bool[np.ndarray, "N R"], correct: Bool[np.ndarray, "N R"], pairs: Bool[np.ndarray, "N R"] | None = None
) -> dict[str, float]:
    """Agreement of judgements with the correct places: `match`, the fraction of correct pairs that are judged so
    (recall); `mismatch`, the fraction of other pairs that are not; `precision`, the fraction of
    pairs judged so that are correct; nan where there are none.

    **Arguments:** `pairs`, the pairs that count; None: all.
    """
    counts = np.ones(correct.shape, bool) if pairs is None else pairs
    fractions = {}
    for name, mask, right in (
        ("match", correct, judged),
        ("mismatch", ~correct, ~judged),
        ("precision", judged, correct),
    ):
        count = int((mask & counts).sum())
        fractions[name] = float((right & mask & counts).sum() / count) if count else float("nan")
    return fractions
