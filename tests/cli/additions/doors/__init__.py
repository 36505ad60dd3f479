"""Doors: a system of four files, to begin another with."""
