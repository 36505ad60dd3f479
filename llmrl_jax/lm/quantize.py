"""Frozen weights in 8 or 4 bits: a code per weight, a scale per 64 weights, dequantised only inside the matmul.

Matrices are quantised, `[in..., out...]` after the layers' axis. 64 inputs of one output are a block, whose scale is
its largest magnitude: in `int8` a code is the weight in 127ths of it, in `nf4` the nearest of the 16 levels of QLoRA's
NormalFloat (Dettmers et al. 2023, 2305.14314), two codes per byte.

Both kinds use blocks. A scale per output channel would save 0.5 of the 8.5 bits of `int8`, but one large weight would
then reduce the resolution of thousands: measured as the relative error of a matmul, 0.6% against 0.8 to 0.9% for normal
weights of 2,048 to 11,008 inputs, 0.8% against 2.0% for Student's t with 5 degrees of freedom, and over the 36 matrices
of all-MiniLM-L6-v2 0.64% (at most 0.77%) against 0.92% (at most 2.0%). Scales stay in float32: quantising them too
would save 0.37 of the 4.5 bits of `nf4`, but blocks of 256 scales would be hard to divide over a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import unfreeze
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.lora import BLOCKS, TARGETS
from llmrl_jax.parallel.memory import nbytes as nbytes
from llmrl_jax.parallel.partition import RULES, shardings


KINDS = ("int8", "nf4")
BLOCK = 64
"""Inputs that share a scale."""
HEAD = "lm_head"
QUANTIZABLE = (*TARGETS, HEAD)
"""Matrices that can be quantised: those of a layer, and an untied head. An embedding cannot: its rows are read."""
_FAN_IN = {"o_proj": 2}
"""Number of input axes of a kernel, if not one."""


def _levels() -> np.ndarray:
    """NormalFloat-4: quantiles of the normal distribution, evenly spaced on each side of an exact zero, up to 1.

    8 levels above zero and 7 below. The outermost quantile is the constant of bitsandbytes.
    """
    outermost, quantile = 0.9677083, NormalDist().inv_cdf
    positive = [quantile(p) for p in np.linspace(outermost, 0.5, 9)[:-1]]
    negative = [-quantile(p) for p in np.linspace(outermost, 0.5, 8)[:-1]]
    return (np.array(sorted([*negative, 0.0, *positive])) / positive[0]).astype(np.float32)


NF4 = _levels()
"""The 16 levels of `nf4`, ascending from -1 to 1."""


@struct.dataclass
class Quantized:
    """Quantised kernel, used as a leaf: a pytree of two arrays, which can be scanned, sliced, sharded and written
    to checkpoints as others.

    It has the `shape` and `dtype` of the float kernel, and `astype` dequantises it. So `merge` into a quantised base
    gives float32 matrices: quantised again, adapter changes smaller than a quantisation step would be lost.
    """

    codes: Any
    """`int8`: int8 `[*L, n, 64, out...]`. `nf4`: uint8 `[*L, n, 32, out...]`; byte `j` of a block holds the codes of
    its inputs `2 j` (in the high half) and `2 j + 1`. `n` blocks, the last padded with zeros; `L` only if layers are
    stacked."""
    scales: Any
    """float32 `[*L, n, out...]`: the factors of the codes' levels."""
    kind: str = struct.field(pytree_node=False)
    matrix: tuple[int, ...] = struct.field(pytree_node=False)
    """The shape `[in..., out...]` of one matrix, without layers."""
    fan_in: int = struct.field(pytree_node=False)
    """Number of its input axes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`[*L, in..., out...]`."""
        lead = self.codes.ndim - 2 - (len(self.matrix) - self.fan_in)
        return (*self.codes.shape[:lead], *self.matrix)

    @property
    def dtype(self) -> Any:
        """Dtype that `merge` casts to: float32."""
        return jnp.dtype(jnp.float32)

    def astype(self, dtype: Any) -> jax.Array:
        """Weights as floats, `[*L, in..., out...]`."""
        return _floats(self, dtype).reshape(self.shape)


def is_quantized(x: Any) -> bool:
    """For `jax.tree.map` over parameters, some of which are quantised."""
    return isinstance(x, Quantized)


