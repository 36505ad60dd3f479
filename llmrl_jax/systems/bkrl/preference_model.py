"""The preference transformer: a score of windows, fitted to which of two windows is better.

Kim et al. (2303.00957): the score of a window is a sum of the values of its steps with weights from attention, and the
probability that one window is better than another is that of Bradley and Terry, `exp(s_1) / (exp(s_1) + exp(s_0))`.
Here the newest observation is part of the window, so that the score is a potential of the state that was reached;
positions are relative to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int
from safetensors.numpy import load_file, save_file

from envs_jax import tracing
from envs_jax.env import Environment
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import new_draft
from llmrl_jax.rl.shaping import NO_ACTION, Window
from llmrl_jax.systems.bkrl.build import make_features, observed_parts
from llmrl_jax.systems.bkrl.config import PreferenceModelConfig
from llmrl_jax.systems.bkrl.potentials import ArtifactError


WEIGHTS = "preference_model.safetensors"


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
    is_input: bool
    """Whether it makes the head's input, or reads its output."""

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "W W"], Float[Array, " W"]]:
        w = self.width
        shape, bias = ((w, 1, w), (1, w)) if self.is_input else ((1, w, w), (w,))
        init = nn.initializers.variance_scaling(
            1.0, "fan_in", "truncated_normal", *((0, 2) if self.is_input else (1, 2))
        )
        kernel = self.param("kernel", init, shape)
        return kernel.reshape(w, w), self.param("bias", nn.initializers.zeros, bias).reshape(w)


@struct.dataclass
class Encoded:
    """An observation, encoded for the windows that hold it."""

    vector: Float[Array, "*B W"]
    """Of the encoder."""
    products: Float[Array, "*B V"]
    """Of this vector with the first layer's weights, made once for all windows that hold the observation."""


class _Norm(nn.Module):
    """The weights of a layer normalization."""

    width: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, " W"], Float[Array, " W"]]:
        shape = (self.width,)
        return self.param("scale", nn.initializers.ones, shape), self.param("bias", nn.initializers.zeros, shape)


class Attention(nn.Module):
    """Self-attention with one head, with two products of the width per position instead of four.

    A position `i` attends to `j` by `(y_i Q + q) . (y_j K + k)`; what depends on `i` alone drops out of the softmax,
    which leaves `(y_i Q K' + q K') . y_j`. The weights sum to 1, so that values and output are one product with `V O`.
    """

    width: int

    def setup(self) -> None:
        self.query, self.key, self.value = (_Layer(self.width, True) for _ in range(3))
        self.out = _Layer(self.width, False)

    def weights(self) -> Float[Array, "W V"]:
        """`Q K'` and `V O`, side by side: one product is faster than two."""
        return jnp.concatenate([self.query()[0] @ self.key()[0].T, self.value()[0] @ self.out()[0]], axis=1)

    def bias(self) -> Float[Array, " V"]:
        """The bias of their product."""
        (_, start), (key, _) = self.query(), self.key()
        return jnp.concatenate([start @ key.T, jnp.zeros(self.width)])

    def __call__(self, y: Float[Array, "B S W"], products: Float[Array, "B S V"], mask: Any) -> Float[Array, "B S W"]:
        """**Arguments:** `products`, the product of `y` and the weights, with `bias`. A position that may attend to
        none, which no other attends to, is given zeros."""
        scores = jnp.einsum("biw,bjw->bij", products[..., : self.width], y) / np.sqrt(self.width)
        # the mask after the exponential, and the division last: a third less time than of softmax
        highest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.where(mask, jnp.exp(scores - highest), 0.0)
        total = jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-15)
        (_, shift), (kernel, bias) = self.value(), self.out()
        return jnp.einsum("bij,bjw->biw", weights, products[..., self.width :]) / total + (shift @ kernel + bias)


class _Dense(nn.Module):
    """The weights of a dense layer."""

    width: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "W W"], Float[Array, " W"]]:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (self.width, self.width))
        return kernel, self.param("bias", nn.initializers.zeros, (self.width,))


