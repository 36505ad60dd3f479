"""Recorded steps on the device and in files, for offline learners and models learned from trajectories."""
