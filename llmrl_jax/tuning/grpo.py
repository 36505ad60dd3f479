"""Group-relative policy optimisation (Shao et al., 2402.03300) and REINFORCE with leave-one-out (2402.14740).

Several continuations are sampled per prompt; a continuation's advantage is its reward relative to its group, so there
is no critic. Sampling, rewards on tokens, advantages and gradient steps are one pure function of the state. The
reference policy of the KL term is the base without its adapters, so that no second model is needed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from llmrl_jax.core.checks import Checked, In, NonNegativeFloat, NonNegativeInt, PositiveInt, PositiveOrInf
from llmrl_jax.core.learner import Learner
from llmrl_jax.kernels.permutations import permutations
from llmrl_jax.lm import Finish, Llama, SamplingConfig, StopStrings, generate
from llmrl_jax.lm.sampling import EXTREMES
from llmrl_jax.lm.tokens import check_tokens
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.gradient import accumulate, apply_gradients, in_parts
from llmrl_jax.rl.precision import (
    RATIO_BOUNDS,
    SAMPLING_METRICS,
    exact_rounding,
    matmul_precision,
    platform_of,
    ratio_error,
    sampling_metrics,
)
from llmrl_jax.rl.rollout import group_advantages, group_deviation
from llmrl_jax.tuning.loss import token_log_probs
from llmrl_jax.tuning.rewards import Reward, total_and_parts
from llmrl_jax.tuning.sft import check_trained, first_params


TEMPERATURES = "[{:g}, {:g}]".format(*EXTREMES["temperature"])
"""Interval of the temperatures that sampling takes, without 0."""


@struct.dataclass
class Prompts:
    """`N` prompts as tokens."""

    tokens: Any
    """int32 `[N, S]`, padded on the right."""
    lengths: Any
    """int32 `[N]`, at least 1."""
    sums: Any = None
    """int32 `[N]`, checksums of the other fields that a reward reads, by which a resumed run detects changes; None: no
    detection."""


def pad_prompts(prompts: Sequence[Sequence[int]], pad: int, rows: Sequence[Mapping[str, Any]] | None = None) -> Prompts:
    """Token lists as `Prompts`, padded on the right to the longest; `rows`, the data that a reward on text reads."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.full((len(prompts), lengths.max()), pad, np.int32)
    for padded, prompt in zip(tokens, prompts, strict=True):
        padded[: len(prompt)] = prompt
    if rows is None:
        return Prompts(tokens, lengths)
    texts = [json.dumps(row, sort_keys=True, default=str) for row in rows]
    return Prompts(tokens, lengths, np.array([zlib.crc32(text.encode()) for text in texts], np.uint32).view(np.int32))


