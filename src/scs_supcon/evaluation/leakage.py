"""How much the style field reveals about the class, and how much about the image.

*Class from a field*: a linear classifier (`linear.py`) is fitted to the field of the training
images and tested on the evaluated images. Chance is the share of their largest class. A style field
without information about the class stays at chance.

*View agreement*: the mean similarity of two views of one image, and of two images of one class. A
style field that describes the image has a higher similarity of two views of one image.

*Effective rank* of the style of the evaluated images, with λ_i the eigenvalues of its covariance:

    exp(−Σ p_i ln p_i),    p_i = λ_i / Σ λ

It is 1 if all styles lie on a line, and the number of dimensions if all have the same variance.
"""

import torch
from torch import Tensor

from scs_supcon.evaluation import linear
from scs_supcon.evaluation.metrics import top_k
from scs_supcon.evaluation.record import Leakage, ViewAgreement

Fields = tuple[Tensor, Tensor, Tensor]
"""Common vectors, style vectors and labels of the same images."""


def measure_leakage(
    train: Fields, evaluated: Fields, classes: int, agreement: ViewAgreement | None
) -> Leakage | None:
    """Measure the leakage; return None without a style field or training images."""
    (common, style, labels), (test_common, test_style, test_labels) = train, evaluated
    if not style.shape[1] or not len(labels):
        return None
    return Leakage(
        chance=float(torch.bincount(test_labels).max() / len(test_labels)),
        class_from_common=linear_accuracy(common, labels, test_common, test_labels, classes),
        class_from_style=linear_accuracy(style, labels, test_style, test_labels, classes),
        view_agreement=agreement,
        style_rank=effective_rank(test_style),
        style_dim=style.shape[1],
    )


def linear_accuracy(
    rows: Tensor, labels: Tensor, test_rows: Tensor, test_labels: Tensor, classes: int
) -> float:
    """Return the test accuracy of a linear classifier fitted to `rows`."""
    return top_k(linear.fit(rows, labels, classes).scores(test_rows), test_labels)


def view_agreement(
    common: tuple[Tensor, Tensor], style: tuple[Tensor, Tensor], labels: Tensor
) -> ViewAgreement:
    """Compute mean similarities between two views, each (n, D), of the same images.

    A same-class pair is the first view of an image and the second view of another image.
    """
    return ViewAgreement(
        style_same_image=_same_image(*style),
        style_same_class=_same_class(*style, labels),
        common_same_image=_same_image(*common),
    )


def effective_rank(rows: Tensor) -> float:
    """Return the effective rank of the covariance of rows (n, D); 0 if all rows are equal."""
    centred = rows.double() - rows.double().mean(0)
    eigenvalues = torch.linalg.eigvalsh(centred.T @ centred).clamp_min(0)
    if eigenvalues.sum() <= 1e-12 * len(rows):
        return 0.0
    return float(torch.special.entr(eigenvalues / eigenvalues.sum()).sum().exp())


def _same_image(first: Tensor, second: Tensor) -> float:
    return float((first * second).sum(1).double().mean())


def _same_class(first: Tensor, second: Tensor, labels: Tensor) -> float | None:
    """Return the mean over ordered pairs of different images of one class, from class sums."""
    classes = int(labels.max()) + 1
    zeros = first.new_zeros(classes, first.shape[1], dtype=torch.float64)
    first_sums = zeros.index_add(0, labels, first.double())
    second_sums = zeros.index_add(0, labels, second.double())
    counts = torch.bincount(labels, minlength=classes)
    pairs = int((counts * (counts - 1)).sum())
    same_image = (first.double() * second.double()).sum()
    return float(((first_sums * second_sums).sum() - same_image) / pairs) if pairs else None
