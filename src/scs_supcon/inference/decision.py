"""From features to probabilities and to "unknown".

Notation: x is the probe input of an image, u is x at unit length, m_c the mean of u over the
training images of class c. m_c is not normalised: u·m_c is the mean similarity of u to the images
of class c. The within-class similarity q_c is the mean similarity of two different images of c;
unlike |m_c|², it does not depend on the number of images. Encoder features all point in similar
directions, so their training mean is subtracted before they are normalised.

`Model` uses these modules in float64, the ONNX file in float32.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier, fit_temperature
from scs_supcon.nn.head import split, unit
from scs_supcon.nn.network import Output, ProbeInput, probe_features
from scs_supcon.recipe import HeadRecipe

QUANTILE = 0.05  # share of the validation images rejected if the method has no boundary
ROWS = 64  # per pass


class Decision(NamedTuple):
    """Decisions for n images.

    Attributes:
        probabilities: (n, classes), calibrated.
        nearest: (n,) class with the largest margin over its threshold.
        similarity: (n,) mean similarity to the images of that class.
        unknown: (n,) whether the similarity to every class is below its threshold.
    """

    probabilities: Tensor
    nearest: Tensor
    similarity: Tensor
    unknown: Tensor


class DecisionRule(nn.Module):
    """A linear classifier of the trained classes, and class means for "unknown" and added classes.

    Args:
        classifier: of the trained classes, which come first.
        centre: (D,) subtracted from the probe input before it is normalised.
        means: m_c (classes, D).
        within_class_similarity: q_c (classes,).
        prototype_scale: κ in the logits of added classes.
        threshold: similarity below which two images count as different.
    """

    weight: Tensor
    bias: Tensor
    centre: Tensor
    means: Tensor
    within_class_similarity: Tensor
    thresholds: Tensor

    def __init__(
        self,
        classifier: LinearClassifier,
        *,
        centre: Tensor,
        means: Tensor,
        within_class_similarity: Tensor,
        prototype_scale: float,
        threshold: float,
    ) -> None:
        super().__init__()
        self.temperature, self.trained_classes = classifier.temperature, len(classifier.bias)
        self.prototype_scale, self.threshold = prototype_scale, threshold
        tensors = {
            "weight": classifier.weight,
            "bias": classifier.bias,
            "centre": centre,
            "means": means,
            "within_class_similarity": within_class_similarity,
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().cpu().double())
        self.register_buffer("thresholds", self._thresholds())

    def forward(self, probe_input: Tensor) -> Decision:
        """Return the decisions for probe inputs (n, D)."""
        similarities = self.common(probe_input) @ self.means.T
        margins = similarities - self.thresholds
        nearest = margins.argmax(1)
        return Decision(
            self._logits(probe_input, similarities).softmax(1),
            nearest,
            similarities.gather(1, nearest[:, None])[:, 0],
            margins.amax(1) < 0,
        )

    def common(self, probe_input: Tensor) -> Tensor:
        """Return u (n, D)."""
        return unit(probe_input - self.centre)

    def with_class(self, rows: Tensor) -> "DecisionRule":
        """Return a rule with one more class, given u (k, D) of its images."""
        similarity = within_class_similarity(rows, torch.zeros(len(rows), dtype=torch.long), 1)
        similarity = torch.where(similarity.isnan(), self._typical_similarity(), similarity)
        return DecisionRule(
            LinearClassifier(self.weight, self.bias, self.temperature),
            centre=self.centre,
            means=torch.cat([self.means, rows.mean(0, keepdim=True)]),
            within_class_similarity=torch.cat([self.within_class_similarity, similarity]),
            prototype_scale=self.prototype_scale,
            threshold=self.threshold,
        )

    def _thresholds(self) -> Tensor:
        """Return the similarity that an image of each class needs (classes,).

        Images of an added class are less similar to each other, because they were not used in
        training. The threshold of the class is lower in proportion to its within-class similarity.
        """
        thresholds = torch.full_like(self.within_class_similarity, self.threshold)
        if self.threshold > 0:
            added = self.within_class_similarity[self.trained_classes :]
            thresholds[self.trained_classes :] *= (added / self._typical_similarity()).clamp(0, 1)
        return thresholds

    def _typical_similarity(self) -> Tensor:
        return self.within_class_similarity[: self.trained_classes].mean()

    def _logits(self, probe_input: Tensor, similarities: Tensor) -> Tensor:
        """Return the logits of all classes; those of trained classes are the classifier's.

        The closeness κ (u·m_c − q_c / 2) determines the probabilities of the added classes; the
        classifier divides the remaining probability among the trained classes.
        """
        logits = (probe_input @ self.weight.T + self.bias) / self.temperature
        if self.trained_classes == len(self.means):
            return logits
        scaled = self.prototype_scale * closeness(similarities, self.within_class_similarity)
        trained, added = scaled[:, : self.trained_classes], scaled[:, self.trained_classes :]
        shift = logits.logsumexp(1) - trained.logsumexp(1)
        return torch.cat([logits, added + shift[:, None]], 1)


def fit_decision_rule(
    classifier: LinearClassifier,
    *,
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    probe_input: ProbeInput,
    boundary: float | None,
) -> DecisionRule:
    """Fit class means to the training images, and scale and threshold to the validation images.

    Args:
        classifier: of the trained classes.
        train: probe inputs (n, D) and labels of the training images.
        val: probe inputs and labels of the validation images.
        probe_input: "features" are centred; the others are not.
        boundary: the decision boundary that the method learned. If None, the threshold is the
            similarity that 95% of the validation images reach.
    """
    classes = len(classifier.bias)
    centre = train[0].double().mean(0) * (probe_input == "features")
    rows, labels = unit(train[0].double() - centre), train[1]
    similarity = within_class_similarity(rows, labels, classes)
    has_pairs = ~similarity.isnan()
    typical = similarity[has_pairs].mean() if has_pairs.any() else similarity.new_ones(())
    similarity = torch.where(has_pairs, similarity, typical)
    means = class_means(rows, labels, classes)
    val_similarities = unit(val[0].double() - centre) @ means.T
    quantile = float(val_similarities.amax(1).quantile(QUANTILE))
    return DecisionRule(
        classifier,
        centre=centre,
        means=means,
        within_class_similarity=similarity,
        prototype_scale=1 / fit_temperature(closeness(val_similarities, similarity), val[1]),
        threshold=quantile if boundary is None else boundary,
    )


def closeness(similarities: Tensor, within_class_similarity: Tensor) -> Tensor:
    """Return u·m_c − q_c / 2, which is largest for the nearest class mean.

    It is minus half the squared distance to the mean, up to a term that all classes share.
    """
    return similarities - within_class_similarity / 2


def within_class_similarity(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return q_c of unit rows: the mean product of two different rows; NaN without a pair."""
    counts = torch.bincount(labels, minlength=classes).to(rows.dtype)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    squares = rows.new_zeros(classes).index_add_(0, labels, rows.square().sum(1))
    return (sums.square().sum(1) - squares) / (counts * (counts - 1))


