"""Device mesh for everything: its axes, the rules that shard arrays over it, and the start of several hosts."""

from llmrl_jax.parallel.hosts import initialize
from llmrl_jax.parallel.mesh import AXES, MeshSpec, make_mesh
from llmrl_jax.parallel.partition import RULES, Placement, batch_sharding, constrain, gathered, replicated, shardings


__all__ = [
    "AXES",
    "RULES",
    "MeshSpec",
    "Placement",
    "batch_sharding",
    "constrain",
    "gathered",
    "initialize",
    "make_mesh",
    "replicated",
    "shardings",
]
