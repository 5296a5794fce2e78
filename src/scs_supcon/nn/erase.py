"""Remove the class from features linearly, with the least change (LEACE, Belrose et al., 2023).

    h⊥ = h − W⁻¹ P W (h − μ)

W = Σ^(−1/2) with Σ the covariance of the features h, shrunk towards a multiple of the identity, and
P the orthogonal projector onto the columns of W Σ_hy, where Σ_hy is the covariance of the features
and the one-hot labels. All classes then have the same mean, so no linear classifier fitted by least
squares is better than a constant, whatever the shrinkage. P has rank K − 1 for K classes with
different means.

The evaluation view of an image differs from its random views, and so do the class means. Given
several views, the means of both kinds are erased (rank 2K − 2).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scs_supcon.errors import UserError

SHRINKAGE = 0.1  # not tuned; 0.001 to 0.5 gave similar style fields on birds50
ROWS = 8192  # per pass
NEGLIGIBLE = 1e-6  # standard deviations between classes, in a direction without class


class Erasure(nn.Module):
    """h -> h − L Rᵀ (h − μ), with L and R of shape `(width, rank)`; at first the identity.

    The rank is part of the state: `load_state_dict` accepts any rank.
    """

    mean: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("left", torch.zeros(width, 0))
        self.register_buffer("right", torch.zeros(width, 0))

    @property
    def rank(self) -> int:
        """Number of directions that are erased."""
        return self.left.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        """Return the features without the class, in their shape."""
        if not self.rank:
            return features
        return features - ((features - self.mean) @ self.right) @ self.left.T

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        for name in ("left", "right"):
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor) and stored.dim() == 2:
                current = getattr(self, name)
                setattr(self, name, current.new_zeros(len(current), stored.shape[1]))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def can_erase(classes: int, width: int) -> bool:
    """Return whether erasing `classes` classes leaves at least half of the directions."""
    return classes - 1 <= width / 2


class ErasedLinear(nn.Module):
    """The projection of the style field: a linear layer on features without the class.

    `fit_erased` sets the layer to the principal directions of these features, which explain most
    of what differs within classes. It may be trained further.
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.erasure = Erasure(width)
        self.layer = nn.Linear(width, dim)

    def forward(self, features: Tensor) -> Tensor:
        """Return `(n, dim)` of features `(n, width)`.

        A h⊥ + a = (A − A L Rᵀ) h + A L Rᵀ μ + a: erasing from the few rows of A is much cheaper
        than from the features of a batch.
        """
        weight, bias, erasure = self.layer.weight, self.layer.bias, self.erasure
        if not erasure.rank:
            return F.linear(features, weight, bias)
        erased = (weight @ erasure.left) @ erasure.right.T
        return F.linear(features, weight - erased, bias + erased @ erasure.mean)


class FeatureMoments(NamedTuple):
    """Means and covariance of features, in float64.

    Attributes:
        mean: `(width,)`.
        covariance: `(width, width)`.
        counts: `(classes,)` numbers of images.
        class_means: `(kinds, classes, width)`, minus the mean of the kind: of the evaluation view
            and of the random views, or of all views together.
    """

    mean: Tensor
    covariance: Tensor
    counts: Tensor
    class_means: Tensor


def fit_erasure(
    features: Tensor, labels: Tensor, classes: int, shrinkage: float = SHRINKAGE
) -> Erasure:
    """Return the erasure of the classes, computed in float64.

    Args:
        features: `(n, width)`, or `(n, views, width)` with the evaluation view first.
        labels: `(n,)` class of each image.
        classes: number of classes; some may have no image.
        shrinkage: share of the identity in the covariance, above 0 and at most 1.

    Raises:
        UserError: more than half of the directions would be erased; see `can_erase`.
    """
    if not 0 < shrinkage <= 1:
        raise UserError(f"shrinkage must be above 0 and at most 1, got {shrinkage}")
    width, present = features.shape[-1], len(set(labels.tolist()))
    if not can_erase(present, width):
        raise UserError(
            f"cannot erase {present} classes from features with {width} columns: at most "
            f"{width // 2 + 1} classes leave half of the directions. Set "
            'head.style_input = "features" and use the style_scatter option of the method'
        )
    if not features.numel():
        return Erasure(width)
    return _erasure(_moments(features, labels, classes), shrinkage)


