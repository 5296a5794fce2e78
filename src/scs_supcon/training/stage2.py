"""After stage 1: the classifier, the judgement beside its baselines, and what the run leaves."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.compute import EmbeddedImages, embedding_baselines
from scs_supcon.evaluation.record import OLD_KEYS
from scs_supcon.evaluation.splits import PARTS, UNTESTED
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import Decision
from scs_supcon.inference.model import Model
from scs_supcon.inference.package import ModelMetrics
from scs_supcon.methods import Method
from scs_supcon.nn.network import Output, ProbeInput, probe_features
from scs_supcon.progress import Display
from scs_supcon.recipe import ProbeRecipe, Recipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.probe import Probe, ProbeData, fit_probe, with_own_classifier

CHUNK = 4096


@dataclass(frozen=True)
class Seen:
    """One split as the trained network sees it.

    Attributes:
        indices: which images.
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
    probe_input: ProbeInput,
    common_dim: int,
) -> Seen:
    """Read out every view of one split; `labels` are those of the whole set."""
    device = next(projection.parameters()).device
    parts = []
    for piece in torch.split(features.flatten(0, 1), CHUNK):
        here = piece.to(device)
        output = Output(here, projection(here))
        parts.append(probe_features(output, probe_input, common_dim).cpu())
    readout = torch.cat(parts)
    shaped = readout.view(*features.shape[:2], readout.shape[-1])
    return Seen(indices, torch.from_numpy(labels[indices]), features, shaped)


def train_classifiers(
    fabric: Fabric,
    run: RunDir,
    seen: Mapping[str, Seen],
    classes: int,
    probe: ProbeRecipe,
    seed: int,
    display: Display,
) -> tuple[Probe, Probe]:
    """Train the classifier on the readout, and beside it a plain one on the encoder's features."""
    train, val = seen["train"], seen["val"]
    stages = {
        "probe": ("stage 2", train.readout, val.readout),
        "linear": ("linear probe of the encoder", train.features, val.features),
    }
    found = []
    for name, (title, learn, choose) in stages.items():
        data = ProbeData(learn, train.labels, choose[:, 0], val.labels, classes)
        with display.progress(title) as tell:
            found.append(fit_probe(fabric, run, name, data, probe, seed, tell))
    return found[0], found[1]


@torch.no_grad()
def settle_on(
    method: Method, reads: ProbeInput, probe: Probe, projection: nn.Module, seen: Mapping[str, Seen]
) -> tuple[Probe, dict[str, float]]:
    """The classifier of a run, and how well others do on the images it is judged on.

    A single-stage method classifies by itself, if its classifier reads what stage 2 reads and is
    not behind stage 2 on validation by more than chance. Of all others it is that of stage 2.
    """
    asked, val = seen[judged_split(seen)], seen["val"]
    features = asked.features[:, 0].to(next(projection.parameters()).device)
    logits = method.class_logits(features, projection(features))
    if logits is None:
        return probe, {}
    chances = {
        "the method's own classifier": logits.cpu().softmax(1),
        "stage 2 on the readout": probe.classifier.probabilities(asked.readout[:, 0]),
    }
    beside = {name: metrics.top_k(chance, asked.labels) for name, chance in chances.items()}
    own = method.linear_classifier(reads)
    if own is None:
        return probe, beside
    return with_own_classifier(probe, own, val.readout[:, 0], val.labels), beside


def assemble(
    recipe: Recipe,
    images: ImageDataset,
    seen: Mapping[str, Seen],
    encoder: nn.Module,
    projection: nn.Module,
    probe_input: ProbeInput,
    classifier: LinearClassifier,
    boundary: float | None,
) -> Model:
    """Build the model from the results of training."""
    train, val = seen["train"], seen["val"]
    return Model.from_training(
        recipe=recipe,
        classes=images.classes,
        encoder=encoder,
        projection=projection,
        probe_input=probe_input,
        classifier=classifier,
        train=(train.features[:, 0], train.labels),
        val=(val.features[:, 0], val.labels),
        train_names=[images.names[index] for index in train.indices],
        boundary=boundary,
    )


