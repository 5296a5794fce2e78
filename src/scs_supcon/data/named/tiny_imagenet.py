"""Tiny-ImageNet: 110,000 labelled images of 64 × 64 pixels in 200 classes of ImageNet.

The publisher's test split has no labels; its validation split is the test set here, as in the
paper.
"""

from pathlib import Path

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.named.base import (
    Archive,
    ListedImage,
    NamedDataset,
    dataset_from_list,
    read_words,
)
from scs_supcon.errors import UserError
from scs_supcon.io.records import read_text

CLASSES, LABELS = "wnids.txt", "val/val_annotations.txt"


def _read(folder: Path) -> ImageDataset:
    classes = read_text(folder / CLASSES, links=True).split()
    if missing := [name for name in classes if not (folder / "train" / name).is_dir()]:
        raise UserError(
            f"Tiny-ImageNet: {folder / 'train'} has no folder {missing[0]}, which {CLASSES} names "
            f"({len(missing)} missing): extract the archive again"
        )
    rows = [
        ListedImage(file.relative_to(folder).as_posix(), name, "train")
        for name in classes
        for file in sorted((folder / "train" / name).rglob("*.JPEG"))
    ]
    for file, label, _box in read_words(folder / LABELS, columns=3):
        if label not in classes:
            raise UserError(f"{folder / LABELS}: {file} has the unknown class {label!r}")
        rows.append(ListedImage(f"val/images/{file}", label, "test"))
    return dataset_from_list("Tiny-ImageNet", folder, rows)


DATASET = NamedDataset(
    name="tiny_imagenet",
    title="Tiny-ImageNet",
    classes=200,
    train=100_000,
    test=10_000,
    native_size=64,
    page="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    archives=(
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
    folder="tiny-imagenet-200",
    files=(CLASSES, LABELS),
    read=_read,
    known_issues=(
        "The images are from ImageNet: an encoder with ImageNet weights may have been trained on "
        "the test images.",
    ),
    test_folder="val",
)
