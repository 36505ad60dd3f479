"""Supervised fine-tuning: the next token of marked text, by LoRA or in full, as a `Learner` like any other."""

from __future__ import annotations

import dataclasses
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

from llmrl_jax.lm import Llama
from llmrl_jax.lm.quantize import any_quantized
from llmrl_jax.parallel import shardings
from llmrl_jax.parallel.hosts import put
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.shuffle import permutations
from llmrl_jax.tuning.loss import token_log_probs
from llmrl_jax.tuning.packing import Packed


ROWS = ("data", "fsdp")
"""The mesh axes over which the rows of a batch are split."""


@dataclass(frozen=True)
class SFTConfig:
    """Hyper-parameters of supervised fine-tuning."""

    batch_size: int = 16
    """Rows in a gradient step."""
    microbatches: int = 1
    """Parts in which a step's gradient is computed one after the other, to save memory; divides batch_size."""
    learning_rate: float = 2e-4
    """Peak step size of AdamW."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the step size falls after the warm-up, to `final_fraction` of its peak at the last update."""
    warmup: float = 0.03
    """Fraction of the updates over which the step size rises from zero."""
    final_fraction: float = 0.0
    """What is left of the step size at the end, as a fraction of the peak."""
    weight_decay: float = 0.0
    """AdamW's decay of matrices; norms and biases are left alone."""
    adam_b1: float = 0.9
    """Adam's decay of the mean."""
    adam_b2: float = 0.999
    """Adam's decay of the square."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    max_grad_norm: float = 1.0
    """Global norm to which gradients are clipped; inf: never."""
    head_chunk: int = 0
    """Positions whose logits exist at once (less memory for large vocabularies); divides the row length. 0: all."""


@struct.dataclass
class SFTState:
    """Everything that fine-tuning carries from update to update."""

    params: Any
    """What is trained: the adapters, or every weight."""
    frozen: Any
    """The base under the adapters (`{}` when every weight is trained), and the data."""
    opt_state: Any
    key: jax.Array
    """Of the whole run: epoch `e` is shuffled by `fold_in(key, e)`."""
    update: jax.Array
    """int32 `[]`, updates done."""


def learning_rates(config: SFTConfig, updates: int) -> optax.Schedule:
    """The step size of each update."""
    rise = math.ceil(config.warmup * updates)
    peak, last = config.learning_rate, config.learning_rate * config.final_fraction
    falls: dict[str, Any] = {
        "constant": lambda n: optax.constant_schedule(peak),
        "linear": lambda n: optax.linear_schedule(peak, last, n),
        "cosine": lambda n: optax.cosine_decay_schedule(peak, n, config.final_fraction),
    }
    fall = falls[config.schedule](max(1, updates - rise))
    # the first update of a warm-up already moves
    return optax.join_schedules([lambda n: peak * (n + 1) / (rise + 1), fall], [rise]) if rise else fall


def first_params(model: Llama, variables: Any, key: jax.Array, mesh: Mesh | None, take: bool = False) -> Any:
    """What is trained, to begin with: the adapters of `variables`, fresh ones, or every weight. A copy, since updates
    are made in place, or themselves where they may be taken (`make_sft`)."""
    if model.lora is None and take:
        if "params" not in variables:
            raise RuntimeError("the weights were taken by an earlier start of this learner: load them anew")
        return variables.pop("params")
    trained = "params" if model.lora is None else "lora"
    params = variables.get(trained)
    if params is None:
        out = None if mesh is None else shardings(model.abstract()["lora"], model.logical_axes()["lora"], mesh)
        token = jnp.zeros((1, 1), jnp.int32)
        return jax.jit(lambda k: model.init(k, token)["lora"], out_shardings=out)(key)
    return jax.tree.map(jnp.copy, params)


def placed(state: Any, mesh: Mesh | None) -> Any:
    """The state with what lies on one device copied to all of a mesh; what is on the mesh stays as it is."""
    if mesh is None:
        return state
    whole = NamedSharding(mesh, PartitionSpec())

    def place(x):
        there = isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh
        return x if there else put(x, whole)

    return jax.tree.map(place, state)


def _decayed(params: Any) -> Any:
    """Which leaves weight decay applies to: matrices, told by their names."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: str(getattr(path[-1], "key", "")) in ("kernel", "embedding", "a", "b"), params
    )


