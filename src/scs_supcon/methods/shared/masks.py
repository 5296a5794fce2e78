"""Boolean `(n, n)` masks of the pairs of a batch."""

import torch
from torch import Tensor


def positives(labels: Tensor) -> Tensor:
    """Return the positive pairs: two different rows of the same class."""
    same: Tensor = labels[:, None] == labels[None, :]
    return same & ~diagonal(labels)


def negatives(labels: Tensor) -> Tensor:
    """Return the negative pairs: two rows of different classes."""
    different: Tensor = labels[:, None] != labels[None, :]
    return different


def diagonal(rows: Tensor) -> Tensor:
    """Return the pairs of each row with itself."""
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)
