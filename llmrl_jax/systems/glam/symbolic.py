"""Symbolic-PPO: GLAM's baseline that observes the grid directly (`train_symbolic_ppo.py`).

BabyAI 1.1's recurrent network: convolutions over the 7 x 7 view, modulated by the mission (FiLM, 1709.07871), and an
LSTM. It is trained by the same PPO as the language model. Differences from the published network:

* **Group norm replaces batch norm.** Batch norm uses running averages when acting and minibatch statistics when
  learning, so the two policies differ; group norm is a function of each row alone.
* Minibatches consist of environments, with all their steps; the published ones consist of segments of 20 steps, each
  starting from the recorded memory. Gradients are truncated at the same steps, but the memory is computed with the
  current weights.
* The vocabulary of missions is fixed before training and does not grow during training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsInt

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from envs_jax import spaces
from envs_jax.actions import MASK
from envs_jax.babyai.text.english import MISSIONS, mission_limits
from envs_jax.env import Environment, Wrapper
from envs_jax.text import Prompt, Slot
from llmrl_jax.core.checks import Checked, PositiveInt, Width
from llmrl_jax.core.draw import draw
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.networks import GRU, LSTM, Conv, unit_columns
from llmrl_jax.rl.policy import Policy, masked_categorical


GROUP = 16
"""Channels per group of the group norm."""
HEAD = 64
"""Width of the hidden layer of the actor and of the critic."""


@dataclass(frozen=True)
class SymbolicConfig(Checked):
    """Sizes of Symbolic-PPO's network; the defaults are the published ones."""

    PREFIX: ClassVar[str] = "symbolic."

    image_dim: Width = 128
    """Channels of every convolution; a multiple of 16."""
    instr_dim: Width = 128
    """Width of the word embeddings and of the GRU that reads the mission."""
    memory_dim: Width = 128
    """Units of the LSTM."""
    recurrence: PositiveInt = 20
    """Maximum number of steps of backpropagation through the LSTM."""

    def __post_init__(self):
        super().__post_init__()
        if self.image_dim % GROUP:
            raise ValueError(f"symbolic.image_dim is {self.image_dim}; a multiple of {GROUP} is needed")


class SymbolicView(Wrapper):
    """A BabyAI environment with the observations of the published baseline: `image`, `mission`, and the action mask if
    the environment has one."""

    KEEP = ("image", "mission", MASK)

    def __init__(self, env: Environment):
        """**Raises:** `TypeError` for an environment without `image` or `mission`."""
        super().__init__(env)
        parts = getattr(env.observation_space(env.default_params), "spaces", {})
        if not {"image", "mission"} <= set(parts):
            raise TypeError(f"{env.id!r} has no image with a mission; Symbolic-PPO plays the worlds named BabyAI-...")

    def _select(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: obs[name] for name in self.KEEP if name in obs}

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return self._select(obs), state

    def step(self, key, state, action, params):
        obs, *remaining = self.env.step(key, state, action, params)
        return self._select(obs), *remaining

    def observation_space(self, params):
        return spaces.Dict(self._select(self.env.observation_space(params).spaces))  # type: ignore[attr-defined]

    def describe(self, obs):
        return {"mission": MISSIONS.render(obs["mission"])}


class MissionWords:
    """A tokenizer of missions: one token per word, in lower case and without punctuation, as in BabyAI's own code.

    It implements the protocol `envs_jax.text.Tokenizer`; 0 is padding."""

    pad_id: int = 0
    bos_id: int | None = None
    eos_id: int | None = None
    prefix_ids: tuple[int, ...] = ()

    def __init__(self, phrases: Iterable[str] = MISSIONS.phrases):
        self.words = sorted({word for phrase in phrases for word in self.split(phrase)})
        self.vocab_size = 1 + len(self.words)
        self._ids = {word: i for i, word in enumerate(self.words, 1)}

    @staticmethod
    def split(text: str) -> list[str]:
        """The words of a text."""
        return re.findall("[a-z]+", text.lower())

    def encode(self, text: str) -> list[int]:
        return [self._ids[word] for word in self.split(text)]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        return " ".join(self.words[int(i) - 1] for i in ids if int(i) > 0)


Words = Callable[[Array], tuple[Int[Array, " L"], Int[Array, ""]]]
"""From the caption of one mission to its padded word ids and their number."""


def mission_words(env: Environment, words: MissionWords) -> Words:
    """The function from missions of a BabyAI environment to word ids, inside jit, by a lookup table built on the
    host."""
    level = (env.unwrapped if isinstance(env, Wrapper) else env).level  # type: ignore[attr-defined]
    longest, limits = mission_limits(level.kinds, len(level.clauses), level.located)
    slot = Slot("mission", MISSIONS, longest, prefix=" ", suffix="", limits=limits)
    compiled = Prompt(slot).compile(words)
    return lambda mission: compiled({"mission": mission})


def halved(x: Float[Array, "N H W C"]) -> Float[Array, "N h w C"]:
    """Max pooling, 2 x 2 with stride 2, as a maximum over axes: XLA's pooling has a slow gradient on CPUs."""
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def _norm(name: str) -> nn.GroupNorm:
    # the variance as a mean of squares less a squared mean is too imprecise for acting and learning to agree
    return nn.GroupNorm(None, group_size=GROUP, epsilon=1e-5, use_fast_variance=False, name=name)


