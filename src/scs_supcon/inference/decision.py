"""From features to probabilities and to "unknown".

Notation: x is the probe input of an image, u is x at unit length, m_c the mean of u over the
training images of class c. m_c is not normalised: u·m_c is the mean similarity of u to the images
of class c. The within-class similarity q_c is the mean similarity of two different images of c;
unlike |m_c|², it does not depend on the number of images. Encoder features all point in similar
directions, so their training mean is subtracted before they are normalised.

With fused fields (`training.fusion`) x is [√ω c⁰ ; √(1 − ω) c], a unit vector of two parts, and the
mean of each part is scaled to the length of that part, so that u·m_c = ω c⁰·m⁰_c + (1 − ω) c·m_c
is a mean of two cosines.

`Model` uses these modules in float64, the ONNX file in float32.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier, fit_temperature
from scs_supcon.inference.rejection import rejection_thresholds
from scs_supcon.nn.head import join_heads, unit
from scs_supcon.nn.network import Output, ProbeInput, probe_features
from scs_supcon.nn.whitening import Whitening
from scs_supcon.recipe import HeadRecipe

MAX_PAIRED_IMAGES = 1000  # half a million pairs
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


@dataclass(frozen=True)
class FusedField:
    """A common field that is fused with whitened features; see `training.fusion`.

    Attributes:
        whitening: computes c⁰.
        omega: ω.
        parts: widths of c⁰ and c.
        means: (classes, D) class means of the fused vectors; see `scale_parts`.
        temperature: of the similarities to the class means.
        similarities: (n, classes) of held-out images to class means.
        t: temperature of pairs.
        b: bias of pairs.
        out_of_fold: whether the held-out images are training images, out of fold, or validation
            images.
    """

    whitening: Whitening
    omega: float
    parts: tuple[int, int]
    means: Tensor
    temperature: float
    similarities: Tensor
    t: float
    b: float
    out_of_fold: bool


class DecisionRule(nn.Module):
    """A linear classifier of the trained classes, and class means for "unknown" and added classes.

    Args:
        classifier: of the trained classes, which come first.
        centre: (D,) subtracted from the probe input before it is normalised.
        means: m_c (classes, D).
        within_class_similarity: q_c (classes,).
        prototype_scale: κ in the logits of added classes.
        threshold: similarity that an image needs, over all classes.
        class_thresholds: similarity that an image of each class needs, at least of the trained
            classes; default: `threshold`.
        parts: widths of the parts of u, if the fields are fused.
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
        class_thresholds: Tensor | None = None,
        parts: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.parts = parts
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
        if class_thresholds is None:
            class_thresholds = self.within_class_similarity.new_full(
                (self.trained_classes,), threshold
            )
        self.register_buffer("thresholds", self._thresholds(class_thresholds.double()))

    def forward(self, probe_input: Tensor) -> Decision:
        """Return the decisions for probe inputs (n, D)."""
        similarities = self.similarities(probe_input)
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

    def similarities(self, probe_input: Tensor) -> Tensor:
        """Return the mean similarities (n, classes) to the images of each class."""
        return self.common(probe_input) @ self.means.T

    def shifted(self, shift: float) -> "DecisionRule":
        """Return the rule with all thresholds raised by `shift`."""
        rule = copy.deepcopy(self)
        rule.threshold += shift
        rule.thresholds += shift
        return rule

    def with_threshold(self, threshold: float) -> "DecisionRule":
        """Return the rule with one threshold for all classes."""
        if not -1 <= threshold <= 1:
            raise UserError(
                f"the threshold is a similarity between −1 and 1, got {threshold:g}; −1 rejects "
                "no image"
            )
        rule = copy.deepcopy(self)
        rule.threshold = threshold
        rule.thresholds.fill_(threshold)
        return rule

    def with_class(self, rows: Tensor) -> "DecisionRule":
        """Return a rule with one more class, given u (k, D) of its images."""
        similarity = within_class_similarity(rows, torch.zeros(len(rows), dtype=torch.long), 1)
        similarity = torch.where(similarity.isnan(), self._typical_similarity(), similarity)
        mean = scale_parts(rows.mean(0, keepdim=True), rows, self.parts)
        return DecisionRule(
            LinearClassifier(self.weight, self.bias, self.temperature),
            centre=self.centre,
            means=torch.cat([self.means, mean]),
            within_class_similarity=torch.cat([self.within_class_similarity, similarity]),
            prototype_scale=self.prototype_scale,
            threshold=self.threshold,
            class_thresholds=self.thresholds,
            parts=self.parts,
        )

    def _thresholds(self, given: Tensor) -> Tensor:
        """Return the similarity that an image of each class needs (classes,).

        Images of an added class are less similar to each other, because they were not used in
        training. The threshold of the class is lower in proportion to its within-class similarity.
        """
        added = self.within_class_similarity[len(given) :]
        thresholds = torch.full_like(added, self.threshold)
        if self.threshold > 0:
            thresholds *= (added / self._typical_similarity()).clamp(0, 1)
        return torch.cat([given.to(thresholds), thresholds])

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
        if not self.parts:  # the means of fused fields all have the same length
            similarities = closeness(similarities, self.within_class_similarity)
        scaled = self.prototype_scale * similarities
        trained, added = scaled[:, : self.trained_classes], scaled[:, self.trained_classes :]
        shift = logits.logsumexp(1) - trained.logsumexp(1)
        return torch.cat([logits, added + shift[:, None]], 1)


