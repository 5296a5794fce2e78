"""Thresholds below which an image is rejected as unknown."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scs_supcon.errors import UserError

FALSE_REJECTIONS = 0.05  # share of the held-out images of known classes that are rejected
CLASS_IMAGES = 20  # held-out images of a class from which on it has a threshold of its own
QUANTILES = 101  # of the margins of held-out images: 0%, 1%, … 100%


def rejection_thresholds(
    similarities: Tensor, rate: float = FALSE_REJECTIONS
) -> tuple[float, Tensor]:
    """Return the threshold over all classes, and the threshold of each class.

    An image is rejected if its similarity to every class is below the threshold of the class. The
    threshold over all classes is the `rate` quantile of the largest similarity of each held-out
    image. A class that is predicted for at least 20 held-out images gets a mean of this threshold,
    with the weight of 20 images, and of the quantile of its own images. All thresholds are then
    shifted so that the share `rate` of the held-out images is rejected.

    Args:
        similarities: (n, classes) of held-out images of known classes.
        rate: share of these images to reject.
    """
    scores, predicted = similarities.double().max(1)
    pooled = float(scores.quantile(rate))
    thresholds = similarities.new_full((similarities.shape[1],), pooled, dtype=torch.float64)
    for label, count in enumerate(torch.bincount(predicted, minlength=len(thresholds)).tolist()):
        if count >= CLASS_IMAGES:
            quantile = float(scores[predicted == label].quantile(rate))
            thresholds[label] = (count * quantile + CLASS_IMAGES * pooled) / (count + CLASS_IMAGES)
    shift = (similarities.double() - thresholds).amax(1).quantile(rate)
    return pooled, thresholds + shift


def margin_quantiles(similarities: Tensor, thresholds: Tensor) -> tuple[float, ...]:
    """Return the quantiles 0%, 1%, … 100% of the largest margins over the thresholds.

    Args:
        similarities: (n, classes) of held-out images of known classes.
        thresholds: (classes,)
    """
    margins = (similarities.double() - thresholds).amax(1)
    shares = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    return tuple(margins.quantile(shares).tolist())


def shift_for_rate(margins: Sequence[float], rate: float) -> float:
    """Return what to add to all thresholds to reject the share `rate` of known images.

    Args:
        margins: from `margin_quantiles`.
        rate: from 0 to 1.
    """
    if not 0 <= rate < 1:
        raise UserError(
            f"the false-rejection rate is a share from 0 to 1, such as 0.1, got {rate:g}"
        )
    if not margins:
        raise UserError(
            "this model does not store how similar held-out images are, because an older version "
            "trained it or its threshold was changed: give a threshold, or train it again"
        )
    position = rate * (len(margins) - 1)
    below = int(position)
    return margins[below] + (position - below) * (margins[below + 1] - margins[below])


def rejection_rate(margins: Sequence[float]) -> float:
    """Return the share of known images that are rejected; the inverse of `shift_for_rate`.

    Args:
        margins: from `margin_quantiles`, at least two; an image is rejected if its margin is
            below 0.
    """
    below = sum(margin < 0 for margin in margins)
    if below in (0, len(margins)):
        return float(below > 0)
    first, second = margins[below - 1], margins[below]
    return (below - 1 - first / (second - first)) / (len(margins) - 1)
