"""The whitened cosine: features at unit length, whitened by the covariance within classes.

    c⁰ = unit(S_γ^(−1/2) (unit(h) − μ)),    S_γ = (1 − γ) S_w + γ (tr S_w / d) I

μ is the mean and S_w the covariance within classes of unit(h) over the training images, γ the
shrinkage. Directions in which images of a class differ count less, so that the cosine of c⁰
compares what separates the classes. It is a closed form: nothing is trained.

To keep the vectors short, only some directions are used: first those that the class means span, so
that the nearest class mean stays the same (if there are enough for all class means), then the
principal components of the rest. Directions in which the training images do not differ at all,
because they are fewer than the columns, are left out: nothing is known about them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scs_supcon.nn.head import unit


class Whitening(nn.Module):
    """h -> unit((unit(h) − μ) A), with A of shape `(width, directions)`."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("matrix", matrix)

    def forward(self, features: Tensor) -> Tensor:
        """Return c⁰ (n, directions) of features (n, F), in their dtype."""
        return unit((unit(features) - self.mean) @ self.matrix)


@torch.no_grad()
def fit_whitenings(
    features: Tensor, labels: Tensor, shrinkages: Sequence[float], directions: int
) -> list[Whitening]:
    """Return one whitening for each shrinkage γ, computed in float64.

    Args:
        features: (n, F) features of the evaluation view of the training images.
        labels: (n,)
        shrinkages: values of γ.
        directions: largest number of columns.
    """
    rows = unit(features.double())
    mean = rows.mean(0)
    counts = torch.bincount(labels).clamp_min(1).double()
    sums = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, labels, rows)
    centred = rows - mean
    within = rows - (sums / counts[:, None])[labels]
    values, vectors = torch.linalg.eigh(within.T @ within / len(rows))
    values = values.clamp_min(0)
    variance = values.mean()
    if variance <= 0:  # every image equals its class mean: nothing to whiten
        values, variance = torch.ones_like(values), values.new_ones(())
    rotated = centred @ vectors
    result = []
    for shrinkage in shrinkages:
        # γ = 0 with fewer images than columns would divide by zero.
        scales = ((1 - shrinkage) * values + max(shrinkage, 1e-3) * variance).rsqrt()
        matrix = vectors * scales
        if directions < len(mean):
            matrix = matrix @ _directions(rotated * scales, labels, directions)
        result.append(Whitening(mean, matrix))
    return result


def _directions(rows: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return at most `count` orthonormal directions (D, ≤ count) of whitened rows (n, D).

    There are fewer if the rows span fewer, but at least one.
    """
    counts = torch.bincount(labels).clamp_min(1).double()
    sums = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, labels, unit(rows))
    basis, sizes, _ = torch.linalg.svd((sums / counts[:, None]).T, full_matrices=False)
    basis = basis[:, sizes > 1e-9 * sizes.amax().clamp_min(1e-300)][:, :count]
    rest = rows - (rows @ basis) @ basis.T
    values, components = torch.linalg.eigh(rest.T @ rest)
    spanned = int((values > 1e-9 * rows.square().sum()).sum())
    missing = max(min(count - basis.shape[1], spanned), 1 - basis.shape[1])
    return torch.cat([basis, components[:, len(components) - missing :]], 1)
