"""Atomic writes, file locks and CSV escaping."""
