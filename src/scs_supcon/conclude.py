"""After stage 1: the classifier, the judgement beside its baselines, and what the run leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from scs_supcon.config import ProbeRecipe
from scs_supcon.display import Display, Tell
from scs_supcon.methods import Method
from scs_supcon.optimise import Progress
from scs_supcon.probe import Classifier, Readouts, train_bank
from scs_supcon.results import metrics
from scs_supcon.run_folder import RunFolder

CHUNK = 4096


@dataclass(frozen=True)
class Seen:
    """One split as the trained network sees it.

    Attributes:
        indices: which pictures.
        labels: their classes.
        features: `(n, 1 + views, d)`, the evaluation view first.
        readout: the same views as stage 2 sees them.
    """

    indices: NDArray[np.int64]
    labels: Tensor
    features: Tensor
    readout: Tensor


@torch.no_grad()
def see(
    features: Tensor,
    indices: NDArray[np.int64],
    labels: NDArray[np.int64],
    projection: nn.Module,
    method: Method,
) -> Seen:
    """Read out every view of one split; `labels` are those of the whole set."""
    device = next(projection.parameters()).device
    parts = []
    for piece in torch.split(features.flatten(0, 1), CHUNK):
        here = piece.to(device)
        parts.append(method.readout(here, projection(here)).cpu())
    readout = torch.cat(parts) if parts else features.flatten(0, 1)
    shaped = readout.view(*features.shape[:2], -1)
    return Seen(indices, torch.from_numpy(labels[indices]), features, shaped)


@dataclass(frozen=True)
class Judged:
    """The chosen classifier, and every method's accuracy under the same split."""

    classifier: Classifier
    linear: Classifier
    summary: dict[str, Any]


def judge(  # noqa: PLR0913
    fabric: Fabric,
    run: RunFolder,
    seen: Mapping[str, Seen],
    classes: int,
    probe: ProbeRecipe,
    seed: int,
    display: Display,
) -> Judged:
    """Train the classifier on the readout, and beside it a plain one on the encoder's features."""
    train, val = seen["train"], seen["val"]
    banks = {}
    for name in ("probe", "linear"):
        learn, choose = (
            (train.readout, val.readout) if name == "probe" else (train.features, val.features)
        )
        readouts = Readouts(name, learn, train.labels, choose[:, 0], val.labels, classes)
        title = "stage 2" if name == "probe" else "linear probe of the encoder"
        with display.progress(title) as tell:
            told = partial(_told, tell, probe.epochs)
            banks[name] = train_bank(fabric, run, readouts, probe, seed, told)
    judged = seen["test"] if len(seen["test"].labels) else val
    summary = _summary(banks["probe"], banks["linear"], train, judged)
    summary["judged_on"] = "test" if judged is seen["test"] else "val"
    summary["bank"] = [vars(member) for member in banks["probe"].bank]
    return Judged(banks["probe"], banks["linear"], summary)


def _told(tell: Tell, epochs: int, progress: Progress) -> None:
    tell(progress.epoch, epochs)


def _summary(probe: Classifier, linear: Classifier, train: Seen, judged: Seen) -> dict[str, Any]:
    chances = probe.probabilities(judged.readout[:, 0])
    known = train.readout[:, 0], train.labels
    asked = judged.readout[:, 0], judged.labels
    low, high = metrics.accuracy_interval(chances.argmax(1) == judged.labels)
    of_features = linear.probabilities(judged.features[:, 0])
    return {
        "accuracy": metrics.top_k(chances, judged.labels),
        "interval": [low, high],
        "metrics": metrics.summary(chances, judged.labels),
        "baselines": {
            "kNN on the readout": metrics.knn_accuracy(*known, *asked),
            "nearest class mean": metrics.nearest_mean_accuracy(*known, *asked),
            "linear probe of the encoder": metrics.top_k(of_features, judged.labels),
            "kNN on the encoder": metrics.knn_accuracy(
                train.features[:, 0], train.labels, judged.features[:, 0], judged.labels
            ),
        },
        "pictures": len(judged.labels),
    }


def headline(summary: Mapping[str, Any]) -> str:
    """One line: the accuracy, its interval, and on what."""
    low, high = summary["interval"]
    return (
        f"{summary['accuracy']:.2%} of {summary['pictures']} {summary['judged_on']} pictures right "
        f"(95 % interval {low:.1%} to {high:.1%})"
    )


def describe(summary: Mapping[str, Any]) -> str:
    """The result for a person: headline, baselines, where to look."""
    lines = [headline(summary), "", "beside it, on the same pictures:"]
    lines += [f"  {name:<30} {value:.2%}" for name, value in summary["baselines"].items()]
    accuracies = [member["val_accuracy"] for member in summary["bank"]]
    lines += [
        f"  {'spread of the bank of heads':<30} {min(accuracies):.2%} to {max(accuracies):.2%} "
        "(validation)",
        "",
        f"model     {summary['model']}",
        f"use it    scs predict {summary['run']} picture.jpg",
    ]
    return "\n".join(lines)