def any_quantized(tree: Any) -> bool:
    """Return whether a tree of parameters holds a quantised kernel."""
    return any(map(is_quantized, jax.tree.leaves(tree, is_leaf=is_quantized)))


def _floats(q: Quantized, dtype: Any) -> jax.Array:
    """The weights as floats, `[*L, in, out...]`: scaled in float32, then cast."""
    axis = q.codes.ndim - 1 - (len(q.matrix) - q.fan_in)
    if q.kind == "int8":
        values = q.codes.astype(jnp.float32)
    else:
        # Shifts along a separate axis: a concatenation of two halves is not fused, at a tenth of the speed.
        shifts = jnp.array([4, 0], jnp.uint8).reshape(2, *(1 for _ in q.codes.shape[axis + 1 :]))
        values = jnp.asarray(NF4)[jnp.expand_dims(q.codes, axis + 1) >> shifts & 15]
        values = values.reshape(*q.codes.shape[:axis], BLOCK, *q.codes.shape[axis + 1 :])
    values = (values * jnp.expand_dims(q.scales, axis)).astype(dtype)
    values = values.reshape(*values.shape[: axis - 1], -1, *values.shape[axis + 1 :])
    return jax.lax.slice_in_dim(values, 0, _inputs(q), axis=axis - 1)


def _inputs(q: Quantized) -> int:
    return math.prod(q.matrix[: q.fan_in])


def _late(x: jax.Array, kernel: Quantized) -> tuple[jax.Array, Quantized]:
    """A kernel that is not available before `x`: otherwise the compiler may hoist the dequantisation out of a loop
    (over tokens or microbatches) in which the kernel is constant, and keep all floats in memory."""
    return jax.lax.optimization_barrier((x, kernel))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: jax.Array, kernel: Quantized, dtype: Any) -> jax.Array:
    """`x W` over the last axes of `x`, the kernel's inputs, in the dtype of `x`, accumulated and returned in `dtype`.

    The matrix exists as floats only during the product. The kernel is a constant: it has no gradient, and the backward
    pass dequantises it again, whereas plain differentiation would keep the floats of every layer.
    """
    x, kernel = _late(x.reshape(*x.shape[: x.ndim - kernel.fan_in], -1), kernel)
    return jnp.tensordot(x, _floats(kernel, x.dtype), 1, preferred_element_type=dtype)


def _forward(x: jax.Array, kernel: Quantized, dtype: Any) -> tuple[jax.Array, Any]:
    return matmul(x, kernel, dtype), (kernel, jnp.zeros((), x.dtype))


def _backward(dtype: Any, saved: tuple[Quantized, jax.Array], grad: jax.Array) -> tuple[jax.Array, None]:
    kernel, like = saved
    grad, kernel = _late(grad, kernel)
    outs = len(kernel.matrix) - kernel.fan_in
    axes = (tuple(range(grad.ndim - outs, grad.ndim)), tuple(range(1, 1 + outs)))
    back = jnp.tensordot(grad, _floats(kernel, grad.dtype), axes)
    inputs = kernel.matrix[: kernel.fan_in]
    return back.reshape(*grad.shape[: grad.ndim - outs], *inputs).astype(like.dtype), None


matmul.defvjp(_forward, _backward)


def check_options(kind: str, targets: Sequence[str]) -> None:
    """**Raises:** `ValueError` for an unknown kind or matrix, with the nearest name, or for no matrix."""
    if kind not in KINDS:
        raise ValueError(f"no quantisation {kind!r}{nearest(kind, list(KINDS))} (there are {', '.join(KINDS)})")
    if not targets:
        raise ValueError(f"there is nothing to quantise; name some of {', '.join(QUANTIZABLE)}")
    for name in targets:
        if name not in QUANTIZABLE:
            raise ValueError(
                f"{name!r} is not a matrix that can be quantised{nearest(name, list(QUANTIZABLE))} "
                f"(there are {', '.join(QUANTIZABLE)})"
            )


