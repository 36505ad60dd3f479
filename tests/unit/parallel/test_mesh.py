"""Meshes and partition rules: their arithmetic, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from llmrl_jax.parallel import (
    MeshSpec,
    batch_sharding,
    constrain,
    gathered,
    initialize,
    make_mesh,
    replicated,
    shardings,
)


def test_specifications_are_read():
    assert MeshSpec.parse("data=4, fsdp=2") == MeshSpec(4, 2, 1)
    assert MeshSpec.parse("") == MeshSpec(1, 1, 1)
    mesh = make_mesh("data=2,tensor=4")
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tensor": 4}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert make_mesh("fsdp=2").devices.size == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("data=4,fsdp=3", "data=4 x fsdp=3.*12.*8"),
        ("data=3", "data=3.*3.*8"),
        ("fdsp=2", "'fdsp'.*'fsdp'"),
        ("data", "NAME=NUMBER"),
        ("data=x", "NAME=NUMBER"),
        ("data=2,data=4", "data.*twice.*'data=2,data=4'"),
        ("data=0", "data.*0.*1"),
    ],
)
def test_bad_specifications_show_the_arithmetic(spec, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(spec)


def leaf(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_leaves_are_sharded_by_name():
    mesh = make_mesh("data=2,fsdp=2,tensor=2")
    tree = {"a": {"kernel": leaf(3, 8, 4)}, "b": [leaf(6, 4)]}
    axes = {"a": {"kernel": ("layers", "embed", "heads")}, "b": [("batch", None)], "more": ("embed",)}
    with pytest.raises(ValueError, match="b/0.*0.*6.*data=2 x fsdp=2 = 4"):
        shardings(tree, axes, mesh)
    tree["b"] = [leaf(8, 4)]
    got = shardings(tree, axes, mesh)
    assert got["a"]["kernel"].spec == PartitionSpec(None, "fsdp", "tensor")
    assert got["b"][0].spec == PartitionSpec(("data", "fsdp"), None)


def test_unmatched_leaves_are_refused():
    mesh = make_mesh("fsdp=2")
    with pytest.raises(ValueError, match="a/bias"):
        shardings({"a": {"bias": leaf(4)}}, {"a": {"kernel": ("embed",)}}, mesh)
    with pytest.raises(ValueError, match="^a, .*0.*'embd'.*'embed'"):
        shardings({"a": leaf(4)}, {"a": ("embd",)}, mesh)
    with pytest.raises(ValueError, match=r"^a .*\(4, 4\)"):
        shardings({"a": leaf(4, 4)}, {"a": ("embed",)}, mesh)


def test_batches_are_split_over_data_and_fsdp():
    mesh = make_mesh("data=2,fsdp=2,tensor=2")
    x = jax.device_put(jnp.arange(24.0).reshape(3, 8), batch_sharding(mesh, axis=1, size=8))
    assert x.addressable_shards[0].data.shape == (3, 2)
    with pytest.raises(ValueError, match=r"6.*data=2 x fsdp=2 = 4: 6 / 4 = 1\.50"):
        batch_sharding(mesh, size=6)
    assert jax.device_put(jnp.ones(3), replicated(mesh)).addressable_shards[0].data.shape == (3,)


def test_constraints_act_under_a_mesh_only():
    x = jnp.ones((8, 3))
    assert constrain(x, "batch", None) is x
    with jax.set_mesh(make_mesh("data=4")):
        spread = jax.jit(lambda a: constrain(a * 2, "batch", None))(x)
        assert spread.addressable_shards[0].data.shape == (2, 3)
        odd = jax.jit(lambda a: constrain(a * 2, "batch", None))(jnp.ones((3, 3)))
        assert odd.shape == (3, 3)


def test_constraints_find_the_mesh_of_the_arrays():
    """Without `jax.set_mesh`, through loops and gradients; inside `jax.shard_map` each device has its own array."""
    mesh = make_mesh("data=2,fsdp=2")
    weights = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec("fsdp")))

    def spread(w, x):
        return jax.lax.scan(lambda x, _: (constrain(jnp.sin(x @ w), "batch", None), None), x, None, 2)[0]

    made = jax.jit(spread)(weights, jnp.ones((8, 4)))
    assert made.addressable_shards[0].data.shape == (2, 4)
    text = jax.jit(jax.grad(lambda w: spread(w, jnp.ones((8, 4))).sum())).lower(weights).as_text()
    assert text.count("sharding_constraint") >= 2  # of the values, and of their gradients
    rows = PartitionSpec(("data", "fsdp"))
    own = jax.shard_map(lambda x: constrain(2 * x, "batch", None), mesh=mesh, in_specs=rows, out_specs=rows)
    assert own(jnp.ones((8, 4))).sum() == 64


def test_weights_are_gathered_over_fsdp_and_their_gradients_are_not():
    mesh = make_mesh("fsdp=4,tensor=2")
    over = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    tree = {"w": jax.device_put(jnp.ones((4, 4)), over), "codes": jax.device_put(jnp.ones((4, 4), jnp.int8), over)}
    axes = {"w": ("embed", "mlp"), "codes": ("embed", "mlp")}
    for x in jax.tree.leaves(jax.jit(lambda t: gathered(t, axes))(tree)):
        assert x.addressable_shards[0].data.shape == (4, 2)

    def total(w):
        return jnp.sum(gathered(tree | {"w": w}, axes)["w"] ** 2)

    grad = jax.jit(jax.grad(total))(tree["w"])
    assert grad.addressable_shards[0].data.shape == (1, 2) and float(grad.sum()) == 32
    alone = {"w": jnp.ones((4, 4))}
    assert gathered(alone, axes["w"])["w"] is alone["w"]


def test_starting_hosts_needs_all_or_nothing():
    with pytest.raises(ValueError, match="--hosts.num-processes, --hosts.process-id missing"):
        initialize("localhost:1234")
    header, row = initialize().splitlines()
    assert header.split() == ["process", "host", "devices", "kind"] and row.startswith("0 ") and "8 x cpu" in row
