"""A style field of features from which the class is erased linearly (LEACE, Belrose et al., 2023).

    h⊥ = h − W⁻¹ P W (h − μ)

W = Σ^(−1/2) with Σ the covariance of the features h, shrunk towards a multiple of the identity, and
P the orthogonal projector onto the columns of W Σ_hy, where Σ_hy is the covariance of the features
and the one-hot labels. All classes then have the same mean, so no linear classifier fitted by least
squares is better than a constant, whatever the shrinkage. P has rank K − 1 for K classes with
different means.

The evaluation view of an image differs from its random views, and so do the class means. Given
several views, the means of both kinds are erased (rank 2K − 2).
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scs_supcon.nn.head import Projection

SHRINKAGE = 0.1  # not tuned; 0.001 to 0.5 gave similar style fields on birds50
ROWS = 8192  # per pass
NEGLIGIBLE = 1e-6  # standard deviations between classes, in a direction without class


def remove_style(module: nn.Module) -> None:
    """Remove the fitted style field of each `Projection` in a module, for training."""
    for projection in _projections(module):
        projection.style = None


@torch.no_grad()
def with_style(
    module: nn.Module, features: Tensor, labels: Tensor, classes: int, dim: int
) -> nn.Module:
    """Return a copy of a trained head with a style field that is fitted to the final features.

    Its columns are the principal directions of the features without the class, with a scale that
    is the variance of the direction (`style_directions`). The first directions differ most between
    images, least between views of an image, and tell least about the class, which the erasure
    removes from the means but not from the variances. The later ones count less, but explain what
    the first ones leave. They are dealt out to several projections in turn, and columns without a
    direction are 0.

    Args:
        module: a `Projection` or `ProjectionHeads`.
        features: `(n, views, width)` of the training images, the evaluation view first.
        labels: `(n,)` class of each image.
        classes: number of classes.
        dim: number of columns of the style field of each projection.
    """
    module = copy.deepcopy(module)
    projections = _projections(module)
    weight, bias = style_directions(features.cpu(), labels, classes)
    for number, projection in enumerate(projections):
        like = next(projection.parameters())
        style = nn.Linear(weight.shape[1], dim, device=like.device)
        for parameter, directions in ((style.weight, weight), (style.bias, bias)):
            own = directions[number :: len(projections)][:dim]
            parameter.zero_()[: len(own)] = own.to(like)
        projection.style = style.requires_grad_(False)
    return module


def _projections(module: nn.Module) -> list[Projection]:
    return [child for child in module.modules() if isinstance(child, Projection)]


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


def can_erase(classes: int, width: int) -> bool:
    """Return whether erasing `classes` classes leaves at least half of the directions."""
    return classes - 1 <= width / 2


def style_directions(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear map from features to a style field without the class.

    Its columns are the principal directions of h⊥, the largest first. The standard deviation of a
    column is that of its direction squared, so that directions in which images differ more count
    more. With too many classes (see `can_erase`) nothing is erased.

    Args:
        features: `(n, views, width)`, the evaluation view first.
        labels: `(n,)` class of each image.
        classes: number of classes; some may have no image.

    Returns:
        `(k, width)` and `(k,)` in float64, where k is the number of directions that vary.
    """
    moments = feature_moments(features, labels, classes)
    keep = torch.eye(features.shape[-1], dtype=torch.float64)
    if can_erase(int((moments.counts > 0).sum()), features.shape[-1]):
        keep = erasure(moments)
    values, vectors = torch.linalg.eigh(keep @ moments.covariance @ keep.T)
    varied = values > NEGLIGIBLE * values[-1].clamp_min(0)  # none if all features are equal
    directions, values = vectors[:, varied].flip(1).T, values[varied].flip(0)  # largest first
    directions = directions * (values / values[:1]).sqrt()[:, None]
    # The sign of a direction is arbitrary; a fixed one makes equal runs equal.
    directions *= directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    weight = directions @ keep
    return weight, -weight @ moments.mean


@torch.no_grad()
def feature_moments(features: Tensor, labels: Tensor, classes: int) -> FeatureMoments:
    """Return the moments of features `(n, views, width)`, the evaluation view first."""
    n, views, width = features.shape
    counts = torch.bincount(labels, minlength=classes).double()
    kinds = 2 if views > 1 and can_erase(2 * int((counts > 0).sum()) - 1, width) else 1
    parts = torch.split(features, ROWS)
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
def erasure(moments: FeatureMoments, shrinkage: float = SHRINKAGE) -> Tensor:
    """Return I − W⁻¹ P W, of shape `(width, width)`: h⊥ − μ is its product with h − μ.

    Args:
        moments: of the features.
        shrinkage: share of the identity in the covariance, above 0 and at most 1.
    """
    identity = torch.eye(len(moments.mean), dtype=torch.float64)
    variance = moments.covariance.diagonal().mean()
    if variance <= 0:
        return identity
    covariance = (1 - shrinkage) * moments.covariance + shrinkage * variance * identity
    values, vectors = torch.linalg.eigh(covariance)
    whiten = (vectors * values.rsqrt()) @ vectors.T
    colour = (vectors * values.sqrt()) @ vectors.T
    # The columns of Σ_hy are class means, up to factors, which do not change what they span.
    weights = (moments.counts / moments.counts.sum()).sqrt()
    cross = (weights[:, None] * moments.class_means).flatten(0, 1).T
    directions, sizes, _ = torch.linalg.svd(whiten @ cross, full_matrices=False)
    directions = directions[:, sizes > NEGLIGIBLE]
    keep: Tensor = identity - (colour @ directions) @ (directions.T @ whiten)
    return keep
