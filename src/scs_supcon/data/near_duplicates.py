"""Find near duplicates: re-encoded, resized, slightly cropped or brightened copies.

Every image is reduced to a grey thumbnail of 32 × 32 pixels. Pairs are compared in two steps.

*Coarse*: the correlation of the thumbnails at 8 × 8 pixels. One matrix product compares all images;
each image's five nearest neighbours above 0.8 are candidates.

*Fine*: the cosine of the edges (differences of neighbouring pixels at 16 × 16), which do not depend
on brightness and contrast, maximised over 19 alignments: whole images, or one of them with 5 or
10% cut off. Edges distinguish different images with similar grey levels, such as dark trees on a
white background.

A pair is a near duplicate if its fine similarity is at least 0.9. If all images look alike, such as
scans, the threshold is higher: 1 − 1.4 (1 − s)², where s is the median coarse similarity of the
fifth neighbour. `benchmarks/near_duplicates.py` measures precision and recall;
`docs/benchmarks/near_duplicates.md` has the results. Mirrored copies, and crops that cut off 10%
or more on all sides, are not found.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.progress import ProgressCallback

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SIDE, FINE, COARSE = 32, 16, 8
COARSE_THRESHOLD, FINE_THRESHOLD = 0.8, 0.9
NEIGHBOURS = 5
ALIKE_FACTOR = 1.4
ROWS_AT_ONCE = 1000  # images per matrix product
PAIRS_AT_ONCE = 1000  # pairs per fine comparison
SAMPLE = 2000  # images from which the threshold is estimated


class NearDuplicate(NamedTuple):
    """The positions of two images, the lower one first, and their similarity, at most 1."""

    first: int
    second: int
    similarity: float


def thumbnail(image: Image.Image) -> Bytes:
    """Return the grey thumbnail (32, 32) of an image."""
    resampling = Image.Resampling.BOX if min(image.size) >= SIDE else Image.Resampling.BILINEAR
    return np.asarray(image.convert("L").resize((SIDE, SIDE), resampling))


def near_duplicates(
    thumbnails: Bytes, workers: int = 1, progress: ProgressCallback | None = None
) -> list[NearDuplicate]:
    """Return all pairs of near duplicates among thumbnails (n, 32, 32).

    Args:
        thumbnails: Thumbnails as returned by `thumbnail`; equal ones have similarity 1.
        workers: Number of threads.
        progress: Called with (images compared, images in total).
    """
    levels = _levels(thumbnails)
    candidates = _candidates(levels, progress)
    threshold = _threshold(levels)

    def compare(start: int) -> Floats:
        first, second = candidates[start : start + PAIRS_AT_ONCE].T
        return _similarity(thumbnails[first], thumbnails[second])

    with ThreadPoolExecutor(max(1, workers)) as pool:
        chunks = list(pool.map(compare, range(0, len(candidates), PAIRS_AT_ONCE)))
    pairs = zip(*candidates.T.tolist(), np.concatenate([[], *chunks]).tolist(), strict=True)
    return [
        NearDuplicate(a, b, similarity) for a, b, similarity in pairs if similarity >= threshold
    ]


def _levels(thumbnails: Bytes) -> Floats:
    """Return coarse grey levels (n, 64), centred and of unit length; zeros for a blank image."""
    step = SIDE // COARSE
    blocks = thumbnails.reshape(-1, COARSE, step, COARSE, step)
    levels = blocks.mean((2, 4), dtype=np.float32).reshape(-1, COARSE**2)
    return _normalize(levels - levels.mean(1, keepdims=True))


def _candidates(levels: Floats, progress: ProgressCallback | None) -> NDArray[np.int64]:
    """Return candidate pairs (m, 2): each image with its nearest neighbours."""
    n = len(levels)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for start in range(0, n, ROWS_AT_ONCE):
        similarities = levels[start : start + ROWS_AT_ONCE] @ levels.T
        diagonal = np.arange(len(similarities))
        similarities[diagonal, start + diagonal] = -1
        rows = np.flatnonzero(similarities.max(1) > COARSE_THRESHOLD)
        if len(rows):
            close = similarities[rows]
            count = min(NEIGHBOURS, n)
            nearest = np.argpartition(close, n - count, axis=1)[:, n - count :]
            row, column = np.nonzero(np.take_along_axis(close, nearest, 1) > COARSE_THRESHOLD)
            chunk = np.stack([start + rows[row], nearest[row, column]], axis=1)
            pairs.append(np.sort(chunk, axis=1))
        if progress is not None:
            progress(min(start + ROWS_AT_ONCE, n), n)
    return np.unique(np.concatenate(pairs), axis=0)


def _threshold(levels: Floats) -> float:
    """Return the threshold of the fine similarity, which is higher if all images look alike."""
    n = len(levels)
    if n <= NEIGHBOURS:
        return FINE_THRESHOLD
    sample = np.random.default_rng(0).permutation(n)[:SAMPLE]
    similarities = levels[sample] @ levels.T
    similarities[np.arange(len(sample)), sample] = -1
    fifth = np.partition(similarities, n - NEIGHBOURS, axis=1)[:, n - NEIGHBOURS]
    return max(FINE_THRESHOLD, 1 - ALIKE_FACTOR * (1 - float(np.median(fifth))) ** 2)


def _similarity(first: Bytes, second: Bytes) -> Floats:
    """Return the largest similarity over all windows for each pair of thumbnails (m, 32, 32)."""
    a, b = first.astype(np.float32), second.astype(np.float32)
    windows = _windows()
    whole_a, whole_b = _edges(a, windows[0]), _edges(b, windows[0])
    best: Floats = np.einsum("ij,ij->i", whole_a, whole_b)
    for window in windows[1:]:
        np.maximum(best, np.einsum("ij,ij->i", _edges(a, window), whole_b), out=best)
        np.maximum(best, np.einsum("ij,ij->i", whole_a, _edges(b, window)), out=best)
    return best


def _edges(images: Floats, window: tuple[Floats, Floats]) -> Floats:
    """Return the differences of neighbouring pixels in a window, (m, 480) of unit length."""
    down, across = window
    view = down @ images @ across.T
    horizontal = view[:, :, 1:] - view[:, :, :-1]
    vertical = view[:, 1:] - view[:, :-1]
    m = len(images)
    return _normalize(np.concatenate([horizontal.reshape(m, -1), vertical.reshape(m, -1)], axis=1))


@cache
def _windows() -> list[tuple[Floats, Floats]]:
    """Return the whole image, then nine windows each with 95 and 90% of its sides."""
    windows = []
    for share in (1.0, 0.95, 0.9):
        lines = [_resampling_matrix(share, start) for start in _starts(share)]
        windows += [(down, across) for down in lines for across in lines]
    return windows


def _starts(share: float) -> Iterator[float]:
    yield 0.0
    if share < 1:
        yield from ((1 - share) / 2, 1 - share)


def _resampling_matrix(share: float, start: float) -> Floats:
    """Return a matrix (16, 32) that resamples part of a line of 32 pixels to 16 pixels."""
    positions = (np.arange(SIDE) + 0.5) * share + start * SIDE - 0.5
    below = np.clip(np.floor(positions).astype(int), 0, SIDE - 2)
    weight = np.clip(positions - below, 0, 1)
    matrix = np.zeros((SIDE, SIDE), dtype=np.float32)
    matrix[np.arange(SIDE), below] = 1 - weight
    matrix[np.arange(SIDE), below + 1] = weight
    averaged: Floats = matrix.reshape(FINE, SIDE // FINE, SIDE).mean(1)
    return averaged


def _normalize(rows: Floats) -> Floats:
    """Return rows of unit length; rows that are nearly zero become zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    normalized: Floats = np.divide(rows, length, out=np.zeros_like(rows), where=length > 1)
    return normalized
