"""A linear classifier in closed form: what can be read from vectors without any setting to choose.

Classes are taken to be Gaussian with one covariance (Fisher's linear discriminant):

    score_c(x) = xᵀ S⁻¹ μ_c − ½ μ_cᵀ S⁻¹ μ_c + ln(n_c / n),    p = softmax(score)

μ_c are the class means, S the covariance within classes, shrunk towards a multiple of the identity
by as much as its own noise asks for (Ledoit and Wolf, 2004), so that few images of many columns
do no harm. Nothing is iterated and nothing is drawn: the same rows give the same answer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096


@dataclass(frozen=True)
class Moments:
    """Sums over rows from which a classifier follows; sums of two sets add up.

    Attributes:
        counts: rows of each class (classes,).
        sums: of the rows of each class (classes, D).
        gram: Σ x xᵀ (D, D).
        fourth: Σ ‖x − μ‖⁴ about the class means of the whole set, for the shrinkage.
    """

    counts: Tensor
    sums: Tensor
    gram: Tensor
    fourth: Tensor

    def __sub__(self, other: "Moments") -> "Moments":
        """What is left when some of the rows are taken away."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Moments(*(a - b for a, b in pairs))


@dataclass(frozen=True)
class Linear:
    """score(x) = W x + a, float64."""

    weight: Tensor
    bias: Tensor

    def scores(self, rows: Tensor) -> Tensor:
        """Scores (n, classes) of rows (n, D); −inf for classes without a row to learn from."""
        return rows.double() @ self.weight.T + self.bias


def moments(rows: Tensor, labels: Tensor, classes: int, means: Tensor | None = None) -> Moments:
    """Sum rows (n, D), a chunk at a time; `means` are the class means, if they are known."""
    width = rows.shape[1]
    counts = torch.bincount(labels, minlength=classes).double()
    sums = torch.zeros(classes, width, dtype=torch.float64).index_add_(0, labels, rows.double())
    if means is None:
        means = sums / counts.clamp_min(1)[:, None]
    gram = torch.zeros(width, width, dtype=torch.float64)
    fourth = torch.zeros((), dtype=torch.float64)
    for some, own in zip(torch.split(rows, CHUNK), torch.split(labels, CHUNK), strict=True):
        gram += (some.T @ some).double()
        fourth += (some - means[own]).square().sum(1).square().sum()
    return Moments(counts, sums, gram, fourth)


def from_moments(m: Moments) -> Linear:
    """The classifier that follows from the sums."""
    n, width = m.counts.sum(), m.sums.shape[1]
    present = m.counts > 0
    means = m.sums / m.counts.clamp_min(1)[:, None]
    within = (m.gram - m.sums.T @ means) / n
    size = within.diagonal().sum() / width
    if size <= 0:  # every row is its class's mean: any measure of distance will do
        within, size = torch.eye(width, dtype=torch.float64), torch.ones(())
    noise = (m.fourth / n - within.square().sum()) / n
    spread = within.square().sum() - width * size.square()
    share = 1.0 if spread <= noise else max(float(noise / spread), 1e-6)
    shrunk = (1 - share) * within
    shrunk.diagonal().add_(share * size)
    weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(shrunk)).T
    bias = (m.counts / n).log() - (weight * means).sum(1) / 2
    return Linear(weight, torch.where(present, bias, -torch.inf))


def fit(rows: Tensor, labels: Tensor, classes: int) -> Linear:
    """Fit to rows (n, D)."""
    return from_moments(moments(rows, labels, classes))
