"""Bonuses of novelty: random network distillation, NovelD and APT.

*RND* (Burda et al., 1810.12894): the novelty of an observation is the error of a predictor of a fixed random network.
*NovelD* (Zhang et al., NeurIPS 2021): a step is rewarded for the novelty that it gains, which is RND's.
*APT* (Liu and Abbeel, 2103.04551): the novelty of an observation is its distance to its nearest neighbours in a space
that a model of the agent's own effects learns (ICM, Pathak et al., 1705.05363).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from envs_jax import tracing
from llmrl_jax.core.checks import (
    Fraction,
    In,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveOrInf,
    Width,
    refuse_unread,
)
from llmrl_jax.core.draw import draw
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl import bonus
from llmrl_jax.rl.bonus import BonusState, Moments, Stream
from llmrl_jax.rl.gradient import AdamConfig, clipped_adam, traced_floats
from llmrl_jax.rl.networks import Convolutions, dense, flatten, image


@dataclass(frozen=True)
class RNDConfig(AdamConfig):
    """Sizes and hyper-parameters of random network distillation. Floats are traced."""

    PREFIX: ClassVar[str] = "rnd."
    """Of its options on the command line."""

    outputs: Width = 512
    """Outputs of the random network and of the predictor."""
    hidden: Width = 512
    """Width of the dense layers of both networks."""
    channels: tuple[Width, ...] = ()
    """Channels of convolutions before them, for images, as `NetworkConfig.channels`; empty for none."""
    critic_hidden: tuple[Width, ...] = (64, 64)
    """Widths of the layers of the value function of novelty."""
    episodic: bool = False
    """Whether returns of novelty stop at the end of an episode; those of the paper do not."""
    gamma: Fraction = 0.99
    """Discount of novelty per step."""
    coef: NonNegativeFloat = 1.0
    """Weight of the advantages of novelty."""
    extrinsic_coef: NonNegativeFloat = 2.0
    """Weight of the environment's advantages."""
    update_proportion: Annotated[float, In("(0, 1]")] = 0.25
    """Fraction of the steps of a minibatch that the predictor learns from; the default is the paper's for 128
    environments."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the loss of the value function of novelty."""
    obs_clip: PositiveFloat = 5.0
    """Standard deviations at which normalised observations are clipped."""
    learning_rate: NonNegativeFloat = 1e-4

    def __post_init__(self):
        super().__post_init__()
        if not self.critic_hidden:
            raise ValueError(f"{self.PREFIX}critic_hidden is empty; the width of at least one layer is needed")


class Embedding(nn.Module):
    """Convolutions if any, dense layers with ReLU, and a linear output layer."""

    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    outputs: int

    @nn.compact
    def __call__(self, x):
        hidden = self.hidden
        if self.channels:
            x, hidden = Convolutions(self.channels, hidden[0])(x), hidden[1:]
        for features in hidden:
            x = nn.relu(dense(features, math.sqrt(2))(x))
        return dense(self.outputs, math.sqrt(2))(x)


