"""Read the binary version of CIFAR-10 and CIFAR-100: records of label bytes and 3072 pixels."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.image_io import check_unchanged
from scs_supcon.errors import UserError
from scs_supcon.io.records import read_text

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True, eq=False)
class CifarRecords:
    """Opens images from records (n, bytes), whose last 3072 bytes are red, green and blue."""

    files: tuple[NDArray[np.uint8], ...]
    ends: NDArray[np.int64]

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Return one image (3, 32, 32)."""
        file = int(np.searchsorted(self.ends, index, side="right"))
        first = int(self.ends[file - 1]) if file else 0
        return np.asarray(self.files[file][index - first, -PIXELS:]).reshape(3, SIDE, SIDE)

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        pixels = self.pixels(index).copy()  # the file is mapped and may change
        if sha256:
            check_unchanged(f"image {index}", hashlib.sha256(pixels.tobytes()).hexdigest(), sha256)
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))

    def file_hash(self, index: int) -> str:
        return hashlib.sha256(self.pixels(index).tobytes()).hexdigest()


def read_cifar(
    folder: Path, files: dict[str, str], class_file: str, label_bytes: int
) -> ImageDataset:
    """Return the images of binary files.

    Args:
        folder: the folder with the files.
        files: name of each file, in alphabetical order, and its split.
        class_file: file with the names of the classes, one per line.
        label_bytes: bytes before the pixels of a record; the last one is the label.

    Raises:
        UserError: a file has the wrong size, or a label without a name.
    """
    names = read_text(folder / class_file, links=True).split()
    records = [_read_records(folder / file, label_bytes + PIXELS) for file in files]
    labels = np.concatenate([rows[:, label_bytes - 1] for rows in records]).astype(np.int64)
    if len(labels) and labels.max() >= len(names):
        raise UserError(
            f"{folder} has an image with label {labels.max()}, but {class_file} names "
            f"{len(names)} classes: extract the archive again"
        )
    classes = tuple(sorted(names))
    index = np.array([classes.index(name) for name in names], dtype=np.int64)
    sizes = [len(rows) for rows in records]
    reader = CifarRecords(tuple(records), np.cumsum(sizes))
    stems = [Path(file).stem for file in files]
    return ImageDataset(
        names=tuple(
            f"{stem}/{number:05d}"
            for stem, size in zip(stems, sizes, strict=True)
            for number in range(size)
        ),
        labels=index[labels],
        classes=classes,
        splits=np.repeat(list(files.values()), sizes),
        groups=None,
        folds=None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=SIDE,
    )


def check_not_pickled(folder: Path, pickled: tuple[str, ...], url: str) -> None:
    """Raise an error for the pickled "python version" of CIFAR."""
    for file in pickled:
        if (folder / file).is_file():
            raise UserError(
                f"{folder / file} belongs to the pickled 'python version', and opening a pickle "
                f"can run code from it: get the binary version, {url}"
            )


def _read_records(file: Path, size: int) -> NDArray[np.uint8]:
    length = file.stat().st_size
    if length == 0 or length % size:
        raise UserError(
            f"{file} has {length:,} bytes, which is not a multiple of {size:,}, the size of one "
            "image: it is damaged or not the binary version; extract the archive again"
        )
    # Mapped, not read: worker processes share the pages.
    return np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, size)