def class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean of the normalised rows of each class, float64 (classes, D).

    The product of a unit row with it is the mean similarity to the images of the class.
    """
    rows = unit(rows).double()
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    return sums / torch.bincount(labels, minlength=classes).clamp_min(1)[:, None]


class ProbeInputs(nn.Module):
    """Features (n, F) -> probe input (n, D) and style field (n, S).

    Args:
        projection: the projection head, which is copied; unused if the probe input is "features".
        probe_input: input of the classifier.
        head: dimensions of the fields.
    """

    def __init__(
        self, projection: nn.Module | None, probe_input: ProbeInput, head: HeadRecipe
    ) -> None:
        super().__init__()
        self.probe_input = probe_input
        self.common_dim, self.overlap = head.common_dim, head.overlap
        self.projection: nn.Module | None = None
        if probe_input != "features":
            if projection is None:
                raise UserError(f"the probe input {probe_input!r} needs a projection head")
            self.projection = copy.deepcopy(projection).cpu().double().eval()
        self.requires_grad_(False)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probe input and the style field, which is empty for methods without fields."""
        embeddings = features if self.projection is None else self.projection(features)
        probe_input = probe_features(
            Output(features, embeddings), self.probe_input, self.common_dim
        )
        if self.probe_input != "common":
            return probe_input, embeddings[:, :0]
        _, style = split(embeddings, self.common_dim, self.overlap)
        return probe_input, unit(style)


class FeatureClassifier(nn.Module):
    """Everything after the encoder: features -> probe input -> decision.

    Rows are processed 64 at a time in float64 on the CPU. The last bits of a matrix product depend
    on its shape; with a fixed shape, the result for an image does not depend on the other images.
    """

    def __init__(self, probe_inputs: ProbeInputs, rule: DecisionRule) -> None:
        super().__init__()
        self.probe_inputs, self.rule = probe_inputs, rule

    def forward(self, features: Tensor) -> tuple[Decision, Tensor, Tensor]:
        """Return decision, common and style of features (n, F), in one pass and in their dtype."""
        probe_input, style = self.probe_inputs(features)
        return self.rule(probe_input), self.rule.common(probe_input), style

    def decide(self, features: Tensor) -> Decision:
        """Return the decisions for features (n, F)."""
        return Decision(*in_passes(lambda rows: self.rule(self.probe_inputs(rows)[0]), features))

    def fields(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the common and style vectors of features (n, F)."""

        def compute(rows: Tensor) -> tuple[Tensor, Tensor]:
            probe_input, style = self.probe_inputs(rows)
            return self.rule.common(probe_input), style

        common, style = in_passes(compute, features)
        return common, style


@torch.no_grad()
def in_passes(function: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor) -> tuple[Tensor, ...]:
    """Return the results of a function for rows in float64, 64 at a time, padded with zeros."""
    passes = []
    for start in range(0, max(1, len(rows)), ROWS):
        chunk = rows[start : start + ROWS].cpu().double()
        full = chunk.new_zeros(ROWS, *chunk.shape[1:])
        full[: len(chunk)] = chunk
        passes.append([result[: len(chunk)] for result in function(full)])
    return tuple(torch.cat(results) for results in zip(*passes, strict=True))
