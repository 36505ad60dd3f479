"""The preference transformer: a score of windows, fitted to which of two windows is better.

Kim et al. (2303.00957): the score of a window is a sum of the values of its steps with weights from attention, and the
probability that one window is better than another is that of Bradley and Terry, `exp(s_1) / (exp(s_1) + exp(s_0))`.
Here the newest observation is part of the window, so that the score is a potential of the state that was reached;
positions are relative to it (bkrl reference, section 5, has the published model).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import COUNT, fields_in
from llmrl_jax.rl.shaping import NO_ACTION, Window


@dataclass(frozen=True)
class PreferenceModelConfig:
    """Sizes of the preference transformer, and how it is fitted."""

    width: int = 128
    """Of embeddings; one attention head."""
    feed_forward: int = 256
    """Of the hidden layer after attention."""
    hidden: int = 128
    """Of the hidden layer of the encoder of observations."""
    epochs: int = 5
    """Passes over the pairs."""
    batch_size: int = 32
    """Pairs per gradient step."""
    learning_rate: float = 3e-4
    """Step size of AdamW, whose weight decay is 0.01."""
    smoothing: float = 0.1
    """Probability of the other answer that is assumed for every pair, from 0 to below 0.5."""
    max_grad_norm: float = 1.0
    """Global norm to which gradients are clipped."""

    def __post_init__(self):
        fields_in(self, COUNT, "width", "feed_forward", "hidden", "epochs", "batch_size", prefix="model.")
        fields_in(self, "(0, inf)", "learning_rate", "max_grad_norm", prefix="model.")
        fields_in(self, "[0, 0.5)", "smoothing", prefix="model.")


class Encoder(nn.Module):
    """An observation's features as one vector; a learner keeps these instead of observations."""

    hidden: int
    width: int

    @nn.compact
    def __call__(self, x: Float[Array, "B D"]) -> Float[Array, "B W"]:
        return nn.Dense(self.width)(nn.relu(nn.Dense(self.hidden)(x)))


class _Layer(nn.Module):
    """The weights of a dense layer of one attention head, as flax's `MultiHeadDotProductAttention` names them."""

    width: int
    into: bool
    """Whether it makes the head's input, or reads its output."""

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "W W"], Float[Array, " W"]]:
        w = self.width
        shape, bias = ((w, 1, w), (1, w)) if self.into else ((1, w, w), (w,))
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", *((0, 2) if self.into else (1, 2)))
        kernel = self.param("kernel", init, shape)
        return kernel.reshape(w, w), self.param("bias", nn.initializers.zeros, bias).reshape(w)


class Attention(nn.Module):
    """Self-attention with one head, with two products of the width per place instead of four.

    A place `i` attends to `j` by `(y_i Q + q) . (y_j K + k)`; what depends on `i` alone drops out of the softmax, which
    leaves `(y_i Q K' + q K') . y_j`. The weights sum to 1, so that values and output are one product with `V O`.
    """

    width: int

    @nn.compact
    def __call__(self, y: Float[Array, "B S W"], mask: Any) -> Float[Array, "B S W"]:
        (query, start), (key, _), (value, shift) = (
            _Layer(self.width, True, name=name)() for name in ("query", "key", "value")
        )
        out, bias = _Layer(self.width, False, name="out")()
        both = y @ jnp.concatenate([query @ key.T, value @ out], axis=1)  # one product is faster than two
        asked, said = both[..., : self.width] + start @ key.T, both[..., self.width :]
        scores = jnp.einsum("biw,bjw->bij", asked, y) / np.sqrt(self.width)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        return jnp.einsum("bij,bjw->biw", weights, said) + (shift @ out + bias)


class _Dense(nn.Module):
    """The weights of a dense layer."""

    width: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "W W"], Float[Array, " W"]]:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (self.width, self.width))
        return kernel, self.param("bias", nn.initializers.zeros, (self.width,))


