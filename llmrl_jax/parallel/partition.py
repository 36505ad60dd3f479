"""Sharding rules: one table from the logical names of array axes to mesh axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from llmrl_jax.core.checks import nearest
from llmrl_jax.parallel.hosts import put


Rules = Mapping[str, tuple[str, ...]]

RULES: Rules = {
    "batch": ("data", "fsdp"),
    "few": ("data",),
    "layers": (),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
}
"""Logical axis -> mesh axes. An axis without a name (None) is never split. `few` are the rows of a batch so small that
the weights over `fsdp` stay where they are: each device has all rows, and adds up its part of every product."""


def _spec(path: str, shape: tuple[int, ...], axes: Any, mesh: Mesh | AbstractMesh, rules: Rules) -> PartitionSpec:
    if not isinstance(axes, tuple) or len(axes) != len(shape):
        raise ValueError(f"{path} has shape {shape}, its logical axes are {axes!r}; give a name or None per dimension")
    parts: list[Any] = []
    for dim, (size, axis) in enumerate(zip(shape, axes, strict=True)):
        if axis is None:
            parts.append(None)
            continue
        if axis not in rules:
            close = nearest(axis, list(rules))
            raise ValueError(f"{path}, dimension {dim}: no rule for the logical axis {axis!r}{close}")
        mesh_axes = tuple(a for a in rules[axis] if mesh.shape[a] > 1)
        num_parts = math.prod(mesh.shape[a] for a in mesh_axes)
        if size % num_parts:
            product = " x ".join(f"{a}={mesh.shape[a]}" for a in mesh_axes)
            raise ValueError(
                f"{path}, dimension {dim} ({axis}) has size {size}, which {product}"
                f"{f' = {num_parts}' if len(mesh_axes) > 1 else ''} does not divide: {size} / {num_parts} = "
                f"{size / num_parts:.2f}; choose a mesh whose {' x '.join(mesh_axes)} divides {size}"
            )
        parts.append(mesh_axes if len(mesh_axes) > 1 else mesh_axes[0] if mesh_axes else None)
    return PartitionSpec(*parts)


def shardings(abstract_tree: Any, logical_axes: Any, mesh: Mesh, rules: Rules = RULES) -> Any:
    """Sharding of every leaf.

    **Arguments:** `abstract_tree`, arrays or `jax.ShapeDtypeStruct`s; `logical_axes`, a tree of the same structure
    (it may have more leaves) whose leaves are tuples with one logical name or None per dimension; `mesh`; `rules`.
    **Returns:** a tree of `NamedSharding`.
    **Raises:** `ValueError` for a leaf without axes, an axis without a rule, or a size that its mesh axes do not
    divide, naming the leaf's path, the dimension, the axis and the arithmetic.
    """

    def sharding_of(path, leaf):
        names = logical_axes
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        for entry in path:
            key: Any = getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", None)))
            try:
                names = names[key] if not hasattr(entry, "name") else getattr(names, key)
            except (KeyError, IndexError, TypeError, AttributeError):
                raise ValueError(f"{text} has no logical axes: every leaf must be matched") from None
        return NamedSharding(mesh, _spec(text, tuple(leaf.shape), names, mesh, rules))

    return jax.tree_util.tree_map_with_path(sharding_of, abstract_tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, axis: int = 0, size: int | None = None) -> NamedSharding:
    """Dimension `axis` split over data and fsdp, the others replicated.

    **Arguments:** `axis`, 0 for `[B, ...]`, 1 for `[T, B, ...]`; `size`, the length of that dimension, to check
    it now.
    **Raises:** `ValueError`, with the arithmetic, if data x fsdp does not divide `size`.
    """
    mesh_axes = RULES["batch"]
    parts = math.prod(mesh.shape[a] for a in mesh_axes)
    if size is not None and size % parts:
        product = " x ".join(f"{a}={mesh.shape[a]}" for a in mesh_axes)
        raise ValueError(
            f"a batch of {size} is not divided by {product} = {parts}: {size} / {parts} = {size / parts:.2f}"
        )
    return NamedSharding(mesh, PartitionSpec(*([None] * axis), mesh_axes))


def mesh_of(x: Any) -> Any:
    """The mesh over which the rules split `x`: that of its type, which every array computed from arrays on a mesh has,
    else that of `jax.set_mesh`; None outside of a mesh, and inside `jax.shard_map`, where each device has its own `x`.
    """
    traced_mesh = jax.typeof(x).sharding.mesh if isinstance(x, jax.core.Tracer) else None
    mesh = jax.sharding.get_abstract_mesh() if traced_mesh is None or traced_mesh.empty else traced_mesh
    ruled = {name for entry in RULES.values() for name in entry}
    return None if mesh.empty or mesh.manual_axes or not ruled <= set(mesh.axis_names) else mesh


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrain the sharding of `x` by its logical axes, on the mesh of the arrays that it is computed from; without a
    mesh the identity.

    The mesh is a part of the type of a traced array, so a program that reads sharded weights needs no context: nothing
    that calls a model can forget it. Dimensions that the mesh does not divide are left to the compiler: an activation
    may have any size, unlike a parameter.
    """
    mesh = mesh_of(x)
    if mesh is None:
        return x
    parts: list[Any] = []
    for size, axis in zip(x.shape, axes, strict=True):
        mesh_axes = tuple(a for a in RULES[axis] if mesh.shape[a] > 1) if axis else ()
        divides = mesh_axes and size % math.prod(mesh.shape[a] for a in mesh_axes) == 0
        parts.append(mesh_axes if divides else PartitionSpec.UNCONSTRAINED)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*parts)))


