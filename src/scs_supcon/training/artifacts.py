"""Write the files of a finished run: evaluation, predictions, embeddings, thumbnails, problems.

Each file is written atomically, and equal runs write equal bytes. The report, the server and later
evaluations read these files instead of the images.
"""

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.evaluation.compute import model_metrics
from scs_supcon.evaluation.label_errors import label_scores
from scs_supcon.evaluation.metrics import knn_scores
from scs_supcon.evaluation.predictions import prediction_columns, write_predictions
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.inference import Model
from scs_supcon.io.atomic import replacing, write_json
from scs_supcon.training.features import RunFeatures
from scs_supcon.training.run_evaluation import RunPredictions

THUMBNAIL_SIDE = 96  # pixels of the longer side
JPEG_QUALITY = 80
MAX_THUMBNAILS = 2000  # not counting suspected label errors


def write_artifacts(
    path: Path,
    model: Model,
    images: ImageDataset,
    problems: Iterable[Problem],
    features: RunFeatures,
    predictions: RunPredictions,
    evaluation: Evaluation,
    workers: int = 1,
) -> None:
    """Write the model, the evaluation, and the tables for the report."""
    counts = {split: len(part.labels) for split, part in features.items()}
    model.save(path / "model", model_metrics(evaluation), counts)
    evaluation.write(path / "evaluation.json")
    _write_split_predictions(path / "predictions.parquet", model, images, features, predictions)
    _write_embeddings(path / "embeddings.parquet", images, features, predictions)
    _write_label_scores(path / "label_scores.parquet", images, features)
    write_problems(path / "problems.json", problems)
    suspects = {error.image for error in evaluation.label_errors}
    shown = dict.fromkeys(thumbnail_indices(features["test"].indices, features["val"].indices))
    shown |= dict.fromkeys(i for i, name in enumerate(images.names) if name in suspects)
    write_thumbnails(path / "thumbnails.parquet", images, list(shown), workers)


def _write_split_predictions(
    path: Path,
    model: Model,
    images: ImageDataset,
    features: RunFeatures,
    predictions: RunPredictions,
) -> None:
    columns: dict[str, list[Any]] = defaultdict(list)
    train = features["train"]
    for split in ("val", "test"):
        part = features[split]
        names, labels = _names(images, part.indices), _label_names(images, part.indices)
        decision = predictions[split].decision
        for name, cells in prediction_columns(names, labels, model.classes, decision).items():
            columns[name] += cells
        columns["split"] += [split] * len(part.indices)
        votes = knn_scores(train.features[:, 0], train.labels, part.features[:, 0])
        columns["neighbours"] += [images.classes[label] for label in votes.argmax(1)]
    write_predictions(path, columns)


def _write_embeddings(
    path: Path, images: ImageDataset, features: RunFeatures, predictions: RunPredictions
) -> None:
    """Write the common and style field of every image of every split."""
    import pyarrow as pa

    text, vector = pa.string(), pa.list_(pa.float32())
    types = {"name": text, "split": text, "label": text, "common": vector, "style": vector}
    columns: dict[str, list[Any]] = {name: [] for name in types}
    for split, part in features.items():
        embedded = predictions[split].embedded
        columns["name"] += _names(images, part.indices)
        columns["split"] += [split] * len(part.labels)
        columns["label"] += _label_names(images, part.indices)
        columns["common"] += list(embedded.common.float().numpy())
        columns["style"] += list(embedded.style.float().numpy())
    _write_table(path, columns, types)


def _write_label_scores(path: Path, images: ImageDataset, features: RunFeatures) -> None:
    """Write how well the label of every image fits; see `evaluation.label_errors.LabelScores`."""
    import pyarrow as pa

    parts = list(features.values())
    scores = label_scores(
        torch.cat([part.features[:, 0] for part in parts]),
        torch.cat([part.labels for part in parts]),
        len(images.classes),
    )
    columns: dict[str, Any] = {"name": [n for part in parts for n in _names(images, part.indices)]}
    columns |= {name: column.tolist() for name, column in scores._asdict().items()}
    whole, real = pa.int64(), pa.float32()
    types = {
        "name": pa.string(),
        "prediction": whole,
        "confidence": real,
        "label_probability": real,
        "suggested": whole,
        "suspicion": real,
    }
    _write_table(path, columns, types)


def write_thumbnails(
    path: Path, images: ImageDataset, indices: Sequence[int], workers: int = 1
) -> None:
    """Write a table with the thumbnails of the images, as JPEG."""
    import pyarrow as pa

    with ThreadPoolExecutor(max(1, workers)) as pool:
        thumbnails = list(pool.map(lambda index: thumbnail(images, index), indices))
    columns = {"name": _names(images, indices), "jpeg": thumbnails}
    _write_table(path, columns, {"name": pa.string(), "jpeg": pa.binary()})


def thumbnail(images: ImageDataset, index: int) -> bytes:
    """Return an image as a JPEG whose longer side has at most 96 pixels."""
    image = images.open(index, THUMBNAIL_SIDE)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def thumbnail_indices(
    test: NDArray[np.int64], val: NDArray[np.int64], limit: int = MAX_THUMBNAILS
) -> list[int]:
    """Return the indices of evenly spaced test images, then validation images; at most `limit`."""
    chosen: list[int] = []
    for indices in (test, val):
        room = limit - len(chosen)
        step = max(1.0, len(indices) / max(1, room))
        positions = np.arange(min(room, len(indices))) * step
        chosen += indices[positions.astype(np.int64)].tolist()
    return chosen


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write the problems found by the data checks as JSON."""
    write_json(path, [{"kind": p.kind, "name": p.name, "detail": p.detail} for p in problems])


def _names(images: ImageDataset, indices: Iterable[int]) -> list[str]:
    return [images.names[index] for index in indices]


def _label_names(images: ImageDataset, indices: NDArray[np.int64]) -> list[str]:
    return [images.classes[label] for label in images.labels[indices]]


def _write_table(path: Path, columns: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = {name: columns[name] for name in types}
    with replacing(path) as temporary:
        pq.write_table(pa.table(ordered, schema=pa.schema(types)), temporary)
