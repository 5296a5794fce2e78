"""Stanford Dogs (Khosla et al., 2011): 20,580 photographs of 120 breeds, taken from ImageNet."""

from pathlib import Path
from typing import Any

import numpy as np

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.named.base import Archive, ListedImage, NamedDataset, dataset_from_list
from scs_supcon.errors import UserError

LISTS = {"train_list.mat": "train", "test_list.mat": "test"}


def _read(folder: Path) -> ImageDataset:
    rows = []
    for file, split in LISTS.items():
        for path in _paths(folder / file):
            rows.append(ListedImage(f"Images/{path}", path.partition("/")[0], split))
    return dataset_from_list("Stanford Dogs", folder, rows)


def _paths(file: Path) -> list[str]:
    """Return the column `file_list` of a list in Matlab's format."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise UserError(
            f"{file} needs scipy to be read: pip install scipy, or arrange the images in "
            "train and test folders of class folders"
        ) from error
    try:
        content: dict[str, Any] = loadmat(file)
        cells = content["file_list"].ravel()
        return [str(np.asarray(cell).item()) for cell in cells]
    except Exception as error:  # scipy raises almost anything on damaged files
        raise UserError(
            f"{file} is damaged or not a list of images ({type(error).__name__}: {error}): "
            "extract lists.tar again"
        ) from error


DATASET = NamedDataset(
    name="stanford_dogs",
    title="Stanford Dogs",
    classes=120,
    train=12_000,
    test=8_580,
    native_size=375,
    page="http://vision.stanford.edu/aditya86/ImageNetDogs/",
    archives=(
        Archive("http://vision.stanford.edu/aditya86/ImageNetDogs/images.tar"),
        Archive("http://vision.stanford.edu/aditya86/ImageNetDogs/lists.tar"),
    ),
    folder="",
    files=(*LISTS, "Images"),
    read=_read,
    known_issues=(
        "All images are from the training set of ImageNet: an encoder with ImageNet weights has "
        "been trained on the test images, with these very labels.",
    ),
)