def fit_erased(
    module: nn.Module,
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    by_variance: bool = False,
) -> int:
    """Fit every `ErasedLinear` inside a module; return the number of erased directions.

    With too many classes (see `can_erase`) nothing is erased and the number is 0.

    Args:
        module: such as a projection head.
        features: `(n, views, width)`, the evaluation view first; further columns are ignored.
        labels: `(n,)` class of each image.
        classes: number of classes.
        by_variance: the standard deviation of a column is that of its direction squared, so that
            directions in which images differ more count more. The directions are dealt out to the
            projections in turn, and columns without a direction become 0.
    """
    projections = [child for child in module.modules() if isinstance(child, ErasedLinear)]
    if not projections or not features.numel():
        return 0
    width = len(projections[0].erasure.mean)
    moments = _moments(features[..., :width], labels, classes)
    erasure = Erasure(width)
    if can_erase(int((moments.counts > 0).sum()), width):
        erasure = _erasure(moments, SHRINKAGE)
    kept = torch.eye(width, dtype=torch.float64) - erasure.left.double() @ erasure.right.double().T
    values, vectors = torch.linalg.eigh(kept @ moments.covariance @ kept.T)
    varied = values > NEGLIGIBLE * values[-1].clamp_min(0)  # none if all features are equal
    principal, values = vectors[:, varied].flip(1).T, values[varied].flip(0)  # largest first
    start = 0
    for number, projection in enumerate(projections):  # with different directions
        projection.erasure.load_state_dict(erasure.state_dict())
        weight, bias = projection.layer.weight, projection.layer.bias
        if by_variance:
            chosen = principal * (values / values[:1]).sqrt()[:, None]
            chosen = chosen[number :: len(projections)][: len(weight)]
            weight.data.zero_()
            bias.data.zero_()
        else:
            chosen = principal[start : start + len(weight)]
        dim = len(chosen)
        start += dim
        if not dim:
            continue
        # The sign of a direction is arbitrary; a fixed one makes equal runs equal.
        largest = chosen.gather(1, chosen.abs().argmax(1, keepdim=True))
        chosen = chosen * largest.sign()
        with torch.no_grad():
            weight[:dim] = chosen.to(weight)
            bias[:dim] = -(chosen @ moments.mean).to(bias)
    return erasure.rank


@torch.no_grad()
def _moments(features: Tensor, labels: Tensor, classes: int) -> FeatureMoments:
    rows = features if features.dim() == 3 else features[:, None]
    n, views, width = rows.shape
    counts = torch.bincount(labels, minlength=classes).double()
    kinds = 2 if views > 1 and can_erase(2 * int((counts > 0).sum()) - 1, width) else 1
    parts = torch.split(rows, ROWS)
    mean = torch.stack([part.double().sum((0, 1)) for part in parts]).sum(0) / (n * views)
    scatter = torch.zeros(width, width, dtype=torch.float64)
    sums = torch.zeros(kinds, classes, width, dtype=torch.float64)
    for part, part_labels in zip(parts, torch.split(labels, ROWS), strict=True):
        for number, view in enumerate(part.unbind(1)):
            centred = view.double() - mean
            scatter += centred.T @ centred
            sums[min(number, kinds - 1)].index_add_(0, part_labels, centred)
    views_of_kind = torch.tensor([1, views - 1] if kinds == 2 else [views])
    class_means = sums / (counts.clamp_min(1)[:, None] * views_of_kind[:, None, None])
    class_means -= torch.einsum("c,kcd->kd", counts / n, class_means)[:, None]
    return FeatureMoments(mean, scatter / (n * views), counts, class_means)


@torch.no_grad()
def _erasure(moments: FeatureMoments, shrinkage: float) -> Erasure:
    erasure = Erasure(len(moments.mean))
    variance = moments.covariance.diagonal().mean()
    if variance <= 0:
        return erasure
    covariance = (1 - shrinkage) * moments.covariance
    covariance.diagonal().add_(shrinkage * variance)
    values, vectors = torch.linalg.eigh(covariance)
    whiten = (vectors * values.rsqrt()) @ vectors.T
    colour = (vectors * values.sqrt()) @ vectors.T
    # The columns of Σ_hy are class means, up to factors, which do not change what they span.
    weights = (moments.counts / moments.counts.sum()).sqrt()
    cross = (weights[:, None] * moments.class_means).flatten(0, 1).T
    directions, sizes, _ = torch.linalg.svd(whiten @ cross, full_matrices=False)
    directions = directions[:, sizes > NEGLIGIBLE]
    erasure.mean = moments.mean.float()
    erasure.left, erasure.right = (colour @ directions).float(), (whiten @ directions).float()
    return erasure
