"""From a source to images that can be used: read, checked, copies kept together."""

import hashlib
from collections.abc import Callable

from scs_supcon.data.check import check_images, keep_duplicates_together, unusable
from scs_supcon.data.dataset import ImageDataset, Problem, without
from scs_supcon.data.folder import load_images


def load_dataset(
    source: str, workers: int, progress: Callable[[int, int], None]
) -> tuple[ImageDataset, list[Problem]]:
    """Read and check a source; leave out what cannot be opened and name it.

    Args:
        source: folder, table or built-in set.
        workers: threads that decode.
        progress: called with (images done, images in all).
    """
    images = load_images(source)
    problems = check_images(images, workers, lambda done: progress(done, len(images)))
    bad = unusable(images, problems)
    images = without(images, bad) if bad else images
    return keep_duplicates_together(images, problems), problems


def content_digest(images: ImageDataset) -> str:
    """SHA-256 over names, labels, contents and given parts: equal digests, equal data."""
    digest = hashlib.sha256()
    for index, name in enumerate(images.names):
        columns = (images.splits, images.groups, images.folds)
        parts = ["" if column is None else str(column[index]) for column in columns]
        label = images.classes[images.labels[index]]
        line = [name, label, images.file_hash(index), *parts]
        digest.update("\0".join(line).encode() + b"\n")
    return digest.hexdigest()
