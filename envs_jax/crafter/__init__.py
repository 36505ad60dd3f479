"""Crafter with the rules of the package crafter 1.8.3, and its variants with text."""
