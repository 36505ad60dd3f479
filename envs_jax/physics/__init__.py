"""Rigid-body physics for every world with bodies: C MuJoCo and MJX behind one interface."""
