"""Evaluation of a finished run on its test split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.evaluation.compute import EmbeddedImages, compute_evaluation
from scs_supcon.evaluation.evaluate import measure_view_agreement
from scs_supcon.evaluation.label_errors import find_label_errors
from scs_supcon.evaluation.record import Baselines, Evaluation, LabelError
from scs_supcon.inference import Model
from scs_supcon.training.stage2 import Judged, Seen, judged_split


@dataclass(frozen=True)
class RunArtifacts:
    """Results of a run that its files are written from."""

    images: ImageDataset
    problems: Sequence[Problem]
    seen: Mapping[str, Seen]
    judged: Mapping[str, Judged]
    made: Model
    baselines: Mapping[str, float]


def assess(found: RunArtifacts) -> Evaluation:
    """Evaluate a run on its test images, or on its validation images if there are none."""
    split: Literal["test", "val"] = "test" if judged_split(found.seen) == "test" else "val"
    train, evaluated = (_embedded(found, name) for name in ("train", split))
    decision, info = found.judged[split].judgement, found.made.info
    return compute_evaluation(
        data=info.recipe.data.source,
        split=split,
        classes=info.classes,
        temperature=info.temperature,
        rule=info.rejection.rule,
        threshold=info.rejection.threshold,
        train=train,
        evaluated=evaluated,
        probabilities=decision.probabilities,
        rejected=decision.unknown,
        baselines=Baselines.model_validate(found.baselines),
        view_agreement=measure_view_agreement(
            found.made, found.seen["train"].features, train.labels
        ),
        label_errors=_label_errors(found),
    )


def _embedded(found: RunArtifacts, split: str) -> EmbeddedImages:
    judged = found.judged[split]
    return EmbeddedImages(found.seen[split].labels, judged.common, judged.style)


def _label_errors(found: RunArtifacts) -> tuple[LabelError, ...]:
    """Find suspected label errors among the training and validation images."""
    splits = [found.seen[split] for split in ("train", "val")]
    features = torch.cat([split.features[:, 0] for split in splits])
    labels = torch.cat([split.labels for split in splits])
    names = [found.images.names[index] for split in splits for index in split.indices]
    return find_label_errors(features, labels, names, found.images.classes)
