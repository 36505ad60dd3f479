"""A layer of the transformer: norm, projections with adapters, attention, gated MLP."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llmrl_jax.kernels.attention import Attention, KeyValues, attend, saved_product
from llmrl_jax.kernels.lora_matmul import (
    adapter_products,
    merged_matmul,
    merges,
    mixed_precision_matmul,
    rounded_matmul,
)
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.quantize import Quantized, any_quantized, matmul
from llmrl_jax.lm.rope import rotate
from llmrl_jax.parallel.partition import constrain


AnyArray = Array | np.ndarray
Angles = tuple[jax.Array, jax.Array]
"""Cosines and sines of the rotary angles of all tokens."""


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm with float32 statistics, cast before the product with the weight as in Hugging Face."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * scale.astype(x.dtype)


# --- projections ------------------------------------------------------------------------------------------------------


def projections(
    x: jax.Array,
    names: Sequence[str],
    params: Mapping,
    lora: Mapping | None,
    scale: float,
    fan_in: int = 1,
    matmul_dtype: Any = None,
) -> list[jax.Array]:
    """`x W`, over the last `fan_in` axes of `x`, `+ bias` and `+ s (x A) B` if the matrix has them, for each name.

    The form of `llmrl_jax.kernels.lora_matmul` follows from the dtype and the number of tokens. A quantised `W` is
    dequantised for the product only; it is a constant, and gradients go to `A` and `B`.

    **Arguments:** `matmul_dtype`, to which the factors of the products are rounded (None: that of `x`).
    """
    kernels = {name: params[name]["kernel"] for name in names}
    flat = x.reshape(*x.shape[:-fan_in], -1)
    adapters = {name: lora[name] for name in names if name in lora} if lora else {}
    mixed = matmul_dtype is not None and matmul_dtype != x.dtype
    dtype = None if mixed else x.dtype
    a = [jnp.asarray(ab["a"], dtype).reshape(flat.shape[-1], -1) for ab in adapters.values()]
    b = [jnp.asarray(ab["b"], dtype).reshape(ab["b"].shape[0], -1) for ab in adapters.values()]
    pairs = dict(zip(adapters, zip(a, b, strict=True), strict=True))
    if mixed:
        outputs = _mixed_precision(x, flat, kernels, pairs, scale, matmul_dtype)
    else:
        outputs = _one_dtype(x, flat, kernels, pairs, scale, fan_in)
    shaped = {name: y.reshape(*flat.shape[:-1], *kernels[name].shape[fan_in:]) for name, y in outputs.items()}
    biases = {name: params[name]["bias"].astype(x.dtype) for name in names if "bias" in params[name]}
    return [saved_product(shaped[name] + biases[name] if name in biases else shaped[name]) for name in names]


Pairs = Mapping[str, tuple[jax.Array, jax.Array]]
"""Matrix -> `A [i, r]` and `B [r, o]`."""


def _one_dtype(
    x: jax.Array, flat: jax.Array, kernels: Mapping, adapters: Pairs, scale: float, fan_in: int
) -> dict[str, jax.Array]:
    """The products of `projections`, all in the dtype of `x`."""
    a, b = zip(*adapters.values(), strict=True) if adapters else ((), ())
    sizes = [math.prod(kernels[name].shape[fan_in:]) for name in adapters]
    outputs: dict[str, jax.Array] = {}
    if merges(flat, sizes) and not any_quantized([kernels[name] for name in adapters]):
        full = tuple(jnp.asarray(kernels[name], x.dtype).reshape(flat.shape[-1], -1) for name in adapters)
        outputs = dict(zip(adapters, merged_matmul(scale, flat, full, a, b), strict=True))
        adapters = {}
    low_rank = dict(zip(adapters, adapter_products(scale, flat, a, b), strict=True)) if adapters else {}
    for name in (name for name in kernels if name not in outputs):
        y = _product(x, kernels[name], fan_in)
        outputs[name] = y + low_rank[name].reshape(y.shape) if name in low_rank else y
    return outputs


def _mixed_precision(
    x: jax.Array, flat: jax.Array, kernels: Mapping, adapters: Pairs, scale: float, dtype: Any
) -> dict[str, jax.Array]:
    """The products of `projections`, whose factors are rounded to `dtype`."""
    a, b = zip(*adapters.values(), strict=True) if adapters else ((), ())
    if any_quantized(kernels):
        outputs = {
            name: matmul(x.astype(dtype), kernel, x.dtype)
            if isinstance(kernel, Quantized)
            else rounded_matmul(dtype, flat, jnp.asarray(kernel).reshape(flat.shape[-1], -1))
            for name, kernel in kernels.items()
        }
        if adapters:
            ends = np.cumsum([p.shape[1] for p in a])[:-1]
            low_rank = jnp.split(rounded_matmul(dtype, flat, jnp.concatenate(a, 1)), ends, -1)
            deltas = [scale * rounded_matmul(dtype, u, q) for u, q in zip(low_rank, b, strict=True)]
            outputs |= {n: outputs[n].reshape(y.shape) + y for n, y in zip(adapters, deltas, strict=True)}
        return outputs
    order = [*adapters, *(name for name in kernels if name not in adapters)]
    full = tuple(jnp.asarray(kernels[name]).reshape(flat.shape[-1], -1) for name in order)
    return dict(zip(order, mixed_precision_matmul(dtype, scale, flat, full, a, b), strict=True))


def _product(x: jax.Array, kernel: Any, fan_in: int) -> jax.Array:
    if isinstance(kernel, Quantized):
        return matmul(x, kernel, x.dtype)
    axes = tuple(range(-fan_in, 0)), tuple(range(fan_in))
    return jnp.tensordot(x, kernel.astype(x.dtype), axes=axes)


# --- matrices that are one --------------------------------------------------------------------------------------------

_ATTENDING = ("q_proj", "k_proj", "v_proj")
"""The matrices of attention that read its input."""
WIDE = ("gate_proj", "up_proj")
"""The matrices of a gated MLP that read its input."""


def _joined_name(names: Sequence[str]) -> str:
    """The name of several matrices that are one."""
    return "+".join(names)


def join_layer(params: Mapping, lora: Mapping | None) -> tuple[Mapping, Mapping | None]:
    """The weights and adapters of a layer, in which matrices that read the same input are one (`join`)."""
    lora = lora or {}
    parts = {"self_attn": _ATTENDING, "mlp": WIDE}
    pairs = {block: join(names, params[block], lora.get(block)) for block, names in parts.items()}
    adapters = {block: adapters for block, (_, adapters) in pairs.items() if adapters}
    return {**params, **{block: weights for block, (weights, _) in pairs.items()}}, {**lora, **adapters} or None


def join(names: Sequence[str], params: Mapping, lora: Mapping | None) -> tuple[Mapping, Mapping | None]:
    """Matrices of one input, side by side as one of the name `_joined_name(names)`, with their adapters: for decoding,
    where every product is a program's launch and a read of `x`. The outputs are those of `projections`, in a row.

    **Arguments:** `params`, `lora`: a block of one layer; kernels are `[i, ...]`, not quantised.
    **Returns:** the block without the parts.
    """
    remaining = {name: value for name, value in params.items() if name not in names}
    kernels = [params[name]["kernel"].reshape(len(params[name]["kernel"]), -1) for name in names]
    joined = {"kernel": jnp.concatenate(kernels, 1)}
    if any("bias" in params[name] for name in names):
        sizes = [kernel.shape[1] for kernel in kernels]
        biases = (params[name].get("bias", jnp.zeros(size)) for name, size in zip(names, sizes, strict=True))
        joined["bias"] = jnp.concatenate([bias.reshape(-1) for bias in biases])
    adapted = [name for name in names if lora and name in lora]
    if lora is None or not adapted:
        return {**remaining, _joined_name(names): joined}, lora
    remaining_lora = {name: value for name, value in lora.items() if name not in names}
    rank, a = 0, [lora[name]["a"] for name in adapted]
    b = jnp.zeros((sum(x.shape[1] for x in a), joined["kernel"].shape[1]), a[0].dtype)
    column = 0
    for name, kernel in zip(names, kernels, strict=True):
        if name in adapted:
            part = lora[name]["b"].reshape(len(lora[name]["b"]), -1)
            b = b.at[rank : rank + len(part), column : column + kernel.shape[1]].set(part)
            rank += len(part)
        column += kernel.shape[1]
    return {**remaining, _joined_name(names): joined}, {
        **remaining_lora,
        _joined_name(names): {"a": jnp.concatenate(a, 1), "b": b},
    }


# --- the layer --------------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """The arrays of one layer, or, stacked along a first axis, of all."""

    params: Any
    lora: Any
    """Adapters; None: none."""
    kv: Any = None
    """Keys and values of earlier tokens, as the pass needs them."""
    has_window: Any = None
    """Whether the sliding window applies to the layer; None: layers do not differ in it."""


def layer_slice(tree: Any, index: int) -> Any:
    """One layer of a stacked collection; None stays None."""
    return jax.tree.map(lambda x: x[index], tree)


def place_residual(x: jax.Array, few_tokens: bool = False) -> jax.Array:
    """The residual stream on a mesh: rows over devices, or, for few tokens, its numbers over those that split the
    weights."""
    if x.ndim != 3:
        return x
    return constrain(x, "few", None, "embed") if few_tokens else constrain(x, "batch", None, None)


@dataclass(frozen=True)
class Block:
    """The function of a layer: attention and a gated MLP, each of the normed residual stream, to which it is added. Its
    scopes name operations in the reports of `lm fit` and in profiles."""

    config: LlamaConfig
    scale: float
    """Of the adapters."""
    matmul_dtype: Any
    attention: Attention

    @jax.named_scope("key_value")
    def key_value(self, x: Float[Array, "B S D"], layer: Layer, angles: Angles) -> tuple[jax.Array, jax.Array]:
        """The keys, rotated, and values `[B, S, K, h]` of a layer's input."""
        x = self._norm(x, layer, "input_layernorm")
        key, value = self._projections(x, ("k_proj", "v_proj"), layer)
        return rotate(self._head_norm(key, layer, "k_norm"), *angles), value

    @jax.named_scope("query_key_value")
    def query_key_value(self, x: Float[Array, "B S D"], layer: Layer, angles: Angles) -> tuple[Any, Any, Any]:
        """The queries, keys and values of a layer whose matrices may be joined (`join_layer`); where they are not,
        queries are None, and `__call__` computes them."""
        if _joined_name(_ATTENDING) not in layer.params["self_attn"]:
            return None, *self.key_value(x, layer, angles)
        x = self._norm(x, layer, "input_layernorm")
        (heads,) = self._projections(x, (_joined_name(_ATTENDING),), layer)
        heads = heads.reshape(*heads.shape[:-1], -1, self.config.size)
        count, kv = self.config.num_attention_heads, self.config.kv_heads
        query, key, value = jnp.split(heads, (count, count + kv), -2)
        query, key = self._head_norm(query, layer, "q_norm"), self._head_norm(key, layer, "k_norm")
        return rotate(query, *angles), rotate(key, *angles), value

    @jax.named_scope("block")
    def __call__(
        self,
        x: Float[Array, "B S D"],
        layer: Layer,
        angles: Angles,
        sources: Sequence[KeyValues] | Callable[[jax.Array], jax.Array],
        select: Callable[[jax.Array], jax.Array] | None = None,
        query: Float[Array, "B S H h"] | None = None,
        few_tokens: bool = False,
    ) -> jax.Array:
        """The layer's output `[B, N, D]`.

        **Arguments:** `angles`, of the tokens of `x`; `sources`, the keys and values to attend to, or attention as a
        function of the queries; `select`, which takes the tokens whose output is computed along axis 1 (None: all);
        `query`, of `query_key_value`; `few_tokens`, see `place_residual`.
        """
        if select is not None:
            assert not callable(sources)
            x, angles = select(x), (select(angles[0]), select(angles[1]))
            sources = [source.select(select) for source in sources]
        if query is None:
            (query,) = self._projections(self._norm(x, layer, "input_layernorm"), ("q_proj",), layer)
            query = rotate(self._head_norm(query, layer, "q_norm"), *angles)
        if few_tokens:
            query = constrain(query, "batch", None, "heads", None)
        attn_output = sources(query) if callable(sources) else attend(query, sources, self.attention)
        if few_tokens:
            attn_output = constrain(attn_output, "few", None, "heads", None)
        x = x + self._projections(attn_output, ("o_proj",), layer, fan_in=2)[0]
        return place_residual(x + self._mlp(self._norm(x, layer, "post_attention_layernorm"), layer), few_tokens)

    @jax.named_scope("mlp")
    def _mlp(self, x: jax.Array, layer: Layer) -> jax.Array:
        """`W_down (silu(W_gate x) * W_up x)`."""
        if (name := _joined_name(WIDE)) in layer.params["mlp"]:
            gate, up = jnp.split(self._projections(x, (name,), layer, "mlp")[0], 2, -1)
        else:
            gate, up = self._projections(x, WIDE, layer, "mlp")
        return self._projections(jax.nn.silu(gate) * up, ("down_proj",), layer, "mlp")[0]

    def _projections(
        self, x: jax.Array, names: Sequence[str], layer: Layer, block: str = "self_attn", fan_in: int = 1
    ) -> list[jax.Array]:
        adapters = (layer.lora or {}).get(block)
        return projections(x, names, layer.params[block], adapters, self.scale, fan_in, self.matmul_dtype)

    def _norm(self, x: jax.Array, layer: Layer, name: str) -> jax.Array:
        return rms_norm(x, layer.params[name]["scale"], self.config.rms_norm_eps)

    def _head_norm(self, heads: jax.Array, layer: Layer, name: str) -> jax.Array:
        """Queries or keys after Qwen3's norm of each head; unchanged in other families."""
        if not self.config.qk_norm:
            return heads
        return rms_norm(heads, layer.params["self_attn"][name]["scale"], self.config.rms_norm_eps)
