"""The images of a report: their predictions, neighbours, hardest pairs and 2-D maps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scs_supcon.io.records import RecordError
from scs_supcon.report.inputs import RunRecords

NEIGHBOURS = 8
HARD_PAIRS = 8
JPEG_BUDGET = 9_000_000  # bytes, so that the page stays below 15 MB
FEWEST_FOR_TSNE = 12

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ImageGallery:
    """The images that have a thumbnail, one row each.

    Attributes:
        names: names of the images as in the data.
        splits: train, val or test.
        labels: index of the true class.
        predictions: index of the predicted class; -1 for training images.
        confidences: probability of the predicted class.
        rejected: whether the model rejects the image as unknown.
        jpegs: thumbnails; empty beyond the size limit of the page.
        common: unit vectors of the common field.
        style: unit vectors of the style field; no columns if the method has none.
    """

    names: list[str]
    splits: list[str]
    labels: IntArray
    predictions: IntArray
    confidences: FloatArray
    rejected: list[bool]
    jpegs: list[bytes]
    common: FloatArray
    style: FloatArray

    @property
    def fields(self) -> dict[str, FloatArray]:
        """The fields that have columns, by name."""
        return {"common": self.common} | ({"style": self.style} if self.style.shape[1] else {})


@dataclass(frozen=True)
class HardPair:
    """Two images, by index, and their similarity in the common field."""

    first: int
    second: int
    similarity: float


def build_gallery(records: RunRecords) -> ImageGallery:
    """Collect thumbnail, label, prediction and embedding of each image."""
    class_index = {name: index for index, name in enumerate(records.evaluation.classes)}
    for name in {*records.embeddings["label"], *records.predictions["prediction"]} - {*class_index}:
        raise RecordError(f"{records.path} is damaged: {name!r} is not a class of its evaluation")
    embeddings, predictions = records.embeddings, records.predictions
    embedding_row = {name: row for row, name in enumerate(embeddings["name"])}
    prediction_row = {name: row for row, name in enumerate(predictions["name"])}
    jpegs = dict(zip(records.thumbnails["name"], records.thumbnails["jpeg"], strict=True))
    names = [name for name in records.thumbnails["name"] if name in embedding_row]
    rows = [embedding_row[name] for name in names]
    predicted = [prediction_row.get(name) for name in names]
    return ImageGallery(
        names=names,
        splits=[embeddings["split"][row] for row in rows],
        labels=np.array([class_index[embeddings["label"][row]] for row in rows], np.int64),
        predictions=np.array(
            [-1 if row is None else class_index[predictions["prediction"][row]]
             for row in predicted],
            np.int64,
        ),
        confidences=np.array(
            [0.0 if row is None else max(predictions["probabilities"][row]) for row in predicted],
            np.float32,
        ),
        rejected=[row is not None and predictions["unknown"][row] for row in predicted],
        jpegs=_within_budget([jpegs[name] for name in names]),
        common=_stack([embeddings["common"][row] for row in rows]),
        style=_stack([embeddings["style"][row] for row in rows]),
    )  # fmt: skip


def _stack(vectors: Sequence[FloatArray]) -> FloatArray:
    return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)


def _within_budget(jpegs: list[bytes]) -> list[bytes]:
    sizes = np.cumsum([len(jpeg) for jpeg in jpegs])
    return [jpeg if size <= JPEG_BUDGET else b"" for jpeg, size in zip(jpegs, sizes, strict=True)]


def nearest(vectors: FloatArray, count: int = NEIGHBOURS) -> tuple[IntArray, FloatArray]:
    """Return for each row the most similar other rows, nearest first, and the similarities."""
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, : min(count, len(vectors) - 1)]
    return order, np.take_along_axis(similarity, order, axis=1)


def hardest_pairs(
    gallery: ImageGallery, count: int = HARD_PAIRS
) -> tuple[list[HardPair], list[HardPair]]:
    """Return the most similar different-class pairs and the least similar same-class pairs.

    Training images are left out; an image appears at most once in each list.
    """
    rows = np.flatnonzero([split != "train" for split in gallery.splits])
    vectors, labels = gallery.common[rows], gallery.labels[rows]
    first, second = np.triu_indices(len(rows), k=1)
    similarity = (vectors @ vectors.T)[first, second] if len(rows) else np.zeros(0, np.float32)
    same = labels[first] == labels[second]

    def pairs(keys: FloatArray) -> list[HardPair]:
        order = zip(range(count), _each_image_once(keys, first, second), strict=False)
        return [
            HardPair(int(rows[first[pair]]), int(rows[second[pair]]), float(similarity[pair]))
            for _, pair in order
        ]

    return pairs(np.where(same, np.inf, -similarity)), pairs(np.where(same, similarity, np.inf))


def _each_image_once(keys: FloatArray, first: IntArray, second: IntArray) -> Iterator[int]:
    """Yield pairs by rising key without repeating an image; infinite keys are left out."""
    keys = keys.copy()
    while len(keys):
        pair = int(np.argmin(keys))
        if not np.isfinite(keys[pair]):
            return
        yield pair
        images = (first[pair], second[pair])
        keys[np.isin(first, images) | np.isin(second, images)] = np.inf


def map_points(vectors: FloatArray) -> FloatArray:
    """Return deterministic map coordinates (n, 2) between 0 and 1, by t-SNE.

    Fewer than 12 images are placed by their two principal components. Both axes have the same
    scale.
    """
    use_tsne = len(vectors) >= FEWEST_FOR_TSNE
    points = _tsne(vectors) if use_tsne else _principal_components(vectors)
    if not len(points):
        return points
    low, high = points.min(0), points.max(0)
    span = max(float((high - low).max()), 1e-9)
    return np.asarray((points - (low + high) / 2) / span + 0.5, np.float32)


def _principal_components(vectors: FloatArray) -> FloatArray:
    if len(vectors) < 2 or vectors.shape[1] < 2:
        return np.zeros((len(vectors), 2), np.float32)
    left, scale, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    return np.asarray(left[:, :2] * scale[:2], np.float32)


def _tsne(vectors: FloatArray) -> FloatArray:
    from openTSNE import TSNE

    # Half of the default iterations and a coarser theta give the same map in a third of the time.
    embedding = TSNE(
        perplexity=min(30.0, (len(vectors) - 1) / 3),
        metric="cosine",
        neighbors="exact",
        initialization="pca",
        early_exaggeration_iter=150,
        n_iter=300,
        theta=0.8,
        n_jobs=1,  # threads cost more than they gain here
        random_state=0,
    ).fit(vectors)
    return np.asarray(embedding, np.float32)