def fit_decision_rule(
    classifier: LinearClassifier,
    *,
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    probe_input: ProbeInput,
) -> DecisionRule:
    """Fit class means to the training images, and scale and thresholds to the validation images.

    Args:
        classifier: of the trained classes.
        train: probe inputs (n, D) and labels of the training images.
        val: probe inputs and labels of the validation images.
        probe_input: "features" are centred; the others are not.
    """
    classes = len(classifier.bias)
    centre = train[0].double().mean(0) * (probe_input == "features")
    rows, labels = unit(train[0].double() - centre), train[1]
    similarity = _filled_similarity(rows, labels, classes)
    means = class_means(rows, labels, classes)
    val_similarities = unit(val[0].double() - centre) @ means.T
    threshold, class_thresholds = rejection_thresholds(val_similarities)
    return DecisionRule(
        classifier,
        centre=centre,
        means=means,
        within_class_similarity=similarity,
        prototype_scale=1 / fit_temperature(closeness(val_similarities, similarity), val[1]),
        threshold=threshold,
        class_thresholds=class_thresholds,
    )


def fit_fused_rule(
    classifier: LinearClassifier,
    *,
    train: tuple[Tensor, Tensor],
    fused: FusedField,
) -> DecisionRule:
    """Return the rule of a classifier of fused fields.

    Args:
        classifier: by class means, or another linear classifier of the fused vectors.
        train: fused vectors (n, D) and labels of the training images.
        fused: class means, and held-out images for the thresholds.
    """
    rows, labels = train[0].double(), train[1]
    threshold, class_thresholds = rejection_thresholds(fused.similarities)
    return DecisionRule(
        classifier,
        centre=rows.new_zeros(rows.shape[1]),
        means=fused.means,
        within_class_similarity=_filled_similarity(rows, labels, len(classifier.bias)),
        prototype_scale=1 / fused.temperature,
        threshold=threshold,
        class_thresholds=class_thresholds,
        parts=fused.parts,
    )


MIN_FITTED_T = 1e-3


