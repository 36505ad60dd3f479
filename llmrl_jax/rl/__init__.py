"""Reinforcement learning: distributions, returns, networks, rollouts, and one file per algorithm."""