def targets(batch: Packed) -> tuple[jax.Array, jax.Array]:
    """What each position is to predict, int32 `[N, S]`, and whether that counts, bool `[N, S]`."""
    following = jnp.roll(batch.tokens, -1, axis=1)
    same = jnp.roll(batch.segments, -1, axis=1) == batch.segments
    return following, jnp.roll(batch.learn, -1, axis=1) & same & (batch.segments > 0)


def sft_loss(
    model: Llama, variables: Any, batch: Packed, count: Any, head_chunk: int = 0
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The negative log-probability of what a batch is to teach, in nats, divided by `count`.

    `count` is the number of taught tokens over the *whole* batch, so that the parts of a batch add up to its mean
    whatever lengths they hold (a mean of means would weigh short rows' tokens more).
    """
    following, counts = targets(batch)
    out: Any = model.apply(variables, batch.tokens, positions=batch.positions, segments=batch.segments, logits=False)
    log_prob, entropy = token_log_probs(model, variables, out.hidden, following, head_chunk)
    loss = -jnp.sum(jnp.where(counts, log_prob, 0.0)) / count
    return loss, {"entropy": jnp.sum(jnp.where(counts, entropy, 0.0)) / count}


def make_sft(
    config: SFTConfig,
    model: Llama,
    variables: Any,
    data: Packed,
    updates: int,
    mesh: Mesh | None = None,
    take: bool = False,
) -> Learner:
    """Build supervised fine-tuning as a `Learner`.

    **Arguments:** `config`; `model`, whose `lora` field says whether adapters are trained or every weight;
    `variables`, with the base in `params` (on the mesh already, where there is one) and perhaps adapters in `lora` to
    go on from; `data`, at least `batch_size` rows; `updates`, for the schedule; `mesh`; `take`, where every weight is
    trained: `init` takes them out of `variables` in place of a copy, so that they are not kept twice. Then it can be
    called once.
    **Returns:** the learner. Each epoch takes the rows in a new order; rows that do not fill a batch are left out of
    it. Its metrics are `loss` (nats per taught token), `entropy`, `grad_norm`, `learning_rate`, `taught_tokens`,
    `epoch`.
    **Raises:** `ValueError` where sizes do not divide, an option is out of range, or there are too few rows.
    """
    _check(config, data, updates, mesh)
    if model.lora is None and any_quantized(variables["params"]):
        raise ValueError("the base is quantised, and so frozen: give the model a LoRAConfig")
    rows = data.tokens.shape[0]
    per_epoch = rows // config.batch_size
    rate = learning_rates(config, updates)
    trained = "params" if model.lora is None else "lora"

    def optimizer(params: Any) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(config.max_grad_norm),
            optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_eps),
            optax.add_decayed_weights(config.weight_decay, mask=_decayed(params)),
        )

    def split(batch: Any) -> Any:
        if mesh is None:
            return batch
        return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec(ROWS)))

    def init(key: jax.Array) -> SFTState:
        adapter_key, run_key = jax.random.split(key)
        params = first_params(model, variables, adapter_key, mesh, take)
        held = jax.tree.map(jnp.asarray, data)
        base = {} if trained == "params" else {"params": variables["params"]}
        state = SFTState(params, {"base": base, "data": held}, optimizer(params).init(params), run_key, jnp.int32(0))
        return placed(state, mesh)

    def gradient(params: Any, base: Any, batch: Packed) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
        count = jnp.maximum(1, jnp.sum(targets(batch)[1]))

        def loss(params, part):
            return sft_loss(model, {**base, trained: params}, split(part), count, config.head_chunk)

        k = config.microbatches
        # part j takes rows j, j + k, ...: each part then lies on all devices
        parts = jax.tree.map(lambda x: x.reshape(-1, k, *x.shape[1:]).swapaxes(0, 1), batch)

        def add(total, part):
            (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params, part)
            return jax.tree.map(jnp.add, total, (value, metrics["entropy"], grads)), None

        zero = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        (value, entropy, grads), _ = jax.lax.scan(add, zero, parts)
        return value, entropy, count, grads

    def update(state: SFTState) -> tuple[SFTState, dict[str, jax.Array]]:
        epoch, place = state.update // per_epoch, state.update % per_epoch
        order = permutations(jax.random.fold_in(state.key, epoch), 1, rows)[0]
        chosen = jax.lax.dynamic_slice(order, (place * config.batch_size,), (config.batch_size,))
        batch = jax.tree.map(lambda x: x[chosen], state.frozen["data"])
        loss, entropy, count, grads = gradient(state.params, state.frozen["base"], batch)
        steps, opt_state = optimizer(state.params).update(grads, state.opt_state, state.params)
        size = rate(state.update)
        params = jax.tree.map(lambda p, step: p - (size * step).astype(p.dtype), state.params, steps)
        metrics = {
            "loss": loss,
            "entropy": entropy,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": size,
            "taught_tokens": count,
            "epoch": (state.update + 1) / per_epoch,
        }
        state = state.replace(params=params, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    return Learner(init, update, config.batch_size * data.tokens.shape[1], unit="tokens")


def make_evaluation(model: Llama, data: Packed, batch_size: int, head_chunk: int = 0) -> Callable[[Any, Any], dict]:
    """The loss on held-out rows: `evaluate(state, key) -> {loss, perplexity, taught_tokens}`.

    **Arguments:** `model`; `data`; `batch_size`, rows at a time (the last batch is filled up with empty rows).
    """
    trained = "params" if model.lora is None else "lora"
    short = -data.tokens.shape[0] % batch_size
    fill = {"tokens": 0, "positions": -1, "segments": 0, "learn": False}
    held = Packed(
        **{
            name: np.pad(getattr(data, name), ((0, short), (0, 0)), constant_values=fill[name])
            for name in (f.name for f in dataclasses.fields(data))
        }
    )
    parts = jax.tree.map(lambda x: x.reshape(-1, batch_size, x.shape[1]), held)

    @jax.jit
    def total(params, base, parts):
        def one(part):
            return sft_loss(model, {**base, trained: params}, part, 1.0, head_chunk)[0]

        return jnp.sum(jax.lax.map(one, parts)), jnp.sum(jax.vmap(lambda part: jnp.sum(targets(part)[1]))(parts))

    def evaluate(state: SFTState, key: Any) -> dict[str, float]:
        loss, count = total(state.params, state.frozen["base"], parts)
        mean = float(loss) / max(1, int(count))
        return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "taught_tokens": float(count)}

    return evaluate


def _check(config: SFTConfig, data: Packed, updates: int, mesh: Mesh | None) -> None:
    for name in ("batch_size", "microbatches"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; at least 1 is needed")
    if updates < 1:
        raise ValueError(f"updates is {updates}; at least 1 is needed")
    if not 0 <= config.warmup < 1 or not 0 <= config.final_fraction <= 1:
        raise ValueError(
            f"warmup is {config.warmup} and final_fraction {config.final_fraction}; fractions from 0 to 1 are needed"
        )
    if config.batch_size % config.microbatches:
        raise ValueError(f"batch_size {config.batch_size} is not divided by microbatches {config.microbatches}")
    rows = data.tokens.shape[0]
    if rows < config.batch_size:
        raise ValueError(
            f"the data make {rows} rows, fewer than the {config.batch_size} of one batch: lower batch_size, make rows "
            "shorter (length), or add data"
        )
    part = config.batch_size // config.microbatches
    if mesh is not None:
        ways = math.prod(mesh.shape[axis] for axis in ROWS)
        if part % ways:
            raise ValueError(
                f"batch_size {config.batch_size} / microbatches {config.microbatches} = {part} rows are not divided by "
                f"{' x '.join(f'{a} {mesh.shape[a]}' for a in ROWS)} = {ways} devices"
            )
