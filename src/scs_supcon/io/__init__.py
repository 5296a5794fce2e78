"""Atomic writes, file locks, file digests and CSV escaping; standard library and filelock only."""
