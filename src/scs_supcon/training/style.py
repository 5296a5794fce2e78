"""Fit the style field of a trained encoder after stage 1.

Style is projected from features whose class was erased linearly, along their principal directions.
The erasure makes the class means equal, but classes can still differ in other ways, such as in
their variance, and with many directions the neighbours of an image in style are mostly of its
class. The first directions explain most of what differs within classes, so that only as many are
used as keep the purity of neighbours (`evaluation.leakage.purity`) low.
"""

import torch
from torch import Tensor, nn

from scs_supcon.evaluation.leakage import purity
from scs_supcon.kernels.layout import evenly_spaced
from scs_supcon.nn.head import Projection, fit_style, unit

# On the handwritten digits, 0.4 on training images is 0.2 on test images, which are fewer and were
# not trained on.
MAX_PURITY = 0.4
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
    rows = _style_columns(projection, features[subset, 0])
    columns = rows.shape[1]
    if columns <= MIN_DIRECTIONS or not len(rows):
        return columns
    used = MIN_DIRECTIONS
    for count in range(MIN_DIRECTIONS + 2, columns + 1, 2):
        value = purity(unit(rows[:, :count]), labels[subset])
        if value is not None and value > MAX_PURITY:
            fit_style(projection, features, labels, classes, directions=used)
            return used
        used = count
    return columns


def _style_columns(projection: nn.Module, features: Tensor) -> Tensor:
    """Return the standardised style columns of all heads side by side, largest variance first."""
    parts = []
    for head in projection.modules():
        if isinstance(head, Projection) and head.style is not None:
            training = head.training
            embeddings = head.eval()(features.to(next(head.parameters())))
            head.train(training)
            parts.append(embeddings[:, -head.style.layer.out_features :].cpu().double())
    return torch.cat(parts, 1) if parts else features.new_empty(len(features), 0).double()