def on_each_device(function: Callable, axes: Sequence[tuple[str | None, ...]], out: tuple[str | None, ...]) -> Callable:
    """A function that runs on each device's part of its arguments, where these are on a mesh; else the function.

    For kernels, which the compiler cannot split. Dimensions that the mesh does not divide are whole on every device.

    **Arguments:** `axes`, the logical axes of the first dimensions of each argument; `out`, those of the result.
    """

    def spec(mesh: Any, shape: tuple[int, ...], names: tuple[str | None, ...]) -> PartitionSpec:
        parts: list[Any] = []
        for size, name in zip(shape, names, strict=False):
            mesh_axes = tuple(a for a in RULES[name] if mesh.shape.get(a, 1) > 1) if name else ()
            parts.append(mesh_axes if mesh_axes and size % math.prod(mesh.shape[a] for a in mesh_axes) == 0 else None)
        return PartitionSpec(*parts)

    def split(*arrays: jax.Array) -> Any:
        mesh = mesh_of(arrays[0])
        if mesh is None:
            return function(*arrays)
        parts = tuple(spec(mesh, x.shape, names) for x, names in zip(arrays, axes, strict=True))
        full_spec = spec(mesh, jax.eval_shape(function, *arrays).shape, out)
        return jax.shard_map(function, mesh=mesh, in_specs=parts, out_specs=full_spec, check_vma=False)(*arrays)

    return split


def gathered(tree: Any, logical_axes: Any) -> Any:
    """Weights of a layer for its products, inside jit: each whole on every device, but for what `tensor` splits.

    Left to itself, the compiler for TPUs makes as many products as there are devices of one with weights over `fsdp`,
    and sends the parts of the weights around. Gathered first, they take one. Gradients are summed to the devices that
    hold the weights. Without a mesh, or without `fsdp`, the identity.

    **Arguments:** `tree`; `logical_axes`, for each of its leaves in their order a tuple with a name or None per
    dimension.
    """
    leaves, structure = jax.tree.flatten(tree)
    names = jax.tree.leaves(logical_axes, is_leaf=lambda x: isinstance(x, tuple))
    return jax.tree.unflatten(structure, [_gathered(x, axes) for x, axes in zip(leaves, names, strict=True)])


def _gathered(x: Any, axes: tuple[str | None, ...]) -> Any:
    mesh = mesh_of(x)
    if mesh is None or mesh.shape["fsdp"] == 1:
        return x
    split = NamedSharding(mesh, _spec("weights", x.shape, axes, mesh, RULES))
    replicated = NamedSharding(mesh, _spec("weights", x.shape, axes, mesh, {**RULES, "embed": ()}))
    if not jnp.issubdtype(x.dtype, jnp.inexact):  # codes of quantised weights, which have no gradient
        return jax.lax.with_sharding_constraint(x, replicated)
    return _gather(replicated, split, x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(replicated: NamedSharding, split: NamedSharding, x: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, replicated)


def _gather_forward(replicated: NamedSharding, split: NamedSharding, x: jax.Array) -> tuple[jax.Array, None]:
    return _gather(replicated, split, x), None


def _gather_backward(replicated: NamedSharding, split: NamedSharding, _: None, dx: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.with_sharding_constraint(dx, split),)


_gather.defvjp(_gather_forward, _gather_backward)


@dataclass(frozen=True)
class Placement:
    """Sharding of a learner's arrays: rows split over data and fsdp, everything else replicated. Without a mesh
    every method returns its argument."""

    mesh: Mesh | None = None

    @property
    def row_devices(self) -> int:
        """Devices over which rows are split."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[a] for a in RULES["batch"])

    def shard_batch(self, tree: Any, axis: int = 0) -> Any:
        """Inside jit: an axis of every leaf split over the devices."""
        if self.mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, batch_sharding(self.mesh, axis))

    def replicate(self, tree: Any) -> Any:
        """Inside jit or outside: every leaf replicated on every device."""
        return tree if self.mesh is None else jax.lax.with_sharding_constraint(tree, replicated(self.mesh))

    def device_put(self, tree: Any) -> Any:
        """Outside jit: leaves on the mesh unchanged, others replicated on every device."""
        mesh = self.mesh
        if mesh is None:
            return tree

        def settle(x):
            in_place = isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh
            return x if in_place else put(x, replicated(mesh))

        return jax.tree.map(settle, tree)
