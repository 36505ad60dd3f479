"""Measurements on an accelerator, within eight minutes: `python -m benchmarks.accelerator`."""
