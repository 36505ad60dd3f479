"""Command groups that do not belong to a system, one module each."""
