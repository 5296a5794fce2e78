"""Supervised contrastive learning with a learnable decision boundary."""
