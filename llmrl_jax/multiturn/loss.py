"""The losses of written replies: clipped ratios of tokens, turns or CISPO's, entropy, KL to the base, and the
environment's own tokens."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Shaped

from llmrl_jax.lm import Llama
from llmrl_jax.multiturn.credit import Credit
from llmrl_jax.multiturn.places import Places
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import REPLY, WORLD, Record, text_of
from llmrl_jax.rl.precision import ratio_error, sampling_metrics


Ratio = Literal["token", "turn", "cispo"]
"""How the probability ratio enters the loss. `token`: clipped for each token, as PPO does. `turn`: the geometric mean
of a reply's ratios, for all of its tokens, as GSPO does for sequences (2507.18071). `cispo`: the clipped ratio as the
fixed weight of the log-probability (2506.13585), so that no token loses its gradient."""

Aggregate = Literal["token", "turn"]
"""`token`: the mean over all tokens of a minibatch (DAPO, 2503.14476); `turn`: the mean over replies of the mean of
each one's tokens."""


@struct.dataclass
class Batch:
    """Rows of a minibatch; leaves `[N, L]`."""

    record: Record
    credit: Credit
    fresh: Bool[Array, "N L"]
    """Tokens that the present parameters wrote, before the first gradient step."""
    new: Bool[Array, "N L"]
    """Tokens of the last rollout: earlier ones are there to be attended to."""


class Scores(NamedTuple):
    """Log-probabilities, entropies and hidden states from one pass over rows, `[N, L]`."""

    log_prob: Float[Array, "N L"]
    """Of each token, given those before it in its text: of a reply's under the policy, with its temperature and with
    tokens removed that were not offered; of the environment's under the model."""
    entropy: Float[Array, "N L"]
    """Of the distribution that each token of a reply was drawn from."""
    hidden: Float[Array, "N K D"]
    """At the places that were asked for."""


def score_tokens(
    policy: TurnPolicy,
    variables: Any,
    replies: Any,
    record: Record,
    chunk: int = 0,
    world: bool = False,
    at: Places | None = None,
) -> Scores:
    """One pass over rows of conversations.

    **Arguments:** `variables`, of the model; `replies`, the automaton's tables; `chunk`, tokens of a row whose logits
    are in memory at once; 0: all; `world`, whether the environment's tokens are scored too, without temperature; `at`,
    the places whose hidden states and logits are computed: of the tokens behind them scores are returned, 0 for others;
    None: all.
    """
    number, position = text_of(record)
    output: Any = policy.model.apply(
        variables,
        record.token,
        positions=position,
        segments=number,
        longest=policy.longest_text,
        at=None if at is None else at.index,
        logits=False,
    )
    hidden = output.hidden
    # the token that is predicted from each place
    parts = (record.token, record.role == REPLY, record.state, record.left)
    parts = jax.tree.map(lambda x: jnp.pad(x[:, 1:], ((0, 0), (0, 1))), parts)
    parts = (hidden, *(parts if at is None else map(at.take, parts)))

    def score(parts):
        hidden, token, reply, state, left = parts
        plain: Any = policy.model.apply(variables, hidden, method=Llama.head)
        logits = policy.masked(replies, plain, state, left)
        if world:
            logits = jnp.where(reply[..., None], logits, plain)
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - total
        offered = jnp.isfinite(logits)
        prob = jnp.exp(logits - total[..., None])
        entropy = total - jnp.sum(prob * jnp.where(offered, logits, 0.0), axis=-1)
        return chosen, entropy

    rows, length = hidden.shape[:2]
    if not chunk or chunk >= length:
        scores = score(parts)
    else:
        padding = -length % chunk

        def split(x):
            x = jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
            return jnp.moveaxis(x.reshape(len(x), -1, chunk, *x.shape[2:]), 1, 0)

        scores = jax.lax.map(jax.checkpoint(score), jax.tree.map(split, parts))
        scores = tuple(jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :length] for x in scores)
    log_prob, entropy = (x if at is None else at.spread(x) for x in scores)
    return Scores(behind(log_prob), behind(entropy), hidden)


def behind(x: Shaped[Array, "N L"]) -> Shaped[Array, "N L"]:
    """Move the entry of each token to the next one; 0 at the first."""
    return jnp.pad(x[:, :-1], ((0, 0), (1, 0)))


class Room(NamedTuple):
    """The static sizes of a gradient's arrays."""

    tokens: int
    """Of a row."""
    read: int
    """Tokens of a row whose hidden states are used."""
    valued: int
    """Tokens of a row that have a value."""


class Uses(NamedTuple):
    """Masks of the hidden states that a loss uses, `[N, L]`."""

    read: Bool[Array, "N L"]
    """For logits or values."""
    valued: Bool[Array, "N L"]
    """Where the critic is fitted."""


def uses(batch: Batch, config: Any) -> Uses:
    """The hidden states that `turn_loss` uses. **Arguments:** `config`, a `TurnLearnerConfig`."""
    scored, fits = batch.credit.learn, batch.credit.fits
    if config.echo_coef > 0:
        scored = scored | from_world(batch)
    before = jnp.pad(scored[:, 1:], ((0, 0), (0, 1)))
    return Uses(before | fits, fits) if config.critic else Uses(before, jnp.zeros_like(fits))


def from_world(batch: Batch) -> Bool[Array, "N L"]:
    """The environment's tokens that are learned with `echo_coef`: without replies that are read again."""
    return batch.new & (batch.record.role == WORLD) & ~batch.record.begins


