"""Shared by all parts of the library: configurations and their resume rules, atomic files, checks and messages."""
