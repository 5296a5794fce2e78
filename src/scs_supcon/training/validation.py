"""The validation accuracy of a network during stage 1, for early stopping."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scs_supcon.methods import Method, Network, Output
from scs_supcon.nn.head import unit
from scs_supcon.nn.network import ProbeInput, probe_features

PER_CLASS = 8  # training images of a class that define its mean, if they have to be encoded


@dataclass(frozen=True)
class ValidationSet:
    """Images that measure an epoch.

    Attributes:
        labels: classes of the images: first training images, for the class means, then validation
            images.
        references: number of training images among them.
        apply_network: network -> its output for the evaluation view of every image.
    """

    labels: Tensor
    references: int
    apply_network: Callable[[nn.Module], Output]


def first_of_each_class(labels: NDArray[np.int64], count: int = PER_CLASS) -> NDArray[np.int64]:
    """Return the positions of the first `count` images of each class, in order."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order])
    rank = np.arange(len(labels)) - starts
    return np.sort(order[rank < count])


def validation_accuracy(
    network: Network,
    method: Method,
    validation: ValidationSet,
    probe_input: ProbeInput,
    common_dim: int,
) -> float:
    """Return the share of validation images that are classified correctly.

    A method with its own classifier uses it. For the others, an image belongs to the class whose
    mean probe input has the highest cosine similarity. The random state of training is kept.

    Args:
        network: is used in eval mode, and left in its mode.
        method: may have a classifier.
        validation: the images.
        probe_input: what stage 2 will see.
        common_dim: number of columns of the common field.
    """
    with torch.random.fork_rng([]), torch.no_grad():
        output = validation.apply_network(network)
    labels, first = validation.labels.to(output.features.device), validation.references
    logits = method.class_logits(*(part[first:] for part in output))
    if logits is None:
        inputs = unit(probe_features(output, probe_input, common_dim))
        logits = inputs[first:] @ class_means(inputs[:first], labels[:first], labels).T
    return float((logits.argmax(1) == labels[first:]).double().mean())


def class_means(inputs: Tensor, labels: Tensor, all_labels: Tensor) -> Tensor:
    """Return the unit mean of the rows of each class; 0 for a class without rows."""
    classes = int(all_labels.max()) + 1
    sums = inputs.new_zeros(classes, inputs.shape[1]).index_add_(0, labels, inputs)
    return unit(sums)
