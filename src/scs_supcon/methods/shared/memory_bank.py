"""A memory bank: the last rows of each class, as additional pairs for small batches."""

import torch
from torch import Tensor, nn


class MemoryBank(nn.Module):
    """The last `size` rows of each class, without gradient; empty at the start.

    The rows are buffers, so a checkpoint contains them.

    Args:
        classes: number of classes; labels are 0 to classes − 1.
        size: number of rows kept for each class.
        dim: number of columns.
        like: tensor with the dtype and device of the rows.
    """

    rows: Tensor
    pushed: Tensor

    def __init__(self, classes: int, size: int, dim: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", like.new_zeros(classes, size, dim))
        # Rows of each class that were ever added: the next one replaces row `pushed % size`.
        pushed = torch.zeros(classes, dtype=torch.long, device=like.device)
        self.register_buffer("pushed", pushed)

    def contents(self) -> tuple[Tensor, Tensor]:
        """Return the rows in the bank, sorted by class, and their labels."""
        slots = torch.arange(self.rows.shape[1], device=self.rows.device)
        filled = slots < self.pushed[:, None]
        return self.rows[filled], filled.nonzero()[:, 0]

    @torch.no_grad()
    def push(self, rows: Tensor, labels: Tensor) -> None:
        """Add rows in their order, overwriting the oldest ones of their class."""
        size = self.rows.shape[1]
        labels, order = torch.sort(labels, stable=True)
        counts = torch.bincount(labels, minlength=len(self.pushed))
        first = counts.cumsum(0) - counts
        number = torch.arange(len(labels), device=labels.device) - first[labels]
        kept = number >= counts[labels] - size
        slots = (self.pushed[labels] + number) % max(size, 1)
        self.rows[labels[kept], slots[kept]] = rows[order[kept]].to(self.rows)
        self.pushed += counts
