"""Fuse the common field with the whitened features, and calibrate the result on held-out images.

The similarity of two images, and of an image and a class mean, is

    r* = ω c⁰·c⁰' + (1 − ω) c·c'

with c⁰ the whitened features (`nn.whitening`) and c the common field. Training images are too
similar to their own class means, so every choice is made on images that were held out: those of a
fold that neither heads nor whitening were fitted to, or the validation images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scs_supcon.inference.classifier import LinearClassifier, fit_temperature
from scs_supcon.inference.decision import (
    FusedField,
    ProbeInputs,
    class_means,
    fit_pairs,
    in_passes,
    pair_similarities,
    scale_parts,
)
from scs_supcon.nn.head import unit
from scs_supcon.nn.network import ProbeInput
from scs_supcon.nn.whitening import Whitening, fit_whitenings
from scs_supcon.recipe import Recipe
from scs_supcon.training.features import RunFeatures, SplitFeatures, probe_inputs
from scs_supcon.training.probe import Probe, ProbeHead

CLEARLY_BETTER = 2.0  # standard errors


@dataclass(frozen=True)
class HeldOut:
    """Similarities of held-out images, for G whitenings.

    Attributes:
        labels: (n,)
        whitened: (G, n, classes) similarities of c⁰ to the class means.
        learned: (n, classes) similarities of c to the class means.
        same: (p,) whether the images of a pair are of one class.
        whitened_pairs: (G, p) similarities of c⁰.
        learned_pairs: (p,) similarities of c.
    """

    labels: Tensor
    whitened: Tensor
    learned: Tensor
    same: Tensor
    whitened_pairs: Tensor
    learned_pairs: Tensor


@dataclass(frozen=True)
class Fusion:
    """What was chosen on the held-out images.

    Attributes:
        whitening: index of the whitening.
        omega: ω.
        temperature: of the similarities to the class means, as logits.
        similarities: (n, classes) of the held-out images to the class means.
        t: temperature of pairs: σ(t r* − b) is the probability that two images are of one class.
        b: bias of pairs.
    """

    whitening: int
    omega: float
    temperature: float
    similarities: Tensor
    t: float
    b: float


def held_out_similarities(
    whitenings: Sequence[Whitening],
    projection: nn.Module,
    probe_input: ProbeInput,
    common_dim: int,
    train: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    classes: int,
    paired: tuple[Tensor, Tensor] | None = None,
) -> HeldOut:
    """Return the similarities of held-out images to each other and to the class means of `train`.

    Args:
        whitenings: fitted to `train`.
        projection: the head, trained on `train`.
        probe_input: input of the classifier.
        common_dim: width of the common field of one head.
        train: features (m, F) and labels.
        held_out: features (n, F) and labels.
        classes: number of classes.
        paired: features and labels of more held-out images, which only form pairs.
    """

    def learned(features: Tensor) -> Tensor:
        inputs = probe_inputs(features[:, None], projection, probe_input, common_dim)[:, 0]
        return unit(inputs.double())

    features, labels = held_out
    count = len(labels)
    if paired is not None:
        features, labels = torch.cat([features, paired[0]]), torch.cat([labels, paired[1]])
    fields = [
        (learned(train[0]), learned(features)),
        *((w(train[0].double()), w(features.double())) for w in whitenings),
    ]
    to_classes = [
        rows[:count] @ unit(class_means(train_rows, train[1], classes)).T
        for train_rows, rows in fields
    ]
    pairs = [pair_similarities(rows, labels) for _, rows in fields]
    return HeldOut(
        labels=held_out[1],
        whitened=torch.stack(to_classes[1:]),
        learned=to_classes[0],
        same=pairs[0][1],
        whitened_pairs=torch.stack([similarities for similarities, _ in pairs[1:]]),
        learned_pairs=pairs[0][0],
    )


def join_held_out(parts: Sequence[HeldOut]) -> HeldOut:
    """Return the held-out images of all folds; pairs are of images of one fold."""
    return HeldOut(
        labels=torch.cat([part.labels for part in parts]),
        whitened=torch.cat([part.whitened for part in parts], 1),
        learned=torch.cat([part.learned for part in parts]),
        same=torch.cat([part.same for part in parts]),
        whitened_pairs=torch.cat([part.whitened_pairs for part in parts], 1),
        learned_pairs=torch.cat([part.learned_pairs for part in parts]),
    )


def choose_fusion(held_out: HeldOut, omegas: Sequence[float]) -> Fusion:
    """Choose whitening, ω, temperature, t and b on held-out images.

    The whitening is that with the highest likelihood of the labels. ω is the first of `omegas`
    unless another one is more likely by two standard errors of the difference.
    """
    labels = held_out.labels
    likelihoods = [_log_likelihoods(similarities, labels)[0] for similarities in held_out.whitened]
    whitening = int(torch.stack([values.mean() for values in likelihoods]).argmax())
    whitened, learned = held_out.whitened[whitening], held_out.learned

    candidates = {
        omega: _log_likelihoods(omega * whitened + (1 - omega) * learned, labels)
        for omega in omegas
    }
    first = omegas[0]
    best = max(candidates, key=lambda omega: float(candidates[omega][0].mean()))
    gain = candidates[best][0] - candidates[first][0]
    error = float(gain.std()) / math.sqrt(max(len(gain), 1)) if len(gain) > 1 else math.inf
    omega = best if float(gain.mean()) > CLEARLY_BETTER * error else first

    _, temperature = candidates[omega]
    similarities = omega * whitened + (1 - omega) * learned
    pairs = omega * held_out.whitened_pairs[whitening] + (1 - omega) * held_out.learned_pairs
    t, b = fit_pairs(pairs, held_out.same)
    return Fusion(whitening, omega, temperature, similarities, t, b)


def fuse_fields(
    projection: nn.Module,
    probe_input: ProbeInput,
    features: RunFeatures,
    classes: int,
    recipe: Recipe,
    out_of_fold: HeldOut | None,
) -> tuple[FusedField, Probe]:
    """Return the fused field of a trained head, and the classifier by class means.

    Args:
        projection: the trained head.
        probe_input: input of the classifier.
        features: of all splits.
        classes: number of classes.
        recipe: of the run.
        out_of_fold: the training images, out of fold; None: choose on the validation images.
    """
    train, val = features["train"], features["val"]
    rows = train.features[:, 0], train.labels
    settings = recipe.fusion
    whitenings = fit_whitenings(*rows, settings.shrinkage, settings.directions)
    held_out = out_of_fold or held_out_similarities(
        whitenings,
        projection,
        probe_input,
        recipe.head.common_dim,
        rows,
        (val.features[:, 0], val.labels),
        classes,
    )
    fusion = choose_fusion(held_out, settings.omega)
    whitening = whitenings[fusion.whitening]
    inputs = ProbeInputs(projection, probe_input, recipe.head, whitening, fusion.omega)
    fused, _ = in_passes(inputs, rows[0])
    parts = (whitening.matrix.shape[1], fused.shape[1] - whitening.matrix.shape[1])
    means = scale_parts(class_means(fused, train.labels, classes), fused, parts)
    classifier = LinearClassifier(means, means.new_zeros(classes), fusion.temperature)
    val_rows, _ = in_passes(inputs, val.features[:, 0])
    logits = classifier.logits(val_rows)
    head = ProbeHead(
        0.0,
        0.0,
        plain=False,
        val_accuracy=float((logits.argmax(1) == val.labels).double().mean()),
        val_nll=float(F.cross_entropy(logits, val.labels)),
        chosen=True,
    )
    field = FusedField(
        whitening,
        fusion.omega,
        parts,
        means,
        fusion.temperature,
        fusion.similarities,
        fusion.t,
        fusion.b,
        out_of_fold is not None,
    )
    return field, Probe(classifier, (head,))


def with_fused_inputs(
    features: RunFeatures,
    projection: nn.Module,
    probe_input: ProbeInput,
    field: FusedField,
    recipe: Recipe,
) -> dict[str, SplitFeatures]:
    """Return the features with fused vectors as inputs of stage 2."""
    inputs = ProbeInputs(projection, probe_input, recipe.head, field.whitening, field.omega)
    return {
        name: replace(
            split,
            probe_inputs=in_passes(inputs, split.features.flatten(0, 1))[0]
            .float()
            .view(*split.features.shape[:2], sum(field.parts)),
        )
        for name, split in features.items()
    }


def describe_fusion(field: FusedField) -> str:
    """Return a line on what was chosen."""
    images = len(field.similarities)
    source = "training images, out of fold" if field.out_of_fold else "validation images"
    return (
        f"fusion    {field.omega:g} × whitened features + {1 - field.omega:g} × common field, "
        f"chosen on {images:,} {source}; boundary of pairs {field.b / field.t:.3f}"
    )


def _log_likelihoods(similarities: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Return the log-likelihood of each image, and the temperature that maximises their mean."""
    temperature = fit_temperature(similarities, labels)
    return -F.cross_entropy(similarities / temperature, labels, reduction="none"), temperature
