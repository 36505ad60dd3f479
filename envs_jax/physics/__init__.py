"""Rigid-body physics: C MuJoCo and MJX behind one interface."""