def fit_pairs(similarities: Tensor, same: Tensor) -> tuple[float, float]:
    """Return t and b that maximise the likelihood of σ(t r − b) for pairs, by Newton's method.

    If a threshold separates the pairs, the likelihood has no maximum: a weak prior (one pair of
    each kind at either end) keeps t finite. Without pairs of both kinds nothing can be fitted: t is
    10 and the boundary ½. If similar pairs are less often of one class, which few held-out images
    can suggest, t is `MIN_FITTED_T`, and b gives the share of same-class pairs.
    """
    if not 0 < int(same.sum()) < len(same):
        return 10.0, 5.0
    low, high = float(similarities.min()), float(similarities.max())
    r = torch.cat([similarities.double(), similarities.new_tensor([low, low, high, high]).double()])
    target = torch.cat([same.double(), r.new_tensor([0.0, 1.0, 0.0, 1.0])])
    centre, scale = r.mean(), r.std().clamp_min(1e-6)
    x = torch.stack([(r - centre) / scale, torch.ones_like(r)], 1)
    share = target.mean().clamp(1e-9, 1 - 1e-9)
    weights = torch.stack([r.new_ones(()), (share / (1 - share)).log()])
    for _ in range(100):
        p = (x @ weights).sigmoid()
        gradient = x.T @ (p - target)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 1e-9 * torch.eye(2, dtype=r.dtype)
        step = torch.linalg.solve(hessian, gradient)
        limit = min(1.0, 2.0 / float(step.abs().max().clamp_min(1e-12)))  # damped far from the end
        weights = weights - limit * step
        if float(step.abs().max()) < 1e-10:
            break
    t = float(weights[0] / scale)
    if t < MIN_FITTED_T:
        return MIN_FITTED_T, float((1 - share).log() - share.log() + MIN_FITTED_T * centre)
    return t, float(t * centre - weights[1])


def pair_similarities(
    rows: Tensor, labels: Tensor, max_images: int = MAX_PAIRED_IMAGES
) -> tuple[Tensor, Tensor]:
    """Return the similarities of pairs of unit rows, each pair once, and whether they match.

    Of many rows, which may have any order of classes, some are drawn, always the same ones.
    """
    if len(rows) > max_images:
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:max_images]
        rows, labels = rows[chosen], labels[chosen]
    first, second = torch.triu_indices(len(rows), len(rows), 1)
    return (rows @ rows.T)[first, second], labels[first] == labels[second]


def scale_parts(means: Tensor, rows: Tensor, parts: tuple[int, ...]) -> Tensor:
    """Return means (k, D) with each part scaled to the length it has in the rows (n, D)."""
    if not parts:
        return means
    columns = list(parts)
    pairs = zip(torch.split(means, columns, 1), torch.split(rows, columns, 1), strict=True)
    return torch.cat([unit(mean) * row.norm(dim=1).mean() for mean, row in pairs], 1)


def _filled_similarity(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return q_c; classes without a pair get the mean of the others."""
    similarity = within_class_similarity(rows, labels, classes)
    has_pairs = ~similarity.isnan()
    typical = similarity[has_pairs].mean() if has_pairs.any() else similarity.new_ones(())
    return torch.where(has_pairs, similarity, typical)


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
        whitening: whitens the features that are fused with the common field; None: not fused.
        omega: weight ω of the whitened features.
    """

    def __init__(
        self,
        projection: nn.Module | None,
        probe_input: ProbeInput,
        head: HeadRecipe,
        whitening: Whitening | None = None,
        omega: float = 0.0,
    ) -> None:
        super().__init__()
        self.whitening = None if whitening is None else copy.deepcopy(whitening).cpu().double()
        self.omega = omega
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
        if self.whitening is not None:
            fields = unit(probe_input), self.whitening(features)
            learned, whitened = math.sqrt(1 - self.omega), math.sqrt(self.omega)
            probe_input = torch.cat([whitened * fields[1], learned * fields[0]], 1)
        if self.probe_input != "common":
            return probe_input, features[:, :0]
        return probe_input, join_heads(embeddings[..., self.common_dim - self.overlap :])


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
