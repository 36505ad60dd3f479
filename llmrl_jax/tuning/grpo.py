"""Group-relative policy optimisation (Shao et al., 2402.03300) and REINFORCE with leave-one-out (2402.14740).

Prompts are sampled from in groups; a continuation's advantage is its reward against those of its group, so there is no
critic. Sampling, rewards on tokens, advantages and gradient steps are one pure function of the state. The reference
policy of the KL term is the base without its adapters: no second model is kept, nor is one run beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from llmrl_jax.lm import Finish, Llama, SamplingConfig, StopStrings, generate
from llmrl_jax.lm.quantize import any_quantized
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.shuffle import permutations
from llmrl_jax.tuning.loss import token_log_probs
from llmrl_jax.tuning.prompts import Prompts
from llmrl_jax.tuning.rewards import Reward, total_and_parts
from llmrl_jax.tuning.sft import ROWS, first_params, placed


@dataclass(frozen=True)
class GRPOConfig:
    """Hyper-parameters. The defaults are GRPO's, but for the length bias that 2503.20783 describes."""

    prompts: int = 8
    """Prompts in an update."""
    group: int = 8
    """Continuations of each prompt; at least 2."""
    max_new_tokens: int = 64
    """Tokens in a continuation, at most."""
    temperature: float = 1.0
    """Of the policy: what is sampled from, and what ratios, KL and entropy are of. Above 0."""
    epochs: int = 1
    """Passes over the continuations of an update."""
    minibatches: int = 1
    """Gradient steps per epoch; divides prompts x group."""
    microbatches: int = 1
    """Parts in which a minibatch's gradient is computed one after the other, to save memory; divides the minibatch."""
    advantage: Literal["grpo", "centred", "leave_one_out"] = "centred"
    """`grpo`: reward minus the group's mean, over its deviation; `centred`: not divided (Dr. GRPO), so that hard and
    easy prompts are not weighed up; `leave_one_out`: minus the mean of the others (RLOO)."""
    aggregate: Literal["token", "sequence"] = "token"
    """`token`: the mean over all tokens of a minibatch (DAPO); `sequence`: the mean over continuations of each one's
    own mean, as GRPO published it, in which long wrong answers weigh less per token."""
    clip_low: float = 0.2
    """How far below 1 a ratio may fall before the loss is clipped."""
    clip_high: float = 0.2
    """How far above 1 a ratio may rise; DAPO takes 0.28."""
    kl_coef: float = 0.0
    """Weight of the KL to the base, per nat (2402.03300, eq. 4: the estimator that is never negative)."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus, per nat and token."""
    learning_rate: float = 1e-5
    """Step size of Adam, constant."""
    max_grad_norm: float = 1.0
    """Global norm to which gradients are clipped; inf: never."""
    head_chunk: int = 0
    """Tokens of each continuation whose logits exist at once, to save memory; divides max_new_tokens; 0: all."""
    stop_tokens: tuple[int, ...] | None = None
    """Tokens that end a continuation; None: the first end-of-sequence token of the model's configuration. Commands
    take all that the model's folder names (`lm.end_tokens`)."""


@struct.dataclass
class GRPOState:
    """Everything that is carried from update to update."""

    params: Any
    frozen: Any
    """The base under the adapters or, where every weight is trained and KL is wanted, a copy of it; the prompts."""
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
    """Of the continuations."""
    continuation: Int[Array, "R T"]
    log_prob: Float[Array, "R T"]
    reference: Float[Array, "R T"]
    """Log-probabilities under the base; zeros where there is no KL term."""
    advantage: Float[Array, " R"]


def advantages(rewards: Float[Array, "P n"], kind: str) -> Float[Array, "P n"]:
    """Each reward against those of its group, see `GRPOConfig.advantage`."""
    centred = rewards - jnp.mean(rewards, axis=1, keepdims=True)
    if kind == "leave_one_out":
        return centred * rewards.shape[1] / (rewards.shape[1] - 1)
    if kind == "grpo":
        return centred / (jnp.std(rewards, axis=1, keepdims=True) + 1e-4)
    return centred


