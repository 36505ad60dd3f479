"""Networks with branches: an image, symbols, texts and a set of goals, each with an encoder of its own, then fused.

The encoders are those of ELLM (Du et al., 2302.06692) with sizes as options. Embeddings of texts and goals
are frozen tables; a linear layer on each is learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from envs_jax.actions import mask_of
from llmrl_jax.core.checks import Checked, Width
from llmrl_jax.core.draw import draw
from llmrl_jax.rl.networks import Head, Symbols, dense
from llmrl_jax.rl.policy import Policy, masked_categorical


@dataclass(frozen=True)
class BranchConfig(Checked):
    """Sizes of a network with branches; the defaults are the published ones."""

    PREFIX: ClassVar[str] = "network."

    width: Width = 512
    """Outputs of each branch, and of the layer that fuses them."""
    convolutions: tuple[tuple[Width, Width, Width], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """Of pictures: channels, side of the kernel and stride of each layer. The defaults are for 84 x 84 pixels."""
    head_hidden: tuple[Width, ...] = (512, 512)
    """Widths of the hidden layers of the value's and of the advantages' head; empty: linear heads."""
    pooling: Literal["mean", "learned"] = "mean"
    """How the embeddings of several goals become one: their mean, or a mean with learned weights."""

    pointing: bool = False
    """Whether actions that are goals now get an additional advantage, one number per state: what is learned about
    pursuing one goal holds for the others. Not in the published network; without an effect where the agent observes no
    goals."""

    def __post_init__(self):
        super().__post_init__()
        if not self.convolutions:
            raise ValueError("network.convolutions is empty; at least one layer is needed, as in 32 8 4")


Inputs = Mapping[str, Any]
"""Inputs of a network from a batch `[B]` of observations; parts that are missing have no branch:

* `image`, uint8 `[B, H, W, C]`;
* `symbols`, float32 `[B, D]`, or `llmrl_jax.rl.networks.Symbols`;
* `text`, float32 `[B, E]`, embeddings;
* `goals`, bool `[B, A]`, a set of rows of the table of goals' embeddings.
"""


def l2_normalized(x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """Rows divided by their L2 norm; the gradient of a row of zeros is zero."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-12))


class Picture(nn.Module):
    """Convolutions (by default DQN's: 32 of 8 x 8 / 4, 64 of 4 x 4 / 2, 64 of 3 x 3 / 1), normalised, and a linear
    layer."""

    width: int
    convolutions: tuple[tuple[int, int, int], ...] = BranchConfig.convolutions

    @nn.compact
    def __call__(self, image):
        x = image.astype(jnp.float32) / 255
        gain = nn.initializers.orthogonal(math.sqrt(2))
        for channels, size, stride in self.convolutions:
            if min(x.shape[1:3]) < size:
                raise ValueError(
                    f"network.convolutions has a kernel of {size} x {size} for {x.shape[1]} x {x.shape[2]} values, of "
                    f"a picture of {image.shape[1]} x {image.shape[2]} pixels: choose smaller kernels or strides"
                )
            x = nn.relu(nn.Conv(channels, (size, size), (stride, stride), padding="VALID", kernel_init=gain)(x))
        return dense(self.width, math.sqrt(2), "out")(l2_normalized(x.reshape(x.shape[0], -1)))


class Pooled(nn.Module):
    """The embedding of a set of goals: the mean of its members' (zeros for the empty set), or a mean with weights
    `softmax(embedding @ query)` over the members."""

    pooling: str

    @nn.compact
    def __call__(self, members: Bool[Array, "B A"], table: Float[Array, "A E"]) -> Float[Array, "B E"]:
        weights = members.astype(jnp.float32)
        if self.pooling == "learned":
            query = self.param("query", nn.initializers.zeros, (table.shape[-1],))
            weights = weights * jax.nn.softmax(jnp.where(members, table @ query, -1e9), axis=-1)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        return (weights / jnp.where(total > 0, total, 1.0)) @ table


class SymbolLayer(nn.Module):
    """`dense` on `Symbols`, with the same parameters and initial values as on their vector."""

    features: int
    scale: float

    @nn.compact
    def __call__(self, symbols: Symbols) -> Float[Array, "B D"]:
        kernel = self.param("kernel", nn.initializers.orthogonal(self.scale), (symbols.width, self.features))
        return symbols.product(kernel) + self.param("bias", nn.initializers.zeros, (self.features,))


class Branches(nn.Module):
    """All branches, concatenated, and the layer that fuses them."""

    config: BranchConfig

    @nn.compact
    def __call__(self, inputs: Inputs, table: Any) -> Float[Array, "B D"]:
        width, parts = self.config.width, []
        if "image" in inputs:
            parts.append(Picture(width, self.config.convolutions, name="image")(inputs["image"]))
        if "symbols" in inputs:
            layer: Any = SymbolLayer if isinstance(inputs["symbols"], Symbols) else dense
            parts.append(nn.relu(layer(width, math.sqrt(2), name="symbols")(inputs["symbols"])))
        if "text" in inputs:
            parts.append(dense(width, math.sqrt(2), "text")(inputs["text"]))
        if "goals" in inputs:
            pooled = Pooled(self.config.pooling, name="pooling")(inputs["goals"], table)
            parts.append(dense(width, math.sqrt(2), "goals")(pooled))
        return nn.relu(dense(width, math.sqrt(2), "fusion")(jnp.concatenate(parts, axis=-1)))


