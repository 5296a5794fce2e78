"""From a readout to probabilities, and to "none of these". Float64 on the CPU throughout.

Notation: u is the readout at unit length, m_c the mean of the training u of class c, not brought to
unit length again: u·m_c is the mean similarity of u to the members of c. The tightness q_c is the
mean similarity of two different members of c, an estimate of the squared length of the true mean
that does not depend on how many members there are. Encoder features all point roughly one way, so
their training mean is subtracted before they are brought to unit length.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from scs_supcon.evaluation.calibration import fit_temperature
from scs_supcon.evaluation.metrics import class_means
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.facts import Readout
from scs_supcon.inference.readout import ReadOut, in_passes
from scs_supcon.nn.head import unit

QUANTILE = 0.05


class Decision(NamedTuple):
    """What is thought of n readouts.

    Attributes:
        probabilities: (n, classes), calibrated.
        nearest: (n,) class whose bar is passed by most, or missed by least.
        similarity: (n,) mean similarity to the members of that class.
        none_of_these: (n,) whether every class's bar is missed.
    """

    probabilities: Tensor
    nearest: Tensor
    similarity: Tensor
    none_of_these: Tensor


@dataclass(frozen=True)
class DecisionRule:
    """The classifier of the trained classes, and the means of all classes.

    Attributes:
        classifier: of the trained classes, which come first.
        centre: subtracted from a readout before it is brought to unit length (D,).
        means: m_c (classes, D).
        tightness: q_c (classes,).
        sharpness: κ, by which closeness to means becomes probability.
        threshold: similarity below which two images count as different.
    """

    classifier: LinearClassifier
    centre: Tensor
    means: Tensor
    tightness: Tensor
    sharpness: float
    threshold: float

    @property
    def trained(self) -> int:
        """How many classes the classifier was trained on."""
        return len(self.classifier.bias)

    @property
    def bars(self) -> Tensor:
        """Similarity that an image needs to be of each class (classes,).

        The threshold for trained classes. An added class was not drawn together by training; its
        bar is lower in the proportion in which it is looser than the trained ones.
        """
        bars = torch.full_like(self.tightness, self.threshold)
        if self.threshold > 0:
            usual = self.tightness[: self.trained].mean()
            bars[self.trained :] *= (self.tightness[self.trained :] / usual).clamp(0, 1)
        return bars

    def vectors(self, readout: Tensor) -> Tensor:
        """Return u (n, D) of readouts (n, D)."""
        return unit(readout.double() - self.centre)

    def judge(self, readout: Tensor) -> Decision:
        """Judge readouts (n, D)."""
        similarities = self.vectors(readout) @ self.means.T
        room = similarities - self.bars
        nearest = room.argmax(1)
        return Decision(
            self._logits(readout, similarities).softmax(1),
            nearest,
            similarities.gather(1, nearest[:, None])[:, 0],
            (room < 0).all(1),
        )

    def with_class(self, rows: Tensor) -> "DecisionRule":
        """Return a judge that also knows the class whose members are these u (k, D)."""
        usual = self.tightness[: self.trained].mean()
        own = tightness(rows, torch.zeros(len(rows), dtype=torch.long), 1)
        return replace(
            self,
            means=torch.cat([self.means, rows.mean(0, keepdim=True)]),
            tightness=torch.cat([self.tightness, torch.where(own.isnan(), usual, own)]),
        )

    def _logits(self, readout: Tensor, similarities: Tensor) -> Tensor:
        """Logits of all classes; those of the trained ones are the classifier's.

        Closeness κ (u·m_c − q_c / 2), which is half the squared distance to the true mean up to a
        term common to all classes, decides how much probability added classes take from trained
        ones; the classifier decides how the trained ones share the rest.
        """
        logits = self.classifier.logits(readout)
        if self.trained == len(self.means):
            return logits
        close = self.sharpness * closeness(similarities, self.tightness)
        known, added = close[:, : self.trained], close[:, self.trained :]
        shift = logits.logsumexp(1) - known.logsumexp(1)
        return torch.cat([logits, added + shift[:, None]], 1)


def make_decision_rule(
    classifier: LinearClassifier,
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    readout: Readout,
    boundary: float | None,
) -> DecisionRule:
    """Find means on training readouts, sharpness and, without a boundary, the threshold on others.

    Args:
        classifier: of stage 2.
        train: readouts (n, D) and labels of the training images.
        val: readouts and labels of the validation images.
        readout: "common", whose similarities count from the origin, or "features".
        boundary: the one that the method learned; without one the threshold is the similarity that
            all but 5 % of the validation images reach.
    """
    classes = len(classifier.bias)
    centre = train[0].double().mean(0) * (readout == "features")
    rows, labels = unit(train[0].double() - centre), train[1]
    own = tightness(rows, labels, classes)
    paired = ~own.isnan()
    usual = own[paired].mean() if paired.any() else own.new_ones(())
    own = torch.where(paired, own, usual)
    means = class_means(rows, labels, classes)
    similarities = unit(val[0].double() - centre) @ means.T
    sharpness = 1 / fit_temperature(closeness(similarities, own), val[1])
    reached = similarities.amax(1).quantile(QUANTILE)
    threshold = float(reached) if boundary is None else boundary
    return DecisionRule(classifier, centre, means, own, sharpness, threshold)


def closeness(similarities: Tensor, tightness: Tensor) -> Tensor:
    """Return u·m_c − q_c / 2: largest for the nearest mean."""
    return similarities - tightness / 2


def tightness(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return q_c of unit rows: mean product of two different members; NaN for a single one."""
    counts = torch.bincount(labels, minlength=classes).to(rows.dtype)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    own = rows.new_zeros(classes).index_add_(0, labels, rows.square().sum(1))
    return (sums.square().sum(1) - own) / (counts * (counts - 1))


def judged(read_out: ReadOut, judge: DecisionRule, features: Tensor) -> Decision:
    """What is thought of features (n, F), always as many rows at a time."""
    return Decision(*in_passes(lambda rows: judge.judge(read_out(rows)[0]), features))


def fields_of(read_out: ReadOut, judge: DecisionRule, features: Tensor) -> tuple[Tensor, Tensor]:
    """The common and style vectors of features (n, F), always as many rows at a time."""

    def both(rows: Tensor) -> tuple[Tensor, Tensor]:
        readout, style = read_out(rows)
        return judge.vectors(readout), style

    common, style = in_passes(both, features)
    return common, style
