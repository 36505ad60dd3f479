"""Health of an agent's training: metrics of what replies say, and a watch that stops a run before it collapses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax.hashing import mixed_bits
from llmrl_jax.core.checks import above, at_least, between
from llmrl_jax.lm.layers import AnyArray
from llmrl_jax.multiturn.record import REPLY, REREAD, Record
from llmrl_jax.multiturn.replies import ReplyAutomaton


BUCKETS = 4096
"""Columns of counts of tokens. Tokens that are equal modulo this number share one."""
SAMPLED = 256
"""Replies of a rollout whose words are looked at."""


def text_metrics(
    record: Record, new: Bool[AnyArray, "N L"], replies: ReplyAutomaton, size: int
) -> dict[str, Float[Array, ""]]:
    """Metrics of what replies say, nan where one is not defined.

    **Arguments:** `new`, the tokens that are looked at, where replies end; `replies`, the format's tables; `size`, the
    most tokens of a reply.
    **Returns:**

    * `thought_length`: the mean number of tokens before the action;
    * `repetition`: `repeated` 3-grams, of the first `SAMPLED` replies in the order of rows;
    * `information`: `prompt_information` of these replies' thoughts, in nats per token. The prompt is what the
      environment said since the reply before, also one that is read again, with the head of the episode if there was
      none.
    """
    places = jnp.arange(record.token.shape[1])
    thought = (record.role == REPLY) & ~replies.acting[record.state]
    decided = jax.lax.cummax(jnp.where(record.decides, places, -1), axis=1)
    ends = record.acts & new & (decided >= 0)
    # the ends of some replies; beyond the last one, a row that is not there
    row, end = jnp.divmod(jnp.flatnonzero(ends, size=SAMPLED, fill_value=ends.size), len(places))
    begin = decided.at[row, end].get(mode="fill", fill_value=0)
    at = begin[:, None] + 1 + jnp.arange(size)
    inside = (at <= end[:, None]) & (row < len(ends))[:, None]
    tokens = record.token.at[row[:, None], at].get(mode="fill", fill_value=0)
    thoughts = inside & thought.at[row[:, None], at].get(mode="fill", fill_value=False)
    prompt = prompt_numbers(record).at[row, begin].get(mode="fill", fill_value=0)
    prompt = jnp.argmax(prompt[:, None] == prompt, axis=1)
    columns = min(BUCKETS, len(replies.classes))
    return {
        "thought_length": jnp.sum(thought & new) / jnp.maximum(jnp.sum(record.acts & new), 1),
        "repetition": repeated(tokens, inside, 3),
        "information": prompt_information(tokens, thoughts, prompt, columns),
    }


def prompt_numbers(record: Record) -> Int[Array, "N L"]:
    """A number of what was said since the end of the reply before, up to each token, equal for equal texts."""
    places = jnp.arange(record.token.shape[1])
    ends = record.acts | (record.role == REREAD)
    first = record.begins | jnp.pad(ends[:, :-1], ((0, 0), (1, 0)))
    start = jax.lax.cummax(jnp.where(first, places, 0), axis=1)
    offset = (places - start + 1).astype(jnp.uint32) * jnp.uint32(0x9E3779B9)
    total = jnp.cumsum(mixed_bits(record.token.astype(jnp.uint32) ^ mixed_bits(offset)), axis=1, dtype=jnp.uint32)
    before = jnp.pad(total, ((0, 0), (1, 0)))
    return jax.lax.bitcast_convert_type(total - jnp.take_along_axis(before, start, axis=1), jnp.int32)


def repeated(tokens: Int[AnyArray, "N T"], written: Bool[AnyArray, "N T"], n: int) -> Float[Array, ""]:
    """The share of a reply's n-grams that it has had before, averaged over replies of at least n tokens."""
    positions = tokens.shape[1] - n + 1
    if positions < 1:
        return jnp.float32(jnp.nan)
    whole = jnp.stack([written[:, i : i + positions] for i in range(n)]).all(0)
    grams = [jnp.where(whole, tokens[:, i : i + positions], -1) for i in range(n)]
    ordered = jax.lax.sort(grams, dimension=1, num_keys=n)
    equal = jnp.stack([gram[:, 1:] == gram[:, :-1] for gram in ordered]).all(0) & (ordered[0][:, 1:] >= 0)
    count = jnp.sum(whole, axis=1)
    return _mean(jnp.sum(equal, axis=1) / jnp.maximum(count, 1), count > 0)


