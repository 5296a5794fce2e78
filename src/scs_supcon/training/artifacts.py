"""What a finished run keeps: evaluation, predictions, embeddings, thumbnails, data problems.

Written once, each file in one step, and always with the same bytes. Evaluation, report and people
read these instead of the images.
"""

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.evaluation.metrics import knn_scores
from scs_supcon.evaluation.predictions import prediction_columns, write_predictions
from scs_supcon.io.atomic import replacing, write_json
from scs_supcon.training.assess import RunArtifacts, assess
from scs_supcon.training.stage2 import Seen

SIDE = 96  # pixels of a thumbnail's longer side
QUALITY = 80
MOST = 2000  # thumbnails, suspected label errors aside


def keep_records(folder: Path, found: RunArtifacts, workers: int = 1) -> None:
    """Write everything that is read after the run: by `scs evaluate`, by the report, by people."""
    evaluation = assess(found)
    evaluation.write(folder / "evaluation.json")
    _write_predictions_of_splits(folder / "predictions.parquet", found)
    _write_embeddings(folder / "embeddings.parquet", found)
    write_problems(folder / "problems.json", found.problems)
    suspected = {error.image for error in evaluation.label_errors}
    wanted = dict.fromkeys(imaged(found.seen))
    wanted |= dict.fromkeys(i for i, name in enumerate(found.images.names) if name in suspected)
    write_thumbnails(folder / "thumbnails.parquet", found.images, wanted, workers)


def _write_predictions_of_splits(path: Path, found: RunArtifacts) -> None:
    columns: dict[str, list[Any]] = defaultdict(list)
    for split in ("val", "test"):
        indices, judgement = found.seen[split].indices, found.judged[split].judgement
        names, labels = names_of(found.images, indices), labels_of(found.images, indices)
        for name, cells in prediction_columns(names, labels, found.made.classes, judgement).items():
            columns[name] += cells
        columns["split"] += [split] * len(indices)
        columns["neighbours"] += _neighbours(found, split)
    write_predictions(path, columns)


def _neighbours(found: RunArtifacts, split: str) -> list[str]:
    """What kNN on the encoder's features says of each image."""
    known, asked = found.seen["train"], found.seen[split]
    votes = knn_scores(known.features[:, 0], known.labels, asked.features[:, 0])
    return [found.images.classes[label] for label in votes.argmax(1)]


def _write_embeddings(path: Path, found: RunArtifacts) -> None:
    """Keep the common and style vectors of every image of every split."""
    import pyarrow as pa

    text, rows = pa.string(), pa.list_(pa.float32())
    kinds = {"name": text, "split": text, "label": text, "common": rows, "style": rows}
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    for split, part in found.seen.items():
        columns["name"] += names_of(found.images, part.indices)
        columns["split"] += [split] * len(part.labels)
        columns["label"] += labels_of(found.images, part.indices)
        columns["common"] += list(found.judged[split].common.float().numpy())
        columns["style"] += list(found.judged[split].style.float().numpy())
    _write(path, columns, kinds)


def write_thumbnails(
    path: Path, images: ImageDataset, indices: Iterable[int], workers: int = 1
) -> None:
    """Keep small JPEGs of some images."""
    import pyarrow as pa

    wanted = list(indices)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        small = list(pool.map(lambda index: thumbnail(images, index), wanted))
    columns = {"name": names_of(images, wanted), "jpeg": small}
    _write(path, columns, {"name": pa.string(), "jpeg": pa.binary()})


def thumbnail(images: ImageDataset, index: int) -> bytes:
    """An image as a JPEG whose longer side has at most 96 pixels."""
    image = images.open(index, SIDE)
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def imaged(seen: Mapping[str, Seen], most: int = MOST) -> list[int]:
    """Images to make thumbnails of: of the test part, then of validation, chosen evenly."""
    chosen: list[int] = []
    for split in ("test", "val"):
        indices, room = seen[split].indices, most - len(chosen)
        step = max(1.0, len(indices) / max(1, room))
        evenly = np.arange(min(room, len(indices))) * step
        chosen += indices[evenly.astype(np.int64)].tolist()
    return chosen


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Keep what the check of the data found."""
    found = [{"kind": p.kind, "name": p.name, "detail": p.detail} for p in problems]
    write_json(path, found)


def names_of(images: ImageDataset, indices: Iterable[int]) -> list[str]:
    """Names of some images."""
    return [images.names[index] for index in indices]


def labels_of(images: ImageDataset, indices: NDArray[np.int64]) -> list[str]:
    """Class names of some images."""
    return [images.classes[label] for label in images.labels[indices]]


def _write(path: Path, columns: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = {name: columns[name] for name in kinds}
    with replacing(path) as temporary:
        pq.write_table(pa.table(ordered, schema=pa.schema(kinds)), temporary)
