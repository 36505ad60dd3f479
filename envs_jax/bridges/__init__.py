"""Our worlds under the interfaces of other packages, and theirs under ours.

Each module here needs its package, which is optional, and is imported by name: `import envs_jax.bridges.gymnasium`.
"""