def encode(x: jax.Array, kind: str, fan_in: int = 1, stacked: bool = True) -> Quantized:
    """Quantise one kernel: floats `[L, in..., out...]`, without `L` if not `stacked`, with `fan_in` input axes."""
    lead, matrix = (x.shape[:1], x.shape[1:]) if stacked else ((), x.shape)
    inputs, outputs = math.prod(matrix[:fan_in]), matrix[fan_in:]
    axis = len(lead) + 1
    flat = x.astype(jnp.float32).reshape(*lead, inputs, *outputs)
    if short := -inputs % BLOCK:
        flat = jnp.pad(flat, [(0, short if i == axis - 1 else 0) for i in range(flat.ndim)])
    blocks = flat.reshape(*lead, -1, BLOCK, *outputs)
    top = jnp.max(jnp.abs(blocks), axis=axis)
    scales = top / 127 if kind == "int8" else top
    scaled = blocks / jnp.expand_dims(jnp.where(scales > 0, scales, 1.0), axis)
    if kind == "int8":
        return Quantized(jnp.round(scaled).astype(jnp.int8), scales, kind, matrix, fan_in)
    borders = (NF4[1:] + NF4[:-1]) / 2
    codes: Any = sum((scaled > border).astype(jnp.uint8) for border in borders)
    high, low = (jax.lax.slice_in_dim(codes, start, None, 2, axis) for start in (0, 1))
    return Quantized(high << 4 | low, scales, kind, matrix, fan_in)


def replace(tree: Any, targets: Sequence[str], function: Callable[[str, Any], Any]) -> Any:
    """A copy of a tree with the structure of a model's `params` in which the kernel of each target is
    `function(name, kernel)`.

    **Raises:** `ValueError` for `lm_head` if there is none.
    """
    layers = dict(tree["layers"])
    new = {**tree, "layers": layers}
    for name in targets:
        if name == HEAD:
            if HEAD not in tree:
                raise ValueError(
                    "lm_head cannot be quantised: this model ties its head to its embedding, from which rows are read; "
                    "leave it out of the targets"
                )
            new[HEAD] = {**tree[HEAD], "kernel": function(name, tree[HEAD]["kernel"])}
            continue
        block = layers[BLOCKS[name]]
        layers[BLOCKS[name]] = {**block, name: {**block[name], "kernel": function(name, block[name]["kernel"])}}
    return new


def quantize(params: Any, kind: str, *, targets: Sequence[str] = TARGETS) -> Any:
    """Quantise matrices of a model's `params`; norms, biases and the embedding are unchanged.

    Matrices on a mesh are quantised in place, each device its own blocks. Traceable: `jax.eval_shape` gives the shapes.

    **Arguments:** `params`, the collection, in floats; `kind`, `int8` (8.5 bits per weight) or `nf4` (4.5 bits);
    `targets`, matrices of a layer, and `lm_head` if the model has an untied head.
    **Returns:** a new `params`, of the same structure, with a `Quantized` for each kernel among the targets.
    **Raises:** `ValueError` for an unknown kind or target, with the nearest name, for a kernel that is already
    quantised, and, with the arithmetic, if a mesh would split a block.
    """
    check_options(kind, targets)

    def quantize_kernel(name: str, x: Any) -> Quantized:
        if is_quantized(x):
            raise ValueError(f"{name} is quantised already, as {x.kind}: quantise the floats that it was made of")
        fan_in, stacked = _FAN_IN.get(name, 1), name != HEAD
        sharding = None if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return encoder(kind, fan_in, stacked)(x)
        shapes = jax.eval_shape(encoder(kind, fan_in, stacked), x)
        spec = (*sharding.spec, *[None] * (len(x.shape) - len(sharding.spec)))
        split_axes = spec[1 if stacked else 0] or ()
        _check_blocks(name, shapes, sharding.mesh, split_axes if isinstance(split_axes, tuple) else (split_axes,))
        out_shardings = jax.tree.map(
            lambda axes: NamedSharding(sharding.mesh, PartitionSpec(*axes)), _axes(spec, shapes), is_leaf=_is_axes
        )
        return encoder(kind, fan_in, stacked, out_shardings)(x)

    return replace(params, targets, quantize_kernel)


