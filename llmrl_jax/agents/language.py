"""The language model as the policy: a prompt in, a distribution over action strings and a value out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from envs_jax.actions import mask_of
from llmrl_jax.core.draw import draw
from llmrl_jax.lm import Candidates, Llama, Scores, ValueHead, score
from llmrl_jax.lm.model import hidden_layers, random_params
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.policy import Policy, masked_categorical


Scoring = Literal["sum", "mean", "per_word", "raw_logits", "max_normalised"]
"""How scores become action logits (Carta et al., 2302.02662, and its released code).

* `sum`: the log-probability of the whole action string, as the paper defines it. The default.
* `mean`: per token, against the bias towards short actions (TWOSOME, 2401.14151).
* `per_word`: per word of the action string, more stable than per token according to TWOSOME.
* `raw_logits`: compat with the released code: decoder logits summed without a log-softmax.
* `max_normalised`: compat with the code of February 2023: probabilities divided by the largest, then a softmax;
  no action can exceed e / (e + A - 1).
"""


def action_logits(scores: Scores, scoring: Scoring) -> Float[Array, "B A"]:
    """Unnormalised log-probabilities of the candidates under a definition of `Scoring`, float32."""
    if scoring == "sum":
        return scores.sum
    if scoring == "mean":
        return scores.mean
    if scoring == "per_word":
        if scores.per_word is None:
            raise ValueError("scoring is per_word, but the candidates do not know their words: Candidates.encode does")
        return scores.per_word
    if scoring == "raw_logits":
        return scores.raw_sum
    top = jnp.max(scores.sum, axis=-1, keepdims=True)
    return jnp.where(top < math.log(1e-45), 0.0, jnp.exp(scores.sum - top))


@dataclass(frozen=True, kw_only=True)
class LanguagePolicy(Policy):
    """Base class of GLAM's agents: a model that reads prompts, and a critic on its hidden state.

    The trained parameters are `{"lora": ..., "value": ...}` over a frozen base, or `{"params": ..., "value": ...}` if
    all weights are trained. Actor and critic share the model: the value is an MLP on the hidden state of the last
    prompt token, so that one forward pass serves both.

    Subclasses define `distribution_and_hidden`: `ScoringPolicy` and `HeadsPolicy`, whose examples build one.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> issubclass(lr.ScoringPolicy, lr.LanguagePolicy) and issubclass(lr.LanguagePolicy, lr.rl.Policy)
    True
    ```
    """

    model: Llama
    """The language model; its `lora` field tells whether adapters are trained."""
    prompts: Callable[[Any], tuple[Array, Array]]
    """From a batched observation to `(tokens int32[B, S], lengths int32[B])`, inside jit."""
    prefix: tuple[int, ...] = ()
    """The tokens with which every prompt begins, fewer than the shortest prompt has: a pass over a batch, or a group
    of its rows, computes them once, not once per row. Scores and gradients are the same."""
    base: Callable[[jax.Array], Any]
    """From a PRNG key to the base parameters: loaded from a folder, or randomly initialised."""
    value_head: ValueHead
    stop_value_gradient: bool = False
    """Whether the critic's gradient stops at the shared trunk."""
    competence_head: ValueHead | None = None
    """Predicts whether the goal will be reached, see `llmrl_jax.agents.competence`; None: no such head."""
    stop_competence_gradient: bool = False
    """Whether this head's gradient stops at the shared trunk."""
    rows: int = 0
    """Number of prompts scored at once, if it divides the batch; 0: all. On a CPU, small groups fit into the cache.
    With `widths` on a mesh, a multiple of the devices over which rows are split."""
    widths: tuple[int, ...] = ()
    """Padded lengths; each group of `rows` uses the shortest that fits it, see `llmrl_jax.lm.score`."""
    max_prompt_length: int | None = None
    """Maximum number of tokens of a prompt that are read; None: all that `prompts` gives. See `buckets`."""
    mesh: jax.sharding.Mesh | None = None
    """Mesh of the weights; None: one device."""

    @property
    def dtype(self) -> Any:
        """Dtype to which the model rounds the factors of its products."""
        return self.model.precision

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]:
        """**Returns:** `(params, frozen)`: the trained parameters, and the frozen base (`{}` if that is trained)."""
        base_key, lora_key, head_key = jax.random.split(key, 3)
        base = self.base(base_key)
        heads = self.init_heads(head_key)
        if self.model.lora is None:
            return {"params": base, **heads}, {}
        adapters = random_params(self.model, self.mesh, lora_key, "lora")
        return {"lora": adapters, **heads}, {"params": base}

    def init_heads(self, key: jax.Array) -> dict[str, Any]:
        """Parameters of the heads on the hidden state, by name."""
        heads = {"value": self.init_head(self.value_head, key)}
        if self.competence_head is not None:
            heads["competence"] = self.init_head(self.competence_head, jax.random.fold_in(key, 2))
        return heads

    def init_head(self, head: nn.Module, key: jax.Array) -> Any:
        """Parameters of the head, replicated on all devices."""
        hidden = jnp.zeros((1, self.model.config.hidden_size), jnp.float32)
        replicated = None if self.mesh is None else jax.NamedSharding(self.mesh, jax.P())
        return draw(head, key, hidden, out_shardings=replicated)

    def score_prompts(
        self, params: Any, frozen: Any, obs: Any, candidates: Candidates, mask: Bool[Array, "B A"] | None = None
    ) -> Scores:
        """Scores of candidates after the prompts of a batch of observations, and the prompts' hidden states;
        `mask`, see `llmrl_jax.lm.score`."""
        variables = {**frozen, **{name: params[name] for name in ("lora", "params") if name in params}}
        tokens, lengths = self.prompts(obs)
        shared = len(self.prefix)
        tokens, lengths = tokens[:, shared : self.max_prompt_length], lengths - shared
        widths = [width - shared for width in self.widths if width > shared]
        rows, shards = min(self.rows, len(tokens)) or None, Placement(self.mesh).row_devices
        if rows and (len(tokens) % rows or widths and rows % shards):
            rows = None
        grouped: Any = {"rows": rows, "widths": widths, "shards": shards}
        return score(self.model, variables, tokens, lengths, candidates, self.prefix, mask=mask, **grouped)

    def lengths(self, obs: Any) -> Int[Array, " B"]:
        """Length of each prompt, see `llmrl_jax.rl.policy.Policy.lengths`."""
        return self.prompts(obs)[1]

    def buckets(self, rows: int) -> Mapping[int, LanguagePolicy]:
        """Policy for each of `widths` and one for all lengths; none where groups of `rows` choose for themselves."""
        if not self.widths or rows > self.rows:
            return {}
        plain = replace(self, widths=(), rows=0)
        widths = [width for width in sorted(self.widths) if width > len(self.prefix)]
        return {width: replace(plain, max_prompt_length=width) for width in widths} | {np.iinfo(np.int32).max: plain}

    def value(self, params: Any, hidden: Float[Array, "B D"]) -> Float[Array, " B"]:
        """Estimate of the critic, from the prompts' hidden states."""
        hidden = jax.lax.stop_gradient(hidden) if self.stop_value_gradient else hidden
        value: Any = self.value_head.apply({"params": params["value"]}, hidden.astype(jnp.float32))
        return value

    def competence(self, params: Any, hidden: Float[Array, "B D"]) -> Float[Array, " B"]:
        """Log-odds of success, from the prompts' hidden states. **Raises** `ValueError` without such a head."""
        if self.competence_head is None:
            raise ValueError("this policy predicts no success: it has no competence_head (competence_coef is 0)")
        hidden = jax.lax.stop_gradient(hidden) if self.stop_competence_gradient else hidden
        odds: Any = self.competence_head.apply({"params": params["competence"]}, hidden.astype(jnp.float32))
        return odds

    def success_probability(self, params: Any, frozen: Any, obs: Any) -> Float[Array, " B"]:
        """Estimated probability of success in each state. **Raises** `ValueError` without a competence head."""
        return jax.nn.sigmoid(self.competence(params, self.distribution_and_hidden(params, frozen, obs)[1]))

    @property
    def estimate(self) -> Callable[[Any, Any, Any], Float[Array, " B"]] | None:
        """`success_probability`; None without a competence head."""
        return None if self.competence_head is None else self.success_probability

    def distribution_and_hidden(self, params: Any, frozen: Any, obs: Any) -> tuple[Categorical, Float[Array, "B D"]]:
        """Distribution over the available actions, and the prompt's hidden state, of each row."""
        raise NotImplementedError

    def act(self, params: Any, frozen: Any, obs: Any) -> tuple[Categorical, Float[Array, " B"]]:
        """Distribution over the available actions, and the value, of each row."""
        distribution, hidden = self.distribution_and_hidden(params, frozen, obs)
        return distribution, self.value(params, hidden)

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        return *self.act(params, frozen, obs), carry

    def unroll(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, "T B"]):
        return over_steps(lambda flat: self.act(params, frozen, flat), obs, first)


def over_steps(act: Callable[[Any], Any], obs: Any, first: Bool[Array, "T B"]) -> Any:
    """`act` on the rows of all steps at once; leaves `[T, B, ...]`."""
    steps, batch = first.shape
    flat = jax.tree.map(lambda x: x.reshape(steps * batch, *x.shape[2:]), obs)
    return jax.tree.map(lambda x: x.reshape(steps, batch, *x.shape[1:]), act(flat))


@dataclass(frozen=True, kw_only=True)
class ScoringPolicy(LanguagePolicy):
    """GLAM's agent, as a `llmrl_jax.rl.policy.Policy`: it chooses among action strings by their probabilities.

    `step` returns a `Categorical` with logits float32 `[B, A]`, log-probabilities in nats, and values float32 `[B]`.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> model, variables = lr.load_model("tiny", lora=lr.LoRAConfig(rank=4))
    >>> policy = lr.ScoringPolicy(
    ...     model=model,
    ...     prompts=lambda obs: (obs, jnp.full(len(obs), 5)),  # the observation is the prompt's tokens
    ...     base=lambda key: variables["params"],
    ...     value_head=lr.ValueHead(16),
    ...     candidates=lr.Candidates([[4], [5, 6], [7]]),
    ... )
    >>> obs = jnp.ones((2, 5), jnp.int32)
    >>> params, frozen = policy.init(jax.random.key(0), obs)
    >>> distribution, value, _ = jax.jit(policy.step)(params, frozen, obs, (), jnp.ones(2, bool))
    >>> sorted(params), distribution.logits.shape, value.shape
    (['lora', 'value'], (2, 3), (2,))
    ```
    """

    candidates: Candidates
    """The action strings as tokens, `A` of them."""
    scoring: Scoring = "sum"

    def scores(self, params: Any, frozen: Any, obs: Any) -> Scores:
        """Scores of candidates for a batch of observations, including masked actions."""
        return self.score_prompts(params, frozen, obs, self.candidates)

    def distribution_and_hidden(self, params: Any, frozen: Any, obs: Any) -> tuple[Categorical, Float[Array, "B D"]]:
        # the scores are masked too, since `max_normalised` divides by the best available one
        scores = self.score_prompts(params, frozen, obs, self.candidates, mask_of(obs))
        return masked_categorical(action_logits(scores, self.scoring), obs), scores.hidden


# --- action heads -----------------------------------------------------------------------------------------------------


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
        return nn.Dense(self.actions, name="logits")(hidden_layers(hidden, self.width, self.activation))


@dataclass(frozen=True, kw_only=True)
class HeadsPolicy(LanguagePolicy):
    """Agent that reads the prompt as `ScoringPolicy` does, and chooses actions by an MLP on the last token's hidden
    state: it does not read the names of the actions. `params` has `"action"` besides `"value"`.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> model, variables = lr.load_model("tiny", lora=lr.LoRAConfig(rank=4))
    >>> policy = lr.HeadsPolicy(
    ...     model=model,
    ...     prompts=lambda obs: (obs, jnp.full(len(obs), 5)),  # the observation is the prompt's tokens
    ...     base=lambda key: variables["params"],
    ...     value_head=lr.ValueHead(16),
    ...     action_head=lr.agents.ActionHead(actions=3, width=16),
    ... )
    >>> obs = jnp.ones((2, 5), jnp.int32)
    >>> params, frozen = policy.init(jax.random.key(0), obs)
    >>> distribution, value, _ = jax.jit(policy.step)(params, frozen, obs, (), jnp.ones(2, bool))
    >>> sorted(params), distribution.logits.shape, value.shape
    (['action', 'lora', 'value'], (2, 3), (2,))
    ```
    """

    action_head: ActionHead

    def init_heads(self, key: jax.Array) -> dict[str, Any]:
        return super().init_heads(key) | {"action": self.init_head(self.action_head, jax.random.fold_in(key, 1))}

    def distribution_and_hidden(self, params: Any, frozen: Any, obs: Any) -> tuple[Categorical, Float[Array, "B D"]]:
        # one candidate of one token adds no cost to the pass over the prompt: its score is dead code
        hidden = self.score_prompts(params, frozen, obs, Candidates([[0]])).hidden
        logits: Any = self.action_head.apply({"params": params["action"]}, hidden.astype(jnp.float32))
        return masked_categorical(logits, obs), hidden
