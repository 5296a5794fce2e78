"""The typed result of an evaluation, and its file `evaluation.json`.

Field names are identifiers; titles and sentences for people are in `evaluation.format`.
"""

import json
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text
from scs_supcon.io.records import RecordError, read_json_object
from scs_supcon.io.typed import validate

FORMAT_VERSION: Literal[3] = 3


class EvaluationRecord(BaseModel):
    """Base class of the records, which are frozen."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    def to_json(self) -> str:
        """Return the content of the file: JSON with one line per field."""
        fields = self.model_dump(mode="json")
        lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
        return "{" + ",\n ".join(lines) + "}\n"

    def write(self, path: str | Path) -> None:
        """Write the record atomically."""
        write_text(Path(path), self.to_json())


class Score(EvaluationRecord):
    """A value between 0 and 1 with its 95% confidence interval."""

    value: float
    low: float
    high: float


class Scores(EvaluationRecord):
    """Scores of the predictions."""

    accuracy: Score
    top5_accuracy: Score
    macro_f1: Score
    balanced_accuracy: Score


class ReliabilityBin(EvaluationRecord):
    """Images whose confidence lies in (low, high]; an empty bin has no means."""

    low: float
    high: float
    confidence: float | None
    accuracy: float | None
    count: int


class Reliability(EvaluationRecord):
    """Expected calibration error and the bins of the reliability diagram."""

    ece: float
    bins: tuple[ReliabilityBin, ...]


class Calibration(EvaluationRecord):
    """Reliability before and after temperature scaling."""

    temperature: float
    before: Reliability
    after: Reliability
    nll: float | None = None
    """Mean negative log-likelihood of the scaled probabilities; None if infinite or unknown."""


class Retrieval(EvaluationRecord):
    """Retrieval in the common field; None if no class has two images."""

    precision_at_1: float | None
    map_at_r: float | None


class PairHistogram(EvaluationRecord):
    """Number of pairs per similarity bin."""

    edges: tuple[float, ...]
    same: tuple[int, ...]
    different: tuple[int, ...]


class PairStatistics(EvaluationRecord):
    """How well a threshold on the similarity separates same-class from different-class pairs."""

    rule: Literal["boundary", "fitted", "quantile"]
    """The boundary learned by the method, one fitted to held-out pairs, or a quantile."""
    threshold: float
    t: float | None = None
    """Temperature of the pairs; None in old files."""
    auc: float | None
    true_positive_rate: float | None
    false_positive_rate: float | None
    roc: tuple[tuple[float, float], ...]
    """Points (false positive rate, true positive rate)."""
    histogram: PairHistogram
    images: int
    """Images that were paired."""


class Rejection(EvaluationRecord):
    """Share of images rejected as unknown."""

    threshold: float | None = None
    """Similarity to a class mean that an image needs, over all classes; None in old files."""
    known_rejected: float
    """Share of the images of known classes: wrongly rejected."""
    unknown_rejected: float | None = None
    """Share of the images of unknown classes: correctly rejected."""
    unknown_images: int = 0
    unknown_classes: tuple[str, ...] = ()


class ClassScores(EvaluationRecord):
    """Scores of one class; 0 where there is nothing to divide by."""

    name: str
    images: int
    precision: float
    recall: float
    f1: float
    rejected: float


class ConfusedPair(EvaluationRecord):
    """How often images of one class were predicted as another."""

    label: str
    prediction: str
    count: int


class ViewAgreement(EvaluationRecord):
    """Mean similarities between two views, in the style and the common field."""

    style_same_image: float
    style_same_class: float | None
    """Two images of one class; None if no class has two images."""
    common_same_image: float


class FactorReading(EvaluationRecord):
    """How well a known factor of the images can be read linearly, from 0 (chance) to 1."""

    name: str
    from_style: float
    from_common: float
    from_features: float


class Leakage(EvaluationRecord):
    """How much the style field reveals about the class, and how much about the image."""

    chance: float
    """Share of the largest class."""
    class_from_common: float
    """Accuracy of a linear classifier on the common field."""
    class_from_style: float
    """Accuracy of a linear classifier on the style field."""
    view_agreement: ViewAgreement | None
    style_rank: float
    """Effective rank of the style field."""
    style_dim: int
    class_from_style_knn: float | None = None
    """Accuracy of the vote of the ten training images with the most similar style."""
    class_from_style_mlp: float | None = None
    """Accuracy of a small neural network on the style field."""
    style_purity: float | None = None
    """Share of the ten nearest images in style that are of the same class; 0: chance, 1: all."""
    variance_explained: float | None = None
    """Share of the variance of the features within classes that style explains linearly."""
    factors: tuple[FactorReading, ...] = ()
    """Known factors of synthetic images."""

    @property
    def excess(self) -> float:
        """Class in style relative to class in common, both above chance: 0: none, 1: as much."""
        return (self.class_from_style - self.chance) / max(
            self.class_from_common - self.chance, 1e-9
        )

    @property
    def view_gap(self) -> float | None:
        """Similarity in style of two views of one image, minus that of two images of a class."""
        agreement = self.view_agreement
        if agreement is None or agreement.style_same_class is None:
            return None
        return agreement.style_same_image - agreement.style_same_class


class Baselines(EvaluationRecord):
    """Accuracy of simpler classifiers on the same images; None if not measured."""

    knn_on_probe_input: float | None = None
    nearest_class_mean: float | None = None
    linear_probe_of_encoder: float | None = None
    knn_on_encoder: float | None = None
    own_classifier: float | None = None
    probe: float | None = None

    def measured(self) -> dict[str, float]:
        """Return the baselines that were measured, by field name."""
        values: dict[str, float] = self.model_dump(exclude_none=True)
        return values


class LabelError(EvaluationRecord):
    """An image whose label is probably wrong."""

    image: str
    label: str
    suggested: str
    label_probability: float
    suggested_probability: float


class UnreadableImage(EvaluationRecord):
    """An image that could not be opened and was left out."""

    image: str
    detail: str


class GroupScores(EvaluationRecord):
    """Scores of the images of one group, with 95% intervals."""

    name: str
    images: int
    accuracy: Score
    calibration_error: Score
    rejected: Score
    small: bool
    """Whether there are too few images for a conclusion."""


class GroupAnalysis(EvaluationRecord):
    """Scores by group."""

    column: str
    groups: tuple[GroupScores, ...]
    worst: str | None
    """The group with the lowest accuracy among those that are not small."""
    p_value: float | None
    """Of a χ² test of equal accuracies of the groups that are not small."""
    small_images: int
    """Groups with fewer images are small."""


class ShiftRow(EvaluationRecord):
    """Scores on the images under one shift; the first row of a table has none."""

    shift: str
    level: str
    accuracy: Score
    calibration_error: float
    confidence: float
    rejected: float


class ShiftTable(EvaluationRecord):
    """Scores of a model on images, and on shifted copies of them."""

    data: str
    images: int
    rows: tuple[ShiftRow, ...]
    saved_to: str | None = Field(default=None, exclude=True)


class Headline(EvaluationRecord):
    """The result of an evaluation in a few numbers."""

    accuracy: float
    interval: tuple[float, float]
    split: str
    images: int
    rejected: float
    baselines: Baselines


Index: TypeAlias = Annotated[int, Field(ge=0)]
ConfusionCell: TypeAlias = tuple[Index, Index, Index]


class Evaluation(EvaluationRecord):
    """Everything measured about a model on labelled images."""

    format_version: Literal[3] = FORMAT_VERSION
    data: str
    """The data as given by the user."""
    path: str | None = None
    """Absolute path of the data, or the name of a built-in dataset; None for a run's own split."""
    split: Literal["test", "val", "all"]
    images: int
    """Images of known classes that were evaluated."""
    training_images: int = 0
    """How many of them are training images of the model."""
    classes: tuple[str, ...]
    scores: Scores
    calibration: Calibration
    baselines: Baselines
    retrieval: Retrieval
    pairs: PairStatistics
    rejection: Rejection
    per_class: tuple[ClassScores, ...]
    confusion: tuple[ConfusionCell, ...]
    """The cells of the confusion matrix that are not 0: (label, prediction, images)."""
    confused_pairs: tuple[ConfusedPair, ...]
    """The most frequent confusions, worst first."""
    leakage: Leakage | None
    """None without a style field."""
    label_errors: tuple[LabelError, ...] = ()
    """Suspected label errors, most suspicious first."""
    unreadable: tuple[UnreadableImage, ...] = ()
    groups: GroupAnalysis | None = None
    """Scores by group, if they were asked for."""
    saved_to: str | None = Field(default=None, exclude=True)
    """The file the evaluation was written to, if any; not part of the file."""

    @model_validator(mode="after")
    def _check_confusion(self) -> "Evaluation":
        for label, prediction, _ in self.confusion:
            if max(label, prediction) >= len(self.classes):
                raise ValueError(
                    f"confusion has a cell of the classes {label} and {prediction}, but there are "
                    f"{len(self.classes)} classes"
                )
        return self

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.scores.accuracy.value

    def confusion_matrix(self) -> NDArray[np.int64]:
        """Return the counts (classes, classes); rows are labels, columns are predictions."""
        matrix = np.zeros((len(self.classes),) * 2, np.int64)
        for label, prediction, images in self.confusion:
            matrix[label, prediction] = images
        return matrix

    def headline(self) -> Headline:
        """Return accuracy, interval, split, number of images, rejection rate and baselines."""
        score = self.scores.accuracy
        return Headline(
            accuracy=score.value,
            interval=(score.low, score.high),
            split=self.split,
            images=self.images,
            rejected=self.rejection.known_rejected,
            baselines=self.baselines,
        )

    @classmethod
    def read(cls, path: str | Path) -> "Evaluation":
        """Read an evaluation.

        Raises:
            UserError: the file is missing or damaged, or another version wrote it.
        """
        path = Path(path)
        content = read_json_object(path, finite=True)
        version = content.get("format_version")
        if not isinstance(version, int):
            raise RecordError(f"{path} is damaged: it has no format_version")
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path} has format {version}, this version reads format {FORMAT_VERSION}: use the "
                "version of scs-supcon that wrote it, or train again"
            )
        return validate(cls, content, path)


class UnknownEvaluation(EvaluationRecord):
    """What a model makes of images of unknown classes alone: there is no accuracy to measure."""

    format_version: Literal[3] = FORMAT_VERSION
    data: str
    """The data as given by the user."""
    path: str | None = None
    """Absolute path of the data, or the name of a built-in dataset."""
    split: Literal["test", "val", "all"]
    images: int
    """Images of unknown classes that were evaluated."""
    classes: tuple[str, ...]
    """Their classes."""
    known_classes: tuple[str, ...]
    """Classes of the model."""
    rejected: float
    """Share of the images that are rejected as unknown."""
    threshold: float
    """Similarity to a class that an image needs, over all classes."""
    accepted_as: dict[str, int]
    """Number of images that are not rejected, by predicted class; the most frequent first."""
    unreadable: tuple[UnreadableImage, ...] = ()
    saved_to: str | None = Field(default=None, exclude=True)
    """The file the evaluation was written to, if any; not part of the file."""