class Scorer(nn.Module):
    """The score of a window of encoded observations and actions."""

    actions: int
    width: int
    feed_forward: int

    @nn.compact
    def __call__(self, features: Float[Array, "B S W"], action: Int[Array, "B K"]) -> Float[Array, " B"]:
        steps, width = action.shape[1], self.width
        verbs = nn.Embed(self.actions + 1, width, name="action")(action - NO_ACTION)
        # observations and actions in turn: o_0 a_0 o_1 a_1 ... o_K
        between = jnp.stack([features[:, :-1], verbs], axis=2).reshape(-1, 2 * steps, width)
        x = jnp.concatenate([between, features[:, -1:]], axis=1)
        x += self.param("place", nn.initializers.normal(0.02), (2 * steps + 1, width))
        real = jnp.repeat(action != NO_ACTION, 2, axis=1)
        real = jnp.concatenate([real, jnp.ones((real.shape[0], 1), bool)], axis=1)
        causal = np.tril(np.ones((2 * steps + 1,) * 2, bool))
        mask = causal & real[:, None, :]
        y = nn.LayerNorm(name="norm_0")(x)
        x += Attention(width, name="attention")(y, mask)
        y = nn.LayerNorm(name="norm_1")(x)
        x += nn.Dense(width, name="out")(nn.relu(nn.Dense(self.feed_forward, name="hidden")(y)))
        # the newest place attends to all of them, and adds their values
        x = nn.LayerNorm(name="norm_2")(x)
        key, _ = _Dense(width, name="key")()
        asked = nn.Dense(width, name="query")(x[:, -1]) @ key.T  # the key's bias is the same for all places
        weights = jnp.einsum("bw,bsw->bs", asked, x) / np.sqrt(width)
        weights = jax.nn.softmax(jnp.where(real, weights, -1e9), axis=-1)
        return jnp.sum(weights * nn.Dense(1, name="value")(x)[..., 0], axis=-1)


class PreferencePotential:
    """The score of windows as a potential, a `llmrl_jax.rl.shaping.Potential`."""

    def __init__(
        self,
        config: PreferenceModelConfig,
        params: Any,
        features: Callable[[Any, int], jax.Array],
        reads: tuple[str, ...],
        actions: int,
        window: int,
    ):
        """**Arguments:** `config`; `params`, `{"encoder": ..., "scorer": ...}`; `features`, from observations and their
        number of batch axes to float32 vectors; `reads`, the parts of observations that it reads; `actions`, their
        number in the world; `window`."""
        self.window, self.params, self.reads, self.features = window, params, reads, features
        self.encoder = Encoder(config.hidden, config.width)
        self.scorer = Scorer(actions, config.width, config.feed_forward)

    def init(self, key: jax.Array, obs: Any) -> Any:
        """Random parameters. **Arguments:** `obs`, leaves `[B, ...]`."""
        one, other = jax.random.split(key)
        x = self.features(obs, 1)
        encoder = self.encoder.init(one, x)["params"]
        encoded = jnp.zeros((1, self.window + 1, self.encoder.width))
        scorer = self.scorer.init(other, encoded, jnp.zeros((1, self.window), jnp.int32))["params"]
        return {"encoder": encoder, "scorer": scorer}

    def encode(self, params: Any, obs: Any) -> Float[Array, "B W"]:
        return self.encoder.apply({"params": params["encoder"]}, self.features(obs, 1))  # type: ignore[return-value]

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return self.scorer.apply({"params": params["scorer"]}, window.features, window.action)  # type: ignore

    def score(self, params: Any, obs: Any, action: Int[Array, "B K"]) -> Float[Array, " B"]:
        """The scores of windows of observations, leaves `[B, K + 1, ...]`."""
        rows, length = action.shape[0], self.window + 1
        flat = jax.tree.map(lambda x: x.reshape(rows * length, *x.shape[2:]), obs)
        features = self.encode(params, flat).reshape(rows, length, -1)
        return self.value(params, Window(features, action, jnp.zeros(rows, jnp.int32)))


def bradley_terry(
    first: Float[Array, " B"], second: Float[Array, " B"], second_wins: Float[Array, " B"], smoothing: float
) -> Float[Array, " B"]:
    """Cross-entropy of the probability that the second window is better, `sigmoid(second - first)`.

    **Arguments:** `second_wins`, 1, 0, or 0.5 for a tie; `smoothing`, the probability of the other answer.
    """
    wanted = second_wins * (1 - 2 * smoothing) + smoothing
    return optax.losses.sigmoid_binary_cross_entropy(second - first, wanted)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Pairs:
    """`P` pairs of windows, with `K` actions each."""

    obs: Any
    """Leaves `[P, 2, K + 1, ...]`."""
    action: Int[np.ndarray, "P 2 K"]
    second_wins: Float[np.ndarray, " P"]
    """1, 0, or 0.5 for a tie."""

    def take(self, index: Any) -> Pairs:
        return Pairs(jax.tree.map(lambda x: x[index], self.obs), self.action[index], self.second_wins[index])

    def __len__(self) -> int:
        return len(self.second_wins)


