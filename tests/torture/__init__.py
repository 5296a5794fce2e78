"""Try to lose work or to crash commands, and count: `make torture`."""
