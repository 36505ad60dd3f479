"""Health of an agent's training: metrics of a rollout, and a watch that stops a run before it collapses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from llmrl_jax.core.checks import above, at_least, between
from llmrl_jax.lm.layers import AnyArray


BUCKETS = 4096
"""Columns of counts of tokens. Tokens that are equal modulo this number share one."""


def rollout_metrics(
    tokens: Int[AnyArray, "N T"],
    written: Bool[AnyArray, "N T"],
    thought: Bool[AnyArray, "N T"],
    entropy: Float[AnyArray, "N T"],
    prompt: Int[AnyArray, "N"],
    valid: Bool[AnyArray, "N"],
    truncated: Bool[AnyArray, "N"],
    reward: Float[AnyArray, "N"],
    success: Float[AnyArray, "N"],
    group: Int[AnyArray, "N"],
) -> dict[str, Float[Array, ""]]:
    """Metrics of replies, one per row. Each is float32, nan where it is not defined.

    **Arguments:** `tokens`; `written`, tokens that the policy drew; `thought`, those of them before the action;
    `entropy` of the policy at each token, in nats; `prompt`, a number below N that is equal for equal prompts; `valid`,
    whether the reply has an action; `truncated`, whether its budget ended it; `reward`, the return of the reply's
    episode that is maximized; `success`, the true one; `group`, a number below N that is equal for episodes from one
    start.
    **Returns:**

    * `reward_std`: `group_deviation` of `reward`;
    * `entropy`: its mean over written tokens, in nats;
    * `length`, `thought_length`: mean numbers of written tokens and of those in thoughts;
    * `truncated`, `valid`: shares of the replies;
    * `repetition`: `repeated` 3-grams;
    * `information`: `prompt_information`, in nats per token;
    * `reward`, `success`: their means. `agreement`: their correlation, which falls when a reward is exploited.
    """
    length = jnp.sum(written, axis=1)
    return {
        "reward_std": group_deviation(reward, group),
        "entropy": jnp.sum(jnp.where(written, entropy, 0.0)) / jnp.maximum(jnp.sum(length), 1),
        "length": jnp.mean(length.astype(jnp.float32)),
        "thought_length": jnp.mean(jnp.sum(thought & written, axis=1).astype(jnp.float32)),
        "truncated": jnp.mean(truncated.astype(jnp.float32)),
        "valid": jnp.mean(valid.astype(jnp.float32)),
        "repetition": repeated(tokens, written, 3),
        "information": prompt_information(tokens, thought & written, prompt),
        "reward": jnp.mean(reward),
        "success": jnp.mean(success),
        "agreement": correlation(reward, success),
    }


def group_deviation(values: Float[AnyArray, "N"], group: Int[AnyArray, "N"]) -> Float[Array, ""]:
    """The mean standard deviation within groups of at least 2. Where it falls, groups have no gradient; it falls first
    in RAGEN's echo trap (arXiv:2504.20073)."""
    segments = len(values)
    size = jax.ops.segment_sum(jnp.ones(segments), group, segments)
    mean = jax.ops.segment_sum(values, group, segments) / jnp.maximum(size, 1)
    variance = jax.ops.segment_sum((values - mean[group]) ** 2, group, segments) / jnp.maximum(size, 1)
    return _mean(jnp.sqrt(variance), size >= 2)


def repeated(tokens: Int[AnyArray, "N T"], written: Bool[AnyArray, "N T"], n: int) -> Float[Array, ""]:
    """The share of a reply's n-grams that it has had before, averaged over replies of at least n tokens."""
    positions = tokens.shape[1] - n + 1
    if positions < 1:
        return jnp.float32(jnp.nan)
    whole = jnp.stack([written[:, i : i + positions] for i in range(n)]).all(0)
    grams = [jnp.where(whole, tokens[:, i : i + positions], -1) for i in range(n)]
    grams = jax.lax.sort(grams, dimension=1, num_keys=n)
    equal = jnp.stack([gram[:, 1:] == gram[:, :-1] for gram in grams]).all(0) & (grams[0][:, 1:] >= 0)
    count = jnp.sum(whole, axis=1)
    return _mean(jnp.sum(equal, axis=1) / jnp.maximum(count, 1), count > 0)


def prompt_information(
    tokens: Int[AnyArray, "N T"], thought: Bool[AnyArray, "N T"], prompt: Int[AnyArray, "N"]
) -> Float[Array, ""]:
    """A proxy of the mutual information of thought and prompt, in nats per token, without the model.

    The gain in log-likelihood of a thought's tokens under the token frequencies of the other thoughts on the same
    prompt, over those of thoughts on other prompts. It is at most the information that token frequencies carry, and not
    positive if thoughts do not depend on prompts: RAGEN-2's template collapse (arXiv:2604.06268), in which entropy
    stays. nan unless some prompt has two thoughts, and there are two prompts.
    """
    replies, word = len(tokens), tokens % BUCKETS
    row = jnp.arange(replies)[:, None]
    empty = jnp.zeros((replies, BUCKETS))
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


