"""Recorded steps on the device, and in files: for offline learners, and for what is learned from trajectories."""