def policy_log_probs(
    model: Llama, variables: Any, samples: Samples, temperature: Any, head_chunk: int = 0
) -> tuple[Float[Array, "R T"], Float[Array, "R T"]]:
    """Log-probabilities of the continuations' tokens under the policy, and its entropy there."""
    steps = samples.continuation.shape[1]
    at = jnp.minimum(samples.prompt_lengths[:, None] - 1 + jnp.arange(steps), samples.tokens.shape[1] - 1)
    total = samples.prompt_lengths + samples.lengths
    out: Any = model.apply(variables, samples.tokens, lengths=total, at=at, logits=False)
    return token_log_probs(model, variables, out.hidden, samples.continuation, head_chunk, temperature)


def grpo_loss(
    model: Llama, variables: Any, samples: Samples, config: GRPOConfig, rows: Any, tokens: Any
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped objective with its KL term, in nats.

    **Arguments:** `rows` and `tokens`, how many continuations and how many of their tokens the whole minibatch has, of
    which `samples` may be a part: parts add up.
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
        "ratio_error": jnp.max(jnp.abs(ratio - 1)),
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

    **Arguments:** `config`; `model`, `variables` and `take` (with a KL to the base nothing is taken), see `make_sft`;
    `prompts`, at least `config.prompts` of them; `reward`, inside jit, or `text_reward` of a Python function; `stops`,
    strings that end a continuation; `mesh`, over whose axes data and fsdp the rows are split.
    **Returns:** the learner. Its metrics are `reward` (mean), `reward/<part>` if it has parts, `reward_std` (within
    groups), `idle_groups` (the fraction whose rewards are all alike, which teach nothing), `length`, `unfinished` (the
    fraction cut at `max_new_tokens`), `loss`, `entropy`, `approx_kl`, `clip_fraction`, `grad_norm`, `kl_to_base` with
    a KL term, `first_ratio_error` (in float32 bounded by 1e-4: sampling steps token by token, the loss reads rows
    whole) and `nonfinite` (bounded by 0). A model that computes in another type rounds those two ways apart: its old
    log-probabilities are read whole as well, and `sampling_gap` is the largest difference to those it sampled by, nats.
    **Raises:** `ValueError` where sizes do not divide or an option is out of range.
    """
    _check(config, prompts, mesh)
    if model.lora is None and any_quantized(variables["params"]):
        raise ValueError("the base is quantised, and so frozen: give the model a LoRAConfig")
    count = prompts.tokens.shape[0]
    per_epoch = count // config.prompts
    rows = config.prompts * config.group
    size, part = rows // config.minibatches, rows // config.minibatches // config.microbatches
    trained = "params" if model.lora is None else "lora"
    exact = model.dtype == jnp.float32  # in which sampling token by token and reading rows whole agree
    sampling = SamplingConfig(
        config.max_new_tokens, config.temperature, samples=config.group, stop_tokens=config.stop_tokens
    )
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(config.learning_rate))

    def split(tree: Any) -> Any:
        if mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec(ROWS)))

    def init(key: jax.Array) -> GRPOState:
        adapter_key, run_key = jax.random.split(key)
        params = first_params(model, variables, adapter_key, mesh, take and not config.kl_coef)
        base = {"params": variables["params"]} if trained == "lora" or config.kl_coef else {}
        held = jax.tree.map(jnp.asarray, prompts)
        frozen = {"base": base, "prompts": held}
        return placed(GRPOState(params, frozen, optimizer.init(params), run_key, jnp.int32(0)), mesh)

    def policy(params: Any, frozen: Any) -> Any:
        return {**frozen["base"], trained: params}

    def play(state: GRPOState) -> tuple[Samples, dict[str, jax.Array]]:
        order_key, sample_key = jax.random.split(state.key)
        epoch, place = state.update // per_epoch, state.update % per_epoch
        order = permutations(jax.random.fold_in(order_key, epoch), 1, count)[0]
        chosen = jax.lax.dynamic_slice(order, (place * config.prompts,), (config.prompts,))
        batch = split(jax.tree.map(lambda x: x[chosen], state.frozen["prompts"]))
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(sample_key, state.update), i))(
            jnp.arange(config.prompts)
        )
        variables = policy(state.params, state.frozen)
        found = generate(model, variables, batch.tokens, batch.lengths, keys, sampling, stops=stops)
        rewards, terms = total_and_parts(reward(found, chosen))

        def flat(x):
            return split(x.reshape(rows, *x.shape[2:]))

        repeated = jax.tree.map(lambda x: jnp.repeat(x, config.group, axis=0), batch)
        steps = jnp.arange(config.max_new_tokens)
        tokens = jnp.pad(repeated.tokens, ((0, 0), (0, config.max_new_tokens)))
        where = repeated.lengths[:, None] + steps
        lengths = flat(found.lengths)
        kept = jnp.where(steps < lengths[:, None], flat(found.tokens), 0)
        samples = Samples(
            tokens=tokens.at[jnp.arange(rows)[:, None], where].set(kept),
            prompt_lengths=repeated.lengths,
            lengths=lengths,
            continuation=kept,
            log_prob=flat(found.sampled_log_probs),
            reference=jnp.zeros(kept.shape, jnp.float32),
            advantage=flat(advantages(rewards, config.advantage)),
        )
        gap = {}
        if not exact:
            whole = _in_parts(model, variables, samples, config, part)
            real = steps < lengths[:, None]
            gap = {"sampling_gap": jnp.max(jnp.where(real, jnp.abs(whole - samples.log_prob), 0.0))}
            samples = samples.replace(log_prob=whole)
        if config.kl_coef:
            samples = samples.replace(reference=_in_parts(model, state.frozen["base"], samples, config, part))
        spread = jnp.std(rewards, axis=1)
        return samples, {
            **gap,
            "reward": jnp.mean(rewards),
            **{name: jnp.mean(term) for name, term in terms.items()},
            "reward_std": jnp.mean(spread),
            "idle_groups": jnp.mean(spread < 1e-6),
            "length": jnp.mean(lengths),
            "unfinished": jnp.mean(found.finish == Finish.LENGTH),
        }

    def gradient(params: Any, frozen: Any, batch: Samples) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        tokens = jnp.sum(batch.lengths)

        def loss(params, samples):
            return grpo_loss(model, policy(params, frozen), split(samples), config, size, tokens)

        # part j takes rows j, j + k, ...: each part then lies on all devices
        parts = jax.tree.map(lambda x: x.reshape(-1, config.microbatches, *x.shape[1:]).swapaxes(0, 1), batch)

        def add(total, samples):
            (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params, samples)
            return jax.tree.map(jnp.add, total, (value, grads)), metrics

        zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        (value, grads), metrics = jax.lax.scan(add, zero, parts)
        error = jnp.max(metrics.pop("ratio_error"))
        return value, {name: jnp.sum(x) for name, x in metrics.items()} | {"ratio_error": error}, grads

    def update(state: GRPOState) -> tuple[GRPOState, dict[str, jax.Array]]:
        samples, metrics = play(state)
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.update), 1)
        order = permutations(key, config.epochs, rows).reshape(-1, size)

        def step(carry, chosen):
            params, opt_state = carry
            batch = jax.tree.map(lambda x: x[chosen], samples)
            loss, found, grads = gradient(params, state.frozen, batch)
            steps, opt_state = optimizer.update(grads, opt_state, params)
            found |= {"loss": loss, "grad_norm": optax.tree.norm(grads)}
            return (optax.apply_updates(params, steps), opt_state), found

        (params, opt_state), found = jax.lax.scan(step, (state.params, state.opt_state), order)
        first = found.pop("ratio_error")[0]
        sound = jnp.all(jnp.isfinite(found["loss"]) & jnp.isfinite(found["grad_norm"]))
        metrics |= {name: jnp.mean(x) for name, x in found.items()}
        metrics |= {"first_ratio_error": first, "nonfinite": ~sound}
        state = state.replace(params=params, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    bounds = {"nonfinite": 0.0} | ({"first_ratio_error": 1e-4} if exact else {})
    return Learner(init, update, rows, bounds, unit="answers")


def make_reward_evaluation(
    config: GRPOConfig, model: Llama, prompts: Prompts, reward: Reward, *, stops: StopStrings | None = None
) -> Callable[[GRPOState, jax.Array], dict[str, float]]:
    """The mean reward on held-out prompts: `evaluate(state, key) -> {reward, length, unfinished}`, and the parts of the
    reward if it has any.

    **Arguments:** as `make_grpo`'s; each prompt is answered once, as the policy samples, `config.prompts` at a time.
    """
    trained = "params" if model.lora is None else "lora"
    count, batch = prompts.tokens.shape[0], min(config.prompts, prompts.tokens.shape[0])
    # the last batch is filled up with prompts that were already asked, which count for nothing
    places = np.resize(np.arange(count), (-(-count // batch), batch)).astype(np.int32)
    counts = np.arange(places.size).reshape(places.shape) < count
    sampling = SamplingConfig(config.max_new_tokens, config.temperature, stop_tokens=config.stop_tokens)

    @jax.jit
    def answer(params: Any, base: Any, key: jax.Array) -> dict[str, jax.Array]:
        def one(part):
            chosen, counted = part
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(chosen)
            asked = jax.tree.map(lambda x: jnp.asarray(x)[chosen], prompts)
            found = generate(model, {**base, trained: params}, asked.tokens, asked.lengths, keys, sampling, stops=stops)
            rewards, terms = total_and_parts(reward(found, chosen))
            values = {
                "reward": rewards[:, 0],
                **{name: term[:, 0] for name, term in terms.items()},
                "length": found.lengths[:, 0],
                "unfinished": found.finish[:, 0] == Finish.LENGTH,
            }
            return {name: jnp.sum(jnp.where(counted, x, 0)) for name, x in values.items()}

        return jax.tree.map(lambda x: jnp.sum(x) / count, jax.lax.map(one, (places, counts)))

    def evaluate(state: GRPOState, key: jax.Array) -> dict[str, float]:
        found = answer(state.params, state.frozen["base"], key)
        return {name: float(value) for name, value in found.items()}

    return evaluate


def _in_parts(model: Llama, variables: Any, samples: Samples, config: GRPOConfig, part: int) -> Float[Array, "R T"]:
    """Log-probabilities under the policy or the base, a part of the rows at a time."""
    parts = jax.tree.map(lambda x: x.reshape(-1, part, *x.shape[1:]), samples)
    found = jax.lax.map(
        lambda s: policy_log_probs(model, variables, s, config.temperature, config.head_chunk)[0], parts
    )
    return found.reshape(samples.continuation.shape)


def _check(config: GRPOConfig, prompts: Prompts, mesh: Mesh | None) -> None:
    for name in ("prompts", "max_new_tokens", "epochs", "minibatches", "microbatches"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; at least 1 is needed")
    if config.group < 2:
        raise ValueError(f"group is {config.group}; a reward is told from those of its group: at least 2 are needed")
    if not config.temperature > 0:
        raise ValueError(f"temperature is {config.temperature}; above 0 is needed, for samples that differ")
    for name in ("clip_low", "clip_high", "kl_coef", "entropy_coef", "learning_rate", "max_grad_norm"):
        if not getattr(config, name) >= 0:
            raise ValueError(f"{name} is {getattr(config, name)}; a non-negative number is needed")
    if config.head_chunk < 0 or config.head_chunk and config.max_new_tokens % config.head_chunk:
        raise ValueError(f"head_chunk is {config.head_chunk}; it must divide max_new_tokens, {config.max_new_tokens}")
    count = prompts.tokens.shape[0]
    if count < config.prompts:
        raise ValueError(f"there are {count} prompts, fewer than the {config.prompts} of one update (prompts)")
    rows, what = config.prompts * config.group, f"prompts {config.prompts} x group {config.group}"
    for name in ("minibatches", "microbatches"):
        if rows % getattr(config, name):
            raise ValueError(f"{what} = {rows} rows are not divided by {name} {getattr(config, name)}")
        rows //= getattr(config, name)
        what += f" / {name} {getattr(config, name)}"
    if mesh is not None:
        ways = math.prod(mesh.shape[axis] for axis in ROWS)
        for size, text in ((config.prompts, f"prompts {config.prompts}"), (rows, f"{what} = {rows} rows")):
            if size % ways:
                raise ValueError(f"{text} are not divided by {ways} devices (data x fsdp)")
