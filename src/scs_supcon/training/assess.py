"""A finished model judged on images it was not trained on: what `results.evaluation` is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.evaluation import label_errors
from scs_supcon.evaluation.leakage import view_agreement
from scs_supcon.evaluation.metrics import evenly
from scs_supcon.evaluation.record import Answers, Rows, Rules, Strangers, evaluate
from scs_supcon.inference import Model
from scs_supcon.training.stage2 import Judged, Seen, judged_split

VIEWED = 2000  # images whose views are compared, at most


@dataclass(frozen=True)
class RunArtifacts:
    """What a run has found out by its end."""

    images: ImageDataset
    problems: Sequence[Problem]
    seen: Mapping[str, Seen]
    judged: Mapping[str, Judged]
    made: Model
    baselines: Mapping[str, float]


def assess(found: RunArtifacts) -> dict[str, Any]:
    """Judge a run on its test images (on validation, if there are none)."""
    split = judged_split(found.seen)
    known, asked = (_rows(found, part) for part in ("train", split))
    judgement = found.judged[split].judgement
    answers = Answers(asked, judgement.probabilities, judgement.none_of_these)
    agreement = agreement_of(found.made, found.seen["train"].features, known.labels)
    record = evaluate(rules_of(found.made), known, answers, agreement, Strangers())
    return record | {
        "data": found.made.facts.recipe.data.source,
        "split": split,
        "baselines": dict(found.baselines),
        "label_errors": _label_errors(found),
    }


def rules_of(made: Model) -> Rules:
    """What a model decides by."""
    facts = made.facts
    boundary = facts.boundary
    return Rules(facts.classes, facts.temperature, boundary.rule, boundary.threshold)


def agreement_of(made: Model, features: Tensor, labels: Tensor) -> dict[str, float | None] | None:
    """How far two views of an image agree; None without a second view or a style.

    Args:
        made: the model.
        features: (n, 1 + views, F), the evaluation view first; two random ones are best.
        labels: (n,)
    """
    if features.shape[1] < 2 or not len(features):
        return None
    some = evenly(len(features), VIEWED)
    first, second = (made.fields(features[some, view]) for view in (-2, -1))
    if not first[1].shape[1]:
        return None
    return view_agreement((first[0], second[0]), (first[1], second[1]), labels[some])


def _rows(found: RunArtifacts, split: str) -> Rows:
    judged = found.judged[split]
    return Rows(found.seen[split].labels, judged.common, judged.style)


def _label_errors(found: RunArtifacts) -> list[dict[str, Any]]:
    """Suspected label errors among the training and validation images."""
    parts = [found.seen[split] for split in ("train", "val")]
    features = torch.cat([part.features[:, 0] for part in parts])
    labels = torch.cat([part.labels for part in parts])
    names = [found.images.names[index] for part in parts for index in part.indices]
    classes = found.images.classes
    chances = label_errors.out_of_fold(features, labels, len(classes))
    suspects = label_errors.suspects(chances, labels)
    return label_errors.described(suspects, names, labels, classes)