def descend(
    loss: Callable[..., jax.Array],
    params: Any,
    data: Any,
    config: PreferenceModelConfig,
    key: jax.Array,
    judge: Callable[[Any], float],
) -> tuple[Any, float]:
    """AdamW over shuffled rows, `config.epochs` times; the parameters of the epoch that `judge` finds best are kept.

    **Arguments:** `loss`, of parameters and the leaves of some rows; `data`, leaves `[P, ...]`; `judge`, of parameters;
    nan: it cannot say, and the last ones are kept.
    **Returns:** the parameters, and the mean loss of the last epoch.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.adamw(config.learning_rate, weight_decay=0.01)
    )
    data = jax.tree.map(jnp.asarray, data)
    count = jax.tree.leaves(data)[0].shape[0]
    size = min(config.batch_size, count)

    @jax.jit
    def epoch(params: Any, opt_state: Any, key: jax.Array) -> tuple[Any, Any, jax.Array]:
        order = jax.random.permutation(key, count)[: count // size * size].reshape(-1, size)

        def step(carry: Any, index: jax.Array) -> Any:
            params, opt_state = carry
            value, grads = jax.value_and_grad(loss)(params, *jax.tree.map(lambda x: x[index], data))
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), value

        (params, opt_state), losses = jax.lax.scan(step, (params, opt_state), order)
        return params, opt_state, jnp.mean(losses)

    opt_state, best, kept, value = optimizer.init(params), -np.inf, params, jnp.float32(0)
    with doing("fitting", config.epochs, "epochs") as activity:
        for i in range(config.epochs):
            params, opt_state, value = epoch(params, opt_state, jax.random.fold_in(key, i))
            reached = judge(params)
            if not reached <= best:
                best, kept = reached, params
            activity.done = i + 1
    return kept, float(value)


def fit(
    model: PreferencePotential, pairs: Pairs, config: PreferenceModelConfig, key: jax.Array, test: Pairs
) -> tuple[Any, dict[str, float]]:
    """Fit the model to pairs, and keep the parameters of the epoch that agrees most with the test pairs.

    **Returns:** the parameters, and the accuracies on pairs without a tie.
    **Raises:** `ValueError` without pairs.
    """
    if not len(pairs):
        raise ValueError("there are no pairs to learn from: ask about more")

    def scores(params: Any, obs: Any, action: Any) -> tuple[jax.Array, jax.Array]:
        both = [(jax.tree.map(lambda x, i=i: x[:, i], obs), action[:, i]) for i in (0, 1)]
        return model.score(params, *both[0]), model.score(params, *both[1])

    def loss(params: Any, obs: Any, action: Any, wins: Any) -> jax.Array:
        return jnp.mean(bradley_terry(*scores(params, obs, action), wins, config.smoothing))

    judge = jax.jit(scores)

    def accuracy(params: Any, of: Pairs) -> float:
        clear = of.second_wins != 0.5
        if not clear.any():
            return float("nan")
        found = judge(params, jax.tree.map(jnp.asarray, of.obs), jnp.asarray(of.action))
        first, second = map(np.asarray, found)
        return float(np.mean((second > first)[clear] == (of.second_wins[clear] > 0.5)))

    params = model.init(jax.random.fold_in(key, 0), jax.tree.map(lambda x: jnp.asarray(x[:1, 0, 0]), pairs.obs))
    data = (pairs.obs, pairs.action, pairs.second_wins)
    kept, value = descend(loss, params, data, config, jax.random.fold_in(key, 1), lambda p: accuracy(p, test))
    return kept, {"train_accuracy": accuracy(kept, pairs), "validation_accuracy": accuracy(kept, test), "loss": value}


def distil(
    model: PreferencePotential,
    windows: tuple[Any, Int[np.ndarray, "P K"]],
    values: Float[np.ndarray, " P"],
    config: PreferenceModelConfig,
    key: jax.Array,
    held: Any,
) -> tuple[Any, dict[str, float]]:
    """Fit the model to values of windows, by squared errors in units of their standard deviation.

    **Arguments:** `windows`, observations, leaves `[P, K + 1, ...]`, and actions; `held`, bool `[P]`: those that it is
    tested with.
    **Returns:** the parameters, and the share of the variance that is explained in training and in the test.
    """
    mean, spread = float(values.mean()), float(values.std()) or 1.0
    wanted = ((values - mean) / spread).astype(np.float32)
    obs, action = windows
    score = jax.jit(model.score)

    def take(index: Any) -> tuple[Any, Any, Any]:
        return jax.tree.map(lambda x: x[index], obs), action[index], wanted[index]

    def explained(params: Any, index: Any) -> float:
        some, actions, right = take(index)
        error = np.asarray(score(params, jax.tree.map(jnp.asarray, some), jnp.asarray(actions))) - right
        return float(1 - error.var() / max(float(right.var()), 1e-12))

    def loss(params: Any, obs: Any, action: Any, right: Any) -> jax.Array:
        return jnp.mean((model.score(params, obs, action) - right) ** 2)

    params = model.init(jax.random.fold_in(key, 0), jax.tree.map(lambda x: jnp.asarray(x[:1, 0]), obs))
    rest, tests = np.flatnonzero(~held), np.flatnonzero(held)
    fitted = descend(loss, params, take(rest), config, jax.random.fold_in(key, 1), lambda p: explained(p, tests))
    kept, value = fitted
    return kept, {"train_explained": explained(kept, rest), "test_explained": explained(kept, tests), "loss": value}
