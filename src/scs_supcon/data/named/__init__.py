"""Datasets of the paper by name: one reader per file, and the registry that finds them."""
