"""Reinforcement learning with language models, in one XLA program."""

__version__ = "0.1.0"
