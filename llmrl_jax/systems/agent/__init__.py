"""Agents that think and act in text: a language model writes over many turns, and learns by RL."""
