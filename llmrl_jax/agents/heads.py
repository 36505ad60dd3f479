"""Action heads instead of scored strings: an ablation of GLAM's policy (glam reference, sections 1.1 and 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.agents.language import LanguagePolicy
from llmrl_jax.lm import Candidates
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.policy import masked_categorical


class ActionHead(nn.Module):
    """Like `llmrl_jax.lm.ValueHead`, with one logit per action instead of one number; float32."""

    actions: int
    """Number of logits."""
    width: int = 1024
    """Width of the two hidden layers."""
    activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Activation function."""

    @nn.compact
    def __call__(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b A"]:
        """The logits of each state."""
        x = hidden.astype(jnp.float32)
        for name in ("hidden_1", "hidden_2"):
            x = getattr(nn, self.activation)(nn.Dense(self.width, name=name)(x))
        return nn.Dense(self.actions, name="logits")(x)


@dataclass(frozen=True, kw_only=True)
class HeadsPolicy(LanguagePolicy):
    """An agent that reads the prompt as `ScoringPolicy` does, and chooses actions by an MLP on the last token's hidden
    state: it does not read the names of the actions. `params` has `"action"` besides `"value"`."""

    action_head: ActionHead

    def init_heads(self, key: jax.Array) -> dict[str, Any]:
        return super().init_heads(key) | {"action": self.init_head(self.action_head, jax.random.fold_in(key, 1))}

    def consider(self, params: Any, frozen: Any, obs: Any) -> tuple[Categorical, Float[Array, "B D"]]:
        # one candidate of one token adds no cost to the pass over the prompt: its score is dead code
        hidden = self.read(params, frozen, obs, Candidates([[0]])).hidden
        logits: Any = self.action_head.apply({"params": params["action"]}, hidden.astype(jnp.float32))
        return masked_categorical(logits, obs), hidden
