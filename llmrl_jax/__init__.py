"""Reinforcement learning with language models, in one XLA program."""

from envs_jax.threads import spare_thread


__version__ = "0.1.0"

spare_thread()
