"""APT (Liu and Abbeel, 2103.04551): the novelty of an observation is its distance to its nearest neighbours in a space
that a model of the agent's own effects learns (ICM, Pathak et al., 1705.05363)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from llmrl_jax.core.checks import Checked, FractionBelowOne, NonNegativeFloat, PositiveInt, PositiveOrInf, Width
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.bonus import BonusState, Stream
from llmrl_jax.rl.gradient import clipped_adam, descend, traced_floats
from llmrl_jax.rl.networks import flatten
from llmrl_jax.rl.rnd import Embedding


@dataclass(frozen=True)
class APTConfig(Checked):
    """Sizes and hyper-parameters of APT; the defaults are those of ELLM's baseline. Floats are traced."""

    PREFIX: ClassVar[str] = "apt."

    outputs: Width = 512
    """Width of the learned representation."""
    hidden: Width = 1024
    """Width of the hidden layers."""
    neighbours: PositiveInt = 12
    """Nearest neighbours whose distances are averaged."""
    others: PositiveInt = 256
    """Observations among which they are found, those of the last steps; a multiple of the environments is best."""
    clip: NonNegativeFloat = 1e-4
    """Distance that is subtracted after normalisation: smaller ones count as 0."""
    extrinsic_coef: NonNegativeFloat = 0.0
    """Weight of the environment's reward, which is added."""
    coef: NonNegativeFloat = 1.0
    """Weight of the novelty."""
    learning_rate: NonNegativeFloat = 1e-4
    """Step size of Adam."""
    max_grad_norm: PositiveOrInf = float("inf")
    """Global norm to which gradients are clipped; inf: never."""
    adam_b1: FractionBelowOne = 0.9
    """Adam's decay rate of the first moment."""
    adam_b2: FractionBelowOne = 0.999
    """Adam's decay rate of the second moment."""
    adam_eps: NonNegativeFloat = 1e-8
    """Adam's epsilon."""

    def __post_init__(self):
        super().__post_init__()
        if self.others < self.neighbours:
            raise ValueError(
                f"apt.others is {self.others}, among which apt.neighbours {self.neighbours} cannot be found: raise it"
            )


class Effects(nn.Module):
    """ICM without its reward: the action from two representations, and the next representation from one and the
    action. The published baseline feeds the action's number; here it is one-hot, since numbers have no order."""

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
    x: Float[Array, "B D"], others: Float[Array, "M D"], neighbours: int
) -> Float[Array, "B neighbours"]:
    """The L2 distances from each row to its nearest rows of `others`, ascending."""
    # the difference of large numbers: factors rounded to TF32 or bfloat16 would give other neighbours
    product = jnp.matmul(x, others.T, precision=jax.lax.Precision.HIGHEST)
    squared = jnp.sum(x**2, axis=-1)[:, None] + jnp.sum(others**2, axis=-1) - 2 * product
    nearest = -jax.lax.top_k(-squared, min(neighbours, others.shape[0]))[0]
    return jnp.sqrt(jnp.maximum(nearest, 0.0))


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
        encoder = jax.jit(self.encoder.init)(keys[0], x[:1])["params"]
        z, action = jnp.zeros((1, self.config.outputs)), jnp.zeros(1, jnp.int32)
        effects = jax.jit(self.effects.init)(keys[1], z, z, action)["params"]
        hparams, params = traced_floats(self.config), {"encoder": encoder, "effects": effects}
        whole = {
            "params": params,
            "opt_state": clipped_adam(hparams).init(params),
            "mean": jnp.float32(0),
            "count": jnp.float32(0),
            "hparams": hparams,
        }
        return BonusState(whole, ())

    def stream(self, state: BonusState) -> Stream | None:
        return None

    def check_one_reward(self) -> None:
        pass

    def encoded(self, params: Any, obs: Any, batch_dims: int) -> Float[Array, "*B D"]:
        """The representations of observations with `batch_dims` leading axes."""
        z: Any = self.encoder.apply({"params": params["encoder"]}, self.features(obs, batch_dims))
        return z

    def reward(self, state: BonusState, steps: Transitions, gamma: float | jax.Array):
        """The rewards of steps. **Arguments:** as for `Bonus.reward`."""
        whole, h = state.whole, state.whole["hparams"]
        z = self.encoded(whole["params"], steps.next_obs, 2)
        rows = z.reshape(-1, z.shape[-1])
        distance = neighbour_distance(rows, rows[-self.config.others :], self.config.neighbours)
        count = whole["count"] + distance.size
        mean = whole["mean"] + (jnp.mean(distance) - whole["mean"]) * distance.size / count
        excess = jnp.maximum(distance / jnp.maximum(mean, 1e-8) - h["clip"], 0.0)
        novelty = jnp.log1p(jnp.mean(excess, axis=-1)).reshape(steps.reward.shape)
        reward = h["coef"] * novelty + h["extrinsic_coef"] * steps.reward
        metrics = {"apt_distance": jnp.mean(distance), "apt_reward": jnp.mean(novelty)}
        return BonusState(whole | {"mean": mean, "count": count}, ()), reward, metrics

    def value(self, state: BonusState, obs: Any, batch_dims: int):
        raise NotImplementedError("APT's rewards take the place of the world's: they have no value of their own")

    def update(self, state: BonusState, steps: Transitions, key: jax.Array) -> tuple[BonusState, dict[str, jax.Array]]:
        """One gradient step of the representation: the action's cross-entropy plus the squared error of the effect."""
        whole, h = state.whole, state.whole["hparams"]

        def loss(params):
            x, y = self.encoded(params, steps.obs, 1), self.encoded(params, steps.next_obs, 1)
            outputs: Any = self.effects.apply({"params": params["effects"]}, x, y, steps.action)
            logits, predicted = outputs
            backward = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, steps.action))
            forward = jnp.mean(jnp.linalg.norm(predicted - y, axis=-1))
            return backward + forward, {"apt_backward_loss": backward, "apt_forward_loss": forward}

        grads, metrics = jax.grad(loss, has_aux=True)(whole["params"])
        optimizer = clipped_adam(h)
        params, opt_state, _ = descend(optimizer, whole["params"], grads, whole["opt_state"], h["learning_rate"])
        return BonusState(whole | {"params": params, "opt_state": opt_state}, ()), metrics
