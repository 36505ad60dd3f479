"""A language model whose positions can hold states and actions, and which predicts all three.

As in the paper (2404.09248): a state enters through a linear layer, an action through a table or a linear layer, and
linear heads on the last hidden state predict them. States are in units of their mean and standard deviation in the
data. A head predicts the change from the state before, in units of the changes of single steps, or, if `states` is
`absolute`, the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from llmrl_jax.lm import DecodeState, Llama
from llmrl_jax.systems.kalm.prompts import ACTION, STATE, Episodes, Rows
from llmrl_jax.tuning.loss import token_log_probs


STD_FLOOR = 1e-3
"""The fraction of the largest standard deviation below which a part of a state, or its change, hardly varies."""

SAMPLED = 1024
"""At most so many words show how large word vectors are."""


@struct.dataclass
class Normalizer:
    """Mean and scales of states and of their changes in the data."""

    mean: Float[Array, " d"]
    std: Float[Array, " d"]
    change: Float[Array, " d"]
    """Standard deviation of the changes of single steps: most parts of a state stay as they are in most steps, so that
    in units of the states' own standard deviation a model that predicts no change at all is nearly right."""

    @staticmethod
    def from_episodes(episodes: Episodes) -> Normalizer:
        states = episodes.states.astype(np.float64)
        inner = np.ones(len(states), bool)
        inner[episodes.first_state] = False
        changes = np.diff(states, axis=0)[inner[1:]]
        return Normalizer(
            *(jnp.asarray(x, jnp.float32) for x in (states.mean(0), _scales(states), _floored_std(changes)))
        )


def _floored_std(x: Float[np.ndarray, "M d"]) -> Float[np.ndarray, " d"]:
    """Standard deviations, floored at `STD_FLOOR` times the largest."""
    std = x.std(0)
    return np.maximum(std, max(float(std.max()), 1e-6) * STD_FLOOR)


def _scales(x: Float[np.ndarray, "M d"]) -> Float[np.ndarray, " d"]:
    """Standard deviations; the largest for parts that hardly vary. What never moves in the data may be elsewhere at
    another level, and must not come in as a thousand units there."""
    std, floored = x.std(0), _floored_std(x)
    return np.where(std < floored, max(float(std.max()), 1e-6), floored)