@dataclass(frozen=True)
class Judged:
    """One split as the finished model sees and judges it: unit vectors, and what it says."""

    common: Tensor
    style: Tensor
    judgement: Decision


def judge_splits(made: Model, seen: Mapping[str, Seen]) -> dict[str, Judged]:
    """Let the model judge every split by its evaluation view."""
    views = {split: part.features[:, 0] for split, part in seen.items()}
    return {split: Judged(*made.fields(view), made.decide(view)) for split, view in views.items()}


def judged_split(seen: Mapping[str, Seen]) -> str:
    """The split that a run is judged on: the test images, or validation if there are none."""
    return "test" if len(seen["test"].labels) else "val"


def summarise(
    made: Model,
    linear: LinearClassifier,
    seen: Mapping[str, Seen],
    judged: Mapping[str, Judged],
) -> dict[str, Any]:
    """Say how well the model does on the images it is judged on."""
    split = judged_split(seen)
    asked, train = seen[split], seen["train"]
    judgement = judged[split].judgement
    chances, labels = judgement.probabilities, asked.labels
    right = chances.argmax(1) == labels
    known, rows = (
        EmbeddedImages(seen[part].labels, judged[part].common, judged[part].style)
        for part in ("train", split)
    )
    of_features = linear.probabilities(asked.features[:, 0])
    encoder = train.features[:, 0], train.labels, asked.features[:, 0], labels
    return {
        "accuracy": metrics.top_k(chances, labels),
        "interval": list(metrics.accuracy_interval(right)),
        "judged_on": split,
        "images": len(labels),
        "metrics": metrics.summary(chances, labels),
        "refused": float(judgement.unknown.double().mean()),
        "boundary": made.info.rejection.model_dump(),
        "baselines": {
            **{
                OLD_KEYS[name][0]: value
                for name, value in embedding_baselines(known, rows).measured().items()
            },
            "linear probe of the encoder": metrics.top_k(of_features, labels),
            "kNN on the encoder": metrics.knn_accuracy(*encoder),
        },
    }


def card_metrics(values: Mapping[str, float]) -> ModelMetrics:
    """Return the metrics of the model card from the summary."""
    return ModelMetrics(
        accuracy=values["acc1"],
        top5_accuracy=values["acc5"],
        macro_f1=values["macro_f1"],
        balanced_accuracy=values["balanced_acc"],
        ece=values["ece"],
        nll=values["nll"],
    )


def headline(summary: Mapping[str, Any]) -> str:
    """One line: the accuracy, its interval, and on what."""
    low, high = summary["interval"]
    part = PARTS[summary["judged_on"]]
    return (
        f"{summary['accuracy']:.2%} of {summary['images']} {part} images right "
        f"(95 % interval {low:.1%} to {high:.1%})"
    )


def describe(summary: Mapping[str, Any]) -> str:
    """The result for a person: headline, baselines, where to look."""
    lines = [headline(summary)]
    if summary["judged_on"] == "val":
        lines.append(f"caution: {UNTESTED}")
    lines += ["", "beside it, on the same images:"]
    lines += [f"  {name:<30} {value:.2%}" for name, value in summary["baselines"].items()]
    accuracies = [head["val_accuracy"] for head in summary["bank"]]
    boundary, run = summary["boundary"], shlex.quote(summary["run"])
    lines += [
        f"  {'spread of the bank of heads':<30} {min(accuracies):.2%} to {max(accuracies):.2%} "
        "(validation)",
        "",
        f"{summary['refused']:.1%} of these images would be called none of these classes "
        f"(similarity below {boundary['threshold']:.3f})",
        f"model     {summary['model']}",
        *(f"report    {page}" for page in Path(summary["run"]).glob("report.html")),
        f"use it    scs predict {run} image.jpg",
        f"judge it  scs evaluate {run}",
    ]
    return "\n".join(lines)