class RND:
    """Novelty by random network distillation, a `llmrl_jax.rl.bonus.Bonus` with a separate stream.

    The novelty of a step is the mean squared error of the predictor at the observation that it reached, divided by the
    running standard deviation of the discounted sum of these errors. Observations are normalised by running moments and
    clipped, for both networks. The predictor has two more layers than the random network. The value function of novelty
    is a separate network, so that any policy can be used, including a language model.
    """

    name = "rnd"

    def __init__(self, config: RNDConfig | None = None, features: Callable[[Any, int], jax.Array] | None = None):
        """**Arguments:** `config`; `features`, from an observation and its number of batch axes to float32 features
        (default `image` with convolutions, else `flatten` of `llmrl_jax.rl.networks`)."""
        self.config = config = config or RNDConfig()
        self.features = features or (image if config.channels else flatten)
        width = config.hidden
        self.random = Embedding(config.channels, (width,), config.outputs)
        self.predictor = Embedding(config.channels, (width,) * 3, config.outputs)
        self.critic = Embedding(config.channels, config.critic_hidden, 1)

    def init(self, key: jax.Array, obs: Any) -> BonusState:
        x = self.features(obs, 1)
        random, predictor, critic = (
            draw(network, k, x[:1])
            for network, k in zip((self.random, self.predictor, self.critic), jax.random.split(key, 3))
        )
        hparams = traced_floats(self.config)
        params = {"predictor": predictor, "critic": critic}
        replicated = {
            "random": random,
            "params": params,
            "opt_state": clipped_adam(hparams).init(params),
            "obs": Moments.start(x.shape[1:]),
            "novelty": Moments.start(),
            "hparams": hparams,
        }
        return BonusState(replicated, jnp.zeros(x.shape[0]))

    def stream(self, state: BonusState) -> Stream:
        h = state.whole["hparams"]
        return Stream(h["gamma"], h["coef"], h["extrinsic_coef"], self.config.episodic)

    def check_one_reward(self) -> None:
        reader = "a learner with one value function (DQN)"
        refuse_unread(self.config, ("critic_hidden", "value_coef", "episodic"), reader)

    def _normal(self, state: BonusState, x: jax.Array) -> jax.Array:
        return state.whole["obs"].normalize(x, state.whole["hparams"]["obs_clip"])

    def errors(self, state: BonusState, params: Any, obs: Any, batch_dims: int) -> Float[Array, "*B"]:
        """Mean squared error of the predictor.

        **Arguments:** `params`, as in `state.whole`; `obs`, with `batch_dims` leading axes.
        """
        x = self._normal(state, self.features(obs, batch_dims))
        target: Any = self.random.apply({"params": state.whole["random"]}, x)
        predicted: Any = self.predictor.apply({"params": params["predictor"]}, x)
        return jnp.mean((predicted - jax.lax.stop_gradient(target)) ** 2, axis=-1)

    def novelty(self, state: BonusState, steps: Transitions) -> tuple[Float[Array, "T N"], Float[Array, "T N"]]:
        """Novelty of steps before it is scaled, and the predictor's error at the observations that they reached."""
        error = self.errors(state, state.whole["params"], steps.next_obs, 2)
        return error, error

    def reward(self, state: BonusState, steps: Transitions, gamma: float | jax.Array):
        """Novelty of steps. Both running statistics are updated with the steps before they are used, so the first
        steps are normalised too; the paper initialises them by random play."""
        replicated = state.whole
        replicated = replicated | {"obs": replicated["obs"].update(self.features(steps.next_obs, 2))}
        state = BonusState(replicated, state.rows)
        novelty, error = self.novelty(state, steps)
        rows, moments = self.scaled(state, novelty)
        reward = novelty / jnp.sqrt(moments.var + 1e-8)
        metrics = {"error": jnp.mean(error), "reward": jnp.mean(reward), "reward_max": jnp.max(reward)}
        named = {f"{self.name}_{name}": x for name, x in metrics.items()}
        return BonusState(replicated | {"novelty": moments}, rows), reward, named

    def scaled(self, state: BonusState, novelty: Float[Array, "T N"]) -> tuple[Float[Array, " N"], Moments]:
        """Discounted sums of novelty after some steps, and the moments of all such sums, by whose standard
        deviation rewards are divided."""
        decay = state.whole["hparams"]["gamma"]

        def add(total, x):
            total = decay * total + x
            return total, total

        rows, totals = tracing.scan(add, state.rows, novelty)
        return rows, state.whole["novelty"].update(totals)

    def _values(self, state: BonusState, params: Any, obs: Any, batch_dims: int) -> Float[Array, "*B"]:
        x = self._normal(state, self.features(obs, batch_dims))
        values: Any = self.critic.apply({"params": params["critic"]}, x)
        return values[..., 0]

    def value(self, state: BonusState, obs: Any, batch_dims: int) -> Float[Array, "*B"]:
        return self._values(state, state.whole["params"], obs, batch_dims)

    def update(self, state: BonusState, steps: Transitions, key: jax.Array) -> tuple[BonusState, dict[str, jax.Array]]:
        replicated, h = state.whole, state.whole["hparams"]

        def loss(params):
            error = self.errors(state, params, steps.next_obs, 1)
            chosen = jax.random.uniform(key, error.shape) < h["update_proportion"]
            predictor = masked_mean(error, chosen)
            if isinstance(steps.returns, tuple):
                return predictor, {"rnd_loss": predictor}
            value = jnp.mean((self._values(state, params, steps.obs, 1) - steps.returns) ** 2)
            return predictor + h["value_coef"] * value, {"rnd_loss": predictor, "rnd_value_loss": value}

        grads, metrics = jax.grad(loss, has_aux=True)(replicated["params"])
        return bonus.apply_gradients(state, grads), metrics