def prompt_information(
    tokens: Int[AnyArray, "N T"], thought: Bool[AnyArray, "N T"], prompt: Int[AnyArray, "N"], columns: int = BUCKETS
) -> Float[Array, ""]:
    """A proxy of the mutual information of thought and prompt, in nats per token, without the model.

    **Arguments:** `thought`, tokens that count; `prompt`, a number below N that is equal for equal prompts; `columns`,
    tokens that are equal modulo this number count as the same.

    The gain in log-likelihood of a thought's tokens under the token frequencies of the other thoughts on the same
    prompt, over those of thoughts on other prompts. It is at most the information that token frequencies carry, and not
    positive if thoughts do not depend on prompts: RAGEN-2's template collapse (arXiv:2604.06268), in which entropy
    stays. nan unless some prompt has two thoughts, and there are two prompts.
    """
    replies, word = len(tokens), tokens % columns
    row = jnp.arange(replies)[:, None]
    empty = jnp.zeros((replies, columns))
    counts, same = empty.at[row, word].add(thought), empty.at[prompt[:, None], word].add(thought)
    length, size, everything = counts.sum(1), same.sum(1)[prompt], counts.sum()
    # Counts of each token in the reply, in replies to its prompt, and in all.
    reply, near, total = counts[row, word], same[prompt[:, None], word], counts.sum(0)[word]
    # All frequencies leave the reply out, and are smoothed by one reply of mean length, drawn from all others.
    smoothing = everything / jnp.maximum(jnp.sum(length > 0), 1)
    common = smoothing * (total - reply) / jnp.maximum(everything - length, 1)[:, None]
    inside = (near - reply + common) / (size - length + smoothing)[:, None]
    outside = (total - near + common) / (everything - size + smoothing)[:, None]
    # A token that no other thought has favours neither.
    gain = jnp.sum(jnp.log(inside) - jnp.log(outside), axis=1, where=thought & (common > 0))
    compared = (length > 0) & (size > length) & (everything > size)
    return jnp.where(compared.any(), jnp.sum(gain, where=compared) / jnp.sum(length, where=compared), jnp.nan)


def correlation(a: Float[AnyArray, "*S"], b: Float[AnyArray, "*S"], where: Bool[AnyArray, "*S"]) -> Float[Array, ""]:
    """Pearson's correlation of the chosen values; nan if one is constant."""
    count = jnp.maximum(jnp.sum(where), 1)
    a, b = (jnp.where(where, x - jnp.sum(x, where=where) / count, 0.0) for x in (a, b))
    scale = jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))
    return jnp.where(scale > 0, jnp.sum(a * b) / jnp.where(scale > 0, scale, 1.0), jnp.nan)


def _mean(values: Float[AnyArray, "N"], where: Bool[AnyArray, "N"]) -> Float[Array, ""]:
    return jnp.where(where.any(), jnp.sum(values, where=where) / jnp.maximum(jnp.sum(where), 1), jnp.nan)


# ----------------------------------------------------------------------------------------------- the watch

WATCHED = (
    "reply_length", "truncated", "valid", "reward_std", "repetition", "entropy", "thought_length", "information",
    "success",
)  # fmt: skip
"""Metrics that the watch reads."""
ALARMS = {
    "length_jump": "replies became much longer, and fewer of them end with an action: charge for length, lower the "
    "learning rate, or shorten the budget",
    "echo": "replies repeat themselves, and rewards within a group became equal, while success does not rise: keep the "
    "groups of highest deviation, lower the learning rate, or learn from fresh rollouts only",
    "template": "thoughts no longer depend on the prompt, though entropy stays, and success does not rise: keep "
    "the groups of highest deviation, or train without thoughts",
}
"""Reasons for which a run stops, and what they mean."""


@struct.dataclass
class WatchState:
    """Memory of the watch, part of a learner's state."""

    updates: Int[Array, ""]
    """Updates so far."""
    recent: dict[str, Float[Array, ""]]
    """Means of each metric over the last few updates; nan before the first value."""
    usual: dict[str, Float[Array, ""]]
    """Means over a longer time, which stand still while there are signs of a collapse."""
    noise: dict[str, Float[Array, ""]]
    """Mean distances of single values from `usual`."""
    signs: Int[Array, "3"]
    """Consecutive updates with the signs of each collapse, in the order of `ALARMS`."""
    alarm: Int[Array, ""]
    """The first collapse, its index in `ALARMS`; -1: none."""