class Scorer(nn.Module):
    """The score of a window of encoded observations and actions.

    The input of a position is the sum of a vector (of an observation or an action) and of its own. Its normalized
    form `(x - m) / s * g + b` enters the first layer by `(x G - m (1 G)) / s + b M` with `G = diag(g) M`, and `x G` is
    a sum as well: of products made once per observation, action and position, rather than in each of the windows.
    """

    actions: int
    window: int
    width: int
    feed_forward: int

    def setup(self) -> None:
        self.action = nn.Embed(self.actions + 1, self.width)
        self.positions = self.param("place", nn.initializers.normal(0.02), (2 * self.window + 1, self.width))
        self.norm_0 = _Norm(self.width)
        self.attention = Attention(self.width)
        self.norm_1, self.norm_2 = nn.LayerNorm(), nn.LayerNorm()
        self.hidden, self.out = nn.Dense(self.feed_forward), nn.Dense(self.width)
        self.key, self.query, self.value = _Dense(self.width), nn.Dense(self.width), nn.Dense(1)

    def encoded(self, vector: Float[Array, "*B W"]) -> Encoded:
        # Highest precision: `_normed` subtracts the mean's part of this product, which rounded factors would leave.
        return Encoded(vector, jnp.matmul(vector, self._first(), precision=jax.lax.Precision.HIGHEST))

    def _first(self) -> Float[Array, "W V"]:
        """The first layer's weights, with those of the normalization before it."""
        return self.norm_0()[0][:, None] * self.attention.weights()

    def _normed(self, x: Float[Array, "B S W"], products: Float[Array, "B S V"]) -> tuple[jax.Array, jax.Array]:
        """The normalized positions, and their products with the attention's weights."""
        scale, bias = self.norm_0()
        mean = jnp.mean(x, axis=-1, keepdims=True)
        spread = jax.lax.rsqrt(jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True) + 1e-6)
        y = (x - mean) * spread * scale + bias
        constant = bias @ self.attention.weights() + self.attention.bias()
        return y, (products - mean * jnp.sum(self._first(), axis=0)) * spread + constant

    def __call__(self, features: Encoded, action: Int[Array, "B K"]) -> Float[Array, " B"]:
        steps, width = self.window, self.width
        verbs, positions = self.encoded(self.action.embedding), self.encoded(self.positions)

        def interleave(observations: jax.Array, verbs: jax.Array, positions: jax.Array) -> jax.Array:
            # observations and actions in turn: o_0 a_0 o_1 a_1 ... o_K
            pairs = jnp.stack([observations[:, :-1], verbs[action - NO_ACTION]], axis=2)
            joined = pairs.reshape(-1, 2 * steps, observations.shape[-1])
            return jnp.concatenate([joined, observations[:, -1:]], axis=1) + positions

        x = interleave(features.vector, verbs.vector, positions.vector)
        products = interleave(features.products, verbs.products, positions.products)
        real = jnp.repeat(action != NO_ACTION, 2, axis=1)
        real = jnp.concatenate([real, jnp.ones((real.shape[0], 1), bool)], axis=1)
        causal = np.tril(np.ones((2 * steps + 1,) * 2, bool))
        x += self.attention(*self._normed(x, products), causal & real[:, None, :])
        x += self.out(nn.relu(self.hidden(self.norm_1(x))))
        # the newest position attends to all of them, and adds their values
        x = self.norm_2(x)
        key, _ = self.key()
        query = self.query(x[:, -1]) @ key.T  # the key's bias is the same for all positions
        weights = jnp.einsum("bw,bsw->bs", query, x) / np.sqrt(width)
        weights = jax.nn.softmax(jnp.where(real, weights, -1e9), axis=-1)
        return jnp.sum(weights * self.value(x)[..., 0], axis=-1)


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
        number in the environment; `window`."""
        self.window, self.params, self.reads, self.features = window, params, reads, features
        self.encoder = Encoder(config.hidden, config.width)
        self.scorer = Scorer(actions, window, config.width, config.feed_forward)

    def init(self, key: jax.Array, obs: Any) -> Any:
        """Random parameters. **Arguments:** `obs`, leaves `[B, ...]`."""
        encoder_key, scorer_key = jax.random.split(key)
        x = self.features(obs, 1)
        encoder = self.encoder.init(encoder_key, x)["params"]
        width, length = self.encoder.width, self.window + 1
        encoded = Encoded(jnp.zeros((1, length, width)), jnp.zeros((1, length, 2 * width)))
        scorer = self.scorer.init(scorer_key, encoded, jnp.zeros((1, self.window), jnp.int32))["params"]
        return {"encoder": encoder, "scorer": scorer}

    def encode(self, params: Any, obs: Any) -> Encoded:
        vector = self.encoder.apply({"params": params["encoder"]}, self.features(obs, 1))
        return self.scorer.apply({"params": params["scorer"]}, vector, method="encoded")  # type: ignore[return-value]

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return self.scorer.apply({"params": params["scorer"]}, window.features, window.action)  # type: ignore

    def score(self, params: Any, obs: Any, action: Int[Array, "B K"]) -> Float[Array, " B"]:
        """The scores of windows of observations, leaves `[B, K + 1, ...]`."""
        rows, length = action.shape[0], self.window + 1
        flat = jax.tree.map(lambda x: x.reshape(rows * length, *x.shape[2:]), obs)
        features = jax.tree.map(lambda x: x.reshape(rows, length, -1), self.encode(params, flat))
        return self.value(params, Window(features, action, jnp.zeros(rows, jnp.int32)))


def bradley_terry(
    first: Float[Array, " B"], second: Float[Array, " B"], second_wins: Float[Array, " B"], smoothing: float
) -> Float[Array, " B"]:
    """Cross-entropy of the probability that the second window is better, `sigmoid(second - first)`.

    **Arguments:** `second_wins`, 1, 0, or 0.5 for a tie; `smoothing`, the probability of the other answer.
    """
    target = second_wins * (1 - 2 * smoothing) + smoothing
    return optax.losses.sigmoid_binary_cross_entropy(second - first, target)  # type: ignore[arg-type]


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


def fit_rows(
    loss: Callable[..., jax.Array],
    params: Any,
    data: Any,
    config: PreferenceModelConfig,
    key: jax.Array,
    validate: Callable[[Any], float],
) -> tuple[Any, float]:
    """AdamW over shuffled rows, `config.epochs` times.

    **Arguments:** `loss`, of parameters and the leaves of some rows; `data`, leaves `[P, ...]`; `validate`, of
    parameters: a score, or nan where there is nothing to validate with.
    **Returns:** the parameters of the epoch with the highest score (nan: of the last), and the mean loss of the last
    epoch.
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

        (params, opt_state), losses = tracing.scan(step, (params, opt_state), order)
        return params, opt_state, jnp.mean(losses)

    opt_state, best_score, best, value = optimizer.init(params), -np.inf, params, jnp.float32(0)
    with doing("fitting", config.epochs, "epochs") as activity:
        for i in range(config.epochs):
            params, opt_state, value = epoch(params, opt_state, jax.random.fold_in(key, i))
            score = validate(params)
            if not score <= best_score:
                best_score, best = score, params
            activity.done = i + 1
    return best, float(value)


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
        windows = [(jax.tree.map(lambda x, i=i: x[:, i], obs), action[:, i]) for i in (0, 1)]
        return model.score(params, *windows[0]), model.score(params, *windows[1])

    def loss(params: Any, obs: Any, action: Any, wins: Any) -> jax.Array:
        return jnp.mean(bradley_terry(*scores(params, obs, action), wins, config.smoothing))

    compiled = jax.jit(scores)

    def accuracy(params: Any, labeled: Pairs) -> float:
        clear = labeled.second_wins != 0.5
        if not clear.any():
            return float("nan")
        first, second = map(
            np.asarray, compiled(params, jax.tree.map(jnp.asarray, labeled.obs), jnp.asarray(labeled.action))
        )
        return float(np.mean((second > first)[clear] == (labeled.second_wins[clear] > 0.5)))

    params = model.init(jax.random.fold_in(key, 0), jax.tree.map(lambda x: jnp.asarray(x[:1, 0, 0]), pairs.obs))
    data = (pairs.obs, pairs.action, pairs.second_wins)
    best, value = fit_rows(loss, params, data, config, jax.random.fold_in(key, 1), lambda p: accuracy(p, test))
    return best, {"train_accuracy": accuracy(best, pairs), "validation_accuracy": accuracy(best, test), "loss": value}