def masked_mean(x: Float[Array, " B"], mask: Bool[Array, " B"]) -> Float[Array, ""]:
    """The mean of the entries where `mask` is True; 0 if there is none."""
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


# --- NovelD -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NovelDConfig(RNDConfig):
    """Random network distillation's settings, and NovelD's. Floats are traced."""

    PREFIX: ClassVar[str] = "noveld."

    alpha: NonNegativeFloat = 1.0
    """Weight of the novelty of the observation before a step, which is subtracted: 1 in ELLM's baseline, 0.5 in
    NovelD's paper."""


class NovelD(RND):
    """Novelty differences, a `llmrl_jax.rl.bonus.Bonus`: `max(n(s') - alpha * n(s), 0)` (eq. 1 of the paper, without
    its restriction to first visits, as in ELLM's baseline), where `n` is the predictor's error.

    The rewards are divided by a running standard deviation as those of `RND`, and learned in the same way."""

    name = "noveld"

    def __init__(self, config: NovelDConfig | None = None, features=None):
        """**Arguments:** as for `RND`."""
        super().__init__(config or NovelDConfig(), features)

    def novelty(self, state, steps):
        before = self.errors(state, state.whole["params"], steps.obs, 2)
        after = self.errors(state, state.whole["params"], steps.next_obs, 2)
        return jnp.maximum(after - state.whole["hparams"]["alpha"] * before, 0.0), after


# --- APT --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class APTConfig(AdamConfig):
    """Sizes and hyper-parameters of APT; the defaults are those of ELLM's baseline. Floats are traced."""

    PREFIX: ClassVar[str] = "apt."

    outputs: Width = 512
    """Width of the learned representation."""
    hidden: Width = 1024
    """Width of the hidden layers."""
    neighbours: PositiveInt = 12
    """Nearest neighbours whose distances are averaged."""
    others: PositiveInt = 256
    """Observations among which they are found: the last ones of the update, or all of it if it has fewer. A multiple of
    the environments is best."""
    clip: NonNegativeFloat = 1e-4
    """Distance that is subtracted after normalisation: smaller ones count as 0."""
    extrinsic_coef: NonNegativeFloat = 0.0
    """Weight of the environment's reward, which is added."""
    coef: NonNegativeFloat = 1.0
    """Weight of the novelty."""
    learning_rate: NonNegativeFloat = 1e-4
    max_grad_norm: PositiveOrInf = math.inf
    adam_eps: NonNegativeFloat = 1e-8

    def __post_init__(self):
        super().__post_init__()
        if self.others < self.neighbours:
            raise ValueError(
                f"apt.others is {self.others}, among which apt.neighbours {self.neighbours} cannot be found: raise it"
            )


class Effects(nn.Module):
    """ICM without its reward: the action from two representations, and the next representation from one and the
    action. With `n_step` of DQN above 1 the second is that of `n` steps later, and the action the first of them, as
    published. The published baseline feeds the action's number; here it is one-hot, since numbers have no order."""

    actions: int
    hidden: int
    outputs: int

    @nn.compact
    def __call__(self, x, y, action):
        """**Arguments:** representations `[B, D]` before and after; `action`, int `[B]`. **Returns:** logits of the
        action, and the predicted representation."""
        one_hot = jax.nn.one_hot(action, self.actions)
        backward = Embedding((), (self.hidden,), self.actions)(jnp.concatenate([x, y], axis=-1))
        forward = Embedding((), (self.hidden,), self.outputs)(jnp.concatenate([x, one_hot], axis=-1))
        return backward, forward


def neighbour_distance(
    x: Float[Array, "B D"], candidates: Float[Array, "M D"], neighbours: int
) -> Float[Array, "B neighbours"]:
    """The L2 distances from each row to its nearest rows of `candidates`, ascending."""
    # the difference of large numbers: factors rounded to TF32 or bfloat16 would give other neighbours
    product = jnp.matmul(x, candidates.T, precision=jax.lax.Precision.HIGHEST)
    squared = jnp.sum(x**2, axis=-1)[:, None] + jnp.sum(candidates**2, axis=-1) - 2 * product
    nearest = jax.lax.top_k(-squared, min(neighbours, candidates.shape[0]))[1]
    # of those few exactly, one after the other: rounding of the squares would give equal rows a distance
    exact = jax.lax.map(lambda index: jnp.linalg.norm(x - candidates[index], axis=-1), nearest.T)
    return jnp.sort(exact.T, axis=-1)


