"""Scores of every image of a run, by which the data page filters and sorts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.inference.model import Model
from scs_supcon.io.records import RecordError, read_json, read_parquet
from scs_supcon.io.typed import validate
from scs_supcon.report.gallery import map_points

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

REFERENCES = 5000  # images that each image is compared with, to find how different it is
MAP_IMAGES = 3000  # images that t-SNE places; the others follow their neighbours
ROWS = 2000  # per matrix product
SAME = 0.9999  # similarity of images that look the same


@dataclass(frozen=True)
class ImageScores:
    """Scores of n images; rows of images that the run does not contain are NaN or −1.

    Attributes:
        prediction: class that a classifier predicts that was not trained on the image: the model
            for validation and test images, a linear classifier of another fold for training images.
        confidence: probability of that class.
        label_probability: probability of the label.
        suggested: class that fits better than a suspected label; −1 if the label is not suspected.
        suspicion: how much more probable the suggested class is than the label; 0 if not suspected.
        margin: similarity to the images of the label minus the largest similarity to those of
            another class: near 0 at the boundary of two classes.
        difference: 1 − similarity to the most similar other image.
        duplicate: whether the data checks found a duplicate or near duplicate of the image.
        copy: a suspected image that looks the same and has the label that would be suggested, which
            is not, because the labels would only be exchanged; −1 if there is none.
    """

    prediction: Ints
    confidence: Floats
    label_probability: Floats
    suggested: Ints
    suspicion: Floats
    margin: Floats
    difference: Floats
    duplicate: NDArray[np.bool_]
    copy: Ints

    def columns(self) -> dict[str, list[Any]]:
        """Return the scores for JSON, rounded; missing numbers are None."""
        columns: dict[str, list[Any]] = {}
        for name, values in vars(self).items():
            if values.dtype.kind == "f":
                rounded = np.round(values.astype(np.float64), 4).tolist()
                columns[name] = [None if math.isnan(value) else value for value in rounded]
            else:
                columns[name] = values.astype(int).tolist()
        return columns


@dataclass(frozen=True)
class RunVectors:
    """The embeddings of a run for n images of a workspace.

    Attributes:
        known: (n,) whether the run has an embedding of the image.
        common: (n, D) unit vectors; zero if unknown.
        labels: (n,) labels that the run was trained with; −1 if unknown.
    """

    known: NDArray[np.bool_]
    common: Floats
    labels: Ints


def read_vectors(
    run: Path, names: Sequence[str], renamed: Mapping[str, str], classes: Sequence[str]
) -> RunVectors:
    """Read the embeddings of a run, in the order of `names`.

    Args:
        run: the run directory.
        names: names of the images.
        renamed: names in the run -> names here, if they differ.
        classes: names of the classes.
    """
    types = {"name": str, "label": str, "common": list}
    table = read_parquet(run / "embeddings.parquet", types)
    number = {name: index for index, name in enumerate(names)}
    class_index = {name: index for index, name in enumerate(classes)}
    vectors = np.stack(table["common"].to_numpy()).astype(np.float32)
    common = np.zeros((len(names), vectors.shape[1]), np.float32)
    known, labels = np.zeros(len(names), bool), np.full(len(names), -1)
    rows = zip(table["name"].to_pylist(), table["label"].to_pylist(), vectors, strict=True)
    for name, label, vector in rows:
        row = number.get(renamed.get(name, name))
        if row is not None:
            known[row], common[row] = True, vector
            labels[row] = class_index.get(label, -1)
    return RunVectors(known, common, labels)


def score_images(
    run: Path,
    model: Model,
    vectors: RunVectors,
    names: Sequence[str],
    renamed: Mapping[str, str],
) -> ImageScores:
    """Return the scores of images, from the files of a run."""
    n = len(names)
    number = {name: index for index, name in enumerate(names)}
    prediction, suggested = np.full(n, -1), np.full(n, -1)
    confidence, own, suspicion = (np.full(n, np.nan, np.float32) for _ in range(3))
    checked = _label_scores(run, renamed, number)
    for name, values in checked.items():
        row = number[name]
        prediction[row], confidence[row], own[row], suggested[row], suspicion[row] = values
    class_index = {name: index for index, name in enumerate(model.classes)}
    for name, predicted, probabilities in _predictions(run):
        at = number.get(renamed.get(name, name))
        if at is not None and predicted in class_index and len(probabilities) == len(class_index):
            prediction[at] = class_index[predicted]
            confidence[at] = probabilities[class_index[predicted]]
            if vectors.labels[at] >= 0:
                own[at] = probabilities[vectors.labels[at]]
    duplicate = np.zeros(n, bool)
    for name in _duplicates(run):
        if (at := number.get(renamed.get(name, name))) is not None:
            duplicate[at] = True
    copy = _copies(vectors, suggested)
    suggested[copy >= 0] = -1
    return ImageScores(
        prediction,
        confidence,
        own,
        suggested,
        suspicion,
        _margins(model, vectors),
        _differences(vectors),
        duplicate,
        copy,
    )


def _label_scores(
    run: Path, renamed: Mapping[str, str], number: Mapping[str, int]
) -> dict[str, tuple[int, float, float, int, float]]:
    """Return predicted class, confidence, label probability, suggestion and suspicion by name."""
    file = run / "label_scores.parquet"
    types = {"name": str, "prediction": int, "confidence": float, "label_probability": float}
    table = read_parquet(file, types | {"suggested": int, "suspicion": float}).to_pydict()
    names = [renamed.get(name, name) for name in table.pop("name")]
    stored = zip(names, zip(*table.values(), strict=True), strict=True)
    return {name: values for name, values in stored if name in number}


def _predictions(run: Path) -> list[tuple[str, str, Any]]:
    types = {"name": str, "prediction": str, "probabilities": list}
    table = read_parquet(run / "predictions.parquet", types)
    columns = (table["name"].to_pylist(), table["prediction"].to_pylist())
    return list(zip(*columns, table["probabilities"].to_numpy(), strict=True))


def _duplicates(run: Path) -> list[str]:
    try:
        file = run / "problems.json"
        problems = validate(list[dict[str, str]], read_json(file), file)
    except RecordError:
        return []
    return [p["name"] for p in problems if "name" in p and "duplicate" in p.get("kind", "")]


def _copies(vectors: RunVectors, suggested: Ints) -> Ints:
    """Return the suspected image with the suggested label that looks the same; −1 if none does."""
    copies = np.full(len(suggested), -1)
    for label in np.unique(suggested[suggested >= 0]):
        others = np.flatnonzero((vectors.labels == label) & (suggested >= 0))
        wanted = np.flatnonzero((suggested == label) & vectors.known)
        for start in range(0, len(wanted) if len(others) else 0, ROWS):
            rows = wanted[start : start + ROWS]
            similarities = vectors.common[rows] @ vectors.common[others].T
            same = similarities.max(1) > SAME
            copies[rows[same]] = others[similarities.argmax(1)[same]]
    return copies


def _margins(model: Model, vectors: RunVectors) -> Floats:
    """Return the similarity to the own class minus the largest similarity to another one."""
    means = model.classifier.rule.means.numpy().astype(np.float32)
    margins = np.full(len(vectors.known), np.nan, np.float32)
    rows = np.flatnonzero(vectors.known & (vectors.labels >= 0))
    if len(rows) and len(means) > 1:
        similarities = vectors.common[rows] @ means.T
        own = np.take_along_axis(similarities, vectors.labels[rows, None], 1)[:, 0]
        np.put_along_axis(similarities, vectors.labels[rows, None], -np.inf, 1)
        margins[rows] = own - similarities.max(1)
    return margins


def _differences(vectors: RunVectors) -> Floats:
    """Return 1 − the similarity to the most similar other image; of many images, to a sample."""
    result = np.full(len(vectors.known), np.nan, np.float32)
    rows = np.flatnonzero(vectors.known)
    if len(rows) < 2:
        return result
    references = rows
    if len(rows) > REFERENCES:
        references = np.sort(np.random.default_rng(0).choice(rows, REFERENCES, replace=False))
    for start in range(0, len(rows), ROWS):
        chunk = rows[start : start + ROWS]
        similarities = vectors.common[chunk] @ vectors.common[references].T
        similarities[chunk[:, None] == references] = -np.inf
        result[chunk] = 1 - similarities.max(1)
    return result


def place_on_map(vectors: RunVectors) -> list[list[float] | None]:
    """Return map coordinates between 0 and 1 for each image; None if the run has no embedding.

    t-SNE places up to 3,000 images; the others are placed at their most similar one.
    """
    rows = np.flatnonzero(vectors.known)
    points: list[list[float] | None] = [None] * len(vectors.known)
    placed = rows
    if len(rows) > MAP_IMAGES:
        placed = np.sort(np.random.default_rng(0).choice(rows, MAP_IMAGES, replace=False))
    coordinates = map_points(vectors.common[placed])
    position = dict(zip(placed.tolist(), coordinates.tolist(), strict=True))
    rng = np.random.default_rng(0)
    for start in range(0, len(rows), ROWS):
        chunk = rows[start : start + ROWS]
        if len(placed) == len(rows):
            nearest = chunk
        else:
            nearest = placed[(vectors.common[chunk] @ vectors.common[placed].T).argmax(1)]
        for row, near in zip(chunk.tolist(), nearest.tolist(), strict=True):
            shift = [0.0, 0.0] if row == near else (rng.normal(0, 0.004, 2)).tolist()
            x, y = position[near]
            points[row] = [round(x + shift[0], 4), round(y + shift[1], 4)]
    return points
