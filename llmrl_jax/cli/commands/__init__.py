"""The groups of commands that belong to no system, one module each."""
