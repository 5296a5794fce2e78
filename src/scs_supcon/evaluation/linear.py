"""A linear classifier in closed form, without hyperparameters.

Classes are assumed to be Gaussian with one covariance (Fisher's linear discriminant):

    score_c(x) = xᵀ S⁻¹ μ_c − ½ μ_cᵀ S⁻¹ μ_c + ln(n_c / n),    p = softmax(score)

μ_c are the class means, S the covariance within classes, shrunk towards a multiple of the identity
by the amount of Ledoit and Wolf (2004), so that it can be estimated from few images. It is computed
from sums over rows, from which rows can be subtracted: `label_errors.py` fits each fold without
summing the other rows again, which `sklearn.discriminant_analysis` cannot do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096


@dataclass(frozen=True)
class Moments:
    """Sums over rows that determine a classifier.

    Attributes:
        counts: numbers of rows of the classes (classes,).
        sums: sums of the rows of the classes (classes, D).
        gram: Σ x xᵀ (D, D).
        fourth: Σ ‖x − μ‖⁴ about the class means of the whole set, for the shrinkage.
    """

    counts: Tensor
    sums: Tensor
    gram: Tensor
    fourth: Tensor

    def __sub__(self, other: "Moments") -> "Moments":
        """Return the sums without the rows of `other`."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Moments(*(a - b for a, b in pairs))


@dataclass(frozen=True)
class LinearDiscriminant:
    """score(x) = W x + a, float64."""

    weight: Tensor
    bias: Tensor

    def scores(self, rows: Tensor) -> Tensor:
        """Return scores (n, classes) of rows (n, D); −inf for classes without training rows."""
        return rows.double() @ self.weight.T + self.bias


def moments(rows: Tensor, labels: Tensor, classes: int, means: Tensor | None = None) -> Moments:
    """Return the sums over rows (n, D), which may be a subset of rows with class means `means`."""
    width = rows.shape[1]
    counts = torch.bincount(labels, minlength=classes).double()
    sums = torch.zeros(classes, width, dtype=torch.float64).index_add_(0, labels, rows.double())
    if means is None:
        means = sums / counts.clamp_min(1)[:, None]
    gram = torch.zeros(width, width, dtype=torch.float64)
    fourth = torch.zeros((), dtype=torch.float64)
    for x, y in zip(torch.split(rows, CHUNK), torch.split(labels, CHUNK), strict=True):
        gram += (x.T @ x).double()
        fourth += (x - means[y]).square().sum(1).square().sum()
    return Moments(counts, sums, gram, fourth)


def from_moments(m: Moments) -> LinearDiscriminant:
    """Return the classifier, given sums over its training rows."""
    n, width = m.counts.sum(), m.sums.shape[1]
    present = m.counts > 0
    means = m.sums / m.counts.clamp_min(1)[:, None]
    within = (m.gram - m.sums.T @ means) / n
    variance = within.diagonal().sum() / width
    if variance <= 0:  # every row equals its class mean, so any covariance will do
        within, variance = torch.eye(width, dtype=torch.float64), torch.ones(())
    noise = (m.fourth / n - within.square().sum()) / n
    spread = within.square().sum() - width * variance.square()
    shrinkage = 1.0 if spread <= noise else max(float(noise / spread), 1e-6)
    weight = torch.cholesky_solve(means.T, _shrunk_cholesky(within, variance, shrinkage)).T
    bias = (m.counts / n).log() - (weight * means).sum(1) / 2
    return LinearDiscriminant(weight, torch.where(present, bias, -torch.inf))


def fit(rows: Tensor, labels: Tensor, classes: int) -> LinearDiscriminant:
    """Return a classifier fitted to rows (n, D)."""
    return from_moments(moments(rows, labels, classes))


def _shrunk_cholesky(covariance: Tensor, variance: Tensor, shrinkage: float) -> Tensor:
    """Return the Cholesky factor of the shrunk covariance.

    With few or duplicated rows, rounding can make the covariance slightly indefinite; it is then
    shrunk further, at most to a multiple of the identity.
    """
    while True:
        shrunk = (1 - shrinkage) * covariance
        shrunk.diagonal().add_(shrinkage * variance)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(shrunk)
        if not failed or shrinkage >= 1:
            return factor
        shrinkage = min(1.0, 10 * shrinkage)