@dataclass(frozen=True)
class GRPOConfig(Checked):
    """Hyper-parameters. The defaults are GRPO's, without the length bias that 2503.20783 describes.

    **Raises:** `ValueError` for an option out of range.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> config = lr.tuning.GRPOConfig(prompts=4, group=8, max_new_tokens=16, kl_coef=0.01)
    >>> config.prompts * config.group  # continuations of an update
    32
    ```
    """

    PREFIX: ClassVar[str] = "grpo."

    prompts: PositiveInt = 8
    """Prompts per update."""
    group: Annotated[int, In("[2, 2147483647]", "a reward is compared with those of its group")] = 8
    """Continuations of each prompt."""
    max_new_tokens: PositiveInt = 64
    """Maximum number of tokens of a continuation."""
    temperature: Annotated[float, In(TEMPERATURES, "for samples that differ")] = 1.0
    """Temperature of the policy, for sampling and for ratios, KL and entropy."""
    epochs: PositiveInt = 1
    """Passes over the continuations of an update."""
    minibatches: PositiveInt = 1
    """Gradient steps per epoch; divides prompts x group."""
    microbatches: PositiveInt = 1
    """Sequential parts in which a minibatch's gradient is computed, to save memory; divides the minibatch."""
    advantage: Literal["grpo", "centred", "leave_one_out"] = "centred"
    """`grpo`: reward minus the group's mean, divided by its standard deviation; `centred`: not divided (Dr. GRPO), so
    that hard and easy prompts are not weighted up; `leave_one_out`: minus the mean of the others (RLOO)."""
    aggregate: Literal["token", "sequence"] = "token"
    """`token`: the mean over all tokens of a minibatch (DAPO); `sequence`: the mean over continuations of the mean per
    continuation, as published for GRPO, in which long wrong answers weigh less per token."""
    clip_low: NonNegativeFloat = 0.2
    """Distance of a ratio below 1 beyond which the loss is clipped."""
    clip_high: NonNegativeFloat = 0.2
    """Distance of a ratio above 1 beyond which the loss is clipped; 0.28 in DAPO."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight of the KL to the base, per nat (2402.03300, eq. 4: the non-negative estimator)."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus, per nat and token."""
    learning_rate: NonNegativeFloat = 1e-5
    """Learning rate, constant."""
    max_grad_norm: PositiveOrInf = 1.0
    """Global norm to which gradients are clipped; inf: never."""
    head_chunk: NonNegativeInt = 0
    """Tokens of each continuation whose logits are in memory at once; divides max_new_tokens; 0: all."""
    stop_tokens: tuple[int, ...] | None = None
    """Tokens that end a continuation; None: the first end-of-sequence token of the model's configuration. Commands
    use all that the model's folder names (`lm.end_tokens`)."""

    def __post_init__(self):
        super().__post_init__()
        if self.head_chunk and self.max_new_tokens % self.head_chunk:
            raise ValueError(
                f"grpo.head_chunk is {self.head_chunk}; it must divide grpo.max_new_tokens, {self.max_new_tokens}"
            )
        rows, formula = self.prompts * self.group, f"grpo.prompts {self.prompts} x grpo.group {self.group}"
        for name in ("minibatches", "microbatches"):
            parts = getattr(self, name)
            if rows % parts:
                raise ValueError(f"{formula} = {rows} rows are not divided by grpo.{name} {parts}")
            rows, formula = rows // parts, f"{formula} / grpo.{name} {parts}"


def check_grpo(config: GRPOConfig, prompts: Prompts, mesh: Mesh | None, vocab_size: int) -> None:
    """Reject a configuration that is incompatible with the prompts, the mesh or the model's vocabulary, also before
    weights are loaded.

    **Raises:** `ValueError` for too few prompts, a stop token that cannot occur, or if the devices do not divide sizes
    (the arithmetic is shown).
    """
    count = prompts.tokens.shape[0]
    if count < config.prompts:
        raise ValueError(
            f"there are {count} prompts, fewer than the {config.prompts} of one update: lower grpo.prompts, or add data"
        )
    for token in config.stop_tokens or ():
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"grpo.stop_tokens has {token}, which cannot occur: the model's vocabulary is 0 to {vocab_size - 1}"
            )
    if mesh is not None:
        devices = Placement(mesh).row_devices
        rows = config.prompts * config.group // config.minibatches // config.microbatches
        prompt_formula = f"grpo.prompts {config.prompts}"
        row_formula = f"{prompt_formula} x grpo.group {config.group} / grpo.minibatches {config.minibatches}"
        row_formula += f" / grpo.microbatches {config.microbatches} = {rows} rows"
        for size, text in ((config.prompts, prompt_formula), (rows, row_formula)):
            if size % devices:
                raise ValueError(f"{text} are not divided by {devices} devices (data x fsdp)")


@struct.dataclass
class GRPOState:
    """Everything that is carried from update to update."""

    params: Any
    frozen: Any
    """The base under the adapters or, if every weight is trained with a KL term, a copy of the base; the prompts."""
    opt_state: Any
    key: jax.Array
    update: jax.Array


@struct.dataclass
class Samples:
    """Continuations as the loss reads them, `R = P x n` rows."""

    tokens: Int[Array, "R L"]
    """Prompt and continuation in one row, `L = S + T`."""
    prompt_lengths: Int[Array, " R"]
    lengths: Int[Array, " R"]
    """Lengths of the continuations."""
    continuation: Int[Array, "R T"]
    log_prob: Float[Array, "R T"]
    reference: Float[Array, "R T"]
    """Log-probabilities under the base; zeros if there is no KL term."""
    advantage: Float[Array, " R"]


class Keys(NamedTuple):
    """The keys of an update."""

    prompts: jax.Array
    """For the order of the prompts; the same for all updates of an epoch."""
    samples: jax.Array
    """For the continuations of each prompt, `[P]`."""
    minibatches: jax.Array
    """For the order of the continuations in minibatches."""