class Tower(nn.Module):
    """Hidden layers with ReLU, and a linear output."""

    hidden: tuple[int, ...]
    outputs: int
    scale: float = 1.0

    @nn.compact
    def __call__(self, x):
        for i, features in enumerate(self.hidden):
            x = nn.relu(dense(features, math.sqrt(2), f"hidden_{i}")(x))
        return Head(self.outputs, self.scale, name="out")(x)


class BranchQNetwork(nn.Module):
    """Dueling values of actions (Wang et al., 1511.06581, eq. 9) over `Branches`."""

    outputs: int
    config: BranchConfig

    @nn.compact
    def __call__(self, inputs, table):
        x = Branches(self.config, name="encoder")(inputs, table)
        advantage = Tower(self.config.head_hidden, self.outputs, name="advantage")(x)
        if self.config.pointing:
            advantage += Tower((), 1, name="pointing")(x) * inputs["goals"][:, : self.outputs]
        value = Tower(self.config.head_hidden, 1, name="value")(x)
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class BranchActorCritic(nn.Module):
    """Logits of actions and a value over `Branches`."""

    outputs: int
    config: BranchConfig

    @nn.compact
    def __call__(self, inputs, table):
        x = Branches(self.config, name="encoder")(inputs, table)
        logits = Tower(self.config.head_hidden, self.outputs, 0.01, name="actor")(x)
        if self.config.pointing:
            logits += Tower((), 1, 0.01, name="pointing")(x) * inputs["goals"][:, : self.outputs]
        return logits, Tower(self.config.head_hidden, 1, name="critic")(x)[..., 0]


class _Branched(Policy):
    """The common part of both policies: inputs from observations, and the frozen table of goals' embeddings."""

    network: Any

    def __init__(self, inputs: Callable[[Any], Inputs], table: Any):
        """**Arguments:** `inputs`, from observations, leaves `[B, ...]`, to `Inputs`; `table`, float32 `[A, E]`, the
        embeddings of goals, or `()` without goals."""
        self.inputs, self.table = inputs, table if isinstance(table, tuple) else jnp.asarray(table)

    def init(self, key, obs):
        frozen = {"goals": self.table}
        return draw(self.network, key, self.inputs(obs), self.table), frozen

    def _apply(self, params, frozen, obs) -> Any:
        return self._of_inputs(params, frozen, self.inputs(obs))

    def _of_inputs(self, params, frozen, inputs) -> Any:
        return self.network.apply({"params": params}, inputs, frozen["goals"])


def _with_goals(config: BranchConfig, table: Any) -> BranchConfig:
    """The configuration without `pointing` where there are no goals to point at."""
    return replace(config, pointing=config.pointing and not isinstance(table, tuple))


class BranchQPolicy(_Branched):
    """`llmrl_jax.rl.policy.Policy` with branches."""

    def __init__(
        self,
        num_actions: int,
        config: BranchConfig,
        inputs,
        table: Any = (),
        *,
        epsilon: float | None = 0.05,
        temperature: float = 1.0,
    ):
        """**Arguments:** `num_actions`; `config`; `inputs`, `table`, see `_Branched`; how actions are drawn after
        training (`step`): `epsilon`, the probability of a random one, or None for a softmax at `temperature`."""
        super().__init__(inputs, table)
        self.epsilon, self.temperature = epsilon, temperature
        config = _with_goals(config, table)
        self.network = BranchQNetwork(num_actions, config)
        self.heads = ("advantage", "value", *(("pointing",) if config.pointing else ()))
        """The parts of its parameters that are not its encoder."""

    def q(self, params, frozen, obs):
        return self.q_values_of([params], frozen, obs)[0]

    def q_values_of(self, param_sets: Sequence[Any], frozen: Any, obs: Any) -> list[Float[Array, "B A"]]:
        """`q` of several parameters for the same observations, whose inputs are made once."""
        inputs, mask = self.inputs(obs), mask_of(obs)
        q_values = [self._of_inputs(params, frozen, inputs) for params in param_sets]
        return q_values if mask is None else [jnp.where(mask, values, -jnp.inf) for values in q_values]


class BranchPolicy(_Branched):
    """`llmrl_jax.rl.policy.Policy` with branches, for discrete actions, without memory."""

    def __init__(self, num_actions: int, config: BranchConfig, inputs, table: Any = ()):
        """**Arguments:** as for `BranchQPolicy`."""
        super().__init__(inputs, table)
        self.network = BranchActorCritic(num_actions, _with_goals(config, table))

    def step(self, params, frozen, obs, carry, first):
        logits, value = self._apply(params, frozen, obs)
        return masked_categorical(logits, obs), value, carry

    def unroll(self, params, frozen, obs, carry, first):
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), obs)
        logits, value = self._apply(params, frozen, rows)
        lead = first.shape
        return masked_categorical(logits.reshape(*lead, -1), obs), value.reshape(lead)
