"""Agents that think, act and read over many turns: formats of their replies, and the health of their training."""
