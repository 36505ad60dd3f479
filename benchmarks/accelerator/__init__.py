"""Measurements on an accelerator, in parts of less than eight minutes: `python -m benchmarks.accelerator`."""
