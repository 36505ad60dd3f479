"""A language model that writes its actions: what it reads, how it replies, and what a reply does in the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llmrl_jax.core.draw import draw
from llmrl_jax.lm import Llama, ValueHead
from llmrl_jax.lm.model import random_params
from llmrl_jax.multiturn.replies import ReplyAutomaton
from llmrl_jax.multiturn.text import FreeText, TurnText


Memory = Literal["append", "reprompt"]
"""What the model sees of an episode: all of it, keys and values kept (`append`); or a prompt that is built again at
each turn, of the head, the last turns with their replies, and the observation (`reprompt`)."""


@dataclass(frozen=True, kw_only=True)
class TurnPolicy:
    """A model, its critic, and the rules of the conversation.

    The trained parameters are `{"lora": ..., "value": ...}` over a frozen base, or `{"params": ..., "value": ...}` if
    all weights are trained. The critic is an MLP on the hidden state of the last token that was read.
    """

    model: Llama
    """Its `lora` field tells whether adapters are trained."""
    base: Callable[[jax.Array], Any]
    """From a PRNG key to the base parameters."""
    value_head: ValueHead
    text: TurnText | FreeText
    replies: ReplyAutomaton
    reply_tokens: int
    """The most tokens of a reply; one that is cut there acts by what it says so far."""
    default_action: int
    """The action of a reply that names none."""
    temperature: float = 1.0
    """Divides the logits, in play and in the update."""
    constrained: bool = False
    """Whether only tokens are written after which a valid reply is still possible within `reply_tokens`. Probabilities
    are those of the remaining tokens, normalised."""
    memory: Memory = "append"
    window: int = 0
    """With `reprompt`: the last turns that are seen besides the current one."""
    stop_value_gradient: bool = False
    """Whether the critic's gradient stops at the shared trunk."""
    mesh: jax.sharding.Mesh | None = None

    def __post_init__(self):
        if self.reply_tokens < 1:
            raise ValueError(f"reply_tokens is {self.reply_tokens}; a reply has at least 1")
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; tokens are drawn with one above 0")
        need = int(self.replies.need[self.replies.start])
        if self.constrained and need > self.reply_tokens:
            raise ValueError(
                f"reply_tokens is {self.reply_tokens}, but the shortest valid reply has {need} tokens: give at least "
                f"{need}"
            )
        if self.window and self.memory == "append":
            raise ValueError(f"window is {self.window}, but with memory append the whole episode is seen: leave it 0")
        limit, longest = self.model.config.max_position_embeddings, self.prompt_tokens + self.reply_tokens
        if longest > limit:
            raise ValueError(
                f"a prompt of up to {self.prompt_tokens} tokens and a reply of {self.reply_tokens} need {longest} "
                f"positions; the model has {limit} (max_position_embeddings): lower window or reply_tokens"
            )
        if self.text.top_token >= self.model.config.vocab_size:
            raise ValueError(
                f"the text holds the token {self.text.top_token}, but the model's vocabulary is 0 to "
                f"{self.model.config.vocab_size - 1}: the tokenizer is not the model's"
            )

    @property
    def turn_tokens(self) -> int:
        """The most tokens of a turn and its reply."""
        return self.text.sizes[1] + self.reply_tokens

    @property
    def prompt_tokens(self) -> int:
        """The most tokens that are queued for reading at once."""
        return sum(self.text.sizes) + (self.window * self.turn_tokens if self.memory == "reprompt" else 0)

    @property
    def longest_text(self) -> int | None:
        """The most tokens of a text, by which rows of many are cheaper; None with `append`: that of an episode."""
        return self.prompt_tokens + self.reply_tokens if self.memory == "reprompt" else None

    def capacity(self, episode_tokens: int = 0) -> int:
        """The places of a row's record of earlier tokens.

        **Arguments:** `episode_tokens`, the most tokens of an episode with `append`.
        **Raises:** `ValueError` if no episode of two turns fits, or more than the model has positions are asked for."""
        longest = self.prompt_tokens + self.reply_tokens
        if self.memory == "reprompt":
            return 2 * longest  # a turn is learned from once the next one's observation has been read
        head, turn = self.text.sizes
        needed, positions = longest + turn, self.model.config.max_position_embeddings
        if not needed <= episode_tokens <= positions:
            raise ValueError(
                f"episode_tokens is {episode_tokens}; a head of {head}, two turns of up to {turn} and a reply of "
                f"{self.reply_tokens} tokens need at least {needed}, and the model has {positions} positions"
            )
        return episode_tokens

    @property
    def dtype(self) -> Any:
        """The dtype to which the model rounds the factors of its products."""
        return self.model.precision

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """**Returns:** `(params, frozen)`: the trained parameters, and `{"params": base, "replies": tables}`, without
        `params` if all weights are trained."""
        base_key, lora_key, head_key = jax.random.split(key, 3)
        base = self.base(base_key)
        value, replies = self.init_heads(head_key)
        if self.model.lora is None:
            return {"params": base, "value": value}, {"replies": replies}
        adapters = random_params(self.model, self.mesh, lora_key, "lora")
        return {"lora": adapters, "value": value}, {"params": base, "replies": replies}

    def init_heads(self, key: jax.Array) -> tuple[Any, ReplyAutomaton]:
        """**Returns:** parameters of the critic, and the tables of the reply format."""
        hidden = jnp.zeros((1, self.model.config.hidden_size), jnp.float32)
        replicated = None if self.mesh is None else jax.NamedSharding(self.mesh, jax.P())
        value = draw(self.value_head, key, hidden, out_shardings=replicated)
        replies = jax.tree.map(jnp.copy, self.replies)  # a program that is given the state may donate it
        return value, replies if replicated is None else jax.device_put(replies, replicated)

    def variables(self, params: Any, frozen: Any, adapted: bool = True) -> dict[str, Any]:
        """The model's variables; without adapters, those of the base, unless all weights are trained."""
        parts = {name: frozen[name] for name in ("params",) if name in frozen}
        names = ("lora", "params") if adapted else ("params",)
        return parts | {name: params[name] for name in names if name in params}

    def value(self, params: Any, hidden: Float[Array, "*b D"]) -> Float[Array, "*b"]:
        """The critic's estimate from hidden states, in units of return."""
        hidden = jax.lax.stop_gradient(hidden) if self.stop_value_gradient else hidden
        value: Any = self.value_head.apply({"params": params["value"]}, hidden.astype(jnp.float32))
        return value

    def masked(
        self, replies: ReplyAutomaton, logits: Float[Array, "*b V"], state: Int[Array, "*b"], left: Int[Array, "*b"]
    ) -> Float[Array, "*b V"]:
        """The logits of the policy: divided by the temperature, `-inf` for tokens that are not offered.

        **Arguments:** `replies`, the tables; `state`, the automaton's before the token; `left`, tokens that the reply
        may still have. Where no token is offered (outside of replies) nothing is removed."""
        logits = logits / self.temperature
        if not self.constrained:
            return logits
        allowed: Bool[Array, "*b V"] = replies.allowed(state, left)
        return jnp.where(allowed | ~jnp.any(allowed, axis=-1, keepdims=True), logits, -jnp.inf)

    def write(
        self,
        replies: ReplyAutomaton,
        logits: Float[Array, "N V"],
        state: Any,
        left: Any,
        keys: Key[Array, " N"],
        greedy: Any = None,
    ) -> tuple[Int[Array, " N"], Float[Array, " N"], Bool[Array, " N"]]:
        """The next token of each row's reply, its log-probability under the policy, and whether it was one of several.

        **Arguments:** `keys`, one per row: a row's token does not depend on the other rows; `greedy`, bool `[]`,
        whether the likeliest token is written in place of a drawn one; None: never."""
        logits = self.masked(replies, logits, state, left)
        free = jnp.sum(jnp.isfinite(logits), axis=-1) > 1
        token = jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
        if greedy is not None:
            token = jnp.where(greedy, jnp.argmax(logits, axis=-1).astype(jnp.int32), token)
        chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
        return token, chosen - jax.nn.logsumexp(logits, axis=-1), free