def distil(
    model: PreferencePotential,
    windows: tuple[Any, Int[np.ndarray, "P K"]],
    values: Float[np.ndarray, " P"],
    config: PreferenceModelConfig,
    key: jax.Array,
    is_test: Any,
) -> tuple[Any, dict[str, float]]:
    """Fit the model to values of windows in units of their standard deviation, by squared errors.

    **Arguments:** `windows`, observations, leaves `[P, K + 1, ...]`, and actions; `is_test`, bool `[P]`: those that it
    is tested with.
    **Returns:** the parameters, and the fraction of the variance that is explained in training and in the test.
    """
    mean, std = float(values.mean()), float(values.std()) or 1.0
    target = ((values - mean) / std).astype(np.float32)
    obs, action = windows
    score = jax.jit(model.score)

    def take(index: Any) -> tuple[Any, Any, Any]:
        return jax.tree.map(lambda x: x[index], obs), action[index], target[index]

    def explained(params: Any, index: Any) -> float:
        obs, action, target = take(index)
        error = np.asarray(score(params, jax.tree.map(jnp.asarray, obs), jnp.asarray(action))) - target
        return float(1 - error.var() / max(float(target.var()), 1e-12))

    def loss(params: Any, obs: Any, action: Any, target: Any) -> jax.Array:
        return jnp.mean((model.score(params, obs, action) - target) ** 2)

    params = model.init(jax.random.fold_in(key, 0), jax.tree.map(lambda x: jnp.asarray(x[:1, 0]), obs))
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    best, value = fit_rows(loss, params, take(train), config, jax.random.fold_in(key, 1), lambda p: explained(p, test))
    metrics = {"train_explained": explained(best, train), "test_explained": explained(best, test), "loss": value}
    # the scorer's weights of positions sum to 1, so that a constant in their values is one in the score
    last = best["scorer"]["value"]
    scorer = {**best["scorer"], "value": {**last, "bias": last["bias"] + mean / std}}
    return {**best, "scorer": scorer}, metrics


