"""Crafter in words: the captions of ELLM, those of SmartPlay, and lists of everything in view with exact offsets.

Every caption is computed inside jit from one view, `uint8[9, 7, 2]` indexed `[x, y, plane]`: plane 0 is the material of
a cell (`constants.MATERIALS`, 0 outside the world), plane 1 what is on it (`constants.SPRITES`, 0 for nothing). The
player is at (4, 3).
"""

from envs_jax.crafter.text import ellm, instances, smartplay


__all__ = ["ellm", "instances", "smartplay"]
