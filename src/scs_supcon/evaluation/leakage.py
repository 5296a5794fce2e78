"""How much the style field reveals about the class, and how much about the image.

*Class from a field*: a linear classifier (`linear.py`) is fitted to the field of the training
images and tested on the evaluated images. Chance is the share of their largest class. A style field
without information about the class stays at chance. A kNN classifier and a small neural network
find what a linear classifier cannot.

*Purity*: the mean share of the ten nearest evaluated images that are of the same class, with 0 for
the share by chance and 1 for all:

    (share − p) / (1 − p),    p = Σ_c n_c (n_c − 1) / (n (n − 1))

*View agreement*: the mean similarity of two views of one image, and of two images of one class. A
style field that describes the image has a higher similarity of two views of one image.

*Effective rank* of the style of the evaluated images, with λ_i the eigenvalues of its covariance:

    exp(−Σ p_i ln p_i),    p_i = λ_i / Σ λ

It is 1 if all styles lie on a line, and the number of dimensions if all have the same variance.

*Variance explained*: a ridge regression from style to the features of the encoder, both minus the
mean of their class, is fitted to the training images. 1 − Σ ‖error‖² / Σ ‖feature‖² is measured on
the evaluated images; 0 if style does not explain what differs within a class.

*Factors* of synthetic images (position, colour, …): R² of a ridge regression for numbers, accuracy
of a linear classifier above chance, (a − p) / (1 − p), for categories; at least 0.
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from scs_supcon.evaluation import linear
from scs_supcon.evaluation.metrics import chunks, knn_accuracy, top_k
from scs_supcon.evaluation.record import FactorReading, Leakage, ViewAgreement

NEIGHBOURS = 10
MLP_ROWS, MLP_EPOCHS = 2000, 60
RIDGE = 0.01

Fields = tuple[Tensor, Tensor, Tensor]
"""Common vectors, style vectors and labels of the same images."""


class Reference(NamedTuple):
    """What the fields are compared with.

    Attributes:
        features: features of the training images and of the evaluated images, (n, F) each.
        factors: values of known factors of both, by name; integers are categories.
    """

    features: tuple[Tensor, Tensor]
    factors: Mapping[str, tuple[Tensor, Tensor]] = {}


def measure_leakage(
    train: Fields,
    evaluated: Fields,
    classes: int,
    agreement: ViewAgreement | None,
    reference: Reference | None = None,
) -> Leakage | None:
    """Measure the leakage; return None without a style field or training images."""
    (common, style, labels), (test_common, test_style, test_labels) = train, evaluated
    if not style.shape[1] or not len(labels):
        return None
    styles = style, labels, test_style, test_labels
    factors: tuple[FactorReading, ...] = ()
    explained = None
    if reference is not None:
        explained = variance_explained(
            (style, reference.features[0], labels), (test_style, reference.features[1], test_labels)
        )
        inputs = (style, test_style), (common, test_common), reference.features
        factors = tuple(
            FactorReading(
                name=name,
                **dict(
                    zip(
                        ("from_style", "from_common", "from_features"),
                        (read_factor(rows, values) for rows in inputs),
                        strict=True,
                    )
                ),
            )
            for name, values in reference.factors.items()
        )
    return Leakage(
        chance=float(torch.bincount(test_labels).max() / len(test_labels)),
        class_from_common=linear_accuracy(common, labels, test_common, test_labels, classes),
        class_from_style=linear_accuracy(*styles, classes),
        view_agreement=agreement,
        style_rank=effective_rank(test_style),
        style_dim=style.shape[1],
        class_from_style_knn=knn_accuracy(*styles),
        class_from_style_mlp=network_accuracy(*styles),
        style_purity=purity(test_style, test_labels),
        variance_explained=explained,
        factors=factors,
    )


def linear_accuracy(
    rows: Tensor, labels: Tensor, test_rows: Tensor, test_labels: Tensor, classes: int
) -> float:
    """Return the test accuracy of a linear classifier fitted to `rows`."""
    return top_k(linear.fit(rows, labels, classes).scores(test_rows), test_labels)


def network_accuracy(
    rows: Tensor, labels: Tensor, test_rows: Tensor, test_labels: Tensor
) -> float | None:
    """Return the test accuracy of a network with one hidden layer; None for a single class.

    It is fitted to at most 2,000 rows, so that it takes a second.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    subset = torch.arange(min(len(rows), MLP_ROWS)) * len(rows) // min(len(rows), MLP_ROWS)
    if len(set(labels[subset].tolist())) < 2:
        return None
    mean, scale = rows.mean(0), rows.std(0, correction=0).clamp_min(1e-6)
    x, test = (((part - mean) / scale).numpy() for part in (rows[subset], test_rows))
    network = MLPClassifier((64,), alpha=1e-2, max_iter=MLP_EPOCHS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(x, labels[subset].numpy())
    return float((torch.from_numpy(network.predict(test)) == test_labels).double().mean())


def purity(rows: Tensor, labels: Tensor, k: int = NEIGHBOURS) -> float | None:
    """Return the purity of the k nearest rows, given unit rows; None without a pair of a class."""
    n, counts = len(rows), torch.bincount(labels).double()
    same_class = float((counts * (counts - 1)).sum())
    if not same_class or same_class == n * (n - 1):
        return None
    same = 0
    for part in chunks(n, n):
        similarity = rows[part] @ rows.T
        index = torch.arange(part.start, part.stop)
        similarity[torch.arange(len(index)), index] = -torch.inf
        nearest = similarity.topk(min(k, n - 1), dim=1).indices
        same += int((labels[nearest] == labels[part, None]).sum())
    chance = same_class / (n * (n - 1))
    return (same / (n * min(k, n - 1)) - chance) / (1 - chance)


def variance_explained(
    train: tuple[Tensor, Tensor, Tensor], evaluated: tuple[Tensor, Tensor, Tensor]
) -> float | None:
    """Return the share of the within-class variance of features that style explains.

    Args:
        train: style, features and labels of the training images.
        evaluated: of the evaluated images.
    """
    style, features = (_minus_class_means(rows, train[2]) for rows in train[:2])
    test_style, test_features = (_minus_class_means(rows, evaluated[2]) for rows in evaluated[:2])
    variance = float(test_features.square().sum())
    if not variance:
        return None
    error = test_features - test_style @ _ridge(style, features)
    return max(0.0, 1 - float(error.square().sum()) / variance)


def read_factor(rows: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor]) -> float:
    """Return how well a factor can be read from rows, both of training and evaluated images."""
    (x, test_x), (y, test_y) = rows, values
    if y.is_floating_point():
        x, y, mean = x.double(), y.double(), y.double().mean()
        weight = _ridge(x - x.mean(0), (y - mean)[:, None])[:, 0]
        error = test_y - mean - (test_x.double() - x.mean(0)) @ weight
        total = (test_y - test_y.mean()).square().sum()
        return max(0.0, 1 - float(error.square().sum() / total))
    categories = int(max(y.max(), test_y.max())) + 1
    accuracy = linear_accuracy(x, y, test_x, test_y, categories)
    chance = float(torch.bincount(test_y).max() / len(test_y))
    return max(0.0, (accuracy - chance) / max(1 - chance, 1e-9))


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """Return the weights of a ridge regression; the penalty is 1 % of the mean variance of x."""
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * gram.diagonal().mean().clamp_min(1e-12))
    weights: Tensor = torch.linalg.solve(gram, x.T @ y)
    return weights


def _minus_class_means(rows: Tensor, labels: Tensor) -> Tensor:
    rows = rows.double()
    counts = torch.bincount(labels).clamp_min(1)[:, None]
    sums = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, labels, rows)
    return rows - (sums / counts)[labels]


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