def policy_log_probs(
    model: Llama, variables: Any, samples: Samples, temperature: Any, head_chunk: int = 0
) -> tuple[Float[Array, "R T"], Float[Array, "R T"]]:
    """Log-probabilities of the continuations' tokens under the policy, and its entropy there."""
    steps = samples.continuation.shape[1]
    positions = jnp.minimum(samples.prompt_lengths[:, None] - 1 + jnp.arange(steps), samples.tokens.shape[1] - 1)
    total = samples.prompt_lengths + samples.lengths
    output: Any = model.apply(variables, samples.tokens, lengths=total, at=positions, logits=False)
    return token_log_probs(model, variables, output.hidden, samples.continuation, head_chunk, temperature)


def grpo_loss(
    model: Llama, variables: Any, samples: Samples, config: GRPOConfig, rows: Any, tokens: Any
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped objective with its KL term, in nats.

    **Arguments:** `rows` and `tokens`, the numbers of continuations and of their tokens in the whole minibatch, of
    which `samples` may be a part: the losses of the parts add up.
    """
    log_prob, entropy = policy_log_probs(model, variables, samples, config.temperature, config.head_chunk)
    real = jnp.arange(log_prob.shape[1]) < samples.lengths[:, None]
    log_ratio = jnp.where(real, log_prob - samples.log_prob, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - config.clip_low, 1 + config.clip_high)
    advantage = samples.advantage[:, None]
    gain = jnp.minimum(ratio * advantage, clipped * advantage)
    weight = jnp.where(real, 1 / tokens, 0.0)
    if config.aggregate == "sequence":
        weight = jnp.where(real, 1 / (rows * samples.lengths[:, None]), 0.0)
    loss = -jnp.sum(weight * (gain + config.entropy_coef * entropy))
    metrics = {
        "entropy": jnp.sum(jnp.where(real, entropy, 0.0)) / tokens,
        "approx_kl": jnp.sum(jnp.where(real, ratio - 1 - log_ratio, 0.0)) / tokens,
        "clip_fraction": jnp.sum(jnp.where(real, ratio != clipped, False)) / tokens,
        "ratio_error": ratio_error(log_ratio),
        **sampling_metrics(log_ratio, jnp.where(real, 1 / tokens, 0.0)),
    }
    if config.kl_coef:
        towards = jnp.where(real, samples.reference - log_prob, 0.0)
        kl = jnp.exp(towards) - towards - 1
        loss = loss + config.kl_coef * jnp.sum(weight * kl)
        metrics["kl_to_base"] = jnp.sum(kl) / tokens
    return loss, metrics


def make_grpo(
    config: GRPOConfig,
    model: Llama,
    variables: Any,
    prompts: Prompts,
    reward: Reward,
    *,
    stops: StopStrings | None = None,
    mesh: Mesh | None = None,
    take: bool = False,
) -> Learner:
    """Build GRPO as a `Learner`.

    **Arguments:** `config`; `model`, `variables` and `take` (has no effect with a KL to the base), see `make_sft`;
    `prompts`, at least `config.prompts` of them; `reward`, inside jit, or `text_reward` of a Python function; `stops`,
    strings that end a continuation; `mesh`, over whose axes data and fsdp the rows are split.
    **Returns:** the learner. Its metrics are `reward` (mean), `reward/<part>` if it has parts, `reward_std` (within
    groups), `idle_groups` (the fraction whose rewards are all equal, which give no gradient), `length`, `unfinished`
    (the fraction cut at `max_new_tokens`), `loss`, `entropy`, `approx_kl`, `clip_fraction`, `grad_norm`, `kl_to_base`
    with a KL term, `first_ratio_error` (in float32 bounded by 1e-4, divided by a temperature below 1: sampling computes
    token by token, the loss whole rows) and `nonfinite` (bounded by 0). Where matrix products have fewer bits
    (`llmrl_jax.rl.precision`), the rounding of these two differs: the old log-probabilities are computed on whole rows
    too, `first_ratio_error` has the bound of that precision, and `sampling_gap` is the largest difference to the
    log-probabilities of sampling, in nats.
    `sampling_kl` and `sampling_near_one` (`llmrl_jax.rl.precision.sampling_metrics`) compare a token's probability at
    sampling with that before the first gradient step: over the first minibatch, or over all tokens where the old
    log-probabilities are computed on whole rows.
    **Raises:** `ValueError` if sizes do not divide, an option is out of range, a token is not in the model's
    vocabulary, or the weights to train are not float32.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> tokenizer, (model, variables) = lr.load_tokenizer("tiny"), lr.load_model("tiny", lora=lr.LoRAConfig(rank=4))
    >>> questions = ["what colour is blood ?", "what colour is the sky ?"]
    >>> prompts = lr.tuning.pad_prompts([tokenizer.encode(text) for text in questions], tokenizer.pad_id)
    >>> red = tokenizer.encode("red")[0]
    >>> reward = lambda result, rows: jnp.mean(result.tokens == red, axis=-1)  # float32 [prompts, group]
    >>> config = lr.tuning.GRPOConfig(prompts=2, group=2, max_new_tokens=4)
    >>> learner = lr.tuning.make_grpo(config, model, variables, prompts, reward)
    >>> state = learner.init(jax.random.key(0))
    >>> "first_ratio_error" in jax.eval_shape(learner.update, state)[1]
    True
    ```
    """
    check_grpo(config, prompts, mesh, model.config.vocab_size)
    check_tokens(prompts.tokens, prompts.lengths, model.config.vocab_size)
    check_trained(model, variables)
    rows = config.prompts * config.group
    precision = matmul_precision(model.precision, platform_of(mesh))
    exact = precision == "float32"  # in which sampling token by token and passes over whole rows agree
    grpo = GRPO(config, model, variables, prompts, reward, stops, Placement(mesh), take, exact)
    # rounding of logits is divided by the temperature too
    ratio_bound = 1e-4 / min(1.0, config.temperature) if exact else RATIO_BOUNDS[precision]
    bounds = {"nonfinite": 0.0, "first_ratio_error": ratio_bound}
    return Learner(
        grpo.init, grpo.update, rows, bounds, unit="answers", compiler_options=exact_rounding(model.precision)
    )


class GRPO:
    """The parts of GRPO's update; `make_grpo` documents the arguments."""

    def __init__(
        self,
        config: GRPOConfig,
        model: Llama,
        variables: Any,
        prompts: Prompts,
        reward: Reward,
        stops: StopStrings | None,
        placement: Placement,
        take: bool,
        exact: bool,
    ):
        self.config, self.model, self.variables, self.prompts = config, model, variables, prompts
        self.reward, self.stops, self.placement, self.take, self.exact = reward, stops, placement, take, exact
        self.count = prompts.tokens.shape[0]
        self.per_epoch = self.count // config.prompts
        self.rows = config.prompts * config.group
        self.minibatch = self.rows // config.minibatches
        self.microbatch = self.minibatch // config.microbatches
        self.trained = "params" if model.lora is None else "lora"
        self.sampling = SamplingConfig(
            config.max_new_tokens, config.temperature, samples=config.group, stop_tokens=config.stop_tokens
        )
        # the inner chain keeps the names of the moments in the checkpoints of earlier versions
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(config.max_grad_norm), optax.chain(optax.scale_by_adam())
        )

    def init(self, key: jax.Array) -> GRPOState:
        adapter_key, run_key = jax.random.split(key)
        take = self.take and not self.config.kl_coef
        params = first_params(self.model, self.variables, adapter_key, self.placement.mesh, take)
        keeps_base = self.trained == "lora" or self.config.kl_coef
        base = {"params": self.variables["params"]} if keeps_base else {}
        frozen = {"base": base, "prompts": jax.tree.map(jnp.asarray, self.prompts)}
        state = GRPOState(params, frozen, self.optimizer.init(params), run_key, jnp.int32(0))
        return self.placement.device_put(state)

    def update(self, state: GRPOState) -> tuple[GRPOState, dict[str, jax.Array]]:
        """Sample, reward, gradient steps."""
        samples, metrics = self._play(state)
        params, opt_state, loss_metrics = self._learn(state, samples)
        state = state.replace(params=params, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in (metrics | loss_metrics).items()}

    def keys(self, key: jax.Array, update: jax.Array) -> Keys:
        """The keys of an update, from the run's. Each has one use: as `split(key)[i]` equals `fold_in(key, i)`, every
        use has a branch of its own, and the run's key is only split."""
        epoch_key, sample_key, learn_key = jax.random.split(key, 3)
        sample_key = jax.random.fold_in(sample_key, update)
        return Keys(
            prompts=jax.random.fold_in(epoch_key, update // self.per_epoch),
            samples=jax.vmap(lambda i: jax.random.fold_in(sample_key, i))(jnp.arange(self.config.prompts)),
            minibatches=jax.random.fold_in(learn_key, update),
        )

    # --- sample -------------------------------------------------------------------------------------------------------

    def _play(self, state: GRPOState) -> tuple[Samples, dict[str, jax.Array]]:
        """Continuations of this update's prompts with their advantages, and their metrics."""
        config, keys = self.config, self.keys(state.key, state.update)
        chosen = self._chosen(keys.prompts, state.update)
        batch = self.placement.shard_batch(jax.tree.map(lambda x: x[chosen], state.frozen["prompts"]))
        variables = self._policy(state.params, state.frozen)
        generation = generate(
            self.model, variables, batch.tokens, batch.lengths, keys.samples, self.sampling, stops=self.stops
        )
        rewards, terms = total_and_parts(self.reward(generation, chosen))
        samples = self._samples(batch, generation, rewards)
        gap = {}
        if not self.exact:
            log_probs = _in_parts(self.model, variables, samples, config, self.microbatch)
            real = jnp.arange(config.max_new_tokens) < samples.lengths[:, None]
            log_ratio = jnp.where(real, log_probs - samples.log_prob, 0.0)
            gap = {"sampling_gap": jnp.max(jnp.abs(log_ratio))}
            gap |= sampling_metrics(log_ratio, jnp.where(real, 1 / jnp.sum(samples.lengths), 0.0))
            samples = samples.replace(log_prob=log_probs)
        if config.kl_coef:
            base = state.frozen["base"]
            samples = samples.replace(reference=_in_parts(self.model, base, samples, config, self.microbatch))
        spread = group_deviation(rewards)
        return samples, {
            **gap,
            "reward": jnp.mean(rewards),
            **{name: jnp.mean(term) for name, term in terms.items()},
            "reward_std": jnp.mean(spread),
            "idle_groups": jnp.mean(spread == 0),
            "length": jnp.mean(samples.lengths),
            "unfinished": jnp.mean(generation.finish == Finish.LENGTH),
        }

    def _chosen(self, key: jax.Array, update: jax.Array) -> Int[Array, " P"]:
        """The prompts of an update: every epoch takes all of them, in a new order, drawn with the epoch's key."""
        index = update % self.per_epoch
        order = permutations(key, 1, self.count)[0]
        return jax.lax.dynamic_slice(order, (index * self.config.prompts,), (self.config.prompts,))

    def _samples(self, batch: Prompts, generation: Any, rewards: Float[Array, "P n"]) -> Samples:
        """Prompts and their continuations as rows of tokens; `reference` is filled with zeros."""
        config, rows = self.config, self.rows

        def flat(x):
            return self.placement.shard_batch(x.reshape(rows, *x.shape[2:]))

        repeated = jax.tree.map(lambda x: jnp.repeat(x, config.group, axis=0), batch)
        steps = jnp.arange(config.max_new_tokens)
        tokens = jnp.pad(repeated.tokens, ((0, 0), (0, config.max_new_tokens)))
        positions = repeated.lengths[:, None] + steps
        lengths = flat(generation.lengths)
        continuation = jnp.where(steps < lengths[:, None], flat(generation.tokens), 0)
        return Samples(
            tokens=tokens.at[jnp.arange(rows)[:, None], positions].set(continuation),
            prompt_lengths=repeated.lengths,
            lengths=lengths,
            continuation=continuation,
            log_prob=flat(generation.sampled_log_probs),
            reference=jnp.zeros(continuation.shape, jnp.float32),
            advantage=flat(group_advantages(rewards, config.advantage)),
        )

    # --- learn --------------------------------------------------------------------------------------------------------

    def _policy(self, params: Any, frozen: Any) -> Any:
        return {**frozen["base"], self.trained: params}

    def _learn(self, state: GRPOState, samples: Samples) -> tuple[Any, Any, dict[str, jax.Array]]:
        """`epochs` x `minibatches` gradient steps: the parameters, the optimiser's state, the metrics."""
        key = self.keys(state.key, state.update).minibatches
        order = permutations(key, self.config.epochs, self.rows).reshape(-1, self.minibatch)

        def step(carry, chosen):
            params, opt_state = carry
            batch = jax.tree.map(lambda x: x[chosen], samples)
            loss, metrics, grads = self._gradient(params, state.frozen, batch)
            params, opt_state, norm = apply_gradients(
                self.optimizer, params, grads, opt_state, self.config.learning_rate
            )
            return (params, opt_state), metrics | {"loss": loss, "grad_norm": norm}

        (params, opt_state), stacked = tracing.scan(step, (state.params, state.opt_state), order)
        first = {"first_ratio_error": stacked.pop("ratio_error")[0]}
        agreement = {name: stacked.pop(name)[0] for name in SAMPLING_METRICS}
        if self.exact:  # else the ratios are to whole rows, and `_play` compares with sampling
            first |= agreement
        finite = jnp.all(jnp.isfinite(stacked["loss"]) & jnp.isfinite(stacked["grad_norm"]))
        metrics = {name: jnp.mean(x) for name, x in stacked.items()}
        return params, opt_state, metrics | first | {"nonfinite": ~finite}

    def _gradient(self, params: Any, frozen: Any, batch: Samples) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        """The loss, its metrics and the gradient of a minibatch, in microbatches."""
        tokens = jnp.sum(batch.lengths)

        def loss(params, rows):
            variables = self._policy(params, frozen)
            return grpo_loss(
                self.model, variables, self.placement.shard_batch(rows), self.config, self.minibatch, tokens
            )

        def part(rows):
            (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params, rows)
            return (value, grads), metrics

        zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        (value, grads), metrics = accumulate(part, zero, in_parts(batch, self.config.microbatches))
        error = jnp.max(metrics.pop("ratio_error"))
        return value, {name: jnp.sum(x) for name, x in metrics.items()} | {"ratio_error": error}, grads


def make_reward_evaluation(
    config: GRPOConfig, model: Llama, prompts: Prompts, reward: Reward, *, stops: StopStrings | None = None
) -> Callable[[GRPOState, jax.Array], dict[str, float]]:
    """Mean reward on held-out prompts: `evaluate(state, key) -> {reward, length, unfinished}`, and the parts of the
    reward if it has any.

    **Arguments:** as for `make_grpo`; one continuation is sampled per prompt, `config.prompts` prompts at a time.
    """
    check_tokens(prompts.tokens, prompts.lengths, model.config.vocab_size)
    trained = "params" if model.lora is None else "lora"
    count, batch = prompts.tokens.shape[0], min(config.prompts, prompts.tokens.shape[0])
    # the last batch is filled up with repeated prompts, which are not counted
    indices = np.resize(np.arange(count), (-(-count // batch), batch)).astype(np.int32)
    counts = np.arange(indices.size).reshape(indices.shape) < count
    sampling = SamplingConfig(config.max_new_tokens, config.temperature, stop_tokens=config.stop_tokens)

    @jax.jit
    def answer(params: Any, base: Any, key: jax.Array) -> dict[str, jax.Array]:
        def sample_part(part):
            chosen, counted = part
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(chosen)
            selected = jax.tree.map(lambda x: jnp.asarray(x)[chosen], prompts)
            generation = generate(
                model, {**base, trained: params}, selected.tokens, selected.lengths, keys, sampling, stops=stops
            )
            rewards, terms = total_and_parts(reward(generation, chosen))
            values = {
                "reward": rewards[:, 0],
                **{name: term[:, 0] for name, term in terms.items()},
                "length": generation.lengths[:, 0],
                "unfinished": generation.finish[:, 0] == Finish.LENGTH,
            }
            return {name: jnp.sum(jnp.where(counted, x, 0)) for name, x in values.items()}

        return jax.tree.map(lambda x: jnp.sum(x) / count, jax.lax.map(sample_part, (indices, counts)))

    def evaluate(state: GRPOState, key: jax.Array) -> dict[str, float]:
        means = answer(state.params, state.frozen["base"], key)
        return {name: float(value) for name, value in means.items()}

    return evaluate


def _in_parts(model: Llama, variables: Any, samples: Samples, config: GRPOConfig, part: int) -> Float[Array, "R T"]:
    """Log-probabilities under the policy or the base, computed for a part of the rows at a time."""
    parts = jax.tree.map(lambda x: x.reshape(-1, part, *x.shape[1:]), samples)
    log_probs = jax.lax.map(
        lambda s: policy_log_probs(model, variables, s, config.temperature, config.head_chunk)[0], parts
    )
    return log_probs.reshape(samples.continuation.shape)