class Slots(nn.Module):
    """The layers by which states and actions enter and leave."""

    width: int
    """Of the language model."""
    state: int
    """Size of a state."""
    action: int
    """Number of actions, or size of an action."""
    discrete: bool

    def setup(self):
        unit_variance = nn.initializers.variance_scaling(1.0, "fan_in", "normal")  # components of about 1
        self.state_in = nn.Dense(self.width, kernel_init=unit_variance)
        make: Any = partial(nn.Embed, embedding_init=nn.initializers.normal(1.0)) if self.discrete else None
        self.action_in = make(self.action, self.width) if make else nn.Dense(self.width, kernel_init=unit_variance)
        self.state_out = nn.Dense(self.state, kernel_init=nn.initializers.zeros)
        self.action_out = nn.Dense(self.action, kernel_init=nn.initializers.zeros)

    def __call__(self, states: Any, actions: Any) -> Any:
        """All layers, to make their parameters."""
        x = self.enter_state(states) + self.enter_action(actions)
        return self.leave_state(x), self.leave_action(x)

    def enter_state(self, states: Float[Array, "*b d"]) -> Float[Array, "*b D"]:
        return self.state_in(states)

    def enter_action(self, actions: Any) -> Float[Array, "*b D"]:
        return self.action_in(actions)

    def leave_state(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b d"]:
        return self.state_out(hidden)

    def leave_action(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b a"]:
        """Logits of discrete actions; continuous ones in (-1, 1)."""
        output = self.action_out(hidden)
        return output if self.discrete else jnp.tanh(output)


@dataclass(frozen=True)
class WorldModel:
    """The language model with its slots, as pure functions of `variables`: those of `Llama`, with `slots` beside."""

    llama: Llama
    slots: Slots
    states: Literal["changes", "absolute"] = "changes"
    """The target of the head of states: the change from the state before, or the state; both normalized."""

    def scale(self, normalizer: Normalizer, single_step: Any = True) -> Float[Array, "*b d"]:
        """The scale of what the head predicts. **Arguments:** `single_step`, bool `[*b]`, whether a state is
        predicted from the one before it; changes over more steps are as large as states."""
        if self.states == "absolute":
            return normalizer.std
        return jnp.where(jnp.asarray(single_step)[..., None], normalizer.change, normalizer.std)

    @staticmethod
    def around(
        llama: Llama, episodes: Episodes, actions: int, states: Literal["changes", "absolute"] = "changes"
    ) -> WorldModel:
        """The model for an environment. **Arguments:** `actions`, the number of discrete ones; unused for others."""
        size = actions if episodes.discrete else episodes.actions.shape[1]
        slots = Slots(llama.config.hidden_size, episodes.states.shape[1], size, episodes.discrete)
        return WorldModel(llama, slots, states)

    def init_slots(self, key: jax.Array, variables: Any) -> Any:
        """The first parameters of the slots: states and actions enter at random, as large as words do, and the heads
        are zero.

        Both matter to a pretrained model. SmolLM2's word vectors have components of 0.14, and its last hidden states
        some of 30: actions of 0.02 are lost beside words, and heads as small as that start with errors as large as
        those of no prediction at all.

        **Arguments:** `variables`, the language model's.
        """
        action = jnp.zeros((1,), jnp.int32) if self.slots.discrete else jnp.zeros((1, self.slots.action))
        slots = self.slots.init(key, jnp.zeros((1, self.slots.state)), action)["params"]
        count = self.llama.config.vocab_size
        sample = jnp.arange(0, count, -(-count // SAMPLED))
        words: Any = self.llama.apply(self._text(variables), sample, method=Llama.embed)
        size = jnp.sqrt(jnp.mean(jnp.square(words.astype(jnp.float32))))
        enter = {name: jax.tree.map(lambda x: x * size, slots[name]) for name in ("state_in", "action_in")}
        return {**slots, **enter}

    def _slot(self, variables: Any, method: str, x: Any) -> Any:
        return self.slots.apply({"params": variables["slots"]}, x, method=method)

    @staticmethod
    def _text(variables: Any) -> Any:
        return {name: x for name, x in variables.items() if name != "slots"}

    def embed(
        self, variables: Any, normalizer: Normalizer, rows: Rows, episodes: tuple[Any, Any]
    ) -> Float[Array, "B S D"]:
        """The input of the first layer. **Arguments:** `episodes`, the tables of states and actions."""
        states, actions = episodes
        kind = jnp.asarray(rows.kind)[..., None]
        state = (states[jnp.where(rows.kind == STATE, rows.index, 0)] - normalizer.mean) / normalizer.std
        action = actions[jnp.where(rows.kind == ACTION, rows.index, 0)]
        x: Any = self.llama.apply(self._text(variables), rows.tokens, method=Llama.embed)
        x = jnp.where(kind == STATE, self._slot(variables, "enter_state", state).astype(x.dtype), x)
        return jnp.where(kind == ACTION, self._slot(variables, "enter_action", action).astype(x.dtype), x)

    def hidden(
        self, variables: Any, normalizer: Normalizer, rows: Rows, episodes: tuple[Any, Any]
    ) -> Float[Array, "B S D"]:
        """The last hidden states of whole rows."""
        output: Any = self.llama.apply(
            self._text(variables),
            rows.tokens,
            positions=rows.positions,
            segments=rows.segments,
            logits=False,
            embeddings=self.embed(variables, normalizer, rows, episodes),
        )
        return output.hidden

    def next_state(
        self, variables: Any, normalizer: Normalizer, hidden: Any, before: Float[Array, "*b d"], single_step: Any = True
    ) -> Float[Array, "*b d"]:
        """The state that the head predicts. **Arguments:** `before`, the state from which it is reached; `single_step`,
        bool `[*b]`, whether in one step."""
        output = self._slot(variables, "leave_state", hidden.astype(jnp.float32)) * self.scale(normalizer, single_step)
        return before + output if self.states == "changes" else normalizer.mean + output

    def actions(self, variables: Any, hidden: Any) -> jax.Array:
        """Logits `[*b, n]` of discrete actions, or actions `[*b, a]`."""
        return self._slot(variables, "leave_action", hidden.astype(jnp.float32))

    def act(self, variables: Any, hidden: Any) -> jax.Array:
        """The most likely action: int32 `[*b]`, or float32 `[*b, a]`."""
        prediction = self.actions(variables, hidden)
        return jnp.argmax(prediction, axis=-1).astype(jnp.int32) if self.slots.discrete else prediction

    def losses(
        self, variables: Any, normalizer: Normalizer, rows: Rows, episodes: tuple[Any, Any], counts: dict[str, Any]
    ) -> dict[str, jax.Array]:
        """The three errors of a part of a batch, each a sum divided by the number of its targets in the whole batch.

        **Arguments:** `counts`, see `count_targets`.
        **Returns:** `state`, the squared error per component in the units of what is predicted; `action`, nats of
        discrete actions, or the squared error per component; `text`, nats per token.
        """
        hidden = self.hidden(variables, normalizer, rows, episodes)
        states, actions = episodes
        after = jax.tree.map(lambda x: jnp.roll(x, -1, axis=1), rows.replace(spoken=rows.tokens))
        masks = _target_masks(rows)
        single_step = after.index == after.before + 1
        predicted = self.next_state(
            variables, normalizer, hidden, states[jnp.where(masks["state"], after.before, 0)], single_step
        )
        target = states[jnp.where(masks["state"], after.index, 0)]
        state_error = jnp.mean(((predicted - target) / self.scale(normalizer, single_step)) ** 2, axis=-1)
        predicted_action, action = self.actions(variables, hidden), actions[jnp.where(masks["action"], after.index, 0)]
        if self.slots.discrete:
            log_probs = jax.nn.log_softmax(predicted_action)
            action_error = -jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
        else:
            action_error = jnp.mean((predicted_action - action) ** 2, axis=-1)
        positions = jnp.maximum(rows.spoken, 0)
        text_hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1)
        tokens = jnp.take_along_axis(jnp.asarray(rows.tokens), positions + 1, axis=1)
        log_prob, _ = token_log_probs(self.llama, self._text(variables), text_hidden, tokens)
        return {
            "state": jnp.sum(jnp.where(masks["state"], state_error, 0.0)) / counts["state"],
            "action": jnp.sum(jnp.where(masks["action"], action_error, 0.0)) / counts["action"],
            "text": -jnp.sum(jnp.where(rows.spoken >= 0, log_prob, 0.0)) / counts["text"],
        }

    def start(self, variables: Any, tokens: Int[Any, "B P"], lengths: Int[Any, " B"], room: int) -> DecodeState:
        """The cache after prompts, padded on the right. **Arguments:** `room`, for slots after them."""
        slots = tokens.shape[1]
        output: Any = self.llama.apply(self._text(variables), tokens, lengths=lengths, cache=slots, logits=False)
        return DecodeState.create(output.cache, jnp.asarray(lengths), 1, room)

    def unstacked_weights(self, variables: Any) -> Any:
        """The layers' weights as `advance` reads them, to be computed outside of a loop."""
        return self.llama.apply(self._text(variables), method=Llama.unstacked_weights)

    def advance(
        self, variables: Any, cache: DecodeState, embedding: Float[Array, "B D"], layers: Any = None
    ) -> tuple[Float[Array, "B D"], DecodeState]:
        """One more position of every row: its hidden state, and the cache with it. **Arguments:** `layers`, of
        `unstacked_weights`."""
        nothing = jnp.zeros((embedding.shape[0], 1), jnp.int32)
        output: Any = self.llama.apply(
            self._text(variables), nothing, cache, embeddings=embedding[:, None], layers=layers, method=Llama.decode
        )
        hidden, cache = output
        return hidden[:, 0], cache

    def enter_state(self, variables: Any, normalizer: Normalizer, state: Float[Array, "B d"]) -> Float[Array, "B D"]:
        return self._slot(variables, "enter_state", (state - normalizer.mean) / normalizer.std)

    def enter_action(self, variables: Any, action: Any) -> Float[Array, "B D"]:
        return self._slot(variables, "enter_action", action)


def _target_masks(rows: Rows) -> dict[str, jax.Array]:
    """Masks of the positions that predict a state, and of those that predict an action: bool `[B, S]`."""
    learn, kind = (jnp.roll(jnp.asarray(x), -1, axis=1) for x in (rows.learn, rows.kind))
    learn = learn.at[:, -1].set(False)
    return {"state": learn & (kind == STATE), "action": learn & (kind == ACTION)}


def count_targets(rows: Rows) -> dict[str, jax.Array]:
    """The numbers of targets of each kind in a batch, at least 1."""
    masks = {**_target_masks(rows), "text": jnp.asarray(rows.spoken) >= 0}
    return {name: jnp.maximum(1, jnp.sum(x)) for name, x in masks.items()}
