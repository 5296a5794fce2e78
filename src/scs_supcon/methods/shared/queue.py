"""A queue of past embeddings."""

import torch
from torch import Tensor, nn


class Queue(nn.Module):
    """A first-in, first-out queue of rows and their labels; empty at the start.

    Args:
        size: maximum number of rows.
        dim: number of columns.
        like: tensor with the dtype and device of the rows.
    """

    rows: Tensor
    labels: Tensor
    pushed: Tensor

    def __init__(self, size: int, dim: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", like.new_zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.long, device=like.device))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long, device=like.device))

    def contents(self) -> tuple[Tensor, Tensor]:
        """Return the rows in the queue and their labels."""
        filled = min(int(self.pushed), len(self.rows))
        return self.rows[:filled], self.labels[:filled]

    @torch.no_grad()
    def push(self, rows: Tensor, labels: Tensor | None = None) -> None:
        """Add rows, overwriting the oldest ones."""
        size = len(self.rows)
        rows = rows[-size:] if size else rows[:0]
        if not len(rows):
            return
        positions = (self.pushed + torch.arange(len(rows), device=self.rows.device)) % size
        self.rows[positions] = rows.to(self.rows)
        if labels is not None:
            self.labels[positions] = labels[-size:]
        self.pushed += len(rows)
