"""From a source to pictures that can be used: read, checked, copies kept together."""

import hashlib
from collections.abc import Callable

from scs_supcon.data.check import check_pictures, keep_duplicates_together, unusable
from scs_supcon.data.folder import read_pictures
from scs_supcon.data.pictures import Pictures, Problem, without


def read_usable(
    source: str, workers: int, progress: Callable[[int, int], None]
) -> tuple[Pictures, list[Problem]]:
    """Read and check a source; leave out what cannot be opened and name it.

    Args:
        source: folder, table or built-in set.
        workers: threads that decode.
        progress: called with (pictures done, pictures in all).
    """
    pictures = read_pictures(source)
    problems = check_pictures(pictures, workers, lambda done: progress(done, len(pictures)))
    bad = unusable(pictures, problems)
    pictures = without(pictures, bad) if bad else pictures
    return keep_duplicates_together(pictures, problems), problems


def content_digest(pictures: Pictures) -> str:
    """SHA-256 over names, labels, contents and given parts: equal digests, equal data."""
    digest = hashlib.sha256()
    for index, name in enumerate(pictures.names):
        columns = (pictures.splits, pictures.groups, pictures.folds)
        parts = ["" if column is None else str(column[index]) for column in columns]
        label = pictures.classes[pictures.labels[index]]
        line = [name, label, pictures.file_hash(index), *parts]
        digest.update("\0".join(line).encode() + b"\n")
    return digest.hexdigest()
