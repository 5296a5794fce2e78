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
from scs_supcon.nn.style import ROWS


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
    """Return one whitening for each shrinkage γ, computed in float64, some rows at a time.

    Args:
        features: (n, F) features of the evaluation view of the training images.
        labels: (n,)
        shrinkages: values of γ.
        directions: largest number of columns.
    """
    parts = list(zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True))
    counts = torch.bincount(labels).clamp_min(1).double()
    width = features.shape[1]
    sums = torch.zeros(len(counts), width, dtype=torch.float64)
    for part, part_labels in parts:
        sums.index_add_(0, part_labels, unit(part.double()))
    mean, class_means = sums.sum(0) / len(labels), sums / counts[:, None]
    within, total = sums.new_zeros(width, width), sums.new_zeros(width, width)
    for part, part_labels in parts:
        rows = unit(part.double())
        centred, differences = rows - mean, rows - class_means[part_labels]
        within += differences.T @ differences
        total += centred.T @ centred
    values, vectors = torch.linalg.eigh(within / len(labels))
    values = values.clamp_min(0)
    variance = values.mean()
    if variance <= 0:  # every image equals its class mean: nothing to whiten
        values, variance = torch.ones_like(values), values.new_ones(())
    total = vectors.T @ total @ vectors
    result = []
    for shrinkage in shrinkages:
        # γ = 0 with fewer images than columns would divide by zero.
        scales = ((1 - shrinkage) * values + max(shrinkage, 1e-3) * variance).rsqrt()
        matrix = vectors * scales
        if directions < width:
            sums = sums.new_zeros(sums.shape)
            for part, part_labels in parts:
                whitened = unit((unit(part.double()) - mean) @ matrix)
                sums.index_add_(0, part_labels, whitened)
            scatter = scales[:, None] * total * scales
            matrix = matrix @ _directions(sums / counts[:, None], scatter, directions)
        result.append(Whitening(mean, matrix))
    return result


def _directions(class_means: Tensor, scatter: Tensor, count: int) -> Tensor:
    """Return at most `count` orthonormal directions (D, ≤ count) of whitened rows.

    There are fewer if the rows span fewer, but at least one.

    Args:
        class_means: (classes, D) means of the rows at unit length.
        scatter: (D, D) sum of the outer products of the rows.
        count: largest number of directions.
    """
    basis, sizes, _ = torch.linalg.svd(class_means.T, full_matrices=False)
    basis = basis[:, sizes > 1e-9 * sizes.amax().clamp_min(1e-300)][:, :count]
    rest = scatter - basis @ (basis.T @ scatter)
    values, components = torch.linalg.eigh(rest - (rest @ basis) @ basis.T)
    spanned = int((values > 1e-9 * scatter.trace()).sum())
    missing = max(min(count - basis.shape[1], spanned), 1 - basis.shape[1])
    return torch.cat([basis, components[:, len(components) - missing :]], 1)
