"""Checks of what a user gives, and their messages."""

from __future__ import annotations

from envs_jax.checks import nearest


__all__ = ["nearest"]
