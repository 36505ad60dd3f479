"""A package, so that `python -m tests.parity.babyai_table` finds it before a package `tests` that others install."""
