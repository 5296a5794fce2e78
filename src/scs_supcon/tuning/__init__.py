"""Hyper-parameter search with Optuna."""