def make_model(env: Environment, family: str, config: PreferenceModelConfig, params: Any, window: int) -> Any:
    """The preference transformer of an environment."""
    reads = observed_parts(env, family)
    space: Any = env.observation_space(env.default_params)
    features = make_features(space, reads, flat=True)
    return PreferencePotential(config, params, features, reads, len(env.action_names), window)


def load_model(env: Environment, family: str, config: PreferenceModelConfig, path: Path, window: int) -> Any:
    """The preference transformer whose weights `save_weights` wrote.

    **Raises:** `ArtifactError` for weights of a model of other sizes."""
    model = make_model(env, family, config, unflatten_dict(load_file(path), sep="/"), window)
    space: Any = env.observation_space(env.default_params)
    obs = {name: jax.ShapeDtypeStruct((1, *space.spaces[name].shape), space.spaces[name].dtype) for name in model.reads}
    expected = flatten_dict(jax.eval_shape(model.init, jax.random.key(0), obs), sep="/")
    loaded = flatten_dict(model.params, sep="/")
    for name in sorted(expected.keys() | loaded.keys()):
        shape, target = (str(tree[name].shape) if name in tree else "nothing" for tree in (loaded, expected))
        if shape != target:
            raise ArtifactError(
                f"{path} has the weights of another model: {name} is {shape}, and {target} is needed; make it again"
            )
    return model


def save_weights(path: Path, params: Any) -> None:
    """Write the parameters of a preference transformer, atomically."""
    with new_draft(path) as draft:
        save_file({name: np.asarray(x) for name, x in flatten_dict(params, sep="/").items()}, draft)