class FiLM(nn.Module):
    """Two convolutions, the second scaled and shifted by the mission."""

    @nn.compact
    def __call__(self, x: Float[Array, "N H W C"], mission: Float[Array, "N D"]) -> Float[Array, "N H W C"]:
        channels = x.shape[-1]
        x = nn.relu(_norm("norm_1")(Conv(channels, 3, name="conv_1")(x)))
        x = Conv(channels, 3, name="conv_2")(x)
        scale, shift = (nn.Dense(channels, kernel_init=unit_columns, name=name)(mission) for name in ("scale", "shift"))
        x = x * scale[:, None, None] + shift[:, None, None]
        return nn.relu(_norm("norm_2")(x))


class SymbolicNetwork(nn.Module):
    """The network of Symbolic-PPO, over steps of a batch."""

    actions: int
    vocab_size: int
    sizes: SymbolicConfig

    @nn.compact
    def __call__(
        self,
        image: Float[Array, "T B 7 7 3"],
        words: Int[Array, "T B L"],
        lengths: Int[Array, "T B"],
        carry: Any,
        first: Bool[Array, "T B"],
    ) -> tuple[Float[Array, "T B A"], Float[Array, "T B"], Any]:
        """**Returns:** the actions' logits, the value, and the LSTM's carry after the last step."""
        steps, batch = first.shape
        sizes, rows = self.sizes, steps * batch
        embed = nn.Embed(self.vocab_size, sizes.instr_dim, embedding_init=nn.initializers.normal(1.0), name="words")
        mission = GRU(sizes.instr_dim, name="mission")(embed(words.reshape(rows, -1)), lengths.reshape(rows))
        x = Conv(sizes.image_dim, 2, name="conv_1")(image.reshape(rows, *image.shape[2:]))
        x = halved(nn.relu(_norm("norm_1")(x)))  # 8 x 8 to 4 x 4
        x = Conv(sizes.image_dim, 3, name="conv_2")(x)
        x = halved(nn.relu(_norm("norm_2")(x)))
        for name in ("film_1", "film_2"):
            x = FiLM(name=name)(x, mission)
        x = nn.relu(halved(x)).reshape(steps, batch, sizes.image_dim)
        carry, x = LSTM(sizes.memory_dim, sizes.recurrence, name="memory")(x, carry, first)
        actor, critic = (self._head(x, name, outputs) for name, outputs in (("actor", self.actions), ("critic", 1)))
        return actor, critic[..., 0], carry

    def _head(self, x, name: str, outputs: int):
        x = nn.tanh(nn.Dense(HEAD, kernel_init=unit_columns, name=f"{name}_1")(x))
        return nn.Dense(outputs, kernel_init=unit_columns, name=f"{name}_2")(x)


class SymbolicPolicy(Policy):
    """Symbolic-PPO's agent, as a `llmrl_jax.rl.policy.Policy` over the observations of `SymbolicView`."""

    recurrent = True

    def __init__(self, env: Environment, sizes: SymbolicConfig):
        """**Arguments:** `env`, wrapped as for training, not batched; `sizes`."""
        vocabulary = MissionWords()
        self.sizes = sizes
        self.words = mission_words(env, vocabulary)
        actions = env.action_space(env.default_params).n  # type: ignore[attr-defined]
        self.network = SymbolicNetwork(actions, vocabulary.vocab_size, sizes)

    def _read(self, obs: Any, lead: tuple[int, int]) -> tuple[Array, Array, Array]:
        """The view as raw numbers, and the mission's words; leaves `[T, B, ...]`."""
        missions = obs["mission"].reshape(-1, obs["mission"].shape[-1])
        words, lengths = jax.vmap(self.words)(missions)
        image = obs["image"].astype(jnp.float32).reshape(*lead, *obs["image"].shape[-3:])
        return image, words.reshape(*lead, -1), lengths.reshape(lead)

    def init(self, key, obs):
        batch = obs["mission"].shape[0]
        first = jnp.zeros((1, batch), bool)
        inputs = self._read(obs, (1, batch))
        return draw(self.network, key, *inputs, self.initial_carry(batch), first), ()

    def initial_carry(self, batch_size):
        """The LSTM's hidden state and cell, float32 `[B, memory_dim]` each."""
        shape = (batch_size, self.sizes.memory_dim)
        return jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)

    def _apply(self, params, obs, carry, first) -> tuple[Categorical, Any, Any]:
        outputs: Any = self.network.apply({"params": params}, *self._read(obs, first.shape), carry, first)
        logits, value, carry = outputs
        return masked_categorical(logits, obs), value, carry

    def step(self, params, frozen, obs, carry, first):
        distribution, value, carry = self._apply(params, obs, carry, first[None])
        return jax.tree.map(lambda x: x[0], distribution), value[0], carry

    def unroll(self, params, frozen, obs, carry, first):
        distribution, value, _ = self._apply(params, obs, carry, first)
        return distribution, value
