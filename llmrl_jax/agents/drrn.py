"""DRRN: Q-values of actions given as text (He et al., 1511.04636), GLAM's off-policy baseline (2302.02662).

One GRU reads the prompt, another each action, and an MLP on the two states gives the action's value. Actions are
sampled from a softmax over the values. It is trained by `llmrl_jax.rl.dqn`. Not reproduced: the published code discards
the first observation of every episode except the first, and its logs omit the episodes that have just ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from envs_jax.actions import mask_of
from envs_jax.text import TokenTable
from llmrl_jax.core.checks import Checked, Width
from llmrl_jax.core.draw import draw
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.networks import GRU, linear
from llmrl_jax.rl.policy import Policy


@dataclass(frozen=True)
class DRRNConfig(Checked):
    """Sizes of DRRN's network; the defaults are the published ones."""

    PREFIX: ClassVar[str] = "drrn."

    embedding_dim: Width = 128
    """Width of the token embeddings."""
    hidden_dim: Width = 128
    """Width of both GRUs and of the MLP's hidden layer."""


DRRN_DQN = DQNConfig(
    num_envs=32,
    num_steps=4,
    gradient_steps=1,
    batch_size=64,
    replay_size=1_500_000,
    gamma=0.9,
    double=False,
    target_every=0,
    learning_rate=1e-4,
    max_grad_norm=5.0,
    huber_delta=1.0,
    acting="softmax",
)
"""The published hyper-parameters (`agents/drrn` of GLAM): one network without a separate target network. The
replay buffer takes 265 bytes per step in MixedTrainLocal. The published capacity is 5,000,000 steps; runs of 1,500,000
steps never fill it."""


class DRRNNetwork(nn.Module):
    """The Q-value of every action for every prompt."""

    vocab_size: int
    embedding_dim: int
    hidden_dim: int

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B S"],
        lengths: Int[Array, " B"],
        actions: Int[Array, "A W"],
        action_lengths: Int[Array, " A"],
    ) -> Float[Array, "B A"]:
        """**Arguments:** right-padded tokens and their lengths, of the prompts and of the actions."""
        normal = nn.initializers.normal(1.0)
        embed = nn.Embed(self.vocab_size, self.embedding_dim, embedding_init=normal, name="embed")
        state = GRU(self.hidden_dim, name="state")(embed(tokens), lengths)
        action = GRU(self.hidden_dim, name="action")(embed(actions), action_lengths)
        shape = (tokens.shape[0], actions.shape[0], self.hidden_dim)
        pairs = [jnp.broadcast_to(state[:, None], shape), jnp.broadcast_to(action[None], shape)]
        x = nn.relu(linear(2 * self.hidden_dim, self.hidden_dim, "hidden")(jnp.concatenate(pairs, axis=-1)))
        return linear(self.hidden_dim, 1, "q")(x)[..., 0]


class DRRNPolicy(Policy):
    """DRRN's agent, a `llmrl_jax.rl.policy.Policy`: a softmax over the Q-values of the actions, or, with an epsilon,
    the best one but for a fraction of random actions."""

    def __init__(
        self,
        config: DRRNConfig,
        vocab_size: int,
        prompts: Callable[[Any], tuple[Array, Array]],
        actions: TokenTable,
        epsilon: float | None = None,
        temperature: float = 1.0,
    ):
        """**Arguments:** `config`, for its sizes; `vocab_size`, of the tokenizer; `prompts`, from a batched observation
        to `(tokens int32 [B, S], lengths int32 [B])`, inside jit; `actions`, the tokens of the action strings;
        `epsilon` and `temperature`, how actions are sampled after training."""
        self.prompts, self.actions = prompts, actions
        self.epsilon, self.temperature = epsilon, temperature
        self.network = DRRNNetwork(vocab_size, config.embedding_dim, config.hidden_dim)

    def _inputs(self, obs: Any) -> tuple[Array, Array, Array, Array]:
        return *self.prompts(obs), jnp.asarray(self.actions.tokens), jnp.asarray(self.actions.lengths)

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, tuple[()]]:
        """Draw parameters for a batched observation; nothing is frozen."""
        return draw(self.network, key, *self._inputs(obs)), ()

    def q(self, params: Any, frozen: Any, obs: Any) -> Float[Array, "B A"]:
        """Value of every action; minus infinity for masked actions."""
        values: Any = self.network.apply({"params": params}, *self._inputs(obs))
        mask = mask_of(obs)
        return values if mask is None else jnp.where(mask, values, -jnp.inf)