@lru_cache
def encoder(
    kind: str, fan_in: int, stacked: bool, out_shardings: Quantized | None = None
) -> Callable[[Any], Quantized]:
    """`encode`, compiled, with its result placed by a `Quantized` of shardings."""
    function = partial(encode, kind=kind, fan_in=fan_in, stacked=stacked)
    return jax.jit(function, out_shardings=out_shardings)


def dequantize(params: Any, dtype: Any = jnp.float32) -> Any:
    """Same tree with floats, in `dtype`, instead of quantised leaves. Other leaves are unchanged."""
    return jax.tree.map(lambda x: x.astype(dtype) if is_quantized(x) else x, params, is_leaf=is_quantized)


def _is_axes(x: Any) -> bool:
    return type(x) is tuple


def _axes(names: tuple, q: Quantized) -> Quantized:
    """The axis names of codes and scales, from those of the kernel: the blocks' axis has the name of the first input
    axis, and a block is never split."""
    lead = len(names) - len(q.matrix)
    before, block, after = names[:lead], names[lead], names[lead + q.fan_in :]
    return q.replace(codes=(*before, block, None, *after), scales=(*before, block, *after))


def logical_axes(axes: Mapping[str, Any], quantized: Any) -> Any:
    """The logical axes of quantised parameters.

    **Arguments:** `axes`, of the float parameters (`model.logical_axes()["params"]`); `quantized`, the parameters or
    their abstract values.
    **Returns:** a tree for `llmrl_jax.parallel.shardings`.
    """
    return jax.tree.map(
        lambda names, q: _axes(names, q) if is_quantized(q) else names, axes, quantized, is_leaf=_is_axes
    )


def _check_blocks(name: str, q: Quantized, mesh: Mesh | AbstractMesh, split_axes: tuple[str, ...]) -> None:
    inputs, devices = _inputs(q), math.prod(mesh.shape[axis] for axis in split_axes)
    if devices > 1 and inputs % (BLOCK * devices):
        product = " x ".join(f"{axis}={mesh.shape[axis]}" for axis in split_axes)
        raise ValueError(
            f"{name}: {product} would cut a block of {BLOCK} inputs: {inputs} / {BLOCK} / {devices} = "
            f"{inputs / BLOCK / devices:.2f}; choose a mesh that leaves each device whole blocks, or leave the matrix "
            "out of the targets"
        )


def quantized_shardings(quantized: Any, axes: Mapping[str, Any], mesh: Mesh) -> Any:
    """The sharding of every leaf of quantised parameters, by the same rules as floats; no block is ever split.

    **Arguments:** `quantized`, the parameters or their abstract values; `axes`, the logical axes of the float
    parameters; `mesh`.
    **Raises:** `ValueError`, with the arithmetic, if the mesh does not divide an axis or would split a block.
    """

    def check(path: Any, names: Any, q: Any) -> None:
        if is_quantized(q):
            lead = len(names) - len(q.matrix)
            split_axes = tuple(axis for axis in RULES.get(names[lead], ()) if mesh.shape[axis] > 1)
            _check_blocks(jax.tree_util.keystr(path, simple=True, separator="/"), q, mesh, split_axes)

    jax.tree_util.tree_map_with_path(check, axes, quantized, is_leaf=_is_axes)
    return shardings(quantized, logical_axes(axes, quantized), mesh)


def check_shapes(params: Any, declared: Any, name: str) -> None:
    """Compare parameters, some of them quantised, with their declaration. **Raises:** `ValueError`, naming the leaf."""
    shapes: list[dict[str, tuple[int, ...]]] = []
    for tree in (unfreeze(params), declared):
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_quantized)
        shapes.append({jax.tree_util.keystr(p, simple=True, separator="/"): tuple(x.shape) for p, x in leaves})
    present, needed = shapes
    for text in sorted(present.keys() ^ needed.keys()):
        raise ValueError(f"{name}/{text} is {'missing' if text in needed else 'not in the configuration'}")
    for text, shape in needed.items():
        if present[text] != shape:
            raise ValueError(f"{name}/{text} has shape {present[text]}; the configuration asks for {shape}")
