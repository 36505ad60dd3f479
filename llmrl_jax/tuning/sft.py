"""Supervised fine-tuning: next-token prediction on marked text, with LoRA or of all weights, as a `Learner`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh

from llmrl_jax.core.checks import (
    Checked,
    Fraction,
    FractionBelowOne,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    PositiveOrInf,
    at_least,
)
from llmrl_jax.core.learner import Learner
from llmrl_jax.kernels.permutations import permutations
from llmrl_jax.lm import Llama
from llmrl_jax.lm.model import random_params
from llmrl_jax.lm.quantize import any_quantized
from llmrl_jax.lm.tokens import check_tokens
from llmrl_jax.parallel import RULES, Placement
from llmrl_jax.rl.gradient import accumulate, apply_gradients, in_parts
from llmrl_jax.tuning.loss import token_log_probs
from llmrl_jax.tuning.packing import Packed


@dataclass(frozen=True)
class SFTConfig(Checked):
    """Hyper-parameters of supervised fine-tuning.

    The loss is the cross-entropy of the targets, in nats per token.
    **Raises:** `ValueError` for an option out of range.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.tuning.SFTConfig(batch_size=4, learning_rate=1e-3).batch_size
    4
    ```
    """

    PREFIX: ClassVar[str] = "sft."

    batch_size: PositiveInt = 16
    """Rows per gradient step."""
    microbatches: PositiveInt = 1
    """Sequential parts in which a step's gradient is computed, to save memory; divides batch_size."""
    learning_rate: NonNegativeFloat = 2e-4
    """Peak learning rate of AdamW."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Fall of the learning rate after the warm-up, to `final_fraction` of its peak at the last update."""
    warmup: FractionBelowOne = 0.03
    """Fraction of the updates over which the learning rate rises from zero."""
    final_fraction: Annotated[Fraction, Needs("schedule", ("cosine", "linear"))] = 0.0
    """Learning rate of the last update, as a fraction of the peak; at 0, that update changes nothing."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decay of matrices; norms and biases are not decayed."""
    adam_b1: FractionBelowOne = 0.9
    """Adam's decay rate of the first moment."""
    adam_b2: FractionBelowOne = 0.999
    """Adam's decay rate of the second moment."""
    adam_eps: NonNegativeFloat = 1e-8
    """Adam's epsilon."""
    max_grad_norm: PositiveOrInf = 1.0
    """Global norm to which gradients are clipped; inf: never."""
    head_chunk: NonNegativeInt = 0
    """Positions whose logits are in memory at once, for large vocabularies; divides the row length. 0: all."""

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size % self.microbatches:
            raise ValueError(f"sft.batch_size {self.batch_size} is not divided by sft.microbatches {self.microbatches}")


@struct.dataclass
class SFTState:
    """Everything that fine-tuning carries from update to update."""

    params: Any
    """Trained parameters: the adapters, or every weight."""
    frozen: Any
    """The base under the adapters (`{}` when every weight is trained), and the data."""
    opt_state: Any
    key: jax.Array
    """The key of the whole run: epoch `e` is shuffled by `fold_in(key, e)`."""
    update: jax.Array
    """int32 `[]`, updates done."""


def learning_rates(config: SFTConfig, updates: int) -> optax.Schedule:
    """The learning rate of each update."""
    rise = math.ceil(config.warmup * updates)
    peak, last = config.learning_rate, config.learning_rate * config.final_fraction
    falls: dict[str, Any] = {
        "constant": lambda n: optax.constant_schedule(peak),
        "linear": lambda n: optax.linear_schedule(peak, last, n),
        "cosine": lambda n: optax.cosine_decay_schedule(peak, n, config.final_fraction),
    }
    fall = falls[config.schedule](max(1, updates - rise - 1))  # from the first update after the warm-up to the last
    # the first update of a warm-up has a learning rate above zero
    return optax.join_schedules([lambda n: peak * (n + 1) / (rise + 1), fall], [rise]) if rise else fall


def first_params(model: Llama, variables: Any, key: jax.Array, mesh: Mesh | None, take: bool = False) -> Any:
    """The initial trained parameters: the adapters of `variables`, new ones, or every weight. A copy, since updates are
    made in place, or the originals with `take` (`make_sft`)."""
    if model.lora is None and take:
        if "params" not in variables:
            raise RuntimeError("the weights were taken by an earlier start of this learner: load them again")
        return variables.pop("params")
    trained = "params" if model.lora is None else "lora"
    params = variables.get(trained)
    return random_params(model, mesh, key, "lora") if params is None else jax.tree.map(jnp.copy, params)


def _decayed(params: Any) -> Any:
    """The leaves that weight decay applies to: matrices, recognised by their names."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: str(getattr(path[-1], "key", "")) in ("kernel", "embedding", "a", "b"), params
    )


def adamw(config: SFTConfig, params: Any) -> optax.GradientTransformation:
    """From gradients to a direction; `learning_rates` gives the learning rate."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_eps),
        optax.add_decayed_weights(config.weight_decay, mask=_decayed(params)),
    )


def targets(batch: Packed) -> tuple[jax.Array, jax.Array]:
    """The target of each position, int32 `[N, S]`, and whether it counts, bool `[N, S]`."""
    following = jnp.roll(batch.tokens, -1, axis=1)
    same_segment = jnp.roll(batch.segments, -1, axis=1) == batch.segments
    return following, jnp.roll(batch.learn, -1, axis=1) & same_segment & (batch.segments > 0)


def sft_loss(
    model: Llama, variables: Any, batch: Packed, count: Any, head_chunk: int = 0, longest: int | None = None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The negative log-probability of a batch's targets, in nats, divided by `count`.

    `count` is the number of targets in the *whole* batch, so that the losses of its parts add up to its mean whatever
    their lengths (a mean of means would give more weight to the tokens of short rows).
    """
    following, counts = targets(batch)
    output: Any = model.apply(
        variables,
        batch.tokens,
        positions=batch.positions,
        segments=batch.segments,
        longest=longest,
        logits=False,
    )
    log_prob, entropy = token_log_probs(model, variables, output.hidden, following, head_chunk)
    loss = -jnp.sum(jnp.where(counts, log_prob, 0.0)) / count
    return loss, {"entropy": jnp.sum(jnp.where(counts, entropy, 0.0)) / count}


def check_trained(model: Llama, variables: Any) -> None:
    """**Raises** `ValueError` if the weights to train are quantised, or have too few bits to be updated."""
    if model.lora is None and any_quantized(variables["params"]):
        raise ValueError("the base is quantised, and so frozen: give the model a LoRAConfig")
    trained = variables.get("params" if model.lora is None else "lora")
    if narrow := {x.dtype.name for x in jax.tree.leaves(trained) if x.dtype.itemsize < 4}:
        raise ValueError(
            f"weights to train are {' and '.join(sorted(narrow))}, in which most updates are rounded away: load them "
            "in float32, and compute in bfloat16 with model.clone(dtype=jnp.bfloat16)"
        )


def make_sft(
    config: SFTConfig,
    model: Llama,
    variables: Any,
    data: Packed,
    updates: int,
    mesh: Mesh | None = None,
    take: bool = False,
    longest: int | None = None,
) -> Learner:
    """Build supervised fine-tuning as a `Learner`.

    **Arguments:** `config`; `model`, whose `lora` field selects adapters or every weight for training; `variables`,
    with the base in `params` (already on the mesh, if there is one) and optionally adapters in `lora` to continue from;
    `data`, at least `batch_size` rows; `updates`, for the schedule; `mesh`; `take`, if every weight is trained: `init`
    takes them out of `variables` instead of copying them, so that they are not kept twice. It can then be called only
    once; `longest`, the most tokens of an example, a promise by which short ones in long rows cost less.
    **Returns:** the learner. Each epoch takes the rows in a new order; rows that do not fill a batch are left out of
    it. Its metrics are `loss` (nats per target), `entropy`, `grad_norm`, `learning_rate`, `taught_tokens` (the number
    of targets), `epoch`.
    **Raises:** `ValueError` if sizes do not divide, an option is out of range, there are too few rows, a token is not
    in the model's vocabulary, or the weights to train are not float32.

    **Example:**

    ```pycon
    >>> import jax, llmrl_jax as lr
    >>> tokenizer, (model, variables) = lr.load_tokenizer("tiny"), lr.load_model("tiny", lora=lr.LoRAConfig(rank=4))
    >>> rows = [{"prompt": "what colour is blood ?", "response": " red"}, {"prompt": "the sky ?", "response": " blue"}]
    >>> examples = [lr.tuning.encode_row(row, f"row {i}", tokenizer) for i, row in enumerate(rows)]
    >>> data = lr.tuning.pack(examples, 16, several=False)
    >>> learner = lr.tuning.make_sft(lr.tuning.SFTConfig(batch_size=2), model, variables, data, updates=10)
    >>> state = learner.init(jax.random.key(0))
    >>> sorted(state.params), "loss" in jax.eval_shape(learner.update, state)[1]
    (['layers'], True)
    ```
    """
    check_sft(config, data, updates, mesh)
    check_tokens(data.tokens, None, model.config.vocab_size)
    check_trained(model, variables)
    sft = SFT(config, model, variables, data, updates, Placement(mesh), take, longest)
    return Learner(sft.init, sft.update, config.batch_size * data.tokens.shape[1], unit="tokens")


class SFT:
    """The parts of supervised fine-tuning; `make_sft` documents the arguments."""

    def __init__(
        self,
        config: SFTConfig,
        model: Llama,
        variables: Any,
        data: Packed,
        updates: int,
        placement: Placement,
        take: bool,
        longest: int | None = None,
    ):
        self.longest = longest
        self.config, self.model, self.variables, self.data = config, model, variables, data
        self.placement, self.take = placement, take
        self.rows = data.tokens.shape[0]
        self.per_epoch = self.rows // config.batch_size
        self.rate = learning_rates(config, updates)
        self.trained = "params" if model.lora is None else "lora"

    def optimizer(self, params: Any) -> optax.GradientTransformation:
        return adamw(self.config, params)

    def init(self, key: jax.Array) -> SFTState:
        adapter_key, run_key = jax.random.split(key)
        params = first_params(self.model, self.variables, adapter_key, self.placement.mesh, self.take)
        base = {} if self.trained == "params" else {"params": self.variables["params"]}
        frozen = {"base": base, "data": jax.tree.map(jnp.asarray, self.data)}
        opt_state = self.optimizer(params).init(params)
        return self.placement.device_put(SFTState(params, frozen, opt_state, run_key, jnp.int32(0)))

    def update(self, state: SFTState) -> tuple[SFTState, dict[str, jax.Array]]:
        batch = self._batch(state)
        loss, entropy, count, grads = self._gradient(state.params, state.frozen["base"], batch)
        rate = self.rate(state.update)
        params, opt_state, norm = apply_gradients(
            self.optimizer(state.params), state.params, grads, state.opt_state, rate
        )
        metrics = {
            "loss": loss,
            "entropy": entropy,
            "grad_norm": norm,
            "learning_rate": rate,
            "taught_tokens": count,
            "epoch": (state.update + 1) / self.per_epoch,
        }
        state = state.replace(params=params, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def _batch(self, state: SFTState) -> Packed:
        """The rows of this update: every epoch takes all of them, in a new order."""
        epoch, index = state.update // self.per_epoch, state.update % self.per_epoch
        order = permutations(jax.random.fold_in(state.key, epoch), 1, self.rows)[0]
        chosen = jax.lax.dynamic_slice(order, (index * self.config.batch_size,), (self.config.batch_size,))
        return jax.tree.map(lambda x: x[chosen], state.frozen["data"])

    def _gradient(self, params: Any, base: Any, batch: Packed) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
        """The loss, the entropy, the number of targets and the gradient of a batch, in microbatches."""
        count = jnp.maximum(1, jnp.sum(targets(batch)[1]))

        def loss(params, rows):
            variables = {**base, self.trained: params}
            chunk = self.config.head_chunk
            return sft_loss(self.model, variables, self.placement.shard_batch(rows), count, chunk, self.longest)

        def part(rows):
            (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params, rows)
            return (value, metrics["entropy"], grads), None

        zero = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        (value, entropy, grads), _ = accumulate(part, zero, in_parts(batch, self.config.microbatches))
        return value, entropy, count, grads


def make_evaluation(model: Llama, data: Packed, batch_size: int, head_chunk: int = 0) -> Callable[[Any, Any], dict]:
    """Loss on held-out rows: `evaluate(state, key) -> {loss, perplexity, taught_tokens}`.

    **Arguments:** `model`; `data`; `batch_size`, rows at a time (the last batch is filled up with empty rows).
    """
    check_tokens(data.tokens, None, model.config.vocab_size)
    trained = "params" if model.lora is None else "lora"
    short = -data.tokens.shape[0] % batch_size
    fill = {"tokens": 0, "positions": -1, "segments": 0, "learn": False}
    padded = Packed(
        **{
            name: np.pad(getattr(data, name), ((0, short), (0, 0)), constant_values=fill[name])
            for name in (f.name for f in dataclasses.fields(data))
        }
    )
    parts = jax.tree.map(lambda x: x.reshape(-1, batch_size, x.shape[1]), padded)

    @jax.jit
    def total(params, base, parts):
        def part_loss(part):
            return sft_loss(model, {**base, trained: params}, part, 1.0, head_chunk)[0]

        return jnp.sum(jax.lax.map(part_loss, parts)), jnp.sum(jax.vmap(lambda part: jnp.sum(targets(part)[1]))(parts))

    def evaluate(state: SFTState, key: Any) -> dict[str, float]:
        loss, count = total(state.params, state.frozen["base"], parts)
        mean = float(loss) / max(1, int(count))
        return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "taught_tokens": float(count)}

    return evaluate


def check_sft(config: SFTConfig, data: Packed, updates: int, mesh: Mesh | None) -> None:
    """Reject a configuration that is incompatible with the data or the mesh, also before weights are loaded.

    **Raises:** `ValueError` for too few rows, or sizes that do not divide (the arithmetic is shown)."""
    at_least("updates", updates, 1)
    rows, length = data.tokens.shape
    if config.head_chunk and length % config.head_chunk:
        raise ValueError(f"sft.head_chunk is {config.head_chunk}; it must divide the {length} tokens of a row")
    if rows < config.batch_size:
        raise ValueError(
            f"the data make {rows} rows, fewer than the {config.batch_size} of one batch: lower sft.batch_size, make "
            "rows shorter (length), or add data"
        )
    part = config.batch_size // config.microbatches
    if mesh is not None:
        devices = Placement(mesh).row_devices
        if part % devices:
            raise ValueError(
                f"batch_size {config.batch_size} / microbatches {config.microbatches} = {part} rows are not divided by "
                f"{' x '.join(f'{a} {mesh.shape[a]}' for a in RULES['batch'])} = {devices} devices"
            )