class APT:
    """Novelty by nearest neighbours, a `llmrl_jax.rl.bonus.Bonus` whose reward takes the place of the environment's.

    The reward of a step is `log(1 + mean_k max(d_k / m - clip, 0))`: `d_k` are the distances of the representation that
    it reached to its `k` nearest ones among those of the last steps (itself included, as published), and `m` their
    running mean over all steps. The representation is learned by predicting actions and effects (ICM).
    """

    name = "apt"

    def __init__(
        self, actions: int, config: APTConfig | None = None, features: Callable[[Any, int], jax.Array] | None = None
    ):
        """**Arguments:** `actions`, their number; `config`; `features`, from an observation and its number of batch
        axes to float32 features (default `flatten`)."""
        self.config = config = config or APTConfig()
        self.features = features or flatten
        self.encoder = Embedding((), (config.hidden,), config.outputs)
        self.effects = Effects(actions, config.hidden, config.outputs)

    def init(self, key: jax.Array, obs: Any) -> BonusState:
        x = self.features(obs, 1)
        keys = jax.random.split(key)
        encoder = draw(self.encoder, keys[0], x[:1])
        z, action = jnp.zeros((1, self.config.outputs)), jnp.zeros(1, jnp.int32)
        effects = draw(self.effects, keys[1], z, z, action)
        hparams, params = traced_floats(self.config), {"encoder": encoder, "effects": effects}
        replicated = {
            "params": params,
            "opt_state": clipped_adam(hparams).init(params),
            "mean": jnp.float32(0),
            "count": jnp.float32(0),
            "hparams": hparams,
        }
        return BonusState(replicated, ())

    def stream(self, state: BonusState) -> Stream | None:
        return None

    def check_one_reward(self) -> None:
        pass

    def encoded(self, params: Any, obs: Any, batch_dims: int) -> Float[Array, "*B D"]:
        """Representations of observations with `batch_dims` leading axes."""
        z: Any = self.encoder.apply({"params": params["encoder"]}, self.features(obs, batch_dims))
        return z

    def reward(self, state: BonusState, steps: Transitions, gamma: float | jax.Array):
        """Rewards of steps. **Arguments:** as for `Bonus.reward`."""
        replicated, h = state.whole, state.whole["hparams"]
        z = self.encoded(replicated["params"], steps.next_obs, 2)
        rows = z.reshape(-1, z.shape[-1])
        if len(rows) < self.config.neighbours:
            raise ValueError(
                f"an update plays {len(rows)} steps, fewer than apt.neighbours {self.config.neighbours}: lower it, or "
                "raise num_envs or num_steps"
            )
        distance = neighbour_distance(rows, rows[-self.config.others :], self.config.neighbours)
        count = replicated["count"] + distance.size
        mean = replicated["mean"] + (jnp.mean(distance) - replicated["mean"]) * distance.size / count
        excess = jnp.maximum(distance / jnp.maximum(mean, 1e-8) - h["clip"], 0.0)
        novelty = jnp.log1p(jnp.mean(excess, axis=-1)).reshape(steps.reward.shape)
        reward = h["coef"] * novelty + h["extrinsic_coef"] * steps.reward
        metrics = {"apt_distance": jnp.mean(distance), "apt_reward": jnp.mean(novelty)}
        return BonusState(replicated | {"mean": mean, "count": count}, ()), reward, metrics

    def value(self, state: BonusState, obs: Any, batch_dims: int):
        raise NotImplementedError("APT's rewards take the place of the world's: they have no value of their own")

    def update(self, state: BonusState, steps: Transitions, key: jax.Array) -> tuple[BonusState, dict[str, jax.Array]]:
        """Gradient step of the representation: the action's cross-entropy plus the L2 distance of the predicted effect
        (not squared, as published)."""
        replicated = state.whole

        def loss(params):
            x, y = self.encoded(params, steps.obs, 1), self.encoded(params, steps.next_obs, 1)
            outputs: Any = self.effects.apply({"params": params["effects"]}, x, y, steps.action)
            logits, predicted = outputs
            backward = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, steps.action))
            forward = jnp.mean(jnp.linalg.norm(predicted - y, axis=-1))
            return backward + forward, {"apt_backward_loss": backward, "apt_forward_loss": forward}

        grads, metrics = jax.grad(loss, has_aux=True)(replicated["params"])
        return bonus.apply_gradients(state, grads), metrics
