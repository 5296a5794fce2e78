"""From what training left to a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import make_decision_rule
from scs_supcon.inference.facts import Boundary, Facts
from scs_supcon.inference.model import Gallery, Model
from scs_supcon.inference.readout import Network, ReadOut, in_passes
from scs_supcon.nn.timm_models import weights_licence
from scs_supcon.recipe import Recipe


@dataclass(frozen=True)
class Evidence:
    """Features (n, F) of images under the evaluation view, from which a model draws its rules.

    Attributes:
        names: of the training images.
        train: features and labels of the training images.
        val: features and labels of the validation images.
    """

    names: Sequence[str]
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]


def build_model(
    recipe: Recipe,
    classes: Sequence[str],
    network: Network,
    classifier: LinearClassifier,
    evidence: Evidence,
    boundary: float | None,
) -> Model:
    """Put a model together from what training left.

    Args:
        recipe: of the run.
        classes: names, in the order of the labels.
        network: the trained encoder and head.
        classifier: of stage 2.
        evidence: features to find class means, neighbours and thresholds by.
        boundary: similarity above which the method takes a pair to be of one class, on unit
            vectors; None where there is no such thing.
    """
    read_out = ReadOut(network, recipe.head)
    train, _ = in_passes(read_out, evidence.train[0])
    val, _ = in_passes(read_out, evidence.val[0])
    labels = evidence.train[1].cpu()
    judge = make_decision_rule(
        classifier, (train, labels), (val, evidence.val[1].cpu()), network.readout, boundary
    )
    rejected = judge.judge(val).none_of_these.double().mean()
    facts = Facts(
        classes=tuple(classes),
        trained=len(classes),
        readout=network.readout,
        temperature=classifier.temperature,
        sharpness=judge.sharpness,
        boundary=Boundary(
            rule="quantile" if boundary is None else "boundary",
            threshold=judge.threshold,
            val_rejected=float(rejected),
        ),
        recipe=recipe,
        images=tuple(evidence.names),
        weights_licence=_licence(recipe),
    )
    return Model(facts, network, judge, Gallery(judge.vectors(train).float(), labels))


def _licence(recipe: Recipe) -> str:
    if recipe.encoder.weights == "scratch":
        return "none, it started from random weights"
    if recipe.encoder.weights == "pretrained":
        return weights_licence(recipe.encoder.name)
    return "that of the weights file it started from, " + recipe.encoder.weights
