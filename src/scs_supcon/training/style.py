"""Fit the style field of a trained encoder after stage 1.

Style is projected from features whose class was erased linearly, along their principal directions.
The erasure makes the class means equal, but classes can still differ in other ways, such as in
their variance, and with many directions the neighbours of an image in style are mostly of its
class. The later directions also change more with the view than with the image. The first ones
explain most of what differs within classes, so that only as many are used as keep the purity of
neighbours low (`evaluation.leakage.purity`) and two views of an image similar.
"""

import math

import torch
from torch import Tensor, nn

from scs_supcon.evaluation.leakage import purity, view_agreement
from scs_supcon.kernels.layout import evenly_spaced
from scs_supcon.nn.head import Projection, fit_style, unit

# On the handwritten digits, 0.4 on training images is 0.2 on test images, which are fewer and were
# not trained on.
MAX_PURITY = 0.4
MIN_VIEW_GAP = 0.3  # similarity of two views of an image minus that of two images of a class
ENOUGH = 0.6  # share of the variance of all columns, from which on the views count
MIN_DIRECTIONS = 4
MAX_IMAGES = 2000


@torch.no_grad()
def fit_style_field(projection: nn.Module, features: Tensor, labels: Tensor, classes: int) -> int:
    """Fit the style field to the final features of the training images.

    Args:
        projection: the head, or several heads.
        features: (n, views, F), the evaluation view first.
        labels: (n,)
        classes: number of classes.

    Returns:
        The number of columns that are used; 0 without a style field from erased features.
    """
    fit_style(projection, features, labels, classes)
    subset = evenly_spaced(len(features), MAX_IMAGES)
    rows, variances = _style_columns(projection, features[subset, :3])
    columns = rows.shape[2]
    if columns <= MIN_DIRECTIONS or not len(rows):
        return columns
    shares = variances.cumsum(0) / variances.sum().clamp_min(1e-300)
    used = MIN_DIRECTIONS
    for count in range(MIN_DIRECTIONS + 2, columns + 1, 2):
        styles = unit(rows[:, :, :count].flatten(0, 1)).view(*rows.shape[:2], count)
        value = purity(styles[:, 0], labels[subset])
        too_pure = value is not None and value > MAX_PURITY
        changes = shares[used - 1] >= ENOUGH and _view_gap(styles, labels[subset]) < MIN_VIEW_GAP
        if too_pure or changes:
            fit_style(projection, features, labels, classes, directions=used)
            return used
        used = count
    return columns


def _view_gap(styles: Tensor, labels: Tensor) -> float:
    """Return the view gap of unit rows (n, views, D); infinite without two random views."""
    if styles.shape[1] < 3:
        return math.inf
    views = styles[:, 1], styles[:, 2]
    agreement = view_agreement(views, views, labels)
    same_class = agreement.style_same_class
    return math.inf if same_class is None else agreement.style_same_image - same_class


def _style_columns(projection: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the style columns of all heads side by side, largest variance first.

    Args:
        projection: the head, or several heads.
        features: (n, views, F).

    Returns:
        Standardised columns (n, views, D), and their variances (D,) before that, times a constant.
    """
    parts, variances = [], []
    for head in projection.modules():
        if isinstance(head, Projection) and head.style is not None:
            training = head.training
            rows = features.flatten(0, 1).to(next(head.parameters()))
            embeddings = head.eval()(rows)
            head.train(training)
            parts.append(embeddings[:, -head.style.layer.out_features :].cpu().double())
            columns = head.style(rows).double().cpu()
            variances.append((columns - columns.mean(0)).square().sum(0))
    if not parts:
        return features.new_empty(*features.shape[:2], 0), features.new_empty(0)
    joined = torch.cat(parts, 1)
    return joined.view(*features.shape[:2], joined.shape[1]), torch.cat(variances)
