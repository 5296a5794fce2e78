"""Predictions of a trained model for the splits of its run, and their evaluation."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from scs_supcon.data.builtin import shape_factors
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.compute import EmbeddedImages, compute_evaluation, embedding_baselines
from scs_supcon.evaluation.evaluate import measure_view_agreement
from scs_supcon.evaluation.label_errors import find_label_errors
from scs_supcon.evaluation.leakage import Reference
from scs_supcon.evaluation.record import Baselines, Evaluation
from scs_supcon.inference import Model
from scs_supcon.inference.decision import Decision
from scs_supcon.methods import Method
from scs_supcon.training.features import RunFeatures, SplitFeatures
from scs_supcon.training.probe import Probe


@dataclass(frozen=True)
class SplitPredictions:
    """Embeddings of one split and the decisions of the model, under the evaluation view."""

    embedded: EmbeddedImages
    decision: Decision


RunPredictions = Mapping[str, SplitPredictions]
TIMED_IMAGES = 4


def evaluated_split(features: RunFeatures) -> Literal["test", "val"]:
    """Return the split that a run is evaluated on: "val" if there are no test images."""
    return "test" if len(features["test"].labels) else "val"


def predict_splits(model: Model, features: RunFeatures) -> dict[str, SplitPredictions]:
    """Return the model's embeddings and decisions for every split."""
    predictions = {}
    for name, split in features.items():
        view = split.features[:, 0]
        embedded = EmbeddedImages(split.labels, *model.fields(view))
        predictions[name] = SplitPredictions(embedded, model.decide(view))
    return predictions


def prediction_latency(model: Model, images: ImageDataset, features: RunFeatures) -> float:
    """Return the mean seconds to classify one image of the evaluated split, after reading it."""
    indices = features[evaluated_split(features)].indices[:TIMED_IMAGES]
    opened = [images.open(int(index)) for index in indices]
    model.predict(opened[0])  # the first prediction also loads libraries
    start = time.perf_counter()
    for image in opened:
        model.predict(image)
    return (time.perf_counter() - start) / len(opened)


def evaluate_run(
    model: Model,
    images: ImageDataset,
    features: RunFeatures,
    predictions: RunPredictions,
    baselines: Baselines,
) -> Evaluation:
    """Return the evaluation on the test images, or on the validation images if there are none."""
    split, info = evaluated_split(features), model.info
    decision = predictions[split].decision
    train = features["train"]
    checked = list(features.values())
    return compute_evaluation(
        data=info.recipe.data.source,
        split=split,
        classes=info.classes,
        temperature=info.temperature,
        rule="boundary" if info.pairs.learned else "fitted",
        boundary=info.pairs.boundary,
        pair_temperature=info.pairs.t,
        threshold=info.rejection.threshold,
        train=predictions["train"].embedded,
        evaluated=predictions[split].embedded,
        probabilities=decision.probabilities,
        rejected=decision.unknown,
        baselines=baselines,
        view_agreement=measure_view_agreement(model, train.features, train.labels),
        reference=_reference(info.recipe.data.source, train, features[split]),
        label_errors=find_label_errors(
            torch.cat([part.features[:, 0] for part in checked]),
            torch.cat([part.labels for part in checked]),
            [images.names[index] for part in checked for index in part.indices],
            images.classes,
        ),
    )


def _reference(source: str, train: SplitFeatures, evaluated: SplitFeatures) -> Reference:
    """Return features, and the factors of the built-in dataset of shapes."""
    features = train.features[:, 0], evaluated.features[:, 0]
    if source != "shapes":
        return Reference(features)
    factors = {name: torch.from_numpy(values) for name, values in shape_factors().items()}
    # The angle of a shape with symmetries has no unique value, and the shape is the class.
    named = {name: factors[name] for name in ("x", "y", "size", "paper")}
    named["colour"] = factors["colour"].long()
    return Reference(
        features,
        {
            name: (values[train.indices], values[evaluated.indices])
            for name, values in named.items()
        },
    )


def run_baselines(
    features: RunFeatures,
    predictions: RunPredictions,
    probes: tuple[Probe, Probe],
    method: Method,
    projection: nn.Module,
) -> Baselines:
    """Return the accuracy of simpler classifiers on the evaluated images of a run.

    Args:
        features: features of all splits.
        predictions: predictions for all splits.
        probes: the probe of stage 2, and the linear probe on encoder features.
        method: its own classifier, if it has one, is compared with the probe of stage 2.
        projection: the trained head.
    """
    probe, linear_probe = probes
    split = evaluated_split(features)
    train, evaluated = features["train"], features[split]
    train_features, queries = train.features[:, 0], evaluated.features[:, 0]
    embedding = embedding_baselines(predictions["train"].embedded, predictions[split].embedded)
    values: dict[str, float] = {
        "linear_probe_of_encoder": metrics.top_k(
            linear_probe.classifier.probabilities(queries), evaluated.labels
        ),
        "knn_on_encoder": metrics.knn_accuracy(
            train_features, train.labels, queries, evaluated.labels
        ),
    }
    logits = _own_logits(method, evaluated, projection)
    if logits is not None:
        values["own_classifier"] = metrics.top_k(logits.softmax(1), evaluated.labels)
        values["probe"] = metrics.top_k(
            probe.classifier.probabilities(evaluated.probe_inputs[:, 0]), evaluated.labels
        )
    return embedding.model_copy(update=values)


@torch.no_grad()
def _own_logits(method: Method, split: SplitFeatures, projection: nn.Module) -> Tensor | None:
    """Return the logits of the method's own classifier; None if it has none."""
    features = split.features[:, 0].to(next(projection.parameters()).device)
    logits = method.class_logits(features, projection(features))
    return None if logits is None else logits.cpu()
