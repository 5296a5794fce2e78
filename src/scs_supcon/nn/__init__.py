"""Encoders, the projection head and the network they form."""