def reply_sums(record: Record, x: Float[Array, "N L"]) -> Float[Array, "N L"]:
    """The sum of `x` over the tokens of each reply, at these tokens."""
    places = jnp.arange(x.shape[1])
    # a reply's tokens stand behind the place where it was decided
    number = behind(jax.lax.cummax(jnp.where(record.decides, places, 0), axis=1))
    return jax.vmap(lambda row, i: jax.ops.segment_sum(row, i, x.shape[1])[i])(x, number)


class Totals(NamedTuple):
    """The numbers by which the sums of a minibatch are divided, of whose rows a part may have only some."""

    tokens: Any
    turns: Any
    fitted: Any
    """Values that the critic is fitted to."""
    fresh: Any
    world: Any


def totals(batch: Batch) -> Totals:
    """The totals of a minibatch, each at least 1."""

    def count(x):
        return jnp.maximum(jnp.sum(x.astype(jnp.float32)), 1.0)

    credit = batch.credit
    return Totals(*map(count, (credit.learn, credit.turn, credit.fits, credit.learn & batch.fresh, from_world(batch))))


def turn_loss(
    policy: TurnPolicy,
    params: Any,
    frozen: Any,
    batch: Batch,
    total: Totals,
    config: Any,
    hparams: dict[str, Any],
    room: Room | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of a part of a minibatch: the losses of the parts add up, and so do the metrics but `ratio_error`.

    Tokens of the environment, padding, and tokens of replies without an alternative have no gradient through the
    policy's loss. **Arguments:** `config`, a `TurnLearnerConfig`; `hparams`, its floats; `room`, for the hidden states
    that are used: the loss is NaN if they are more; None: those of all tokens are computed.
    """
    record, credit, used = batch.record, batch.credit, uses(batch, config)
    echo = config.echo_coef > 0
    at, fitted = (None, None) if room is None else map(Places.of, used, room[1:])

    def score(adapted: bool = True) -> Scores:
        variables, world = policy.variables(params, frozen, adapted), echo and adapted
        return score_tokens(policy, variables, frozen["replies"], record, config.head_chunk, world, at)

    scores = score()
    learn = credit.learn
    log_ratio = jnp.where(learn, scores.log_prob - record.log_prob, 0.0)
    lengths = jnp.maximum(reply_sums(record, learn.astype(jnp.float32)), 1.0)
    weight = jnp.where(learn, 1 / total.tokens, 0.0)
    if config.aggregate == "turn":
        weight = jnp.where(learn, 1 / (total.turns * lengths), 0.0)
    ratio_of = log_ratio
    if config.ratio == "turn":
        mean = reply_sums(record, log_ratio) / lengths  # 0 where nothing is learned
        # GSPO's token form: the value of the reply's ratio, the gradient of the token's own
        ratio_of = jax.lax.stop_gradient(mean) + log_ratio - jax.lax.stop_gradient(log_ratio)
    ratio = jnp.exp(ratio_of)
    low, high = 1 - hparams["clip_low"], 1 + hparams["clip_high"]
    clipped = jnp.clip(ratio, low, high)
    if config.ratio == "cispo":
        gain = jax.lax.stop_gradient(clipped) * credit.advantage * scores.log_prob
    else:
        gain = jnp.minimum(ratio * credit.advantage, clipped * credit.advantage)
    entropy = jnp.where(learn, scores.entropy, 0.0)
    policy_loss = -jnp.sum(jnp.where(learn, weight * gain, 0.0))
    loss = policy_loss - hparams["entropy_coef"] * jnp.sum(weight * entropy)
    metrics = {
        "policy_loss": policy_loss,
        "entropy": jnp.sum(entropy) / total.tokens,
        "approx_kl": jnp.sum(jnp.where(learn, jnp.exp(log_ratio) - 1 - log_ratio, 0.0)) / total.tokens,
        "clip_fraction": jnp.sum(jnp.where(learn, ratio != clipped, False)) / total.tokens,
        "ratio_error": ratio_error(jnp.where(batch.fresh, log_ratio, 0.0)),
        **sampling_metrics(log_ratio, jnp.where(learn & batch.fresh, 1 / total.fresh, 0.0)),
    }
    if config.critic:
        if fitted is None or at is None:
            value = policy.value(params, scores.hidden)
        else:
            hidden = jnp.take_along_axis(scores.hidden, fitted.within(at)[..., None], axis=1)
            value = fitted.spread(policy.value(params, hidden))
        old, target = record.value, credit.returns
        clipped_value = old + jnp.clip(value - old, -hparams["value_clip"], hparams["value_clip"])
        error = jnp.maximum((value - target) ** 2, (clipped_value - target) ** 2)
        value_loss = jnp.sum(jnp.where(credit.fits, error, 0.0)) / total.fitted
        loss += hparams["value_loss_coef"] * value_loss
        metrics["value_loss"] = value_loss
    if config.kl_coef:
        base = jax.lax.stop_gradient(score(adapted=False).log_prob)
        towards = jnp.where(learn, base - scores.log_prob, 0.0)
        kl = jnp.exp(towards) - towards - 1
        loss += hparams["kl_coef"] * jnp.sum(weight * kl)
        metrics["kl_to_base"] = jnp.sum(kl) / total.tokens
    if echo:
        world_loss = -jnp.sum(jnp.where(from_world(batch), scores.log_prob, 0.0)) / total.world
        loss += hparams["echo_coef"] * world_loss
        metrics["world_loss"] = world_loss
    if at is not None and fitted is not None:
        # tokens are never left out unnoticed: the run stops
        loss = jnp.where(at.overflow + fitted.overflow > 0, jnp.nan, loss)
    return loss, {"loss": loss, **metrics}
