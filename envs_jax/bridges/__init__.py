"""Bridges between our environment interface and those of other packages, in both directions.

Each module needs its package, an optional dependency, and is imported by name: `import envs_jax.bridges.gymnasium`.
"""
