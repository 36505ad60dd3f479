"""Checks of what a user gives, and their messages; `envs_jax.checks` shows the form of each."""

from __future__ import annotations

from envs_jax.checks import above, at_least, between, fields_at_least, nearest


__all__ = ["above", "at_least", "between", "fields_at_least", "nearest"]
