"""The run directory: layout, checkpoints on disk, metrics log, environment, listing."""