@dataclass(frozen=True)
class Watch:
    """Stops a run by a named reason, from the history of its metrics.

    A collapse is reported when all its signs have lasted for `patience` updates. A sign is a recent mean that differs
    from the usual one by a factor or a share below, and by more than twice the metric's noise.

    `update` is pure. A learner carries the state in its own, reports `metrics(state)`, and has `ALARMS`, by the names
    of these metrics, as its `alarms`: then a run stops (`Learner.alarms`).
    """

    warmup: int = 30
    """Updates before the first sign counts."""
    recent: float = 5.0
    """Updates of the recent mean's memory."""
    usual: float = 50.0
    """Updates of the usual mean's memory."""
    patience: int = 5
    """Updates for which signs must last."""
    longer: float = 1.5
    """`length_jump`: the factor by which replies became longer."""
    unfinished: float = 0.05
    """`length_jump`: the rise of the share of truncated replies, or the fall of that of valid ones."""
    equal: float = 0.5
    """`echo`: the factor by which the deviation within groups fell."""
    echoed: float = 0.1
    """`echo`: the rise of the share of repeated 3-grams."""
    uninformed: float = 0.5
    """`template`: the factor by which the information on the prompt fell."""
    steady: float = 0.7
    """`template`: the factor of the entropy that remains, and of the thoughts' length."""

    def __post_init__(self) -> None:
        at_least("warmup", self.warmup, 1)
        at_least("patience", self.patience, 1)
        at_least("recent", self.recent, 1)
        above("usual", self.usual, self.recent)
        above("longer", self.longer, 1)
        for field in fields(self)[5:]:
            between(field.name, getattr(self, field.name), 0, 1)

    def init(self) -> WatchState:
        """The state before the first update."""
        # arrays of their own, since a run donates its state
        first, second, third = ({name: jnp.float32(jnp.nan) for name in WATCHED} for _ in range(3))
        return WatchState(jnp.int32(0), first, second, third, jnp.zeros(len(ALARMS), jnp.int32), jnp.int32(-1))

    def update(self, state: WatchState, metrics: Mapping[str, Float[Array, ""]]) -> WatchState:
        """The state after an update with these metrics. One of `WATCHED` that is missing or nan is passed over: without
        groups there is no `reward_std`, and so no `echo`."""
        values = {name: jnp.float32(metrics.get(name, jnp.nan)) for name in WATCHED}
        distance = {name: jnp.abs(values[name] - state.usual[name]) for name in WATCHED}
        recent = {name: _follow(state.recent[name], values[name], state.updates, self.recent) for name in WATCHED}
        state = state.replace(recent=recent)
        signs = self._signs(state) & (state.updates >= self.warmup)
        calm = ~signs.any()

        def follow(means, value):
            return {
                name: jnp.where(calm, _follow(means[name], value[name], state.updates, self.usual), means[name])
                for name in WATCHED
            }

        lasting = jnp.where(signs, state.signs + 1, 0)
        reached = lasting >= self.patience
        alarm = jnp.where(reached.any() & (state.alarm < 0), jnp.argmax(reached), state.alarm).astype(jnp.int32)
        return state.replace(
            updates=state.updates + 1,
            usual=follow(state.usual, values),
            noise=follow(state.noise, distance),
            signs=lasting,
            alarm=alarm,
        )

    def _signs(self, state: WatchState) -> Bool[Array, "3"]:
        """Return whether there are the signs of each collapse."""
        recent, usual = state.recent, state.usual
        noise = {name: 2 * state.noise[name] for name in WATCHED}

        def rises(name, amount=0.0):
            return recent[name] - usual[name] > jnp.maximum(amount, noise[name])

        def falls(name, amount=0.0):
            return usual[name] - recent[name] > jnp.maximum(amount, noise[name])

        def falls_to(name, factor):
            return falls(name) & (recent[name] < factor * usual[name]) & (usual[name] > noise[name])

        rising = rises("success")
        remains = (recent["entropy"] > self.steady * usual["entropy"]) & (
            recent["thought_length"] > self.steady * usual["thought_length"]
        )
        unfinished = rises("truncated", self.unfinished) | falls("valid", self.unfinished)
        length_jump = (
            rises("reply_length") & (recent["reply_length"] > self.longer * usual["reply_length"]) & unfinished
        )
        echo = falls_to("reward_std", self.equal) & rises("repetition", self.echoed) & ~rising
        template = falls_to("information", self.uninformed) & remains & ~rising & ~rises("repetition")
        return jnp.stack([length_jump, echo, template])

    def metrics(self, state: WatchState) -> dict[str, Float[Array, ""]]:
        """`alarm/NAME` of each collapse: 1 from the update on at which it was found, else 0."""
        return {f"alarm/{name}": (state.alarm == i).astype(jnp.float32) for i, name in enumerate(ALARMS)}

    @property
    def alarms(self) -> dict[str, str]:
        """The names of `metrics` and what they mean, for `Learner.alarms`."""
        return {f"alarm/{name}": meaning for name, meaning in ALARMS.items()}


def _follow(mean: Float[Array, ""], value: Float[Array, ""], updates: Int[Array, ""], memory: float) -> Array:
    """A mean with a memory of some updates, of all while they are fewer."""
    rate = jnp.maximum(1 / memory, 1 / (updates + 1.0))
    mean = jnp.where(jnp.isnan(mean), value, mean)
    return jnp.where(jnp.isnan(value), mean, mean + rate * (value - mean))
