"""Compatibility: the two published schemas of configuration files, and the protocol before ProPS."""
