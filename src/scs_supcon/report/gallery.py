"""The images a report can show, which of them are neighbours, and which pairs are hard."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scs_supcon.report.inputs import Inputs

NEAREST = 8
PAIRS = 8
BUDGET = 9_000_000  # bytes of JPEGs, so that the page stays below 15 MB

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Gallery:
    """Images with a thumbnail, one row each.

    Attributes:
        names: as the data names them.
        splits: train, val or test.
        labels: true class by number.
        predictions: what the model says, by number; -1 where it was not asked.
        chances: the probability it gives to that.
        refused: whether it calls the image none of these.
        jpegs: thumbnails; empty where the page has no room for more.
        common: unit vectors.
        style: unit vectors, without columns where the method has no style field.
    """

    names: list[str]
    splits: list[str]
    labels: Indices
    predictions: Indices
    chances: Floats
    refused: list[bool]
    jpegs: list[bytes]
    common: Floats
    style: Floats


@dataclass(frozen=True)
class Pair:
    """Two images and how alike they are in the common field."""

    first: int
    second: int
    similarity: float


def hang(inputs: Inputs) -> Gallery:
    """Bring together what is known of each image that has a thumbnail."""
    numbers = {name: number for number, name in enumerate(inputs.evaluation["classes"])}
    embedded = {name: row for row, name in enumerate(inputs.embeddings["name"])}
    asked = {name: row for row, name in enumerate(inputs.predictions["name"])}
    names = [name for name in inputs.thumbnails["name"] if name in embedded]
    rows = [embedded[name] for name in names]
    said = [asked.get(name) for name in names]
    predicted = inputs.predictions
    jpegs = dict(zip(inputs.thumbnails["name"], inputs.thumbnails["jpeg"], strict=True))
    return Gallery(
        names=names,
        splits=[inputs.embeddings["split"][row] for row in rows],
        labels=np.array([numbers[inputs.embeddings["label"][row]] for row in rows], np.int64),
        predictions=np.array(
            [-1 if row is None else numbers[predicted["prediction"][row]] for row in said], np.int64
        ),
        chances=np.array(
            [0.0 if row is None else max(predicted["probabilities"][row]) for row in said],
            np.float32,
        ),
        refused=[row is not None and predicted["none_of_these"][row] for row in said],
        jpegs=_within_budget([jpegs[name] for name in names]),
        common=_stacked([inputs.embeddings["common"][row] for row in rows]),
        style=_stacked([inputs.embeddings["style"][row] for row in rows]),
    )


def _stacked(vectors: Sequence[Floats]) -> Floats:
    return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)


def _within_budget(jpegs: list[bytes]) -> list[bytes]:
    sizes = np.cumsum([len(jpeg) for jpeg in jpegs])
    return [jpeg if size <= BUDGET else b"" for jpeg, size in zip(jpegs, sizes, strict=True)]


def nearest(vectors: Floats, count: int = NEAREST) -> tuple[Indices, Floats]:
    """For each row the most similar other rows, nearest first, and their similarities."""
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    order = np.argsort(-likeness, axis=1, kind="stable")[:, : min(count, len(vectors) - 1)]
    return order, np.take_along_axis(likeness, order, axis=1)


def hardest_pairs(gallery: Gallery, count: int = PAIRS) -> tuple[list[Pair], list[Pair]]:
    """The most alike of different classes, and the least alike of one class.

    Only images that were kept out of training are compared; each takes part once in a list.
    """
    held_out = np.array([split != "train" for split in gallery.splits], bool)
    rows = np.flatnonzero(held_out)
    vectors, labels = gallery.common[rows], gallery.labels[rows]
    first, second = np.triu_indices(len(rows), k=1)
    likeness = (vectors @ vectors.T)[first, second] if len(rows) else np.zeros(0, np.float32)
    same = labels[first] == labels[second]
    found = []
    for keys in (np.where(same, np.inf, -likeness), np.where(same, likeness, np.inf)):
        pairs = _each_once(keys, first, second)
        picked = [next(pairs, None) for _ in range(count)]
        found.append(
            [
                Pair(int(rows[first[at]]), int(rows[second[at]]), float(likeness[at]))
                for at in picked
                if at is not None
            ]
        )
    return found[0], found[1]


def _each_once(keys: Floats, first: Indices, second: Indices) -> Iterator[int]:
    """Pairs by rising key; an image that came is not brought again; infinite keys never come."""
    keys = keys.copy()
    while len(keys):
        at = int(np.argmin(keys))
        if not np.isfinite(keys[at]):
            return
        yield at
        keys[np.isin(first, (first[at], second[at])) | np.isin(second, (first[at], second[at]))] = (
            np.inf
        )