def cross_information(
    log_probs: Float[AnyArray, "N P"], prompt: Int[AnyArray, "N"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mutual information of thought and prompt from the model's own scores, as in RAGEN-2 (arXiv:2604.06268).

    **Arguments:** `log_probs` of each thought after each of P prompts, which count as equally likely; `prompt`, each
    thought's own.
    **Returns:** the information in nats, at most log P; the share of thoughts that their own prompt makes most likely.
    """
    chosen = jnp.take_along_axis(log_probs, prompt[:, None], axis=1)[:, 0]
    mixture = jax.nn.logsumexp(log_probs, axis=1) - jnp.log(log_probs.shape[1])
    return jnp.mean(chosen - mixture), jnp.mean((log_probs.argmax(1) == prompt).astype(jnp.float32))


def correlation(a: Float[AnyArray, "N"], b: Float[AnyArray, "N"]) -> Float[Array, ""]:
    """Pearson's correlation; nan if one is constant."""
    a, b = a - a.mean(), b - b.mean()
    scale = jnp.sqrt(jnp.mean(a**2) * jnp.mean(b**2))
    return jnp.where(scale > 0, jnp.mean(a * b) / jnp.where(scale > 0, scale, 1.0), jnp.nan)


def _mean(values: Float[AnyArray, "N"], where: Bool[AnyArray, "N"]) -> Float[Array, ""]:
    return jnp.where(where.any(), jnp.sum(values, where=where) / jnp.maximum(jnp.sum(where), 1), jnp.nan)


# ----------------------------------------------------------------------------------------------- the watch

WATCHED = (
    "length", "truncated", "valid", "reward_std", "repetition", "entropy", "thought_length", "information", "success"
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
    """What the watch remembers, part of a learner's state."""

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

    names: ClassVar[tuple[str, ...]] = tuple(ALARMS)

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
        empty = {name: jnp.float32(jnp.nan) for name in WATCHED}
        zero = jnp.zeros((), jnp.int32)
        return WatchState(zero, empty, empty, empty, jnp.zeros(len(ALARMS), jnp.int32), zero - 1)

    def update(self, state: WatchState, metrics: Mapping[str, Float[Array, ""]]) -> WatchState:
        """The state after an update with these metrics, those of `rollout_metrics`. A nan is passed over.

        **Raises:** `ValueError` if a metric of `WATCHED` is missing."""
        missing = [name for name in WATCHED if name not in metrics]
        if missing:
            raise ValueError(f"the watch needs the metrics {', '.join(WATCHED)}; {', '.join(missing)} are not given")
        values = {name: jnp.float32(metrics[name]) for name in WATCHED}
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
        """Whether there are the signs of each collapse."""
        recent, usual = state.recent, state.usual
        noise = {name: 2 * state.noise[name] for name in WATCHED}

        def rises(name, amount=0.0):
            return recent[name] - usual[name] > jnp.maximum(amount, noise[name])

        def falls(name, amount=0.0):
            return usual[name] - recent[name] > jnp.maximum(amount, noise[name])

        def falls_to(name, factor):
            return falls(name) & (recent[name] < factor * usual[name]) & (usual[name] > noise[name])

        rising, repeating = rises("success"), rises("repetition", self.echoed)
        remains = (recent["entropy"] > self.steady * usual["entropy"]) & (
            recent["thought_length"] > self.steady * usual["thought_length"]
        )
        unfinished = rises("truncated", self.unfinished) | falls("valid", self.unfinished)
        length_jump = rises("length") & (recent["length"] > self.longer * usual["length"]) & unfinished
        echo = falls_to("reward_std", self.equal) & repeating & ~rising
        template = falls_to("information", self.uninformed) & remains & ~rising & ~repeating
        return jnp.stack([length_jump, echo, template])

    def metrics(self, state: WatchState) -> dict[str, Float[Array, ""]]:
        """`alarm/NAME` of each collapse: 1 from the update on at which it was found, else 0."""
        return {f"alarm/{name}": (state.alarm == i).astype(jnp.float32) for i, name in enumerate(ALARMS)}

    @property
    def alarms(self) -> dict[str, str]:
        """The names of `metrics` and what they mean, for `Learner.alarms`."""
        return {f"alarm/{name}": meaning for name, meaning in ALARMS.items()}

    def reason(self, state: WatchState) -> str:
        """The name of the collapse that was found, on the host; empty: none."""
        return self.names[int(state.alarm)] if int(state.alarm) >= 0 else ""


def _follow(mean: Float[Array, ""], value: Float[Array, ""], updates: Int[Array, ""], memory: float) -> Array:
    """A mean with a memory of some updates, of all while they are fewer."""
    rate = jnp.maximum(1 / memory, 1 / (updates + 1.0))
    mean = jnp.where(jnp.isnan(mean), value, mean)
    return jnp.where(jnp.isnan(value), mean, mean + rate * (value - mean))
